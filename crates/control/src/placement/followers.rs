//! Which streams follow the owners of which actor types. A change wakes the streams of its namespace
//! that follow its type, and each takes only what has changed for it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tollway_model::Label;
use tollway_wire::ACTOR_TYPES_PER_STREAM_LIMIT;

use crate::connections::{NAME_OVERHEAD_BYTES, Refused, Share};

/// Every stream that follows types.
#[derive(Default, Debug)]
pub(super) struct Followers {
    namespaces: Mutex<HashMap<Label, Namespace>>,
    next: AtomicU64,
    /// How often a stream was woken.
    woken: AtomicU64,
}

#[derive(Default, Debug)]
struct Namespace {
    of_type: HashMap<Arc<str>, HashSet<u64>>,
    waiting: HashMap<u64, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    wake: Arc<Notify>,
    /// Types that changed since the stream last took some.
    changed: HashSet<Arc<str>>,
}

/// One stream that follows types; it leaves when this is dropped.
pub(super) struct Follower {
    followers: Arc<Followers>,
    namespace: Label,
    number: u64,
    wake: Arc<Notify>,
    /// Types that are followed, with the version that was sent.
    sent: HashMap<Arc<str>, Option<u64>>,
    share: Share,
}

/// Why more types are not followed.
#[derive(Debug)]
pub(super) enum NotFollowed {
    TooMany,
    Share(Refused),
}

impl Followers {
    /// A stream of a namespace, which follows nothing yet; what it follows counts in `share`.
    pub(super) fn enter(self: &Arc<Self>, namespace: Label, share: Share) -> Follower {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let wake = Arc::new(Notify::new());
        let waiting = Waiting { wake: wake.clone(), changed: HashSet::new() };
        let mut namespaces = self.namespaces();
        namespaces.entry(namespace.clone()).or_default().waiting.insert(number, waiting);
        drop(namespaces);
        Follower { followers: self.clone(), namespace, number, wake, sent: HashMap::new(), share }
    }

    /// The owners of these types have changed.
    pub(super) fn mark(&self, namespace: &Label, changed: &[String]) {
        if changed.is_empty() {
            return;
        }
        let mut namespaces = self.namespaces();
        let Some(Namespace { of_type, waiting }) = namespaces.get_mut(namespace) else { return };
        for name in changed {
            let Some((name, numbers)) = of_type.get_key_value(name.as_str()) else { continue };
            for number in numbers {
                if let Some(waiting) = waiting.get_mut(number) {
                    waiting.changed.insert(name.clone());
                    waiting.wake.notify_one();
                    self.woken.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn woken(&self) -> u64 {
        self.woken.load(Ordering::Relaxed)
    }

    /// Whether anything is followed in a namespace.
    #[cfg(test)]
    pub(super) fn is_known(&self, namespace: &Label) -> bool {
        self.namespaces().contains_key(namespace)
    }

    fn namespaces(&self) -> MutexGuard<'_, HashMap<Label, Namespace>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn weight(name: &str) -> u64 {
    name.len() as u64 + NAME_OVERHEAD_BYTES
}

impl Follower {
    /// Follows more types; each is among the changed ones then.
    pub(super) fn add(&mut self, mut names: Vec<String>) -> Result<(), NotFollowed> {
        names.sort_unstable();
        names.dedup();
        names.retain(|name| !self.sent.contains_key(name.as_str()));
        if self.sent.len() + names.len() > ACTOR_TYPES_PER_STREAM_LIMIT {
            return Err(NotFollowed::TooMany);
        }
        let bytes = names.iter().map(|name| weight(name)).sum();
        self.share.grow(bytes).map_err(NotFollowed::Share)?;
        let mut namespaces = self.followers.namespaces();
        let namespace = namespaces.entry(self.namespace.clone()).or_default();
        let Namespace { of_type, waiting } = namespace;
        let Some(waiting) = waiting.get_mut(&self.number) else { return Ok(()) };
        for name in names {
            // One copy of a name serves all that follow it.
            let known = of_type.get_key_value(name.as_str()).map(|(name, _)| name.clone());
            let name: Arc<str> = known.unwrap_or_else(|| name.into());
            of_type.entry(name.clone()).or_default().insert(self.number);
            waiting.changed.insert(name.clone());
            self.sent.insert(name, None);
        }
        waiting.wake.notify_one();
        Ok(())
    }

    pub(super) fn remove(&mut self, names: &[String]) {
        let mut freed = 0;
        let mut namespaces = self.followers.namespaces();
        let Some(namespace) = namespaces.get_mut(&self.namespace) else { return };
        for name in names {
            if self.sent.remove(name.as_str()).is_some() {
                freed += weight(name);
                namespace.forget(name, self.number);
                if let Some(waiting) = namespace.waiting.get_mut(&self.number) {
                    waiting.changed.remove(name.as_str());
                }
            }
        }
        drop(namespaces);
        self.share.shrink(freed);
    }

    /// Returns when something may have changed.
    pub(super) async fn changed(&self) {
        self.wake.notified().await;
    }

    /// Cancelled when the stream has to end, because its identity follows most.
    pub(super) async fn evicted(&self) {
        self.share.evicted().cancelled().await;
    }

    /// The types that changed since the last time.
    pub(super) fn take(&self) -> Vec<Arc<str>> {
        let mut namespaces = self.followers.namespaces();
        let waiting =
            namespaces.get_mut(&self.namespace).and_then(|n| n.waiting.get_mut(&self.number));
        waiting.map(|waiting| std::mem::take(&mut waiting.changed)).into_iter().flatten().collect()
    }

    /// Whether a version of a followed type was sent already.
    pub(super) fn was_sent(&self, name: &str, version: u64) -> bool {
        self.sent.get(name).is_none_or(|sent| *sent == Some(version))
    }

    pub(super) fn note_sent(&mut self, name: &str, version: u64) {
        if let Some(sent) = self.sent.get_mut(name) {
            *sent = Some(version);
        }
    }
}

impl Namespace {
    fn forget(&mut self, name: &str, number: u64) {
        if let Some(numbers) = self.of_type.get_mut(name) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.of_type.remove(name);
            }
        }
        // Memory that many names took is given back.
        if self.of_type.capacity() > 64 && self.of_type.len() < self.of_type.capacity() / 4 {
            self.of_type.shrink_to_fit();
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut namespaces = self.followers.namespaces();
        let Some(namespace) = namespaces.get_mut(&self.namespace) else { return };
        namespace.waiting.remove(&self.number);
        for name in self.sent.keys() {
            namespace.forget(name, self.number);
        }
        if namespace.waiting.is_empty() {
            namespaces.remove(&self.namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::{Holder, Limits, Own, ShareLimit};

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    struct World {
        followers: Arc<Followers>,
        limit: Arc<ShareLimit>,
    }

    impl World {
        fn new(bytes: u64) -> Self {
            let limit = ShareLimit::new("bytes", Limits::of(10 * bytes, bytes), Own::Stays);
            Self { followers: Arc::default(), limit }
        }

        fn enter(&self, namespace: &str, types: &[&str]) -> Follower {
            let who = Holder::new(namespace, "web", "a");
            let share = self.limit.acquire(&who, 0).ok().unwrap();
            let mut follower = self.followers.enter(label(namespace), share);
            follower.add(names(types)).unwrap();
            follower.take();
            follower
        }
    }

    fn taken(follower: &Follower) -> Vec<String> {
        let mut taken: Vec<_> = follower.take().iter().map(ToString::to_string).collect();
        taken.sort();
        taken
    }

    #[test]
    fn a_change_wakes_who_follows_its_type_in_its_namespace_and_no_other() {
        let world = World::new(10_000);
        let (cart, order) = (world.enter("shop", &["Cart"]), world.enter("shop", &["Order"]));
        let elsewhere = world.enter("lowly", &["Cart"]);
        world.followers.mark(&label("shop"), &names(&["Cart", "Unfollowed"]));
        world.followers.mark(&label("other"), &names(&["Cart"]));
        assert_eq!(world.followers.woken(), 1);
        assert_eq!(taken(&cart), ["Cart"]);
        assert!(taken(&order).is_empty() && taken(&elsewhere).is_empty());
        assert!(taken(&cart).is_empty(), "it has been taken");
    }

    #[test]
    fn names_count_for_their_identity_and_are_given_back() {
        let world = World::new(200);
        let mut follower = world.enter("shop", &["Cart"]);
        follower.add(names(&["Cart", "Order", "Order"])).unwrap();
        assert_eq!(world.limit.held(), 4 + 5 + 2 * NAME_OVERHEAD_BYTES);
        let more = follower.add(names(&["Third"])).unwrap_err();
        assert!(matches!(more, NotFollowed::Share(_)), "{more:?}");
        follower.remove(&names(&["Cart", "Unfollowed"]));
        follower.add(names(&["Third"])).unwrap();
        assert_eq!(taken(&follower), ["Order", "Third"]);
        drop(follower);
        assert!(world.limit.held() == 0 && !world.followers.is_known(&label("shop")));
    }
}
