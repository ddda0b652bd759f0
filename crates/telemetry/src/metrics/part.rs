//! The parts of Tollway that have a page of metrics.

/// A process of Tollway that has a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Sidecar,
    Gateway,
    Front,
    Control,
    /// The agent that keeps the tables of the fabric.
    Fabric,
    /// What adds sidecars to the pods of a Kubernetes cluster.
    Injector,
    /// A sidecar that serves Dapr's API: the metrics that it adds to those of a sidecar.
    Daprd,
}

impl Part {
    /// The value of the label `part`; the documentation uses it too.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Sidecar => "sidecar",
            Self::Gateway => "gateway",
            Self::Front => "front",
            Self::Control => "control",
            Self::Fabric => "fabric",
            Self::Injector => "injector",
            Self::Daprd => "daprd",
        }
    }
}
