//! Who follows the state now, and as which version of the program: for operators, who must know
//! what still runs before they change something.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollway_model::{Instance, ServiceName};

/// Longest version that is kept, in bytes.
const VERSION_BYTES: usize = 32;

/// One data plane with an open stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DataPlane {
    pub(crate) service: ServiceName,
    pub(crate) instance: Instance,
    /// Empty where it told none.
    pub(crate) version: String,
}

/// Every data plane with an open stream; as many as there are connections.
#[derive(Default, Debug)]
pub(crate) struct Connected(Mutex<State>);

#[derive(Default, Debug)]
struct State {
    next: u64,
    open: BTreeMap<u64, DataPlane>,
}

/// Stands for an open stream.
pub(crate) struct Stay {
    connected: Arc<Connected>,
    number: u64,
}

impl Connected {
    /// Counts a stream until what is returned is dropped.
    pub(crate) fn enter(self: &Arc<Self>, mut data_plane: DataPlane) -> Stay {
        if !is_version(&data_plane.version) {
            data_plane.version.clear();
        }
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.open.insert(number, data_plane);
        Stay { connected: Arc::clone(self), number }
    }

    pub(crate) fn list(&self) -> Vec<DataPlane> {
        self.state().open.values().cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.connected.state().open.remove(&self.number);
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

    #[test]
    fn a_data_plane_is_listed_while_its_stream_is_open() {
        let label = |text| tollway_model::Label::new(text).unwrap();
        let service =
            ServiceName { app: label("a"), namespace: label("b"), network: label("west") };
        let plane = |version: &str| DataPlane {
            service: service.clone(),
            instance: label("i"),
            version: version.to_owned(),
        };
        let connected = Arc::new(Connected::default());
        let first = connected.enter(plane("1.2.3-rc.1"));
        let _second = connected.enter(plane("\u{1b}[2J"));
        let versions: Vec<_> = connected.list().into_iter().map(|p| p.version).collect();
        assert_eq!(versions, ["1.2.3-rc.1", ""]);
        drop(first);
        assert_eq!(connected.list().len(), 1);
    }
}
