//! The parts of the data plane, `crates/proxy/src`: a part calls those after it in one list, never
//! those before it. What it wants of an earlier one is an effect, which the event loop carries out.

use std::path::Path;

use crate::sources::RustFile;

/// The folder of the parts.
const FOLDER: &str = "crates/proxy/src";
/// Each part calls the later ones. ARCHITECTURE.md gives the same order.
const ORDER: [&str; 9] = [
    "event_loop",
    "gateway",
    "outbound",
    "inbound",
    "upstream",
    "protocol",
    "exchange",
    "observe",
    "conn",
];

/// Imports of an earlier part's functions or modules, and calls of them. Types may be used anywhere.
pub(crate) fn breaches(root: &Path, files: &[RustFile]) -> Vec<String> {
    let mut breaches = Vec::new();
    for file in files {
        let path = file.path.strip_prefix(root).unwrap_or(&file.path);
        let Ok(inner) = path.strip_prefix(FOLDER) else { continue };
        let is_test = inner.components().any(|part| part.as_os_str() == "tests");
        if is_test || inner.ends_with("tests.rs") {
            continue;
        }
        let part = inner.iter().next().and_then(|name| name.to_str()).and_then(place);
        let Some(part) = part else { continue };
        for (earlier, item) in named(&file.code).filter(|(other, _)| *other < part) {
            breaches.push(format!(
                "{}: `{}` calls `{}::{item}`, which comes before it: push an effect instead",
                path.display(),
                ORDER[part],
                ORDER[earlier],
            ));
        }
    }
    breaches
}

fn place(name: &str) -> Option<usize> {
    ORDER.iter().position(|part| *part == name)
}

/// The parts that the code names after `crate::`, each with a function or module of it.
fn named(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let code = code.split("#[cfg(test)]").next().unwrap_or_default();
    code.split("crate::").skip(1).flat_map(|after| {
        let end = after.find(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | ':'));
        let (path, rest) = after.split_at(end.unwrap_or(after.len()));
        let (part, item) = path.split_once("::").unwrap_or((path, ""));
        let group = rest.strip_prefix('{').and_then(|rest| rest.split('}').next());
        let items = group.unwrap_or(item).split(|c: char| !c.is_alphanumeric() && c != '_');
        let part = place(part);
        let is_called = |item: &&str| item.starts_with(|c: char| c.is_ascii_lowercase());
        items.filter(is_called).filter_map(move |item| Some((part?, item)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, code: &str) -> usize {
        let path = Path::new("/r").join(FOLDER).join(file);
        let file = RustFile::parse(path, code.to_owned());
        breaches(Path::new("/r"), &[file]).len()
    }

    #[test]
    fn a_part_calls_later_parts_only() {
        assert_eq!(found("conn/a.rs", "use crate::exchange::{Exchanges, fail};"), 1);
        assert_eq!(found("conn/a.rs", "use crate::exchange::{\n    Exchanges,\n    fail,\n};"), 1);
        assert_eq!(found("conn/a.rs", "fn f() { crate::exchange::fail::fail(cx) }"), 2);
        assert_eq!(found("upstream/a.rs", "use crate::inbound::policy::admit;"), 2);
        assert_eq!(found("conn/a.rs", "use crate::exchange::{ExchangeKey, Exchanges};"), 0);
        assert_eq!(found("outbound/a.rs", "use crate::exchange::fail;\nuse crate::cx::Cx;"), 0);
        assert_eq!(found("conn/tests.rs", "use crate::exchange::fail;"), 0);
        assert_eq!(found("conn/a.rs", "#[cfg(test)]\nmod t { use crate::exchange::fail; }"), 0);
        assert_eq!(found("headers.rs", "use crate::exchange::fail;"), 0);
    }
}
