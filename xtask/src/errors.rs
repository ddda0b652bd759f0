//! docs/errors.md: its entries are written from the catalogue of `tollway-model`, and each names
//! the tests that prove it.
//!
//! A test proves a code if the code's word occurs in its body. The text before the mark on the page
//! is written by hand.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tollway_model::ErrorCode;
use tollway_model::failure::{Entry, Group};

use crate::sources;
use crate::workspace::Workspace;

/// The page, from the root.
pub(crate) const PAGE: &str = "docs/errors.md";
/// Ends the part that is written by hand.
const MARK: &str = "<!-- From here on written by `cargo xtask codegen`; change crates/model/src/failure/catalogue.rs instead. -->";
/// Tests named for one code; more would not help a reader.
const NAMED_TESTS: usize = 2;

/// The words of codes, with the tests that name them.
type Proofs = BTreeMap<&'static str, Vec<String>>;

/// Writes the generated part of the page.
///
/// # Errors
/// When the page has no mark, or cannot be read or written.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    let page = workspace.root.join(PAGE);
    let old = std::fs::read_to_string(&page).with_context(|| format!("cannot read {PAGE}"))?;
    let by_hand = by_hand(&old).with_context(|| format!("{PAGE} has lost its mark: {MARK}"))?;
    let proofs = shown(&old, proofs(&sources::text_files(&workspace.root)?));
    std::fs::write(&page, format!("{by_hand}{}", generated(&proofs)))
        .with_context(|| format!("cannot write {PAGE}"))
}

/// What is wrong with the page, and which codes no test proves.
pub(crate) fn breaches(page: Option<&str>, texts: &[(PathBuf, String)]) -> Vec<String> {
    let proofs = proofs(texts);
    let mut breaches: Vec<String> = ErrorCode::ALL
        .iter()
        .filter(|code| !proofs.contains_key(code.word()))
        .map(|code| format!("{code}: no test names it; write one that provokes it"))
        .collect();
    let proofs = shown(page.unwrap_or_default(), proofs);
    let current = page.and_then(by_hand).map(|text| format!("{text}{}", generated(&proofs)));
    if current.as_deref() != page || page.is_none() {
        breaches.push(format!("{PAGE} is out of date: run `cargo xtask codegen`"));
    }
    breaches
}

/// The tests to name: those the page names as long as they prove the code, so that a new test
/// elsewhere does not put the page out of date; else the first few.
fn shown(page: &str, mut proofs: Proofs) -> Proofs {
    for (word, tests) in &mut proofs {
        let named = named_tests(page, word);
        if named.iter().any(|name| tests.iter().any(|test| test == name)) {
            tests.retain(|test| named.contains(&test.as_str()));
        }
        tests.truncate(NAMED_TESTS);
    }
    proofs
}

/// The tests that the page names for a code.
fn named_tests<'a>(page: &'a str, word: &str) -> Vec<&'a str> {
    let section = page.split("\n### ").find_map(|part| part.strip_prefix(word)?.strip_prefix('\n'));
    let proof = section.and_then(|text| text.split_once("Proved by ")).map(|(_, proof)| proof);
    let line = proof.and_then(|text| text.lines().next()).unwrap_or_default();
    line.split('`').skip(1).step_by(2).collect()
}

fn by_hand(page: &str) -> Option<&str> {
    let end = page.find(MARK)? + MARK.len();
    Some(&page[..end])
}

fn generated(proofs: &Proofs) -> String {
    let mut page =
        "\n\n## All codes\n\n| code | HTTP | gRPC | reported by |\n|---|---|---|---|\n".to_owned();
    for code in ErrorCode::ALL {
        let entry = code.entry();
        let (http, grpc) = statuses(&entry);
        // Writing to a string does not fail.
        let _ = writeln!(
            page,
            "| [`{0}`](#{1}) | {http} | {grpc} | {2} |",
            entry.word,
            entry.word.to_lowercase(),
            hops(&entry)
        );
    }
    for group in Group::ALL {
        let _ = write!(page, "\n## {}\n", group.title());
        let members = ErrorCode::ALL.iter().map(|code| code.entry());
        for entry in members.filter(|entry| entry.group == *group) {
            page.push_str(&section(&entry, proofs.get(entry.word)));
        }
    }
    page
}

fn section(entry: &Entry, tests: Option<&Vec<String>>) -> String {
    let mut text = format!("\n### {}\n\n{}\n\n", entry.word, entry.meaning);
    let _ = writeln!(text, "**What to do.** {}\n", entry.remedy);
    let statuses = match entry.answer {
        Some(answer) => format!(
            "HTTP {}, gRPC {} ({}); reported by {}.",
            answer.http,
            answer.grpc.number(),
            answer.grpc.name(),
            hops(entry)
        ),
        None => format!("On the terminal or in a log; reported by {}.", hops(entry)),
    };
    text.push_str(&statuses);
    if let Some(tests) = tests {
        let shown: Vec<String> = tests.iter().map(|test| format!("`{test}`")).collect();
        let _ = write!(text, " Proved by {}.", shown.join(", "));
    }
    text.push('\n');
    text
}

fn statuses(entry: &Entry) -> (String, String) {
    match entry.answer {
        Some(answer) => (answer.http.to_string(), answer.grpc.number().to_string()),
        None => ("–".to_owned(), "–".to_owned()),
    }
}

fn hops(entry: &Entry) -> String {
    let names: Vec<String> = entry.hops.iter().map(ToString::to_string).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

fn proofs(texts: &[(PathBuf, String)]) -> Proofs {
    let mut proofs = Proofs::new();
    let rust =
        texts.iter().filter(|(path, _)| is_rust(path) && !path.ends_with("xtask/src/errors.rs"));
    for (name, body) in rust.flat_map(|(_, text)| tests_of(text)) {
        for code in ErrorCode::ALL.iter().filter(|code| names(&body, code.word())) {
            let tests = proofs.entry(code.word()).or_default();
            if !tests.contains(&name.to_owned()) {
                tests.push(name.to_owned());
            }
        }
    }
    proofs
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

/// Whether `text` has `word` as a whole word: `ERR_RESET` is not in `ERR_RESET_TWICE`.
fn names(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let next = text[at + word.len()..].chars().next();
        next.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_')
    })
}

/// The tests of a formatted file, by name and body: a test ends where a line closes it at its own
/// depth.
fn tests_of(text: &str) -> Vec<(&str, String)> {
    let mut lines = text.lines();
    let mut tests = Vec::new();
    while let Some(line) = lines.next() {
        let depth = line.len() - line.trim_start().len();
        let attribute = line.trim_start();
        if attribute != "#[test]" && !attribute.starts_with("#[tokio::test") {
            continue;
        }
        let Some(name) = lines.by_ref().find_map(name_of_function) else { break };
        let end = format!("{}}}", " ".repeat(depth));
        let body: Vec<&str> = lines.by_ref().take_while(|line| *line != end).collect();
        tests.push((name, body.join("\n")));
    }
    tests
}

fn name_of_function(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
    rest.split(['(', '<']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Vec<(PathBuf, String)> {
        vec![("crates/a/tests/a.rs".into(), text.to_owned())]
    }

    #[test]
    fn a_code_is_proved_by_the_tests_whose_body_names_it() {
        let text = "\
fn helper() {
    check(\"ERR_RESET\");
}

#[test]
fn reset_is_reported() {
    {
        check(\"ERR_RESET\");
    }
}

mod inner {
    #[tokio::test]
    #[cfg(target_os = \"linux\")]
    async fn names_are_checked() {
        check(\"ERR_BAD_NAME_AND_MORE\", \"ERR_BAD_NAME\");
    }
    const AFTER: &str = \"ERR_POLICY_DENIED\";
}
";
        let proofs = proofs(&file(text));
        let found: Vec<_> = proofs.iter().map(|(word, tests)| (*word, tests.join(" "))).collect();
        assert_eq!(
            found,
            [
                ("ERR_BAD_NAME", "names_are_checked".to_owned()),
                ("ERR_RESET", "reset_is_reported".to_owned())
            ]
        );
        assert!(!names("ERR_RESET_TWICE", "ERR_RESET"));
    }

    #[test]
    fn a_code_without_a_test_and_a_page_out_of_date_are_breaches() {
        let everything: Vec<&str> = ErrorCode::ALL.iter().map(|code| code.word()).collect();
        let all = file(&format!("#[test]\nfn all() {{\n    {};\n}}\n", everything.join(" ")));
        let page = format!("# Errors\n{MARK}{}", generated(&proofs(&all)));
        assert_eq!(breaches(Some(&page), &all), [""; 0]);
        assert_eq!(breaches(Some("# Errors\n"), &all).len(), 1);
        assert_eq!(breaches(None, &all).len(), 1);
        assert_eq!(breaches(Some(&page), &file("")).len(), ErrorCode::ALL.len() + 1);
    }

    #[test]
    fn a_new_test_elsewhere_does_not_put_the_page_out_of_date() {
        let page = "\n### ERR_RESET\n\nText. Proved by `old_test`, `gone_test`.\n\n### ERR_X\n";
        let found = Proofs::from([("ERR_RESET", vec!["new_test".into(), "old_test".into()])]);
        assert_eq!(shown(page, found)["ERR_RESET"], ["old_test"]);
        let others = Proofs::from([("ERR_RESET", vec!["new_test".to_owned()])]);
        assert_eq!(shown(page, others)["ERR_RESET"], ["new_test"]);
    }

    #[test]
    fn an_entry_of_the_page_contains_status_hop_remedy_and_test() {
        let entry = ErrorCode::UnknownService.entry();
        let text = section(&entry, Some(&vec!["it_is_reported".to_owned()]));
        for part in ["### ERR_UNKNOWN_SERVICE", entry.meaning, entry.remedy, "HTTP 404", "gRPC 12"]
        {
            assert!(text.contains(part), "{text}");
        }
        assert!(
            text.ends_with("reported by the caller's sidecar. Proved by `it_is_reported`.\n"),
            "{text}"
        );
    }
}
