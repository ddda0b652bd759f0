//! The lines of `tollway run` on standard error. They begin with `tollway: `, which the lines of
//! the app do not.

use std::error::Error;

use tollway_net::process::Ending;

use crate::local_control::LocalControl;

/// Prints notes and errors.
#[derive(Clone, Copy, Debug)]
pub struct Console {
    quiet: bool,
    /// Words an error: lines with what failed and what to do.
    words: fn(&(dyn Error + 'static)) -> String,
}

impl Console {
    /// Prints errors in the words of `words`; prints nothing else if `quiet`.
    pub fn new(quiet: bool, words: fn(&(dyn Error + 'static)) -> String) -> Self {
        Self { quiet, words }
    }

    /// Prints why something failed.
    pub(crate) fn failure(self, error: &(dyn Error + 'static)) {
        self.error((self.words)(error).trim_end());
    }

    pub(crate) fn note(self, text: &str) {
        if !self.quiet {
            self.error(text);
        }
    }

    pub(crate) fn error(self, text: &str) {
        for line in text.lines() {
            eprintln!("tollway: {line}");
        }
    }

    pub(crate) fn control_plane(self, local: &LocalControl) {
        if local.started {
            self.note(&format!("local control plane started at {}", local.address()));
        }
        if let Some(skew) = local.version_skew() {
            self.error(&skew);
        }
    }
}

/// A sentence about the end of the app of this name.
pub(crate) fn ended(ending: Ending, app: &str) -> String {
    match ending {
        Ending::Code(0) => format!("{app} has ended"),
        Ending::Code(code) => format!("{app} has ended with code {code}"),
        Ending::Signal(signal) => format!("{app} was ended by signal {signal}"),
    }
}
