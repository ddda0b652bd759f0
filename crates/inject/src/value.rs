//! The values of annotations: which ones each form takes.

use tollway_model::Label;

use crate::quantity;

/// In place of a port: there is none.
const NO_PORT: &str = "none";
/// In place of a port: those to which Services lead.
pub const PORT_OF_SERVICES: &str = "services";

/// The form of an annotation's value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    Switch,
    /// The name of an app.
    Name,
    Port,
    /// A port, `services` or `none`.
    AppPort,
    /// A whole number above zero.
    Count,
    /// A whole number of zero or more.
    Seconds,
    /// A whole number with a sign or without.
    Number,
    /// A number from 0 to 1.
    Share,
    OneOf(&'static [&'static str]),
    Path,
    Text,
    /// Texts with commas between.
    List,
    /// The name of an object of Kubernetes.
    Object,
    Objects,
    Quantity,
    /// `NAME=VALUE`, with commas between.
    Pairs,
    /// `NAME=SECRET:KEY` or `NAME=SECRET`, with commas between.
    SecretPairs,
    /// `VOLUME:PATH`, with commas between.
    Mounts,
}

impl Form {
    /// What it takes.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Switch => "`true` or `false`",
            Self::Name => "1 to 63 letters, digits, `-` and `_`",
            Self::Port => "a port from 1 to 65535",
            Self::AppPort => "a port from 1 to 65535, `services` or `none`",
            Self::Count => "a whole number from 1 on",
            Self::Seconds => "a whole number of seconds from 0 on",
            Self::Number => "a whole number",
            Self::Share => "a number from 0 to 1",
            Self::OneOf(_) => "one of a few words",
            Self::Path => "a path that begins with `/`",
            Self::Text => "a text",
            Self::List => "texts with commas between",
            Self::Object => "the name of an object: lower-case letters, digits, `-` and `.`",
            Self::Objects => "names of objects with commas between",
            Self::Quantity => "a quantity above zero, such as `100m` or `64Mi`",
            Self::Pairs => "`NAME=VALUE`, with commas between several",
            Self::SecretPairs => "`NAME=SECRET:KEY`, with commas between several",
            Self::Mounts => "`VOLUME:PATH` with absolute paths, with commas between several",
        }
    }

    /// What it takes, with the words of a closed set.
    pub(crate) fn allowed(self) -> String {
        let Self::OneOf(words) = self else { return self.words().to_owned() };
        words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn takes(self, text: &str) -> bool {
        let number = |least: i64| text.parse().is_ok_and(|number: i64| number >= least);
        match self {
            Self::Switch => switch(text).is_some(),
            Self::Name => Label::new(text).is_ok(),
            Self::Port => text.parse().is_ok_and(|port: u16| port > 0),
            Self::AppPort => [NO_PORT, PORT_OF_SERVICES].contains(&text) || Self::Port.takes(text),
            Self::Count => number(1) && !text.starts_with('+'),
            Self::Seconds => number(0) && !text.starts_with('+'),
            Self::Number => number(i64::MIN),
            Self::Share => text.parse().is_ok_and(|share: f64| (0.0..=1.0).contains(&share)),
            Self::OneOf(words) => words.iter().any(|word| word.eq_ignore_ascii_case(text)),
            Self::Path => text.starts_with('/') && !text.contains(char::is_whitespace),
            Self::Text => !text.trim().is_empty(),
            Self::List => list(text).next().is_some(),
            Self::Object => is_object_name(text),
            Self::Objects => list(text).next().is_some() && list(text).all(is_object_name),
            Self::Quantity => quantity::value(text).is_some(),
            Self::Pairs => pairs(text).is_some(),
            Self::SecretPairs => secret_pairs(text).is_some(),
            Self::Mounts => mounts(text).is_some(),
        }
    }
}

/// Whether a word means yes or no; Dapr takes all of these.
pub(crate) fn switch(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "on" | "1" | "enabled" => Some(true),
        "false" | "f" | "no" | "n" | "off" | "0" | "disabled" => Some(false),
        _ => None,
    }
}

/// Parts between commas that are not empty.
pub(crate) fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// Names with values, where each part is `NAME=VALUE`.
pub(crate) fn pairs(text: &str) -> Option<Vec<(&str, &str)>> {
    let found: Option<Vec<_>> = list(text)
        .map(|part| {
            let (name, value) = part.split_once('=')?;
            let (name, value) = (name.trim(), value.trim());
            is_variable(name).then_some((name, value))
        })
        .collect();
    found.filter(|found| !found.is_empty())
}

/// Variables, each with a Secret and its key.
pub(crate) fn secret_pairs(text: &str) -> Option<Vec<(&str, &str, &str)>> {
    let found = pairs(text)?.into_iter().map(|(name, from)| {
        let (secret, key) = from.split_once(':').unwrap_or((from, name));
        let is_key = !key.is_empty() && key.bytes().all(is_key_byte);
        (is_object_name(secret) && is_key).then_some((name, secret, key))
    });
    found.collect()
}

/// Volumes, each with a path.
pub(crate) fn mounts(text: &str) -> Option<Vec<(&str, &str)>> {
    let found: Option<Vec<_>> = list(text)
        .map(|part| {
            let (volume, path) = part.split_once(':')?;
            let (volume, path) = (volume.trim(), path.trim());
            let fits = !volume.is_empty() && path.starts_with('/') && !path.contains(':');
            fits.then_some((volume, path))
        })
        .collect();
    found.filter(|found| !found.is_empty())
}

fn is_variable(name: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_alphabetic() || b"_-.".contains(&byte);
    name.bytes().next().is_some_and(is_first) && name.bytes().all(is_key_byte)
}

/// A character of a key of a Secret or ConfigMap, or of a variable.
fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.".contains(&byte)
}

/// A DNS subdomain, as Secrets and ConfigMaps are called.
fn is_object_name(text: &str) -> bool {
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| is_lower(byte) && byte != b'-');
    let is_part = |part: &str| {
        part.bytes().all(is_lower) && is_end(part.bytes().next()) && is_end(part.bytes().last())
    };
    text.len() <= 253 && text.split('.').all(is_part)
}

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
}
