//! The tasks that a control plane runs beside its servers, and the signal that ends them.

use std::future::Future;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Clones share the tasks and the signal.
#[derive(Clone, Default, Debug)]
pub(crate) struct Background {
    /// Every task that must end before the process does.
    pub(crate) tasks: TaskTracker,
    /// Cancelled when the control plane stops.
    pub(crate) stop: CancellationToken,
}

impl Background {
    /// Runs a task that ends by itself.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.tasks.spawn(task)
    }

    /// Runs a task, and drops it when the control plane stops.
    pub(crate) fn spawn_until_stop(&self, task: impl Future<Output: Send> + Send + 'static) {
        self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(task));
    }
}
