//! Routes on their way from the control plane to the data threads, compiled once for all of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tollway_identity::Credentials;
use tollway_model::route::RetryBudget;
use tollway_model::{Caller, ServiceName, ServiceUpdate, chain};
use tollway_routing::{RetryCounts, RouteSet};
use tracing::error;

use super::policies::Receipt;

/// The routes of one service, and what all data threads have retried by them.
#[derive(Debug)]
pub struct ServiceRoutes {
    set: RouteSet,
    retries: Mutex<RetryCounts>,
}

impl ServiceRoutes {
    pub(crate) fn new(set: RouteSet) -> Self {
        Self { set, retries: Mutex::new(RetryCounts::new(Instant::now())) }
    }

    pub(crate) fn set(&self) -> &RouteSet {
        &self.set
    }

    /// Counts a request of a rule that retries.
    pub(crate) fn note_request(&self, now: Instant) {
        self.retries().note_request(now);
    }

    /// Whether the budget has one more retry; it is counted if so.
    pub(crate) fn take_retry(&self, budget: RetryBudget, now: Instant) -> bool {
        self.retries().take_retry(budget, now)
    }

    fn retries(&self) -> MutexGuard<'_, RetryCounts> {
        self.retries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The routes of one service, as they hold for the app beside this sidecar. Each data thread drops its
/// copy once it has applied them; when the last copy is dropped, they count as applied.
#[derive(Clone, Debug)]
pub struct RoutesUpdate {
    pub(crate) service: ServiceName,
    /// `None` if no route holds: requests go to the service as they are.
    pub(crate) routes: Option<Arc<ServiceRoutes>>,
    _receipt: Option<Arc<Receipt>>,
}

/// Two are the same if they are copies of one.
impl PartialEq for RoutesUpdate {
    fn eq(&self, other: &Self) -> bool {
        let ends = [self, other].map(|of| of.routes.as_ref().map(Arc::as_ptr));
        self.service == other.service && ends[0] == ends[1]
    }
}
impl Eq for RoutesUpdate {}

impl RoutesUpdate {
    /// Compiles the routes that came with the state of a service, for the app `home`.
    pub(super) fn new(
        update: &ServiceUpdate,
        home: &ServiceName,
        credentials: &Credentials,
        receipt: Receipt,
    ) -> Self {
        let caller = Caller { spiffe: credentials.spiffe_id(), network: &home.network };
        let service = update.service.clone();
        let routes = RouteSet::new(&service, &update.routes, caller, home).unwrap_or_else(|why| {
            // The control plane checks them before it stores them.
            error!(%service, reason = chain(&why), "the routes of a service cannot be used");
            None
        });
        let routes = routes.map(|set| Arc::new(ServiceRoutes::new(set)));
        Self { service, routes, _receipt: Some(Arc::new(receipt)) }
    }

    /// Routes that were applied before, for a thread that begins to use the service.
    pub(crate) fn known(service: ServiceName, routes: Option<Arc<ServiceRoutes>>) -> Self {
        Self { service, routes, _receipt: None }
    }
}
