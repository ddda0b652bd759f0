//! The document of a component, and what it is for the app that reads it.

use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use tollway_config::go::{GoText, Placed, duration};
use tollway_config::{Mistake, suggest};

use super::fields::{Field, Fields};
use super::settings::{PostgresqlLayout, postgresql, redis, sqlite};
use super::{Component, ComponentContext, Engine, Read, UnusableStore};
use crate::key::KeyPrefix;

/// Time to open a store without `initTimeout`.
const INIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Types of state stores that are served, and their versions.
const TYPES: &[(&str, &[&str])] = &[
    ("state.in-memory", &["v1"]),
    ("state.sqlite", &["v1"]),
    ("state.redis", &["v1"]),
    ("state.postgresql", &["v1", "v2"]),
    ("state.postgres", &["v1", "v2"]),
];
/// Variables that are no secrets of components: Dapr hides its own too.
const HIDDEN_VARIABLES: &[&str] = &["APP_API_TOKEN", "TOLLWAY_", "DAPR_"];
/// Metadata that every state store has in Dapr and that have no effect here.
const IDLE: &[&str] =
    &["outboxPublishPubsub", "outboxPublishTopic", "outboxPubsub", "outboxDiscardWhenMissingState"];
/// Metadata by which Dapr encrypts what it stores.
const ENCRYPTION: [&str; 2] = ["primaryEncryptionKey", "secondaryEncryptionKey"];

/// A component as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Manifest {
    #[serde(rename = "apiVersion")]
    _api_version: IgnoredAny,
    #[serde(rename = "kind")]
    _kind: IgnoredAny,
    metadata: ObjectMeta,
    spec: Spec,
    /// Secrets are read from the environment, whatever the name of the store.
    #[serde(rename = "auth")]
    _auth: IgnoredAny,
    scopes: Vec<String>,
    #[serde(rename = "status")]
    _status: IgnoredAny,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ObjectMeta {
    name: Placed<String>,
    namespace: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    #[serde(rename = "type")]
    component_type: Placed<String>,
    version: Placed<String>,
    ignore_errors: bool,
    init_timeout: Placed<String>,
    metadata: Vec<Placed<Item>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Item {
    name: String,
    value: GoText,
    secret_key_ref: SecretKeyRef,
    env_ref: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SecretKeyRef {
    name: String,
    key: String,
}

impl Manifest {
    /// What the document is for an app. `notes` gets what has no effect.
    ///
    /// # Errors
    /// The first mistake in it.
    pub fn read(
        self,
        context: &ComponentContext<'_>,
        notes: &mut Vec<Mistake>,
    ) -> Result<Read, Mistake> {
        let component_type = self.spec.component_type.value.to_lowercase();
        let is_store = component_type.starts_with("state.");
        let namespace = &self.metadata.namespace;
        let is_elsewhere = !context.takes_all_namespaces
            && !namespace.is_empty()
            && !namespace.eq_ignore_ascii_case(context.namespace);
        let scoped = self.scopes.iter().any(|app| app.eq_ignore_ascii_case(context.app));
        if is_elsewhere || !(self.scopes.is_empty() || scoped) {
            return Ok(Read::ForOthers { is_store });
        }
        let name = self.metadata.name.value.clone();
        if !is_store {
            let kind = &self.spec.component_type.value;
            return Ok(Read::NotServed(format!("Component `{name}` of type {kind}")));
        }
        let (at, ignores_errors) = (self.spec.component_type.at, self.spec.ignore_errors);
        let unusable = |why, is_actor_store| {
            Read::Unusable(UnusableStore { name: name.clone(), why, is_actor_store })
        };
        if let Err(why) = check_name(&name) {
            return Ok(unusable(why.to_owned(), false));
        }
        match self.into_component(&component_type, context, notes) {
            Ok(Ok(component)) => Ok(Read::Store(Box::new(component))),
            Ok(Err(Unserved { why, is_actor_store })) => {
                notes.push(Mistake::at(
                    at,
                    format!("the state store `{name}` cannot be used: {why}"),
                ));
                Ok(unusable(why, is_actor_store))
            }
            Err(mistake) if ignores_errors => {
                let why = mistake.what.clone();
                notes.push(Mistake {
                    what: format!("the state store `{name}` cannot be used: {why}"),
                    ..mistake
                });
                Ok(unusable(why, false))
            }
            Err(mistake) => Err(mistake),
        }
    }

    fn into_component(
        self,
        component_type: &str,
        context: &ComponentContext<'_>,
        notes: &mut Vec<Mistake>,
    ) -> Result<Result<Component, Unserved>, Mistake> {
        let Spec { component_type: written, version, ignore_errors, init_timeout, metadata } =
            self.spec;
        let mut absent = None;
        let mut items = Vec::with_capacity(metadata.len());
        for item in metadata {
            let (field, why) = item_field(item, context, notes);
            items.push(field);
            absent = absent.or(why);
        }
        let mut fields = Fields::new(items, written.at)?;
        let key_prefix = key_prefix(&mut fields)?;
        let is_actor_store = fields.is_truthy("actorStateStore");
        for name in ENCRYPTION {
            if let Some(field) = fields.take(&[name]) {
                let what = format!("`{name}` is not served: nothing would be encrypted; remove it");
                return Err(Mistake::at(field.at, what));
            }
        }
        fields.skip(IDLE, "messages of transactions are not published");
        let unkept = || not_served(&written.value, &version.value);
        let blurred = || has_blurred_keys(&key_prefix, &self.metadata.name.value);
        if let Some(why) = absent.or_else(unkept).or_else(blurred) {
            return Ok(Err(Unserved { why, is_actor_store }));
        }
        let engine = match (component_type, version.value.as_str()) {
            ("state.sqlite", _) => Engine::Sqlite(sqlite(&mut fields)?),
            ("state.redis", _) => Engine::Redis(redis(&mut fields)?),
            ("state.postgresql" | "state.postgres", "v2") => {
                Engine::Postgresql(postgresql(&mut fields, PostgresqlLayout::V2)?)
            }
            ("state.postgresql" | "state.postgres", _) => {
                Engine::Postgresql(postgresql(&mut fields, PostgresqlLayout::V1)?)
            }
            _ => Engine::InMemory,
        };
        if let Some(why) = fields.finish(notes) {
            return Ok(Err(Unserved { why, is_actor_store }));
        }
        Ok(Ok(Component {
            name: self.metadata.name.value,
            component_type: written.value,
            version: version.value,
            key_prefix,
            is_actor_store,
            ignore_errors,
            init_timeout: read_timeout(&init_timeout, notes),
            engine,
        }))
    }
}

/// Why a store that is not wrong cannot be used.
struct Unserved {
    why: String,
    is_actor_store: bool,
}

/// Why a type in a version is not served. Without a version it is the first one.
fn not_served(component_type: &str, version: &str) -> Option<String> {
    let lower = component_type.to_lowercase();
    match TYPES.iter().find(|(known, _)| *known == lower) {
        None => {
            let known = TYPES.iter().map(|(known, _)| *known);
            Some(suggest::unknown("type", component_type, known))
        }
        Some((_, versions)) => {
            let is_known =
                version.is_empty() || versions.contains(&version.to_lowercase().as_str());
            (!is_known).then(|| suggest::unknown("version", version, versions.iter().copied()))
        }
    }
}

/// Why entries could have the keys of another store: its name ends where the rest of its keys begins.
fn has_blurred_keys(prefix: &KeyPrefix, name: &str) -> Option<String> {
    let is_blurred = *prefix == KeyPrefix::Name && (name.contains("||") || name.ends_with('|'));
    let why =
        "its keys begin with its name (keyPrefix); give it one without `||` and `|` at the end";
    is_blurred.then(|| why.to_owned())
}

fn check_name(name: &str) -> Result<(), &'static str> {
    let is_part = !name.is_empty()
        && !matches!(name, "." | "..")
        && !name.contains(['/', '%'])
        && !name.chars().any(char::is_control);
    let what = "its name is no part of a path: give it one without `/` and `%`";
    is_part.then_some(()).ok_or(what)
}

/// The time to open a store; what is no time is the default, as in Dapr, with a note.
fn read_timeout(written: &Placed<String>, notes: &mut Vec<Mistake>) -> Duration {
    let text = written.value.as_str();
    if text.is_empty() {
        return INIT_TIMEOUT;
    }
    duration(text).filter(|time| !time.is_zero()).unwrap_or_else(|| {
        let what = format!("`initTimeout` is {text:?}, which is no time such as 10s: it is 5s");
        notes.push(Mistake::at(written.at, what));
        INIT_TIMEOUT
    })
}

fn key_prefix(fields: &mut Fields) -> Result<KeyPrefix, Mistake> {
    let Some(field) = fields.take(&["keyPrefix"]) else { return Ok(KeyPrefix::default()) };
    KeyPrefix::parse(&field.value).map_err(|error| Mistake::at(field.at, error.to_string()))
}

/// The value of an item, from its source; and why there is none. A secret counts before a value,
/// and a value before a variable.
fn item_field(
    item: Placed<Item>,
    context: &ComponentContext<'_>,
    notes: &mut Vec<Mistake>,
) -> (Field, Option<String>) {
    let Placed { at, value: Item { name, value: GoText(value), secret_key_ref, env_ref } } = item;
    let mut absent = None;
    let value = match value {
        None if !env_ref.is_empty() => variable(&env_ref, context).unwrap_or_else(|why| {
            notes.push(Mistake::at(at, format!("`{name}` is empty: {why}")));
            String::new()
        }),
        _ if !secret_key_ref.name.is_empty() => {
            secret(&secret_key_ref, context).unwrap_or_else(|why| {
                absent = Some(format!("`{name}` is a secret that is not there: {why}"));
                String::new()
            })
        }
        Some(value) => {
            let namespace = format!("{}.{}", context.namespace, context.app);
            value.replace("{namespace}", &namespace).replace("{appID}", context.app)
        }
        None => String::new(),
    };
    (Field { at, name, value }, absent)
}

fn secret(secret: &SecretKeyRef, context: &ComponentContext<'_>) -> Result<String, String> {
    let SecretKeyRef { name, key } = secret;
    if !key.is_empty() && key != name {
        return Err(format!(
            "secrets are read from the environment, where `{name}` has no key `{key}`; leave `key` \
             out"
        ));
    }
    variable(name, context)
}

fn variable(name: &str, context: &ComponentContext<'_>) -> Result<String, String> {
    if HIDDEN_VARIABLES.iter().any(|hidden| name.to_uppercase().starts_with(hidden)) {
        return Err(format!("the variable {name} is not for components"));
    }
    (context.variable)(name)
        .ok_or_else(|| format!("the variable {name} of the environment is not set"))
}
