//! Requested faults: delays, statuses, sizes and closed connections, each with a probability.
//!
//! The server's own are its options; a request may ask for others in its query, which replace them
//! one by one: `?delay=1ms:50,10ms:5&status=503:10&size=4096&close=1`. Chances are in percent; a
//! value without one always happens. The form is that of Fortio's echo server.

use std::borrow::Cow;
use std::str::FromStr;
use std::time::Duration;

use tollway_record::SplitMix64;

use crate::routes::MAX_DELAY_US;

/// Most values of one kind in a text.
const MAX_CHOICES: usize = 16;

/// What happens to answers by chance.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// How long an answer waits before it begins.
    pub delay: Choices<Duration>,
    /// Statuses of HTTP that are answered instead; calls of gRPC fail accordingly.
    pub status: Choices<u16>,
    /// Bytes that are answered instead, for HTTP.
    pub size: Choices<u64>,
    /// Requests, in percent, whose connection is closed instead.
    pub close: f64,
}

/// Values, each with its chance in percent; with what is left of 100 none of them happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Choices<T> {
    choices: Vec<(T, f64)>,
}

/// Why a text names no choices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoicesError {
    #[error("`{value}` is not {expected}")]
    Value { value: String, expected: &'static str },
    #[error("`{chance}` is no chance: give more than 0 and at most 100, in percent")]
    Chance { chance: String },
    #[error("the chances add up to more than 100 percent")]
    TooLikely,
    #[error("at most {MAX_CHOICES} values are possible")]
    TooMany,
}

/// What a choice may be between.
pub trait Choice: Copy {
    /// In words, for who has written something else.
    const EXPECTED: &'static str;
    fn read(text: &str) -> Option<Self>;
}

impl Choice for Duration {
    const EXPECTED: &'static str = "a time such as 150us, 2ms or 0.5s, of at most an hour";

    fn read(text: &str) -> Option<Self> {
        let digits = text.find(|c: char| c.is_ascii_alphabetic())?;
        let (number, unit) = text.split_at(digits);
        let us_per_unit = match unit {
            "us" => 1.0,
            "ms" => 1e3,
            "s" => 1e6,
            _ => return None,
        };
        let us = number.parse::<f64>().ok()? * us_per_unit;
        (0.0..=MAX_DELAY_US as f64).contains(&us).then(|| Self::from_nanos((us * 1e3) as u64))
    }
}

impl Choice for u16 {
    const EXPECTED: &'static str = "a final status of HTTP, 200 to 599";

    fn read(text: &str) -> Option<Self> {
        text.parse().ok().filter(|status| (200..=599).contains(status))
    }
}

impl Choice for u64 {
    const EXPECTED: &'static str = "a number of bytes";

    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl<T> Default for Choices<T> {
    fn default() -> Self {
        Self { choices: Vec::new() }
    }
}

impl<T: Choice> FromStr for Choices<T> {
    type Err = ChoicesError;

    /// `VALUE` or `VALUE:PERCENT,VALUE:PERCENT,…`; a `%` behind the percentage is allowed.
    fn from_str(text: &str) -> Result<Self, ChoicesError> {
        let mut choices = Vec::new();
        let mut sum = 0.0;
        for part in text.split(',') {
            if choices.len() == MAX_CHOICES {
                return Err(ChoicesError::TooMany);
            }
            let (value, chance) = match part.split_once(':') {
                Some((value, chance)) => (value, percent(chance)?),
                None => (part, 100.0),
            };
            sum += chance;
            let read = T::read(value).ok_or_else(|| ChoicesError::Value {
                value: value.to_owned(),
                expected: T::EXPECTED,
            })?;
            choices.push((read, chance));
        }
        // As far as sums of decimal fractions are exact.
        if sum > 100.0 + 1e-6 { Err(ChoicesError::TooLikely) } else { Ok(Self { choices }) }
    }
}

/// A chance in percent, more than 0 and at most 100.
pub fn percent(text: &str) -> Result<f64, ChoicesError> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>();
    number
        .ok()
        .filter(|percent| *percent > 0.0 && *percent <= 100.0)
        .ok_or_else(|| ChoicesError::Chance { chance: text.to_owned() })
}

impl<T: Copy> Choices<T> {
    /// The value for a throw of 0 to 100.
    fn at(&self, throw: f64) -> Option<T> {
        let mut below = 0.0;
        self.choices.iter().find_map(|(value, chance)| {
            below += chance;
            (throw < below).then_some(*value)
        })
    }
}

impl Faults {
    /// Whether nothing ever happens.
    pub(crate) fn is_none(&self) -> bool {
        self.delay.choices.is_empty()
            && self.status.choices.is_empty()
            && self.size.choices.is_empty()
            && self.close == 0.0
    }

    /// These faults, changed by `query`; the error is for the client.
    pub(crate) fn asked(&self, query: &[u8]) -> Result<Cow<'_, Self>, ChoicesError> {
        let mut faults = Cow::Borrowed(self);
        for pair in query.split(|byte| *byte == b'&') {
            let Ok(pair) = str::from_utf8(pair) else { continue };
            match pair.split_once('=') {
                Some(("delay", text)) => faults.to_mut().delay = text.parse()?,
                Some(("status", text)) => faults.to_mut().status = text.parse()?,
                Some(("size", text)) => faults.to_mut().size = text.parse()?,
                Some(("close", text)) => faults.to_mut().close = percent(text)?,
                _ => {}
            }
        }
        Ok(faults)
    }

    /// What happens to one request.
    pub(crate) fn draw(&self, random: &mut SplitMix64) -> Fate {
        if self.is_none() {
            return Fate::default();
        }
        let mut throw = || random.unit() * 100.0;
        Fate {
            closes: throw() < self.close,
            delay: self.delay.at(throw()),
            status: self.status.at(throw()),
            size: self.size.at(throw()),
        }
    }
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) closes: bool,
    pub(crate) delay: Option<Duration>,
    pub(crate) status: Option<u16>,
    pub(crate) size: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_with_their_chances() {
        let delays: Choices<Duration> = "1ms:50%,10ms:5".parse().unwrap();
        assert_eq!(delays.at(49.9), Some(Duration::from_millis(1)));
        assert_eq!(delays.at(50.1), Some(Duration::from_millis(10)));
        assert_eq!(delays.at(55.1), None);
        let always: Choices<u16> = "503".parse().unwrap();
        assert_eq!(always.at(99.999), Some(503));
    }

    #[test]
    fn what_is_no_choice_is_refused_with_the_reason() {
        let delay = |text: &str| text.parse::<Choices<Duration>>().unwrap_err().to_string();
        assert!(delay("5").contains("150us"), "{}", delay("5"));
        assert!(delay("2h").contains("150us"));
        assert!(delay("99999s").contains("an hour"));
        assert!(delay("-1ms").contains("an hour"));
        assert!(delay("1ms:0").contains("more than 0"));
        assert!(delay("1ms:60,2ms:60").contains("more than 100"));
        assert!(delay(&["1ms:1"; 17].join(",")).contains("at most 16"));
        assert!("700".parse::<Choices<u16>>().is_err());
        assert!("101".parse::<Choices<u16>>().is_err());
        assert!("many".parse::<Choices<u64>>().is_err());
    }

    #[test]
    fn faults_occur_at_their_configured_rates() {
        let faults = Faults {
            delay: "1ms:25".parse().unwrap(),
            status: "500:1,503:2".parse().unwrap(),
            close: 10.0,
            ..Faults::default()
        };
        let mut random = SplitMix64::new(1);
        let fates: Vec<_> = (0..100_000).map(|_| faults.draw(&mut random)).collect();
        let share = |holds: &dyn Fn(&Fate) -> bool| {
            fates.iter().filter(|fate| holds(fate)).count() as f64 / 1_000.0
        };
        assert!((share(&|fate| fate.delay.is_some()) - 25.0).abs() < 0.6);
        assert!((share(&|fate| fate.status == Some(503)) - 2.0).abs() < 0.2);
        assert!((share(&|fate| fate.closes) - 10.0).abs() < 0.4);
        assert!(fates.iter().all(|fate| fate.size.is_none()));
    }

    #[test]
    fn a_query_replaces_what_it_names() {
        let own = Faults { status: "503".parse().unwrap(), close: 5.0, ..Faults::default() };
        let asked = own.asked(b"x=1&status=429:1&delay=2ms").unwrap();
        assert_eq!(asked.status, "429:1".parse().unwrap());
        assert_eq!((asked.delay.at(0.0), asked.close), (Some(Duration::from_millis(2)), 5.0));
        assert!(own.asked(b"close=200").is_err());
    }
}
