//! The two grammars of durations.
//!
//! Both are those of Dapr, as its documentation names them (*Actors timers and reminders*) and
//! `time.go` of dapr/kit reads them. Taken as well is what official SDKs send and that does not
//! read: ISO 8601 in lower case and with parts of a second. Not taken is what that reads without
//! sense: `PT5`, a number without a unit, as zero, and signs within.

use std::time::Duration;

use crate::schedule::TermProblem;

const NANOS_PER_SECOND: u128 = 1_000_000_000;
const SECONDS_PER_DAY: u64 = 86_400;
/// More digits than the largest number that can be meant.
const DIGITS_LIMIT: usize = 24;
/// Digits beyond these are worth less than a nanosecond, whatever the unit.
const FRACTION_DIGITS: usize = 16;

/// Months by the calendar, and then a time; either may be zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Span {
    pub(crate) months: u32,
    pub(crate) time: Duration,
}

/// Reads a duration of either grammar.
pub(crate) fn parse(text: &str) -> Result<Span, TermProblem> {
    match text.strip_prefix(['P', 'p']) {
        Some(rest) => parse_iso(rest),
        None => Ok(Span { months: 0, time: parse_go(text)? }),
    }
}

/// Go's `time.ParseDuration`: numbers with or without a fraction, each with its unit (`ns`, `us`,
/// `µs`, `ms`, `s`, `m`, `h`), in any order and as often as one likes, which add up; a sign before
/// all of them; a bare `0`. Less than a nanosecond is dropped.
fn parse_go(text: &str) -> Result<Duration, TermProblem> {
    let (unsigned, is_negative) = match text.as_bytes().first() {
        Some(b'-') => (&text[1..], true),
        Some(b'+') => (&text[1..], false),
        Some(_) | None => (text, false),
    };
    if unsigned == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = unsigned;
    let mut nanos: u128 = 0;
    loop {
        let (number, after) = Decimal::take(rest, &['.'])?;
        let unit_end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let unit = unit_nanos(&after[..unit_end]).ok_or(TermProblem::Unreadable)?;
        nanos = nanos.checked_add(number.times(unit)?).ok_or(TermProblem::TooFar)?;
        rest = &after[unit_end..];
        if rest.is_empty() {
            break;
        }
    }
    if is_negative && nanos > 0 {
        return Err(TermProblem::Negative);
    }
    duration(nanos)
}

fn unit_nanos(unit: &str) -> Option<u128> {
    Some(match unit {
        "ns" => 1,
        // The sign for micro has two code points: U+00B5 and the Greek letter U+03BC.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => NANOS_PER_SECOND,
        "m" => 60 * NANOS_PER_SECOND,
        "h" => 3_600 * NANOS_PER_SECOND,
        _ => return None,
    })
}

/// ISO 8601 after its `P`: years, months, weeks, days, `T`, hours, minutes, seconds, in this order
/// and each at most once, one at least. Seconds may have a fraction. Weeks may be combined with
/// others.
fn parse_iso(text: &str) -> Result<Span, TermProblem> {
    let (date, clock) = match text.split_once(['T', 't']) {
        Some((_, "")) => return Err(TermProblem::Unreadable),
        Some((date, clock)) => (date, clock),
        None => (text, ""),
    };
    if text.is_empty() {
        return Err(TermProblem::Unreadable);
    }
    let [years, months, weeks, days] = designated(date, [b'Y', b'M', b'W', b'D'])?;
    let [hours, minutes, seconds] = designated(clock, [b'H', b'M', b'S'])?;
    if [years, months, weeks, days, hours, minutes].iter().any(|number| number.fraction.is_some()) {
        return Err(TermProblem::Unreadable);
    }
    let whole_days = weeks.times(7)?.checked_add(days.times(1)?).ok_or(TermProblem::TooFar)?;
    let all_months = years.times(12)?.checked_add(months.times(1)?).ok_or(TermProblem::TooFar)?;
    let parts = [
        whole_days.checked_mul(u128::from(SECONDS_PER_DAY) * NANOS_PER_SECOND),
        Some(hours.times(3_600 * NANOS_PER_SECOND)?),
        Some(minutes.times(60 * NANOS_PER_SECOND)?),
        Some(seconds.times(NANOS_PER_SECOND)?),
    ];
    let nanos = parts.into_iter().try_fold(0_u128, |sum, part| sum.checked_add(part?));
    Ok(Span {
        months: u32::try_from(all_months).map_err(|_| TermProblem::TooFar)?,
        time: duration(nanos.ok_or(TermProblem::TooFar)?)?,
    })
}

/// Numbers that are followed by these letters, in this order; zero for what is left out.
fn designated<const N: usize>(
    text: &str,
    letters: [u8; N],
) -> Result<[Decimal<'_>; N], TermProblem> {
    let mut numbers = [Decimal::default(); N];
    let mut rest = text;
    let mut place = 0;
    while !rest.is_empty() {
        let (number, after) = Decimal::take(rest, &['.', ','])?;
        if !number.is_complete() {
            return Err(TermProblem::Unreadable);
        }
        let letter = after.bytes().next().ok_or(TermProblem::Unreadable)?.to_ascii_uppercase();
        let at = letters[place..].iter().position(|other| *other == letter);
        place += at.ok_or(TermProblem::Unreadable)?;
        numbers[place] = number;
        place += 1;
        rest = &after[1..];
    }
    Ok(numbers)
}

/// A number without a sign, as its digits.
#[derive(Clone, Copy, Default)]
struct Decimal<'a> {
    whole: &'a str,
    /// What is behind the point, if there is one.
    fraction: Option<&'a str>,
}

impl<'a> Decimal<'a> {
    /// Takes one off the beginning; either side of its point may be empty, not both.
    fn take(text: &'a str, points: &[char]) -> Result<(Self, &'a str), TermProblem> {
        let (whole, rest) = digits(text);
        let (fraction, rest) = match rest.strip_prefix(points) {
            Some(after) => {
                let (fraction, rest) = digits(after);
                (Some(fraction), rest)
            }
            None => (None, rest),
        };
        if whole.is_empty() && fraction.is_none_or(str::is_empty) {
            return Err(TermProblem::Unreadable);
        }
        Ok((Self { whole, fraction }, rest))
    }

    /// Whether there are digits on either side of its point.
    fn is_complete(&self) -> bool {
        !self.whole.is_empty() && self.fraction.is_none_or(|fraction| !fraction.is_empty())
    }

    /// Times a whole number; what is left of the fraction is dropped.
    fn times(&self, factor: u128) -> Result<u128, TermProblem> {
        let whole = value(self.whole).ok_or(TermProblem::TooFar)?.checked_mul(factor);
        let digits = self.fraction.unwrap_or_default();
        let digits = &digits[..digits.len().min(FRACTION_DIGITS)];
        let scale = 10_u128.pow(digits.len() as u32);
        let part = value(digits).ok_or(TermProblem::TooFar)?.checked_mul(factor);
        let sum = whole.zip(part).and_then(|(whole, part)| whole.checked_add(part / scale));
        sum.ok_or(TermProblem::TooFar)
    }
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Of digits; zero without any. `None` where there are too many.
fn value(digits: &str) -> Option<u128> {
    let digits = digits.trim_start_matches('0');
    match digits.len() {
        0 => Some(0),
        1..=DIGITS_LIMIT => digits.parse().ok(),
        _ => None,
    }
}

fn duration(nanos: u128) -> Result<Duration, TermProblem> {
    let seconds = u64::try_from(nanos / NANOS_PER_SECOND).map_err(|_| TermProblem::TooFar)?;
    Ok(Duration::new(seconds, (nanos % NANOS_PER_SECOND) as u32))
}
