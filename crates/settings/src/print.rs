//! Settings as YAML that can be given back as a settings file.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::given::{Listing, Origin, ValueInEffect};
use crate::setting::Kind;

/// Column at which comments start, where the value leaves room.
const COMMENT_COLUMN: usize = 34;

impl Listing {
    /// One setting a line; what is unset is a comment, so that the page names every setting.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let mut text = format!("# Settings of `tollway {}`.\n", self.part);
        for value in &self.list {
            let line = value.to_yaml();
            let comment = self.comment(&value.origin);
            // Writing into a string does not fail.
            let _ = if comment.is_empty() {
                writeln!(text, "{line}")
            } else {
                writeln!(text, "{line:<COMMENT_COLUMN$} # {comment}")
            };
        }
        text
    }

    fn comment(&self, origin: &Origin) -> String {
        match origin {
            Origin::Flag => "from the command line".to_owned(),
            Origin::Environment => "from the environment".to_owned(),
            Origin::File { line } => match &self.file {
                Some(file) => format!("{}:{line}", file.display()),
                None => format!("line {line}"),
            },
            Origin::Default => String::new(),
            Origin::Unset => "not set".to_owned(),
        }
    }
}

impl ValueInEffect {
    fn to_yaml(&self) -> String {
        let key = self.setting.key;
        match self.values.as_slice() {
            _ if self.origin == Origin::Unset => format!("# {key}: {}", self.setting.value_form()),
            [one] if self.setting.kind != Kind::List => format!("{key}: {}", scalar(one)),
            many => match self.section() {
                Some(lines) => format!("{key}: {{{}}}", lines.join(", ")),
                None => {
                    let items: Vec<String> = many.iter().map(|value| scalar(value)).collect();
                    format!("{key}: [{}]", items.join(", "))
                }
            },
        }
    }

    /// Pairs as lines of a section; `None` where a name repeats, which a section cannot have.
    fn section(&self) -> Option<Vec<String>> {
        if !self.setting.is_pair {
            return None;
        }
        let pairs: Option<Vec<(&str, &str)>> =
            self.values.iter().map(|pair| pair.split_once('=')).collect();
        let pairs = pairs?;
        let names: BTreeSet<&str> = pairs.iter().map(|(name, _)| *name).collect();
        let line = |(name, value): &(&str, &str)| format!("{name}: {}", scalar(value));
        (names.len() == pairs.len()).then(|| pairs.iter().map(line).collect())
    }
}

/// A value, quoted unless every YAML reader takes it for the same text.
fn scalar(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/-+".contains(c);
    // A colon inside is plain text, as in an address; before a blank it would make a key.
    let plain = !value.is_empty()
        && value.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
        && value.chars().all(|c| is_plain(c) || c == ':')
        && !value.ends_with(':')
        && !["null", "yes", "no", "on", "off", "y", "n"].contains(&value.to_lowercase().as_str());
    if plain { value.to_owned() } else { quoted(value) }
}

/// In double quotes: JSON's escapes are YAML's too.
fn quoted(value: &str) -> String {
    serde_json::Value::from(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_misread_is_quoted() {
        for plain in ["127.0.0.1:80", "west", "10000", "/run/token", "true", "info"] {
            assert_eq!(scalar(plain), plain);
        }
        for (value, expected) in [
            ("", "\"\""),
            ("no", "\"no\""),
            ("[::1]:80", "\"[::1]:80\""),
            ("a: b", "\"a: b\""),
            ("5432=db", "\"5432=db\""),
            ("x #y", "\"x #y\""),
            ("\u{7}\"", "\"\\u0007\\\"\""),
        ] {
            assert_eq!(scalar(value), expected);
        }
    }
}
