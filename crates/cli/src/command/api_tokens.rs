//! The tokens between an app and its sidecar: from files, or from the variables that Dapr's apps
//! and sidecars read. Neither is a setting, and nothing prints them.

use std::path::PathBuf;

use tollway_identity::{SHARED_TOKEN_BYTES_LIMIT, SharedToken, SharedTokenError};
use tollway_launch::{API_TOKEN_VARIABLE, APP_TOKEN_VARIABLE};
use tollway_model::ErrorCode;
use tollway_net::SecretFile;
use tollway_proxy::Tokens;
use tollway_settings::ApiTokens;

use crate::failure::Failure;

/// Reads them. A variable that is empty gives none.
///
/// # Errors
/// [`Failure`]: a file cannot be read, or what it or a variable holds is no token.
pub(crate) fn tokens(settings: &ApiTokens, files_may_be_open: bool) -> Result<Tokens, Failure> {
    let token = |file: &Option<PathBuf>, variable| {
        let file = file.clone().map(|path| SecretFile::new(path, files_may_be_open));
        token(file.as_ref(), variable)
    };
    Ok(Tokens {
        api: token(&settings.api_token_file, API_TOKEN_VARIABLE)?,
        app: token(&settings.app_token_file, APP_TOKEN_VARIABLE)?,
    })
}

/// Reads them from the variables alone.
///
/// # Errors
/// As [`tokens`].
pub(crate) fn tokens_of_environment() -> Result<Tokens, Failure> {
    tokens(&ApiTokens { api_token_file: None, app_token_file: None }, false)
}

fn token(file: Option<&SecretFile>, variable: &str) -> Result<Option<SharedToken>, Failure> {
    if let Some(file) = file {
        return from_file(file).map(Some);
    }
    let Some(text) = std::env::var_os(variable).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let token = text.to_str().ok_or(SharedTokenError::Character).and_then(SharedToken::new);
    token.map(Some).map_err(|error| unusable(&format!("the token in {variable}"), error))
}

fn from_file(file: &SecretFile) -> Result<SharedToken, Failure> {
    let shown = file.path().display();
    // One byte more than a token and the end of its line may have is enough to have it refused.
    let limit = SHARED_TOKEN_BYTES_LIMIT as u64 + 2;
    let text = file.read_text(limit).map_err(|error| {
        let code = ErrorCode::of_file(&error, ErrorCode::FileUnusable);
        Failure::new(code, format!("cannot read the token in {shown}: {error}"))
    })?;
    SharedToken::new(&text).map_err(|error| unusable(&format!("the token in {shown}"), error))
}

fn unusable(which: &str, error: SharedTokenError) -> Failure {
    Failure::new(ErrorCode::BadConfiguration, format!("{which} cannot be used: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_file(text: &str) -> Result<SharedToken, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        from_file(&SecretFile::new(file.path().to_owned(), false)).map_err(|failure| failure.what)
    }

    #[test]
    fn a_file_holds_one_token_and_the_end_of_its_line() {
        assert!(in_file("sesame\n").unwrap().is(b"sesame"));
        let longest = "x".repeat(SHARED_TOKEN_BYTES_LIMIT);
        assert!(in_file(&format!("{longest}\n")).unwrap().is(longest.as_bytes()));
        for (text, part) in [
            ("", "it is empty"),
            ("one\ntwo", "a character"),
            (&format!("{longest}x"), "more than 4096 bytes"),
            (&format!("{longest}xyz\nmore"), "more than 4096 bytes"),
        ] {
            let refused = in_file(text).unwrap_err();
            assert!(refused.contains(part), "{refused}");
            assert!(!refused.contains("one") && !refused.contains("xyz"), "{refused}");
        }
        let missing = from_file(&SecretFile::new("/nowhere/token".into(), false)).unwrap_err();
        assert!(missing.what.contains("/nowhere/token"), "{}", missing.what);
    }
}
