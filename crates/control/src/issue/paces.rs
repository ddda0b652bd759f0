//! How fast certificates follow each other. Each costs a signature and two transactions, so the holder
//! of one certificate, one pod and one join token have a pace each: whatever one of them asks for,
//! others are served meanwhile.
//!
//! Only what has been proven counts. A stranger that knows the name of an instance or the id of a token
//! takes nothing from its holder.

use std::sync::atomic::{AtomicU64, Ordering};

use tollway_model::ErrorCode;
use tonic::Status;

use crate::connections::Holder;
use crate::pace::Paces;

/// Certificates of one instance by its certificate, or of one pod, in each second after those that are
/// issued at once.
const CERTIFICATES_PER_SECOND: u32 = 1;
/// Uses of one join token, or checks of it, at once and each second after them: replicas of a whole
/// service may share a token, and start together.
const ENROLMENTS_BURST: u32 = 2_000;
const ENROLMENTS_PER_SECOND: u32 = 100;

/// What has been proven, by which requests count together.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Proven {
    Certificate(Holder),
    /// By its UID.
    Pod(String),
    /// By its id.
    Token(String),
}

/// The paces of all that ask for certificates.
#[derive(Debug)]
pub(crate) struct IssuePaces {
    paces: Paces<Proven>,
    certificates_burst: u32,
    refused: AtomicU64,
}

impl IssuePaces {
    /// An instance gets `certificates_burst` certificates at once.
    pub(crate) fn new(certificates_burst: u32) -> Self {
        Self { paces: Paces::default(), certificates_burst, refused: AtomicU64::new(0) }
    }

    /// Counts a request.
    ///
    /// # Errors
    /// `UNAVAILABLE`, by which sidecars try again, if it comes too soon.
    pub(super) fn count(&self, proven: &Proven) -> Result<(), Status> {
        let (whose, burst, per_second) = match proven {
            Proven::Certificate(_) => {
                ("this instance", self.certificates_burst, CERTIFICATES_PER_SECOND)
            }
            Proven::Pod(_) => ("this pod", self.certificates_burst, CERTIFICATES_PER_SECOND),
            Proven::Token(_) => ("this join token", ENROLMENTS_BURST, ENROLMENTS_PER_SECOND),
        };
        if self.paces.allow(proven, burst, per_second) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        let text = format!(
            "{whose} has had {burst} certificates, and gets {per_second} a second now; try again later"
        );
        Err(tollway_wire::with_code(Status::unavailable(text), ErrorCode::ShareExceeded))
    }

    /// How many requests came too soon.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::options::Timing;

    #[tokio::test(start_paused = true)]
    async fn each_holder_has_a_pace_of_its_own_and_replicas_that_share_a_token_start_together() {
        let paces = IssuePaces::new(Timing::default().certificates_burst);
        let issued = |proven: &Proven, asked: u32| {
            (0..asked).filter(|_| paces.count(proven).is_ok()).count()
        };
        let certificate =
            |instance: &str| Proven::Certificate(Holder::new("shop", "web", instance));
        let (pod, token) = (Proven::Pod("a".into()), Proven::Token("a".into()));
        for holder in [&certificate("a"), &certificate("b"), &pod] {
            assert_eq!(issued(holder, 500), 10, "{holder:?}");
        }
        assert_eq!(issued(&token, 5_000), 2_000);
        assert_eq!(issued(&Proven::Token("b".into()), 1), 1, "it is another token");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!([issued(&certificate("a"), 500), issued(&token, 500)], [1, 100]);
        let refused = paces.count(&token).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable, "sidecars try again");
        assert_eq!(tollway_wire::code_of(&refused), Some(ErrorCode::ShareExceeded));
        assert_eq!(paces.refused(), 3 * 490 + 3_000 + 499 + 400 + 1);
    }
}
