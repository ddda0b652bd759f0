//! Where the pods of an object are: an object of Kubernetes that makes pods has a template of them.

use serde_json::Value;

use crate::annotation::is_known_prefix;
use crate::edit::escape;

/// Most levels of lists within lists.
const DEPTH: usize = 8;

/// A pod, or a template of pods, within an object.
pub(crate) struct PodAt {
    /// JSON pointer to the object that makes it: the root, or an item of a list.
    owner: String,
    /// JSON pointer to what has `metadata` and `spec` of the pod.
    pod: String,
    pub(crate) kind: &'static str,
}

/// A kind that has pods: name, group, and the pointer from the object to its pods.
const KINDS: &[(&str, &str, &str)] = &[
    ("Pod", "", ""),
    ("ReplicationController", "", "/spec/template"),
    ("Deployment", "apps", "/spec/template"),
    ("StatefulSet", "apps", "/spec/template"),
    ("DaemonSet", "apps", "/spec/template"),
    ("ReplicaSet", "apps", "/spec/template"),
    ("Job", "batch", "/spec/template"),
    ("CronJob", "batch", "/spec/jobTemplate/spec/template"),
];

/// The pods of an object, and of those of a `List`.
pub(crate) fn pods(object: &Value) -> Vec<PodAt> {
    let mut found = Vec::new();
    collect(object, String::new(), DEPTH, &mut found);
    found
}

fn collect(object: &Value, owner: String, depth: usize, found: &mut Vec<PodAt>) {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let (kind, version) = (text("kind"), text("apiVersion"));
    if kind == "List" && version == "v1" && depth > 0 {
        let items = object.get("items").and_then(Value::as_array);
        for (index, item) in items.into_iter().flatten().enumerate() {
            collect(item, format!("{owner}/items/{index}"), depth - 1, found);
        }
        return;
    }
    // The group `extensions` had some of them before `apps`.
    let group = match version.split_once('/').map_or("", |(group, _)| group) {
        "extensions" => "apps",
        group => group,
    };
    let known = KINDS.iter().find(|(name, of, _)| *name == kind && *of == group);
    if let Some((kind, _, pointer)) = known {
        let pod = format!("{owner}{pointer}");
        found.push(PodAt { owner, pod, kind });
    }
}

impl PodAt {
    /// JSON pointer to a part of the pod, such as `/spec/volumes`.
    pub(crate) fn pointer(&self, part: &str) -> String {
        format!("{}{part}", self.pod)
    }

    /// A part of the pod.
    pub(crate) fn get<'a>(&self, object: &'a Value, part: &str) -> Option<&'a Value> {
        object.pointer(&self.pointer(part)).filter(|value| !value.is_null())
    }

    /// A text in the pod.
    pub(crate) fn text<'a>(&self, object: &'a Value, part: &str) -> Option<&'a str> {
        self.get(object, part).and_then(Value::as_str)
    }

    /// A part of the object that makes the pod.
    pub(crate) fn of_owner<'a>(&self, object: &'a Value, part: &str) -> Option<&'a str> {
        object.pointer(&format!("{}{part}", self.owner)).and_then(Value::as_str)
    }

    /// Whether it is a pod itself, not a template of pods.
    pub(crate) fn is_pod(&self) -> bool {
        self.owner == self.pod
    }

    /// An annotation of the pod, which has to be a text.
    pub(crate) fn annotation<'a>(&self, object: &'a Value, name: &str) -> Option<&'a Value> {
        self.get(object, &format!("/metadata/annotations/{}", escape(name)))
    }

    /// Kind, namespace and name.
    pub(crate) fn shown(&self, object: &Value) -> String {
        let name = self.of_owner(object, "/metadata/name");
        let name = name.or_else(|| self.of_owner(object, "/metadata/generateName"));
        let name = name.unwrap_or("without a name");
        match self.of_owner(object, "/metadata/namespace") {
            Some(namespace) => format!("{} {namespace}/{name}", self.kind),
            None => format!("{} {name}", self.kind),
        }
    }

    /// Notes about annotations of ours that are at the object and not at its pods, where they would have
    /// an effect.
    pub(crate) fn misplaced(&self, object: &Value) -> Vec<String> {
        if self.is_pod() {
            return Vec::new();
        }
        let at_owner = object.pointer(&format!("{}/metadata/annotations", self.owner));
        let at_owner = at_owner.and_then(Value::as_object);
        let names = at_owner.into_iter().flat_map(|all| all.keys());
        let missing =
            names.filter(|name| is_known_prefix(name) && self.annotation(object, name).is_none());
        let template = self.pod.trim_start_matches(self.owner.as_str());
        let template = crate::error::dotted(template);
        missing
            .map(|name| {
                format!(
                    "the annotation {name} has no effect at the {}; write it under \
                     `{template}.metadata.annotations`",
                    self.kind
                )
            })
            .collect()
    }
}
