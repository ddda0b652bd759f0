//! Hosts of actors, and the epochs of grants.

use tollway_actors::placement::Epoch;
use tollway_model::{Instance, Label, ServiceName};

/// 2026-01-01, in seconds since 1970: epochs count from there.
const BEGINNING_UNIX_S: u64 = 1_767_225_600;
/// Numbers for each second: more than can be used in one. With 31 bits of seconds an epoch is an
/// integer that every store can keep and compare, one that counts in doubles too.
const EPOCHS_PER_SECOND: u64 = 1 << 22;

/// One life of a host.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Host {
    pub(crate) app: Label,
    pub(crate) instance: Instance,
    pub(crate) life: u64,
}

impl Host {
    pub(crate) fn service(&self, namespace: &Label, network: &Label) -> ServiceName {
        ServiceName {
            app: self.app.clone(),
            namespace: namespace.clone(),
            network: network.clone(),
        }
    }
}

/// An epoch that no grant of an earlier control plane has reached. Epochs continue from the clock, so that
/// they are higher than those of an earlier control plane even if this one has another store, or an
/// old copy of it: what actors have written may lie in a database that has seen them.
pub(super) fn first_epoch(last: Option<u64>, now_unix_s: u64) -> Epoch {
    let by_clock = now_unix_s.saturating_sub(BEGINNING_UNIX_S) * EPOCHS_PER_SECOND;
    // Not every grant is noted, but far fewer than these go unnoted.
    Epoch(last.map_or(0, |last| last + EPOCHS_PER_SECOND).max(by_clock))
}

#[cfg(test)]
mod tests {
    use super::*;

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
