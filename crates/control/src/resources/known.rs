//! Decides which objects are written, replaced and removed for the custom resources of a cluster. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use tollway_model::{Object, ObjectId};
use tollway_wire::{RESOURCE_BYTES_PER_NAMESPACE_LIMIT, RESOURCES_PER_NAMESPACE_LIMIT};

use super::{RefusalReason, Resource, ResourceEvent, ResourceKind, ResourceName};

/// Bytes of the specifications of one kind in one namespace, as JSON: those of objects are fewer.
const SPECIFICATIONS_BYTES: usize = 2 * RESOURCE_BYTES_PER_NAMESPACE_LIMIT;

/// The resources that the cluster has reported.
#[derive(Default, Debug)]
pub(crate) struct KnownResources {
    by_name: BTreeMap<ResourceName, Known>,
    /// What has been reported of the kinds whose resources are being listed.
    listing: BTreeMap<ResourceKind, BTreeSet<ResourceName>>,
    /// Kinds whose resources have all been reported once.
    complete: BTreeSet<ResourceKind>,
    /// By kind and namespace: how many are held with their object, and the bytes of their specifications.
    held: BTreeMap<(ResourceKind, String), (usize, usize)>,
    /// By kind: how many have their object stored, and how many have not.
    counts: BTreeMap<ResourceKind, (usize, usize)>,
}

#[derive(Debug)]
struct Known {
    generation: i64,
    /// Of the specification that is held with its object; 0 for one that is not.
    bytes: usize,
    read: Result<(Object, u64), (RefusalReason, String)>,
    fate: Fate,
}

/// What has become of a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    /// Report why it has no object.
    Report(ResourceName, RefusalReason, String),
    /// Remove the object of a resource that has been deleted.
    Remove(ObjectId),
    /// Remove the objects of this kind that come from the cluster and have no resource any more.
    RemoveOthers(ResourceKind),
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
                    let of_kind = self.by_name.keys().filter(|name| name.kind == kind);
                    let gone: Vec<_> =
                        of_kind.filter(|name| !listed.contains(name)).cloned().collect();
                    gone.iter().for_each(|name| self.forget(name));
                }
                self.complete.insert(kind);
                self.counts.entry(kind).or_default();
                vec![Step::RemoveOthers(kind)]
            }
            ResourceEvent::Deleted(name) => {
                let is_known = self.by_name.contains_key(&name);
                self.forget(&name);
                let id = name.id().filter(|_| is_known);
                id.map(Step::Remove).into_iter().collect()
            }
        }
    }

    fn forget(&mut self, name: &ResourceName) {
        let Some(known) = self.by_name.remove(name) else { return };
        *self.count(name.kind, known.fate) -= 1;
        let share = (name.kind, name.namespace.clone());
        if let (true, Some((count, bytes))) = (known.bytes > 0, self.held.get_mut(&share)) {
            (*count, *bytes) = (*count - 1, *bytes - known.bytes);
            if *count == 0 {
                self.held.remove(&share);
            }
        }
    }

    /// Counts a specification with those of its namespace. False if there is no space for it.
    fn hold(&mut self, name: &ResourceName, bytes: usize) -> bool {
        let share = self.held.entry((name.kind, name.namespace.clone())).or_default();
        let (count, sum) = (share.0 + 1, share.1 + bytes);
        let fits = count <= RESOURCES_PER_NAMESPACE_LIMIT && sum <= SPECIFICATIONS_BYTES;
        if fits {
            *share = (count, sum);
        }
        fits
    }

    fn take(&mut self, resource: Resource) -> Vec<Step> {
        let Resource { name, generation, created_unix_ms, bytes, object } = resource;
        let read = object.map(|object| (object, created_unix_ms));
        let read = read.map_err(|why| (RefusalReason::Invalid, why));
        // A later generation of the same content is written again, for its status.
        let is_as_before = |known: &Known| known.generation == generation && known.read == read;
        if self.by_name.get(&name).is_some_and(is_as_before) {
            return Vec::new();
        }
        self.forget(&name);
        let bytes = bytes.max(1);
        let (read, bytes) = match read {
            Ok(read) if self.hold(&name, bytes) => (Ok(read), bytes),
            Ok(_) => {
                let why = format!(
                    "a namespace has at most {RESOURCES_PER_NAMESPACE_LIMIT} resources of a kind, \
                     whose specifications have {SPECIFICATIONS_BYTES} bytes together; delete some, \
                     and then change this one in any way"
                );
                (Err((RefusalReason::LimitReached, why)), 0)
            }
            Err(why) => (Err(why), 0),
        };
        let (fate, step) = match &read {
            Ok(_) => (Fate::Waits, Step::Write(name.clone())),
            Err((reason, why)) => {
                (Fate::Unreadable, Step::Report(name.clone(), *reason, why.clone()))
            }
        };
        *self.count(name.kind, fate) += 1;
        self.by_name.insert(name, Known { generation, bytes, read, fate });
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
        let Some(known) = self.by_name.get_mut(name) else { return };
        let former = std::mem::replace(&mut known.fate, fate);
        *self.count(name.kind, former) -= 1;
        *self.count(name.kind, fate) += 1;
    }

    /// How many of a kind have this fate, with those that are counted beside them.
    fn count(&mut self, kind: ResourceKind, fate: Fate) -> &mut usize {
        let (stored, others) = self.counts.entry(kind).or_default();
        match fate {
            Fate::Stored => stored,
            Fate::Waits | Fate::Unreadable | Fate::Refused => others,
        }
    }

    /// Whether it was refused, and is to be tried again.
    pub(crate) fn is_refused(&self, name: &ResourceName) -> bool {
        self.by_name.get(name).is_some_and(|known| known.fate == Fate::Refused)
    }

    /// Kinds whose resources are all known.
    pub(crate) fn complete(&self) -> Vec<ResourceKind> {
        self.complete.iter().copied().collect()
    }

    /// Whether an object of the cluster has a resource. A resource that cannot be read keeps what it was.
    pub(crate) fn has(&self, id: &ObjectId) -> bool {
        self.by_name.contains_key(&ResourceName::of(id))
    }

    /// By kind: how many are in effect, and how many are not.
    pub(crate) fn counts(&self) -> &BTreeMap<ResourceKind, (usize, usize)> {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollway_model::{Mode, ObjectKind, ObjectName, Policy, PolicyTarget};

    use super::*;

    const POLICY: ResourceKind = ResourceKind::Own(ObjectKind::Policy);

    fn name(name: &str) -> ResourceName {
        let kind = POLICY;
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
            bytes: 100,
            object: Ok(policy(text, mode)),
        }
    }

    fn listed(known: &mut KnownResources, resources: Vec<Resource>) -> Vec<Step> {
        let kind = POLICY;
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
        let others = Step::RemoveOthers(POLICY);
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
        let report = Step::Report(name("b"), RefusalReason::Invalid, "odd".into());
        let others = Step::RemoveOthers(POLICY);
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
        assert!(known.is_refused(&name("b")) && !known.is_refused(&name("a")));
        assert_eq!(*known.counts(), BTreeMap::from([(POLICY, (1, 1))]));
        assert_eq!(
            known.note(ResourceEvent::Changed(resource("b", 2, Mode::Shadow))),
            [Step::Write(name("b"))]
        );
        assert!(!known.is_refused(&name("b")) && !known.is_refused(&name("gone")));
        assert_eq!(known.complete(), [POLICY]);
    }

    /// The harm: who may write resources in one namespace fills the memory of the control plane.
    #[test]
    fn so_many_resources_of_a_namespace_are_held() {
        let mut known = KnownResources::default();
        let limit = RESOURCES_PER_NAMESPACE_LIMIT;
        let all = (0..=limit).map(|number| resource(&format!("p{number}"), 1, Mode::Enforce));
        let steps = listed(&mut known, all.collect());
        let last = name(&format!("p{limit}"));
        let is_last = |step: &&Step| matches!(step, Step::Report(name, RefusalReason::LimitReached, _) if *name == last);
        assert_eq!(steps.iter().filter(is_last).count(), 1);
        assert!(known.object(&last).is_none() && known.object(&name("p0")).is_some());
        // One that goes makes space, once the other is reported again.
        known.note(ResourceEvent::Deleted(name("p0")));
        let again = resource(&format!("p{limit}"), 1, Mode::Enforce);
        assert_eq!(known.note(ResourceEvent::Changed(again)), [Step::Write(last.clone())]);
        let large = Resource { bytes: SPECIFICATIONS_BYTES, ..resource("large", 1, Mode::Enforce) };
        known.note(ResourceEvent::Deleted(last));
        let refused = known.note(ResourceEvent::Changed(large));
        assert!(matches!(&refused[0], Step::Report(_, RefusalReason::LimitReached, _)));
        let shares: Vec<_> = known.held.values().copied().collect();
        assert_eq!(shares, [(limit - 1, 100 * (limit - 1))]);
        listed(&mut known, vec![]);
        assert!(known.held.is_empty());
        assert_eq!(*known.counts(), BTreeMap::from([(POLICY, (0, 0))]));
    }
}
