//! Dapr's objects of the pod's namespace: what of them the sidecar of an app gets, as files that the pod
//! carries in its annotations. Values of Secrets become variables of the sidecar.

use serde_json::{Map, Value, json};

use crate::error::Problem;
use crate::request::from_secret;

/// Longest text of the objects of one pod, in bytes. Kubernetes takes 262,144 of all its annotations.
const CARRIED_BYTES: usize = 196_608;
/// The name of a variable with the value of a Secret begins with this.
const SECRET_VARIABLE: &str = "COMPONENT_SECRET_";

/// Dapr's objects of a namespace, as its API server has them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DaprObjects {
    pub configurations: Vec<Value>,
    /// Components, Resiliencies and HTTPEndpoints.
    pub resources: Vec<Value>,
    /// Of Subscriptions, which sidecars do not serve.
    pub subscriptions: Vec<Value>,
}

impl DaprObjects {
    /// The Configuration of that name.
    pub(crate) fn configuration(&self, name: &str) -> Option<&Value> {
        self.configurations.iter().find(|object| self::name(object) == name)
    }
}

/// What a pod carries for its sidecar.
#[derive(PartialEq, Debug, Default)]
pub(crate) struct Carried {
    /// The text of a Configuration.
    pub(crate) configuration: Option<String>,
    /// The text of resources, one document for each.
    pub(crate) resources: Option<String>,
    /// Variables of the sidecar, as a container has them.
    pub(crate) secrets: Vec<Value>,
}

/// What the sidecar of `app` gets of `objects`; `configuration` is the name of the Configuration that the pod
/// asks for. Notes have what is not served.
pub(crate) fn carried(
    objects: &DaprObjects,
    app: &str,
    configuration: Option<&str>,
    notes: &mut Vec<String>,
) -> Result<Carried, Problem> {
    let mut carried = Carried::default();
    if let Some(name) = configuration {
        let found = objects.configuration(name);
        let found = found.ok_or_else(|| Problem::NoConfiguration { name: name.to_owned() })?;
        carried.configuration = Some(stripped(found).to_string());
    }
    let of_app = |object: &&Value| is_for(object, app);
    let mut secrets = Secrets::default();
    let mut documents = Vec::new();
    for object in objects.resources.iter().filter(of_app) {
        let mut document = stripped(object);
        let store = object.pointer("/auth/secretStore").and_then(Value::as_str).unwrap_or_default();
        if store.is_empty() || store == "kubernetes" {
            if let Some(spec) = document.get_mut("spec") {
                secrets.replace_in(spec);
            }
        } else {
            let name = name(object);
            notes.push(format!(
                "secrets of `{name}` are in the store `{store}`, which sidecars do not serve; put them into Secrets"
            ));
        }
        documents.push(document.to_string());
    }
    for object in objects.subscriptions.iter().filter(of_app) {
        let name = name(object);
        notes.push(format!("the Subscription `{name}` has no effect: there is no pub/sub"));
    }
    if !documents.is_empty() {
        carried.resources = Some(documents.join("\n---\n"));
    }
    carried.secrets = secrets.variables();
    let texts = [&carried.configuration, &carried.resources];
    let bytes: usize = texts.into_iter().flatten().map(String::len).sum();
    if bytes > CARRIED_BYTES {
        return Err(Problem::TooMuchOfDapr { bytes, limit: CARRIED_BYTES });
    }
    Ok(carried)
}

fn name(object: &Value) -> &str {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

/// An object without scopes is for every app of its namespace.
fn is_for(object: &Value, app: &str) -> bool {
    let scopes = object.get("scopes").and_then(Value::as_array).map(Vec::as_slice);
    let scopes = scopes.unwrap_or_default();
    let is_app =
        |scope: &Value| scope.as_str().is_some_and(|scope| scope.eq_ignore_ascii_case(app));
    scopes.is_empty() || scopes.iter().any(is_app)
}

/// An object as a file has it: without what the API server adds.
fn stripped(object: &Value) -> Value {
    let mut file = Map::new();
    for field in ["apiVersion", "kind", "spec", "scopes"] {
        if let Some(value) = object.get(field) {
            file.insert(field.to_owned(), value.clone());
        }
    }
    file.insert("metadata".to_owned(), json!({"name": name(object)}));
    Value::Object(file)
}

/// Values of Secrets, each with its variable.
#[derive(Default)]
struct Secrets(Vec<(String, String)>);

impl Secrets {
    /// Puts variables for the references to Secrets in `value`, at any depth.
    fn replace_in(&mut self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    match name.as_str() {
                        "secretKeyRef" => self.replace(field),
                        _ => self.replace_in(field),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace_in(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn replace(&mut self, reference: &mut Value) {
        let text = |field| reference.get(field).and_then(Value::as_str).unwrap_or_default();
        let (name, key) = (text("name"), text("key"));
        if name.is_empty() {
            return;
        }
        // To Dapr a Secret without a key has one of its own name.
        let key = if key.is_empty() { name } else { key };
        let secret = (name.to_owned(), key.to_owned());
        let at = self.0.iter().position(|known| *known == secret).unwrap_or_else(|| {
            self.0.push(secret);
            self.0.len() - 1
        });
        *reference = json!({"name": format!("{SECRET_VARIABLE}{at}")});
    }

    fn variables(&self) -> Vec<Value> {
        let variable = |(at, (name, key)): (usize, &(String, String))| {
            from_secret(&format!("{SECRET_VARIABLE}{at}"), name, key)
        };
        self.0.iter().enumerate().map(variable).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn component(name: &str, scopes: Value) -> Value {
        json!({
            "apiVersion": "dapr.io/v1alpha1", "kind": "Component",
            "metadata": {"name": name, "namespace": "shop", "uid": "1", "managedFields": []},
            "spec": {"type": "state.redis", "version": "v1", "metadata": [
                {"name": "redisHost", "value": "redis:6379"},
                {"name": "redisPassword", "secretKeyRef": {"name": "redis", "key": "password"}},
            ]},
            "auth": {"secretStore": "kubernetes"},
            "scopes": scopes,
        })
    }

    #[test]
    fn an_app_gets_what_is_in_its_scope_with_secrets_as_variables() {
        let objects = DaprObjects {
            resources: vec![
                component("all", json!(null)),
                component("own", json!(["Orders"])),
                component("others", json!(["stock"])),
            ],
            ..DaprObjects::default()
        };
        let mut notes = Vec::new();
        let carried = carried(&objects, "orders", None, &mut notes).unwrap();
        let texts: Vec<&str> = carried.resources.as_deref().unwrap().split("\n---\n").collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        let first: Value = serde_json::from_str(texts[0]).unwrap();
        assert_eq!(first["metadata"], json!({"name": "all"}));
        let password = &first["spec"]["metadata"][1]["secretKeyRef"];
        assert_eq!(*password, json!({"name": "COMPONENT_SECRET_0"}));
        assert!(first.get("auth").is_none() && texts[1].contains("COMPONENT_SECRET_0"));
        let variable = json!({"name": "COMPONENT_SECRET_0", "valueFrom": {"secretKeyRef": {"name": "redis", "key": "password"}}});
        assert_eq!(carried.secrets, [variable]);
        assert_eq!((notes, carried.configuration), (vec![], None));
    }

    #[test]
    fn references_to_secrets_are_found_at_any_depth() {
        let mut endpoint = json!({"baseUrl": "https://x", "headers": [{"name": "key", "secretKeyRef": {"name": "token"}}],
            "clientTLS": {"rootCA": {"secretKeyRef": {"name": "tls", "key": "ca"}}},
            "none": {"secretKeyRef": {"name": "", "key": ""}}});
        let mut secrets = Secrets::default();
        secrets.replace_in(&mut endpoint);
        assert_eq!(endpoint["headers"][0]["secretKeyRef"], json!({"name": "COMPONENT_SECRET_1"}));
        let ca = &endpoint["clientTLS"]["rootCA"]["secretKeyRef"];
        assert_eq!(*ca, json!({"name": "COMPONENT_SECRET_0"}));
        let pair = |name: &str, key: &str| (name.to_owned(), key.to_owned());
        assert_eq!(secrets.0, [pair("tls", "ca"), pair("token", "token")]);
        assert_eq!(endpoint["none"]["secretKeyRef"], json!({"name": "", "key": ""}));
    }

    #[test]
    fn a_configuration_that_is_asked_for_has_to_be_there() {
        let configuration = json!({"apiVersion": "dapr.io/v1alpha1", "kind": "Configuration",
            "metadata": {"name": "appconfig"}, "spec": {"accessControl": {"defaultAction": "deny"}}});
        let objects =
            DaprObjects { configurations: vec![configuration.clone()], ..DaprObjects::default() };
        let mut notes = Vec::new();
        let found = carried(&objects, "orders", Some("appconfig"), &mut notes).unwrap();
        let text: Value = serde_json::from_str(&found.configuration.unwrap()).unwrap();
        assert_eq!(text, configuration);
        let missing = carried(&objects, "orders", Some("other"), &mut notes);
        assert_eq!(missing, Err(Problem::NoConfiguration { name: "other".into() }));
        assert_eq!(carried(&objects, "orders", None, &mut notes), Ok(Carried::default()));
    }

    #[test]
    fn what_is_not_served_is_a_note_and_what_is_too_much_is_refused() {
        let vault = json!({"metadata": {"name": "store"}, "auth": {"secretStore": "vault"},
            "spec": {"metadata": [{"name": "p", "secretKeyRef": {"name": "redis", "key": "p"}}]}});
        let subscription = json!({"metadata": {"name": "paid"}, "scopes": ["orders"]});
        let objects = DaprObjects {
            resources: vec![vault],
            subscriptions: vec![subscription],
            ..DaprObjects::default()
        };
        let mut notes = Vec::new();
        let found = carried(&objects, "orders", None, &mut notes).unwrap();
        assert!(found.secrets.is_empty() && found.resources.unwrap().contains("\"redis\""));
        assert!(notes[0].contains("`vault`") && notes[1].contains("`paid`"), "{notes:?}");
        let mut of_bytes = |more: usize| {
            let of = |text: String| json!({"metadata": {"name": "big"}, "spec": {"text": text}});
            let rest = stripped(&of(String::new())).to_string().len();
            let large = of("x".repeat(CARRIED_BYTES - rest + more));
            let objects = DaprObjects { resources: vec![large], ..DaprObjects::default() };
            carried(&objects, "orders", None, &mut notes)
        };
        assert_eq!(of_bytes(0).unwrap().resources.unwrap().len(), CARRIED_BYTES);
        let refused = of_bytes(1).unwrap_err();
        assert!(matches!(refused, Problem::TooMuchOfDapr { .. }), "{refused}");
    }
}
