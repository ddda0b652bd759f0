//! Policies on their way from the control plane to the data-plane threads, and the proof that
//! they have arrived.

use std::sync::Arc;

use tokio::sync::watch;
use tollway_routing::PolicySet;

/// The policies of the own service. Each holder drops its copy once it has applied them; when the
/// last copy is dropped, they count as applied.
#[derive(Clone, Debug)]
pub struct PolicyUpdate {
    pub(crate) set: Arc<PolicySet>,
    _receipt: Arc<Receipt>,
}

impl PolicyUpdate {
    /// The `number`-th set of this process; `applied` is raised to it.
    pub(super) fn new(set: PolicySet, number: u64, applied: watch::Sender<u64>) -> Self {
        Self { set: Arc::new(set), _receipt: Arc::new(Receipt::new(number, applied)) }
    }

    /// Policies whose application is not waited for.
    #[cfg(test)]
    pub(crate) fn unobserved(set: PolicySet) -> Self {
        Self::new(set, 1, watch::Sender::new(0))
    }
}

/// Two are the same if they are copies of one.
impl PartialEq for PolicyUpdate {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.set, &other.set)
    }
}
impl Eq for PolicyUpdate {}

/// The proof that a change has reached every data thread: it is given when the last copy is dropped.
#[derive(Debug)]
pub(super) struct Receipt {
    number: u64,
    applied: watch::Sender<u64>,
}

impl Receipt {
    /// For the `number`-th change of this process; `applied` is raised to it.
    pub(super) fn new(number: u64, applied: watch::Sender<u64>) -> Self {
        Self { number, applied }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.applied.send_if_modified(|applied| {
            let should_log = self.number > *applied;
            *applied = (*applied).max(self.number);
            should_log
        });
    }
}

/// Goes to each data thread behind states of services whose application is waited for, and is dropped
/// there.
#[derive(Clone, Debug, Default)]
pub struct Applied(Option<Arc<Receipt>>);

impl Applied {
    pub(super) fn at(receipt: Receipt) -> Self {
        Self(Some(Arc::new(receipt)))
    }

    /// Whether anything waits for it.
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.is_some()
    }
}

/// What waits for an application is no part of a change.
impl PartialEq for Applied {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Applied {}

#[cfg(test)]
mod tests {
    use tollway_model::{Label, ServiceName};

    use super::*;

    fn set() -> PolicySet {
        let label = |text| Label::new(text).unwrap();
        let own = ServiceName::parse_in("stock", &label("shop"), &label("west")).unwrap();
        PolicySet::new(own, [])
    }

    #[test]
    fn policies_count_as_applied_when_the_last_copy_has_gone() {
        let applied = watch::Sender::new(0);
        let first = PolicyUpdate::new(set(), 1, applied.clone());
        let threads = [first.clone(), first];
        for (n, copy) in threads.into_iter().enumerate() {
            assert_eq!(*applied.borrow(), 0, "{n}");
            drop(copy);
        }
        assert_eq!(*applied.borrow(), 1);
    }

    #[test]
    fn an_older_set_that_is_late_takes_nothing_back() {
        let applied = watch::Sender::new(0);
        let first = PolicyUpdate::new(set(), 1, applied.clone());
        drop(PolicyUpdate::new(set(), 2, applied.clone()));
        drop(first);
        assert_eq!(*applied.borrow(), 2);
    }
}
