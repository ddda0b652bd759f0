//! Adds a sidecar to the pods of Kubernetes objects: [`inject`] takes one object and gives it back with
//! the sidecar, and the same change as a JSON patch.
//!
//! `manifest` finds the pods of an object, `decision` whether one gets a sidecar, `request` what its
//! annotations ask for by the table in `annotation`, `dapr` what it gets of Dapr's objects, and `sidecar`
//! builds what is added. `edit` records
//! each addition. Nothing is read or written here: the webhook and `tollway kube inject` do that.

#![forbid(unsafe_code)]

mod annotation;
mod dapr;
mod decision;
mod edit;
mod error;
mod manifest;
mod ports;
mod quantity;
mod request;
mod settings;
mod sidecar;
mod value;

pub use annotation::{ANNOTATIONS, APP, Annotation, CAPTURE, INJECT, INJECTED, NETWORK, PORT};
pub use dapr::DaprObjects;
pub use edit::Operation;
pub use error::{InjectError, Problem};
pub use quantity::is_quantity;
pub use settings::{
    DaprConfig, DefaultResources, IpFamily, Namespace, PullPolicy, Settings, TokenFrom, Unmarked,
};
pub use value::PORT_OF_SERVICES;

use serde_json::Value;

use crate::decision::{Decision, decide};
use crate::edit::Edit;
use crate::manifest::PodAt;
use crate::request::Request;

/// An object with what was done to it.
#[derive(Clone, PartialEq, Debug)]
pub struct Injection {
    pub object: Value,
    /// Turns the given object into this one (RFC 6902); empty where nothing was done.
    pub patch: Vec<Operation>,
    pub notes: Vec<Note>,
}

/// What the owner of an object should know: an annotation without effect, a pod that is left as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// Kind and name.
    pub object: String,
    pub text: String,
}

/// Adds a sidecar to each pod of `object` that is to have one. Objects without pods, and pods that have
/// a sidecar already, come back as they are. The objects of a `List` are treated one by one.
///
/// # Errors
/// [`InjectError`] with the object and what is wrong with it. Nothing is done then.
pub fn inject(
    object: &Value,
    namespace: &Namespace,
    settings: &Settings,
) -> Result<Injection, InjectError> {
    let mut edit = Edit::new(object.clone());
    let mut notes = Vec::new();
    for pod in manifest::pods(object) {
        let about = pod.shown(object);
        let mut found = Vec::new();
        inject_pod(&mut edit, &pod, namespace, settings, &mut found)
            .map_err(|problem| InjectError { object: about.clone(), problem })?;
        notes.extend(found.into_iter().map(|text| Note { object: about.clone(), text }));
    }
    let (object, patch) = edit.end();
    Ok(Injection { object, patch, notes })
}

fn inject_pod(
    edit: &mut Edit,
    at: &PodAt,
    namespace: &Namespace,
    settings: &Settings,
    notes: &mut Vec<String>,
) -> Result<(), Problem> {
    let object = edit.object();
    notes.extend(at.misplaced(object));
    match decide(object, at, namespace, settings)? {
        Decision::Leave(why) => {
            notes.extend(why);
            Ok(())
        }
        Decision::Inject(style) => {
            let request = Request::read(object, at, style, (namespace, settings), notes)?;
            sidecar::add(edit, at, &request, settings)
        }
    }
}

#[cfg(test)]
mod tests;
