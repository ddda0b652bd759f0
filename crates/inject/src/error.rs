//! Why a sidecar is not added, as `WHAT; WHAT TO DO`.

use tollway_model::NameError;

/// An object to whose pod no sidecar can be added.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{object}: {problem}")]
pub struct InjectError {
    /// Kind and name.
    pub object: String,
    pub problem: Problem,
}

/// What is wrong with an object.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Problem {
    #[error("`{path}` is not {expected}; write it as Kubernetes has it")]
    Form { path: String, expected: &'static str },
    #[error("the pod has no containers; write them under `{path}`")]
    NoContainers { path: String },
    #[error("the annotation {annotation} is `{value}`; write {allowed}")]
    Value { annotation: String, value: String, allowed: String },
    #[error("the annotation {annotation} cannot be honoured: {reason}")]
    Refused { annotation: String, reason: String },
    #[error("the annotation {annotation} is not for an app with dapr.io/enabled; write {instead}")]
    OtherStyle { annotation: String, instead: &'static str },
    #[error("the annotations {first} and {second} say different things; keep one of them")]
    Contradiction { first: String, second: String },
    #[error("the app has no name; give it one with the annotation {annotation}")]
    NoName { annotation: &'static str },
    #[error(
        "`{name}` cannot be the name of an app ({why}); give it another with the annotation {annotation}"
    )]
    BadName { name: String, annotation: &'static str, why: NameError },
    #[error("the pod already has a {what} called `{name}`, which a sidecar needs; rename it")]
    NameTaken { what: &'static str, name: &'static str },
    #[error(
        "port {port} is of {user}, and the sidecar listens there for {listener}; move the sidecar with the annotation {annotation}"
    )]
    PortTaken { port: u16, user: String, listener: &'static str, annotation: &'static str },
    #[error(
        "the sidecar requests more {resource} than its limit ({request} and {limit}); change the annotation {annotation}"
    )]
    AboveLimit { resource: &'static str, request: String, limit: String, annotation: String },
    #[error(
        "the annotation {annotation} mounts the volume `{volume}`, which the pod does not have; add it to `volumes`"
    )]
    NoVolume { annotation: String, volume: String },
    #[error(
        "{user} runs as user {uid}, which is the sidecar's, so its connections would not be captured; give it another in `securityContext.runAsUser`"
    )]
    SidecarUser { user: String, uid: u32 },
    #[error(
        "the sidecar could not recognise its control plane; give --root-pin what `tollway identity root` prints, or have sidecars join by a token of a Secret (--token-secret)"
    )]
    NoRootPin,
    #[error(
        "the annotation dapr.io/config names the Configuration `{name}`, and the namespace has none of that name; make it first, or correct the annotation"
    )]
    NoConfiguration { name: String },
    #[error(
        "Dapr's objects for the app have {bytes} bytes, and a pod carries {limit} at most; give those that are for other apps `scopes`"
    )]
    TooMuchOfDapr { bytes: usize, limit: usize },
    #[error("the pod asks for a sidecar, but {reason}")]
    Unfit { reason: &'static str },
}

impl Problem {
    /// What is at a JSON pointer is not of the expected form.
    pub(crate) fn wrong_form(pointer: &str, expected: &'static str) -> Self {
        Self::Form { path: dotted(pointer), expected }
    }
}

/// A JSON pointer as people write paths in manifests.
pub(crate) fn dotted(pointer: &str) -> String {
    pointer.trim_start_matches('/').replace('/', ".").replace("~1", "/").replace("~0", "~")
}
