//! The objects of one kind that a watch reports. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::Event;

/// Namespace and name.
pub(crate) type Name = (String, String);

/// Objects of one kind, as far as they are needed.
#[derive(Debug)]
pub(crate) struct Listing<T> {
    pub(crate) by_name: BTreeMap<Name, T>,
    listed: Option<BTreeSet<Name>>,
    /// Whether all have been reported once.
    pub(crate) is_complete: bool,
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self { by_name: BTreeMap::new(), listed: None, is_complete: false }
    }
}

impl<T: PartialEq> Listing<T> {
    /// Takes an event. Returns each object that has changed, with what it was.
    pub(crate) fn note<K>(
        &mut self,
        event: Event<K>,
        name: impl Fn(&K) -> Name,
        read: impl Fn(&K) -> Option<T>,
    ) -> Vec<(Name, Option<T>)> {
        match event {
            Event::Init => {
                self.listed = Some(BTreeSet::new());
                Vec::new()
            }
            Event::InitApply(object) | Event::Apply(object) => {
                let name = name(&object);
                if let Some(listed) = &mut self.listed {
                    listed.insert(name.clone());
                }
                self.set(name, read(&object))
            }
            Event::InitDone => {
                self.is_complete = true;
                let Some(listed) = self.listed.take() else { return Vec::new() };
                let gone = self.by_name.keys().filter(|name| !listed.contains(name));
                let gone: Vec<Name> = gone.cloned().collect();
                gone.into_iter().flat_map(|name| self.set(name, None)).collect()
            }
            Event::Delete(object) => self.set(name(&object), None),
        }
    }

    fn set(&mut self, name: Name, value: Option<T>) -> Vec<(Name, Option<T>)> {
        if self.by_name.get(&name) == value.as_ref() {
            return Vec::new();
        }
        let before = match value {
            Some(value) => self.by_name.insert(name.clone(), value),
            None => self.by_name.remove(&name),
        };
        vec![(name, before)]
    }
}

pub(crate) fn name(of: &ObjectMeta) -> Name {
    (of.namespace.clone().unwrap_or_default(), of.name.clone().unwrap_or_default())
}
