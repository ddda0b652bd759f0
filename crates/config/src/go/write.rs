//! Values as YAML that Go's readers, and those of YAML 1.2, take for the same values.

use std::fmt::Write as _;

use serde_json::Value;

use super::Reader;
use super::scalar::{Resolved, resolve};

/// Spaces for each level.
const INDENT: usize = 2;

/// A document in block style, with its last line's end. What a reader could take for something else than
/// a text is in quotes.
#[must_use]
pub fn to_yaml(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(fields) if !fields.is_empty() => write(&mut text, value, 0, false),
        Value::Array(items) if !items.is_empty() => write(&mut text, value, 0, false),
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => {
            text.push_str(&short(value, 1));
            text.push('\n');
        }
    }
    text
}

/// Writes a list or mapping that has something in it. `follows`: its first line begins after the dash of
/// the list that it is in.
fn write(text: &mut String, value: &Value, level: usize, follows: bool) {
    let mut is_first = follows;
    let mut begin = |text: &mut String| {
        if !std::mem::take(&mut is_first) {
            text.extend(std::iter::repeat_n(' ', level * INDENT));
        }
    };
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                begin(text);
                text.push_str(&plain_or_quoted(key));
                text.push(':');
                match is_long(value) {
                    // A list may begin at the level of its key, as `kubectl` writes it.
                    true => {
                        text.push('\n');
                        let level = if value.is_array() { level } else { level + 1 };
                        write(text, value, level, false);
                    }
                    false => {
                        let _ = writeln!(text, " {}", short(value, level + 1));
                    }
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                begin(text);
                text.push_str("- ");
                match is_long(item) {
                    true => write(text, item, level + 1, true),
                    false => {
                        let _ = writeln!(text, "{}", short(item, level + 1));
                    }
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Whether a value needs lines of its own.
fn is_long(value: &Value) -> bool {
    match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// What stands after a key or a dash; `level` is that of a block's lines.
fn short(value: &Value, level: usize) -> String {
    match value {
        Value::String(text) => block(text, level).unwrap_or_else(|| plain_or_quoted(text)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    }
}

/// A text of several lines as they are, where a reader gives back just that.
fn block(text: &str, level: usize) -> Option<String> {
    let body = text.strip_suffix('\n').unwrap_or(text);
    let is_plain = |c: char| c == '\n' || c == '\t' || (!c.is_control() && is_printed(c));
    let ends = |line: &str| line.ends_with([' ', '\t']);
    let fits = body.contains('\n')
        && !body.starts_with([' ', '\t', '\n'])
        && !body.ends_with('\n')
        && text.chars().all(is_plain)
        && !body.lines().any(|line| ends(line) || line.starts_with('\t'));
    if !fits {
        return None;
    }
    let mut block = String::from(if text.ends_with('\n') { "|" } else { "|-" });
    for line in body.split('\n') {
        block.push('\n');
        if !line.is_empty() {
            block.extend(std::iter::repeat_n(' ', level * INDENT));
            block.push_str(line);
        }
    }
    Some(block)
}

/// A text as it is, where every reader takes it for that, else in quotes.
fn plain_or_quoted(text: &str) -> String {
    if is_plain(text) { text.to_owned() } else { quoted(text) }
}

fn is_plain(text: &str) -> bool {
    let starts = |c: char| c.is_ascii_alphabetic() || c == '/' || c == '_' || c == '$';
    let holds = |c: char| c.is_ascii_alphanumeric() || " ._/-+$()=,;@:".contains(c);
    text.starts_with(starts)
        && text.chars().all(holds)
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && resolve(text, Reader::Resource) == Resolved::Text
}

/// A text in double quotes; escapes are those that YAML shares with JSON.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            c if c.is_control() || !is_printed(c) => {
                // Two halves for what has no four digits would be read as two characters.
                let _ = match u32::from(c) {
                    code @ 0x1_0000.. => write!(quoted, "\\U{code:08x}"),
                    code => write!(quoted, "\\u{code:04x}"),
                };
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Characters that a YAML text may have as they are and that end no line.
fn is_printed(c: char) -> bool {
    !matches!(u32::from(c), 0x85 | 0xa0 | 0x2028 | 0x2029 | 0xfeff | 0xfffe | 0xffff | 0x1_0000..)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::{documents, manifests, to_json};
    use super::*;

    fn read(text: &str) -> Value {
        let mut found = documents(text, "a.yaml");
        assert!(found.len() <= 1, "{text}");
        match found.pop() {
            Some(document) => match document.node.unwrap() {
                Some(node) => to_json(&node, "a.yaml").unwrap(),
                None => Value::Null,
            },
            None => Value::Null,
        }
    }

    #[test]
    fn manifests_are_written_as_people_write_them() {
        let value = json!({
            "kind": "Pod",
            "metadata": {"annotations": {"a/b": "true", "empty": ""}, "labels": {}},
            "spec": {"containers": [{"args": ["--x=1", "-"], "name": "app"}], "list": [1, null, [2]]},
            "text": "one\n  two\n",
        });
        let text = "kind: Pod\nmetadata:\n  annotations:\n    a/b: \"true\"\n    empty: \"\"\n  \
                    labels: {}\nspec:\n  containers:\n  - args:\n    - \"--x=1\"\n    - \"-\"\n    \
                    name: app\n  list:\n  - 1\n  - null\n  - - 2\ntext: |\n  one\n    two\n";
        assert_eq!(to_yaml(&value), text);
        assert_eq!(read(text), value);
    }

    #[test]
    fn a_block_at_the_end_of_a_manifest_has_its_last_line_end() {
        let text = "a: |\n  one\n  two\n---\nb: |\n  three\n";
        let values: Vec<Value> = manifests(text, "a.yaml")
            .into_iter()
            .map(|document| to_json(&document.node.unwrap().unwrap(), "a.yaml").unwrap())
            .collect();
        assert_eq!(values, [json!({"a": "one\ntwo\n"}), json!({"b": "three\n"})]);
    }

    #[test]
    fn words_that_old_readers_take_for_others_are_in_quotes() {
        for word in [
            "yes",
            "No",
            "on",
            "y",
            "null",
            "~",
            "1e3",
            "0x10",
            "012",
            "1_000",
            ".inf",
            "=",
            "2001-01-01",
            "12:30:45",
            "a: b",
            "a #b",
            "- a",
            "{a",
            "*a",
            "&a",
            "!a",
            "%a",
            "@a",
            "a:",
            " a",
            "a ",
            "?",
            "|",
            "'",
            "\"",
            "\u{2028}",
            "\u{feff}x",
            "\u{1f600}",
            "---",
            "...",
        ] {
            let text = to_yaml(&json!({ "key": word, word: "value" }));
            assert_eq!(read(&text), json!({ "key": word, word: "value" }), "{text}");
        }
        assert!(to_yaml(&json!({"a": "yes"})).contains("\"yes\""));
    }

    #[test]
    fn aliases_do_not_grow_without_bound() {
        let mut text = String::from("a: &l0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..9 {
            let below = format!("*l{}", level - 1);
            let list = vec![below; 10].join(", ");
            text.push_str(&format!("b{level}: &l{level} [{list}]\n"));
        }
        let node = documents(&text, "a.yaml").pop().unwrap().node.unwrap().unwrap();
        let error = to_json(&node, "a.yaml").unwrap_err().to_string();
        assert!(error.contains("more than 2000000 values"), "{error}");
    }

    #[test]
    fn a_number_that_json_does_not_have_is_refused_with_its_position() {
        let node = documents("a:\n  b: .inf\n", "a.yaml").pop().unwrap().node.unwrap().unwrap();
        let error = to_json(&node, "a.yaml").unwrap_err().to_string();
        assert!(error.starts_with("a.yaml:2:6: `.inf` is no number"), "{error}");
    }

    fn any_text() -> impl Strategy<Value = String> {
        prop_oneof![".{0,12}", "[ -~\n\t]{0,30}", "([a-z ]{0,6}\n){0,4}", "[-yn0-9.:#]{1,5}"]
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e9..1e9_f64).prop_map(Value::from),
            any_text().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(any_text(), inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_the_same_value(value in any_value()) {
            let value = json!({ "value": value });
            let text = to_yaml(&value);
            prop_assert_eq!(read(&text), value, "{}", text);
        }
    }
}
