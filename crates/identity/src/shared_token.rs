//! Tokens that an app and its sidecar share, so that each recognises the other. The process that
//! starts both makes them; they are compared byte by byte. The command line decides where they come
//! from.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use thiserror::Error;

/// Longest token, in bytes.
pub const SHARED_TOKEN_BYTES_LIMIT: usize = 4096;

/// Why a text is no token. The text itself is never repeated: it is a secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SharedTokenError {
    #[error("it is empty")]
    Empty,
    #[error("it has more than {SHARED_TOKEN_BYTES_LIMIT} bytes")]
    TooLong,
    #[error("it has a character that no header field can hold; write it in visible ASCII")]
    Character,
}

/// A token. `Debug` hides it.
#[derive(Clone)]
pub struct SharedToken(Arc<str>);

impl SharedToken {
    /// Blanks and line ends around the token do not belong to it.
    ///
    /// # Errors
    /// [`SharedTokenError`].
    pub fn new(text: &str) -> Result<Self, SharedTokenError> {
        let text = text.trim_ascii();
        if text.is_empty() {
            return Err(SharedTokenError::Empty);
        }
        if text.len() > SHARED_TOKEN_BYTES_LIMIT {
            return Err(SharedTokenError::TooLong);
        }
        if !text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(SharedTokenError::Character);
        }
        Ok(Self(text.into()))
    }

    /// Whether `shown` is this token. The time that it takes shows nothing but the length.
    #[must_use]
    pub fn is(&self, shown: &[u8]) -> bool {
        verify_slices_are_equal(self.0.as_bytes(), shown).is_ok()
    }

    /// The token itself, for the process that shares it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SharedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedToken(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_itself_and_nothing_else() {
        let token = SharedToken::new(" open sesame\n").unwrap();
        assert!(token.is(b"open sesame"));
        for other in [&b""[..], b"open", b"open sesame ", b"Open sesame", b"open sesame2"] {
            assert!(!token.is(other), "{other:?}");
        }
    }

    #[test]
    fn what_no_field_can_hold_is_refused_and_never_repeated() {
        let long = "x".repeat(SHARED_TOKEN_BYTES_LIMIT + 1);
        for (text, refusal) in [
            (" \n", SharedTokenError::Empty),
            (long.as_str(), SharedTokenError::TooLong),
            ("secret\r\nx: y", SharedTokenError::Character),
            ("sécret", SharedTokenError::Character),
        ] {
            assert_eq!(SharedToken::new(text).unwrap_err(), refusal);
        }
        let longest = SharedToken::new(&long[1..]).unwrap();
        assert_eq!(longest.reveal(), &long[1..]);
        let token = SharedToken::new("secret").unwrap();
        assert_eq!(format!("{token:?}"), "SharedToken(hidden)");
        assert!(!format!("{token:?}").contains("secret"));
    }
}
