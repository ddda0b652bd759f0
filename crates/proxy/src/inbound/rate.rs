//! How many requests each caller may make of the app: the limits of traffic policies, held by the
//! callee's sidecar. All data threads share what is counted.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tollway_model::traffic_policy::{Rate, TrafficParts};
use tollway_model::{Caller, ServiceName, SpiffeId};
use tollway_routing::{
    CallerUse, CallerUses, LimitedBy, RATED_CALLERS_LIMIT, RateControl, RateRefusal,
};

use crate::conn::Connection;
use crate::request_error::RequestError;

/// The limits of one replica, and what has been taken of them.
#[derive(Debug)]
pub(crate) struct ReplicaRates {
    home: ServiceName,
    rates: RateControl,
    /// Requests of one identity at a time.
    concurrency: Option<u32>,
    callers: Mutex<CallerUses<SpiffeId>>,
}

impl ReplicaRates {
    /// The limits that the traffic policies of `home` come to; `None` if they have none.
    pub(crate) fn new(parts: &TrafficParts, home: &ServiceName, now: Instant) -> Option<Self> {
        let rate = parts.rate.clone().filter(|rate| *rate != Rate::default());
        let concurrency = parts.concurrency_per_caller;
        let has_limits = rate.is_some() || concurrency.is_some();
        has_limits.then(|| Self {
            home: home.clone(),
            rates: RateControl::new(rate.unwrap_or_default(), now),
            concurrency,
            callers: Mutex::new(CallerUses::new(RATED_CALLERS_LIMIT, now)),
        })
    }

    fn of_caller(&self, caller: Caller<'_>, now: Instant) -> Arc<CallerUse> {
        let limit = || self.rates.of_caller(caller, &self.home.namespace, &self.home.network);
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        callers.of(caller.spiffe, limit, now)
    }
}

/// The limits that hold now.
#[derive(Default)]
pub(crate) struct RateGate {
    limits: Option<Arc<ReplicaRates>>,
    /// Rises with every change; what a connection remembers of an older one is void.
    generation: u64,
}

/// What a connection remembers of its caller.
pub(crate) struct Rated {
    generation: u64,
    caller: Arc<CallerUse>,
}

/// A request that counts among those of its caller until this is dropped.
pub(crate) struct CountedRequest(Arc<CallerUse>);

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl RateGate {
    pub(crate) fn replace(&mut self, limits: Option<Arc<ReplicaRates>>) {
        self.limits = limits;
        self.generation += 1;
    }

    /// Takes a request of the caller at the other end of a connection. Where requests under way are
    /// limited, it counts until the result is dropped.
    ///
    /// # Errors
    /// [`RequestError::RateLimited`].
    #[inline]
    pub(crate) fn admit(
        &self,
        conn: Option<&mut Connection>,
        now: Instant,
    ) -> Result<Option<CountedRequest>, RequestError> {
        match &self.limits {
            Some(limits) => self.take(limits, conn, now),
            None => Ok(None),
        }
    }

    fn take(
        &self,
        limits: &ReplicaRates,
        conn: Option<&mut Connection>,
        now: Instant,
    ) -> Result<Option<CountedRequest>, RequestError> {
        // Every connection of the inbound listener has a proven identity.
        let Some(Connection { peer: Some(peer), rated, .. }) = conn else { return Ok(None) };
        let known = rated.as_ref().filter(|rated| rated.generation == self.generation);
        let caller = match known {
            Some(rated) => Arc::clone(&rated.caller),
            None => {
                let caller = Caller { spiffe: &peer.spiffe, network: &peer.service.network };
                let caller = limits.of_caller(caller, now);
                let generation = self.generation;
                *rated = Some(Box::new(Rated { generation, caller: Arc::clone(&caller) }));
                caller
            }
        };
        let limited = |what, after_s| {
            let service = limits.home.clone();
            RequestError::RateLimited { service, what, after_s }
        };
        let under_way = match limits.concurrency {
            Some(most) if !caller.begin(most) => {
                return Err(limited("of this caller at one time", 1));
            }
            Some(_) => Some(CountedRequest(Arc::clone(&caller))),
            None => None,
        };
        let taken = limits.rates.take(&caller, now);
        taken.map_err(|refusal: RateRefusal| {
            let what = match refusal.by {
                LimitedBy::Caller => "of this caller",
                LimitedBy::Service => "of all callers together",
            };
            limited(what, refusal.retry_after_seconds())
        })?;
        Ok(under_way)
    }
}
