//! The JSON Schema of the kinds beside what `tollway apply` takes and refuses, by a validator of others.

use std::path::PathBuf;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;

use super::*;

/// What `tollway apply` refuses and the schema does not: by parts of the messages, and why.
const BEYOND: &[(&str, &str)] = &[
    ("the path `/it*ems`", "the parts of a path have a form of their own"),
    ("leave `from` out", "a pattern of all callers is one of many that are texts"),
    ("the regular expression", "JSON Schema knows other regular expressions"),
    ("has more than four decimals", "a multiple of a fraction is not exact in JSON"),
    ("at most three decimals", "the same"),
    ("is set by Tollway", "names of fields do not depend on case"),
    ("`any` stands for", "a name that is reserved in this place alone"),
    ("the network `west` is named twice", "items are compared by one of their fields"),
    ("is a name of the mesh", "hosts have several forms"),
    ("TLS cannot be begun for the addresses", "the form of one field decides about another"),
    ("an egress is for the apps of its own namespace", "it depends on `metadata`"),
    ("is not a range", "an address is compared with its prefix"),
    ("in shadow mode a policy has no other parts", "it depends on other fields"),
    ("protects its own", "it depends on `metadata`"),
    ("any namespace", "the value of one field decides about another"),
    ("belongs to the namespace `tollway`", "it depends on `metadata`"),
];

static VALIDATOR: LazyLock<Validator> = LazyLock::new(|| {
    let schema: Value = serde_json::from_str(&schema_text()).unwrap();
    jsonschema::draft7::new(&schema).unwrap()
});

fn in_repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The documents of a text, as editors see them.
fn documents(text: &str) -> Vec<Value> {
    yaml::parse_all(text, "p.yaml").unwrap_or_default()
}

#[track_caller]
pub(super) fn check_taken(text: &str) {
    for document in documents(text) {
        let mistakes: Vec<String> =
            VALIDATOR.iter_errors(&document).map(|mistake| mistake.to_string()).collect();
        assert!(mistakes.is_empty(), "{mistakes:?} in {document}");
    }
}

/// Checks a text that `tollway apply` refuses with `message`.
#[track_caller]
pub(super) fn check_refused(text: &str, message: &str) {
    // A text that is no YAML has no documents.
    let is_taken = documents(text).iter().all(|document| VALIDATOR.is_valid(document));
    let is_beyond = BEYOND.iter().any(|(part, _)| message.contains(part));
    assert_eq!(is_taken, is_beyond, "{message}: {text}");
}

#[test]
fn the_schema_of_the_repository_is_that_of_the_kinds() {
    let path = in_repository("schema/tollway-objects.schema.json");
    let wanted = schema_text();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{} is out of date: run `cargo xtask codegen`", path.display());
}

/// The objects in code blocks of the pages.
#[test]
fn the_examples_of_the_pages_are_taken() {
    let mut count = 0;
    for entry in std::fs::read_dir(in_repository("docs/guide")).unwrap() {
        let path = entry.unwrap().path();
        let Ok(page) = std::fs::read_to_string(&path) else { continue };
        let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        for block in blocks.filter(|block| block.contains("apiVersion: tollway.dev/v1")) {
            parse(block).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(!documents(block).is_empty(), "{}: {block}", path.display());
            check_taken(block);
            count += 1;
        }
    }
    assert!(count >= 5, "{count} examples");
    for text in [POLICY, ROUTE, FAILOVER, EGRESS] {
        assert_eq!(documents(text).len(), 1);
        check_taken(text);
    }
}
