//! What every service of one control plane shares.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tollway_identity::{Authority, Credentials};
use tollway_store::{Store, TransactError};
use tonic::Status;

use crate::app_state::AppState;
use crate::connected::Connected;
use crate::holders::Holders;
use crate::hub::Hub;
use crate::neighbours::Neighbours;
use crate::options::Options;
use crate::placement::Placements;
use crate::places::Places;
use crate::reminders::Reminders;
use crate::standstill::Standstill;
use crate::stores::Stores;

/// Longest wait until a write of one's own is seen in the catalogue.
const VISIBLE_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct Plane {
    pub(crate) options: Options,
    pub(crate) store: Store,
    /// What opens the other stores.
    pub(crate) stores: Stores,
    pub(crate) hub: Arc<Hub>,
    /// State of apps.
    pub(crate) app_state: AppState,
    /// What actors are to be reminded of.
    pub(crate) reminders: Reminders,
    /// Of the fabric.
    pub(crate) neighbours: Neighbours,
    pub(crate) authority: Arc<Authority>,
    /// Which registration holds which lease.
    pub(crate) holders: Holders,
    /// Whether this process may have been deaf.
    pub(crate) standstill: Standstill,
    /// Which host runs which actors.
    pub(crate) placements: Arc<Placements>,
    /// Who may be connected.
    pub(crate) places: Arc<Places>,
    /// Data planes that follow the state now.
    pub(crate) connected: Arc<Connected>,
    /// The control plane's own, renewed and with the current trust.
    pub(crate) credentials: watch::Receiver<Arc<Credentials>>,
    /// Cancelled when the control plane stops.
    pub(crate) stop: CancellationToken,
    /// Every task that must end before the process does.
    pub(crate) tasks: TaskTracker,
    /// Somebody made a token or got a certificate since this was last looked at.
    pub(crate) used: AtomicBool,
}

impl Plane {
    /// Waits until watchers see `revision`.
    pub(crate) async fn visible(&self, revision: u64) {
        // Beyond the timeout the answer is still right, only watchers are late.
        let _ = tokio::time::timeout(VISIBLE_TIMEOUT, self.hub.reached(revision)).await;
    }

    /// Notes that somebody is about to connect.
    pub(crate) fn note_use(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    pub(crate) fn own_credentials(&self) -> Arc<Credentials> {
        self.credentials.borrow().clone()
    }
}

/// The status of a call that the store could not serve.
pub(crate) fn store_status(error: &(dyn Error + 'static)) -> Status {
    let reason = tollway_model::chain(error);
    tracing::error!(%reason, "the store refused");
    let status = Status::unavailable(format!("the control plane's store refused: {reason}"));
    match error.downcast_ref().and_then(TransactError::code) {
        Some(code) => tollway_wire::with_code(status, code),
        None => status,
    }
}

/// Seconds since 1970.
pub(crate) fn unix_now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Milliseconds since 1970.
pub(crate) fn unix_now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
