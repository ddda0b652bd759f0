//! The kinds as custom resources of Kubernetes: a definition of each, with the schema of `schema.rs` in the
//! form that an API server takes, and what an object of the cluster says.

use serde_json::{Map, Value, json};
use thiserror::Error;
use tollway_model::{Object, ObjectKind};

use super::{read, schema};

/// The group of the kinds.
pub const GROUP: &str = "tollway.dev";
/// Their version.
pub const VERSION: &str = "v1";

/// How a kind is called in a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KindNames {
    /// As in `kind: TrafficPolicy`.
    pub kind: &'static str,
    /// As in the paths of the API.
    pub plural: &'static str,
}

/// The names of a kind in a cluster.
#[must_use]
pub fn kind_names(kind: ObjectKind) -> KindNames {
    let (kind, plural) = match kind {
        ObjectKind::Policy => ("Policy", "policies"),
        ObjectKind::Route => ("Route", "routes"),
        ObjectKind::TrafficPolicy => ("TrafficPolicy", "trafficpolicies"),
        ObjectKind::Failover => ("Failover", "failovers"),
        ObjectKind::Egress => ("Egress", "egresses"),
    };
    KindNames { kind, plural }
}

/// What is wrong with a custom resource, without a position: it is no text that a person has written.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct ResourceError(String);

/// Reads the object of a custom resource.
///
/// # Errors
/// [`ResourceError`]: the specification has a mistake, or no object can have such a name.
pub fn read_resource(
    kind: ObjectKind,
    namespace: &str,
    name: &str,
    spec: &Value,
) -> Result<Object, ResourceError> {
    let document = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": kind_names(kind).kind,
        "metadata": { "name": name, "namespace": namespace },
        "spec": spec,
    });
    let mut objects = read(&document.to_string(), "").map_err(|error| ResourceError(error.what))?;
    match (objects.pop(), objects.pop()) {
        (Some(object), None) => Ok(object),
        (_, _) => Err(ResourceError("it is not one object".to_owned())),
    }
}

/// The definition of every kind, for `kubectl apply`.
#[must_use]
pub fn definitions() -> Vec<Value> {
    ObjectKind::ALL.into_iter().map(definition).collect()
}

fn definition(kind: ObjectKind) -> Value {
    let KindNames { kind: name, plural } = kind_names(kind);
    let singular = name.to_lowercase();
    let names = json!({
        "kind": name,
        "listKind": format!("{name}List"),
        "plural": plural,
        "singular": singular,
        "categories": ["tollway"],
    });
    let of_status =
        |condition: &str| format!(".status.conditions[?(@.type==\"{condition}\")].status");
    let columns = json!([
        { "name": "Accepted", "type": "string", "jsonPath": of_status("Accepted") },
        { "name": "Applied", "type": "string", "jsonPath": of_status("Applied") },
        { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
    ]);
    let mut spec = schema::spec(kind);
    structure(&mut spec);
    let form = json!({
        "type": "object",
        "required": ["spec"],
        "properties": { "spec": spec, "status": status() },
        "x-kubernetes-validations": [{
            "rule": "self.metadata.name.size() <= 63 && !self.metadata.name.contains('.')",
            "message": "the name has at most 63 characters and no dots",
        }],
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{GROUP}") },
        "spec": {
            "group": GROUP,
            "names": names,
            "scope": "Namespaced",
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": columns,
                "schema": { "openAPIV3Schema": form },
            }],
        },
    })
}

/// What the control plane writes.
fn status() -> Value {
    let text = || json!({ "type": "string" });
    let whole = || json!({ "type": "integer", "format": "int64" });
    json!({
        "type": "object",
        "properties": {
            "observedGeneration": whole(),
            "revision": {
                "type": "integer",
                "format": "int64",
                "description": "What sidecars acknowledge when they have applied it.",
            },
            "conditions": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object",
                    "required": ["type", "status", "reason", "message", "lastTransitionTime"],
                    "properties": {
                        "type": text(),
                        "status": text(),
                        "reason": text(),
                        "message": text(),
                        "observedGeneration": whole(),
                        "lastTransitionTime": { "type": "string", "format": "date-time" },
                    },
                },
            },
        },
    })
}

/// Makes a structural schema of one of JSON Schema: each value has one type, and what depends on several
/// values becomes a rule of CEL.
fn structure(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    let of_any_type = json!({ "x-kubernetes-preserve-unknown-fields": true });
    // A value of several forms is checked when it is read.
    if fields.contains_key("anyOf") || fields.get("items").is_some() && is_several(fields) {
        let description = fields.remove("description");
        *schema = of_any_type;
        if let Some(description) = description {
            schema["description"] = description;
        }
        return;
    }
    if is_several(fields) {
        fields.insert("type".to_owned(), json!("string"));
    }
    if let Some(only) = fields.remove("const") {
        fields.insert("enum".to_owned(), json!([only]));
    }
    if fields.contains_key("enum") {
        fields.entry("type").or_insert_with(|| json!("string"));
    }
    if fields.get("type") == Some(&json!("integer")) {
        fields.insert("format".to_owned(), json!("int64"));
    }
    let rules = rules(fields);
    if !rules.is_empty() {
        fields.insert("x-kubernetes-validations".to_owned(), Value::Array(rules));
    }
    match fields.get_mut("additionalProperties") {
        Some(Value::Bool(_)) => drop(fields.remove("additionalProperties")),
        Some(values) => structure(values),
        None => {}
    }
    if let Some(items) = fields.get_mut("items") {
        structure(items);
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(structure);
    }
}

/// Whether a value may have several types.
fn is_several(fields: &Map<String, Value>) -> bool {
    fields.get("type").is_some_and(Value::is_array)
}

/// What depends on several fields, in CEL.
fn rules(fields: &mut Map<String, Value>) -> Vec<Value> {
    let mut rules = Vec::new();
    if let Some(Value::Array(forms)) = fields.remove("oneOf") {
        let names: Vec<&str> =
            forms.iter().filter_map(|form| form["required"][0].as_str()).collect();
        let present: Vec<String> =
            names.iter().map(|name| format!("(has(self.{name}) ? 1 : 0)")).collect();
        rules.push(json!({
            "rule": format!("{} == 1", present.join(" + ")),
            "message": format!("it has one of {}", names.join(", ")),
        }));
    }
    if let Some(Value::Object(needs)) = fields.remove("dependencies") {
        for (field, needed) in needs {
            let needed = needed["required"][0].as_str().unwrap_or_default();
            rules.push(json!({
                "rule": format!("!has(self.{field}) || has(self.{needed})"),
                "message": format!("{field} needs {needed}"),
            }));
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Keys of a structural schema that are used here.
    const KEYS: &[&str] = &[
        "additionalProperties",
        "default",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maxProperties",
        "maximum",
        "minItems",
        "minProperties",
        "minimum",
        "pattern",
        "properties",
        "required",
        "type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    ];

    #[track_caller]
    fn check_structural(schema: &Value, at: &str) {
        let fields = schema.as_object().unwrap();
        let is_free = fields.contains_key("x-kubernetes-preserve-unknown-fields");
        assert!(is_free || fields["type"].is_string(), "{at} has no type");
        let mixed =
            fields.contains_key("properties") && fields.contains_key("additionalProperties");
        assert!(!mixed, "{at} has both properties and additionalProperties");
        for key in fields.keys() {
            assert!(KEYS.contains(&key.as_str()), "{at}: {key}");
        }
        for (name, property) in
            fields.get("properties").and_then(Value::as_object).into_iter().flatten()
        {
            check_structural(property, &format!("{at}.{name}"));
        }
        for inner in ["items", "additionalProperties"] {
            if let Some(schema) = fields.get(inner) {
                check_structural(schema, &format!("{at}.{inner}"));
            }
        }
    }

    fn form(definition: &Value) -> &Value {
        &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    }

    #[test]
    fn every_schema_is_structural() {
        let definitions = definitions();
        assert_eq!(definitions.len(), ObjectKind::ALL.len());
        for definition in &definitions {
            check_structural(form(definition), definition["metadata"]["name"].as_str().unwrap());
        }
    }

    #[test]
    fn what_depends_on_several_fields_is_a_rule() {
        let definition = definition(ObjectKind::Route);
        let rule = &form(&definition)["properties"]["spec"]["properties"]["rules"]["items"];
        assert_eq!(
            rule["x-kubernetes-validations"][0]["rule"],
            "(has(self.backends) ? 1 : 0) + (has(self.redirect) ? 1 : 0) == 1"
        );
        let definition = self::definition(ObjectKind::Egress);
        let host = &form(&definition)["properties"]["spec"]["properties"]["hosts"]["items"];
        let rules: Vec<&str> = host["x-kubernetes-validations"]
            .as_array()
            .unwrap()
            .iter()
            .map(|rule| rule["rule"].as_str().unwrap())
            .collect();
        let needs = |field: &str| format!("!has(self.{field}) || has(self.tls)");
        assert_eq!(rules, [needs("authorities"), needs("plainPort")]);
    }

    #[test]
    fn a_resource_is_read_as_a_file_is() {
        let spec = json!({ "target": { "app": "stock" }, "allow": [{ "from": ["orders"] }] });
        let read_as = |namespace, name, spec: &Value| {
            read_resource(ObjectKind::Policy, namespace, name, spec)
                .map(|object| object.id().to_string())
                .map_err(|error| error.to_string())
        };
        assert_eq!(read_as("shop", "readers", &spec), Ok("policy shop/readers".to_owned()));
        let name = read_as("shop", "a.b", &spec).unwrap_err();
        assert!(name.contains("`a.b`"), "{name}");
        let unknown = json!({ "target": { "app": "stock" }, "alow": [] });
        let unknown = read_as("shop", "readers", &unknown).unwrap_err();
        assert!(unknown.contains("alow"), "{unknown}");
        let missing = read_as("shop", "readers", &Value::Null).unwrap_err();
        assert!(!missing.is_empty());
    }

    /// The file of the chart is written by `cargo xtask codegen`.
    #[test]
    fn the_chart_has_the_definitions_of_the_schema() {
        const BEGIN: &str = "# Written by `cargo xtask codegen` from the kinds in crates/config.\n\
            {{- if and .Values.clusterRights .Values.customResources.install }}\n";
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../../charts/tollway/templates/custom-resources.yaml");
        let mut wanted = BEGIN.to_owned();
        for mut definition in definitions() {
            // What an uninstall removed would take every object of the kind with it.
            definition["metadata"]["annotations"] = json!({ "helm.sh/resource-policy": "keep" });
            let text = serde_saphyr::to_string(&definition).unwrap();
            assert!(!text.contains("{{"), "Helm would take it for its own");
            wanted += "---\n";
            wanted += text.trim_end();
            wanted += "\n";
        }
        wanted += "{{- end }}\n";
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == wanted, "{} is out of date: run `cargo xtask codegen`", path.display());
    }
}
