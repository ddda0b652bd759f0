//! What `tollway apply` reads and `tollway get -o yaml` prints: kinds in the form of Kubernetes'
//! objects, so that the same files serve as its custom resources. Each kind has a module for its
//! `spec`.

mod custom_resource;
mod egress;
mod failover;
mod policy;
mod route;
mod schema;
mod traffic_policy;
mod values;

use std::fmt;
use std::sync::Arc;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_saphyr::{Location, Spanned};
use thiserror::Error;
use tollway_model::{Label, Object, ObjectId, ObjectKind, ObjectName};

use crate::yaml::{self, YamlError};
pub use custom_resource::{
    GROUP, KindNames, ResourceError, VERSION, definitions, kind_names, read_resource,
};
pub use schema::schema_text;
use values::Text;

/// An object as it is printed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    api_version: ApiVersion,
    kind: Kind,
    metadata: Metadata,
    spec: Spec,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Spec {
    Policy(policy::Spec),
    Route(route::Spec),
    TrafficPolicy(Box<traffic_policy::Spec>),
    Failover(failover::Spec),
    Egress(egress::Spec),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum ApiVersion {
    #[serde(rename = "tollway.dev/v1")]
    V1,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Kind {
    Policy,
    Route,
    TrafficPolicy,
    Failover,
    Egress,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: Text<Label>,
    #[serde(default = "default_namespace")]
    namespace: Text<Label>,
}

fn default_namespace() -> Text<Label> {
    Text(Label::new("default").expect("it is a label"))
}

/// What is wrong with the parts of an object, and where, if it is a smaller part than the object.
struct Problem {
    at: Option<Location>,
    what: String,
}

impl Problem {
    fn of(error: &dyn std::error::Error) -> Self {
        Self { at: None, what: tollway_model::chain(error) }
    }
}

/// Reads the objects of every document of `text`; `source` names the text in errors.
///
/// # Errors
/// [`YamlError`] for the first mistake.
pub fn read(text: &str, source: &str) -> Result<Vec<Object>, YamlError> {
    let documents: Vec<Document> = yaml::parse_all(text, source)?;
    documents.into_iter().map(|document| document.into_object(source)).collect()
}

/// An object as it is read.
struct Document {
    /// Where its metadata begin.
    at: Location,
    metadata: Metadata,
    spec: Spec,
}

impl Document {
    fn into_object(self, source: &str) -> Result<Object, YamlError> {
        let Metadata { name: Text(name), namespace: Text(namespace) } = self.metadata;
        let name = ObjectName { namespace, name };
        let (kind, read) = match self.spec {
            Spec::Policy(spec) => (
                ObjectKind::Policy,
                spec.into_policy(name.clone()).map(|policy| Object::Policy(Arc::new(policy))),
            ),
            Spec::Route(spec) => (
                ObjectKind::Route,
                spec.into_route(name.clone()).map(|route| Object::Route(Arc::new(route))),
            ),
            Spec::TrafficPolicy(spec) => (
                ObjectKind::TrafficPolicy,
                spec.into_traffic_policy(name.clone())
                    .map(|policy| Object::TrafficPolicy(Arc::new(policy))),
            ),
            Spec::Failover(spec) => (
                ObjectKind::Failover,
                spec.into_failover(name.clone())
                    .map(|failover| Object::Failover(Arc::new(failover))),
            ),
            Spec::Egress(spec) => (
                ObjectKind::Egress,
                spec.into_egress(name.clone()).map(|egress| Object::Egress(Arc::new(egress))),
            ),
        };
        read.map_err(|problem| {
            let at = problem.at.unwrap_or(self.at);
            YamlError {
                source_name: source.to_owned(),
                line: at.line(),
                column: at.column(),
                what: format!("{}: {}", ObjectId { kind, name }, problem.what),
            }
        })
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Field {
    ApiVersion,
    Kind,
    Metadata,
    Spec,
}

/// The kind decides how the rest is read, and each mistake has its position: so it stands before.
impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const FIELDS: &[&str] = &["apiVersion", "kind", "metadata", "spec"];
        deserializer.deserialize_struct("Document", FIELDS, DocumentVisitor)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `apiVersion`, `kind`, `metadata` and `spec`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
        let (mut version, mut kind) = (None, None);
        let mut metadata: Option<Spanned<Metadata>> = None;
        let mut spec = None;
        while let Some(field) = map.next_key()? {
            match field {
                Field::ApiVersion => version = Some(map.next_value::<ApiVersion>()?),
                Field::Kind => kind = Some(map.next_value()?),
                Field::Metadata => metadata = Some(map.next_value()?),
                Field::Spec => match kind {
                    Some(Kind::Policy) => spec = Some(Spec::Policy(map.next_value()?)),
                    Some(Kind::Route) => spec = Some(Spec::Route(map.next_value()?)),
                    Some(Kind::TrafficPolicy) => {
                        spec = Some(Spec::TrafficPolicy(map.next_value()?));
                    }
                    Some(Kind::Failover) => spec = Some(Spec::Failover(map.next_value()?)),
                    Some(Kind::Egress) => spec = Some(Spec::Egress(map.next_value()?)),
                    None => {
                        return Err(A::Error::custom("`kind` is missing before `spec`"));
                    }
                },
            }
        }
        version.ok_or_else(|| A::Error::missing_field("apiVersion"))?;
        kind.ok_or_else(|| A::Error::missing_field("kind"))?;
        let metadata = metadata.ok_or_else(|| A::Error::missing_field("metadata"))?;
        let spec = spec.ok_or_else(|| A::Error::missing_field("spec"))?;
        Ok(Document { at: metadata.referenced, metadata: metadata.value, spec })
    }
}

impl From<&Object> for Manifest {
    fn from(object: &Object) -> Self {
        let (kind, spec) = match object {
            Object::Policy(policy) => (Kind::Policy, Spec::Policy((&**policy).into())),
            Object::Route(route) => (Kind::Route, Spec::Route((&**route).into())),
            Object::TrafficPolicy(policy) => {
                (Kind::TrafficPolicy, Spec::TrafficPolicy(Box::new((&**policy).into())))
            }
            Object::Failover(failover) => (Kind::Failover, Spec::Failover((&**failover).into())),
            Object::Egress(egress) => (Kind::Egress, Spec::Egress((&**egress).into())),
        };
        let ObjectName { namespace, name } = object.name().clone();
        let metadata = Metadata { name: Text(name), namespace: Text(namespace) };
        Self { api_version: ApiVersion::V1, kind, metadata, spec }
    }
}

/// A text cannot be written as YAML.
#[derive(Debug, Error)]
#[error("cannot write the objects as YAML")]
pub struct WriteError(#[source] serde_saphyr::ser::Error);

/// Objects as YAML documents that can be applied again.
///
/// # Errors
/// When a text cannot be written as YAML, which no object has.
pub fn to_yaml<'a>(objects: impl IntoIterator<Item = &'a Object>) -> Result<String, WriteError> {
    let document = |object| serde_saphyr::to_string(&Manifest::from(object));
    let documents: Result<Vec<String>, _> = objects.into_iter().map(document).collect();
    Ok(documents.map_err(WriteError)?.join("---\n"))
}

#[cfg(test)]
mod tests;
