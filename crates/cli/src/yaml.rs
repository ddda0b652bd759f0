//! YAML that a user writes: read strictly, and every mistake with its place.
//!
//! Unknown fields, doubled keys and values of the wrong kind are refused: a type read here should
//! say `#[serde(deny_unknown_fields)]`. Messages read `FILE:LINE:COLUMN: what is wrong`, so that
//! editors and people find the place.

use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_saphyr::{Error, MessageFormatter, Options, UserMessageFormatter};
use thiserror::Error;

/// Largest file that is read, in bytes.
pub(crate) const YAML_FILE_LIMIT_BYTES: u64 = 1024 * 1024;
/// Documents in one file.
const DOCUMENTS_LIMIT: usize = 1000;
/// Least likeness of a name that is suggested for an unknown one, from 0 to 1.
const LIKENESS: f64 = 0.6;

/// A mistake in a YAML text and where it is.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{source_name}{}: {what}", place(*line, *column))]
pub(crate) struct YamlError {
    /// The file, or what else the text is called.
    pub(crate) source_name: String,
    /// Counted from 1; 0 where there is no place to point at.
    pub(crate) line: u64,
    pub(crate) column: u64,
    pub(crate) what: String,
}

/// Why a file gave no text.
#[derive(Debug, Error)]
pub(crate) enum YamlFileError {
    #[error("cannot read {path}")]
    Read { path: String, source: std::io::Error },
    #[error("{path} has more than {YAML_FILE_LIMIT_BYTES} bytes, too many for a file of settings")]
    TooLarge { path: String },
}

/// Reads the one document of `text`; `source` names the text in errors. A text without a
/// document is an empty mapping.
///
/// # Errors
/// [`YamlError`] for the first mistake.
pub(crate) fn parse<T: DeserializeOwned>(text: &str, source: &str) -> Result<T, YamlError> {
    serde_saphyr::from_str_with_options(text, strict()).map_err(|error| located(&error, source))
}

/// Reads every document of `text`, which `---` separates. Empty ones are left out.
///
/// # Errors
/// [`YamlError`] for the first mistake.
pub(crate) fn parse_all<T: DeserializeOwned>(
    text: &str,
    source: &str,
) -> Result<Vec<T>, YamlError> {
    serde_saphyr::from_multiple_with_options(text, strict())
        .map_err(|error| located(&error, source))
}

/// The text of a file; `-` is standard input.
///
/// # Errors
/// [`YamlFileError`] when it cannot be read, is not UTF-8 or is too large.
pub(crate) fn read_file(path: &Path) -> Result<String, YamlFileError> {
    let shown = || path.display().to_string();
    let failed = |source| YamlFileError::Read { path: shown(), source };
    let mut text = String::new();
    let limit = YAML_FILE_LIMIT_BYTES + 1;
    if path == Path::new("-") {
        std::io::stdin().lock().take(limit).read_to_string(&mut text).map_err(failed)?;
    } else {
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(limit).read_to_string(&mut text).map_err(failed)?;
    }
    if text.len() as u64 > YAML_FILE_LIMIT_BYTES {
        return Err(YamlFileError::TooLarge { path: shown() });
    }
    Ok(text)
}

/// `unknown KIND NAME`, with the name that was probably meant, or else all that are known.
pub(crate) fn unknown<'a>(
    kind: &str,
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(name, &known) {
        Some(meant) => format!("unknown {kind} `{name}`; did you mean `{meant}`?"),
        None if known.is_empty() => format!("unknown {kind} `{name}`; none is expected here"),
        None => format!("unknown {kind} `{name}`; expected one of {}", known.join(", ")),
    }
}

/// The name that was probably meant, if any is like it.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let likeness = |candidate: &str| strsim::normalized_damerau_levenshtein(name, candidate);
    let best = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) >= LIKENESS).then_some(best)
}

fn strict() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_documents: DOCUMENTS_LIMIT },
        merge_keys: serde_saphyr::MergeKeyPolicy::Error,
        with_snippet: false,
    }
}

fn place(line: u64, column: u64) -> String {
    if line == 0 { String::new() } else { format!(":{line}:{column}") }
}

fn located(error: &Error, source: &str) -> YamlError {
    let place = error.location();
    YamlError {
        source_name: source.to_owned(),
        line: place.map_or(0, |place| place.line()),
        column: place.map_or(0, |place| place.column()),
        what: explain(error),
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the mistakes people make are reworded, the library words the rest"
)]
fn explain(error: &Error) -> String {
    match error.without_snippet() {
        Error::SerdeUnknownField { field, expected, .. } => {
            unknown("field", field, expected.iter().copied())
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            unknown("value", variant, expected.iter().copied())
        }
        Error::SerdeMissingField { field, .. } => format!("the field `{field}` is missing"),
        Error::SerdeInvalidType { unexpected, expected, .. }
        | Error::SerdeInvalidValue { unexpected, expected, .. } => {
            format!("expected {expected}, found {unexpected}")
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("`{key}` is given twice; keep one")
        }
        Error::Message { msg, .. } => msg.clone(),
        other => UserMessageFormatter.format_message(other).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(serde::Deserialize, Debug, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Door {
        listen: std::net::SocketAddr,
        #[serde(default)]
        threads: u16,
        #[serde(default)]
        egress: Egress,
        #[serde(default)]
        upstreams: Vec<String>,
    }

    #[derive(serde::Deserialize, Debug, PartialEq, Default)]
    #[serde(rename_all = "snake_case")]
    enum Egress {
        #[default]
        Direct,
        Gateway,
    }

    fn refusal(text: &str) -> String {
        parse::<Door>(text, "door.yaml").unwrap_err().to_string()
    }

    #[test]
    fn a_document_is_read() {
        let text = "# a door\nlisten: 127.0.0.1:80\nthreads: 2\nupstreams: [5432=db]\n";
        let door: Door = parse(text, "door.yaml").unwrap();
        assert_eq!((door.threads, door.upstreams), (2, vec!["5432=db".to_owned()]));
    }

    #[test]
    fn a_mistake_says_where_it_is_and_what_would_be_right() {
        let check = |text: &str, message: &str| assert_eq!(refusal(text), message);
        check(
            "listen: 127.0.0.1:80\nthread: 2\n",
            "door.yaml:2:1: unknown field `thread`; did you mean `threads`?",
        );
        check(
            "listen: 127.0.0.1:80\ncolour: red\n",
            "door.yaml:2:1: unknown field `colour`; expected one of listen, threads, egress, \
             upstreams",
        );
        check(
            "listen: 127.0.0.1:80\negress: gatewy\n",
            "door.yaml:2:9: unknown value `gatewy`; did you mean `gateway`?",
        );
        check("threads: 2\n", "door.yaml:1:1: the field `listen` is missing");
        check(
            "listen: 127.0.0.1:80\nthreads: 1\nthreads: 2\n",
            "door.yaml:3:1: `threads` is given twice; keep one",
        );
        check("listen: 127.0.0.1\n", "door.yaml:1:9: invalid socket address syntax");
    }

    #[test]
    fn what_is_no_document_of_this_kind_is_refused() {
        for text in [
            "",
            "listen: 127.0.0.1:80\nthreads: many\n",
            "- a\n- b\n",
            "listen: [127.0.0.1:80\n",
            "listen: 127.0.0.1:80\n---\nlisten: 127.0.0.1:81\n",
            "a: &a {x: 1}\nb: *c\n",
            "\u{0}",
            "x: &a [*a]\n",
        ] {
            let message = refusal(text);
            assert!(message.starts_with("door.yaml"), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn several_documents_are_read_and_counted() {
        let text = "a: 1\n---\nb: 2\n---\n";
        let documents: Vec<BTreeMap<String, u32>> = parse_all(text, "two.yaml").unwrap();
        assert_eq!(documents.len(), 2);
        let wrong = parse_all::<BTreeMap<String, u32>>("a: 1\n---\nb: x\n", "two.yaml");
        assert!(wrong.unwrap_err().to_string().starts_with("two.yaml:3:4: "));
        let many = "a: 1\n---\n".repeat(DOCUMENTS_LIMIT + 1);
        assert!(parse_all::<BTreeMap<String, u32>>(&many, "many.yaml").is_err());
    }

    #[test]
    fn aliases_cannot_blow_up_a_document() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let before = format!("*a{}", level - 1);
            text += &format!("a{level}: &a{level} [{}]\n", vec![before; 10].join(", "));
        }
        assert!(parse::<serde_json::Value>(&text, "bomb.yaml").is_err());
    }

    #[test]
    fn a_file_that_is_too_large_is_refused_unread() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(YAML_FILE_LIMIT_BYTES * 100).unwrap();
        assert!(matches!(read_file(file.path()), Err(YamlFileError::TooLarge { .. })));
        let missing = read_file(Path::new("/nowhere/x.yaml")).unwrap_err().to_string();
        assert_eq!(missing, "cannot read /nowhere/x.yaml");
    }
}
