//! Files of programs in Go, as users bring them: Dapr's resources and Configurations, and run files.

use std::path::Path;

use serde_json::Value;
use tollway_config::go::{Reader, decode, documents, only_document};
use tollway_dapr::{FileTexts, Files};
use tollway_launch::run_file;
use tollway_model::{AppId, Label};

/// Mistakes are listed with their lines, each with a part of the text at most.
const ERROR_BYTES: usize = 256 * 1024;
/// A key that is read as no name.
const MERGE: &str = "<<";
/// Longer keys are none in YAML, and as JSON a key has more bytes.
const KEY_BYTES: usize = 1024;

/// A text as a Configuration, and as a file in a folder of resources.
pub(crate) fn dapr(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (app, namespace) = (AppId::new("web"), Label::new("default"));
    let app = app.expect("it is a name");
    let namespace = namespace.expect("it is a name");
    let read = |texts: &FileTexts| {
        let files = Files {
            app: &app,
            namespace: &namespace,
            takes_all_namespaces: true,
            config: &[],
            resources: &[],
            in_daprds_place: true,
        };
        let variable = |name: &str| (name == "LEVEL").then(|| "deny".to_owned());
        match files.read_texts(texts, &variable) {
            Ok(read) => format!("{read:?}"),
            Err(error) => bounded(error.to_string()),
        }
    };
    let has_malformed = |text: &str| documents(text, "a.yaml").iter().any(|one| one.node.is_err());
    as_with_line_ends_of_windows(text, has_malformed, |text| {
        let resources = vec![("a.yaml".to_owned(), Ok(text.to_owned()))];
        read(&FileTexts { resources, ..FileTexts::default() })
    });
    as_with_line_ends_of_windows(text, is_malformed(Reader::Configuration), |text| {
        let configurations = vec![("a.yaml".to_owned(), text.to_owned())];
        read(&FileTexts { configurations, ..FileTexts::default() })
    });
    for document in documents(text, "a.yaml") {
        as_json(document.text, Reader::Resource);
    }
    as_json(text, Reader::Configuration);
}

/// A text as a run file.
pub(crate) fn run_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let plans = |text: &str| match run_file::outline(text, Path::new("/")) {
        Ok(plans) => plans,
        Err(mistakes) => bounded(mistakes.to_string()),
    };
    as_with_line_ends_of_windows(text, is_malformed(Reader::RunFile), plans);
    as_json(text, Reader::RunFile);
}

fn has_short_keys(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.iter().all(|(key, value)| {
            Value::from(key.as_str()).to_string().len() < KEY_BYTES && has_short_keys(value)
        }),
        Value::Array(items) => items.iter().all(has_short_keys),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

fn is_malformed(reader: Reader) -> impl Fn(&str) -> bool {
    move |text| only_document(text, reader, "a.yaml").is_err()
}

fn bounded(error: String) -> String {
    assert!(error.len() <= ERROR_BYTES, "{error}");
    error
}

/// How lines end makes no difference, but in front of a separator: Go cuts the text at `\n---`, so a
/// document there ends with a line, or within one. Of several mistakes of form another one may be reported:
/// how far the reader looks ahead is counted in bytes.
fn as_with_line_ends_of_windows(
    text: &str,
    is_malformed: impl Fn(&str) -> bool,
    read: impl Fn(&str) -> String,
) {
    let found = read(text);
    if !text.contains('\r') {
        let other = text.replace('\n', "\r\n").replace("\r\n---", "\n---");
        if !(is_malformed(text) && is_malformed(&other)) {
            assert_eq!(read(&other), found, "line ends make a difference");
        }
    }
}

/// What is read of a document, written as JSON, is read alike.
fn as_json(text: &str, reader: Reader) {
    let value = |text: &str| -> Option<Value> {
        let node = only_document(text, reader, "a.yaml").ok()??;
        decode(&node, reader, "a.yaml").ok().map(|read| read.value)
    };
    let Some(read) = value(text) else { return };
    let written = read.to_string();
    if !written.contains(MERGE) && has_short_keys(&read) {
        assert_eq!(value(&written), Some(read), "as JSON it is another value: {written}");
    }
}
