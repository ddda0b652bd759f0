//! What the chart renders by default, with an operator's choices put in. Pure.

use serde_json::{Value, json};
use thiserror::Error;
use tollway_config::go::{manifests, to_json};
use tollway_model::NetworkName;

/// The rendered chart (`cargo xtask chart`), with these words where choices go.
const RENDERED: &str = include_str!("../../../../charts/tollway.yaml");
const NAMESPACE: &str = "placeholder-namespace";
const NETWORK: &str = "placeholder-network";
const IMAGE: &str = "placeholder-image:placeholder-tag";
/// Longest name of a namespace, by the API.
const NAMESPACE_BYTES: usize = 63;

/// What an operator chooses.
#[derive(Clone, Debug)]
pub struct Choices {
    pub namespace: String,
    pub network: NetworkName,
    pub image: String,
    /// `Always`, `IfNotPresent` or `Never`.
    pub pull_policy: String,
    pub store: StoreKind,
}

/// Where the control plane keeps what it knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreKind {
    /// On a volume of this class, or of the cluster's usual one.
    Volume { class: Option<String> },
    /// In the memory of the node, for trials.
    Memory,
}

/// Why there is no manifest.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ManifestError {
    #[error(
        "`{0}` is no name of a namespace: use at most 63 lower-case letters, digits and `-`, the first and the last no `-`"
    )]
    Namespace(String),
    #[error("`{0}` is no image: use NAME:TAG or NAME@DIGEST, without spaces and quotes")]
    Image(String),
    #[error("the rendered chart cannot be read: {0}")]
    Rendered(String),
}

/// The objects of an install, in the order in which they are applied.
///
/// # Errors
/// [`ManifestError`]: a choice that cannot be a part of an object.
pub fn manifest(choices: &Choices) -> Result<Vec<Value>, ManifestError> {
    let Choices { namespace, network, image, pull_policy, store } = choices;
    if !is_label(namespace) {
        return Err(ManifestError::Namespace(namespace.clone()));
    }
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || "\"'{}[]#,&*!|>%`".contains(c);
    if image.is_empty() || image.contains(is_odd) {
        return Err(ManifestError::Image(image.clone()));
    }
    let text = RENDERED
        .replace(NAMESPACE, namespace)
        .replace(NETWORK, network.as_str())
        .replace(IMAGE, image);
    let unread = |error: &dyn std::fmt::Display| ManifestError::Rendered(error.to_string());
    let mut objects = Vec::new();
    for document in manifests(&text, "the chart") {
        let Some(node) = document.node.map_err(|error| unread(&error))? else { continue };
        let mut object = to_json(&node, "the chart").map_err(|error| unread(&error))?;
        set_labels(&mut object);
        remove_policy(&mut object);
        set_pull_policy(&mut object, pull_policy);
        if object.get("kind") == Some(&json!("StatefulSet")) {
            set_store(&mut object, store);
        }
        objects.push(object);
    }
    Ok(objects)
}

fn is_label(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty()
        && text.len() <= NAMESPACE_BYTES
        && text.chars().all(is_inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// It is not Helm that manages them.
fn set_labels(object: &mut Value) {
    for labels in ["/metadata/labels", "/spec/template/metadata/labels"] {
        if let Some(labels) = object.pointer_mut(labels).and_then(Value::as_object_mut) {
            labels.remove("helm.sh/chart");
            labels.insert("app.kubernetes.io/managed-by".to_owned(), json!("tollway"));
        }
    }
}

/// What stays at the end of an install is decided by the command that ends it.
fn remove_policy(object: &mut Value) {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    let Some(metadata) = metadata else { return };
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else {
        return;
    };
    annotations.remove("helm.sh/resource-policy");
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
}

fn set_pull_policy(object: &mut Value, policy: &str) {
    let containers = object.pointer_mut("/spec/template/spec/containers");
    for container in containers.and_then(Value::as_array_mut).into_iter().flatten() {
        container["imagePullPolicy"] = json!(policy);
        // What the injector gives sidecars.
        let arguments = container.get_mut("args").and_then(Value::as_array_mut);
        for argument in arguments.into_iter().flatten() {
            if argument.as_str().is_some_and(|text| text.starts_with("--image-pull-policy=")) {
                *argument = json!(format!("--image-pull-policy={policy}"));
            }
        }
    }
}

fn set_store(set: &mut Value, store: &StoreKind) {
    match store {
        StoreKind::Volume { class: None } => {}
        StoreKind::Volume { class: Some(class) } => {
            set["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] = json!(class);
        }
        StoreKind::Memory => {
            if let Some(spec) = set["spec"].as_object_mut() {
                spec.remove("volumeClaimTemplates");
            }
            let volume =
                json!({"name": "store", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}});
            set["spec"]["template"]["spec"]["volumes"] = json!([volume]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::DEFINITION;

    fn choices() -> Choices {
        Choices {
            namespace: "mesh".to_owned(),
            network: "west".parse().unwrap(),
            image: "registry.example/tollway:1".to_owned(),
            pull_policy: "Never".to_owned(),
            store: StoreKind::Volume { class: None },
        }
    }

    fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
        objects.iter().filter(|object| object["kind"] == kind).collect()
    }

    #[test]
    fn every_choice_is_put_in_and_no_word_for_one_is_left() {
        let objects = manifest(&choices()).unwrap();
        let text = serde_json::to_string(&objects).unwrap();
        assert!(!text.contains("placeholder") && !text.to_lowercase().contains("helm"), "{text}");
        for kind in
            ["StatefulSet", "Deployment", "Service", "MutatingWebhookConfiguration", DEFINITION]
        {
            assert!(!of_kind(&objects, kind).is_empty(), "{kind}");
        }
        for object in &objects {
            let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
            assert!(namespace.is_none_or(|name| name == "mesh"), "{object}");
        }
        let pods = [of_kind(&objects, "StatefulSet"), of_kind(&objects, "Deployment")].concat();
        for pod in &pods {
            let container = &pod["spec"]["template"]["spec"]["containers"][0];
            assert_eq!(container["image"], "registry.example/tollway:1");
            assert_eq!(container["imagePullPolicy"], "Never");
        }
        assert!(text.contains("--network=west") && text.contains("--image-pull-policy=Never"));
        assert!(text.contains("tollway-control.mesh.svc:15010"));
    }

    #[test]
    fn the_store_is_where_the_operator_wants_it() {
        let set = |store| {
            let objects = manifest(&Choices { store, ..choices() }).unwrap();
            of_kind(&objects, "StatefulSet")[0].clone()
        };
        let class = "/spec/volumeClaimTemplates/0/spec/storageClassName";
        assert_eq!(set(StoreKind::Volume { class: None }).pointer(class), None);
        let chosen = set(StoreKind::Volume { class: Some("fast".to_owned()) });
        assert_eq!(chosen.pointer(class), Some(&json!("fast")));
        let memory = set(StoreKind::Memory);
        assert_eq!(memory.pointer("/spec/volumeClaimTemplates"), None);
        assert_eq!(
            memory.pointer("/spec/template/spec/volumes/0/emptyDir/medium"),
            Some(&json!("Memory"))
        );
    }

    #[test]
    fn a_choice_that_would_change_the_objects_is_refused() {
        for namespace in ["", "Mesh", "-a", "a b", "a\n---\n", &"a".repeat(64)] {
            let choices = Choices { namespace: namespace.to_owned(), ..choices() };
            assert_eq!(manifest(&choices), Err(ManifestError::Namespace(namespace.to_owned())));
        }
        for image in ["", "a b", "a\nkind: Secret", "a\"", "a: {b}"] {
            let choices = Choices { image: image.to_owned(), ..choices() };
            assert_eq!(manifest(&choices), Err(ManifestError::Image(image.to_owned())));
        }
    }
}
