//! Which apps may host an actor type.

use std::collections::BTreeSet;
use std::time::Duration;

/// How long a type that no host offers remains with its app: longer than an app that is deployed again
/// or restarted takes, so that no other app takes the type meanwhile.
pub const TYPE_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// The apps that may host an actor type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TypeApps<A> {
    apps: BTreeSet<A>,
    /// The operator has named them.
    is_named: bool,
    /// Other apps may host it, too, if they share their types.
    is_shared: bool,
    /// Since when no host offers the type, since 1970.
    vacant_since: Option<Duration>,
}

impl<A: Ord> TypeApps<A> {
    /// Of the first app that offers a type, which it may share with others.
    #[must_use]
    pub fn first(app: A, is_shared: bool) -> Self {
        Self { apps: BTreeSet::from([app]), is_named: false, is_shared, vacant_since: None }
    }

    /// Of apps that the operator names, while no host offers the type.
    #[must_use]
    pub fn named(apps: BTreeSet<A>, now: Duration) -> Self {
        Self { apps, is_named: true, is_shared: false, vacant_since: Some(now) }
    }

    /// As they were stored.
    #[must_use]
    pub fn restored(
        apps: BTreeSet<A>,
        (is_named, is_shared): (bool, bool),
        vacant_since: Option<Duration>,
    ) -> Self {
        Self { apps, is_named, is_shared, vacant_since }
    }

    /// Whether it is one of its apps.
    #[must_use]
    pub fn may_host(&self, app: &A) -> bool {
        self.apps.contains(app)
    }

    /// Whether an app that is none of its apps may host it, too.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// A host of its apps does not share it: no further app may host it. Returns whether one could.
    pub fn end_sharing(&mut self) -> bool {
        std::mem::take(&mut self.is_shared)
    }

    /// In order.
    pub fn apps(&self) -> impl Iterator<Item = &A> {
        self.apps.iter()
    }

    #[must_use]
    pub fn is_named(&self) -> bool {
        self.is_named
    }

    #[must_use]
    pub fn vacant_since(&self) -> Option<Duration> {
        self.vacant_since
    }

    /// A host offers the type.
    pub fn occupy(&mut self) {
        self.vacant_since = None;
    }

    /// No host offers or holds the type any more.
    pub fn vacate(&mut self, now: Duration) {
        self.vacant_since.get_or_insert(now);
    }

    /// Whether the type may go to another app, unless something is stored for it: the first app that
    /// offered it has had no host for [`TYPE_RETENTION`].
    #[must_use]
    pub fn has_lapsed(&self, now: Duration) -> bool {
        let has_lapsed = |since| now.saturating_sub(since) >= TYPE_RETENTION;
        !self.is_named && self.vacant_since.is_some_and(has_lapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    #[test]
    fn a_type_belongs_to_the_first_app_until_it_has_been_vacant_for_long() {
        let mut apps = TypeApps::first("cart", false);
        assert!(apps.may_host(&"cart") && !apps.may_host(&"intruder"));
        assert!(!apps.has_lapsed(NOW + TYPE_RETENTION * 10), "it has hosts");
        apps.vacate(NOW);
        apps.vacate(NOW + TYPE_RETENTION);
        assert!(!apps.has_lapsed(NOW + TYPE_RETENTION - Duration::from_secs(1)));
        assert!(!apps.has_lapsed(NOW - TYPE_RETENTION), "a clock that was put back");
        assert!(apps.has_lapsed(NOW + TYPE_RETENTION));
        apps.occupy();
        assert!(!apps.has_lapsed(NOW + TYPE_RETENTION));
    }

    #[test]
    fn a_type_is_shared_until_one_of_its_hosts_does_not_share_it() {
        let mut apps = TypeApps::first("cart", true);
        assert!(apps.is_shared() && !apps.may_host(&"web"), "web is none of its apps");
        assert!(apps.end_sharing() && !apps.end_sharing() && !apps.is_shared());
        assert!(!TypeApps::named(BTreeSet::from(["cart"]), NOW).is_shared());
    }

    #[test]
    fn apps_that_the_operator_named_keep_their_type() {
        let apps = TypeApps::named(BTreeSet::from(["cart", "cart-next"]), NOW);
        assert!(apps.may_host(&"cart") && apps.may_host(&"cart-next") && !apps.may_host(&"web"));
        assert!(!apps.has_lapsed(NOW + TYPE_RETENTION * 10));
    }
}
