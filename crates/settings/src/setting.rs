//! The description of a setting: what its field's type, comment and attributes say.

use schemars::Schema;

use crate::field::Field;
use crate::value::Value;

/// How many values a setting has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    One,
    /// One or none.
    Optional,
    /// Its flag may be repeated.
    List,
    /// True or false; its flag has no value.
    Switch,
}

/// A setting of a part.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// In a settings file.
    pub key: &'static str,
    /// Its long flag.
    pub flag: &'static str,
    /// In one sentence, without a full stop.
    pub help: &'static str,
    pub kind: Kind,
    pub default: Option<&'static str>,
    /// Of the group in which help shows it.
    pub heading: Option<&'static str>,
    /// The variable that gives it too.
    pub variable: Option<&'static str>,
    pub short_flag: Option<char>,
    /// Another long flag.
    pub alias: Option<&'static str>,
    /// The keys of settings without which it means nothing.
    pub needs: &'static [&'static str],
    /// The value that its flag gives without one.
    pub bare: Option<&'static str>,
    /// Whether a part that runs takes over a new value.
    pub is_live: bool,
    /// Whether a list must have a value.
    pub is_required: bool,
    /// What is written instead of a value in help; empty for words.
    pub value_name: &'static str,
    /// All values and what each means, where there are only a few.
    pub words: &'static [(&'static str, &'static str)],
    /// Whether a list of values can be a section of a file.
    pub is_pair: bool,
    /// A valid value.
    pub example: &'static str,
    pub(crate) range: Option<(u64, u64)>,
    pub(crate) schema: fn() -> Schema,
    pub(crate) section: fn() -> Schema,
    is_readable: fn(&str) -> Result<(), String>,
}

impl Setting {
    /// The setting of a field without attributes.
    pub fn of<F: Field>(key: &'static str, flag: &'static str, help: &'static str) -> Self {
        Self {
            key,
            flag,
            help,
            kind: F::KIND,
            default: (F::KIND == Kind::Switch).then_some("false"),
            heading: None,
            variable: None,
            short_flag: None,
            alias: None,
            needs: &[],
            bare: None,
            is_live: false,
            is_required: false,
            value_name: "",
            words: F::Of::WORDS,
            is_pair: F::Of::IS_PAIR,
            example: F::Of::EXAMPLE,
            range: None,
            schema: F::Of::schema,
            section: F::Of::section_schema,
            is_readable: |text| F::Of::read(text).map(|_| ()),
        }
    }

    #[must_use]
    pub fn form(self, value_name: &'static str) -> Self {
        Self { value_name, ..self }
    }

    #[must_use]
    pub fn default(self, text: &'static str) -> Self {
        Self { default: Some(text), ..self }
    }

    /// For a list: the flag, which has one value.
    #[must_use]
    pub fn flag(self, flag: &'static str) -> Self {
        Self { flag, ..self }
    }

    #[must_use]
    pub fn heading(self, heading: &'static str) -> Self {
        Self { heading: Some(heading), ..self }
    }

    #[must_use]
    pub fn variable(self, variable: &'static str) -> Self {
        Self { variable: Some(variable), ..self }
    }

    #[must_use]
    pub fn short(self, flag: char) -> Self {
        Self { short_flag: Some(flag), ..self }
    }

    #[must_use]
    pub fn alias(self, flag: &'static str) -> Self {
        Self { alias: Some(flag), ..self }
    }

    #[must_use]
    pub fn needs(self, needs: &'static [&'static str]) -> Self {
        Self { needs, ..self }
    }

    /// The value that the flag alone gives; another one follows it behind `=`.
    #[must_use]
    pub fn bare(self, text: &'static str) -> Self {
        Self { bare: Some(text), ..self }
    }

    /// A part that runs takes over a new value.
    #[must_use]
    pub fn live(self) -> Self {
        Self { is_live: true, ..self }
    }

    /// A list that must have a value.
    #[must_use]
    pub fn required(self) -> Self {
        Self { is_required: true, ..self }
    }

    /// The least and the greatest number.
    #[must_use]
    pub fn range(self, least: u64, most: u64) -> Self {
        Self { range: Some((least, most)), ..self }
    }

    /// The least number.
    #[must_use]
    pub fn least(self, least: u64) -> Self {
        self.range(least, u64::MAX)
    }

    /// Whether a part cannot start without it.
    #[must_use]
    pub fn must_be_given(&self) -> bool {
        self.is_required || (self.kind == Kind::One && self.default.is_none())
    }

    /// What a value looks like.
    #[must_use]
    pub fn value_form(&self) -> String {
        match self.kind {
            Kind::Switch => "true|false".to_owned(),
            _ if self.words.is_empty() => self.value_name.to_owned(),
            Kind::One | Kind::Optional | Kind::List => {
                self.words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join("|")
            }
        }
    }

    /// Checks a value.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, text: &str) -> Result<(), String> {
        (self.is_readable)(text)?;
        self.check_range(text)
    }

    /// Checks that a number is in its range.
    pub(crate) fn check_range(&self, text: &str) -> Result<(), String> {
        let Some((least, most)) = self.range else { return Ok(()) };
        let number: Option<u64> = text.parse().ok();
        match number {
            Some(number) if !(least..=most).contains(&number) && most == u64::MAX => {
                Err(format!("{number} is less than {least}"))
            }
            Some(number) if !(least..=most).contains(&number) => {
                Err(format!("{number} is not in {least}..={most}"))
            }
            _ => Ok(()),
        }
    }
}
