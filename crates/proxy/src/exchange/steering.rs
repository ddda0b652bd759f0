//! What the routes of its service have decided on an exchange.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tollway_model::ServiceName;
use tollway_routing::{BackendTarget, FieldEdit, Rule};

use super::{Exchange, ExchangeKey, Exchanges};
use crate::mesh::ServiceRoutes;

impl Exchange {
    /// Longest time without a byte in either direction.
    pub(super) fn idle_limit(&self, usual: Duration) -> Duration {
        let of_rule = self.steering.as_ref().and_then(|steering| steering.rule.timeouts().idle);
        of_rule.unwrap_or(usual)
    }

    /// The whole body of a request that was sent, while it is kept for another attempt.
    pub(crate) fn whole_request(&self) -> Option<&[u8]> {
        self.replay.as_deref().filter(|_| self.request.finished && !self.answer.has_begun)
    }

    /// Whether copies of it are still to be made.
    pub(crate) fn is_to_mirror(&self) -> bool {
        let has_mirrors = |steering: &Steering| steering.rule.has_mirrors();
        !self.is_mirrored && self.attempts == 1 && self.steering.as_deref().is_some_and(has_mirrors)
    }
}

impl Exchanges {
    /// An attempt has gone out whole: the time of its answer begins, where a route limits it.
    #[inline]
    pub(crate) fn begin_attempt_time(&mut self, now: Instant, key: ExchangeKey) {
        if let Some(steering) = self.slab.get_mut(key).and_then(|of| of.steering.as_mut())
            && let Some(limit) = steering.rule.timeouts().attempt.filter(|limit| !limit.is_zero())
            && let Some(at) = now.checked_add(limit)
        {
            steering.attempt_ends = Some(at);
            self.set_timer(now, at, key);
        }
    }
}

/// The rule that holds for one request.
pub(crate) struct Steering {
    /// The service that the caller has named.
    service: ServiceName,
    routes: Arc<ServiceRoutes>,
    rule: Arc<Rule>,
    backend: usize,
    /// Retries that the rule has allowed.
    retries: u32,
    /// When the pause before a retry is over.
    pub(super) resume_at: Option<Instant>,
    /// When the attempt under way has taken too long; `None` without a limit.
    pub(super) attempt_ends: Option<Instant>,
}

impl Steering {
    pub(crate) fn new(
        service: ServiceName,
        routes: Arc<ServiceRoutes>,
        rule: Arc<Rule>,
        backend: usize,
    ) -> Self {
        let (retries, attempt_ends, resume_at) = (0, None, None);
        Self { service, routes, rule, backend, retries, resume_at, attempt_ends }
    }

    /// Of a copy of a request: nothing is changed in its response, which is dropped.
    pub(crate) fn mirrored(&self) -> Self {
        let (routes, rule) = (Arc::clone(&self.routes), Arc::clone(&self.rule));
        Self::new(self.service.clone(), routes, rule, usize::MAX)
    }

    pub(super) fn retries(&self) -> u32 {
        self.retries
    }

    /// Counts one more retry if the budget of the service has one. A retry has its own time.
    pub(super) fn take_retry(&mut self, now: Instant) -> bool {
        let budget = self.rule.retry().map(|retry| retry.budget);
        let is_taken = budget.is_some_and(|budget| self.routes.take_retry(budget, now));
        if is_taken {
            self.retries += 1;
            self.attempt_ends = None;
        }
        is_taken
    }

    pub(crate) fn service(&self) -> &ServiceName {
        &self.service
    }

    pub(crate) fn rule(&self) -> &Arc<Rule> {
        &self.rule
    }

    pub(crate) fn backend(&self) -> Option<&BackendTarget> {
        self.rule.backend(self.backend)
    }

    /// Changes of the response.
    pub(super) fn response_edits(&self) -> &[FieldEdit] {
        self.backend().map_or(&[], |backend| &backend.response)
    }
}
