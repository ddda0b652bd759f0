//! Bodies that are one JSON object: registrations of timers and reminders.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::problem::Problem;
use crate::go_json;

/// Reads a body; an empty one is the default.
///
/// # Errors
/// [`Problem::malformed`] for everything that is no object.
pub(super) fn read<'a, T: Default + Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    let body = body.trim_ascii();
    if body.is_empty() {
        return Ok(T::default());
    }
    go_json::from_slice(body).map_err(|error| Problem::malformed(&error.to_string()))
}

/// Reads a field whose `null` differs from a field that is missing.
///
/// # Errors
/// The value is no JSON.
pub(super) fn given<'de: 'a, 'a, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// Valid JSON as Go writes it: without spaces between its parts, and with the characters escaped that
/// mean something in a web page.
pub(super) fn compact(text: &[u8]) -> Vec<u8> {
    let mut written = Vec::with_capacity(text.len());
    let (mut is_in_string, mut is_escaped) = (false, false);
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        rest = match (byte, after) {
            (b' ' | b'\t' | b'\r' | b'\n', _) if !is_in_string => after,
            (b'<' | b'>' | b'&', _) => {
                written.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
                after
            }
            // The separators of lines and paragraphs, U+2028 and U+2029.
            (0xe2, [0x80, last @ (0xa8 | 0xa9), after @ ..]) => {
                written.extend_from_slice(format!("\\u20{:02x}", last - 0x80).as_bytes());
                after
            }
            _ => {
                written.push(*byte);
                after
            }
        };
        is_in_string ^= *byte == b'"' && !is_escaped;
        is_escaped = is_in_string && *byte == b'\\' && !is_escaped;
    }
    written
}

#[cfg(test)]
mod tests {
    use tollway_model::ErrorCode;

    use super::*;

    #[derive(Default, Deserialize, PartialEq, Debug)]
    struct Document {
        #[serde(default)]
        name: String,
    }

    #[test]
    fn an_object_is_read_and_an_empty_body_is_the_default() {
        for text in ["", " \r\n\t", "{}", " {\"name\":\"\"} "] {
            assert_eq!(read::<Document>(text.as_bytes()).unwrap(), Document::default(), "{text:?}");
        }
        let named = read::<Document>(b"{\"name\":\"n\"}").unwrap();
        assert_eq!(named, Document { name: "n".to_owned() });
    }

    #[test]
    fn json_is_written_as_go_writes_it() {
        for (given, expected) in [
            ("{  \"foo\": [ 12, 4 ] }", "{\"foo\":[12,4]}"),
            (r#"{"a \" b": " \\" , "c":1.50}"#, r#"{"a \" b":" \\","c":1.50}"#),
            ("\"<a href='x'>&\"", r#""\u003ca href='x'\u003e\u0026""#),
            ("\"\u{2028}\u{2029}\u{2027}\"", "\"\\u2028\\u2029\u{2027}\""),
            (" null\n", "null"),
        ] {
            let written = String::from_utf8(compact(given.as_bytes())).unwrap();
            assert_eq!(written, expected, "{given}");
        }
    }

    #[test]
    fn what_is_no_object_is_malformed() {
        for text in [
            "[]", " [ ]", "[\"n\"]", "[{}]", "[", "\"n\"", "\"\"", "7", "-1.5", "true", "false",
            "null",
        ] {
            let problem = read::<Document>(text.as_bytes()).unwrap_err();
            assert_eq!(problem.code, ErrorCode::MalformedRequest, "{text}");
            assert_eq!(problem.http_status(), 400, "{text}");
            assert!(problem.text.starts_with("failed deserializing HTTP body: "), "{text}");
        }
    }
}
