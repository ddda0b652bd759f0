//! Mistakes of meaning in an adapter file, each with its place.

use std::collections::{BTreeMap, BTreeSet};

use serde_saphyr::Location;
use tollway_config::Mistake;
use tollway_record::record::Tls;

use super::file::{AdapterFile, SUBJECT_SCHEMA, Side, VariantSpec};
use super::template::{Meanings, TemplateError};
use super::{AUTHORITY_PLACEHOLDERS, FIXED_PLACEHOLDERS, SIDE_PLACEHOLDERS};
use crate::mistake_list::{MAX_NAME, MistakeList};

/// Variants of an adapter, deployments of a variant, texts, and files, ports and header lines of a
/// process.
const MAX_ENTRIES: usize = 32;
/// Words of a command, and places of a program.
const MAX_WORDS: usize = 256;

impl AdapterFile {
    /// All mistakes of meaning, in the order of the file's parts.
    #[must_use]
    pub fn check(&self) -> Vec<Mistake> {
        let mut errors = MistakeList::default();
        if self.schema.value != SUBJECT_SCHEMA {
            errors.add(self.schema.referenced, format!("this version reads `{SUBJECT_SCHEMA}`"));
        }
        errors.name("subject", &self.name);
        let at = self.name.referenced;
        errors.count(self.program.referenced, "program", self.program.value.len(), 1..=MAX_WORDS);
        errors.count(at, "version", self.version.len(), 0..=MAX_WORDS);
        errors.count(at, "texts", self.texts.len(), 0..=MAX_ENTRIES);
        errors.count(at, "variants", self.variants.len(), 1..=MAX_ENTRIES);
        if let Some(authority) = &self.authority {
            let (at, count) = (authority.program.referenced, authority.program.value.len());
            errors.count(at, "program", count, 1..=MAX_WORDS);
            let process = &authority.process;
            if process.url.is_some() || !process.headers.value.is_empty() {
                let what = "no request goes to an authority: it has no `url` and no `headers`";
                errors.add(process.command.referenced, what);
            }
            self.check_side(process, &[FIXED_PLACEHOLDERS], &mut errors);
        }
        errors.unique("variant", self.variants.iter().map(|variant| &variant.name));
        for variant in &self.variants {
            errors.name("variant", &variant.name);
            self.check_variant(variant, &mut errors);
        }
        errors.into_vec()
    }

    fn check_variant(&self, variant: &VariantSpec, errors: &mut MistakeList) {
        errors.count(
            variant.name.referenced,
            "deployments",
            variant.deployments.len(),
            1..=MAX_ENTRIES,
        );
        let mut taken = BTreeSet::new();
        for deployment in &variant.deployments {
            let at = deployment.protocols.referenced;
            errors.count(at, "protocols", deployment.protocols.value.len(), 1..=MAX_ENTRIES);
            errors.count(at, "caller_tls", deployment.caller_tls.len(), 1..=MAX_ENTRIES);
            for protocol in &deployment.protocols.value {
                for tls in &deployment.caller_tls {
                    if !taken.insert((*protocol, *tls)) {
                        errors.add(
                            at,
                            format!("two deployments carry {protocol} with {tls} callers"),
                        );
                    }
                }
            }
            if deployment.sides().next().is_none() {
                errors.add(at, "a deployment has a `caller_side`, an `app_side` or both");
            }
            let secured = deployment.caller_tls.iter().any(|tls| *tls != Tls::Plain);
            if secured && deployment.caller_side.is_some() && deployment.app_side.is_some() {
                errors.add(at, "callers of a pair are plain: it stands beside them");
            }
            if deployment.asks_authority
                && (self.authority.is_none() || deployment.app_side.is_none())
            {
                let what =
                    "`asks_authority` goes with an `authority` of the file and an `app_side`";
                errors.add(at, what);
            }
            let asked = if deployment.asks_authority { AUTHORITY_PLACEHOLDERS } else { &[] };
            for side in deployment.sides() {
                self.check_side(side, &[FIXED_PLACEHOLDERS, SIDE_PLACEHOLDERS, asked], errors);
            }
        }
    }

    /// `placeholders` are those that it has in addition to its ports.
    fn check_side(&self, side: &Side, placeholders: &[&[&str]], errors: &mut MistakeList) {
        let at = side.command.referenced;
        errors.count(at, "command", side.command.value.len(), 1..=MAX_WORDS);
        errors.count(at, "files", side.files.len(), 0..=MAX_ENTRIES);
        errors.count(side.ports.referenced, "ports", side.ports.value.len(), 0..=MAX_ENTRIES);
        errors.count(side.headers.referenced, "headers", side.headers.value.len(), 0..=MAX_ENTRIES);
        for port in &side.ports.value {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if port.is_empty() || port.len() > MAX_NAME || !port.chars().all(plain) {
                let what = "a port's name has lower-case letters, digits and `_`";
                errors.add(side.ports.referenced, what);
            }
        }
        if let Some(ready) = &side.ready {
            errors.known("port", &ready.port, side.ports.value.iter().map(String::as_str));
            let path = &ready.path.value;
            if !path.starts_with('/') || path.contains(|c: char| !c.is_ascii_graphic()) {
                let what = format!("`{path}` is no path: it begins with `/` and has no spaces");
                errors.add(ready.path.referenced, what);
            }
        }
        for (name, text) in &side.files {
            if name.is_empty() || name.contains(['/', '\0']) || name.starts_with('.') {
                let what = format!("`{name}` cannot be a file's name: no `/`, no dot first");
                errors.add(text.referenced, what);
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
                Err(error) => add_template_error(at, error, &values, &self.texts, errors),
            }
        }
        if errors.is_empty() && !filled.contains(LISTENS) {
            let what = "nothing says where it listens: name {{listen}} or {{listen_port}}";
            errors.add(at, what);
        }
    }
}

/// The value of the listener's placeholders while a file is checked.
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
    errors: &mut MistakeList,
) {
    let TemplateError::Unknown { name } = error else {
        return errors.add(at, error.to_string());
    };
    errors.unknown(at, "placeholder", &name, values.keys().chain(texts.keys()));
}
