//! Dapr's Resiliency files: what is done about calls of apps and actors that fail.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use tollway_config::go::duration;
use tollway_routing::{BreakerRule, NamedApp, Pauses, Resiliency, RetryRule, Rules, Scope, Trip};

use crate::resources::Resource;

/// Dapr's default.
const PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const REST: Duration = Duration::from_secs(60);
const BREAKERS_OF_APP: usize = 100;
const BREAKERS_OF_ACTORS: usize = 5000;
/// What default policies of state stores are named after, the nearest first.
const STORE_KINDS: [&str; 3] = ["StatestoreComponentOutbound", "ComponentOutbound", "Component"];
/// Most breakers that may be configured.
const BREAKERS: usize = 100_000;

/// A document as it is written.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document {
    #[serde(rename = "apiVersion")]
    _api_version: IgnoredAny,
    #[serde(rename = "kind")]
    _kind: IgnoredAny,
    #[serde(rename = "metadata")]
    _metadata: IgnoredAny,
    spec: Spec,
    #[serde(rename = "scopes")]
    _scopes: IgnoredAny,
    #[serde(rename = "status")]
    _status: IgnoredAny,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    policies: Policies,
    targets: Targets,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Policies {
    timeouts: BTreeMap<String, String>,
    retries: BTreeMap<String, Retry>,
    circuit_breakers: BTreeMap<String, CircuitBreaker>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Retry {
    policy: String,
    duration: String,
    max_interval: String,
    max_retries: Option<i64>,
    matching: Matching,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Matching {
    #[serde(rename = "httpStatusCodes")]
    http: String,
    #[serde(rename = "gRPCStatusCodes")]
    grpc: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CircuitBreaker {
    max_requests: i64,
    interval: String,
    timeout: String,
    trip: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Targets {
    apps: BTreeMap<String, Target>,
    actors: BTreeMap<String, Target>,
    components: BTreeMap<String, ComponentTarget>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ComponentTarget {
    /// What is asked of the component.
    outbound: Target,
    /// What the component brings to the app, as a state store never does.
    inbound: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Target {
    timeout: String,
    retry: String,
    circuit_breaker: String,
    circuit_breaker_scope: String,
    circuit_breaker_cache_size: i64,
}

/// Adds the rules of a document; notes name what has no effect.
///
/// # Errors
/// A value is not understood or a name occurs twice, in words. Nothing of the document applies
/// then.
pub(crate) fn read(
    resource: &Resource,
    into: &mut Resiliency,
    notes: &mut Vec<String>,
) -> Result<(), String> {
    let document: Document = resource.decode(notes).map_err(|mistake| mistake.to_string())?;
    let mut with = into.clone();
    document.spec.add_to(&resource.name, &mut with, notes)?;
    *into = with;
    Ok(())
}

impl Spec {
    fn add_to(
        self,
        file: &str,
        into: &mut Resiliency,
        notes: &mut Vec<String>,
    ) -> Result<(), String> {
        let Self { policies, targets } = self;
        let mut reader = Reader { file, policies: &policies, notes };
        for (name, target) in &targets.apps {
            let field = format!("targets.apps.{name}");
            let app = NamedApp::parse(name).map_err(|error| format!("{field}: {error}"))?;
            if into.apps.iter().any(|(known, _)| *known == app) {
                return Err(format!("{field} is in another file too; keep one of them"));
            }
            if !target.circuit_breaker_scope.is_empty() {
                reader.note(format!("{field}.circuitBreakerScope has no effect: it is for actors"));
            }
            into.apps.push((app, reader.rules(target, &field, BREAKERS_OF_APP)?));
        }
        for (name, target) in &targets.actors {
            let field = format!("targets.actors.{name}");
            if into.actors.iter().any(|(known, _)| known == name) {
                return Err(format!("{field} is in another file too; keep one of them"));
            }
            let rules = reader.rules(target, &field, BREAKERS_OF_ACTORS)?;
            into.actors.push((name.clone(), rules));
        }
        for (name, target) in &targets.components {
            let field = format!("targets.components.{name}");
            if into.components.iter().any(|(known, _)| known == name) {
                return Err(format!("{field} is in another file too; keep one of them"));
            }
            if target.inbound.is_some() {
                reader.note(format!("{field}.inbound has no effect: state stores make no calls"));
            }
            let field = format!("{field}.outbound");
            let rules = reader.rules(&target.outbound, &field, BREAKERS_OF_APP)?;
            into.components.push((name.clone(), rules));
        }
        for (kinds, cache, rules) in [
            (&["App"][..], BREAKERS_OF_APP, &mut into.other_apps),
            (&["Actor"], BREAKERS_OF_ACTORS, &mut into.other_actors),
            (&STORE_KINDS, BREAKERS_OF_APP, &mut into.other_stores),
        ] {
            let usual = Target::usual(kinds, &policies);
            if usual.is_set() {
                *rules = Some(reader.rules(&usual, "a default policy", cache)?);
            }
        }
        Ok(())
    }
}

impl Target {
    /// The default policies, which apply to every target that is not named.
    fn usual(kinds: &[&str], policies: &Policies) -> Self {
        let first = |part: &str, is_there: &dyn Fn(&str) -> bool| {
            let kinds = kinds.iter().chain(&[""]);
            let mut names = kinds.map(|kind| format!("Default{kind}{part}Policy"));
            names.find(|name| is_there(name)).unwrap_or_default()
        };
        Self {
            timeout: first("Timeout", &|name| policies.timeouts.contains_key(name)),
            retry: first("Retry", &|name| policies.retries.contains_key(name)),
            circuit_breaker: first("CircuitBreaker", &|name| {
                policies.circuit_breakers.contains_key(name)
            }),
            ..Self::default()
        }
    }

    fn is_set(&self) -> bool {
        [&self.timeout, &self.retry, &self.circuit_breaker].iter().any(|name| !name.is_empty())
    }
}

/// Reads targets by the policies of their file.
struct Reader<'a> {
    file: &'a str,
    policies: &'a Policies,
    notes: &'a mut Vec<String>,
}

impl<'a> Reader<'a> {
    fn note(&mut self, what: String) {
        self.notes.push(format!("Resiliency `{}`: {what}", self.file));
    }

    /// The policy of a name; a note where no policy is called so, and then none applies.
    fn named<T>(&mut self, all: &'a BTreeMap<String, T>, name: &str, field: &str) -> Option<&'a T> {
        let found = all.get(name);
        if found.is_none() && !name.is_empty() {
            self.note(format!(
                "{field} is `{name}`, which no policy of the file is called: none applies"
            ));
        }
        found
    }

    fn rules(&mut self, target: &Target, field: &str, breakers: usize) -> Result<Rules, String> {
        let policies = self.policies;
        let (timeout, retry) = (&target.timeout, &target.retry);
        let timeout = match self.named(&policies.timeouts, timeout, &format!("{field}.timeout")) {
            Some(text) => Some(time(text, &format!("policies.timeouts.{timeout}"))?),
            None => None,
        };
        let retry = match self.named(&policies.retries, retry, &format!("{field}.retry")) {
            Some(found) => Some(found.rule(&format!("policies.retries.{retry}"))?),
            None => None,
        };
        let breaker = &target.circuit_breaker;
        let at = format!("{field}.circuitBreaker");
        let breaker = match self.named(&policies.circuit_breakers, breaker, &at) {
            Some(found) => Some(found.rule(&format!("policies.circuitBreakers.{breaker}"))?),
            None => None,
        };
        let scope = match target.circuit_breaker_scope.as_str() {
            "" | "type" => Scope::Type,
            "id" => Scope::Id,
            "both" => Scope::Both,
            word => {
                return Err(format!(
                    "{field}.circuitBreakerScope is `{word}`; write type, id or both"
                ));
            }
        };
        let breakers = match usize::try_from(target.circuit_breaker_cache_size) {
            Ok(0) => breakers,
            Ok(most) if most <= BREAKERS => most,
            Ok(_) | Err(_) => {
                return Err(format!(
                    "{field}.circuitBreakerCacheSize is {}; it may be {BREAKERS} at most",
                    target.circuit_breaker_cache_size
                ));
            }
        };
        // A timeout of zero is none.
        let timeout = timeout.filter(|time| !time.is_zero());
        Ok(Rules { file: self.file.to_owned(), timeout, retry, breaker, scope, breakers })
    }
}

impl Retry {
    fn rule(&self, field: &str) -> Result<RetryRule, String> {
        let pause = match self.policy.to_ascii_lowercase().as_str() {
            "" | "constant" => {
                Pauses::Constant(given(&self.duration, &format!("{field}.duration"), PAUSE)?)
            }
            "exponential" => {
                let at = format!("{field}.maxInterval");
                Pauses::Exponential(given(&self.max_interval, &at, LONGEST_PAUSE)?)
            }
            word => {
                return Err(format!("{field}.policy is `{word}`; write constant or exponential"));
            }
        };
        let retries = match self.max_retries {
            None | Some(i64::MIN..0) => None,
            Some(most) => Some(u32::try_from(most).unwrap_or(u32::MAX)),
        };
        let http = ranges(&self.matching.http, &format!("{field}.matching.httpStatusCodes"), 599)?;
        let grpc = ranges(&self.matching.grpc, &format!("{field}.matching.gRPCStatusCodes"), 16)?;
        Ok(RetryRule { pause, retries, http, grpc })
    }
}

impl CircuitBreaker {
    fn rule(&self, field: &str) -> Result<BreakerRule, String> {
        let trip = match self.trip.as_str() {
            "" => Trip::usual(),
            text => text.parse().map_err(|error| format!("{field}.trip: {error}"))?,
        };
        let trials = match u32::try_from(self.max_requests) {
            Ok(trials) => trials.max(1),
            Err(_) => {
                return Err(format!(
                    "{field}.maxRequests is {}; write a number from 0",
                    self.max_requests
                ));
            }
        };
        Ok(BreakerRule {
            trials,
            interval: given(&self.interval, &format!("{field}.interval"), Duration::ZERO)?,
            rest: given(&self.timeout, &format!("{field}.timeout"), REST)?,
            trip,
        })
    }
}

/// A time, or the usual one where none is given.
fn given(text: &str, field: &str, usual: Duration) -> Result<Duration, String> {
    if text.is_empty() { Ok(usual) } else { time(text, field) }
}

/// A time; a number alone has milliseconds.
fn time(text: &str, field: &str) -> Result<Duration, String> {
    let wrong = || format!("{field} is `{text}`, which is no time; write one such as 5s or 1m30s");
    match text.parse::<u64>() {
        Ok(number) => Ok(Duration::from_millis(number)),
        Err(_) => duration(text).ok_or_else(wrong),
    }
}

/// Numbers and ranges with commas between them, up to `most`.
fn ranges(text: &str, field: &str, most: u16) -> Result<Vec<RangeInclusive<u16>>, String> {
    let wrong = |part: &str| {
        format!("{field} has `{part}`; write numbers up to {most} and ranges such as 2-4")
    };
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u16>().ok().filter(|number| *number <= most);
        let range = number(first)?..=number(last)?;
        (!range.is_empty()).then_some(range)
    };
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    text.split(',').map(|part| range(part).ok_or_else(|| wrong(part))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tollway_config::go::{Reader as Dialect, decode, only_document};
    use tollway_model::{Label, ServiceName};

    use super::*;

    fn home() -> ServiceName {
        let label = |text| Label::new(text).unwrap();
        ServiceName::parse_in("web", &label("default"), &label("west")).unwrap()
    }

    fn found(spec: &Value) -> Result<(Resiliency, Vec<String>), String> {
        let (mut found, mut notes) = (Resiliency::default(), Vec::new());
        add("rules", spec, &mut found, &mut notes).map(|()| (found, notes))
    }

    fn add(
        file: &str,
        spec: &Value,
        into: &mut Resiliency,
        notes: &mut Vec<String>,
    ) -> Result<(), String> {
        let text = spec.to_string();
        let node = only_document(&text, Dialect::Resource, "a.yaml").unwrap().unwrap();
        let spec = decode::<Spec>(&node, Dialect::Resource, "a.yaml");
        spec.map_err(|error| error.what)?.value.add_to(file, into, notes)
    }

    #[test]
    fn numbers_stand_for_times_and_null_for_nothing() {
        let (rules, notes) = found(&json!({
            "policies": {
                "timeouts": { "t": 500 },
                "retries": { "r": { "duration": 20, "maxRetries": 2, "matching": null }, "n": null },
                "circuitBreakers": { "c": { "Interval": 0, "timeout": "", "maxRequests": null } },
            },
            "targets": { "apps": {
                "a": { "timeout": "t", "retry": "r", "circuitBreaker": "c", "circuitBreakerScope": "" },
                "b": { "retry": "n" }, "c": null,
            }, "actors": null, "components": {} },
            "Policies": null,
        }))
        .unwrap();
        let app = |name| rules.of_app(&ServiceName::parse(name, &home()).unwrap(), &home());
        let a = app("a").unwrap();
        assert_eq!(a.timeout, Some(Duration::from_millis(500)));
        assert_eq!(a.retry.as_ref().unwrap().pause, Pauses::Constant(Duration::from_millis(20)));
        assert_eq!(a.breaker.as_ref().unwrap().rest, Duration::from_secs(60));
        assert_eq!(app("b").unwrap().retry.as_ref().unwrap().pause, Pauses::Constant(PAUSE));
        assert_eq!(notes, [""; 0]);
    }

    #[test]
    fn a_policy_that_is_not_there_applies_nowhere_as_in_daprd() {
        let app = |target: Value| json!({ "policies": policies(), "targets": { "apps": { "a": target } } });
        for (target, part) in [
            (json!({ "retry": "none" }), "targets.apps.a.retry is `none`"),
            (json!({ "timeout": "often" }), "targets.apps.a.timeout is `often`"),
            (json!({ "circuitBreaker": "x" }), "targets.apps.a.circuitBreaker is `x`"),
            (json!({ "circuitBreakerScope": "id" }), "it is for actors"),
        ] {
            let (rules, notes) = found(&app(target)).unwrap();
            assert!(notes.len() == 1 && notes[0].contains(part), "{part}: {notes:?}");
            let rules = rules.of_app(&ServiceName::parse("a", &home()).unwrap(), &home()).unwrap();
            assert!(rules.retry.is_none() && rules.timeout.is_none() && rules.breaker.is_none());
        }
    }

    fn policies() -> Value {
        json!({
            "timeouts": { "short": "500ms" },
            "retries": {
                "often": { "policy": "constant", "duration": "1s", "maxRetries": 3,
                    "matching": { "httpStatusCodes": "429, 500-599", "gRPCStatusCodes": "14" } },
                "grows": { "policy": "exponential", "maxInterval": "15s" },
            },
            "circuitBreakers": {
                "cb": { "maxRequests": 2, "interval": "8s", "timeout": "45s",
                    "trip": "consecutiveFailures >= 3" },
                "usual": {},
            },
        })
    }

    #[test]
    fn targets_are_read_with_their_policies() {
        let (found, notes) = found(&json!({
            "policies": policies(),
            "targets": {
                "apps": {
                    "stock": { "timeout": "short", "retry": "often", "circuitBreaker": "cb" },
                    "stock.shop.east": { "retry": "grows", "circuitBreakerCacheSize": 7 },
                },
                "actors": {
                    "Cart": { "circuitBreaker": "usual", "circuitBreakerScope": "both" },
                },
                "components": {
                    "store": { "outbound": { "retry": "often", "circuitBreaker": "usual" } },
                    "pubsub": { "inbound": { "retry": "often" } },
                },
            },
        }))
        .unwrap();
        let app = |name| found.of_app(&ServiceName::parse(name, &home()).unwrap(), &home());
        let stock = app("stock.default.west").unwrap();
        assert_eq!(stock.timeout, Some(Duration::from_millis(500)));
        let retry = stock.retry.as_ref().unwrap();
        assert_eq!(
            (retry.pause, retry.retries),
            (Pauses::Constant(Duration::from_secs(1)), Some(3))
        );
        assert_eq!(
            (&retry.http[..], &retry.grpc[..]),
            (&[429..=429, 500..=599][..], &[14..=14][..])
        );
        let breaker = stock.breaker.as_ref().unwrap();
        let times = (breaker.interval.as_secs(), breaker.rest.as_secs());
        assert_eq!((breaker.trials, times, stock.breakers), (2, (8, 45), 100));
        let far = app("stock.shop.east").unwrap();
        let grows = Pauses::Exponential(Duration::from_secs(15));
        assert_eq!((far.retry.as_ref().unwrap().pause, far.breakers), (grows, 7));
        assert_eq!(far.retry.as_ref().unwrap().retries, None);
        let cart = found.of_actor("Cart").unwrap();
        assert_eq!((cart.scope, cart.breakers), (Scope::Both, 5000));
        assert_eq!(cart.breaker.as_ref().unwrap().trip, Trip::usual());
        let store = found.of_store("store").unwrap();
        assert_eq!(store.retry.as_ref().unwrap().retries, Some(3));
        assert_eq!(store.breaker.as_ref().unwrap().trip, Trip::usual());
        assert_eq!((app("other"), found.of_actor("Other")), (None, None));
        assert_eq!(found.of_store("other"), None);
        let [note] = &notes[..] else { panic!("{notes:?}") };
        assert!(note.contains("targets.components.pubsub.inbound has no effect"), "{note}");
    }

    #[test]
    fn default_policies_hold_for_what_is_not_named() {
        let retry = |seconds: u32| json!({ "duration": format!("{seconds}s") });
        let (found, _) = found(&json!({ "policies": {
            "retries": { "DefaultRetryPolicy": retry(1), "DefaultAppRetryPolicy": retry(2) },
            "timeouts": {
                "DefaultActorTimeoutPolicy": "7s", "DefaultTimeoutPolicy": "8s",
                "DefaultComponentTimeoutPolicy": "9s",
                "DefaultStatestoreComponentOutboundTimeoutPolicy": "10s",
            },
        } }))
        .unwrap();
        let store = found.of_store("any").unwrap();
        assert_eq!(store.timeout, Some(Duration::from_secs(10)));
        let pause = Pauses::Constant(Duration::from_secs(1));
        assert_eq!(store.retry.as_ref().unwrap().pause, pause);
        let (app, actor) =
            (found.of_app(&home(), &home()).unwrap(), found.of_actor("Any").unwrap());
        let pause = |rules: &Rules| rules.retry.as_ref().unwrap().pause;
        assert_eq!(pause(app), Pauses::Constant(Duration::from_secs(2)));
        assert_eq!(pause(actor), Pauses::Constant(Duration::from_secs(1)));
        assert_eq!(app.timeout, Some(Duration::from_secs(8)));
        assert_eq!(actor.timeout, Some(Duration::from_secs(7)));
    }

    #[test]
    fn mistakes_are_reported_with_their_position() {
        let app = |target: Value| json!({ "policies": policies(), "targets": { "apps": { "a": target } } });
        let retry = |retry: Value| {
            json!({ "policies": { "retries": { "r": retry } },
                "targets": { "apps": { "a": { "retry": "r" } } } })
        };
        for (spec, message) in [
            (json!({ "policies": [] }), "expected a mapping, found a list"),
            (app(json!({ "circuitBreakerCacheSize": 1_000_000 })), "100000 at most"),
            (json!({ "targets": { "apps": { "a.b.c.d": {} } } }), "targets.apps.a.b.c.d: "),
            (
                json!({ "targets": { "actors": { "A": { "circuitBreakerScope": "x" } } } }),
                "type, id or both",
            ),
            (retry(json!({ "policy": "linear" })), "policies.retries.r.policy is `linear`"),
            (retry(json!({ "duration": "soon" })), "policies.retries.r.duration is `soon`"),
            (
                retry(json!({ "matching": { "httpStatusCodes": "5xx" } })),
                "httpStatusCodes has `5xx`",
            ),
            (
                retry(json!({ "matching": { "gRPCStatusCodes": "4-2" } })),
                "gRPCStatusCodes has `4-2`",
            ),
            (retry(json!({ "matching": { "gRPCStatusCodes": "17" } })), "numbers up to 16"),
            (
                json!({ "policies": { "circuitBreakers": { "c": { "trip": "failures > 1" } } },
                    "targets": { "apps": { "a": { "circuitBreaker": "c" } } } }),
                "policies.circuitBreakers.c.trip: `failures` is none of",
            ),
        ] {
            let refused = found(&spec).unwrap_err();
            assert!(refused.contains(message), "{spec}: {refused}");
        }
        let mut twice = found(&app(json!({}))).unwrap().0;
        let again = add("more", &app(json!({})), &mut twice, &mut Vec::new()).unwrap_err();
        assert!(again.contains("in another file too"), "{again}");
    }
}
