//! The layers of settings: what flags, the environment and a file give, and the default of each.

use std::collections::BTreeMap;

use tollway_config::entries::{Entry, Value as Written};
use tollway_config::suggest;
use tollway_config::{Mistake, YamlError};

use crate::field::{Field, texts};
use crate::given::{Origin, ValueInEffect};
use crate::setting::{Kind, Setting};
use crate::value::Value;

/// What a command line and its environment give, as texts.
#[derive(Clone, Debug, Default)]
pub struct Flags(BTreeMap<&'static str, (Vec<String>, Origin)>);

impl Flags {
    /// Adds the values of a setting. `origin` is [`Origin::Flag`] or [`Origin::Environment`].
    pub fn add(&mut self, key: &'static str, values: Vec<String>, origin: Origin) {
        self.0.insert(key, (values, origin));
    }
}

/// Layers that are read into a struct, field by field.
pub struct Layers<'a> {
    pub(crate) settings: &'a [Setting],
    flags: &'a Flags,
    file: &'a [Entry],
    source: &'a str,
    /// The fields read so far.
    pub(crate) list: Vec<ValueInEffect>,
    pub(crate) mistakes: Vec<YamlError>,
    /// Settings without which the part cannot start.
    pub(crate) missing: Vec<Setting>,
}

impl<'a> Layers<'a> {
    /// Layers over the settings of a part. `source` names the file.
    pub(crate) fn over(
        settings: &'a [Setting],
        flags: &'a Flags,
        file: &'a [Entry],
        source: &'a str,
    ) -> Self {
        let (list, mistakes, missing) = (Vec::new(), Vec::new(), Vec::new());
        Self { settings, flags, file, source, list, mistakes, missing }
    }

    /// Reads a field: from the flag, else from the environment, else from the file, else the
    /// default. What the file gives is checked in any case. `None` where there is nothing valid.
    pub fn read<F: Field>(&mut self, key: &'static str) -> Option<F> {
        let setting = *self.settings.iter().find(|setting| setting.key == key)?;
        let file = self.file.iter().find(|entry| entry.key == key);
        let from_file = file.map(|entry| self.read_entry::<F>(&setting, entry));
        let (values, origin) = match (self.flags.0.get(key), from_file, setting.default) {
            (Some((values, origin)), ..) => {
                (self.read_flags::<F>(&setting, values), origin.clone())
            }
            (None, Some(found), _) => {
                (found, Origin::File { line: file.map_or(0, |entry| entry.key_at.line()) })
            }
            (None, None, Some(text)) => {
                (F::Of::read(text).ok().map(|one| vec![one]), Origin::Default)
            }
            (None, None, None) => (Some(Vec::new()), Origin::Unset),
        };
        // Without values there is a mistake, which is noted.
        let values = values?;
        if values.is_empty() && setting.must_be_given() {
            self.missing.push(setting);
        }
        let field = F::of(values);
        let values = field.as_ref().map(texts).unwrap_or_default();
        self.list.push(ValueInEffect { setting, values, origin });
        field
    }

    /// Notes keys of the file that are no settings, and settings that mean nothing without another.
    pub(crate) fn finish(&mut self, part: &str) {
        for entry in self.file {
            if !self.settings.iter().any(|setting| setting.key == entry.key) {
                let what = self.unknown(part, &entry.key);
                self.mistakes.push(Mistake::at(entry.key_at, what).within(self.source));
            }
        }
        self.mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
        let is_given = |origin: &Origin| !matches!(origin, Origin::Default | Origin::Unset);
        for value in self.list.iter().filter(|value| is_given(&value.origin)) {
            for needed in value.setting.needs {
                let found = self.list.iter().find(|other| other.setting.key == *needed);
                if let Some(other) = found.filter(|other| !is_given(&other.origin))
                    && !self.missing.iter().any(|missing| missing.key == *needed)
                {
                    self.missing.push(other.setting);
                }
            }
        }
    }

    /// The values of an entry; `None` after a mistake.
    fn read_entry<F: Field>(&mut self, setting: &Setting, entry: &Entry) -> Option<Vec<F::Of>> {
        let texts = match entry_texts(setting, &entry.value) {
            Ok(texts) => texts,
            Err(what) => {
                let at = if entry.value == Written::None { entry.key_at } else { entry.value_at };
                self.mistakes.push(Mistake::at(at, what).within(self.source));
                return None;
            }
        };
        let before = self.mistakes.len();
        let mut values = Vec::with_capacity(texts.len());
        for text in texts {
            match read_one::<F::Of>(setting, text) {
                Ok(value) => values.push(value),
                Err(what) => {
                    self.mistakes.push(Mistake::at(entry.value_at, what).within(self.source));
                }
            }
        }
        (self.mistakes.len() == before).then_some(values)
    }

    /// The values of a flag, which its parser has checked; `None` after a mistake.
    fn read_flags<F: Field>(&mut self, setting: &Setting, texts: &[String]) -> Option<Vec<F::Of>> {
        let read: Result<Vec<_>, _> =
            texts.iter().map(|text| read_one::<F::Of>(setting, text)).collect();
        read.map_err(|what| {
            let source_name = format!("--{}", setting.flag);
            self.mistakes.push(YamlError { source_name, line: 0, column: 0, what });
        })
        .ok()
    }

    fn unknown(&self, part: &str, key: &str) -> String {
        let known: Vec<&str> = self.settings.iter().map(|setting| setting.key).collect();
        match suggest::nearest(key, &known) {
            Some(meant) => format!("unknown setting `{key}`; did you mean `{meant}`?"),
            None => format!(
                "unknown setting `{key}`; `tollway {part} --print-config` names all there are"
            ),
        }
    }
}

/// The texts of an entry, if it is as many as the setting takes.
fn entry_texts<'e>(setting: &Setting, written: &'e Written) -> Result<&'e [String], String> {
    let (key, is_list) = (setting.key, setting.kind == Kind::List);
    match written {
        Written::One(value) if is_list => {
            Err(format!("`{key}` is a list; write `{key}: [{value}]`"))
        }
        Written::One(value) => Ok(std::slice::from_ref(value)),
        Written::Many(values) if is_list => Ok(values),
        Written::Pairs(pairs) if is_list && setting.is_pair => Ok(pairs),
        Written::Pairs(_) if is_list => Err(format!("`{key}` takes a list, not a section")),
        Written::Pairs(_) => Err(format!("`{key}` takes one value, not a section")),
        Written::Many(_) => Err(format!("`{key}` takes one value, not a list")),
        Written::None => Err(format!("`{key}` has no value; give one or remove it")),
    }
}

fn read_one<V: Value>(setting: &Setting, text: &str) -> Result<V, String> {
    let key = setting.key;
    let read = V::read(text).and_then(|value| setting.check_range(text).map(|()| value));
    read.map_err(|reason| match (setting.kind, setting.words) {
        (Kind::Switch, _) => format!("`{key}` is true or false, not `{text}`"),
        (_, []) => {
            format!("`{text}` is no value of `{key}` ({}): {reason}", setting.value_form())
        }
        (_, words) => {
            let words = words.iter().map(|(word, _)| *word);
            suggest::unknown(&format!("value of `{key}`:"), text, words)
        }
    })
}
