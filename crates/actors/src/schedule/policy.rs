//! What happens to a firing that failed.

use std::time::Duration;

use crate::schedule::TermsError;
use crate::schedule::terms::interval;

/// Whether an app that could not be called, or that answered with an error, is called again for
/// the same firing. Afterwards the firing counts as done, and the next one comes when it is due.
///
/// A time to wait of less than a millisecond counts as one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FailurePolicy {
    /// It is not.
    Drop,
    /// It is, after this time, and so often; `None`: without end.
    Constant { interval: Duration, max_retries: Option<u32> },
}

/// Three times, a second apart, Dapr's default.
impl Default for FailurePolicy {
    fn default() -> Self {
        Self::Constant { interval: Self::INTERVAL, max_retries: Some(3) }
    }
}

impl FailurePolicy {
    /// Where an interval is not given.
    pub const INTERVAL: Duration = Duration::from_secs(1);
    const SHORTEST: Duration = Duration::from_millis(1);

    /// Reads the interval of a request: a duration as in [`Terms`](crate::schedule::Terms), without months.
    ///
    /// # Errors
    /// [`TermsError`].
    pub fn read_interval(text: &str) -> Result<Duration, TermsError> {
        interval(text)
    }

    /// How long to wait when calls for a firing have failed so often; `None`: it is given up.
    #[must_use]
    pub fn wait_after(&self, failures: u32) -> Option<Duration> {
        match self {
            Self::Drop => None,
            Self::Constant { interval, max_retries } => max_retries
                .is_none_or(|retries| failures <= retries)
                .then_some((*interval).max(Self::SHORTEST)),
        }
    }
}
