//! The trace context of a request, as the field `traceparent` has it (W3C Trace Context). `routing`
//! decides whether a request is recorded.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

/// Length of a `traceparent` of version 00, the one that is written.
const LENGTH: usize = 55;
/// Set when the caller recorded the trace.
const SAMPLED: u8 = 0b01;
/// Set if the trace's number is random, according to its first maker (level 2 of the standard).
const RANDOM: u8 = 0b10;

/// The number of a trace: the same on every hop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceId(pub NonZeroU128);

/// The number of one span of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SpanId(pub NonZeroU64);

/// A trace, the present span in it, and whether it is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceContext {
    pub trace: TraceId,
    /// The span that is the parent of whatever the receiver does.
    pub span: SpanId,
    flags: u8,
}

impl TraceContext {
    /// A context of one's own making.
    #[must_use]
    pub fn new(trace: TraceId, span: SpanId, sampled: bool) -> Self {
        Self { trace, span, flags: if sampled { SAMPLED } else { 0 } }
    }

    /// Reads the value of a `traceparent` field; `None` if it is not valid. Later versions of the
    /// format are read as far as this one goes.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (fixed, rest) = value.split_at_checked(LENGTH)?;
        let version = u8::try_from(hex(&fixed[..2])?).ok()?;
        let is_whole = match version {
            0xff => false,
            0 => rest.is_empty(),
            _ => matches!(rest, [] | [b'-', ..]),
        };
        if !is_whole || fixed[2] != b'-' || fixed[35] != b'-' || fixed[52] != b'-' {
            return None;
        }
        let trace = NonZeroU128::new(hex(&fixed[3..35])?)?;
        let span = NonZeroU64::new(u64::try_from(hex(&fixed[36..52])?).ok()?)?;
        let flags = u8::try_from(hex(&fixed[53..])?).ok()?;
        Some(Self { trace: TraceId(trace), span: SpanId(span), flags: flags & (SAMPLED | RANDOM) })
    }

    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The same trace seen from another span.
    #[must_use]
    pub fn with_span(self, span: SpanId) -> Self {
        Self { span, ..self }
    }

    /// The value of a `traceparent` field.
    #[must_use]
    pub fn to_field(&self) -> [u8; LENGTH] {
        let mut field = [b'-'; LENGTH];
        write_hex(&mut field[..2], 0);
        write_hex(&mut field[3..35], self.trace.0.get());
        write_hex(&mut field[36..52], u128::from(self.span.0.get()));
        write_hex(&mut field[53..], u128::from(self.flags));
        field
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// At most 32 digits, lower case as the standard requires.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

/// Fills `digits` from the last one.
fn write_hex(digits: &mut [u8], mut number: u128) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 0xf) as usize];
        number >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn parse(value: &str) -> Option<TraceContext> {
        TraceContext::parse(value.as_bytes())
    }

    #[test]
    fn a_context_is_written_as_it_was_read() {
        for flags in ["00", "01", "02", "03"] {
            let field = format!("{}{flags}", &VALID[..53]);
            let context = parse(&field).unwrap();
            assert_eq!(context.is_sampled(), flags == "01" || flags == "03");
            assert_eq!(context.to_field(), field.as_bytes());
        }
        let context = parse(VALID).unwrap();
        assert_eq!(context.trace.to_string(), &VALID[3..35]);
        assert_eq!(context.span.to_string(), &VALID[36..52]);
    }

    #[test]
    fn unknown_flags_are_not_passed_on() {
        let context = parse(&format!("{}fd", &VALID[..53])).unwrap();
        assert_eq!(context.to_field(), VALID.as_bytes());
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        let later = VALID.replacen("00", "cc", 1);
        assert_eq!(parse(&later), parse(VALID));
        assert_eq!(parse(&format!("{later}-what-comes")), parse(VALID));
        assert_eq!(parse(&format!("{later}what-comes")), None);
    }

    #[test]
    fn what_is_not_a_context_is_refused() {
        for wrong in [
            "",
            "00",
            &VALID[..54],
            &format!("{VALID}-more"),
            &format!("{VALID} "),
            &VALID.replacen("00", "ff", 1),
            &VALID.replacen("00", "0x", 1),
            &VALID.to_uppercase(),
            &VALID.replace('-', "_"),
            &VALID.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &VALID.replace("b7ad6b7169203331", &"0".repeat(16)),
            &VALID.replace("-01", "-0g"),
            &"é".repeat(28),
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
