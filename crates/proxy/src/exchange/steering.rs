//! What the routes of its service have decided on an exchange.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tollway_http::ResponseHead;
use tollway_model::ServiceName;
use tollway_model::call_trace::RouteTaken;
use tollway_routing::{AffinityHash, BackendTarget, Rule, RuleName};
use tollway_telemetry::{DataPlaneMetrics, RuleCounts, RuleSeries};

use super::{Destination, Exchange, ExchangeKey, Exchanges, UpstreamState};
use crate::headers;
use crate::mesh::ServiceRoutes;

/// Timers are set for times that are no further away. The sweep looks at each exchange more often.
const TIMER_HORIZON: Duration = Duration::from_secs(2);

impl Exchange {
    /// Longest time without a byte in either direction.
    pub(super) fn idle_limit(&self, usual: Duration) -> Duration {
        let of_rule = self.steering.as_ref().and_then(|steering| steering.rule.timeouts().idle);
        of_rule.unwrap_or(usual)
    }

    /// Whether its deadline is that which its rule gives, and not an earlier one of its caller.
    pub(super) fn is_deadline_of_route(&self) -> bool {
        let of_rule = self.steering.as_ref().and_then(|steering| steering.rule.timeouts().request);
        let ends = of_rule.and_then(|time| self.started.checked_add(time));
        ends.is_some() && self.deadline == ends
    }

    /// An attempt at the replica of its key has failed: any replica may have it now. Returns whether it
    /// was for one.
    pub(crate) fn leave_replica(&mut self) -> bool {
        let (Some(steering), Destination::Workload(workload)) = (&self.steering, &self.destination)
        else {
            return false;
        };
        let has_left = steering.rule.affinity().is_some();
        if has_left {
            self.destination = Destination::Service(workload.service.clone());
        }
        has_left
    }

    /// The next time at which something is over for it, if that is soon and no timer is set for it.
    pub(super) fn next_timer(&mut self, now: Instant) -> Option<Instant> {
        let (deadline, up, is_answered) = (self.deadline, self.up, self.answer.has_begun);
        let is_soon = |at: &Instant| *at <= now + TIMER_HORIZON;
        let (next, listed) = match (&mut self.held, &mut self.steering) {
            (Some(held), _) => {
                (deadline.map_or(held.until, |at| at.min(held.until)), &mut held.listed)
            }
            (None, Some(steering)) => {
                let attempt_ends = steering.attempt_ends.filter(|_| !is_answered);
                let resume_at = steering.resume_at.filter(|_| up == UpstreamState::Pausing);
                let next = [deadline, attempt_ends, resume_at].into_iter().flatten().min()?;
                (next, &mut steering.listed)
            }
            // A caller of gRPC ends its calls itself, and the sweep those of one that does not.
            (None, None) => return deadline.filter(is_soon).filter(|_| !self.is_grpc),
        };
        let is_listed = listed.is_some_and(|listed| listed <= next);
        (is_soon(&next) && !is_listed).then(|| *listed.insert(next))
    }

    /// Its timer has fired.
    pub(super) fn timer_fired(&mut self) {
        if let Some(steering) = &mut self.steering {
            steering.listed = None;
        }
        if let Some(held) = &mut self.held {
            held.listed = None;
        }
    }

    /// Whether times are set for it that a sweep would notice too late.
    pub(super) fn has_timers(&self) -> bool {
        let has_deadline = self.deadline.is_some() && !self.is_grpc;
        self.steering.is_some() || self.held.is_some() || has_deadline
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
            self.set_timer(now, key);
        }
    }
}

/// The routes of a service at one data thread, and where that counts the requests of each rule.
pub(crate) struct ThreadRoutes {
    routes: Arc<ServiceRoutes>,
    /// By the place of each rule.
    series: Box<[RuleSeries]>,
}

impl ThreadRoutes {
    pub(crate) fn new(routes: Arc<ServiceRoutes>, metrics: &DataPlaneMetrics) -> Self {
        let series = routes.set().rules().iter().map(|rule| {
            let RuleName { route, rule } = rule.name();
            metrics.rules.series(&route.to_string(), rule)
        });
        Self { series: series.collect(), routes }
    }

    pub(crate) fn routes(&self) -> &ServiceRoutes {
        &self.routes
    }

    /// Where requests of a rule are counted.
    pub(crate) fn counts<'m>(&self, rule: &Rule, metrics: &'m DataPlaneMetrics) -> &'m RuleCounts {
        let series = self.series.get(rule.place()).copied();
        metrics.rules.of(series.unwrap_or(RuleSeries::OTHER))
    }
}

/// The rule that holds for one request.
pub(crate) struct Steering {
    /// The service that the caller has named.
    service: ServiceName,
    routes: Arc<ThreadRoutes>,
    rule: Arc<Rule>,
    backend: usize,
    /// Retries that the rule has allowed.
    retries: u32,
    /// When the pause before a retry is over.
    pub(super) resume_at: Option<Instant>,
    /// The key by which its requests go to one replica; `None` without one, and after a failed attempt.
    pub(super) affinity: Option<AffinityHash>,
    /// A cookie that is set in the response, so that the next requests have the key.
    cookie: Option<Box<[u8]>>,
    /// When the attempt under way has taken too long; `None` without a limit.
    pub(super) attempt_ends: Option<Instant>,
    /// The time for which a timer is set.
    listed: Option<Instant>,
}

impl Steering {
    pub(crate) fn new(
        service: ServiceName,
        routes: Arc<ThreadRoutes>,
        rule: Arc<Rule>,
        backend: usize,
    ) -> Self {
        Self {
            service,
            routes,
            rule,
            backend,
            retries: 0,
            resume_at: None,
            affinity: None,
            cookie: None,
            attempt_ends: None,
            listed: None,
        }
    }

    /// The requests of a key go to one replica. `cookie` is set in the response if there is one.
    pub(crate) fn with_affinity(self, key: AffinityHash, cookie: Option<Vec<u8>>) -> Self {
        Self { affinity: Some(key), cookie: cookie.map(Vec::into_boxed_slice), ..self }
    }

    /// The key by which a replica is to be chosen. It is given once.
    pub(crate) fn take_affinity(&mut self) -> Option<AffinityHash> {
        self.affinity.take()
    }

    /// The rule, as a call trace names it.
    pub(super) fn taken(&self) -> RouteTaken {
        let name = self.rule.name();
        RouteTaken {
            service: self.service.to_string(),
            route: name.route.to_string(),
            rule: name.rule.to_string(),
        }
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
        let is_taken = budget.is_some_and(|budget| self.routes.routes().take_retry(budget, now));
        if is_taken {
            self.retries += 1;
            self.attempt_ends = None;
        }
        is_taken
    }

    /// Where requests of its rule are counted.
    pub(crate) fn counts<'m>(&self, metrics: &'m DataPlaneMetrics) -> &'m RuleCounts {
        self.routes.counts(&self.rule, metrics)
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

    /// Changes a response of the backend as the rule has it.
    pub(super) fn edit_response(&self, head: &mut ResponseHead) {
        headers::edit(&mut head.fields, self.backend().map_or(&[], |backend| &backend.response));
        if let Some(cookie) = &self.cookie {
            head.fields.push(b"set-cookie", cookie);
        }
    }
}
