use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use super::*;

#[derive(Deserialize, Default, Debug, PartialEq)]
#[serde(default, rename_all = "camelCase")]
struct Thing {
    api_version: String,
    metadata: ObjectMeta,
    count: i64,
    is_on: bool,
    names: Vec<String>,
    times: BTreeMap<String, String>,
    value: GoText,
    inner: Option<Box<Thing>>,
    placed: Placed<String>,
}

#[derive(Deserialize, Default, Debug, PartialEq)]
#[serde(default)]
struct ObjectMeta {
    name: String,
}

fn read(text: &str, reader: Reader) -> Result<Decoded<Thing>, String> {
    let node = only_document(text, reader, "a.yaml").map_err(|error| error.to_string())?;
    let node = node.ok_or("no document")?;
    decode(&node, reader, "a.yaml").map_err(|error| error.to_string())
}

fn resource(text: &str) -> Thing {
    read(text, Reader::Resource).unwrap().value
}

fn value(text: &str) -> Option<String> {
    resource(&format!("value: {text}\n")).value.0
}

#[test]
fn what_kubectl_and_gos_encoders_write_is_read_without_a_warning() {
    let text = "apiVersion: v1\nmetadata:\n  creationTimestamp: null\n  generation: 3\n  name: a\n  \
                uid: 0b7\ncount: null\nnames: null\ntimes: {}\ninner: null\n";
    let found = read(text, Reader::Resource).unwrap();
    assert_eq!(found.unknown, []);
    assert_eq!((found.value.api_version.as_str(), found.value.metadata.name.as_str()), ("v1", "a"));
}

#[test]
fn an_unknown_field_is_collected_once_with_its_position() {
    let text = "colour: red\ninner: &i\n  shape: round\n";
    let found = read(text, Reader::Resource).unwrap();
    let at = |line, column| At { line, column };
    let name = |unknown: &Unknown| (unknown.at, unknown.name.clone());
    let names: Vec<_> = found.unknown.iter().map(name).collect();
    assert_eq!(names, [(at(1, 1), "colour".to_owned()), (at(3, 3), "shape".to_owned())]);
}

#[test]
fn fields_of_resources_have_names_in_any_case_and_the_last_in_gos_order_counts() {
    assert_eq!(resource("APIVERSION: v1\nIsOn: yes\n").api_version, "v1");
    assert!(resource("ison: on\n").is_on);
    assert_eq!(resource("count: 1\ncount: 2\n").count, 2);
    assert_eq!(resource("count: 1\nCount: 2\n").count, 1);
    let exact = read("Count: 2\n", Reader::RunFile).unwrap();
    assert_eq!((exact.value.count, exact.unknown.len()), (0, 1));
}

#[test]
fn numbers_stand_for_texts_as_go_writes_them() {
    let text = |text: &str| resource(&format!("apiVersion: {text}\n")).api_version;
    for (written, expected) in [
        ("1", "1"),
        ("010", "8"),
        ("0x10", "16"),
        ("1_000", "1000"),
        ("0.10", "0.1"),
        ("1e6", "1e+06"),
        ("yes", "true"),
        ("~", ""),
        ("2020-01-02", "2020-01-02"),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("18446744073709551615", "18446744073709551615"),
        // Numbers that are too large for a number: hashes of commits may have this form.
        ("9e72372", "9e72372"),
        ("-.9e723723", "-.9e723723"),
        ("1e-99999", "0"),
    ] {
        assert_eq!(text(written), expected, "{written}");
    }
    let raw = |reader| read("apiVersion: 010\n", reader).unwrap().value.api_version;
    assert_eq!((raw(Reader::RunFile), raw(Reader::Configuration)), ("010".into(), "010".into()));
}

#[test]
fn what_json_has_no_number_for_is_refused() {
    for reader in [Reader::Resource, Reader::RunFile, Reader::Configuration] {
        for text in [".inf", "-.Inf", ".nan"] {
            let node = only_document(text, reader, "a.yaml").unwrap().unwrap();
            let any = decode::<serde_json::Value>(&node, reader, "a.yaml").unwrap_err();
            assert!(any.to_string().contains("expected a number, found"), "{any}");
            decode::<f64>(&node, reader, "a.yaml").unwrap_err();
        }
    }
}

#[test]
fn a_value_of_any_kind_is_its_json() {
    for (written, expected) in [
        ("5", Some("5")),
        ("1e6", Some("1000000")),
        ("1e-7", Some("1e-7")),
        ("0.50", Some("0.5")),
        ("no", Some("false")),
        ("'no'", Some("no")),
        ("\"\"", Some("")),
        ("null", None),
        ("", None),
        ("{b: 1, a: [x]}", Some("{\"a\":[\"x\"],\"b\":1}")),
    ] {
        assert_eq!(value(written).as_deref(), expected, "{written}");
    }
}

#[test]
fn merge_keys_are_taken_in() {
    let text = "inner: &a {count: 1, isOn: true}\n<<: *a\ncount: 2\n";
    for reader in [Reader::Resource, Reader::RunFile, Reader::Configuration] {
        let thing = read(text, reader).unwrap().value;
        assert_eq!((thing.count, thing.is_on), (2, true), "{reader:?}");
    }
    let before = "inner: &a {count: 1}\ncount: 2\n<<: [*a]\n";
    let count = |reader| read(before, reader).unwrap().value.count;
    assert_eq!((count(Reader::RunFile), count(Reader::Configuration)), (1, 2));
    assert!(read("<<: 1\n", Reader::Resource).unwrap_err().contains("a.yaml:1:5: a merge key"));
}

#[test]
fn a_key_twice_is_a_mistake_in_a_configuration_alone() {
    let text = "count: 1\ncount: 2\n";
    assert_eq!(read(text, Reader::RunFile).unwrap().value.count, 2);
    let refused = read(text, Reader::Configuration).unwrap_err();
    assert_eq!(refused, "a.yaml:2:1: `count` is in line 1 already; keep one");
}

#[test]
fn switches_of_yaml_1_1_are_those_of_each_reader() {
    for reader in [Reader::Resource, Reader::RunFile, Reader::Configuration] {
        assert!(read("isOn: on\n", reader).unwrap().value.is_on, "{reader:?}");
        assert!(!read("isOn: No\n", Reader::Resource).unwrap().value.is_on, "{reader:?}");
    }
    assert!(read("isOn: 'true'\n", Reader::Resource).unwrap_err().contains("found `true`"));
    assert_eq!(read("apiVersion: on\n", Reader::Configuration).unwrap().value.api_version, "on");
}

#[test]
fn a_key_is_a_value_in_a_resource_alone() {
    let key = |reader| {
        let thing = read("times: {N: a}\n", reader).unwrap().value;
        thing.times.into_keys().next().unwrap()
    };
    assert_eq!(key(Reader::Resource), "false");
    assert_eq!((key(Reader::RunFile), key(Reader::Configuration)), ("N".into(), "N".into()));
}

#[test]
fn a_value_of_another_kind_has_its_position() {
    for (text, message) in [
        ("names: x\n", "a.yaml:1:8: expected a list, found `x`"),
        ("names: [[x]]\n", "a.yaml:1:9: expected a text, found a list"),
        ("count: x\n", "a.yaml:1:8: expected a whole number, found `x`"),
        ("inner:\n  count: [1]\n", "a.yaml:2:10: expected a whole number, found a list"),
        ("metadata: 5\n", "a.yaml:1:11: expected a mapping, found `5`"),
        ("a: {b\n", "a.yaml:"),
        ("{{ .Values.a }}: 1\n", "a.yaml:1:2: a key that is no text"),
        ("x: &a [*a]\n", "a.yaml:1:8: "),
    ] {
        let refused = read(text, Reader::Resource).unwrap_err();
        assert!(refused.starts_with(message), "{text}: {refused}");
    }
    let placed = resource("\nplaced:\n  text\n").placed;
    assert_eq!((placed.at, placed.value.as_str()), (At { line: 3, column: 3 }, "text"));
}

#[test]
fn documents_of_a_file_are_read_each_by_itself() {
    let text =
        "# nothing\n---\napiVersion: a\n--- # next\n{{ template }\n---\r\napiVersion: b\r\n---";
    let found = documents(text, "a.yaml");
    let [first, second, third] = &found[..] else { panic!("{} documents", found.len()) };
    let version = |document: &Document<'_>| {
        let node = document.node.as_ref().unwrap().clone().unwrap();
        decode::<Thing>(&node, Reader::Resource, "a.yaml").unwrap().value.api_version
    };
    assert_eq!((version(first), version(third)), ("a".to_owned(), "b".to_owned()));
    let mistake = second.node.as_ref().unwrap_err();
    assert_eq!((mistake.line, second.text), (5, "{{ template }"));
    assert_eq!(third.node.as_ref().unwrap().as_ref().unwrap().at.line, 7);
}

#[test]
fn aliases_cannot_blow_up_a_document() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let before = format!("*a{}", level - 1);
        text += &format!("a{level}: &a{level} [{}]\n", vec![before; 10].join(", "));
    }
    let node = only_document(&text, Reader::Resource, "a.yaml").unwrap().unwrap();
    let refused = decode::<serde_json::Value>(&node, Reader::Resource, "a.yaml").unwrap_err();
    assert!(refused.what.contains("parts"), "{refused}");
    let refused = read(&format!("{text}value: *a8\n"), Reader::Resource).unwrap_err();
    assert!(refused.contains("parts"), "also as a text: {refused}");
    let (long, many) = ("x".repeat(100_000), "*a, ".repeat(1000));
    let refused = read(&format!("a: &a {long}\nnames: [{many}]\n"), Reader::Resource).unwrap_err();
    assert!(refused.contains("bytes of text"), "{refused}");
    let deep = "[".repeat(1000);
    assert!(only_document(&deep, Reader::Resource, "a.yaml").is_err());
    assert!(!node.mentions("y"), "what aliases share is looked at once");
    assert!(node.mentions("x"));
}

#[test]
fn a_chain_of_aliases_is_not_deeper_than_brackets() {
    let chain = |levels: usize| {
        let link = |level| format!("a{level}: &a{level} [*a{}]\n", level - 1);
        "a0: &a0 x\n".to_owned() + &(1..levels).map(link).collect::<String>()
    };
    assert!(only_document(&chain(99), Reader::Resource, "a.yaml").is_ok());
    let refused = only_document(&chain(3000), Reader::Resource, "a.yaml").unwrap_err();
    assert!(refused.what.contains("100 levels"), "{refused}");
}

#[test]
fn merge_keys_cannot_blow_up_a_document() {
    let fields: String = (0..2000).map(|number| format!("  k{number}: 1\n")).collect();
    for reader in [Reader::Resource, Reader::RunFile, Reader::Configuration] {
        let merges = "- {<<: *a}\n".repeat(1000);
        let text = format!("- &a\n{fields}{merges}");
        let refused = only_document(&text, reader, "a.yaml").unwrap_err();
        assert!(refused.what.contains("merge keys bring more than"), "{refused}");
    }
}

/// The text of the field `a`, as a resource and as the other two files have it.
#[track_caller]
fn check_block(text: &str, expected: &str) {
    for reader in [Reader::Resource, Reader::RunFile, Reader::Configuration] {
        let node = only_document(text, reader, "a.yaml").unwrap().unwrap();
        let read = decode::<HashMap<String, String>>(&node, reader, "a.yaml").unwrap().value;
        assert_eq!(read["a"], expected, "{text:?}");
    }
}

/// A password written as a block would have a line break at its end that Dapr does not read.
#[test]
fn a_block_has_no_line_break_at_the_end_that_the_file_has_not() {
    for (text, expected) in [
        ("a: |\n  b", "b"),
        ("a: |\n  b\n", "b\n"),
        ("a: |\n  b\n  c", "b\nc"),
        ("a: |\n  b\n  ", "b\n"),
        ("a: |\n  b\n\n", "b\n"),
        ("a: |+\n  b", "b"),
        ("a: |+\n  b\n\n", "b\n\n"),
        ("a: |-\n  b", "b"),
        ("a: >\n  b\n  c", "b c"),
        ("a: >\n  b\n  c\n", "b c\n"),
        ("a: |\n  Zo\u{eb}", "Zo\u{eb}"),
        ("a: |\n  b\n# b", "b\n"),
        ("a: |\n  b\nc: b", "b\n"),
        ("a: |\r\n  b", "b"),
    ] {
        check_block(text, expected);
    }
    let documents = documents("a: |\n  b\n---\na: |\n  c\n", "a.yaml");
    let texts = documents.into_iter().map(|document| {
        let node = document.node.unwrap().unwrap();
        decode::<HashMap<String, String>>(&node, Reader::Resource, "a").unwrap().value["a"].clone()
    });
    assert_eq!(texts.collect::<Vec<_>>(), ["b", "c\n"]);
}
