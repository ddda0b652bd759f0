//! What apps may keep: each app, all apps of a namespace, and all together.

use tollway_wire::v1;

use crate::quota::{Delta, Full, Limit, Limits, Quotas, Usage};

/// Most bytes of keys and values of one app.
const APP_STATE_BYTES: u64 = 64 << 20;
/// Most entries of one app.
const APP_STATE_ENTRIES: u64 = 100_000;
/// Most bytes of keys and values of the apps of one namespace: half of what all may keep, so that no
/// namespace takes what is left for all others.
const NAMESPACE_STATE_BYTES: u64 = 128 << 20;
/// Most bytes of keys and values of all apps: the control plane has them in memory.
const STATE_BYTES: u64 = 256 << 20;
const _: () = assert!(NAMESPACE_STATE_BYTES <= STATE_BYTES / 2);
/// For the operator.
pub(super) const QUOTAS: v1::StateQuotas = v1::StateQuotas {
    app_entries: APP_STATE_ENTRIES,
    app_bytes: APP_STATE_BYTES,
    namespace_bytes: NAMESPACE_STATE_BYTES,
    bytes: STATE_BYTES,
};
/// Entries have bytes, which are limited.
const ENTRIES: Limit = Limit { what: "the number of entries", most: u64::MAX };
const OF_APPS: Limits = Limits {
    owner_bytes: Limit { what: "what the app keeps in bytes", most: APP_STATE_BYTES },
    owner_entries: Limit { what: "the number of the app's entries", most: APP_STATE_ENTRIES },
    bytes: Limit { what: "what all apps keep in bytes", most: STATE_BYTES },
    entries: ENTRIES,
};
const OF_NAMESPACES: Limits = Limits {
    owner_bytes: Limit {
        what: "what the apps of the namespace keep in bytes",
        most: NAMESPACE_STATE_BYTES,
    },
    owner_entries: ENTRIES,
    bytes: Limit { what: "what all namespaces keep in bytes", most: u64::MAX },
    entries: ENTRIES,
};

/// Usage by app and by namespace. An app is named `NAMESPACE/APP/`.
pub(super) struct AppQuotas {
    apps: Quotas,
    namespaces: Quotas,
}

impl Default for AppQuotas {
    fn default() -> Self {
        Self { apps: Quotas::new(OF_APPS), namespaces: Quotas::new(OF_NAMESPACES) }
    }
}

impl AppQuotas {
    /// Counts a write, unless it would exceed a limit.
    pub(super) fn reserve(&mut self, app: &str, delta: Delta) -> Result<(), Full> {
        self.namespaces.reserve(namespace(app), delta)?;
        let reserved = self.apps.reserve(app, delta);
        if reserved.is_err() {
            self.namespaces.release(namespace(app), delta);
        }
        reserved
    }

    /// Counts what has happened, whatever the limits.
    pub(super) fn count(&mut self, app: &str, delta: Delta) {
        self.namespaces.count(namespace(app), delta);
        self.apps.count(app, delta);
    }

    /// Takes a write back that did not happen.
    pub(super) fn release(&mut self, app: &str, delta: Delta) {
        self.namespaces.release(namespace(app), delta);
        self.apps.release(app, delta);
    }

    /// Of all apps.
    pub(super) fn all(&self) -> Usage {
        self.apps.all()
    }
}

/// The namespace of an app.
pub(super) fn namespace(app: &str) -> &str {
    app.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(count: u64) -> Delta {
        let mut delta = Delta::default();
        delta.replace(None, Some(usize::try_from(count).unwrap()));
        delta
    }

    /// The harm: one namespace, by apps of as many names as it likes, fills the state of all.
    #[test]
    fn a_namespace_leaves_half_to_others() {
        let mut quotas = AppQuotas::default();
        let mut refused = None;
        for app in 0..5 {
            for _ in 0..64 {
                let taken = quotas.reserve(&format!("lowly/evil-{app}/"), bytes(1 << 20));
                refused = refused.or(taken.err());
            }
        }
        assert_eq!(refused.unwrap().what, "what the apps of the namespace keep in bytes");
        assert_eq!(quotas.all().bytes, NAMESPACE_STATE_BYTES);
        for app in ["shop/cart/", "shop/till/"] {
            quotas.reserve(app, bytes(APP_STATE_BYTES)).unwrap();
        }
        assert_eq!(quotas.all().bytes, STATE_BYTES);
    }

    #[test]
    fn what_an_app_may_not_have_counts_for_nothing() {
        let mut quotas = AppQuotas::default();
        quotas.reserve("shop/cart/", bytes(APP_STATE_BYTES)).unwrap();
        let refused = quotas.reserve("shop/cart/", bytes(1)).unwrap_err();
        assert_eq!(refused.what, "what the app keeps in bytes");
        quotas.reserve("shop/till/", bytes(APP_STATE_BYTES)).unwrap();
        quotas.release("shop/till/", bytes(APP_STATE_BYTES));
        quotas.count("shop/other/", bytes(APP_STATE_BYTES));
        let refused = quotas.reserve("shop/till/", bytes(1)).unwrap_err();
        assert_eq!(
            (refused.found, refused.limit),
            (NAMESPACE_STATE_BYTES + 1, NAMESPACE_STATE_BYTES)
        );
    }
}
