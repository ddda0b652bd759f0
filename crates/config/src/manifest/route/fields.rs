//! Values of routes that have a form of their own.

use std::fmt;

use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tollway_model::route as model;

use crate::suggest::unknown;

/// Millionths in one percent.
const PER_PERCENT: u32 = model::WHOLE_SHARE / 100;

/// A text, or `{regex: …}`.
#[derive(Debug)]
pub(super) enum TextMatch {
    Exact(String),
    Regex(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Regex {
    regex: String,
}

impl Serialize for TextMatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Exact(text) => serializer.serialize_str(text),
            Self::Regex(regex) => Regex { regex: regex.clone() }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for TextMatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextMatchVisitor)
    }
}

struct TextMatchVisitor;

impl<'de> Visitor<'de> for TextMatchVisitor {
    type Value = TextMatch;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or `regex` with one, in quotation marks if it could be a number")
    }

    fn visit_str<E>(self, text: &str) -> Result<TextMatch, E> {
        Ok(TextMatch::Exact(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TextMatch, A::Error> {
        let from = serde::de::value::MapAccessDeserializer::new(map);
        Ok(TextMatch::Regex(Regex::deserialize(from)?.regex))
    }
}

impl From<TextMatch> for model::TextMatch {
    fn from(of: TextMatch) -> Self {
        match of {
            TextMatch::Exact(text) => Self::Exact(text),
            TextMatch::Regex(regex) => Self::Regex(regex),
        }
    }
}

impl From<model::TextMatch> for TextMatch {
    fn from(of: model::TextMatch) -> Self {
        match of {
            model::TextMatch::Exact(text) => Self::Exact(text),
            model::TextMatch::Regex(regex) => Self::Regex(regex),
        }
    }
}

/// `name` with `value` or `regex`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "WrittenMatch", into = "WrittenMatch")]
pub(super) struct NamedMatch(model::NamedMatch);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenMatch {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    regex: Option<String>,
}

impl TryFrom<WrittenMatch> for NamedMatch {
    type Error = String;

    fn try_from(of: WrittenMatch) -> Result<Self, String> {
        let value = match (of.value, of.regex) {
            (Some(value), None) => model::TextMatch::Exact(value),
            (None, Some(regex)) => model::TextMatch::Regex(regex),
            (Some(_), Some(_)) => {
                return Err(format!("`{}` has both `value` and `regex`; keep one", of.name));
            }
            (None, None) => return Err(format!("`{}` needs `value` or `regex`", of.name)),
        };
        Ok(Self(model::NamedMatch { name: of.name, value }))
    }
}

impl From<NamedMatch> for WrittenMatch {
    fn from(NamedMatch(of): NamedMatch) -> Self {
        let (value, regex) = match of.value {
            model::TextMatch::Exact(value) => (Some(value), None),
            model::TextMatch::Regex(regex) => (None, Some(regex)),
        };
        Self { name: of.name, value, regex }
    }
}

impl From<NamedMatch> for model::NamedMatch {
    fn from(of: NamedMatch) -> Self {
        of.0
    }
}

impl From<model::NamedMatch> for NamedMatch {
    fn from(of: model::NamedMatch) -> Self {
        Self(of)
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeaderEdits {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    remove: Vec<String>,
    #[serde(default, skip_serializing_if = "Fields::is_empty")]
    set: Fields,
    #[serde(default, skip_serializing_if = "Fields::is_empty")]
    add: Fields,
}

impl HeaderEdits {
    pub(super) fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }
}

impl From<HeaderEdits> for model::HeaderEdits {
    fn from(edits: HeaderEdits) -> Self {
        Self { remove: edits.remove, set: edits.set.0, add: edits.add.0 }
    }
}

impl From<&model::HeaderEdits> for HeaderEdits {
    fn from(edits: &model::HeaderEdits) -> Self {
        let (set, add) = (Fields(edits.set.clone()), Fields(edits.add.clone()));
        Self { remove: edits.remove.clone(), set, add }
    }
}

/// Names with their values, in the order of the file: `name: value`, or `name: [value, value]` for
/// several fields of one name.
#[derive(Debug, Default)]
struct Fields(Vec<(String, String)>);

impl Fields {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (at, (name, _)) in self.0.iter().enumerate() {
            let same = |rest: &[(String, String)]| rest.iter().any(|(other, _)| other == name);
            if self.0.get(..at).is_some_and(same) {
                continue;
            }
            let all = || self.0.iter().filter(|(other, _)| other == name);
            let values: Vec<&String> = all().map(|(_, value)| value).collect();
            match values[..] {
                [value] => map.serialize_entry(name, value)?,
                _ => map.serialize_entry(name, &values)?,
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("names of header fields with their values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let Values(values) = map.next_value()?;
            fields.extend(values.into_iter().map(|value| (name.clone(), value)));
        }
        Ok(Fields(fields))
    }
}

/// A text, or a list of them.
struct Values(Vec<String>);

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValuesVisitor)
    }
}

struct ValuesVisitor;

impl<'de> Visitor<'de> for ValuesVisitor {
    type Value = Values;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of texts, numbers in quotation marks")
    }

    fn visit_str<E>(self, text: &str) -> Result<Values, E> {
        Ok(Values(vec![text.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Values, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element()? {
            values.push(value);
        }
        if values.is_empty() {
            return Err(A::Error::custom("an empty list of values; leave the name out"));
        }
        Ok(Values(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Values, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Err(A::Error::custom("a header field has a text or a list of texts as its value"))
    }
}

/// A share of requests, as a percentage with at most four decimals.
#[derive(Clone, Copy, Debug)]
pub(in crate::manifest) struct Percent(u32);

impl Percent {
    pub(in crate::manifest) fn of_share(millionths: u32) -> Self {
        Self(millionths)
    }

    /// In parts of [`model::WHOLE_SHARE`].
    pub(in crate::manifest) fn share(self) -> u32 {
        self.0
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(in crate::manifest) fn is_whole(&self) -> bool {
        self.0 == model::WHOLE_SHARE
    }
}

impl Default for Percent {
    fn default() -> Self {
        Self(model::WHOLE_SHARE)
    }
}

impl Serialize for Percent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(PER_PERCENT) {
            return serializer.serialize_u32(self.0 / PER_PERCENT);
        }
        serializer.serialize_f64(f64::from(self.0) / f64::from(PER_PERCENT))
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let percent = f64::deserialize(deserializer)?;
        if !(0.0..=100.0).contains(&percent) {
            return Err(D::Error::custom(format!("{percent} is not a percentage from 0 to 100")));
        }
        let share = percent * f64::from(PER_PERCENT);
        if (share - share.round()).abs() > 1e-6 {
            return Err(D::Error::custom(format!("{percent} has more than four decimals")));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to a million"
        )]
        let share = share.round() as u32;
        Ok(Self(share))
    }
}

/// The number of a gRPC status, written by its name.
#[derive(Clone, Copy, Debug)]
pub(in crate::manifest) struct GrpcStatus(pub(in crate::manifest) u8);

/// In the order of their numbers.
pub(in crate::manifest) const GRPC_STATUSES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

impl Serialize for GrpcStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match GRPC_STATUSES.get(usize::from(self.0)) {
            Some(name) => serializer.serialize_str(name),
            None => serializer.collect_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for GrpcStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = (0..).zip(GRPC_STATUSES).find(|(_, name)| *name == text);
        let wrong = || D::Error::custom(unknown("gRPC status", &text, GRPC_STATUSES));
        number.map(|(number, _)| Self(number)).ok_or_else(wrong)
    }
}
