//! The metadata of a component, taken by name. What is left over has no effect, and a note.

use std::time::Duration;

use tollway_config::go::{At, duration};
use tollway_config::{Mistake, suggest};

/// Words that Dapr takes for yes and no.
const YES: &[&str] = &["true", "yes", "on", "y", "t", "1"];
const NO: &[&str] = &["false", "no", "off", "n", "f", "0", ""];

/// One name with its value.
pub(super) struct Field {
    pub(super) at: At,
    pub(super) name: String,
    pub(super) value: String,
}

/// The metadata that have not been taken yet.
pub(super) struct Fields {
    left: Vec<Field>,
    /// The position of the component.
    at: At,
    /// Every name that was looked up.
    known: Vec<&'static str>,
    /// What has no effect.
    notes: Vec<Mistake>,
    /// Why the component cannot be used, without being wrong.
    unserved: Option<String>,
}

impl Fields {
    /// Names are compared without case, as Dapr does. Of one that is given twice the last counts.
    ///
    /// # Errors
    /// A name that is given twice in different case.
    pub(super) fn new(fields: Vec<Field>, at: At) -> Result<Self, Mistake> {
        let mut left: Vec<Field> = Vec::with_capacity(fields.len());
        for field in fields {
            match left.iter_mut().find(|other| other.name.eq_ignore_ascii_case(&field.name)) {
                Some(other) if other.name == field.name => *other = field,
                Some(other) => {
                    let what =
                        format!("`{}` is `{}` in another case; keep one", field.name, other.name);
                    return Err(Mistake::at(field.at, what));
                }
                None => left.push(field),
            }
        }
        Ok(Self { left, at, known: Vec::new(), notes: Vec::new(), unserved: None })
    }

    /// The field of any of these names, of which the first that is given counts; an empty value is
    /// as none.
    pub(super) fn take(&mut self, names: &[&'static str]) -> Option<Field> {
        self.known.extend_from_slice(names);
        let mut found: Option<Field> = None;
        for name in names {
            let is_asked = |field: &Field| field.name.eq_ignore_ascii_case(name);
            let Some(index) = self.left.iter().position(is_asked) else { continue };
            let field = self.left.remove(index);
            match &found {
                Some(first) => {
                    let what = format!("`{}` has no effect: `{}` counts", field.name, first.name);
                    self.notes.push(Mistake::at(field.at, what));
                }
                None => found = Some(field),
            }
        }
        found.filter(|field| !field.value.is_empty())
    }

    pub(super) fn text(&mut self, name: &'static str) -> Option<String> {
        self.take(&[name]).map(|field| field.value)
    }

    /// # Errors
    /// When it is missing.
    pub(super) fn required(&mut self, names: &[&'static str]) -> Result<Field, Mistake> {
        let found = self.take(names);
        let what = || format!("the metadata `{}` are missing", names[0]);
        found.ok_or_else(|| Mistake::at(self.at, what()))
    }

    pub(super) fn is_yes(&mut self, name: &'static str) -> Result<bool, Mistake> {
        let Some(field) = self.take(&[name]) else { return Ok(false) };
        let given = field.value.trim().to_lowercase();
        match (YES.contains(&given.as_str()), NO.contains(&given.as_str())) {
            (true, _) => Ok(true),
            (_, true) => Ok(false),
            _ => Err(field.wrong("true or false")),
        }
    }

    /// A whole number of a range.
    pub(super) fn number<T>(
        &mut self,
        name: &'static str,
        expected: &str,
        fits: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, Mistake>
    where
        T: std::str::FromStr,
    {
        let Some(field) = self.take(&[name]) else { return Ok(None) };
        let number = field.value.parse().ok().filter(|number| fits(number));
        number.map(Some).ok_or_else(|| field.wrong(expected))
    }

    /// A time such as `20s`; a bare number has the unit `bare`. Zero and less are `None` within.
    pub(super) fn time(
        &mut self,
        names: &[&'static str],
        bare: Duration,
    ) -> Result<Option<Option<Duration>>, Mistake> {
        let Some(field) = self.take(names) else { return Ok(None) };
        let text = field.value.as_str();
        let time = match text.parse::<i64>() {
            Ok(number) if number <= 0 => Some(None),
            Ok(number) => u32::try_from(number).ok().map(|number| Some(bare * number)),
            Err(_) if text.starts_with('-') => Some(None),
            Err(_) => duration(text).map(Some),
        };
        let time = time.map(|time| time.filter(|time| !time.is_zero()));
        time.map(Some).ok_or_else(|| field.wrong("a time such as 20s or 5m"))
    }

    /// The position of the component.
    pub(super) fn location(&self) -> At {
        self.at
    }

    /// Takes names that have no effect here, whatever their values, with a note for each.
    pub(super) fn skip(&mut self, names: &[&'static str], why: &str) {
        for name in names {
            if let Some(field) = self.take(&[name]) {
                let what = format!("`{}` has no effect: {why}", field.name);
                self.notes.push(Mistake::at(field.at, what));
            }
        }
    }

    /// Whether the value of a name is one that Dapr takes for yes; of any other it is no.
    pub(super) fn is_truthy(&mut self, name: &'static str) -> bool {
        let field = self.take(&[name]);
        field.is_some_and(|field| YES.contains(&field.value.trim().to_lowercase().as_str()))
    }

    /// Adds a note.
    pub(super) fn note(&mut self, at: At, what: String) {
        self.notes.push(Mistake::at(at, what));
    }

    /// Notes why the component cannot be used. The first reason counts.
    pub(super) fn refuse_use(&mut self, why: String) {
        self.unserved.get_or_insert(why);
    }

    /// Adds notes about what was not taken or has no effect. Returns why the component cannot be
    /// used, if it cannot.
    pub(super) fn finish(self, notes: &mut Vec<Mistake>) -> Option<String> {
        notes.extend(self.notes);
        notes.extend(self.left.iter().map(|field| {
            let unknown = suggest::unknown("metadata", &field.name, self.known.iter().copied());
            Mistake::at(field.at, unknown)
        }));
        self.unserved
    }
}

impl Field {
    pub(super) fn wrong(&self, expected: &str) -> Mistake {
        let what = format!("`{}` is {:?}; expected {expected}", self.name, self.value);
        Mistake::at(self.at, what)
    }
}
