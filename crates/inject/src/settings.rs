//! Settings of the injector, which hold for all pods.

use std::collections::BTreeMap;

use crate::dapr::DaprObjects;

/// The same for every sidecar, unless annotations of a pod change it.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// The image of the sidecar.
    pub image: String,
    pub pull_policy: PullPolicy,
    /// Address of the control plane, as `--control` takes it.
    pub control: String,
    pub token: TokenFrom,
    pub resources: DefaultResources,
    /// The user of the sidecar's processes. No app of the pod should have it.
    pub uid: u32,
    pub ip_family: IpFamily,
    /// What is done with pods of which neither an annotation nor the namespace says anything.
    pub unmarked: Unmarked,
    pub dapr_config: DaprConfig,
    /// Marks pods that have a sidecar: which version has added it.
    pub version: String,
}

/// When a node fetches the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// How a sidecar proves what it is when it joins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenFrom {
    /// A token of the pod's service account, which the kubelet renews; and the pin of the network's root,
    /// by which the sidecar recognises the control plane that it shows the token to.
    ServiceAccount { root_pin: Option<String>, expiration_seconds: u32 },
    /// The field `token` of a Secret of the pod's namespace: a join token.
    Secret(String),
}

/// What a sidecar requests and may use. Quantities of Kubernetes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DefaultResources {
    pub cpu_request: Option<String>,
    pub cpu_limit: Option<String>,
    pub memory_request: Option<String>,
    pub memory_limit: Option<String>,
}

/// The family of the pods' addresses; of those with both, that of the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpFamily {
    V4,
    V6,
}

/// What is done with pods of which nothing is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmarked {
    Inject,
    Leave,
}

/// What is done with a Configuration that `dapr.io/config` names and that the sidecar cannot read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DaprConfig {
    /// It may decide who calls the app, so the pod gets no sidecar without it.
    Refuse,
    /// A note says that it is left out.
    LeaveOut,
}

/// The namespace of an object.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Namespace {
    /// Empty where it is not known.
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Its objects of Dapr, for pods with `dapr.io/enabled`; `None` where they are not known.
    pub dapr: Option<DaprObjects>,
}

impl Settings {
    /// With the defaults.
    #[must_use]
    pub fn new(image: &str, control: &str) -> Self {
        let text = |text: &str| Some(text.to_owned());
        Self {
            image: image.to_owned(),
            pull_policy: PullPolicy::IfNotPresent,
            control: control.to_owned(),
            token: TokenFrom::ServiceAccount { root_pin: None, expiration_seconds: 3600 },
            resources: DefaultResources {
                cpu_request: text("10m"),
                cpu_limit: None,
                memory_request: text("16Mi"),
                memory_limit: text("256Mi"),
            },
            uid: 15_001,
            ip_family: IpFamily::V4,
            unmarked: Unmarked::Leave,
            dapr_config: DaprConfig::Refuse,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

impl PullPolicy {
    pub(crate) const WORDS: &'static [&'static str] = &["Always", "IfNotPresent", "Never"];

    /// As Kubernetes writes it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}
