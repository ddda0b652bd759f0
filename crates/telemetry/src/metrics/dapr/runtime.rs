//! Actors, and rules about calls that fail, under Dapr's names.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::super::catalogue::names;
use super::super::page::Metric;
use super::table::{Sheet, entry};

/// What there is of the actors of one type.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ActorGauges {
    pub actor_type: String,
    /// Calls that wait for their turn.
    pub pending: usize,
    pub timers: usize,
    pub reminders: usize,
}

/// A rule about calls that fail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rule {
    Timeout,
    Retry,
    CircuitBreaker,
}

impl Rule {
    fn word(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Retry => "retry",
            Self::CircuitBreaker => "circuitbreaker",
        }
    }
}

/// The state of a circuit breaker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CircuitState {
    Closed,
    HalfOpen,
    Open,
}

impl CircuitState {
    fn word(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half-open",
            Self::Open => "open",
        }
    }
}

/// The states of the gauge of breakers. No breaker is in the last one; Dapr shows it, too.
const CIRCUIT_STATES: [&str; 4] = ["closed", "half-open", "open", "unknown"];

type Gauges = Box<dyn Fn() -> Vec<ActorGauges> + Send + Sync>;

/// What the runtime of a sidecar counts.
#[derive(Default)]
pub struct Runtime {
    gauges: OnceLock<Gauges>,
    counts: Mutex<Counts>,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    /// By type: firings that succeeded, and those that did not.
    timers_fired: BTreeMap<Box<str>, [u64; 2]>,
    reminders_fired: BTreeMap<Box<str>, [u64; 2]>,
    deactivated: BTreeMap<Box<str>, u64>,
    deactivated_failed: BTreeMap<Box<str>, u64>,
    rebalanced: BTreeMap<Box<str>, u64>,
    /// Names of the files of rules that were read, and their namespaces.
    rules_loaded: Vec<(String, String)>,
    rules: BTreeMap<Box<str>, OfTarget>,
}

/// What came of rules for the calls of one target, by the name of their file.
#[derive(Clone, Debug, Default)]
struct OfTarget {
    file: String,
    applied: BTreeMap<(Rule, Option<CircuitState>), u64>,
    activated: BTreeMap<(Rule, Option<CircuitState>), u64>,
    circuit: Option<CircuitState>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl Runtime {
    /// Sets the function that counts actors for the page. Only the first call has an effect.
    pub fn set_actors(&self, gauges: impl Fn() -> Vec<ActorGauges> + Send + Sync + 'static) {
        // It is set once, where the runtime starts.
        let _ = self.gauges.set(Box::new(gauges));
    }

    pub fn timer_fired(&self, actor_type: &str, succeeded: bool) {
        entry(&mut self.counts().timers_fired, actor_type)[usize::from(!succeeded)] += 1;
    }

    pub fn reminder_fired(&self, actor_type: &str, succeeded: bool) {
        entry(&mut self.counts().reminders_fired, actor_type)[usize::from(!succeeded)] += 1;
    }

    /// The app has let go of an actor, or would not in time.
    pub fn deactivated(&self, actor_type: &str, succeeded: bool) {
        let mut counts = self.counts();
        let counts = &mut *counts;
        let rows = if succeeded { &mut counts.deactivated } else { &mut counts.deactivated_failed };
        *entry(rows, actor_type) += 1;
    }

    /// Shards of an actor type were asked back for another host.
    pub fn rebalanced(&self, actor_type: &str) {
        *entry(&mut self.counts().rebalanced, actor_type) += 1;
    }

    /// A file of rules was read; `namespace` is what it has for its own, which may be nothing.
    pub fn rules_loaded(&self, file: &str, namespace: &str) {
        self.counts().rules_loaded.push((file.to_owned(), namespace.to_owned()));
    }

    /// A resiliency rule was applied to a call of `target`; of a breaker, its state.
    pub fn rule_applied(
        &self,
        file: &str,
        target: &str,
        rule: Rule,
        circuit: Option<CircuitState>,
    ) {
        let mut counts = self.counts();
        let of = entry(&mut counts.rules, target);
        file.clone_into(&mut of.file);
        *of.applied.entry((rule, circuit)).or_default() += 1;
        of.circuit = circuit.or(of.circuit);
    }

    /// A rule did something: a call ended early, was made again, a breaker changed. The gauge of a
    /// breaker has the state that its last call met.
    pub fn rule_activated(&self, target: &str, rule: Rule, circuit: Option<CircuitState>) {
        let mut counts = self.counts();
        let of = entry(&mut counts.rules, target);
        *of.activated.entry((rule, circuit)).or_default() += 1;
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_to(&self, sheet: &mut Sheet<'_>, app_id: &str) {
        let gauges = self.gauges.get().map(|gauges| gauges()).unwrap_or_default();
        let counts = self.counts().clone();
        let mut add = |metric: &'static Metric, values: &[&str], value: u64| {
            sheet.sample(metric, values, value);
        };
        type Of = fn(&ActorGauges) -> usize;
        let of_gauges: [(&'static Metric, Of); 3] = [
            (&names::DAPR_ACTOR_PENDING, |of| of.pending),
            (&names::DAPR_ACTOR_TIMERS, |of| of.timers),
            (&names::DAPR_ACTOR_REMINDERS, |of| of.reminders),
        ];
        for (metric, of) in of_gauges {
            for gauge in &gauges {
                add(metric, &[&gauge.actor_type, app_id], of(gauge) as u64);
            }
        }
        for (metric, rows) in [
            (&names::DAPR_ACTOR_TIMERS_FIRED, &counts.timers_fired),
            (&names::DAPR_ACTOR_REMINDERS_FIRED, &counts.reminders_fired),
        ] {
            for (actor_type, [succeeded, failed]) in rows {
                add(metric, &[actor_type, app_id, "true"], *succeeded);
                add(metric, &[actor_type, app_id, "false"], *failed);
            }
        }
        for (metric, rows) in [
            (&names::DAPR_ACTOR_DEACTIVATED, &counts.deactivated),
            (&names::DAPR_ACTOR_DEACTIVATED_FAILED, &counts.deactivated_failed),
            (&names::DAPR_ACTOR_REBALANCED, &counts.rebalanced),
        ] {
            for (actor_type, count) in rows {
                add(metric, &[actor_type, app_id], *count);
            }
        }
        for (file, namespace) in &counts.rules_loaded {
            add(&names::DAPR_RESILIENCY_LOADED, &[app_id, file, namespace], 1);
        }
        counts.add_rules(&mut add, app_id);
    }
}

impl Counts {
    fn namespace(&self, file: &str) -> &str {
        let found = self.rules_loaded.iter().find(|(name, _)| name == file);
        found.map_or("", |(_, namespace)| namespace)
    }

    fn add_rules(&self, add: &mut impl FnMut(&'static Metric, &[&str], u64), app_id: &str) {
        type Of = fn(&OfTarget) -> &BTreeMap<(Rule, Option<CircuitState>), u64>;
        let of_rules: [(&'static Metric, Of); 2] = [
            (&names::DAPR_RESILIENCY_COUNT, |of| &of.applied),
            (&names::DAPR_RESILIENCY_ACTIVATIONS, |of| &of.activated),
        ];
        for (metric, rows) in of_rules {
            for (target, of) in &self.rules {
                let namespace = self.namespace(&of.file);
                for ((rule, circuit), count) in rows(of) {
                    let status = circuit.map_or("", CircuitState::word);
                    let rule = rule.word();
                    let values = [app_id, "outbound", &of.file, namespace, rule, status, target];
                    add(metric, &values, *count);
                }
            }
        }
        for (target, of) in &self.rules {
            let Some(now) = of.circuit else { continue };
            let namespace = self.namespace(&of.file);
            for state in CIRCUIT_STATES {
                let rule = Rule::CircuitBreaker.word();
                let values = [app_id, "outbound", &of.file, namespace, rule, state, target];
                add(&names::DAPR_RESILIENCY_CIRCUIT, &values, u64::from(state == now.word()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::usual;
    use super::*;
    use crate::metrics::Page;

    #[test]
    fn actors_and_rules_are_counted_under_daprs_names() {
        let metrics = usual();
        let runtime = metrics.runtime();
        runtime.set_actors(|| {
            vec![ActorGauges { actor_type: "Cart".to_owned(), pending: 1, timers: 2, reminders: 3 }]
        });
        runtime.timer_fired("Cart", true);
        runtime.reminder_fired("Cart", false);
        runtime.deactivated("Cart", true);
        runtime.rebalanced("Cart");
        runtime.rules_loaded("rules", "shop");
        runtime.rule_applied("rules", "app_stock", Rule::Retry, None);
        runtime.rule_activated("app_stock", Rule::Retry, None);
        let closed = Some(CircuitState::Closed);
        runtime.rule_applied("rules", "app_stock", Rule::CircuitBreaker, closed);
        runtime.rule_activated("app_stock", Rule::CircuitBreaker, Some(CircuitState::Open));
        let mut page = Page::default();
        metrics.add_to(&mut page);
        let text = page.into_text();
        let rule = |policy: &str, status: &str| {
            format!(
                "app_id=\"web\",flow_direction=\"outbound\",name=\"rules\",namespace=\"shop\",\
                 policy=\"{policy}\",status=\"{status}\",target=\"app_stock\""
            )
        };
        let cart = "actor_type=\"Cart\",app_id=\"web\"";
        for line in [
            format!("dapr_runtime_actor_pending_actor_calls{{{cart}}} 1"),
            format!("dapr_runtime_actor_timers{{{cart}}} 2"),
            format!("dapr_runtime_actor_reminders{{{cart}}} 3"),
            format!("dapr_runtime_actor_timers_fired_total{{{cart},success=\"true\"}} 1"),
            format!("dapr_runtime_actor_reminders_fired_total{{{cart},success=\"false\"}} 1"),
            format!("dapr_runtime_actor_deactivated_total{{{cart}}} 1"),
            format!("dapr_runtime_actor_rebalanced_total{{{cart}}} 1"),
            "dapr_resiliency_loaded{app_id=\"web\",name=\"rules\",namespace=\"shop\"} 1".to_owned(),
            format!("dapr_resiliency_count{{{}}} 1", rule("retry", "")),
            format!("dapr_resiliency_activations_total{{{}}} 1", rule("retry", "")),
            format!("dapr_resiliency_activations_total{{{}}} 1", rule("circuitbreaker", "open")),
            format!("dapr_resiliency_cb_state{{{}}} 1", rule("circuitbreaker", "closed")),
            format!("dapr_resiliency_cb_state{{{}}} 0", rule("circuitbreaker", "open")),
            format!("dapr_resiliency_cb_state{{{}}} 0", rule("circuitbreaker", "unknown")),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
    }
}
