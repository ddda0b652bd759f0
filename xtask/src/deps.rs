//! The dependency checks: allowed edges between crates, pure crates, unused dependencies.

use std::process::Command;

use anyhow::{Result, bail};

use crate::edges::{CRATES, Crate, TEST_HELPERS, TESTS, TOP};
use crate::process;
use crate::purity;
use crate::sources::{self, RustFile};
use crate::workspace::{Dependency, DependencyKind, Package, Resolved, Workspace, short_name};

/// Prints every breach and fails if there is one.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let files = sources::rust_files(&workspace.root)?;
    let mut breaches = edge_breaches(&workspace.packages);
    let resolved = workspace.resolved()?;
    breaches.extend(purity::breaches(workspace, &resolved));
    breaches.extend(unused(workspace, &resolved, &files));
    if process::in_ci() {
        breaches.extend(lock_breach(workspace)?);
    }
    report("deps", &breaches)
}

/// Prints the breaches of one check; an error if there are any.
pub(crate) fn report(check: &str, breaches: &[String]) -> Result<()> {
    for breach in breaches {
        eprintln!("{check}: {breach}");
    }
    match breaches.len() {
        0 => {
            eprintln!("{check}: ok");
            Ok(())
        }
        1 => bail!("1 breach, named above"),
        count => bail!("{count} breaches, named above"),
    }
}

/// In a fresh clone, cargo has by now rewritten a Cargo.lock that was not in step.
fn lock_breach(workspace: &Workspace) -> Result<Option<String>> {
    let mut status = Command::new("git");
    status.arg("-C").arg(&workspace.root).args(["status", "--porcelain", "Cargo.lock"]);
    let is_changed = !process::output(&mut status)?.trim().is_empty();
    Ok(is_changed.then(|| "Cargo.lock is not in step with the manifests: commit it".to_owned()))
}

fn edge_breaches(packages: &[Package]) -> Vec<String> {
    let mut breaches = Vec::new();
    for crate_ in CRATES {
        if !packages.iter().any(|package| package.short_name() == crate_.name) {
            breaches.push(format!("crate `{}` of xtask/src/edges.rs is gone", crate_.name));
        }
    }
    for package in packages {
        match CRATES.iter().find(|crate_| crate_.name == package.short_name()) {
            Some(crate_) => breaches.extend(edges_of(crate_, package)),
            None => breaches.push(format!(
                "crate `{}` is not in xtask/src/edges.rs: add it with the crates it may use",
                package.short_name()
            )),
        }
    }
    breaches
}

fn edges_of(crate_: &Crate, package: &Package) -> Vec<String> {
    package
        .dependencies
        .iter()
        .filter(|dependency| dependency.path.is_some())
        .filter(|dependency| !is_allowed(crate_, dependency))
        .map(|dependency| {
            format!(
                "`{}` may not depend on `{}`{}: xtask/src/edges.rs says who may know whom",
                crate_.name,
                short_name(&dependency.name),
                match dependency.kind {
                    None => "",
                    Some(DependencyKind::Dev) => " (in tests)",
                    Some(DependencyKind::Build) => " (in its build script)",
                },
            )
        })
        .collect()
}

fn is_allowed(crate_: &Crate, dependency: &Dependency) -> bool {
    let target = short_name(&dependency.name);
    match target {
        TEST_HELPERS => dependency.kind == Some(DependencyKind::Dev) || crate_.name == TESTS,
        TOP => false,
        _ => crate_.name == TOP || target == crate_.name || crate_.may_use.contains(&target),
    }
}

/// Dependencies whose name does not occur in the crate's code.
///
/// A crate that holds no code yet is left alone. A dependency that is linked but never named
/// (to switch on a feature of it) is listed in the crate's Cargo.toml with its reason:
/// `[package.metadata.xtask.linked-only]`, `name = "reason"`.
fn unused(workspace: &Workspace, resolved: &Resolved, files: &[RustFile]) -> Vec<String> {
    let mut breaches = Vec::new();
    for package in &workspace.packages {
        let own: Vec<&RustFile> =
            files.iter().filter(|file| file.path.starts_with(package.folder())).collect();
        if own.iter().all(|file| file.is_empty()) {
            continue;
        }
        let linked_only = &package.metadata["xtask"]["linked-only"];
        for dependency in &package.dependencies {
            let name = &dependency.name;
            let word = match &dependency.rename {
                Some(rename) => rename.replace('-', "_"),
                None => resolved.library_name(name),
            };
            if linked_only[name].is_null() && !own.iter().any(|file| names(file, &word)) {
                breaches.push(format!("`{}` never names its dependency `{name}`", package.name));
            }
        }
    }
    breaches
}

fn names(file: &RustFile, word: &str) -> bool {
    file.code.match_indices(word).any(|(at, _)| {
        let before = file.code[..at].chars().next_back();
        let after = file.code[at + word.len()..].chars().next();
        let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !is_part(before) && !is_part(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Package {
        let dependencies: Vec<_> = dependencies
            .iter()
            .map(|(name, kind)| {
                serde_json::json!({"name": name, "kind": kind, "rename": null, "path": "/x"})
            })
            .collect();
        serde_json::from_value(serde_json::json!({
            "name": name, "manifest_path": "/x/Cargo.toml", "dependencies": dependencies
        }))
        .unwrap()
    }

    fn edges(package: &Package) -> Vec<String> {
        let crate_ = CRATES.iter().find(|crate_| crate_.name == package.short_name()).unwrap();
        edges_of(crate_, package)
    }

    #[test]
    fn listed_edge_is_allowed_and_unlisted_one_is_named() {
        assert_eq!(edges(&package("tollway-proxy", &[("tollway-net", None)])), [""; 0]);
        let found = edges(&package("tollway-proxy", &[("tollway-control", None)]));
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("`proxy` may not depend on `control`"), "{found:?}");
    }

    #[test]
    fn test_helpers_are_for_tests_only() {
        assert_eq!(edges(&package("tollway-http", &[("tollway-testkit", Some("dev"))])), [""; 0]);
        assert_eq!(edges(&package("tollway-http", &[("tollway-testkit", None)])).len(), 1);
        assert_eq!(edges(&package("tollway", &[("tollway-testkit", None)])).len(), 1);
    }

    #[test]
    fn no_crate_depends_on_the_top() {
        assert_eq!(edges(&package("tollway-lab", &[("tollway", Some("dev"))])).len(), 1);
        assert_eq!(edges(&package("tollway", &[("tollway-control", None)])), [""; 0]);
    }

    #[test]
    fn crate_outside_the_list_and_listed_crate_that_is_gone_are_named() {
        let found = edge_breaches(&[package("tollway-unheard", &[])]);
        assert!(found.iter().any(|line| line.contains("`unheard` is not in")), "{found:?}");
        assert!(found.iter().any(|line| line.contains("`model` of") && line.contains("gone")));
    }

    #[test]
    fn dependency_counts_as_used_only_as_a_whole_word() {
        let file = |code: &str| RustFile::parse("x.rs".into(), code.to_owned());
        assert!(names(&file("use tokio_stream::Stream;"), "tokio_stream"));
        assert!(names(&file("let x: tokio::Y;"), "tokio"));
        assert!(!names(&file("use tokio_stream::Stream;"), "tokio"));
        assert!(!names(&file("// tokio would do\n"), "tokio"));
    }
}
