//! What the sources of the crates declare: constants that are numbers or times, and structs.

use std::path::Path;

/// A constant of a crate.
pub(crate) struct Constant {
    /// With its module: `control::listener::CONNECTIONS_LIMIT`.
    pub(crate) path: String,
    pub(crate) name: String,
    /// Its value as it is written.
    pub(crate) text: String,
}

impl Constant {
    pub(crate) fn of_crate(&self) -> &str {
        self.path.split("::").next().unwrap()
    }
}

/// What all crates declare, but for their tests.
#[derive(Default)]
pub(crate) struct Source {
    pub(crate) constants: Vec<Constant>,
    /// Path and fields.
    pub(crate) structs: Vec<(String, Vec<String>)>,
    /// Fields with what they are by default: `store::model::Limits::leases`.
    pub(crate) defaults: Vec<Constant>,
}

impl Source {
    /// Of every crate under `root`.
    pub(crate) fn read(root: &Path) -> Self {
        let mut source = Self::default();
        for entry in std::fs::read_dir(root.join("crates")).unwrap() {
            let folder = entry.unwrap().path();
            let name = folder.file_name().unwrap().to_str().unwrap();
            source.read_folder(&folder.join("src"), name);
        }
        source
    }

    fn read_folder(&mut self, folder: &Path, module: &str) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            let is_own = ["lib", "main", "mod"].contains(&name);
            let inner = if is_own { module.to_owned() } else { format!("{module}::{name}") };
            if name == "tests" {
                continue;
            }
            if path.is_dir() {
                self.read_folder(&path, &inner);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                self.add(&inner, &std::fs::read_to_string(&path).unwrap());
            }
        }
    }

    /// Adds what `text`, the source of `module`, declares.
    pub(crate) fn add(&mut self, module: &str, text: &str) {
        let (text, _) = text.split_once("#[cfg(test)]\nmod tests {").unwrap_or((text, ""));
        let mut rest = text;
        while let Some((line, behind)) = rest.split_once('\n') {
            rest = behind;
            if let Some(declared) = declared(line, "const ") {
                self.constants.extend(constant(module, declared, behind));
            } else if let Some(declared) = declared(line, "struct ")
                && let Some(name) = declared.strip_suffix(" {")
            {
                self.structs.push((format!("{module}::{name}"), fields(behind)));
            } else if let Some(name) = line.strip_prefix("impl Default for ") {
                let path = format!("{module}::{}", name.trim_end_matches(" {"));
                self.defaults.extend(defaults(&path, behind));
            }
        }
    }

    /// What a constant comes to: a number, or milliseconds.
    pub(crate) fn value(&self, constant: &Constant) -> Option<u64> {
        self.number(&constant.text)
    }

    fn number(&self, text: &str) -> Option<u64> {
        if let Some(inner) = text.strip_prefix("Duration::from_secs(") {
            return Some(self.number(inner.strip_suffix(')')?)? * 1000);
        }
        if let Some(inner) = text.strip_prefix("Duration::from_millis(") {
            return self.number(inner.strip_suffix(')')?);
        }
        // What binds least comes first.
        let both = |sign: &str| {
            let (left, right) = text.rsplit_once(sign)?;
            Some((self.number(left)?, self.number(right)?))
        };
        let more = both(" << ").map(|(left, right)| left << right);
        let more = more.or_else(|| both(" + ").map(|(left, right)| left + right));
        let more = more.or_else(|| both(" - ").map(|(left, right)| left - right));
        let more = more.or_else(|| both(" * ").map(|(left, right)| left * right));
        let more = more.or_else(|| both(" / ").map(|(left, right)| left / right));
        more.or_else(|| text.replace('_', "").parse().ok()).or_else(|| self.named(text))
    }

    /// That of another constant, if there is one of this name.
    fn named(&self, name: &str) -> Option<u64> {
        let mut known = self.constants.iter().filter(|constant| constant.name == name);
        let first = known.next()?;
        self.number(&first.text).filter(|_| known.next().is_none())
    }
}

/// What follows `word` in a line that declares something, with `pub` or without.
fn declared<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    let (before, declared) = line.split_once(word)?;
    let is_declared = before.trim().is_empty() || before.trim().starts_with("pub");
    is_declared.then_some(declared)
}

/// A constant that is a number or a time; its value may stand in the line `behind`.
fn constant(module: &str, declared: &str, behind: &str) -> Option<Constant> {
    const NUMBERS: [&str; 9] =
        ["usize", "u8", "u16", "u32", "u64", "u128", "i32", "i64", "Duration"];
    let (name, rest) = declared.split_once(": ")?;
    let (kind, value) = rest.split_once(" =")?;
    let value = if value.is_empty() { behind.lines().next()? } else { value };
    let is_number = NUMBERS.contains(&kind);
    is_number.then_some(())?;
    let (name, text) = (name.to_owned(), value.trim().trim_end_matches(';').to_owned());
    Some(Constant { path: format!("{module}::{name}"), name, text })
}

/// The fields of a struct whose head was read.
fn fields(text: &str) -> Vec<String> {
    let body = text.lines().take_while(|line| line.trim() != "}");
    let field = |line: &str| {
        let line = line.trim();
        let (name, _) = line.strip_prefix("pub ").unwrap_or(line).split_once(": ")?;
        let name = name.rsplit(' ').next()?;
        let is_name = name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        (is_name && !line.starts_with("//")).then(|| name.to_owned())
    };
    body.filter_map(field).collect()
}

/// What stands for the fields in the first struct of `text`.
fn defaults(path: &str, text: &str) -> Vec<Constant> {
    let body = text.lines().take_while(|line| *line != "}");
    let default = |line: &str| {
        let (name, text) = line.trim().strip_suffix(',')?.split_once(": ")?;
        let (name, text) = (name.to_owned(), text.to_owned());
        Some(Constant { path: format!("{path}::{name}"), name, text })
    };
    body.filter_map(default).collect()
}
