//! The report of a result file of any kind that is read here.

use thiserror::Error;

use crate::document::{Document, DocumentError};
use crate::{page, text};

/// A result that was read: an experiment, a load run, a file of Fortio's.
pub struct Report(Document);

/// Why a text is no result.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct ReadError(#[from] DocumentError);

impl Report {
    /// # Errors
    /// [`ReadError`] when the text is of no kind that is read here, or broken.
    pub fn from_json(text: &str) -> Result<Self, ReadError> {
        Ok(Self(Document::from_json(text)?))
    }

    /// One HTML file that opens from disk and fetches nothing.
    #[must_use]
    pub fn html(&self) -> String {
        match &self.0 {
            Document::Experiment(record) => page::html(record),
            Document::Run(file) => page::run_html(file),
        }
    }

    /// Text for a terminal of that width; see [`crate::terminal`].
    #[must_use]
    pub fn terminal(&self, width: usize, color: bool) -> String {
        match &self.0 {
            Document::Experiment(record) => text::terminal(record, width, color),
            Document::Run(file) => text::run(file, width, color),
        }
    }
}
