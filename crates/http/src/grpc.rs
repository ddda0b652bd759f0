//! gRPC over HTTP/2: message borders, status, message and timeout fields.
//!
//! Follows PROTOCOL-HTTP2 of the gRPC project. Bodies stay with the caller; this module finds
//! message borders in them and reads and writes the few fields a proxy must understand.

use std::time::Duration;

use crate::h2::ErrorCode;

/// Bytes before each message: a flag and a big-endian length.
pub const PREFIX_LEN: usize = 5;

/// Digits a `grpc-timeout` may have.
const TIMEOUT_DIGITS: usize = 8;

/// A gRPC status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

impl Status {
    pub const OK: Self = Self(0);
    pub const CANCELLED: Self = Self(1);
    pub const UNKNOWN: Self = Self(2);
    pub const DEADLINE_EXCEEDED: Self = Self(4);
    pub const PERMISSION_DENIED: Self = Self(7);
    pub const RESOURCE_EXHAUSTED: Self = Self(8);
    pub const UNIMPLEMENTED: Self = Self(12);
    pub const INTERNAL: Self = Self(13);
    pub const UNAVAILABLE: Self = Self(14);
    pub const UNAUTHENTICATED: Self = Self(16);

    /// The value of a `grpc-status` field: a decimal number without sign or needless zeros.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        match value {
            [] | [b'0', _, ..] => None,
            digits => decimal(digits)?.try_into().ok().map(Self),
        }
    }

    /// What a response of this HTTP status without `grpc-status` means.
    #[must_use]
    pub fn from_http(status: u16) -> Self {
        match status {
            400 => Self::INTERNAL,
            401 => Self::UNAUTHENTICATED,
            403 => Self::PERMISSION_DENIED,
            404 => Self::UNIMPLEMENTED,
            429 | 502..=504 => Self::UNAVAILABLE,
            _ => Self::UNKNOWN,
        }
    }

    /// What the reset of a stream with this code means.
    #[must_use]
    pub fn from_reset(code: ErrorCode) -> Self {
        match code {
            ErrorCode::REFUSED_STREAM => Self::UNAVAILABLE,
            ErrorCode::CANCEL => Self::CANCELLED,
            ErrorCode::ENHANCE_YOUR_CALM => Self::RESOURCE_EXHAUSTED,
            ErrorCode::INADEQUATE_SECURITY => Self::PERMISSION_DENIED,
            _ => Self::INTERNAL,
        }
    }
}

/// Finds the borders of messages in a body that arrives in pieces of any size.
#[derive(Clone, Debug)]
pub struct MessageReader {
    max_message: u32,
    prefix: [u8; PREFIX_LEN],
    prefix_len: usize,
    /// Bytes of the message at hand still to come, if its prefix is complete.
    left: Option<u32>,
}

/// A step through a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A message of `len` bytes begins.
    Begin { is_compressed: bool, len: u32 },
    /// Bytes of the message; `end` with the last ones (none at all for an empty message).
    Bytes { bytes: &'a [u8], end: bool },
}

/// The body is not a sequence of messages, or one of them is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    #[error("gRPC message of {len} bytes is longer than the {max} allowed")]
    TooLong { len: u32, max: u32 },
    #[error("gRPC message begins with the flag {flag:#04x}; only 0 and 1 have a meaning")]
    UnknownFlag { flag: u8 },
}

impl MessageReader {
    /// Refuses messages longer than `max_message` bytes.
    #[must_use]
    pub fn new(max_message: u32) -> Self {
        Self { max_message, prefix: [0; PREFIX_LEN], prefix_len: 0, left: None }
    }

    /// The next step that `input` allows, which is moved past it; `None` when more input is
    /// needed.
    ///
    /// # Errors
    /// The body cannot be read any further.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Piece<'a>>, FramingError> {
        let Some(left) = self.left else { return self.read_prefix(input) };
        if left > 0 && input.is_empty() {
            return Ok(None);
        }
        let taken = input.len().min(left as usize);
        let (bytes, rest) = input.split_at(taken);
        *input = rest;
        let left = left - u32::try_from(taken).expect("not more than what is left, a u32");
        self.left = Some(left).filter(|&left| left > 0);
        Ok(Some(Piece::Bytes { bytes, end: left == 0 }))
    }

    /// Whether a body may end here.
    #[must_use]
    pub fn is_between_messages(&self) -> bool {
        self.left.is_none() && self.prefix_len == 0
    }

    fn read_prefix<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Piece<'a>>, FramingError> {
        let taken = input.len().min(PREFIX_LEN - self.prefix_len);
        let (bytes, rest) = input.split_at(taken);
        self.prefix[self.prefix_len..self.prefix_len + taken].copy_from_slice(bytes);
        self.prefix_len += taken;
        *input = rest;
        if self.prefix_len < PREFIX_LEN {
            return Ok(None);
        }
        let [flag, l0, l1, l2, l3] = self.prefix;
        let len = u32::from_be_bytes([l0, l1, l2, l3]);
        if flag > 1 {
            return Err(FramingError::UnknownFlag { flag });
        }
        if len > self.max_message {
            return Err(FramingError::TooLong { len, max: self.max_message });
        }
        self.prefix_len = 0;
        self.left = Some(len);
        Ok(Some(Piece::Begin { is_compressed: flag == 1, len }))
    }
}

/// The prefix of a message of `len` bytes.
#[must_use]
pub fn prefix(is_compressed: bool, len: u32) -> [u8; PREFIX_LEN] {
    let [l0, l1, l2, l3] = len.to_be_bytes();
    [u8::from(is_compressed), l0, l1, l2, l3]
}

/// Appends `text` as a `grpc-message` value: what is not printable ASCII, and `%`, as `%XX`.
pub fn encode_message(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(byte),
            _ => {
                let digits = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
                out.extend_from_slice(&[b'%', digits[0], digits[1]]);
            }
        }
    }
}

/// The text of a `grpc-message` value. A `%` that begins no `%XX` is literal and bytes that are not
/// UTF-8 are replaced: a status message is never lost over its spelling.
#[must_use]
pub fn decode_message(value: &[u8]) -> String {
    let mut plain = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((&byte, tail)) = rest.split_first() {
        let escaped = match rest {
            [b'%', high, low, ..] => hex_pair(*high, *low),
            _ => None,
        };
        plain.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { &rest[3..] } else { tail };
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// The time a `grpc-timeout` value allows; `None` if it is not one: one to eight
/// digits and one of `H M S m u n`.
#[must_use]
pub fn parse_timeout(value: &[u8]) -> Option<Duration> {
    let (&unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > TIMEOUT_DIGITS {
        return None;
    }
    let amount = decimal(digits)?;
    match unit {
        b'H' => Some(Duration::from_secs(amount * 3600)),
        b'M' => Some(Duration::from_secs(amount * 60)),
        b'S' => Some(Duration::from_secs(amount)),
        b'm' => Some(Duration::from_millis(amount)),
        b'u' => Some(Duration::from_micros(amount)),
        b'n' => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

/// Appends `timeout` as a `grpc-timeout` value: in the finest unit that eight digits hold,
/// rounded down, and at most 99,999,999 hours.
pub fn write_timeout(timeout: Duration, out: &mut Vec<u8>) {
    let seconds = u128::from(timeout.as_secs());
    let units = [
        (timeout.as_nanos(), b'n'),
        (timeout.as_micros(), b'u'),
        (timeout.as_millis(), b'm'),
        (seconds, b'S'),
        (seconds / 60, b'M'),
        (seconds / 3600, b'H'),
    ];
    let fitting = units.into_iter().find(|(amount, _)| *amount <= MOST_TIMEOUT);
    let (amount, unit) = fitting.unwrap_or((MOST_TIMEOUT, b'H'));
    out.extend_from_slice(amount.to_string().as_bytes());
    out.push(unit);
}

/// The largest number of eight digits.
const MOST_TIMEOUT: u128 = 99_999_999;

/// A number of at most ten digits.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 10 {
        return None;
    }
    digits.iter().try_fold(0, |sum, byte| match byte {
        b'0'..=b'9' => Some(sum * 10 + u64::from(byte - b'0')),
        _ => None,
    })
}

fn hex_pair(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_whatever_the_pieces() {
        let mut body = Vec::new();
        for (is_compressed, text) in [(false, "first"), (true, ""), (false, "the third")] {
            body.extend(prefix(is_compressed, u32::try_from(text.len()).unwrap()));
            body.extend(text.as_bytes());
        }
        for size in 1..=body.len() {
            let mut reader = MessageReader::new(100);
            let mut messages: Vec<(bool, Vec<u8>)> = Vec::new();
            let mut ended = 0;
            for mut piece in body.chunks(size) {
                while let Some(step) = reader.next(&mut piece).unwrap() {
                    match step {
                        Piece::Begin { is_compressed, .. } => {
                            messages.push((is_compressed, Vec::new()));
                        }
                        Piece::Bytes { bytes, end } => {
                            messages.last_mut().unwrap().1.extend(bytes);
                            ended += usize::from(end);
                        }
                    }
                }
            }
            assert!(reader.is_between_messages());
            assert_eq!(ended, 3, "pieces of {size}");
            let expected: [(bool, &[u8]); 3] =
                [(false, b"first"), (true, b""), (false, b"the third")];
            assert!(messages.iter().map(|m| (m.0, &m.1[..])).eq(expected));
        }
    }

    #[test]
    fn long_messages_unknown_flags_and_cut_bodies_are_noticed() {
        let next = |bytes: &[u8]| MessageReader::new(1000).next(&mut &bytes[..]).map(|_| ());
        assert_eq!(
            next(&[0, 255, 255, 255, 255]),
            Err(FramingError::TooLong { len: u32::MAX, max: 1000 })
        );
        assert_eq!(next(&[2, 0, 0, 0, 0]), Err(FramingError::UnknownFlag { flag: 2 }));
        let mut reader = MessageReader::new(1000);
        assert_eq!(reader.next(&mut &[0, 0][..]), Ok(None));
        assert!(!reader.is_between_messages());
    }

    #[test]
    fn status_messages_survive_the_field() {
        for text in ["plain", "100 % sure", "tabs\tand\nlines", "Grüße, мир", "", "%41"] {
            let mut value = Vec::new();
            encode_message(text, &mut value);
            assert!(value.iter().all(|byte| (b' '..=b'~').contains(byte)));
            assert_eq!(decode_message(&value), text);
        }
        assert_eq!(decode_message(b"50%, %4 %zz %41%"), "50%, %4 %zz A%");
        assert_eq!(decode_message(b"%ff"), "\u{fffd}");
    }

    #[test]
    fn timeouts_are_read_and_garbage_is_not() {
        for (value, expected) in [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("10S", Some(Duration::from_secs(10))),
            ("20m", Some(Duration::from_millis(20))),
            ("30u", Some(Duration::from_micros(30))),
            ("0n", Some(Duration::ZERO)),
            ("100000000S", None),
            ("-1S", None),
            ("+1S", None),
            ("1", None),
            ("S", None),
            ("", None),
            ("1s", None),
            ("1 S", None),
            ("1.5S", None),
        ] {
            assert_eq!(parse_timeout(value.as_bytes()), expected, "{value:?}");
        }
    }

    #[test]
    fn timeouts_are_written_in_the_finest_unit_that_fits() {
        for (timeout, expected) in [
            (Duration::from_nanos(99_999_999), "99999999n"),
            (Duration::from_millis(1500), "1500000u"),
            (Duration::from_secs(100), "100000m"),
            (Duration::from_secs(1_000_000), "1000000S"),
            (Duration::MAX, "99999999H"),
        ] {
            let mut value = Vec::new();
            write_timeout(timeout, &mut value);
            assert_eq!(value, expected.as_bytes());
        }
    }

    #[test]
    fn statuses_are_numbers() {
        assert_eq!(Status::parse(b"0"), Some(Status::OK));
        assert_eq!(Status::parse(b"14"), Some(Status::UNAVAILABLE));
        for bad in [&b""[..], b"00", b"-1", b"1 ", b"99999999999"] {
            assert_eq!(Status::parse(bad), None);
        }
        assert_eq!(Status::from_http(503), Status::UNAVAILABLE);
        assert_eq!(Status::from_reset(ErrorCode::CANCEL), Status::CANCELLED);
    }
}
