//! The followers of the state and their program versions: operators see which processes still run
//! before they change something.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;
use tollway_model::{Instance, ServiceName};

use crate::clock::unix_now_ms;

/// Longest version that is stored, in bytes.
const VERSION_BYTES: usize = 32;
/// Streams of one data plane: one that has just connected again may have its last one still.
const STREAMS_PER_INSTANCE_LIMIT: usize = 2;

/// One data plane with an open stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DataPlane {
    pub(crate) service: ServiceName,
    pub(crate) instance: Instance,
    /// Empty if it sent none.
    pub(crate) version: String,
}

/// Data planes without a stream of which the time is remembered.
const SEEN_LIMIT: usize = 10_000;

/// Every data plane with an open stream, at most twice each.
#[derive(Default, Debug)]
pub(crate) struct Connected(Mutex<State>);

#[derive(Default, Debug)]
struct State {
    next: u64,
    open: BTreeMap<u64, Open>,
    /// The numbers of those of each that may stay, the oldest first.
    of_instance: HashMap<(ServiceName, Instance), VecDeque<u64>>,
    /// When the last stream of each ended, in milliseconds since 1970.
    seen: HashMap<(ServiceName, Instance), u64>,
}

#[derive(Debug)]
struct Open {
    data_plane: DataPlane,
    /// Cancelled when a newer stream has replaced this one.
    replaced: CancellationToken,
}

/// When a data plane had a stream last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LastSeen {
    Now,
    /// In milliseconds since 1970.
    At(u64),
    Unknown,
}

/// Stands for an open stream.
pub(crate) struct Stay {
    connected: Arc<Connected>,
    number: u64,
    replaced: CancellationToken,
}

impl Stay {
    /// Cancelled when a newer stream of the same data plane has taken the place of this one.
    pub(crate) fn replaced(&self) -> &CancellationToken {
        &self.replaced
    }
}

impl Connected {
    /// Counts a stream until what is returned is dropped. The oldest of the same data plane ends
    /// where there are too many.
    pub(crate) fn enter(self: &Arc<Self>, mut data_plane: DataPlane) -> Stay {
        if !is_version(&data_plane.version) {
            data_plane.version.clear();
        }
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let numbers = state.of_instance.entry(data_plane.key()).or_default();
        numbers.push_back(number);
        if numbers.len() > STREAMS_PER_INSTANCE_LIMIT
            && let Some(oldest) = numbers.pop_front()
            && let Some(open) = state.open.get(&oldest)
        {
            open.replaced.cancel();
        }
        let replaced = CancellationToken::new();
        state.open.insert(number, Open { data_plane, replaced: replaced.clone() });
        Stay { connected: Arc::clone(self), number, replaced }
    }

    /// Whether a data plane has a stream, and otherwise when its last one ended, as far as that is
    /// remembered.
    pub(crate) fn last_seen(&self, service: &ServiceName, instance: &Instance) -> LastSeen {
        let key = (service.clone(), instance.clone());
        let state = self.state();
        if state.of_instance.contains_key(&key) {
            return LastSeen::Now;
        }
        state.seen.get(&key).map_or(LastSeen::Unknown, |at| LastSeen::At(*at))
    }

    pub(crate) fn list(&self) -> Vec<DataPlane> {
        self.state().open.values().map(|open| open.data_plane.clone()).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.connected.state().remove(self.number);
    }
}

impl State {
    fn remove(&mut self, number: u64) {
        let Some(Open { data_plane, .. }) = self.open.remove(&number) else { return };
        let key = data_plane.key();
        if let Some(numbers) = self.of_instance.get_mut(&key) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.of_instance.remove(&key);
                self.note_seen(key, unix_now_ms());
            }
        }
    }

    fn note_seen(&mut self, key: (ServiceName, Instance), now_unix_ms: u64) {
        if self.seen.len() >= SEEN_LIMIT && !self.seen.contains_key(&key) {
            let oldest = self.seen.iter().min_by_key(|(_, at)| **at).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| self.seen.remove(&oldest));
        }
        self.seen.insert(key, now_unix_ms);
    }
}

impl DataPlane {
    fn key(&self) -> (ServiceName, Instance) {
        (self.service.clone(), self.instance.clone())
    }
}

/// It comes from the network and goes to a terminal.
pub(crate) fn is_version(text: &str) -> bool {
    text.len() <= VERSION_BYTES
        && text.chars().all(|c| c.is_ascii_alphanumeric() || ".-+".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plane(instance: &str, version: &str) -> DataPlane {
        let label = |text| tollway_model::Label::new(text).unwrap();
        DataPlane {
            service: ServiceName { app: label("a"), namespace: label("b"), network: label("west") },
            instance: label(instance),
            version: version.to_owned(),
        }
    }

    #[test]
    fn a_data_plane_is_listed_while_its_stream_is_open() {
        let connected = Arc::new(Connected::default());
        let first = connected.enter(plane("i", "1.2.3-rc.1"));
        let _second = connected.enter(plane("i", "\u{1b}[2J"));
        let versions: Vec<_> = connected.list().into_iter().map(|p| p.version).collect();
        assert_eq!(versions, ["1.2.3-rc.1", ""]);
        drop(first);
        assert_eq!(connected.list().len(), 1);
    }

    #[test]
    fn the_end_of_the_last_stream_is_remembered_for_so_many() {
        let connected = Arc::new(Connected::default());
        let last_seen = |of: DataPlane| connected.last_seen(&of.service, &of.instance);
        let stay = connected.enter(plane("i", ""));
        assert_eq!(last_seen(plane("I", "")), LastSeen::Now);
        drop(stay);
        assert!(matches!(last_seen(plane("i", "")), LastSeen::At(_)));
        assert_eq!(last_seen(plane("j", "")), LastSeen::Unknown);
        let mut state = connected.state();
        for number in 0..SEEN_LIMIT {
            state.note_seen(plane(&format!("n{number}"), "").key(), u64::MAX);
        }
        assert_eq!(state.seen.len(), SEEN_LIMIT);
        assert!(!state.seen.contains_key(&plane("i", "").key()), "the oldest is forgotten");
    }

    #[test]
    fn newer_streams_of_a_data_plane_take_the_place_of_its_oldest() {
        let connected = Arc::new(Connected::default());
        let other = connected.enter(plane("other", ""));
        let stays = [(); 4].map(|()| connected.enter(plane("i", "")));
        let replaced = stays.each_ref().map(|stay| stay.replaced().is_cancelled());
        assert_eq!(replaced, [true, true, false, false]);
        let [first, second, third, fourth] = stays;
        drop((first, second, third));
        let fifth = connected.enter(plane("i", ""));
        let all = [&fourth, &fifth, &other];
        assert!(all.iter().all(|stay| !stay.replaced().is_cancelled()), "two each may stay");
        drop((fourth, fifth, other));
        let state = connected.state();
        assert!(state.open.is_empty() && state.of_instance.is_empty());
    }
}
