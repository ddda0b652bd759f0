//! A mapping as it is written: keys and values with their positions, not yet understood.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use crate::yaml::{self, YamlError};

/// Settings in one file.
const SETTINGS_LIMIT: usize = 500;
/// Values of one setting.
const VALUES_LIMIT: usize = 1000;

/// A key with its value.
#[derive(Clone, Debug)]
pub struct Entry {
    pub key: String,
    pub key_at: Location,
    pub value: Value,
    pub value_at: Location,
}

/// The text of values, as written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    One(String),
    Many(Vec<String>),
    /// A section, each line as `name=value`.
    Pairs(Vec<String>),
    /// A key without a value.
    None,
}

/// Reads the entries of a file; `source` names it in errors.
///
/// # Errors
/// [`YamlError`] for a text that is no mapping of values, lists and sections.
pub fn read(text: &str, source: &str) -> Result<Vec<Entry>, YamlError> {
    let entries: Entries = yaml::parse(text, source)?;
    Ok(entries.resolved(text))
}

impl Entries {
    /// The entries, with the characters of plain values as written in `text`, which was parsed.
    /// Of a source without positions, such as JSON, numbers are as they were read.
    pub fn resolved(self, text: &str) -> Vec<Entry> {
        let entry = |(key, raw): (Spanned<String>, Spanned<Raw>)| Entry {
            key_at: key.referenced,
            key: key.value,
            value_at: raw.referenced,
            value: value(text, raw),
        };
        self.0.into_iter().map(entry).collect()
    }
}

fn value(text: &str, raw: Spanned<Raw>) -> Value {
    match raw.value {
        Raw::Scalar(scalar) => Value::One(plain(text, scalar, raw.referenced)),
        Raw::List(items) => Value::Many(
            items.into_iter().map(|item| plain(text, item.value, item.referenced)).collect(),
        ),
        Raw::Section(lines) => Value::Pairs(
            lines
                .into_iter()
                .map(|(name, item)| format!("{name}={}", plain(text, item.value, item.referenced)))
                .collect(),
        ),
        Raw::Null => Value::None,
    }
}

fn plain(text: &str, scalar: Scalar, at: Location) -> String {
    let written = if scalar.is_plain { written(text, at) } else { None };
    written.unwrap_or(scalar.decoded)
}

/// The characters of a plain value: `007` and `1e3` are what the user wrote, not numbers. `None`
/// without a position.
fn written(text: &str, at: Location) -> Option<String> {
    if at.line() == 0 {
        return None;
    }
    let span = at.span();
    let index = |number: Option<u64>| number.and_then(|number| usize::try_from(number).ok());
    let (start, len) = (index(span.byte_offset())?, index(span.byte_len())?);
    Some(text.get(start..start.saturating_add(len))?.trim().to_owned())
}

/// The entries of a mapping, not yet resolved: see [`Entries::resolved`].
pub struct Entries(Vec<(Spanned<String>, Spanned<Raw>)>);

struct Scalar {
    decoded: String,
    /// It looks like a number or a bool, so that the characters may have been others.
    is_plain: bool,
}

enum Raw {
    Scalar(Scalar),
    List(Vec<Spanned<Scalar>>),
    Section(Vec<(String, Spanned<Scalar>)>),
    Null,
}

impl Raw {
    fn plain(value: impl fmt::Display) -> Self {
        Self::Scalar(Scalar { decoded: value.to_string(), is_plain: true })
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("lines of `key: value`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            if entries.len() == SETTINGS_LIMIT {
                return Err(A::Error::custom(format!("more than {SETTINGS_LIMIT} settings")));
            }
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_any(RawVisitor)? {
            Raw::Scalar(scalar) => Ok(scalar),
            Raw::List(_) => Err(D::Error::custom("a list where one value belongs")),
            Raw::Section(_) => Err(D::Error::custom("a section where one value belongs")),
            Raw::Null => Err(D::Error::custom("an item without a value")),
        }
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list of values, or a section of `name: value`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Raw, E> {
        Ok(Raw::Scalar(Scalar { decoded: text.to_owned(), is_plain: false }))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::plain(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::plain(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::plain(value))
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Raw, E> {
        Ok(Raw::plain(value))
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<Raw, E> {
        Ok(Raw::plain(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::plain(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            if list.len() == VALUES_LIMIT {
                return Err(A::Error::custom(format!("more than {VALUES_LIMIT} values")));
            }
            list.push(item);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut lines: A) -> Result<Raw, A::Error> {
        let mut section = Vec::new();
        while let Some(line) = lines.next_entry()? {
            if section.len() == VALUES_LIMIT {
                return Err(A::Error::custom(format!("more than {VALUES_LIMIT} values")));
            }
            section.push(line);
        }
        Ok(Raw::Section(section))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_as_written() {
        let text = "a: 007\nb: '5 '\nc: no\nd: [1e3, \"x\"]\ne:\nf: 127.0.0.1:80 # there\n\
                    g: 0.10\nh: true\ni: 18446744073709551616\nj:\n  k: 1e3\n  2: x\n";
        let entries = read(text, "x.yaml").unwrap();
        let found: Vec<_> =
            entries.iter().map(|entry| (entry.key.as_str(), &entry.value)).collect();
        let one = |text: &str| Value::One(text.to_owned());
        let expected = [
            ("a", &one("007")),
            ("b", &one("5 ")),
            ("c", &one("no")),
            ("d", &Value::Many(vec!["1e3".to_owned(), "x".to_owned()])),
            ("e", &Value::None),
            ("f", &one("127.0.0.1:80")),
            ("g", &one("0.10")),
            ("h", &one("true")),
            ("i", &one("18446744073709551616")),
            ("j", &Value::Pairs(vec!["k=1e3".to_owned(), "2=x".to_owned()])),
        ];
        assert_eq!(found, expected);
        assert_eq!((entries[5].value_at.line(), entries[5].value_at.column()), (6, 4));
    }

    #[test]
    fn what_is_no_list_of_settings_is_refused() {
        for text in [
            "- a\n",
            "a: {b: {c: 1}}\n",
            "a: {b: [1]}\n",
            "a: [[1]]\n",
            "a: [~]\n",
            "just a text\n",
        ] {
            let message = read(text, "x.yaml").unwrap_err().to_string();
            assert!(message.starts_with("x.yaml:"), "{message}");
        }
        assert!(read("", "x.yaml").unwrap().is_empty());
        let many: String = (0..=SETTINGS_LIMIT).map(|n| format!("k{n}: 1\n")).collect();
        assert!(read(&many, "x.yaml").is_err());
    }
}
