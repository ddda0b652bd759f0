use super::*;

fn mutant(line: usize, change: &str) -> Mutant {
    let name = format!("crates/x.rs:{line}:5: {change}");
    Mutant { name, line, column: 5, change: change.to_owned() }
}

fn row(file: &str, excused: Vec<Excused>) -> Row {
    let code = "1234".to_owned();
    Row { file: file.to_owned(), code, caught: 7, timed_out: 1, unviable: 2, excused }
}

#[test]
fn every_file_of_the_list_exists_once() {
    let root = Workspace::load().unwrap().root;
    let all: Vec<&str> = files().collect();
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    for file in all.into_iter().chain([QUICK]) {
        assert!(root.join("crates").join(file).is_file(), "{file}");
    }
}

/// Elsewhere none is judged, so it would stay when its code goes.
#[test]
fn reasons_stand_in_files_of_the_list_alone() {
    let root = Workspace::load().unwrap().root;
    let listed: HashSet<PathBuf> = files().map(|file| root.join("crates").join(file)).collect();
    for file in sources::rust_files(&root).unwrap() {
        if file.path.starts_with(root.join("crates")) {
            let found = excuses(&file.text).unwrap_or_else(|line| {
                panic!("{}:{line}: a reason is `// Mutant `CHANGE`: REASON`", file.path.display())
            });
            let may = found.is_empty() || listed.contains(&file.path);
            assert!(may, "{}: not of the list, yet it has {found:?}", file.path.display());
        }
    }
}

#[test]
fn comments_move_no_mutant() {
    let [bare, commented] =
        ["fn f() {\n    a < b\n}\n", "//! X.\nfn f() {\n    // Why.\n    a < b\n}\n"];
    let change = "replace < with <= in f";
    assert_eq!(key(bare, &mutant(2, change)), key(commented, &mutant(4, change)));
    assert_eq!(digits(bare), digits(commented));
    assert_ne!(digits(bare), digits("fn f() {\n    a > b\n}\n"));
}

#[test]
fn what_was_found_counts_while_code_and_tests_stay() {
    let code =
        |of_code: &str, of_all: &str| Code { of_code: of_code.into(), of_all: of_all.into() };
    let stored = || {
        let outcomes = [("1", Outcome::Caught), ("2", Outcome::Missed), ("3", Outcome::Unviable)];
        let outcomes = outcomes.map(|(key, outcome)| (key.to_owned(), outcome)).into();
        Some(Found { code: code("a", "t"), outcomes })
    };
    let left = |code: Code, has_grown| {
        still_true(stored(), &code, has_grown).into_keys().collect::<Vec<_>>()
    };
    assert_eq!(left(code("a", "t"), false), ["1", "2", "3"]);
    assert!(left(code("a", "u"), false).is_empty(), "a test may be gone");
    assert_eq!(left(code("a", "u"), true), ["1", "3"], "what survived is run again");
    assert!(left(code("b", "t"), true).is_empty());
    assert!(still_true(None, &code("a", "t"), true).is_empty());
}

#[test]
fn a_survivor_without_a_reason_and_a_reason_without_a_survivor_fail() {
    let folder = tempfile::tempdir().unwrap();
    let file = "x/src/a.rs";
    let path = folder.path().join("crates").join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "fn f() {\n    // Mutant `replace < with <=`: it logs.\n    a < b\n}\n")
        .unwrap();
    let (program, empty) = ("", Path::new(""));
    let bench = Bench::of_parts(empty, program);
    let examined = Examined { tree: folder.path(), bench: &bench, file };
    let judge = |mutants: &[(usize, &str, Outcome)]| {
        let of =
            |(line, change, outcome): &(usize, &str, Outcome)| (mutant(*line, change), *outcome);
        let (row, left) = examined.judge(&mutants.iter().map(of).collect()).unwrap();
        (row.excused.len(), left)
    };
    let own = (3, "replace < with <= in f", Outcome::Missed);
    assert_eq!(judge(&[own]), (1, vec![]));
    let (excused, left) = judge(&[own, (3, "replace < with > in f", Outcome::Missed)]);
    assert_eq!((excused, left), (1, vec!["crates/x.rs:3:5: replace < with > in f".to_owned()]));
    let (excused, left) = judge(&[(3, "replace < with <= in f", Outcome::Caught)]);
    assert_eq!((excused, left.len()), (0, 1));
    assert!(left[0].contains("needs no reason"), "{left:?}");
}

#[test]
fn a_row_counts_while_code_and_reasons_stay() {
    let folder = tempfile::tempdir().unwrap();
    let file = "x/src/a.rs";
    let path = folder.path().join("crates").join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let write = |code: &str, reason: &str| {
        let text = format!("// Mutant `replace < with <=`: {reason}\n{code}\n");
        std::fs::write(&path, text).unwrap();
    };
    write("a < b", "it logs.");
    let excused = Excused { change: "replace < with <=".into(), reason: "it logs.".into() };
    let code = code(folder.path(), file).unwrap().of_all;
    let row = Row { code, ..row(file, vec![excused]) };
    assert!(row.is_true(folder.path()));
    write("a < b", "it counts.");
    assert!(!row.is_true(folder.path()));
    write("a < c", "it logs.");
    assert!(!row.is_true(folder.path()));
}

#[test]
fn tests_of_a_file_are_found_by_its_module() {
    assert_eq!(module("control/src/connections/shares/mod.rs"), "connections::shares::");
    assert_eq!(module("routing/src/policy.rs"), "policy::");
}

#[test]
fn the_page_has_each_file_and_each_reason() {
    let excused = Excused { change: "replace < with <= in f".into(), reason: "it logs.".into() };
    let rows = [row("routing/src/policy.rs", vec![excused]), row("control/src/pace.rs", vec![])];
    let rows = rows.into_iter().map(|row| (row.file.clone(), row)).collect();
    let page = page(&rows, &json!({ "date": "2026-01-02", "cores": 2 }));
    for part in [
        "| routing/src/policy.rs | 7 | 1 | 2 | 1 |",
        "- routing/src/policy.rs, `replace < with <= in f`: it logs.",
        "| control/src/tokens/decide.rs | not run since it changed | | | |",
        "2026-01-02",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("{{"), "{page}");
}

#[test]
fn the_copy_has_what_git_has_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let [root, tree] = ["root", "tree"].map(|name| folder.path().join(name));
    std::fs::create_dir_all(root.join("a")).unwrap();
    std::fs::create_dir_all(tree.join("gone")).unwrap();
    let git =
        crate::process::output(std::process::Command::new("git").args(["init", "-q"]).arg(&root));
    if git.is_err() {
        println!("skipped: no git");
        return;
    }
    for (at, text) in [("root/a/same", "1"), ("root/new", "2"), ("tree/gone/x", "3")] {
        std::fs::write(folder.path().join(at), text).unwrap();
    }
    mirror(&root, &tree).unwrap();
    let time = |name: &str| std::fs::metadata(tree.join(name)).unwrap().modified().unwrap();
    let before = time("a/same");
    // As a run that was broken off leaves it.
    std::fs::write(tree.join("new"), "mutated").unwrap();
    mirror(&root, &tree).unwrap();
    assert_eq!(std::fs::read_to_string(tree.join("new")).unwrap(), "2");
    assert_eq!(time("a/same"), before, "cargo does not build it again");
    assert!(!tree.join("gone/x").exists());
}
