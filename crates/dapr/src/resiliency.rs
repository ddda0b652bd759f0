//! Dapr's Resiliency files: what is done about calls of apps and actors that fail.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tollway_routing::{BreakerRule, NamedApp, Pauses, Resiliency, RetryRule, Rules, Scope, Trip};

use crate::configuration::is_filled;
use crate::values;

/// Dapr's default.
const PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const REST: Duration = Duration::from_secs(60);
const BREAKERS_OF_APP: usize = 100;
const BREAKERS_OF_ACTORS: usize = 5000;
/// Most breakers that may be configured.
const BREAKERS: usize = 100_000;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Spec {
    policies: Policies,
    targets: Targets,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Policies {
    timeouts: BTreeMap<String, String>,
    retries: BTreeMap<String, Retry>,
    circuit_breakers: BTreeMap<String, CircuitBreaker>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Retry {
    policy: Option<String>,
    duration: Option<String>,
    max_interval: Option<String>,
    max_retries: Option<i64>,
    matching: Matching,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Matching {
    #[serde(rename = "httpStatusCodes")]
    http: String,
    #[serde(rename = "gRPCStatusCodes")]
    grpc: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct CircuitBreaker {
    max_requests: Option<u32>,
    interval: Option<String>,
    timeout: Option<String>,
    trip: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Targets {
    apps: BTreeMap<String, Target>,
    actors: BTreeMap<String, Target>,
    /// Those of state stores and others, which have rules of their own.
    components: Value,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Target {
    timeout: String,
    retry: String,
    circuit_breaker: String,
    circuit_breaker_scope: Option<String>,
    circuit_breaker_cache_size: Option<usize>,
}

/// Adds the `spec` of the file `file`; notes name what has no effect.
///
/// # Errors
/// A value is not understood or a name occurs twice, in words.
pub(crate) fn read(
    file: &str,
    spec: &Value,
    into: &mut Resiliency,
    notes: &mut Vec<String>,
) -> Result<(), String> {
    let Spec { policies, targets } = match spec.is_null() {
        true => Spec::default(),
        false => Spec::deserialize(spec).map_err(|error| error.to_string())?,
    };
    for (name, target) in &targets.apps {
        let field = format!("targets.apps.{name}");
        let app = NamedApp::parse(name).map_err(|error| format!("{field}: {error}"))?;
        if into.apps.iter().any(|(known, _)| *known == app) {
            return Err(format!("{field} is said in another file too; say it once"));
        }
        if target.circuit_breaker_scope.is_some() {
            return Err(format!("{field}.circuitBreakerScope is for actors; leave it out"));
        }
        into.apps.push((app, target.rules((file, &field), &policies, BREAKERS_OF_APP)?));
    }
    for (name, target) in &targets.actors {
        let field = format!("targets.actors.{name}");
        if into.actors.iter().any(|(known, _)| known == name) {
            return Err(format!("{field} is said in another file too; say it once"));
        }
        let rules = target.rules((file, &field), &policies, BREAKERS_OF_ACTORS)?;
        into.actors.push((name.clone(), rules));
    }
    for (kind, cache, rules) in [
        ("App", BREAKERS_OF_APP, &mut into.other_apps),
        ("Actor", BREAKERS_OF_ACTORS, &mut into.other_actors),
    ] {
        let usual = Target::usual(kind, &policies);
        if usual.is_set() {
            *rules = Some(usual.rules((file, "a default policy"), &policies, cache)?);
        }
    }
    if is_filled(&targets.components) {
        notes.push("Resiliency has targets.components, which have no effect".to_owned());
    }
    Ok(())
}

impl Target {
    /// The default policies, which apply to every target that is not named.
    fn usual(kind: &str, policies: &Policies) -> Self {
        let first = |part: &str, is_there: &dyn Fn(&str) -> bool| {
            let names = [format!("Default{kind}{part}Policy"), format!("Default{part}Policy")];
            names.into_iter().find(|name| is_there(name)).unwrap_or_default()
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

    fn rules(
        &self,
        (file, field): (&str, &str),
        policies: &Policies,
        breakers: usize,
    ) -> Result<Rules, String> {
        let unknown = |part: &str, name: &str| {
            format!("{field}.{part} is `{name}`, which no policy of the file is called")
        };
        let timeout = match self.timeout.as_str() {
            "" => None,
            name => {
                let text = policies.timeouts.get(name).ok_or_else(|| unknown("timeout", name))?;
                Some(duration(text, &format!("policies.timeouts.{name}"))?)
            }
        };
        let retry = match self.retry.as_str() {
            "" => None,
            name => {
                let retry = policies.retries.get(name).ok_or_else(|| unknown("retry", name))?;
                Some(retry.rule(&format!("policies.retries.{name}"))?)
            }
        };
        let breaker = match self.circuit_breaker.as_str() {
            "" => None,
            name => {
                let breaker = policies.circuit_breakers.get(name);
                let breaker = breaker.ok_or_else(|| unknown("circuitBreaker", name))?;
                Some(breaker.rule(&format!("policies.circuitBreakers.{name}"))?)
            }
        };
        let scope = match self.circuit_breaker_scope.as_deref() {
            None | Some("" | "type") => Scope::Type,
            Some("id") => Scope::Id,
            Some("both") => Scope::Both,
            Some(word) => {
                return Err(format!(
                    "{field}.circuitBreakerScope is `{word}`; write type, id or both"
                ));
            }
        };
        let breakers = match self.circuit_breaker_cache_size {
            None | Some(0) => breakers,
            Some(most) if most > BREAKERS => {
                return Err(format!(
                    "{field}.circuitBreakerCacheSize is {most}; it may be {BREAKERS} at most"
                ));
            }
            Some(most) => most,
        };
        // A timeout of zero is none.
        let timeout = timeout.filter(|time| !time.is_zero());
        Ok(Rules { file: file.to_owned(), timeout, retry, breaker, scope, breakers })
    }
}

impl Retry {
    fn rule(&self, field: &str) -> Result<RetryRule, String> {
        let time = |text: &Option<String>, key: &str, usual| match text.as_deref() {
            None | Some("") => Ok(usual),
            Some(text) => duration(text, &format!("{field}.{key}")),
        };
        let pause = match self.policy.as_deref().map(str::to_ascii_lowercase).as_deref() {
            None | Some("" | "constant") => {
                Pauses::Constant(time(&self.duration, "duration", PAUSE)?)
            }
            Some("exponential") => {
                Pauses::Exponential(time(&self.max_interval, "maxInterval", LONGEST_PAUSE)?)
            }
            Some(word) => {
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
        let time = |text: &Option<String>, key: &str, usual| match text.as_deref() {
            None | Some("") => Ok(usual),
            Some(text) => duration(text, &format!("{field}.{key}")),
        };
        let trip = match self.trip.as_deref() {
            None | Some("") => Trip::usual(),
            Some(text) => text.parse().map_err(|error| format!("{field}.trip: {error}"))?,
        };
        Ok(BreakerRule {
            trials: self.max_requests.unwrap_or(1).max(1),
            interval: time(&self.interval, "interval", Duration::ZERO)?,
            rest: time(&self.timeout, "timeout", REST)?,
            trip,
        })
    }
}

fn duration(text: &str, field: &str) -> Result<Duration, String> {
    let wrong = || format!("{field} is `{text}`, which is no time; write one such as 5s or 1m30s");
    values::duration(text).ok_or_else(wrong)
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
    use serde_json::json;
    use tollway_model::{Label, ServiceName};

    use super::*;

    fn home() -> ServiceName {
        let label = |text| Label::new(text).unwrap();
        ServiceName::parse_in("web", &label("default"), &label("west")).unwrap()
    }

    fn found(spec: &Value) -> Result<(Resiliency, Vec<String>), String> {
        let (mut found, mut notes) = (Resiliency::default(), Vec::new());
        read("rules", spec, &mut found, &mut notes).map(|()| (found, notes))
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
                "components": { "store": { "outbound": { "retry": "often" } } },
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
        assert_eq!((app("other"), found.of_actor("Other")), (None, None));
        assert_eq!(notes, ["Resiliency has targets.components, which have no effect"]);
    }

    #[test]
    fn default_policies_hold_for_what_is_not_named() {
        let retry = |seconds: u32| json!({ "duration": format!("{seconds}s") });
        let (found, _) = found(&json!({ "policies": {
            "retries": { "DefaultRetryPolicy": retry(1), "DefaultAppRetryPolicy": retry(2) },
            "timeouts": { "DefaultActorTimeoutPolicy": "7s", "DefaultTimeoutPolicy": "8s" },
        } }))
        .unwrap();
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
            (json!({ "policy": {} }), "unknown field `policy`"),
            (app(json!({ "retry": "none" })), "targets.apps.a.retry is `none`"),
            (app(json!({ "timeout": "often" })), "targets.apps.a.timeout is `often`"),
            (app(json!({ "circuitBreaker": "x" })), "targets.apps.a.circuitBreaker is `x`"),
            (app(json!({ "circuitBreakerScope": "id" })), "is for actors"),
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
        let again = read("more", &app(json!({})), &mut twice, &mut Vec::new()).unwrap_err();
        assert!(again.contains("in another file too"), "{again}");
    }
}
