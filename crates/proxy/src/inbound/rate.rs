//! How many requests each caller may make of the app: the limits of traffic policies, held by the
//! callee's sidecar. All data threads share what is counted.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tollway_model::call_trace::LimitWord;
use tollway_model::traffic_policy::{Rate, ShadowLimits, TrafficParts};
use tollway_model::{Caller, ServiceName, SpiffeId};
use tollway_routing::{CallerUse, CallerUses, LimitedBy, RATED_CALLERS_LIMIT, RateControl};

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
        Self::of(parts.rate.as_ref(), parts.concurrency_per_caller, home, now)
    }

    /// Those in shadow mode.
    pub(crate) fn in_shadow(
        parts: &TrafficParts,
        home: &ServiceName,
        now: Instant,
    ) -> Option<Self> {
        let ShadowLimits { rate, concurrency_per_caller } = &parts.shadow;
        Self::of(rate.as_ref(), *concurrency_per_caller, home, now)
    }

    fn of(
        rate: Option<&Rate>,
        concurrency: Option<u32>,
        home: &ServiceName,
        now: Instant,
    ) -> Option<Self> {
        let rate = rate.filter(|rate| **rate != Rate::default()).cloned();
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

    /// Takes a request of a caller. Where requests under way are limited, gives the caller's use, which
    /// has to be ended.
    ///
    /// # Errors
    /// What is limited, and the seconds to wait.
    fn take(
        &self,
        caller: &Arc<CallerUse>,
        now: Instant,
    ) -> Result<Option<Arc<CallerUse>>, (LimitWord, u64)> {
        let under_way = match self.concurrency {
            Some(most) if !caller.begin(most) => return Err((LimitWord::Concurrency, 1)),
            Some(_) => Some(Arc::clone(caller)),
            None => None,
        };
        let taken = self.rates.take(caller, now);
        match taken {
            Ok(()) => Ok(under_way),
            Err(refusal) => {
                if let Some(caller) = under_way {
                    caller.end();
                }
                let what = match refusal.by {
                    LimitedBy::Caller => LimitWord::Caller,
                    LimitedBy::Service => LimitWord::Service,
                };
                Err((what, refusal.retry_after_seconds()))
            }
        }
    }
}

/// The limits that hold now, and those in shadow mode.
#[derive(Default)]
pub(crate) struct RateGate {
    limits: Option<Arc<ReplicaRates>>,
    shadow: Option<Arc<ReplicaRates>>,
    /// Rises with every change; what a connection remembers of an older one is void.
    generation: u64,
}

/// What a connection remembers of its caller.
pub(crate) struct Rated {
    generation: u64,
    caller: Option<Arc<CallerUse>>,
    shadow: Option<Arc<CallerUse>>,
}

/// A request that was taken.
#[derive(Default)]
pub(crate) struct Taken {
    /// It counts until this is dropped, where requests under way are limited.
    pub(crate) under_way: Option<CountedRequest>,
    /// It is over this limit in shadow mode.
    pub(crate) over_shadow: Option<LimitWord>,
}

/// A request that counts among those of its caller until this is dropped: by the limit in force, and
/// by that in shadow mode.
pub(crate) struct CountedRequest([Option<Arc<CallerUse>>; 2]);

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.0.iter().flatten().for_each(|caller| caller.end());
    }
}

impl RateGate {
    pub(crate) fn replace(
        &mut self,
        limits: Option<Arc<ReplicaRates>>,
        shadow: Option<Arc<ReplicaRates>>,
    ) {
        (self.limits, self.shadow) = (limits, shadow);
        self.generation += 1;
    }

    /// Takes a request of the caller at the other end of a connection.
    ///
    /// # Errors
    /// [`RequestError::RateLimited`].
    #[inline]
    pub(crate) fn admit(
        &self,
        conn: Option<&mut Connection>,
        now: Instant,
    ) -> Result<Taken, RequestError> {
        match (&self.limits, &self.shadow) {
            (None, None) => Ok(Taken::default()),
            _ => self.take(conn, now),
        }
    }

    fn take(&self, conn: Option<&mut Connection>, now: Instant) -> Result<Taken, RequestError> {
        // Every connection of the inbound listener has a proven identity.
        let Some(Connection { peer: Some(peer), rated, .. }) = conn else {
            return Ok(Taken::default());
        };
        if rated.as_ref().is_none_or(|rated| rated.generation != self.generation) {
            let caller = Caller { spiffe: &peer.spiffe, network: &peer.service.network };
            let of = |limits: &Option<Arc<ReplicaRates>>| {
                limits.as_ref().map(|limits| limits.of_caller(caller, now))
            };
            let (generation, shadow) = (self.generation, of(&self.shadow));
            *rated = Some(Box::new(Rated { generation, caller: of(&self.limits), shadow }));
        }
        let Some(Rated { caller, shadow, .. }) = rated.as_deref() else {
            return Ok(Taken::default());
        };
        let mut under_way = [None, None];
        if let (Some(limits), Some(caller)) = (&self.limits, caller) {
            under_way[0] = limits.take(caller, now).map_err(|(limit, after_s)| {
                let service = limits.home.clone();
                RequestError::RateLimited { service, limit, after_s }
            })?;
        }
        let mut over_shadow = None;
        if let (Some(limits), Some(caller)) = (&self.shadow, shadow) {
            match limits.take(caller, now) {
                Ok(taken) => under_way[1] = taken,
                Err((what, _)) => over_shadow = Some(what),
            }
        }
        let is_counted = under_way.iter().any(Option::is_some);
        Ok(Taken { under_way: is_counted.then(|| CountedRequest(under_way)), over_shadow })
    }
}
