//! An error with all its causes, as one text.

use std::error::Error;
use std::fmt::Write as _;

/// The error and its causes on one line: `the store was not opened: permission denied`.
///
/// # Panics
/// Never: writing to a string cannot fail.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        write!(text, ": {error}").expect("writing to a string cannot fail");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the outer")]
    struct Outer(#[source] std::fmt::Error);

    #[test]
    fn causes_follow_their_error() {
        assert_eq!(chain(&Outer(std::fmt::Error)), format!("the outer: {}", std::fmt::Error));
        assert_eq!(chain(&std::fmt::Error), std::fmt::Error.to_string());
    }
}
