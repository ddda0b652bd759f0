//! The traffic policies of the own service on their way to the data threads.

use std::sync::Arc;
use std::time::Instant;

use tollway_model::ServiceName;
use tollway_model::traffic_policy::{Shedding, TrafficParts};

use super::policies::Receipt;
use crate::inbound::ReplicaRates;

/// What the traffic policies of the own service limit at this replica. Each data thread drops its copy
/// once it has applied them; when the last copy is dropped, they count as applied.
#[derive(Clone, Debug)]
pub struct TrafficUpdate {
    pub(crate) limits: Option<Arc<ReplicaRates>>,
    pub(crate) shedding: Option<Shedding>,
    /// Those in shadow mode.
    pub(crate) shadow: Option<Arc<ReplicaRates>>,
    _receipt: Option<Arc<Receipt>>,
}

/// Two are the same if they are copies of one.
impl PartialEq for TrafficUpdate {
    fn eq(&self, other: &Self) -> bool {
        let ends =
            |of: &Self| [&of.limits, &of.shadow].map(|limits| limits.as_ref().map(Arc::as_ptr));
        ends(self) == ends(other) && self.shedding == other.shedding
    }
}
impl Eq for TrafficUpdate {}

impl TrafficUpdate {
    /// The limits of `home`, whose policies come to `parts`.
    pub(super) fn new(parts: &TrafficParts, home: &ServiceName, receipt: Receipt) -> Self {
        Self { _receipt: Some(Arc::new(receipt)), ..Self::unobserved(parts, home, Instant::now()) }
    }

    /// Limits whose application is not waited for.
    pub(crate) fn unobserved(parts: &TrafficParts, home: &ServiceName, now: Instant) -> Self {
        let limits = ReplicaRates::new(parts, home, now).map(Arc::new);
        let shadow = ReplicaRates::in_shadow(parts, home, now).map(Arc::new);
        Self { limits, shadow, shedding: parts.shedding, _receipt: None }
    }
}
