//! What is done about calls that fail, as Dapr's Resiliency has it: how long an attempt may take,
//! whether and when another is made, and when none is made for a while (`breaker`).
//!
//! These rules come in addition to the retries of the data path
//! ([`decide_retry`](crate::decide_retry)), which never repeats a request that an app may have
//! seen. A rule may repeat it, because the user has configured it.

mod breaker;
mod trip;

use std::ops::RangeInclusive;
use std::time::Duration;

use tollway_model::{AppId, Label, NameError, NetworkName, ServiceName};

pub use breaker::{Breaker, BreakerRule, Pass, State as BreakerState};
pub use trip::{Counts, Trip, TripError};

/// The first pause of those that grow, and by how much each is longer than the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const GROWTH: f64 = 1.5;
/// What a pause that grows may be shorter or longer by.
const SPREAD: f64 = 0.5;

/// Which rules hold for which calls.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Resiliency {
    pub apps: Vec<(NamedApp, Rules)>,
    /// For apps that are not named.
    pub other_apps: Option<Rules>,
    /// By type.
    pub actors: Vec<(String, Rules)>,
    /// For types that are not named.
    pub other_actors: Option<Rules>,
    /// For what is asked of components, by their names.
    pub components: Vec<(String, Rules)>,
    /// For state stores that are not named.
    pub other_stores: Option<Rules>,
}

/// `app[.namespace[.network]]`. Missing parts are those of the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedApp {
    app: AppId,
    namespace: Option<Label>,
    network: Option<NetworkName>,
}

/// What holds for the calls of one app or one type of actor, or of one component.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Rules {
    /// The name of the file with the rules.
    pub file: String,
    /// For each attempt.
    pub timeout: Option<Duration>,
    pub retry: Option<RetryRule>,
    pub breaker: Option<BreakerRule>,
    /// What has a breaker of its own.
    pub scope: Scope,
    /// Most breakers at one time.
    pub breakers: usize,
}

/// What shares a breaker: of apps always the calls of one method.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scope {
    /// All actors of the type.
    #[default]
    Type,
    Id,
    /// Both of them: a call needs the leave of either.
    Both,
}

/// When a failed call is made again.
#[derive(Clone, PartialEq, Debug)]
pub struct RetryRule {
    pub pause: Pauses,
    /// Attempts after the first; `None` for any number.
    pub retries: Option<u32>,
    /// Statuses that are tried again; without any, all that are no success.
    pub http: Vec<RangeInclusive<u16>>,
    /// gRPC codes that are tried again; without any, all that are no success.
    pub grpc: Vec<RangeInclusive<u16>>,
}

/// The time between two attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pauses {
    Constant(Duration),
    /// Growing up to this.
    Exponential(Duration),
}

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// An answer over HTTP with this status, of the app or of the mesh.
    Http(u16),
    /// One over gRPC.
    Grpc(u16),
    TimedOut,
    /// A failure without a status, as a state store has it.
    Failed,
}

impl Resiliency {
    /// What holds for calls of an app by another.
    #[must_use]
    pub fn of_app(&self, app: &ServiceName, home: &ServiceName) -> Option<&Rules> {
        let own = self.apps.iter().find(|(name, _)| name.is(app, home));
        own.map(|(_, rules)| rules).or(self.other_apps.as_ref())
    }

    /// What holds for calls of actors of a type.
    #[must_use]
    pub fn of_actor(&self, actor_type: &str) -> Option<&Rules> {
        let own = self.actors.iter().find(|(name, _)| name == actor_type);
        own.map(|(_, rules)| rules).or(self.other_actors.as_ref())
    }

    /// What holds for the operations of a state store.
    #[must_use]
    pub fn of_store(&self, component: &str) -> Option<&Rules> {
        let own = self.components.iter().find(|(name, _)| name == component);
        own.map(|(_, rules)| rules).or(self.other_stores.as_ref())
    }
}

impl NamedApp {
    /// Reads a name.
    ///
    /// # Errors
    /// [`NameError`] for the first part that cannot be one.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let parts = text.split('.').map(Label::new).collect::<Result<Vec<_>, _>>()?;
        let count = parts.len();
        let mut parts = parts.into_iter();
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(app), namespace, network, None) => Ok(Self { app, namespace, network }),
            _ => Err(NameError::TooManyLabels { name: text.to_owned(), count }),
        }
    }

    fn is(&self, app: &ServiceName, home: &ServiceName) -> bool {
        self.app == app.app
            && *self.namespace.as_ref().unwrap_or(&home.namespace) == app.namespace
            && *self.network.as_ref().unwrap_or(&home.network) == app.network
    }
}

impl Outcome {
    /// Whether it counts as a failure.
    #[must_use]
    pub fn is_failure(self) -> bool {
        match self {
            Self::Http(status) => !(200..400).contains(&status),
            Self::Grpc(code) => code != 0,
            Self::TimedOut | Self::Failed => true,
        }
    }
}

impl RetryRule {
    /// The pause before the next attempt, when `made` have been made; `None` if there is none.
    /// `random` is from 0 up to 1.
    #[must_use]
    pub fn decide(&self, outcome: Outcome, made: u32, random: f64) -> Option<Duration> {
        let is_left = self.retries.is_none_or(|retries| made <= retries);
        (is_left && self.is_tried_again(outcome)).then(|| self.pause.after(made, random))
    }

    fn is_tried_again(&self, outcome: Outcome) -> bool {
        let is_in = |ranges: &[RangeInclusive<u16>], status| {
            ranges.is_empty() || ranges.iter().any(|range| range.contains(&status))
        };
        outcome.is_failure()
            && match outcome {
                Outcome::Http(status) => is_in(&self.http, status),
                Outcome::Grpc(code) => is_in(&self.grpc, code),
                Outcome::TimedOut | Outcome::Failed => true,
            }
    }
}

impl Pauses {
    fn after(self, made: u32, random: f64) -> Duration {
        match self {
            Self::Constant(pause) => pause,
            Self::Exponential(most) => {
                let power = i32::try_from(made.saturating_sub(1)).unwrap_or(i32::MAX);
                let grown = FIRST_PAUSE.as_secs_f64() * GROWTH.powi(power);
                let pause = grown.min(most.as_secs_f64());
                Duration::from_secs_f64(pause * (1.0 - SPREAD + 2.0 * SPREAD * random))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tollway_model::Label;

    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn rule(retries: Option<u32>) -> RetryRule {
        let pause = Pauses::Constant(seconds(1));
        RetryRule { pause, retries, http: Vec::new(), grpc: Vec::new() }
    }

    #[test]
    fn rules_are_those_of_the_target_or_of_all_others() {
        let label = |text| Label::new(text).unwrap();
        let name = |text| ServiceName::parse_in(text, &label("default"), &label("west")).unwrap();
        let (home, named) = (name("web"), |text| NamedApp::parse(text).unwrap());
        let with = |seconds_| Rules { timeout: Some(seconds(seconds_)), ..Rules::default() };
        let mut found = Resiliency {
            apps: vec![(named("stock"), with(1)), (named("stock.shop.east"), with(5))],
            actors: vec![("Cart".to_owned(), with(2))],
            components: vec![("orders".to_owned(), with(6))],
            ..Resiliency::default()
        };
        let of_app = |found: &Resiliency, app| found.of_app(&name(app), &home).cloned();
        assert_eq!(of_app(&found, "stock"), Some(with(1)));
        assert_eq!(of_app(&found, "STOCK.default.west"), Some(with(1)));
        assert_eq!(of_app(&found, "stock.shop.east"), Some(with(5)));
        assert_eq!((of_app(&found, "stock.shop"), found.of_actor("Other")), (None, None));
        assert_eq!((found.of_store("orders"), found.of_store("other")), (Some(&with(6)), None));
        found.other_stores = Some(with(7));
        assert_eq!(
            (found.of_store("orders"), found.of_store("other")),
            (Some(&with(6)), Some(&with(7)))
        );
        found.other_apps = Some(with(3));
        found.other_actors = Some(with(4));
        assert_eq!(of_app(&found, "stock.shop"), Some(with(3)));
        assert_eq!(found.of_actor("Cart"), Some(&with(2)));
        assert_eq!(found.of_actor("Other"), Some(&with(4)));
    }

    #[test]
    fn a_name_that_cannot_be_an_apps_is_refused() {
        for text in ["", "a..b", "a b", "a.b.c.d"] {
            assert!(NamedApp::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_failed_is_tried_again_as_often_as_it_may() {
        let twice = rule(Some(2));
        let failed = Outcome::Http(500);
        assert_eq!(twice.decide(failed, 1, 0.5), Some(seconds(1)));
        assert_eq!(twice.decide(failed, 2, 0.5), Some(seconds(1)));
        assert_eq!(twice.decide(failed, 3, 0.5), None);
        assert_eq!(rule(None).decide(failed, 1_000_000, 0.5), Some(seconds(1)));
        assert_eq!(rule(Some(0)).decide(failed, 1, 0.5), None);
        for fine in [Outcome::Http(200), Outcome::Http(399), Outcome::Grpc(0)] {
            assert_eq!(twice.decide(fine, 1, 0.5), None, "{fine:?}");
        }
        for bad in [Outcome::Http(400), Outcome::Http(199), Outcome::Grpc(1), Outcome::TimedOut] {
            assert!(twice.decide(bad, 1, 0.5).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn statuses_that_are_named_are_the_only_ones() {
        let named = RetryRule { http: vec![429..=429, 500..=599], grpc: vec![4..=4], ..rule(None) };
        let is_again = |outcome| named.decide(outcome, 1, 0.0).is_some();
        assert!(is_again(Outcome::Http(429)) && is_again(Outcome::Http(503)));
        assert!(is_again(Outcome::Grpc(4)) && is_again(Outcome::TimedOut));
        assert!(is_again(Outcome::Failed), "it has no status to be named by");
        assert!(!is_again(Outcome::Http(404)) && !is_again(Outcome::Grpc(5)));
    }

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let grows = Pauses::Exponential(seconds(2));
        let after = |made| grows.after(made, 0.5).as_millis();
        assert_eq!([after(1), after(2), after(3), after(9)], [500, 750, 1125, 2000]);
        assert_eq!(grows.after(1, 0.0).as_millis(), 250);
        assert_eq!(grows.after(u32::MAX, 1.0), seconds(3));
    }
}
