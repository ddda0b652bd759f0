//! Connections of a small server: bounded in number and in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};

/// The connections that are open, at most so many. For one too many, the one without a request for
/// longest ends, so that connections that do nothing cannot hold a port. All end when it is dropped.
#[derive(Debug)]
pub struct Bounded {
    limit: usize,
    life: Duration,
    served: JoinSet<()>,
    /// Each with the number of its last request.
    open: Vec<(AbortHandle, Arc<AtomicU64>)>,
    /// Connections and requests so far.
    count: Arc<AtomicU64>,
}

impl Bounded {
    /// For at most `limit` connections, each for at most `life`.
    #[must_use]
    pub fn new(limit: usize, life: Duration) -> Self {
        let (served, open, count) = (JoinSet::new(), Vec::new(), Arc::default());
        Self { limit, life, served, open, count }
    }

    /// Serves a connection in a task of its own. What `serving` makes is to call its argument for each
    /// request.
    pub fn serve<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        serving: impl FnOnce(Box<dyn Fn() + Send + Sync>) -> F,
    ) {
        while self.served.try_join_next().is_some() {}
        self.open.retain(|(task, _)| !task.is_finished());
        if self.open.len() >= self.limit {
            let last_request = |at: &usize| self.open[*at].1.load(Ordering::Relaxed);
            if let Some(quietest) = (0..self.open.len()).min_by_key(last_request) {
                self.open.swap_remove(quietest).0.abort();
            }
        }
        let count = Arc::clone(&self.count);
        let last = Arc::new(AtomicU64::new(count.fetch_add(1, Ordering::Relaxed)));
        let noted = Arc::clone(&last);
        let note = move || noted.store(count.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let (life, serving) = (self.life, serving(Box::new(note)));
        let task = self.served.spawn(async move {
            let _ = tokio::time::timeout(life, serving).await;
        });
        self.open.push((task, last));
    }
}
