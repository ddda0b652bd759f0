//! YAML that programs in Go read, taken as they take it: Dapr's resources, Configurations and run
//! files. Tollway's own files are read by [`crate::yaml`], which is strict.
//!
//! A text becomes a [`Node`] (`tree`) whose plain values have the types of YAML 1.1 (`scalar`). A
//! type that implements `Deserialize` is read from it (`decode`): unknown fields are collected and
//! not refused, null is as absent, and a text may be written as a number. What differs between
//! Go's readers is [`Reader`]. `json` and `write` are for manifests of Kubernetes, which are read as
//! values and written again.
//!
//! What an unknown field or a document that cannot be read means is left to the caller.

mod at;
mod decode;
mod duration;
mod expand;
mod json;
mod scalar;
mod tree;
mod write;

pub use at::{At, Placed};
pub use decode::{Decoded, GoText, Unknown, decode};
pub use duration::duration;
pub use expand::expand_variables;
pub use json::to_json;
pub use scalar::Resolved;
pub use tree::{Content, Document, Key, Node, documents, manifests, only_document, read_file};
pub use write::to_yaml;

/// Which of Go's readers a kind of file has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// `sigs.k8s.io/yaml`, of resources: YAML 1.1 as JSON, fields in any case, the last of
    /// repeated keys.
    Resource,
    /// `yaml.v2`, of run files: fields as they are named, the last of repeated keys.
    RunFile,
    /// `yaml.v3`, of Configurations: fields as they are named, no key twice.
    Configuration,
}

#[cfg(test)]
mod tests;
