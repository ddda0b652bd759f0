//! Mistakes of meaning in an adapter file, each with its place.

use std::collections::{BTreeMap, BTreeSet};

use serde_saphyr::Location;
use tollway_record::record::Tls;

use super::file::{AdapterFile, SUBJECT_SCHEMA, Side, VariantSpec};
use super::template::{Meanings, TemplateError};
use super::{AUTHORITY_PLACEHOLDERS, FIXED_PLACEHOLDERS, SIDE_PLACEHOLDERS};
use crate::fault::{Fault, Faults, MAX_NAME};

/// Variants of an adapter, ways of a variant, texts, and files, ports and header lines of a
/// process.
const MAX_ENTRIES: usize = 32;
/// Words of a command, and places of a program.
const MAX_WORDS: usize = 256;

impl AdapterFile {
    /// All mistakes of meaning, in the order of the file's parts.
    #[must_use]
    pub fn check(&self) -> Vec<Fault> {
        let mut faults = Faults::default();
        if self.schema.value != SUBJECT_SCHEMA {
            faults.add(self.schema.referenced, format!("this version reads `{SUBJECT_SCHEMA}`"));
        }
        faults.name("subject", &self.name);
        let at = self.name.referenced;
        faults.count(self.program.referenced, "program", self.program.value.len(), 1..=MAX_WORDS);
        faults.count(at, "version", self.version.len(), 0..=MAX_WORDS);
        faults.count(at, "texts", self.texts.len(), 0..=MAX_ENTRIES);
        faults.count(at, "variants", self.variants.len(), 1..=MAX_ENTRIES);
        if let Some(authority) = &self.authority {
            let (at, count) = (authority.program.referenced, authority.program.value.len());
            faults.count(at, "program", count, 1..=MAX_WORDS);
            let process = &authority.process;
            if process.url.is_some() || !process.headers.value.is_empty() {
                let what = "no request goes to an authority: it has no `url` and no `headers`";
                faults.add(process.command.referenced, what);
            }
            self.check_side(process, &[FIXED_PLACEHOLDERS], &mut faults);
        }
        faults.unique("variant", self.variants.iter().map(|variant| &variant.name));
        for variant in &self.variants {
            faults.name("variant", &variant.name);
            self.check_variant(variant, &mut faults);
        }
        faults.into_vec()
    }

    fn check_variant(&self, variant: &VariantSpec, faults: &mut Faults) {
        faults.count(variant.name.referenced, "ways", variant.ways.len(), 1..=MAX_ENTRIES);
        let mut taken = BTreeSet::new();
        for way in &variant.ways {
            let at = way.protocols.referenced;
            faults.count(at, "protocols", way.protocols.value.len(), 1..=MAX_ENTRIES);
            faults.count(at, "caller_tls", way.caller_tls.len(), 1..=MAX_ENTRIES);
            for protocol in &way.protocols.value {
                for tls in &way.caller_tls {
                    if !taken.insert((*protocol, *tls)) {
                        faults.add(at, format!("two ways carry {protocol} with {tls} callers"));
                    }
                }
            }
            if way.sides().next().is_none() {
                faults.add(at, "a way has a `caller_side`, an `app_side` or both");
            }
            let secured = way.caller_tls.iter().any(|tls| *tls != Tls::Plain);
            if secured && way.caller_side.is_some() && way.app_side.is_some() {
                faults.add(at, "callers of a pair are plain: it stands beside them");
            }
            if way.asks_authority && (self.authority.is_none() || way.app_side.is_none()) {
                let what =
                    "`asks_authority` goes with an `authority` of the file and an `app_side`";
                faults.add(at, what);
            }
            let asked = if way.asks_authority { AUTHORITY_PLACEHOLDERS } else { &[] };
            for side in way.sides() {
                self.check_side(side, &[FIXED_PLACEHOLDERS, SIDE_PLACEHOLDERS, asked], faults);
            }
        }
    }

    /// `placeholders` are those that it has beside its ports.
    fn check_side(&self, side: &Side, placeholders: &[&[&str]], faults: &mut Faults) {
        let at = side.command.referenced;
        faults.count(at, "command", side.command.value.len(), 1..=MAX_WORDS);
        faults.count(at, "files", side.files.len(), 0..=MAX_ENTRIES);
        faults.count(side.ports.referenced, "ports", side.ports.value.len(), 0..=MAX_ENTRIES);
        faults.count(side.headers.referenced, "headers", side.headers.value.len(), 0..=MAX_ENTRIES);
        for port in &side.ports.value {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if port.is_empty() || port.len() > MAX_NAME || !port.chars().all(plain) {
                let what = "a port's name has lower-case letters, digits and `_`";
                faults.add(side.ports.referenced, what);
            }
        }
        if let Some(ready) = &side.ready {
            faults.known("port", &ready.port, side.ports.value.iter().map(String::as_str));
            let path = &ready.path.value;
            if !path.starts_with('/') || path.contains(|c: char| !c.is_ascii_graphic()) {
                let what = format!("`{path}` is no path: it begins with `/` and has no spaces");
                faults.add(ready.path.referenced, what);
            }
        }
        for (name, text) in &side.files {
            if name.is_empty() || name.contains(['/', '\0']) || name.starts_with('.') {
                let what = format!("`{name}` cannot be a file's name: no `/`, no dot first");
                faults.add(text.referenced, what);
            }
        }
        let values = stand_ins(side, placeholders);
        let meanings = Meanings { values: &values, texts: &self.texts };
        let mut filled = String::new();
        let words = side.command.value.iter().map(|word| (at, word));
        let files = side.files.values().map(|text| (text.referenced, &text.value));
        let url = side.url.iter().map(|url| (url.referenced, &url.value));
        let headers = side.headers.value.iter().map(|line| (side.headers.referenced, line));
        for (at, text) in words.chain(files).chain(url).chain(headers) {
            match meanings.fill(text) {
                Ok(text) => filled += &text,
                Err(error) => add_template_error(at, error, &values, &self.texts, faults),
            }
        }
        if faults.is_empty() && !filled.contains(LISTENS) {
            let what = "nothing says where it listens: name {{listen}} or {{listen_port}}";
            faults.add(at, what);
        }
    }
}

/// What the listener's placeholders stand for while a file is checked.
const LISTENS: &str = "(listens)";

fn stand_ins(side: &Side, placeholders: &[&[&str]]) -> BTreeMap<String, String> {
    let names = placeholders.iter().copied().flatten().map(|name| (*name).to_owned());
    let ports = side.ports.value.iter().map(|port| port_placeholder(port));
    let value = |name: String| {
        let listens = matches!(name.as_str(), "listen" | "listen_port");
        (name, if listens { LISTENS.to_owned() } else { "x".to_owned() })
    };
    names.chain(ports).map(value).collect()
}

/// The placeholder of one of [`Side::ports`].
pub(super) fn port_placeholder(port: &str) -> String {
    format!("{port}_port")
}

fn add_template_error(
    at: Location,
    error: TemplateError,
    values: &BTreeMap<String, String>,
    texts: &BTreeMap<String, String>,
    faults: &mut Faults,
) {
    let TemplateError::Unknown { name } = error else {
        return faults.add(at, error.to_string());
    };
    let known = values.keys().chain(texts.keys()).cloned().collect();
    faults.unknown(at, "placeholder", &name, known);
}
