//! Every input that once reached new code, or once broke something, through its target again.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use tollway_fuzz::TARGETS;

fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut inputs: Vec<_> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| {
            let bytes = std::fs::read(entry.path()).unwrap();
            (entry.file_name().into_string().unwrap(), bytes)
        })
        .collect();
    inputs.sort();
    inputs
}

#[test]
fn every_kept_input_holds() {
    for target in TARGETS {
        if target.name == "frames" && !tollway_fuzz::may_load_programs() {
            println!("skipped: frames: programs may not be loaded here: it needs root");
            continue;
        }
        let inputs = corpus(target.name);
        assert!(!inputs.is_empty(), "{} has no corpus", target.name);
        for (file, bytes) in inputs {
            let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(&bytes)));
            assert!(outcome.is_ok(), "{}: {file} breaks it: {}", target.name, bytes.escape_ascii());
        }
    }
}

/// Inputs of a target that no longer exists are an error.
#[test]
fn every_corpus_has_its_target() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(tollway_fuzz::find(&name).is_some(), "corpus/{name}");
    }
}

/// A ClientHello of rustls has the requested name, so the corpus is not all refusals.
#[test]
fn the_inputs_of_server_names_reach_a_name() {
    let named = corpus("server-name").into_iter().filter(|(_, bytes)| {
        let mut reader = tollway_identity::ServerNameReader::default();
        bytes.len() > 1
            && matches!(reader.take(&bytes[1..]), tollway_identity::ServerNameRead::Named(_))
    });
    assert!(named.count() > 0);
}
