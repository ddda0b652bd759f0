//! Whether a pod gets a sidecar, and in which style.

use serde_json::Value;

use crate::annotation::{ENABLED, INJECT, INJECTED};
use crate::error::Problem;
use crate::manifest::PodAt;
use crate::settings::{Namespace, Settings, Unmarked};
use crate::value::{Form, switch};

/// Namespaces whose pods get a sidecar only if they ask for it themselves: without them a cluster does
/// not work.
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// How a sidecar is called and behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Style {
    Own,
    /// In daprd's place.
    Daprd,
}

#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    Inject(Style),
    /// With a note where the owner may have expected a sidecar.
    Leave(Option<String>),
}

/// Decides by the mark of pods that have one, then the pod's annotation or label, Dapr's annotation, the
/// namespace's label, and the settings.
pub(crate) fn decide(
    object: &Value,
    at: &PodAt,
    namespace: &Namespace,
    settings: &Settings,
) -> Result<Decision, Problem> {
    if at.annotation(object, INJECTED).is_some() {
        return Ok(Decision::Leave(None));
    }
    let label = at.get(object, "/metadata/labels/tollway.dev~1inject");
    let own = read_switch(INJECT, at.annotation(object, INJECT).or(label))?;
    let daprs = read_switch(ENABLED, at.annotation(object, ENABLED))?;
    let is_asked = match own.or(daprs) {
        Some(true) => true,
        Some(false) => return Ok(Decision::Leave(None)),
        None if is_wanted(namespace, settings) => false,
        None => return Ok(Decision::Leave(None)),
    };
    let style = if daprs == Some(true) { Style::Daprd } else { Style::Own };
    match unfit(object, at) {
        Some(reason) if is_asked => Err(Problem::Unfit { reason }),
        Some(reason) => Ok(Decision::Leave(Some(format!("it gets no sidecar: {reason}")))),
        None if !is_asked && SYSTEM.contains(&namespace.name.as_str()) => {
            let why = format!(
                "it gets no sidecar: namespace {} is of the cluster itself; a pod there can ask for \
                 one with the annotation {INJECT}",
                namespace.name
            );
            Ok(Decision::Leave(Some(why)))
        }
        None => Ok(Decision::Inject(style)),
    }
}

/// Whether pods get a sidecar that say nothing of it.
fn is_wanted(namespace: &Namespace, settings: &Settings) -> bool {
    let label = namespace.labels.get(INJECT).and_then(|label| switch(label));
    label.unwrap_or(settings.unmarked == Unmarked::Inject)
}

fn read_switch(name: &str, value: Option<&Value>) -> Result<Option<bool>, Problem> {
    let wrong = |value: String| Problem::Value {
        annotation: name.to_owned(),
        value,
        allowed: format!("{}, in quotes", Form::Switch.words()),
    };
    match value {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) => switch(text).map(Some).ok_or_else(|| wrong(text.clone())),
        Some(other) => Err(wrong(other.to_string())),
    }
}

/// Why the pod cannot have a sidecar.
fn unfit(object: &Value, at: &PodAt) -> Option<&'static str> {
    if at.get(object, "/spec/hostNetwork") == Some(&Value::Bool(true)) {
        return Some(
            "it is in the network of its node (`hostNetwork`), where the sidecars of several pods \
             would listen at the same ports",
        );
    }
    let os = at.text(object, "/spec/os/name");
    let node = at.text(object, "/spec/nodeSelector/kubernetes.io~1os");
    if os == Some("windows") || node == Some("windows") {
        return Some("it runs on Windows, for which there is no sidecar");
    }
    at.annotation(object, "kubernetes.io/config.mirror")
        .map(|_| "a node started it from a file of its own, and it cannot be changed")
}
