//! The identities of one trust domain that were taken back.

use std::cmp::Ordering;
use std::sync::Arc;

use tollway_model::{Instance, Label, Revocation};

/// A set of revocations. Clones are cheap, and so is a question.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Revocations(Option<Arc<[Revocation]>>);

impl Revocations {
    /// The list in any order; what stands twice counts once.
    pub fn new(list: impl IntoIterator<Item = Revocation>) -> Self {
        let mut sorted: Vec<_> = list.into_iter().collect();
        sorted.sort_unstable();
        sorted.dedup();
        Self((!sorted.is_empty()).then(|| sorted.into()))
    }

    /// Whether the app is revoked, or this instance of it.
    #[must_use]
    pub fn covers(&self, namespace: &Label, app: &Label, instance: Option<&Instance>) -> bool {
        self.has(namespace, app, None)
            || instance.is_some_and(|i| self.has(namespace, app, Some(i)))
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = &Revocation> {
        self.0.iter().flat_map(|list| list.iter())
    }

    fn has(&self, namespace: &Label, app: &Label, instance: Option<&Instance>) -> bool {
        let Some(list) = &self.0 else { return false };
        let compare = |held: &Revocation| -> Ordering {
            held.namespace
                .cmp(namespace)
                .then_with(|| held.app.cmp(app))
                .then_with(|| held.instance.as_ref().cmp(&instance))
        };
        list.binary_search_by(compare).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    #[test]
    fn a_revocation_covers_its_app_or_its_instance_and_nothing_beside_it() {
        let revoked = |app: &str, instance: Option<&str>| Revocation {
            namespace: label("shop"),
            app: label(app),
            instance: instance.map(label),
        };
        let list =
            [revoked("stock", Some("b")), revoked("Orders", None), revoked("stock", Some("d"))];
        let set = Revocations::new(list);
        let covers = |namespace: &str, app: &str, instance: Option<&str>| {
            set.covers(&label(namespace), &label(app), instance.map(label).as_ref())
        };
        assert!(covers("shop", "orders", None) && covers("Shop", "orders", Some("x")));
        assert!(covers("shop", "stock", Some("B")) && covers("shop", "Stock", Some("d")));
        for other in [Some("a"), Some("c"), Some("e"), None] {
            assert!(!covers("shop", "stock", other), "{other:?}");
        }
        assert!(!covers("default", "orders", None) && !covers("shop", "order", Some("b")));
        assert!(!Revocations::default().covers(&label("shop"), &label("orders"), None));
    }
}
