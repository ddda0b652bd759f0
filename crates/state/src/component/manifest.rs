//! The document of a component, and what it is for the app that reads it.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use serde_saphyr::{Location, Spanned};
use tollway_config::Mistake;

use super::fields::{Field, Fields};
use super::settings::{PostgresqlLayout, postgresql, redis, sqlite};
use super::{Component, ComponentContext, Engine, Read};
use crate::key::KeyPrefix;

/// The one version of the form.
const API_VERSION: &str = "dapr.io/v1alpha1";
/// Time to open a store without `initTimeout`.
const INIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Types of state stores that are served.
const TYPES: &[&str] =
    &["state.in-memory", "state.sqlite", "state.redis", "state.postgresql", "state.postgres"];
/// Variables that are no secrets of components: Dapr hides its own too.
const HIDDEN_VARIABLES: &[&str] = &["APP_API_TOKEN", "TOLLWAY_", "DAPR_"];

/// A component as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Manifest {
    api_version: Spanned<String>,
    kind: Spanned<String>,
    metadata: Metadata,
    spec: Spec,
    #[serde(default, rename = "auth")]
    _auth: Auth,
    #[serde(default)]
    scopes: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: Spanned<String>,
    namespace: Option<String>,
    #[serde(default, rename = "labels")]
    _labels: Option<Ignored>,
    #[serde(default, rename = "annotations")]
    _annotations: Option<Ignored>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Spec {
    #[serde(rename = "type")]
    component_type: Spanned<String>,
    version: Spanned<String>,
    #[serde(default)]
    ignore_errors: bool,
    init_timeout: Option<Spanned<String>>,
    #[serde(default)]
    metadata: Vec<Spanned<Item>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Item {
    name: String,
    value: Option<Scalar>,
    secret_key_ref: Option<SecretKeyRef>,
    env_ref: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretKeyRef {
    name: String,
    key: Option<String>,
}

/// Where secrets are read from is the environment, whatever its name.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Auth {
    #[serde(rename = "secretStore")]
    _secret_store: Option<String>,
}

/// A text, number or yes and no, as a text.
#[derive(Debug)]
struct Scalar(String);

type Ignored = std::collections::BTreeMap<String, String>;

impl Manifest {
    /// What the document is for an app.
    ///
    /// # Errors
    /// The first mistake in it.
    pub fn read(self, context: &ComponentContext<'_>) -> Result<Read, Mistake> {
        check_form(&self)?;
        let component_type = self.spec.component_type.value.to_lowercase();
        let is_store = component_type.starts_with("state.");
        let elsewhere = |namespace: &String| !namespace.eq_ignore_ascii_case(context.namespace);
        let scoped =
            |scopes: &[String]| scopes.iter().any(|app| app.eq_ignore_ascii_case(context.app));
        if self.metadata.namespace.as_ref().is_some_and(elsewhere)
            || !(self.scopes.is_empty() || scoped(&self.scopes))
        {
            return Ok(Read::ForOthers { is_store });
        }
        if !is_store {
            let (name, kind) = (&self.metadata.name.value, &self.spec.component_type.value);
            return Ok(Read::NotServed(format!("Component `{name}` of type {kind}")));
        }
        let component = self.into_component(&component_type, context)?;
        Ok(Read::Store(Box::new(component)))
    }

    fn into_component(
        self,
        component_type: &str,
        context: &ComponentContext<'_>,
    ) -> Result<Component, Mistake> {
        let Spec { component_type: written, version, ignore_errors, init_timeout, metadata } =
            self.spec;
        let items = metadata.into_iter().map(|item| item_field(item, context));
        let mut fields = Fields::new(items.collect::<Result<_, _>>()?, written.referenced)?;
        let key_prefix = key_prefix(&mut fields)?;
        let is_actor_store = fields.is_yes("actorStateStore")?;
        let engine = match (component_type, version.value.as_str()) {
            ("state.in-memory", "v1" | "") => Engine::InMemory,
            ("state.sqlite", "v1" | "") => Engine::Sqlite(sqlite(&mut fields)?),
            ("state.redis", "v1" | "") => Engine::Redis(redis(&mut fields)?),
            ("state.postgresql" | "state.postgres", "v1" | "") => {
                Engine::Postgresql(postgresql(&mut fields, PostgresqlLayout::V1)?)
            }
            ("state.postgresql" | "state.postgres", "v2") => {
                Engine::Postgresql(postgresql(&mut fields, PostgresqlLayout::V2)?)
            }
            (known, _) if TYPES.contains(&known) => {
                let versions: &[&str] =
                    if known.contains("postgres") { &["v1", "v2"] } else { &["v1"] };
                let at = version.referenced;
                return Err(Mistake::unknown(at, "version", &version.value, versions));
            }
            _ => {
                let at = written.referenced;
                return Err(Mistake::unknown(at, "type", &written.value, TYPES));
            }
        };
        fields.finish()?;
        Ok(Component {
            name: self.metadata.name.value,
            component_type: written.value,
            version: version.value,
            key_prefix,
            is_actor_store,
            ignore_errors,
            init_timeout: init_timeout.map_or(Ok(INIT_TIMEOUT), read_timeout)?,
            engine,
        })
    }
}

fn check_form(manifest: &Manifest) -> Result<(), Mistake> {
    let Manifest { api_version, kind, metadata, .. } = manifest;
    if api_version.value != API_VERSION {
        let written = &api_version.value;
        return Err(Mistake::unknown(
            api_version.referenced,
            "apiVersion",
            written,
            &[API_VERSION],
        ));
    }
    if kind.value != "Component" {
        return Err(Mistake::unknown(kind.referenced, "kind", &kind.value, &["Component"]));
    }
    let name = &metadata.name.value;
    if name.is_empty() || name.contains(['/', '?', '#', '|']) || name.chars().any(char::is_control)
    {
        let what = "the name of a component is a part of paths: without `/`, `?`, `#` and `|`";
        return Err(Mistake::at(metadata.name.referenced, what));
    }
    Ok(())
}

fn read_timeout(written: Spanned<String>) -> Result<Duration, Mistake> {
    let time = humantime::parse_duration(&written.value).ok().filter(|time| !time.is_zero());
    let what = || format!("`initTimeout` is {:?}; expected a time such as 5s", written.value);
    time.ok_or_else(|| Mistake::at(written.referenced, what()))
}

fn key_prefix(fields: &mut Fields) -> Result<KeyPrefix, Mistake> {
    let Some(field) = fields.take(&["keyPrefix"])? else { return Ok(KeyPrefix::default()) };
    KeyPrefix::parse(&field.value).map_err(|error| Mistake::at(field.at, error.to_string()))
}

/// The value of an item, from its source.
fn item_field(item: Spanned<Item>, context: &ComponentContext<'_>) -> Result<Field, Mistake> {
    let at = item.referenced;
    let Item { name, value, secret_key_ref, env_ref } = item.value;
    let value = match (value, secret_key_ref, env_ref) {
        (Some(Scalar(value)), None, None) => {
            value.replace("{appID}", context.app).replace("{namespace}", context.namespace)
        }
        (None, Some(secret), None) => {
            if secret.key.as_ref().is_some_and(|key| *key != secret.name) {
                let what = "secrets are read from the environment, where a name has one value: \
                            leave `key` out, or say in it what `name` says";
                return Err(Mistake::at(at, what));
            }
            variable(&secret.name, at, context)?
        }
        (None, None, Some(name)) => variable(&name, at, context)?,
        (None, None, None) => String::new(),
        _ => {
            let what = format!("`{name}` has more than one of `value`, `secretKeyRef`, `envRef`");
            return Err(Mistake::at(at, what));
        }
    };
    Ok(Field { at, name, value })
}

fn variable(name: &str, at: Location, context: &ComponentContext<'_>) -> Result<String, Mistake> {
    if HIDDEN_VARIABLES.iter().any(|hidden| name.to_uppercase().starts_with(hidden)) {
        let what = format!("the variable {name} is not for components");
        return Err(Mistake::at(at, what));
    }
    (context.variable)(name).ok_or_else(|| {
        let what = format!("the variable {name} of the environment is not set");
        Mistake::at(at, what)
    })
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AsText;
        impl Visitor<'_> for AsText {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number, true or false")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(text.to_owned()))
            }

            fn visit_bool<E: Error>(self, yes: bool) -> Result<Scalar, E> {
                Ok(Scalar(yes.to_string()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }

            fn visit_unit<E: Error>(self) -> Result<Scalar, E> {
                Ok(Scalar(String::new()))
            }
        }
        deserializer.deserialize_any(AsText)
    }
}
