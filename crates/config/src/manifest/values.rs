//! Values that are written as texts, and lists.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tollway_model::chain;

use crate::go;

/// A value that is written as a text.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Text<T>(pub(super) T);

impl<T: Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de, T> Deserialize<'de> for Text<T>
where
    T: FromStr,
    T::Err: std::error::Error,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(|error| D::Error::custom(chain(&error)))
    }
}

pub(super) fn bare<T>(texts: Vec<Text<T>>) -> Vec<T> {
    texts.into_iter().map(|text| text.0).collect()
}

pub(super) fn texts<T: Clone>(values: &[T]) -> Vec<Text<T>> {
    values.iter().cloned().map(Text).collect()
}

/// Whether an object that decides is also enforced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Mode {
    #[default]
    Enforce,
    Shadow,
}

impl Mode {
    pub(super) fn is_enforce(&self) -> bool {
        *self == Self::Enforce
    }
}

impl From<Mode> for tollway_model::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Enforce => Self::Enforce,
            Mode::Shadow => Self::Shadow,
        }
    }
}

impl From<tollway_model::Mode> for Mode {
    fn from(mode: tollway_model::Mode) -> Self {
        match mode {
            tollway_model::Mode::Enforce => Self::Enforce,
            tollway_model::Mode::Shadow => Self::Shadow,
        }
    }
}

/// A list that is left out means any; an empty one is a mistake, since it would mean none.
pub(super) fn filled<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let list = Vec::deserialize(deserializer)?;
    if list.is_empty() {
        return Err(D::Error::custom("an empty list matches nothing; leave it out to match any"));
    }
    Ok(list)
}

/// A time such as `250ms`, `5s` or `1m30s`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Time(pub(super) Duration);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&written(self.0))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || {
            D::Error::custom(format!(
                "`{text}` is not a time; write for example 250ms, 5s or 1m30s"
            ))
        };
        go::duration(&text).map(Self).ok_or_else(wrong)
    }
}

/// In whole units, the largest first.
fn written(time: Duration) -> String {
    let units: [(u128, &str); 6] = [
        (3_600_000_000_000, "h"),
        (60_000_000_000, "m"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
        (1, "ns"),
    ];
    let mut rest = time.as_nanos();
    let mut text = String::new();
    for (nanos, unit) in units {
        let count = rest / nanos;
        rest %= nanos;
        if count > 0 {
            text += &format!("{count}{unit}");
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_whole_units() {
        for (nanos, text) in [
            (0, "0s"),
            (25_000_000, "25ms"),
            (1_500_000_000, "1s500ms"),
            (90_000_000_000, "1m30s"),
            (86_400_000_000_000, "24h"),
            (3_600_000_000_001, "1h1ns"),
        ] {
            let time = Duration::from_nanos(nanos);
            assert_eq!(written(time), text);
            assert_eq!(go::duration(text), Some(time), "{text}");
        }
    }
}
