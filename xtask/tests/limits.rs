//! `docs/limits.md` beside the code: a limit that stands there by the name of its constant has the
//! value of that constant. The data plane's own are held by a test of theirs, where they are set.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Name and value of every constant of the crates, as text. A name may stand for several.
fn constants(root: &Path) -> HashMap<String, Vec<String>> {
    let mut found: HashMap<String, Vec<String>> = HashMap::new();
    let crates = std::fs::read_dir(root.join("crates")).unwrap();
    let mut folders: Vec<PathBuf> = crates.map(|entry| entry.unwrap().path().join("src")).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for line in text.lines() {
                    if let Some((name, value)) = constant(line) {
                        found.entry(name.to_owned()).or_default().push(value.to_owned());
                    }
                }
            }
        }
    }
    found
}

fn constant(line: &str) -> Option<(&str, &str)> {
    let (before, rest) = line.split_once("const ")?;
    let is_declared = before.trim().is_empty() || before.trim().starts_with("pub");
    let (name, rest) = rest.split_once(": ").filter(|_| is_declared)?;
    let (_, value) = rest.split_once(" = ")?;
    Some((name, value.strip_suffix(';')?))
}

/// What a constant comes to: a number, or seconds.
fn value(text: &str) -> Option<u64> {
    if let Some(inner) = text.strip_prefix("Duration::from_secs(") {
        return value(inner.strip_suffix(')')?);
    }
    if let Some((left, right)) = text.split_once(" << ") {
        return Some(value(left)? << value(right)?);
    }
    if text.contains(" * ") {
        return text.split(" * ").map(value).product();
    }
    text.replace('_', "").parse().ok()
}

/// The number that a cell of the page begins with: `20,000`, `10 s`.
fn told(cell: &str) -> Option<u64> {
    let number = cell.trim().split(' ').next()?.trim_end_matches(',');
    number.replace(',', "").parse().ok()
}

#[test]
fn the_page_of_limits_has_the_values_of_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let constants = constants(root);
    let page = std::fs::read_to_string(root.join("docs/limits.md")).unwrap();
    let (mut checked, mut wrong) = (0, Vec::new());
    for row in page.lines() {
        let mut cells = row.split('|').skip(1);
        let (Some(names), Some(values)) = (cells.next(), cells.next()) else { continue };
        let names = names.split('`').skip(1).step_by(2);
        for (name, cell) in names.zip(values.split(';')) {
            if name.contains(|letter: char| letter.is_lowercase()) {
                continue;
            }
            let known = constants.get(name).map(Vec::as_slice).unwrap_or_default();
            let known: Vec<u64> = known.iter().filter_map(|text| value(text)).collect();
            checked += 1;
            if told(cell).is_none_or(|told| !known.contains(&told)) {
                wrong.push(format!("{name}: the page says `{}`, the code {known:?}", cell.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(checked > 50, "{checked} rows were found");
}
