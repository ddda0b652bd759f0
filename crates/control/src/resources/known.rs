//! What the custom resources of a cluster come to: which objects are written, replaced and removed. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use tollway_model::{Object, ObjectId, ObjectKind};

use super::{Resource, ResourceEvent, ResourceName};

/// The resources that the cluster has reported.
#[derive(Default, Debug)]
pub(crate) struct KnownResources {
    by_name: BTreeMap<ResourceName, Known>,
    /// What has been reported of the kinds whose resources are being listed.
    listing: BTreeMap<ObjectKind, BTreeSet<ResourceName>>,
    /// Kinds whose resources have all been reported once.
    complete: BTreeSet<ObjectKind>,
}

#[derive(Debug)]
struct Known {
    generation: i64,
    read: Result<(Object, u64), String>,
    fate: Fate,
}

/// What has become of a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It has to be written.
    Waits,
    /// Its object is stored.
    Stored,
    /// It cannot be read; what it was before stays in effect.
    Unreadable,
    /// It could not be written and is tried again.
    Refused,
}

/// What is to be done, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Write its object, [`KnownResources::object`].
    Write(ResourceName),
    /// Report that it cannot be read.
    Report(ResourceName, String),
    /// Remove the object of a resource that has been deleted.
    Remove(ObjectId),
    /// Remove the objects of this kind that come from the cluster and have no resource any more.
    RemoveOthers(ObjectKind),
}

impl KnownResources {
    /// Takes an event. A change that leaves the specification as it is, as one of the status, means nothing.
    pub(crate) fn note(&mut self, event: ResourceEvent) -> Vec<Step> {
        match event {
            ResourceEvent::ListBegins(kind) => {
                self.listing.insert(kind, BTreeSet::new());
                Vec::new()
            }
            ResourceEvent::Listed(resource) => {
                if let Some(listed) = self.listing.get_mut(&resource.name.kind) {
                    listed.insert(resource.name.clone());
                }
                self.take(resource)
            }
            ResourceEvent::Changed(resource) => self.take(resource),
            ResourceEvent::ListEnds(kind) => {
                if let Some(listed) = self.listing.remove(&kind) {
                    self.by_name.retain(|name, _| name.kind != kind || listed.contains(name));
                }
                self.complete.insert(kind);
                vec![Step::RemoveOthers(kind)]
            }
            ResourceEvent::Deleted(name) => {
                let known = self.by_name.remove(&name);
                known.and_then(|_| name.id()).map(Step::Remove).into_iter().collect()
            }
        }
    }

    fn take(&mut self, resource: Resource) -> Vec<Step> {
        let Resource { name, generation, created_unix_ms, object } = resource;
        let read = object.map(|object| (object, created_unix_ms));
        if let Some(known) = self.by_name.get(&name)
            && known.read == read
        {
            // A later generation of the same content, such as one with other labels, is reported too.
            let is_new = known.generation != generation;
            let known = self.by_name.get_mut(&name).expect("it is there");
            known.generation = generation;
            if !is_new {
                return Vec::new();
            }
        }
        let (fate, step) = match &read {
            Ok(_) => (Fate::Waits, Step::Write(name.clone())),
            Err(why) => (Fate::Unreadable, Step::Report(name.clone(), why.clone())),
        };
        self.by_name.insert(name, Known { generation, read, fate });
        vec![step]
    }

    /// The object of a resource, when the resource was created (Unix time in ms), and its generation.
    pub(crate) fn object(&self, name: &ResourceName) -> Option<(&Object, u64, i64)> {
        let known = self.by_name.get(name)?;
        let (object, created) = known.read.as_ref().ok()?;
        Some((object, *created, known.generation))
    }

    /// Its generation, as long as it is there.
    pub(crate) fn generation(&self, name: &ResourceName) -> Option<i64> {
        self.by_name.get(name).map(|known| known.generation)
    }

    /// Notes what has become of a resource that was to be written.
    pub(crate) fn set_fate(&mut self, name: &ResourceName, fate: Fate) {
        if let Some(known) = self.by_name.get_mut(name) {
            known.fate = fate;
        }
    }

    /// Those that were refused, to be tried again.
    pub(crate) fn refused(&self) -> Vec<ResourceName> {
        let refused = self.by_name.iter().filter(|(_, known)| known.fate == Fate::Refused);
        refused.map(|(name, _)| name.clone()).collect()
    }

    /// Whether an object of the cluster has a resource. A resource that cannot be read keeps what it was.
    pub(crate) fn has(&self, id: &ObjectId) -> bool {
        self.by_name.contains_key(&ResourceName::of(id))
    }

    /// By kind: how many are in effect, and how many are not.
    pub(crate) fn counts(&self) -> BTreeMap<ObjectKind, (usize, usize)> {
        let mut counts: BTreeMap<ObjectKind, (usize, usize)> =
            self.complete.iter().map(|kind| (*kind, (0, 0))).collect();
        for (name, known) in &self.by_name {
            let (stored, others) = counts.entry(name.kind).or_default();
            match known.fate {
                Fate::Stored => *stored += 1,
                Fate::Waits | Fate::Unreadable | Fate::Refused => *others += 1,
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollway_model::{Mode, ObjectName, Policy, PolicyTarget};

    use super::*;

    fn name(name: &str) -> ResourceName {
        let kind = ObjectKind::Policy;
        ResourceName { kind, namespace: "shop".into(), name: name.into() }
    }

    fn policy(name: &str, mode: Mode) -> Object {
        Object::Policy(Arc::new(Policy {
            name: ObjectName::new("shop", name).unwrap(),
            target: PolicyTarget::Namespace,
            mode,
            allow: None,
            deny: Vec::new(),
        }))
    }

    fn resource(text: &str, generation: i64, mode: Mode) -> Resource {
        Resource {
            name: name(text),
            generation,
            created_unix_ms: 5,
            object: Ok(policy(text, mode)),
        }
    }

    fn listed(known: &mut KnownResources, resources: Vec<Resource>) -> Vec<Step> {
        let kind = ObjectKind::Policy;
        let mut steps = known.note(ResourceEvent::ListBegins(kind));
        for resource in resources {
            steps.extend(known.note(ResourceEvent::Listed(resource)));
        }
        steps.extend(known.note(ResourceEvent::ListEnds(kind)));
        steps
    }

    #[test]
    fn a_list_writes_what_there_is_and_removes_the_rest() {
        let mut known = KnownResources::default();
        let steps = listed(&mut known, vec![resource("a", 1, Mode::Enforce)]);
        let others = Step::RemoveOthers(ObjectKind::Policy);
        assert_eq!(steps, [Step::Write(name("a")), others.clone()]);
        let (object, created, generation) = known.object(&name("a")).unwrap();
        assert_eq!((object, created, generation), (&policy("a", Mode::Enforce), 5, 1));
        assert!(known.has(&name("a").id().unwrap()) && !known.has(&name("b").id().unwrap()));
        // Another list without it: the watch was broken off meanwhile.
        assert_eq!(listed(&mut known, vec![]), [others]);
        assert!(!known.has(&name("a").id().unwrap()));
    }

    #[test]
    fn a_resource_is_written_again_when_its_specification_changes() {
        let mut known = KnownResources::default();
        listed(&mut known, vec![resource("a", 1, Mode::Enforce)]);
        let mut note = |resource| known.note(ResourceEvent::Changed(resource));
        assert_eq!(note(resource("a", 1, Mode::Enforce)), [], "its status has changed");
        assert_eq!(note(resource("a", 2, Mode::Shadow)), [Step::Write(name("a"))]);
        assert_eq!(
            note(resource("a", 3, Mode::Shadow)),
            [Step::Write(name("a"))],
            "for its status"
        );
        assert_eq!(known.generation(&name("a")), Some(3));
        assert_eq!(
            known.note(ResourceEvent::Deleted(name("a"))),
            [Step::Remove(name("a").id().unwrap())]
        );
        assert_eq!(known.note(ResourceEvent::Deleted(name("a"))), []);
        assert_eq!(known.generation(&name("a")), None);
    }

    #[test]
    fn what_cannot_be_read_keeps_its_former_object_and_hurts_no_other() {
        let mut known = KnownResources::default();
        let broken = Resource { object: Err("odd".into()), ..resource("b", 2, Mode::Enforce) };
        let steps = listed(&mut known, vec![broken, resource("a", 1, Mode::Enforce)]);
        let report = Step::Report(name("b"), "odd".into());
        let others = Step::RemoveOthers(ObjectKind::Policy);
        assert_eq!(steps, [report, Step::Write(name("a")), others]);
        assert!(known.has(&name("b").id().unwrap()) && known.object(&name("b")).is_none());
        // No object can have such a name.
        let odd = ResourceName { name: "a.b".into(), ..name("a") };
        known.note(ResourceEvent::Changed(Resource {
            name: odd.clone(),
            object: Err("its name".into()),
            ..resource("a", 1, Mode::Enforce)
        }));
        assert_eq!(known.note(ResourceEvent::Deleted(odd)), []);
    }

    #[test]
    fn those_that_were_refused_are_tried_again_and_counted() {
        let mut known = KnownResources::default();
        let both = vec![resource("a", 1, Mode::Enforce), resource("b", 1, Mode::Enforce)];
        listed(&mut known, both);
        known.set_fate(&name("a"), Fate::Stored);
        known.set_fate(&name("b"), Fate::Refused);
        known.set_fate(&name("gone"), Fate::Refused);
        assert_eq!(known.refused(), [name("b")]);
        assert_eq!(known.counts(), BTreeMap::from([(ObjectKind::Policy, (1, 1))]));
        assert_eq!(
            known.note(ResourceEvent::Changed(resource("b", 2, Mode::Shadow))),
            [Step::Write(name("b"))]
        );
        assert_eq!(known.refused(), []);
    }
}
