//! The tree against its own rules: headers, leftovers, machine paths, banned words, the order of the
//! data plane's parts, ARCHITECTURE.md, docs/walks.md, docs/compatibility.md, CHANGELOG.md,
//! docs/errors.md.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::deps::report;
use crate::errors;
use crate::parts;
use crate::sources::{self, RustFile};
use crate::words;
use crate::workspace::Workspace;

/// Marks of unfinished work. Written in two halves so that this file passes its own check.
const LEFTOVERS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("to", "do!("),
    concat!("unimpl", "emented!("),
];

/// Folders that exist on one machine only, as text after a character that cannot be in a path.
const MACHINE_FOLDERS: &[&str] =
    &[concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];

/// Prints every breach and fails if there is one.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let tree = Tree::new(workspace.root.clone(), sources::text_files(&workspace.root)?);
    let names: Vec<&str> = workspace.packages.iter().map(|package| package.short_name()).collect();
    let mut breaches = tree.headerless();
    breaches.extend(tree.leftovers());
    breaches.extend(tree.machine_paths());
    breaches.extend(tree.map_breaches(&names));
    breaches.extend(tree.files_gone("docs/walks.md"));
    breaches.extend(tree.tests_gone("docs/compatibility.md"));
    breaches.extend(tree.changelog_breaches());
    breaches.extend(tree.banned_words());
    breaches.extend(parts::breaches(&tree.root, &tree.rust));
    breaches.extend(errors::breaches(tree.text(errors::PAGE), &tree.texts));
    report("tidy", &breaches)
}

/// The repository's text files, by absolute path, and those of Rust among them.
struct Tree {
    root: PathBuf,
    texts: Vec<(PathBuf, String)>,
    rust: Vec<RustFile>,
}

impl Tree {
    fn new(root: PathBuf, texts: Vec<(PathBuf, String)>) -> Self {
        let is_rust = |path: &Path| path.extension().is_some_and(|extension| extension == "rs");
        let files = texts.iter().filter(|(path, _)| is_rust(path));
        let rust = files.map(|(path, text)| RustFile::parse(path.clone(), text.clone())).collect();
        Self { root, texts, rust }
    }

    /// A file of unit tests is part of the module above it, whose header counts for both.
    fn headerless(&self) -> Vec<String> {
        self.rust
            .iter()
            .filter(|file| !file.is_generated() && !file.path.ends_with("tests.rs"))
            .filter(|file| !file.text.starts_with("//!"))
            .map(|file| format!("{}: starts without a `//!` header", self.show(&file.path)))
            .collect()
    }

    fn banned_words(&self) -> Vec<String> {
        words::breaches(&self.root, &self.rust)
    }

    fn leftovers(&self) -> Vec<String> {
        self.lines_with(|line| LEFTOVERS.iter().copied().find(|mark| line.contains(mark)))
            .map(|(place, mark)| format!("{place}: `{mark}`: finish it or open an issue"))
            .collect()
    }

    fn machine_paths(&self) -> Vec<String> {
        self.lines_with(machine_folder)
            .map(|(place, folder)| format!("{place}: `{folder}` is a path of one machine"))
            .collect()
    }

    /// ARCHITECTURE.md names every crate, and every file it names exists.
    fn map_breaches(&self, crates: &[&str]) -> Vec<String> {
        let Some(map) = self.text("ARCHITECTURE.md") else {
            return vec!["ARCHITECTURE.md is missing".to_owned()];
        };
        let named = code_words(map);
        let is_named = |name: &str| {
            named
                .iter()
                .any(|word| word.trim_start_matches("crates/").trim_end_matches('/') == name)
        };
        let unnamed = crates
            .iter()
            .filter(|name| !is_named(name))
            .map(|name| format!("ARCHITECTURE.md does not name the crate `{name}`"));
        unnamed.chain(self.files_gone("ARCHITECTURE.md")).collect()
    }

    /// Files that a page names and that do not exist.
    fn files_gone(&self, page: &str) -> Vec<String> {
        let named = code_words(self.text(page).unwrap_or_default());
        named
            .iter()
            .filter(|word| looks_like_a_file(word) && !self.exists(word))
            .map(|word| format!("{page} names `{word}`, which does not exist"))
            .collect()
    }

    /// Rows of a page's tables that name no test in their last column, and names of none.
    fn tests_gone(&self, page: &str) -> Vec<String> {
        let Some(text) = self.text(page) else { return vec![format!("{page} is missing")] };
        let tests: HashSet<&str> = self.rust.iter().flat_map(|file| tests_in(&file.text)).collect();
        let is_row = |line: &&str| line.starts_with("| ") && !line.ends_with("| test |");
        let rows = text.lines().filter(is_row);
        rows.flat_map(|row| {
            let column = row.trim_end_matches(" |").rsplit("| ").next().unwrap_or_default();
            let named = code_words(column);
            let gone = named.iter().filter(|name| !tests.contains(*name));
            let gone = gone.map(|name| format!("{page} names the test `{name}`, which is none"));
            let none = named.is_empty().then(|| format!("{page} has a row without a test: {row}"));
            gone.chain(none).collect::<Vec<_>>()
        })
        .collect()
    }

    fn changelog_breaches(&self) -> Vec<String> {
        match self.text("CHANGELOG.md") {
            None => vec!["CHANGELOG.md is missing".to_owned()],
            Some(text) if text.lines().any(|line| line.trim() == "## [Unreleased]") => Vec::new(),
            Some(_) => vec!["CHANGELOG.md has no `## [Unreleased]` section".to_owned()],
        }
    }

    /// A path from the root, or the end of one: `http/src/head.rs` names one file among all.
    fn exists(&self, word: &str) -> bool {
        self.root.join(word).exists() || self.texts.iter().any(|(path, _)| path.ends_with(word))
    }

    fn text(&self, name: &str) -> Option<&str> {
        let wanted = self.root.join(name);
        self.texts.iter().find(|(path, _)| *path == wanted).map(|(_, text)| text.as_str())
    }

    /// `file:line` and what was found there, over everything written by hand.
    fn lines_with<'a>(
        &'a self,
        find: impl Fn(&str) -> Option<&'static str> + Copy + 'a,
    ) -> impl Iterator<Item = (String, &'static str)> + 'a {
        self.texts.iter().filter(|(path, _)| path.extension().is_none_or(|e| e != "lock")).flat_map(
            move |(path, text)| {
                text.lines().enumerate().filter_map(move |(index, line)| {
                    find(line).map(|found| (format!("{}:{}", self.show(path), index + 1), found))
                })
            },
        )
    }

    fn show<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }
}

fn machine_folder(line: &str) -> Option<&'static str> {
    MACHINE_FOLDERS.iter().copied().find(|folder| {
        line.match_indices(folder).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            before.is_none_or(|c| c.is_whitespace() || "\"'`=(:".contains(c))
        })
    })
}

/// The names of the tests in a file.
fn tests_in(text: &str) -> impl Iterator<Item = &str> {
    let mut is_marked = false;
    text.lines().map(str::trim).filter_map(move |line| {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_marked = true;
        }
        let name = line.trim_start_matches("async ").strip_prefix("fn ")?;
        let is_test = std::mem::take(&mut is_marked);
        name.split('(').next().filter(|_| is_test)
    })
}

/// Everything between single backticks, outside of code blocks.
fn code_words(page: &str) -> Vec<&str> {
    let mut in_block = false;
    let mut words = Vec::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            words.extend(line.split('`').skip(1).step_by(2));
        }
    }
    words
}

fn looks_like_a_file(word: &str) -> bool {
    const ENDINGS: &[&str] = &[".c", ".h", ".json", ".md", ".proto", ".rs", ".toml"];
    const FOLDERS: &[&str] = &["crates/", "docs/", "tests/", "xtask/", "fuzz/", "bpf/", ".ci/"];
    let is_plain = !word.contains([' ', '<', '*', '{', '…']);
    is_plain
        && (ENDINGS.iter().any(|ending| word.ends_with(ending))
            || FOLDERS.iter().any(|folder| word.starts_with(folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T>(check: impl FnOnce(&Tree) -> T, files: &[(&str, &str)]) -> T {
        let root = PathBuf::from("/repository");
        let texts =
            files.iter().map(|(path, text)| (root.join(path), (*text).to_owned())).collect();
        check(&Tree::new(root, texts))
    }

    #[test]
    fn file_without_header_is_named_unless_generated_or_part_of_a_module() {
        let files = [
            ("a.rs", "fn f() {}"),
            ("b.rs", "//! B.\n"),
            ("b/tests.rs", "use super::*;\n"),
            ("generated/c.rs", "fn g() {}"),
        ];
        let found = check(Tree::headerless, &files);
        assert_eq!(found, ["a.rs: starts without a `//!` header"]);
    }

    #[test]
    fn leftover_is_found_with_its_line() {
        let text = format!("fine\n// {}: later\n", LEFTOVERS[0]);
        let found = check(Tree::leftovers, &[("a.rs", &text)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("a.rs:2: "), "{found:?}");
    }

    #[test]
    fn machine_path_is_found_and_url_is_not() {
        let machine = format!("open(\"{}me/x\")", MACHINE_FOLDERS[0]);
        assert_eq!(check(Tree::machine_paths, &[("a.rs", &machine)]).len(), 1);
        let url = format!("https://host{}page", MACHINE_FOLDERS[0]);
        assert_eq!(check(Tree::machine_paths, &[("a.md", &url)]), [""; 0]);
    }

    #[test]
    fn map_must_name_every_crate_and_only_files_that_exist() {
        let files = [
            (
                "ARCHITECTURE.md",
                "`crates/net` and `net/src/poll.rs`, `gone.rs`.\n```\n`x.rs`\n```\n",
            ),
            ("crates/net/src/poll.rs", "//! Poll.\n"),
        ];
        let found = check(|tree| tree.map_breaches(&["net", "http"]), &files);
        // `crates/net` is not in this pretended tree, so it counts as gone too.
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("the crate `http`"), "{found:?}");
        assert!(found.iter().any(|line| line.contains("`gone.rs`")), "{found:?}");
        assert!(!found.iter().any(|line| line.contains("poll.rs")), "{found:?}");
    }

    #[test]
    fn a_page_of_tests_names_only_tests_and_one_in_each_row() {
        let code = "//! A.\n#[test]\nfn it_holds() {}\n#[tokio::test]\nasync fn it_waits() {}\n\
                    fn helper() {}\n";
        let table = "`x`\n| a | test |\n|---|---|\n| `b` | `it_holds`, `it_waits` |\n\
                     | c | `helper` |\n| d | `gone` |\n| `it_holds` | none |\n";
        let files = [("a.rs", code), ("page.md", table)];
        let found = check(|tree| tree.tests_gone("page.md"), &files);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("`helper`") && found[1].contains("`gone`"), "{found:?}");
        assert!(found[2].contains("without a test"), "{found:?}");
        assert_eq!(check(|tree| tree.tests_gone("none.md"), &files).len(), 1);
    }

    #[test]
    fn changelog_needs_its_unreleased_section() {
        let changelog = |text: &str| check(Tree::changelog_breaches, &[("CHANGELOG.md", text)]);
        assert_eq!(changelog("# Changelog\n\n## [Unreleased]\n"), [""; 0]);
        assert_eq!(changelog("# Changelog\n\n## 1.0\n").len(), 1);
        assert_eq!(check(Tree::changelog_breaches, &[]).len(), 1);
    }
}
