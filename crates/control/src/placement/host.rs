//! Hosts of actors, and what of them outlives the control plane.

use std::collections::HashMap;

use bytes::Bytes;
use tollway_actors::placement::Epoch;
use tollway_model::{Instance, Label, ServiceName};
use tollway_store::{KeyRange, ReadError, Store};

/// Start of the keys of hosts. They are no part of what data planes see.
const HOST_PREFIX: &str = "actors/host/";
/// The last number that a grant is known to have had.
pub(crate) const LAST_EPOCH_KEY: &str = "actors/epoch";
/// 2026-01-01, in seconds since 1970: epochs count from there.
const BEGINNING_UNIX_S: u64 = 1_767_225_600;
/// Numbers for each second: more than can be used in one. With 31 bits of seconds an epoch is an
/// integer that every store can keep and compare, one that counts in doubles too.
const EPOCHS_PER_SECOND: u64 = 1 << 22;
/// Hosts read at once.
const PAGE: usize = 1_000;

/// One life of a host.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Host {
    pub(crate) app: Label,
    pub(crate) instance: Instance,
    pub(crate) life: u64,
}

impl Host {
    pub(crate) fn key(&self, namespace: &Label) -> Bytes {
        let Self { app, instance, life } = self;
        let low = Label::to_lower;
        format!("{HOST_PREFIX}{}/{}/{}/{life}", low(namespace), low(app), low(instance)).into()
    }

    /// `None` for what this version does not write.
    fn parse(key: &[u8]) -> Option<(Label, Self)> {
        let text = std::str::from_utf8(key).ok()?.strip_prefix(HOST_PREFIX)?;
        let [namespace, app, instance, life] = text.split('/').collect::<Vec<_>>()[..] else {
            return None;
        };
        let label = |text: &str| Label::new(text).ok();
        let host = Self { app: label(app)?, instance: label(instance)?, life: life.parse().ok()? };
        Some((label(namespace)?, host))
    }

    pub(crate) fn service(&self, namespace: &Label, network: &Label) -> ServiceName {
        ServiceName {
            app: self.app.clone(),
            namespace: namespace.clone(),
            network: network.clone(),
        }
    }
}

/// What an earlier life of the control plane has left behind.
#[derive(Debug)]
pub(crate) struct Left {
    /// No grant of an earlier life has this epoch or a higher one.
    pub(crate) epoch: Epoch,
    /// Hosts that may hold something still, by namespace, with the revisions of their keys.
    pub(crate) hosts: HashMap<Label, HashMap<Host, u64>>,
}

/// Reads what is left. Epochs go on from the clock, so that they are higher than those of an
/// earlier control plane even if this one has another store, or an old copy of it: what actors
/// have written may lie in a database that has seen them.
pub(crate) async fn read(store: &Store, now_unix_s: u64) -> Result<Left, ReadError> {
    let last = store.get(LAST_EPOCH_KEY.as_bytes()).await?.and_then(|entry| number(&entry.value));
    let range = KeyRange::prefix(HOST_PREFIX);
    let mut hosts: HashMap<Label, HashMap<Host, u64>> = HashMap::new();
    let mut after: Option<Bytes> = None;
    loop {
        let page = store.list(&range, after.as_deref(), PAGE).await?;
        for entry in &page.entries {
            if let Some((namespace, host)) = Host::parse(&entry.key) {
                hosts.entry(namespace).or_default().insert(host, entry.revision);
            }
        }
        after = page.entries.last().map(|entry| entry.key.clone());
        if !page.more {
            break;
        }
    }
    Ok(Left { epoch: first_epoch(last, now_unix_s), hosts })
}

fn first_epoch(last: Option<u64>, now_unix_s: u64) -> Epoch {
    let by_clock = now_unix_s.saturating_sub(BEGINNING_UNIX_S) * EPOCHS_PER_SECOND;
    // Not every grant is noted, but far fewer than these go unnoted.
    Epoch(last.map_or(0, |last| last + EPOCHS_PER_SECOND).max(by_clock))
}

fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_host_reads_back() {
        let label = |text| Label::new(text).unwrap();
        let host = Host { app: label("Cart"), instance: label("cart-1"), life: u64::MAX };
        let key = host.key(&label("Shop"));
        assert_eq!(key, "actors/host/shop/cart/cart-1/18446744073709551615");
        assert_eq!(Host::parse(&key), Some((label("shop"), host)));
        for key in ["actors/host/a/b/c", "actors/host/a/b/c/x", "actors/host/a/b/c/1/2", "mesh/"] {
            assert_eq!(Host::parse(key.as_bytes()), None, "{key}");
        }
    }

    #[test]
    fn epochs_grow_with_an_old_copy_of_the_store_or_a_clock_put_back() {
        let later = BEGINNING_UNIX_S + 10;
        assert_eq!(first_epoch(None, later), Epoch(10 << 22), "a new store");
        assert_eq!(first_epoch(Some(3 << 22), later), Epoch(10 << 22), "an old copy");
        assert_eq!(first_epoch(Some(20 << 22), later), Epoch(21 << 22), "a clock put back");
        assert_eq!(first_epoch(None, 0), Epoch(0), "no clock");
        let far = first_epoch(None, BEGINNING_UNIX_S + (1 << 31) - 1);
        assert_eq!(far.0 as f64 as u64, far.0);
    }
}
