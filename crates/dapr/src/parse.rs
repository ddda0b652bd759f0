//! A command line of daprd, read as daprd reads it: one dash or two, `=` or a blank, switches
//! without a value; what is no flag is passed over.

use std::collections::BTreeMap;

use thiserror::Error;

use tollway_config::go::duration;

use crate::flags::{FLAGS, Flag, Kind, find};
use crate::values;

/// A command line that was read.
#[derive(Debug)]
pub enum Parsed {
    Flags(GivenFlags),
    Help,
}

/// The flags that were given, each with all its values.
#[derive(Debug, Default)]
pub struct GivenFlags(BTreeMap<&'static str, Vec<String>>);

/// daprd's error for a command line.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ParseError {
    #[error("unknown flag: --{0}")]
    Unknown(String),
    #[error("unknown shorthand flag: '{letter}' in {word}")]
    Shorthand { letter: char, word: String },
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    #[error("flag needs an argument: --{0}")]
    NoValue(&'static str),
    #[error("invalid argument {value:?} for \"--{name}\" flag: {reason}")]
    Value { name: &'static str, value: String, reason: String },
}

/// Reads the words that follow the program's name.
///
/// # Errors
/// [`ParseError`] for words that daprd does not take.
pub fn parse(words: &[String]) -> Result<Parsed, ParseError> {
    let mut given = GivenFlags::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(text) = word.strip_prefix('-').filter(|text| !text.is_empty()) else { continue };
        let text = match text.strip_prefix('-') {
            Some("") => break,
            Some(text) => text,
            None if text.len() > 1 => text,
            None if text == "h" => return Ok(Parsed::Help),
            None => {
                let letter = text.chars().next().unwrap_or_default();
                return Err(ParseError::Shorthand { letter, word: word.clone() });
            }
        };
        if text.starts_with(['-', '=']) {
            return Err(ParseError::Syntax(word.clone()));
        }
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        if name == "help" {
            return Ok(Parsed::Help);
        }
        let flag = find(name).ok_or_else(|| ParseError::Unknown(name.to_owned()))?;
        let value = match (value, flag.kind) {
            (Some(value), _) => value,
            (None, Kind::Switch) => "true".to_owned(),
            (None, Kind::Text | Kind::Number | Kind::Duration | Kind::List) => {
                words.next().cloned().ok_or(ParseError::NoValue(flag.name))?
            }
        };
        given.add(flag, value)?;
    }
    Ok(Parsed::Flags(given))
}

impl GivenFlags {
    fn add(&mut self, flag: &'static Flag, value: String) -> Result<(), ParseError> {
        let wrong = |reason: String| {
            let value = value.clone();
            Err(ParseError::Value { name: flag.name, value, reason })
        };
        let values = match flag.kind {
            Kind::List => value.split(',').map(str::to_owned).collect(),
            Kind::Number if value.parse::<i64>().is_err() => {
                return wrong("it is no whole number".to_owned());
            }
            Kind::Switch if values::switch(&value).is_none() => {
                return wrong("it is true or false".to_owned());
            }
            Kind::Duration if duration(&value).is_none() => {
                return wrong("it is no time such as 30s or 1m30s".to_owned());
            }
            Kind::Text | Kind::Number | Kind::Switch | Kind::Duration => vec![value],
        };
        let all = self.0.entry(flag.name).or_default();
        if flag.kind != Kind::List {
            all.clear();
        }
        all.extend(values);
        Ok(())
    }

    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The value of a flag, its default without one. `name` is that of a flag of daprd.
    pub fn text(&self, name: &str) -> &str {
        let given = self.0.get(name).and_then(|values| values.last());
        match given {
            Some(value) => value,
            None => find(name).map_or("", |flag| flag.default),
        }
    }

    /// Every value of a list, empty ones left out.
    pub(crate) fn list(&self, name: &str) -> Vec<&str> {
        let values = self.0.get(name).into_iter().flatten();
        values.map(|value| value.trim()).filter(|value| !value.is_empty()).collect()
    }

    /// Whether a switch is on, by its value or its default.
    pub fn is_on(&self, name: &str) -> bool {
        values::switch(self.text(name)).unwrap_or(false)
    }

    pub(crate) fn number(&self, name: &str) -> i64 {
        self.text(name).parse().unwrap_or_default()
    }

    pub(crate) fn duration(&self, name: &str) -> std::time::Duration {
        duration(self.text(name)).unwrap_or_default()
    }

    /// What to write in place of flags that were given, for those that are of old.
    pub(crate) fn outdated(&self) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
        self.flags().filter_map(|flag| Some((flag.name, flag.instead?)))
    }

    /// Flags that were given and have no effect, each with the reason.
    pub(crate) fn idle(&self) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
        self.flags().filter_map(|flag| Some((flag.name, flag.unneeded?)))
    }

    fn flags(&self) -> impl Iterator<Item = &'static Flag> + '_ {
        FLAGS.iter().filter(|flag| self.is_set(flag.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(line: &str) -> Result<GivenFlags, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match parse(&words).map_err(|error| error.to_string())? {
            Parsed::Flags(given) => Ok(given),
            Parsed::Help => Err("help".to_owned()),
        }
    }

    #[test]
    fn one_dash_or_two_and_an_equals_sign_or_a_blank() {
        for line in
            ["--app-id web", "-app-id web", "--app-id=web", "-app-id=web", "x --app-id web y"]
        {
            assert_eq!(given(line).unwrap().text("app-id"), "web", "{line}");
        }
        let given = given("--app-id a --app-id b --config a,b --config c -- --app-id z").unwrap();
        assert_eq!((given.text("app-id"), given.list("config")), ("b", vec!["a", "b", "c"]));
        assert_eq!((given.text("dapr-http-port"), given.is_set("dapr-http-port")), ("3500", false));
    }

    #[test]
    fn a_switch_takes_no_word_behind_it() {
        let given = given("--log-as-json false --enable-metrics=false --app-id web").unwrap();
        assert!(given.is_on("log-as-json") && !given.is_on("enable-metrics"));
        assert_eq!(given.text("app-id"), "web");
    }

    #[test]
    fn what_daprd_does_not_take_is_refused_in_its_words() {
        for (line, refusal) in [
            ("--app-idd web", "unknown flag: --app-idd"),
            ("-bogus", "unknown flag: --bogus"),
            ("--bogus=1", "unknown flag: --bogus"),
            ("-x", "unknown shorthand flag: 'x' in -x"),
            ("---x", "bad flag syntax: ---x"),
            ("--app-id", "flag needs an argument: --app-id"),
            (
                "--app-max-concurrency many",
                "invalid argument \"many\" for \"--app-max-concurrency\" flag: it is no whole number",
            ),
            (
                "--enable-mtls=maybe",
                "invalid argument \"maybe\" for \"--enable-mtls\" flag: it is true or false",
            ),
            (
                "--dapr-block-shutdown-duration 5",
                "invalid argument \"5\" for \"--dapr-block-shutdown-duration\" flag: it is no time such as 30s or 1m30s",
            ),
            ("--help", "help"),
            ("-h", "help"),
        ] {
            assert_eq!(given(line).unwrap_err(), refusal);
        }
    }
}
