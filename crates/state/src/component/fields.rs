//! The metadata of a component, taken by name: nothing is left over and nothing is guessed.

use std::time::Duration;

use serde_saphyr::Location;
use tollway_config::Mistake;

/// Words that Dapr takes for yes and no.
const YES: &[&str] = &["true", "yes", "on", "y", "t", "1"];
const NO: &[&str] = &["false", "no", "off", "n", "f", "0", ""];

/// One name with its value.
pub(super) struct Field {
    pub(super) at: Location,
    pub(super) name: String,
    pub(super) value: String,
}

/// The metadata that have not been taken yet.
pub(super) struct Fields {
    left: Vec<Field>,
    /// Where the document is without a place of its own.
    at: Location,
    /// Every name that was looked up.
    known: Vec<&'static str>,
}

impl Fields {
    /// Names are compared without case, as Dapr does.
    ///
    /// # Errors
    /// A name that is given twice.
    pub(super) fn new(fields: Vec<Field>, at: Location) -> Result<Self, Mistake> {
        for (place, field) in fields.iter().enumerate() {
            if fields[..place].iter().any(|other| other.name.eq_ignore_ascii_case(&field.name)) {
                let what = format!("the metadata `{}` are given twice; keep one", field.name);
                return Err(Mistake::at(field.at, what));
            }
        }
        Ok(Self { left: fields, at, known: Vec::new() })
    }

    /// The field of any of these names; an empty value is as none.
    pub(super) fn take(&mut self, names: &[&'static str]) -> Result<Option<Field>, Mistake> {
        self.known.extend_from_slice(names);
        let is_asked =
            |field: &Field| names.iter().any(|name| name.eq_ignore_ascii_case(&field.name));
        let mut found: Vec<Field> = self.left.extract_if(.., |field| is_asked(field)).collect();
        if let [first, second, ..] = &found[..] {
            let what = format!("`{}` says what `{}` says too; keep one", second.name, first.name);
            return Err(Mistake::at(second.at, what));
        }
        Ok(found.pop().filter(|field| !field.value.is_empty()))
    }

    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<String>, Mistake> {
        Ok(self.take(&[name])?.map(|field| field.value))
    }

    /// # Errors
    /// When it is missing.
    pub(super) fn required(&mut self, names: &[&'static str]) -> Result<Field, Mistake> {
        let found = self.take(names)?;
        let what = || format!("the metadata `{}` are missing", names[0]);
        found.ok_or_else(|| Mistake::at(self.at, what()))
    }

    pub(super) fn is_yes(&mut self, name: &'static str) -> Result<bool, Mistake> {
        let Some(field) = self.take(&[name])? else { return Ok(false) };
        let given = field.value.to_lowercase();
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
        let Some(field) = self.take(&[name])? else { return Ok(None) };
        let number = field.value.parse().ok().filter(|number| fits(number));
        number.map(Some).ok_or_else(|| field.wrong(expected))
    }

    /// A time such as `20s`; a bare number has the unit `bare`. Zero and less are `None` within.
    pub(super) fn time(
        &mut self,
        names: &[&'static str],
        bare: Duration,
    ) -> Result<Option<Option<Duration>>, Mistake> {
        let Some(field) = self.take(names)? else { return Ok(None) };
        let text = field.value.as_str();
        let time = match text.parse::<i64>() {
            Ok(number) if number <= 0 => Some(None),
            Ok(number) => u32::try_from(number).ok().map(|number| Some(bare * number)),
            Err(_) if text.starts_with('-') => Some(None),
            Err(_) => humantime::parse_duration(text).ok().map(Some),
        };
        let time = time.map(|time| time.filter(|time| !time.is_zero()));
        time.map(Some).ok_or_else(|| field.wrong("a time such as 20s or 5m"))
    }

    /// The position of the component.
    pub(super) fn location(&self) -> Location {
        self.at
    }

    /// Takes names that mean nothing here, whatever their values.
    pub(super) fn skip(&mut self, names: &[&'static str]) -> Result<(), Mistake> {
        names.iter().try_for_each(|name| self.take(&[name]).map(drop))
    }

    /// # Errors
    /// The first name that no setting uses.
    pub(super) fn finish(mut self) -> Result<(), Mistake> {
        if self.left.is_empty() {
            return Ok(());
        }
        let field = self.left.remove(0);
        Err(Mistake::unknown(field.at, "metadata", &field.name, self.known))
    }
}

impl Field {
    pub(super) fn wrong(&self, expected: &str) -> Mistake {
        let what = format!("`{}` is {:?}; expected {expected}", self.name, self.value);
        Mistake::at(self.at, what)
    }
}
