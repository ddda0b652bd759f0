//! Requests to actors in place of requests to the app: the actor of each request, and its method.
//!
//! The app runs actors of the type `Echo`, or of many (`tollway echo --actors`).
//! Through a sidecar the request is Dapr's of a caller; without one it is the sidecar's request to
//! the app itself, so that `direct` does the same work without placement, activation and turns.

use std::time::Duration;

use serde::Deserialize;

/// What a sidecar's routes of HTTP have before and behind the service's name.
const INVOKED: (&str, &str) = ("/v1.0/invoke/", "/method/echo");
/// Far ahead: what is measured is the registration.
const DUE: &str = r#"{"dueTime":"24h"}"#;

/// Requests to actors; HTTP only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActorsSpec {
    /// The number of actors, which are called one after the other. Without it each request is to a
    /// new actor.
    #[serde(default)]
    pub ids: Option<u32>,
    /// Of so many types, one after the other, which the app runs besides `Echo`; of that one when
    /// left out.
    #[serde(default)]
    pub types: Option<u32>,
    #[serde(default)]
    pub ask: Ask,
}

/// The method of an actor that is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// To send the request's body back, in a turn of its own.
    #[default]
    Call,
    /// To be woken in a day, by the sidecar of its host. Only an app that runs such actors can ask
    /// for that, by its own sidecar; so with a reminder.
    Timer,
    /// To be woken in a day wherever it is then; answered when that is on disk.
    Reminder,
    /// Nothing: it is woken by a timer, again and again. So many actors are, at the case's rate
    /// together, and what is measured is how late the app has each.
    TimerFires,
    /// The same, and it writes state each time, before it answers.
    TimerWrites,
    /// As `TimerFires`, by a reminder.
    ReminderFires,
}

/// Actors whose timers or reminders fire, in place of requests.
#[derive(Debug, Clone, PartialEq)]
pub struct ActorTimers {
    /// The app by the name under which its sidecar can call it.
    pub app: String,
    /// `timer` or `reminder`.
    pub kind: &'static str,
    pub actors: u32,
    pub every: Duration,
    pub writes_state: bool,
}

impl ActorsSpec {
    /// The address of the actors behind the route to an app; `crosses` if the app is in another
    /// network than the caller, so that the type must name the network. `None` if the route is not
    /// HTTP, or has no sidecar that could set timers.
    pub(crate) fn url(self, route: &str, crosses: bool) -> Option<String> {
        let id = self.ids.map_or("{uuid}".to_owned(), |ids| format!("{{1..{ids}}}"));
        let kind = match self.types {
            Some(types) => format!("Echo{{1001..{}}}", 1000 + types),
            None => "Echo".to_owned(),
        };
        let Some((api, service)) = route.split_once(INVOKED.0) else {
            let app = route.strip_suffix("/echo")?;
            return (self.ask == Ask::Call)
                .then(|| format!("{app}/actors/{kind}/{id}/method/echo"));
        };
        let service = service.strip_suffix(INVOKED.1)?;
        let kind = if crosses { format!("{kind}@{service}") } else { kind };
        let what = match self.ask {
            Ask::Call => "method/echo",
            Ask::Timer => "timers/lab",
            Ask::Reminder => "reminders/lab",
            // Before they are woken they are called, once.
            Ask::TimerFires | Ask::TimerWrites | Ask::ReminderFires => "method/echo",
        };
        Some(format!("{api}/v1.0/actors/{kind}/{id}/{what}"))
    }

    /// How many types the app has to run.
    pub(crate) fn app_types(self) -> u32 {
        1 + self.types.unwrap_or(0)
    }

    /// The body of every request; `None` for as many bytes as the case has.
    pub(crate) fn body(self) -> Option<&'static str> {
        match self.ask {
            Ask::Call | Ask::TimerFires | Ask::TimerWrites | Ask::ReminderFires => None,
            Ask::Timer | Ask::Reminder => Some(DUE),
        }
    }

    /// The period of each actor's timer so that all together have this rate; `None` for actors that
    /// are called.
    pub(crate) fn every(self, rate_rps: f64) -> Option<Duration> {
        let every = Duration::try_from_secs_f64(f64::from(self.ids?) / rate_rps).ok()?;
        // The option of the load generator is in whole milliseconds.
        self.fires().then(|| Duration::from_millis(every.as_millis() as u64))
    }

    /// Whether its actors have timers in place of being called.
    pub(crate) fn fires(self) -> bool {
        match self.ask {
            Ask::Call | Ask::Timer | Ask::Reminder => false,
            Ask::TimerFires | Ask::TimerWrites | Ask::ReminderFires => true,
        }
    }

    /// The API behind the route to an app, and the timers to set there; `None` where the route has no
    /// sidecar, or where actors are called instead.
    pub(crate) fn timers(self, route: &str, rate_rps: f64) -> Option<(String, ActorTimers)> {
        let every = self.every(rate_rps)?;
        let (api, service) = route.split_once(INVOKED.0)?;
        let app = service.strip_suffix(INVOKED.1)?.to_owned();
        let kind = if self.ask == Ask::ReminderFires { "reminder" } else { "timer" };
        let writes_state = self.ask == Ask::TimerWrites;
        let actors = self.ids?;
        Some((api.to_owned(), ActorTimers { app, kind, actors, every, writes_state }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDECAR: &str = "http://127.0.0.1:3500/v1.0/invoke/echo.default.east/method/echo";

    fn spec(ids: Option<u32>, ask: Ask) -> ActorsSpec {
        ActorsSpec { ids, types: None, ask }
    }

    #[test]
    fn types_are_asked_in_turn() {
        let many = ActorsSpec { types: Some(100), ..spec(Some(7), Ask::Call) };
        let expected = "http://127.0.0.1:3500/v1.0/actors/Echo{1001..1100}@echo.default.east/{1..7}/\
                        method/echo";
        assert_eq!(many.url(SIDECAR, true).as_deref(), Some(expected));
        assert_eq!((many.app_types(), spec(None, Ask::Call).app_types()), (101, 1));
    }

    #[test]
    fn a_sidecar_is_asked_for_actors_of_the_app_behind_it() {
        for (spec, crosses, expected) in [
            (spec(None, Ask::Call), false, "Echo/{uuid}/method/echo"),
            (spec(Some(50), Ask::Call), true, "Echo@echo.default.east/{1..50}/method/echo"),
            (spec(Some(9), Ask::Timer), false, "Echo/{1..9}/timers/lab"),
            (spec(None, Ask::Reminder), false, "Echo/{uuid}/reminders/lab"),
        ] {
            let expected = format!("http://127.0.0.1:3500/v1.0/actors/{expected}");
            assert_eq!(spec.url(SIDECAR, crosses), Some(expected));
        }
    }

    #[test]
    fn actors_that_are_woken_have_a_rate_together() {
        let woken = |ask| spec(Some(500), ask).timers(SIDECAR, 250.0);
        let (api, timers) = woken(Ask::TimerWrites).unwrap();
        assert_eq!(api, "http://127.0.0.1:3500");
        let expected = ActorTimers {
            app: "echo.default.east".to_owned(),
            kind: "timer",
            actors: 500,
            every: Duration::from_secs(2),
            writes_state: true,
        };
        assert_eq!(timers, expected);
        let (_, reminders) = woken(Ask::ReminderFires).unwrap();
        assert_eq!((reminders.kind, reminders.writes_state), ("reminder", false));
        assert_eq!(woken(Ask::Timer), None);
        assert_eq!(spec(Some(1), Ask::TimerFires).timers("http://10.0.0.2:8080/echo", 1.0), None);
        assert_eq!(
            (spec(None, Ask::TimerFires).fires(), spec(Some(1), Ask::Call).fires()),
            (true, false)
        );
    }

    #[test]
    fn an_app_is_asked_as_its_sidecar_would() {
        let app = "http://10.0.0.2:8080/echo";
        let called = "http://10.0.0.2:8080/actors/Echo/{1..2}/method/echo";
        assert_eq!(spec(Some(2), Ask::Call).url(app, true).as_deref(), Some(called));
        assert_eq!(spec(Some(2), Ask::Timer).url(app, false), None);
        assert_eq!(spec(Some(2), Ask::Call).url("10.0.0.2:50051", false), None);
    }
}
