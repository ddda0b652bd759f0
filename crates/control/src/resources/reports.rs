//! What waits to be reported to the cluster: the last status of each resource.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tracing::{debug, warn};

use super::{REPORT_WITHIN, REPORTED_AGAIN_AFTER, ResourceName, ResourceStatus, Resources};

/// A later status of a resource takes the place of the one that waits, so one that changes often waits as any
/// other.
#[derive(Default)]
pub(super) struct Reports {
    waiting: Mutex<Waiting>,
    added: Notify,
}

#[derive(Default)]
struct Waiting {
    statuses: HashMap<ResourceName, ResourceStatus>,
    /// In the order in which they came.
    order: VecDeque<ResourceName>,
}

impl Reports {
    /// Never waits.
    pub(super) fn add(&self, status: ResourceStatus) {
        let mut waiting = self.lock();
        let name = status.name.clone();
        if waiting.statuses.insert(name.clone(), status).is_none() {
            waiting.order.push_back(name);
        }
        drop(waiting);
        self.added.notify_one();
    }

    /// Puts back what could not be reported, unless a later one waits.
    fn put_back(&self, status: ResourceStatus) {
        let mut waiting = self.lock();
        if !waiting.statuses.contains_key(&status.name) {
            waiting.order.push_back(status.name.clone());
            waiting.statuses.insert(status.name.clone(), status);
        }
    }

    fn next(&self) -> Option<ResourceStatus> {
        let mut waiting = self.lock();
        let name = waiting.order.pop_front()?;
        waiting.statuses.remove(&name)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A panic in another holder of the lock leaves both usable.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports one after the other. What fails is reported again later.
    pub(super) async fn send_to(&self, resources: Arc<dyn Resources>) {
        let mut is_away = false;
        loop {
            let Some(status) = self.next() else {
                self.added.notified().await;
                continue;
            };
            let reported = tokio::time::timeout(REPORT_WITHIN, resources.report(&status)).await;
            let error = match reported {
                Ok(Ok(())) => {
                    is_away = false;
                    continue;
                }
                Ok(Err(error)) => error,
                Err(_) => format!("the API server does not answer within {REPORT_WITHIN:?}"),
            };
            if is_away {
                debug!(resource = %status.name, error, "its status is not written yet");
            } else {
                is_away = true;
                warn!(resource = %status.name, error, "the status of custom resources cannot be written; they are in effect all the same, and it is tried again");
            }
            self.put_back(status);
            tokio::time::sleep(REPORTED_AGAIN_AFTER).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tollway_model::ObjectKind;

    use super::super::{ResourceKind, Verdict};
    use super::*;

    fn status(name: &str, generation: i64) -> ResourceStatus {
        let kind = ResourceKind::Own(ObjectKind::Route);
        let name = ResourceName { kind, namespace: "shop".into(), name: name.into() };
        let verdict = Verdict::Accepted { revision: 1, sidecars: 1, lagging: None };
        ResourceStatus { name, generation, verdict }
    }

    #[test]
    fn the_last_status_of_each_waits_in_the_order_of_the_first() {
        let reports = Reports::default();
        for (name, generation) in [("a", 1), ("b", 1), ("a", 2), ("a", 3)] {
            reports.add(status(name, generation));
        }
        assert_eq!(reports.next(), Some(status("a", 3)));
        // It fails, and a later one has come meanwhile.
        reports.add(status("a", 4));
        reports.put_back(status("a", 3));
        reports.put_back(status("c", 1));
        let rest: Vec<_> = std::iter::from_fn(|| reports.next()).collect();
        assert_eq!(rest, [status("b", 1), status("a", 4), status("c", 1)]);
    }
}
