//! The egress of the own app on its way to the data threads.

use std::sync::Arc;

use super::policies::Receipt;
use crate::egress::Present;

/// What the app may call out of the mesh. Each data thread drops its copy once it has applied it; when the
/// last copy is dropped, it counts as applied.
#[derive(Clone, Debug)]
pub struct EgressUpdate {
    pub(crate) present: Arc<Present>,
    _receipt: Option<Arc<Receipt>>,
}

/// Two are the same if they are copies of one.
impl PartialEq for EgressUpdate {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.present, &other.present)
    }
}
impl Eq for EgressUpdate {}

impl EgressUpdate {
    pub(super) fn new(present: Present, receipt: Receipt) -> Self {
        Self { present: Arc::new(present), _receipt: Some(Arc::new(receipt)) }
    }

    /// Rules whose application is not waited for.
    #[cfg(test)]
    pub(crate) fn unobserved(rules: tollway_routing::EgressRules) -> Self {
        Self { present: Arc::new(Present::new(rules)), _receipt: None }
    }
}
