//! Join tokens, as their holders send them to a control plane.

use tollway_identity::JoinToken;

/// An error never has the secret, so it never repeats what was given.
const ERROR_BYTES: usize = 256;

/// A text as a token.
pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<JoinToken>() {
        Ok(token) => {
            let written = token.to_string();
            let again: JoinToken = written.parse().expect("what was written is read");
            assert_eq!(again.to_string(), written, "one token has one form");
            assert_eq!(again.secret(), token.secret());
            assert!(!format!("{token:?}").contains(&written), "its secret shows");
        }
        Err(error) => assert!(error.to_string().len() <= ERROR_BYTES, "{error}"),
    }
}
