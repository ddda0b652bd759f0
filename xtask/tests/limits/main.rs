//! `docs/limits.md` beside the code, both ways. A limit that stands there by the name of its
//! constant has the value of that constant; and what the code calls a limit stands there, or in one
//! of the lists below with the reason why it does not. What the fields of the data plane's limits
//! come to is held by a test of theirs, where they are set.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod exceptions;
mod source;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use exceptions::{NO_PEERS, OTHER_CONSTANTS, OTHER_FIELDS};
use source::{Constant, Source};

/// A name that has one of these words in it is that of a limit.
const WORDS: [&str; 7] = ["LIMIT", "MAX", "MOST", "BYTES", "TIMEOUT", "WITHIN", "CEILING"];
/// A struct whose name ends so has limits for fields.
const STRUCTS: [&str; 2] = ["Limits", "Timeouts"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/limits.md")).unwrap()
}

/// The names of a row of the page, each with what the row says that it comes to.
fn rows(page: &str) -> impl Iterator<Item = (&str, &str)> {
    page.lines().flat_map(|row| {
        let mut cells = row.split('|').skip(1);
        let (names, values) = (cells.next().unwrap_or(""), cells.next().unwrap_or(""));
        names.split('`').skip(1).step_by(2).zip(values.split(';').map(str::trim))
    })
}

/// The number that a cell of the page begins with: `20,000`, or `10 s` in milliseconds.
fn leading_number(cell: &str) -> Option<u64> {
    let mut words = cell.split(' ');
    let number: u64 = words.next()?.trim_end_matches(',').replace(',', "").parse().ok()?;
    Some(if words.next().is_some_and(|unit| unit == "s") { number * 1000 } else { number })
}

fn is_constant(name: &str) -> bool {
    !name.contains(|letter: char| letter.is_lowercase())
}

fn is_limit(name: &str) -> bool {
    name.split('_').any(|word| WORDS.contains(&word))
}

#[test]
fn the_page_of_limits_has_the_values_of_the_code() {
    let (source, page) = (Source::read(&root()), page());
    let (mut checked, mut wrong) = (0, Vec::new());
    let of_the_store = |default: &&Constant| default.path.starts_with("store::model::Limits::");
    let fields: Vec<&Constant> = source.defaults.iter().filter(of_the_store).collect();
    for (name, cell) in rows(&page) {
        let is_field = fields.iter().any(|field| field.name == name);
        if !is_constant(name) && !is_field {
            continue;
        }
        let declared = source.constants.iter().chain(fields.iter().copied());
        let of_name = declared.filter(|constant| constant.name == name);
        let known: Vec<u64> = of_name.filter_map(|constant| source.value(constant)).collect();
        checked += 1;
        if leading_number(cell).is_none_or(|number| !known.contains(&number)) {
            wrong.push(format!("{name}: the page says `{cell}`, the code {known:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(checked > 100, "{checked} rows were found");
}

/// Those of `constants` that are limits by their name, can be one by their type, and are in a crate
/// that peers reach.
fn limits(source: &Source) -> impl Iterator<Item = &Constant> {
    let is_reached =
        |constant: &&Constant| NO_PEERS.iter().all(|(name, _)| *name != constant.of_crate());
    source.constants.iter().filter(|constant| is_limit(&constant.name)).filter(is_reached)
}

/// Which of them are neither on the page with their value nor among the exceptions.
fn missing(source: &Source, page: &str) -> Vec<String> {
    let shown: BTreeSet<(&str, u64)> =
        rows(page).filter_map(|(name, cell)| Some((name, leading_number(cell)?))).collect();
    let is_shown = |constant: &&Constant| {
        source.value(constant).is_some_and(|value| shown.contains(&(&constant.name, value)))
    };
    let is_excepted = |constant: &&Constant| {
        OTHER_CONSTANTS.iter().any(|(_, paths)| paths.contains(&constant.path.as_str()))
    };
    let lacking = limits(source).filter(|limit| !is_shown(limit) && !is_excepted(limit));
    lacking.map(|limit| format!("{} ({})", limit.path, limit.text)).collect()
}

#[test]
fn every_limit_of_the_code_is_on_the_page() {
    let source = Source::read(&root());
    let missing = missing(&source, &page());
    assert!(
        missing.is_empty(),
        "docs/limits.md lacks these limits; write them there with what happens over them, or say \
         in xtask/tests/limits/exceptions.rs why no peer meets them: {missing:#?}"
    );
    assert!(limits(&source).count() > 150, "{} limits were found", limits(&source).count());
}

#[test]
fn a_limit_that_is_added_is_missed() {
    let (mut source, page) = (Source::read(&root()), page());
    let before = missing(&source, &page);
    source.add("control::listener", "const OPEN_LISTENERS_LIMIT: usize = 7;\n");
    source.add(
        "control::listener",
        "pub(crate) const LISTENER_TIMEOUT: Duration =\n    Duration::from_secs(3);\n",
    );
    source.add("control::listener", "const LISTENERS: usize = 7;\n");
    source.add("lab::listeners", "const LISTENERS_LIMIT: usize = 7;\n");
    source.add(
        "control::listener::tests",
        "#[cfg(test)]\nmod tests {\n    const TEST_LIMIT: usize = 7;\n}\n",
    );
    let found = missing(&source, &page).into_iter().filter(|limit| !before.contains(limit));
    assert_eq!(
        found.collect::<Vec<_>>(),
        [
            "control::listener::OPEN_LISTENERS_LIMIT (7)",
            "control::listener::LISTENER_TIMEOUT (Duration::from_secs(3))"
        ]
    );
}

#[test]
fn every_exception_is_a_limit_of_the_code_by_its_name() {
    let source = Source::read(&root());
    let known: BTreeSet<&str> = limits(&source).map(|limit| limit.path.as_str()).collect();
    let excepted = OTHER_CONSTANTS.iter().flat_map(|(_, paths)| paths.iter());
    let gone: Vec<_> = excepted.filter(|path| !known.contains(**path)).collect();
    assert!(gone.is_empty(), "nothing is to be excepted here: {gone:#?}");
}

#[test]
fn every_field_of_a_struct_of_limits_is_on_the_page() {
    let (source, page) = (Source::read(&root()), page());
    let named: BTreeSet<&str> = rows(&page).map(|(name, _)| name).collect();
    let mut lacking = Vec::new();
    let mut found = 0;
    for (path, fields) in &source.structs {
        let (of_crate, name) =
            (path.split("::").next().unwrap(), path.rsplit("::").next().unwrap());
        let is_of_limits = STRUCTS.iter().any(|end| name.ends_with(end));
        if !is_of_limits || NO_PEERS.iter().any(|(no_peers, _)| *no_peers == of_crate) {
            continue;
        }
        found += fields.len();
        for field in fields.iter().filter(|field| !named.contains(field.as_str())) {
            if !OTHER_FIELDS
                .iter()
                .any(|(_, of, fields)| of == path && fields.contains(&field.as_str()))
            {
                lacking.push(format!("{path}.{field}"));
            }
        }
    }
    assert!(lacking.is_empty(), "docs/limits.md lacks these fields: {lacking:#?}");
    assert!(found > 60, "{found} fields were found");
}

/// A row that stands alone is text to a reader of the page.
fn misplaced(page: &str) -> Vec<(usize, &str)> {
    let mut misplaced = Vec::new();
    let mut columns = None;
    let lines: Vec<&str> = page.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        if !line.starts_with('|') {
            columns = None;
            continue;
        }
        let count = line.matches('|').count();
        let is_head = lines.get(at + 1).is_some_and(|next| next.starts_with("|---"));
        match columns {
            None if is_head => columns = Some(count),
            Some(columns) if columns == count => {}
            None | Some(_) => misplaced.push((at + 1, *line)),
        }
    }
    misplaced
}

#[test]
fn every_row_of_the_page_belongs_to_a_table_and_has_its_columns() {
    let page = page();
    let misplaced = misplaced(&page);
    assert!(misplaced.is_empty(), "{misplaced:#?}");
}

#[test]
fn a_row_behind_an_empty_line_or_with_other_columns_is_found() {
    let table = "| a | b |\n|---|---|\n| 1 | 2 |\n";
    assert!(misplaced(table).is_empty());
    assert_eq!(misplaced(&format!("{table}\n| 3 | 4 |\n")), [(5, "| 3 | 4 |")]);
    assert_eq!(misplaced(&format!("{table}| 3 | 4 | 5 |\n")), [(4, "| 3 | 4 | 5 |")]);
}

/// Names of metrics that the page has and that of metrics has not.
fn unknown_metrics<'a>(page: &'a str, metrics: &str) -> Vec<&'a str> {
    let is_metric = |word: &&str| word.starts_with("tollway_") || word.starts_with("dapr_");
    let named = page.split('`').skip(1).step_by(2).filter(is_metric);
    named.filter(|name| !metrics.contains(&format!("\n| `{name}` |"))).collect()
}

/// Rows of a table with a column for it that do not say where they show.
fn silent(page: &str) -> Vec<&str> {
    let mut shows = false;
    let is_silent = |line: &&str| {
        if !line.starts_with('|') {
            shows = false;
        }
        shows |= line.ends_with("| shows in |");
        shows && line.trim_end_matches('|').trim_end().ends_with('|')
    };
    page.lines().filter(is_silent).collect()
}

#[test]
fn every_limit_names_a_documented_metric_or_a_reason() {
    let page = page();
    let metrics = std::fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let unknown = unknown_metrics(&page, &metrics);
    assert!(unknown.is_empty(), "docs/metrics.md has no row for these: {unknown:#?}");
    let silent = silent(&page);
    assert!(silent.is_empty(), "say what counts these, or why nothing does: {silent:#?}");
}

#[test]
fn a_metric_that_there_is_not_and_an_empty_cell_are_found() {
    let page = "| limit | shows in |\n|---|---|\n| `a` | `tollway_b` |\n| `c` | |\n\n| d | |\n";
    assert!(unknown_metrics(page, "\n| `tollway_b` | counter |\n").is_empty());
    assert_eq!(unknown_metrics(page, "\n| `tollway_bc` |\n"), ["tollway_b"]);
    assert_eq!(silent(page), ["| `c` | |"]);
}

#[test]
fn numbers_of_the_page_and_of_the_code_are_read() {
    assert_eq!(
        [
            leading_number("20,000"),
            leading_number("10 s"),
            leading_number("50 ms"),
            leading_number("1,000, then 100 a second")
        ],
        [Some(20_000), Some(10_000), Some(50), Some(1000)]
    );
    let mut source = Source::default();
    source.add(
        "a",
        "const A: usize = 64 * 1024 - 1;\nconst B: u64 = 1 << 4;\nconst C: usize = A / 4;\n",
    );
    source.add("a", "const D: Duration = Duration::from_millis(250);\n");
    let values: Vec<_> = source.constants.iter().map(|constant| source.value(constant)).collect();
    assert_eq!(values, [Some(65_535), Some(16), Some(16_383), Some(250)]);
}
