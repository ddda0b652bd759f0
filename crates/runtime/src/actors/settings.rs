//! The actor types that an app offers, with their settings: from the response to `GET
//! /dapr/config`, or from the first message of its stream.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tollway_actors::placement::TypeOptions;
use tollway_wire::ACTOR_TYPES_PER_HOST_LIMIT;

use crate::go_json;

/// Dapr's defaults.
const IDLE: Duration = Duration::from_secs(60 * 60);
const DRAIN: Duration = Duration::from_secs(2);
const STACK_DEPTH: usize = 32;

/// The actor types that an app offers, with their options.
pub(crate) type Types = BTreeMap<Arc<str>, TypeOptions>;

/// Settings of all types, or of some. `None` means the more general setting, or the default.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct TypeSettings {
    pub(crate) idle: Option<Duration>,
    pub(crate) drain: Option<Duration>,
    /// Whether turns under way are waited for.
    pub(crate) drains: Option<bool>,
    pub(crate) reentrancy: Option<Reentrancy>,
}

/// Whether calls of one chain may return to an actor that waits for them, and how deep.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Reentrancy {
    #[serde(default)]
    pub(crate) enabled: bool,
    #[serde(default)]
    pub(crate) max_stack_depth: Option<usize>,
}

impl TypeSettings {
    /// These settings; where one is missing, that of `general`.
    fn or(self, general: &Self) -> Self {
        Self {
            idle: self.idle.or(general.idle),
            drain: self.drain.or(general.drain),
            drains: self.drains.or(general.drains),
            reentrancy: self.reentrancy.or(general.reentrancy),
        }
    }

    fn options(&self) -> TypeOptions {
        let drain = self.drain.unwrap_or(DRAIN);
        let reentrancy = self.reentrancy.unwrap_or_default();
        let depth = reentrancy.max_stack_depth.filter(|depth| *depth > 0).unwrap_or(STACK_DEPTH);
        TypeOptions {
            idle: self.idle.unwrap_or(IDLE),
            drain: if self.drains.unwrap_or(true) { drain } else { Duration::ZERO },
            reentrancy: reentrancy.enabled.then_some(depth),
        }
    }
}

/// The types of an app: `entities` with the settings `general`, or those of `special`.
///
/// # Errors
/// The mistake, as text.
pub(crate) fn types(
    entities: &[String],
    general: &TypeSettings,
    special: Vec<(Vec<String>, TypeSettings)>,
) -> Result<Types, String> {
    let mut types = Types::new();
    for name in entities {
        tollway_wire::actor_type(name).map_err(|error| error.to_string())?;
        types.insert(Arc::from(name.as_str()), general.options());
    }
    for (names, said) in special {
        let options = said.or(general).options();
        for name in names {
            if let Some(known) = types.get_mut(name.as_str()) {
                known.clone_from(&options);
            }
        }
    }
    match types.len() {
        count if count > ACTOR_TYPES_PER_HOST_LIMIT => Err(format!(
            "it offers {count} actor types; an app may offer {ACTOR_TYPES_PER_HOST_LIMIT}"
        )),
        _ => Ok(types),
    }
}

/// The answer to `GET /dapr/config`, or its settings for some types.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Settings {
    entities: Vec<String>,
    actor_idle_timeout: String,
    drain_ongoing_call_timeout: String,
    drain_rebalanced_actors: Option<bool>,
    reentrancy: Option<Reentrancy>,
    entities_config: Vec<Settings>,
}

impl Settings {
    fn type_settings(&self) -> Result<TypeSettings, String> {
        Ok(TypeSettings {
            idle: duration("actorIdleTimeout", &self.actor_idle_timeout)?,
            drain: duration("drainOngoingCallTimeout", &self.drain_ongoing_call_timeout)?,
            drains: self.drain_rebalanced_actors,
            reentrancy: self.reentrancy,
        })
    }
}

/// Reads the answer to `GET /dapr/config`.
///
/// # Errors
/// The mistake, as text.
pub(crate) fn read(document: &[u8]) -> Result<Types, String> {
    if document.trim_ascii().is_empty() {
        return Ok(Types::new());
    }
    let document: Settings =
        go_json::from_slice(document).map_err(|error| format!("it is not understood: {error}"))?;
    let general = document.type_settings()?;
    let mut special = Vec::new();
    for part in document.entities_config {
        let settings = part.type_settings()?;
        special.push((part.entities, settings));
    }
    types(&document.entities, &general, special)
}

/// Reads a duration in Go's format. Returns `None` for an empty text or zero.
fn duration(field: &str, text: &str) -> Result<Option<Duration>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    // Python's SDK writes the Greek letter.
    let plain = text.replace(['µ', 'μ'], "u");
    let read = humantime::parse_duration(&plain);
    let read =
        read.map_err(|_| format!("`{field}` is {text:?}; write a time such as \"1h30m\""))?;
    Ok(Some(read).filter(|time| !time.is_zero()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_settings_of_the_app() {
        let document = br#"{
            "entities": ["Cart", "Meter"],
            "actorIdleTimeout": "1h0m0s0ms0\u03bcs",
            "actorScanInterval": "30s",
            "drainOngoingCallTimeout": "10s",
            "drainRebalancedActors": true,
            "reentrancy": {"enabled": true},
            "remindersStoragePartitions": 0,
            "entitiesConfig": [
                {"entities": ["Meter", "Nobody"], "actorIdleTimeout": "5s",
                 "drainRebalancedActors": false,
                 "reentrancy": {"enabled": true, "maxStackDepth": 3}}
            ]
        }"#;
        let types = read(document).unwrap();
        let cart = TypeOptions {
            idle: Duration::from_secs(3600),
            drain: Duration::from_secs(10),
            reentrancy: Some(32),
        };
        let meter = TypeOptions {
            idle: Duration::from_secs(5),
            drain: Duration::ZERO,
            reentrancy: Some(3),
        };
        assert_eq!(types, Types::from([("Cart".into(), cart), ("Meter".into(), meter)]));
    }

    #[test]
    fn missing_settings_are_those_of_dapr() {
        let options = TypeOptions { idle: IDLE, drain: DRAIN, reentrancy: None };
        let expected = Types::from([("Cart".into(), options)]);
        assert_eq!(read(br#"{"entities":["Cart"],"reentrancy":{}}"#), Ok(expected));
        for nothing in ["", "{}", r#"{"entities":null}"#, r#"{"entities":[]}"#] {
            assert_eq!(read(nothing.as_bytes()), Ok(Types::new()), "{nothing}");
        }
    }

    #[test]
    fn a_document_that_cannot_be_read_is_an_error() {
        let read = |text: &str| read(text.as_bytes()).unwrap_err();
        assert!(read("<html>").contains("not understood"));
        assert!(
            read(r#"{"entities":["a"],"actorIdleTimeout":"soon"}"#).contains("actorIdleTimeout")
        );
        assert!(read(r#"{"entities":[""]}"#).contains("actor type"));
    }
}
