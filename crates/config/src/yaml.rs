//! YAML that a user writes, read strictly; each mistake has its line and column.
//!
//! Unknown fields, repeated keys and values of the wrong type are refused: a type that is read here
//! has the attribute `#[serde(deny_unknown_fields)]`. Messages have the form
//! `FILE:LINE:COLUMN: what is wrong`, which editors understand.

use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_saphyr::{Error, MessageFormatter, Options, UserMessageFormatter};
use tollway_model::ErrorCode;

use crate::suggest::unknown;

/// Largest file that is read, in bytes.
pub const YAML_FILE_LIMIT_BYTES: u64 = 1024 * 1024;
/// Documents in one file.
const DOCUMENTS_LIMIT: usize = 1000;

/// A mistake in a YAML text, with its position.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{source_name}{}: {what}", position(*line, *column))]
pub struct YamlError {
    /// The file, or another name of the text.
    pub source_name: String,
    /// Counted from 1; 0 for a mistake without a position.
    pub line: u64,
    pub column: u64,
    /// What is wrong, and after `; ` what to do.
    pub what: String,
}

/// All mistakes of one or several texts. Each is one line of the message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct Mistakes(pub Vec<YamlError>);

/// Why a file gave no text.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read {path}")]
    Read { path: String, source: std::io::Error },
    #[error("{path} has more than {YAML_FILE_LIMIT_BYTES} bytes, too many for a file of settings")]
    TooLarge { path: String },
}

impl FileError {
    /// The code of the failure.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Read { source, .. } => ErrorCode::of_file(source, ErrorCode::FileUnusable),
            Self::TooLarge { .. } => ErrorCode::BadConfiguration,
        }
    }
}

/// Reads the one document of `text`; `source` names the text in errors. A text without a
/// document is an empty mapping.
///
/// # Errors
/// [`YamlError`] for the first mistake.
pub fn parse<T: DeserializeOwned>(text: &str, source: &str) -> Result<T, YamlError> {
    serde_saphyr::from_str_with_options(text, strict()).map_err(|error| located(&error, source))
}

/// Reads every document of `text`, which `---` separates. Empty ones are left out.
///
/// # Errors
/// [`YamlError`] for the first mistake.
pub fn parse_all<T: DeserializeOwned>(text: &str, source: &str) -> Result<Vec<T>, YamlError> {
    serde_saphyr::from_multiple_with_options(text, strict())
        .map_err(|error| located(&error, source))
}

/// The text of a file; `-` is standard input.
///
/// # Errors
/// [`FileError`] when it cannot be read, is not UTF-8 or is too large.
pub fn read_file(path: &Path) -> Result<String, FileError> {
    let bytes = read_bytes(path)?;
    String::from_utf8(bytes).map_err(|error| no_text(path, error))
}

/// The content of a file; `-` is standard input.
///
/// # Errors
/// [`FileError`] when it cannot be read or is too large.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>, FileError> {
    let shown = || path.display().to_string();
    let failed = |source| FileError::Read { path: shown(), source };
    let mut bytes = Vec::new();
    let limit = YAML_FILE_LIMIT_BYTES + 1;
    if path == Path::new("-") {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes).map_err(failed)?;
    } else {
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    }
    if bytes.len() as u64 > YAML_FILE_LIMIT_BYTES {
        return Err(FileError::TooLarge { path: shown() });
    }
    Ok(bytes)
}

/// The failure of a file whose bytes are no text.
pub(crate) fn no_text(
    path: &Path,
    why: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> FileError {
    let source = std::io::Error::new(std::io::ErrorKind::InvalidData, why);
    FileError::Read { path: path.display().to_string(), source }
}

fn strict() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_documents: DOCUMENTS_LIMIT },
        merge_keys: serde_saphyr::MergeKeyPolicy::Error,
        with_snippet: false,
    }
}

fn position(line: u64, column: u64) -> String {
    if line == 0 { String::new() } else { format!(":{line}:{column}") }
}

fn lines(mistakes: &[YamlError]) -> String {
    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn located(error: &Error, source: &str) -> YamlError {
    let at = error.location();
    YamlError {
        source_name: source.to_owned(),
        line: at.map_or(0, |at| at.line()),
        column: at.map_or(0, |at| at.column()),
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
        Error::ExpectedMappingEndAfterEnumVariantValue { .. } => {
            "a further field here excludes the one before; keep one".to_owned()
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
    struct Part {
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
        parse::<Part>(text, "part.yaml").unwrap_err().to_string()
    }

    #[test]
    fn a_document_is_read() {
        let text = "# a part\nlisten: 127.0.0.1:80\nthreads: 2\nupstreams: [5432=db]\n";
        let part: Part = parse(text, "part.yaml").unwrap();
        assert_eq!((part.threads, part.upstreams), (2, vec!["5432=db".to_owned()]));
    }

    #[test]
    fn a_mistake_has_its_position_and_a_correction() {
        let check = |text: &str, message: &str| assert_eq!(refusal(text), message);
        check(
            "listen: 127.0.0.1:80\nthread: 2\n",
            "part.yaml:2:1: unknown field `thread`; did you mean `threads`?",
        );
        check(
            "listen: 127.0.0.1:80\ncolour: red\n",
            "part.yaml:2:1: unknown field `colour`; expected one of listen, threads, egress, \
             upstreams",
        );
        check(
            "listen: 127.0.0.1:80\negress: gatewy\n",
            "part.yaml:2:9: unknown value `gatewy`; did you mean `gateway`?",
        );
        check("threads: 2\n", "part.yaml:1:1: the field `listen` is missing");
        check(
            "listen: 127.0.0.1:80\nthreads: 1\nthreads: 2\n",
            "part.yaml:3:1: `threads` is given twice; keep one",
        );
        check("listen: 127.0.0.1\n", "part.yaml:1:9: invalid socket address syntax");
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
            assert!(message.starts_with("part.yaml"), "{message}");
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
        assert!(matches!(read_file(file.path()), Err(FileError::TooLarge { .. })));
        let missing = read_file(Path::new("/nowhere/x.yaml")).unwrap_err().to_string();
        assert_eq!(missing, "cannot read /nowhere/x.yaml");
    }
}
