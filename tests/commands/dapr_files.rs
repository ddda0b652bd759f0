//! Dapr's own loaders, in the program `daprfiles`, as the judge of files: `tests/corpus/dapr-files`.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tollway_testkit::need_tool;

#[test]
fn expectations_of_the_corpus_are_what_daprs_loaders_find() {
    let daprfiles = need_tool!("daprfiles");
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/dapr-files");
    let home = tempfile::tempdir().unwrap();
    let written = home.path().join("found.json");
    let mut program = Command::new(daprfiles);
    program.arg(&corpus).arg(&written).env_remove("NAMESPACE").env("HOME", home.path());
    let ended = program.output().unwrap();
    let reported = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{reported}");
    let read = |path: &Path| -> Value {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let (found, expected) = (read(&written), read(&corpus.join("expected.json")));
    for kind in ["resources", "configurations", "run-files"] {
        for (name, expected) in expected[kind].as_object().unwrap() {
            assert_eq!(&found[kind][name], expected, "{kind}/{name}");
        }
    }
    assert_eq!(found, expected, "write expected.json anew: daprfiles FOLDER FOLDER/expected.json");
}
