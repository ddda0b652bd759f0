//! Calls under Resiliency rules: timeouts, retries and circuit breakers. `tollway_routing` decides;
//! this module carries the decisions out, for calls of apps (`apps`), actors and endpoints, and for
//! the operations of state stores.

mod apps;
mod replay;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::Response;
use hyper::header::CONTENT_TYPE;
use tokio::time::Instant;
use tollway_actors::placement::Actor;
use tollway_model::{ErrorCode, ServiceName};
use tollway_proxy::ERROR_FIELD;
use tollway_routing::{
    Breaker, BreakerRule, BreakerState, Outcome, Pass, Resiliency, Rules, Scope,
};
use tollway_state::StateError;
use tollway_telemetry::DaprMetrics;
use tollway_telemetry::metrics::dapr::{CircuitState, Rule, Runtime};
use tonic::body::Body;

use crate::actors::Problem;

pub(crate) use apps::AppCalls;
pub(crate) use replay::{CallBody, call_body};

/// The rules of an app, and the state of its circuit breakers.
pub(crate) struct ResiliencyState {
    rules: Arc<Resiliency>,
    metrics: Option<Arc<DaprMetrics>>,
    breakers: Mutex<HashMap<String, Known>>,
    /// Breakers count time from here.
    began: Instant,
}

struct Known {
    breaker: Breaker,
    used: Duration,
}

pub(crate) type Answered = Result<Response<Body>, Problem>;

/// What an attempt comes to.
pub(crate) trait Attempted {
    fn outcome(&self) -> Outcome;

    /// Whether there is no such callee. It has not failed: it may just not have started.
    fn is_unknown(&self) -> bool;

    /// An attempt that was given up after this time.
    fn timed_out(after: Duration) -> Self;

    /// None was made, since the breaker of `key` is open.
    fn not_made(key: &str) -> Self;
}

impl ResiliencyState {
    /// `metrics` counts under Dapr's names.
    pub(crate) fn new(rules: Arc<Resiliency>, metrics: Option<Arc<DaprMetrics>>) -> Arc<Self> {
        Arc::new(Self { rules, metrics, breakers: Mutex::default(), began: Instant::now() })
    }

    pub(crate) fn of_app(&self, app: &ServiceName, home: &ServiceName) -> Option<&Rules> {
        self.rules.of_app(app, home)
    }

    pub(crate) fn of_actor(&self, actor_type: &str) -> Option<&Rules> {
        self.rules.of_actor(actor_type)
    }

    pub(crate) fn of_store(&self, component: &str) -> Option<&Rules> {
        self.rules.of_store(component)
    }

    /// Makes a call of `target` under rules. Each of `keys` has a breaker. Without `repeats` there
    /// is one attempt. Returns what the last attempt came to.
    pub(crate) async fn run<A, F>(
        &self,
        rules: &Rules,
        target: &str,
        keys: &[String],
        repeats: bool,
        mut attempt: impl FnMut() -> F,
    ) -> A
    where
        A: Attempted,
        F: Future<Output = A>,
    {
        let counts = self.metrics.as_ref().map(|metrics| metrics.runtime());
        let counts = Counts { of: counts, file: &rules.file, target };
        let retry = rules.retry.as_ref().filter(|_| repeats);
        if retry.is_some() {
            counts.applied(Rule::Retry, None);
        }
        let mut made: u32 = 0;
        loop {
            made = made.saturating_add(1);
            let leave = match self.leave(rules, keys, &counts) {
                Ok(leave) => leave,
                Err(key) => return A::not_made(key),
            };
            let answer = match rules.timeout {
                None => attempt().await,
                Some(time) => {
                    counts.applied(Rule::Timeout, None);
                    let answer = tokio::time::timeout(time, attempt()).await;
                    answer.unwrap_or_else(|_| {
                        counts.activated(Rule::Timeout, None);
                        A::timed_out(time)
                    })
                }
            };
            let outcome = answer.outcome();
            if !answer.is_unknown() {
                leave.note(outcome.is_failure(), &counts);
            }
            let Some(pause) = retry.and_then(|retry| retry.decide(outcome, made, random())) else {
                if made > 1 && !outcome.is_failure() {
                    tracing::info!(target, attempts = made, "what had failed has succeeded");
                }
                return answer;
            };
            if made == 1 {
                tracing::info!(target, ?pause, "what has failed is tried again");
            }
            counts.activated(Rule::Retry, None);
            tokio::time::sleep(pause).await;
        }
    }

    /// Asks all breakers for an attempt.
    ///
    /// # Errors
    /// The key of one that is open.
    fn leave<'a>(
        &'a self,
        rules: &'a Rules,
        keys: &'a [String],
        counts: &Counts<'_>,
    ) -> Result<Leave<'a>, &'a str> {
        let mut leave = Leave { of: self, rule: rules.breaker.as_ref(), passes: Vec::new() };
        let Some(rule) = &rules.breaker else { return Ok(leave) };
        let now = self.began.elapsed();
        for key in keys {
            let mut known = self.breakers();
            if !known.contains_key(key) {
                make_room(&mut known, rules.breakers);
                known.insert(key.clone(), Known { breaker: Breaker::new(rule, now), used: now });
            }
            let Some(of_key) = known.get_mut(key) else { continue };
            of_key.used = now;
            let pass = of_key.breaker.admit(rule, now);
            let state = of_key.breaker.state();
            drop(known);
            counts.applied(Rule::CircuitBreaker, Some(state));
            let Some(pass) = pass else { return Err(key) };
            leave.passes.push((key, pass));
        }
        Ok(leave)
    }

    fn breakers(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.breakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the breaker that was used least recently if there are `most`.
fn make_room(known: &mut HashMap<String, Known>, most: usize) {
    if known.len() < most.max(1) {
        return;
    }
    let oldest = known.iter().min_by_key(|(_, known)| known.used).map(|(key, _)| key.clone());
    if let Some(oldest) = oldest {
        known.remove(&oldest);
    }
}

/// Counts what the rules do to the calls of one target, if that is enabled.
struct Counts<'a> {
    of: Option<&'a Runtime>,
    file: &'a str,
    target: &'a str,
}

impl Counts<'_> {
    fn applied(&self, rule: Rule, state: Option<BreakerState>) {
        if let Some(of) = self.of {
            of.rule_applied(self.file, self.target, rule, state.map(circuit));
        }
    }

    fn activated(&self, rule: Rule, state: Option<BreakerState>) {
        if let Some(of) = self.of {
            of.rule_activated(self.target, rule, state.map(circuit));
        }
    }
}

fn circuit(state: BreakerState) -> CircuitState {
    match state {
        BreakerState::Closed => CircuitState::Closed,
        BreakerState::Trying => CircuitState::HalfOpen,
        BreakerState::Open => CircuitState::Open,
    }
}

/// The permission of the breakers for one attempt. Dropping it means that the attempt was given up.
struct Leave<'a> {
    of: &'a ResiliencyState,
    rule: Option<&'a BreakerRule>,
    passes: Vec<(&'a String, Pass)>,
}

impl Leave<'_> {
    fn note(mut self, is_failure: bool, counts: &Counts<'_>) {
        let now = self.of.began.elapsed();
        self.give_back(|key, breaker, pass, rule| {
            let before = breaker.state();
            breaker.note(pass, is_failure, rule, now);
            let after = breaker.state();
            if after != before {
                tracing::info!(of = key, ?before, ?after, "a circuit breaker has changed");
                counts.activated(Rule::CircuitBreaker, Some(after));
            }
        });
    }

    fn give_back(&mut self, mut end: impl FnMut(&str, &mut Breaker, Pass, &BreakerRule)) {
        let Some(rule) = self.rule else { return };
        let mut known = self.of.breakers();
        for (key, pass) in self.passes.drain(..) {
            if let Some(of_key) = known.get_mut(key) {
                end(key, &mut of_key.breaker, pass, rule);
            }
        }
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if !self.passes.is_empty() {
            self.give_back(|_, breaker, pass, _| breaker.forget(pass));
        }
    }
}

/// The keys of the breakers for a call of an actor.
pub(crate) fn keys_of_actor(scope: Scope, actor: &Actor) -> Vec<String> {
    let of_type = || format!("actors of type `{}`", actor.actor_type);
    let of_id = || format!("actor `{}||{}`", actor.actor_type, actor.id);
    match scope {
        Scope::Type => vec![of_type()],
        Scope::Id => vec![of_id()],
        Scope::Both => vec![of_type(), of_id()],
    }
}

impl Attempted for Answered {
    fn outcome(&self) -> Outcome {
        let answer = match self {
            Ok(answer) => answer,
            Err(problem) if problem.code == ErrorCode::TimedOut => return Outcome::TimedOut,
            Err(problem) => return Outcome::Http(problem.http_status()),
        };
        let fields = answer.headers();
        let grpc = fields.get("grpc-status").and_then(|code| code.to_str().ok()?.parse().ok());
        let is_grpc = fields.get(CONTENT_TYPE).is_some_and(|kind| {
            kind.as_bytes().starts_with(b"application/grpc") && answer.status().is_success()
        });
        match grpc {
            Some(code) => Outcome::Grpc(code),
            // A stream that has begun.
            None if is_grpc => Outcome::Grpc(0),
            None => Outcome::Http(answer.status().as_u16()),
        }
    }

    fn is_unknown(&self) -> bool {
        let unknown = [ErrorCode::UnknownService, ErrorCode::ActorNoAddress];
        match self {
            Ok(answer) => {
                let word = answer.headers().get(ERROR_FIELD);
                word.is_some_and(|word| unknown.iter().any(|code| word == code.word()))
            }
            Err(problem) => unknown.contains(&problem.code),
        }
    }

    fn timed_out(after: Duration) -> Self {
        let text = format!("no answer within {after:?}, which the Resiliency of this app allows");
        Err(Problem::new(ErrorCode::TimedOut, text))
    }

    fn not_made(key: &str) -> Self {
        let text = format!("too many calls of {key} have failed; none is made for a while");
        Err(Problem::new(ErrorCode::CircuitOpen, text))
    }
}

impl<T> Attempted for Result<T, StateError> {
    /// What the store answers to the caller about its request is no failure of the store.
    fn outcome(&self) -> Outcome {
        match self {
            Err(error) if !error.is_answer() => Outcome::Failed,
            Ok(_) | Err(_) => Outcome::Http(200),
        }
    }

    fn is_unknown(&self) -> bool {
        false
    }

    fn timed_out(after: Duration) -> Self {
        Err(StateError::TookTooLong { after })
    }

    fn not_made(_: &str) -> Self {
        Err(StateError::CircuitOpen)
    }
}

/// A number from 0 up to 1. Pauses are spread by it so that not all callers repeat at once.
fn random() -> f64 {
    let (bits, _) = uuid::Uuid::new_v4().as_u64_pair();
    // The version is in the lower half of these bits.
    f64::from((bits >> 32) as u32) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests;
