//! Outcomes of reminders that fired and are not stored yet. A shard is given back once they are, so that
//! its next host does not fire them again.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tollway_actors::placement::{Epoch, Shard};

/// Longest time for which a shard waits until the outcomes of its reminders are stored.
pub(crate) const STORED_WITHIN: Duration = Duration::from_secs(2);

/// A shard of an actor type.
type OfType = (Arc<str>, Shard);

/// How many outcomes each shard has that are not stored.
#[derive(Default)]
pub(super) struct Outcomes {
    unstored: Mutex<HashMap<OfType, usize>>,
    fewer: Notify,
    /// Shards that wait to be given back.
    waiting: AtomicUsize,
}

/// A reminder that may have fired, and whose outcome is stored when this is dropped.
pub(crate) struct Unstored {
    of: Arc<Outcomes>,
    shard: OfType,
    /// Of the grant under which it fires.
    pub(crate) epoch: Epoch,
}

impl Drop for Unstored {
    fn drop(&mut self) {
        let mut unstored = self.of.unstored();
        if let Some(count) = unstored.get_mut(&self.shard) {
            *count -= 1;
            if *count == 0 {
                unstored.remove(&self.shard);
            }
        }
        drop(unstored);
        self.of.fewer.notify_waiters();
    }
}

impl Outcomes {
    pub(super) fn begin(self: &Arc<Self>, shard: OfType, epoch: Epoch) -> Unstored {
        *self.unstored().entry(shard.clone()).or_default() += 1;
        Unstored { of: Arc::clone(self), shard, epoch }
    }

    /// Whether a shard has none.
    pub(super) fn are_stored(&self, shard: &OfType) -> bool {
        !self.unstored().contains_key(shard)
    }

    /// Waits until a shard has none, for [`STORED_WITHIN`] at most, and then gives it back.
    pub(super) fn then(self: &Arc<Self>, shard: OfType, give_back: impl FnOnce() + Send + 'static) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let outcomes = Arc::clone(self);
        tokio::spawn(async move {
            let until_stored = async {
                loop {
                    let mut fewer = pin!(outcomes.fewer.notified());
                    fewer.as_mut().enable();
                    if outcomes.are_stored(&shard) {
                        return;
                    }
                    fewer.await;
                }
            };
            // After that the next host may fire a reminder again.
            let _ = tokio::time::timeout(STORED_WITHIN, until_stored).await;
            outcomes.waiting.fetch_sub(1, Ordering::Relaxed);
            give_back();
        });
    }

    /// Whether a shard waits to be given back.
    pub(super) fn hold_up_a_shard(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn unstored(&self) -> MutexGuard<'_, HashMap<OfType, usize>> {
        self.unstored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
