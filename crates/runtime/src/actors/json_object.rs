//! Bodies that are one JSON object: registrations of timers and reminders.

use serde::Deserialize;

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
