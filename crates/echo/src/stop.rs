//! Ends a run or a server from another thread, such as a signal handler's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tollway_net::Waker;

/// A request to end, shared by clones.
#[derive(Clone, Default)]
pub struct Stop {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    requested: AtomicBool,
    /// Of the loop that is running.
    waker: Mutex<Option<Waker>>,
}

impl Stop {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the loop to end in order; it wakes at once.
    pub fn request(&self) {
        self.shared.requested.store(true, Ordering::Release);
        if let Some(waker) = &*self.waker() {
            waker.wake();
        }
    }

    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.shared.requested.load(Ordering::Acquire)
    }

    /// Registers the event loop that a request wakes.
    pub fn attach(&self, waker: Waker) {
        *self.waker() = Some(waker);
    }

    fn waker(&self) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.shared.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
