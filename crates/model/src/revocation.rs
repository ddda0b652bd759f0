//! Identities that are believed no more though their certificates still run.

use crate::name::{Instance, Label};

/// An app of a network, or one instance of it, whose identity was taken back. Ordered by namespace,
/// app and instance; that of the whole app comes first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Revocation {
    pub namespace: Label,
    pub app: Label,
    /// `None` for every instance, present and future.
    pub instance: Option<Instance>,
}

impl std::fmt::Display for Revocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.app, self.namespace)?;
        match &self.instance {
            Some(instance) => write!(f, "/{instance}"),
            None => Ok(()),
        }
    }
}
