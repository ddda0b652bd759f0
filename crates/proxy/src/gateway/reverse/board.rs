//! Of which networks the data threads of a gateway hold reverse connections: the control plane is sent
//! that, and a thread without one sends its callers to a thread that has some.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;
use tollway_model::NetworkName;

use crate::event_loop::{Command, Commands};

/// By network, the data threads that hold some.
type Holders = BTreeMap<NetworkName, BTreeSet<usize>>;

/// Shared by all data threads.
#[derive(Clone, Default)]
pub(crate) struct Board {
    holders: watch::Sender<Holders>,
    threads: Arc<OnceLock<Vec<Commands>>>,
}

impl Board {
    /// A thread holds reverse connections of a network, or none any more.
    pub(crate) fn note(&self, thread: usize, network: &NetworkName, holds: bool) {
        self.holders.send_modify(|holders| {
            let threads = holders.entry(network.clone()).or_default();
            if holds {
                threads.insert(thread);
            } else {
                threads.remove(&thread);
            }
            if threads.is_empty() {
                holders.remove(network);
            }
        });
    }

    /// Sets the data threads, in the order of their numbers, once.
    pub(crate) fn set_threads(&self, threads: Vec<Commands>) {
        // Set by the one who starts them.
        let _ = self.threads.set(threads);
    }

    /// Another thread than this one that holds some.
    pub(crate) fn other_holder(&self, thread: usize, network: &NetworkName) -> Option<usize> {
        self.holders.borrow().get(network)?.iter().copied().find(|holder| *holder != thread)
    }

    /// Sends a command to a thread. One that has ended drops it.
    pub(crate) fn send(&self, thread: usize, command: Command) {
        if let Some(thread) = self.threads.get().and_then(|threads| threads.get(thread)) {
            thread.send(command);
        }
    }

    /// The networks of which any thread holds some, now and after every change.
    pub(crate) fn changes(&self) -> BoardChanges {
        BoardChanges(self.holders.subscribe())
    }
}

/// See [`Board::changes`].
pub(crate) struct BoardChanges(watch::Receiver<Holders>);

impl BoardChanges {
    /// The networks of which any thread holds some.
    pub(crate) fn held(&mut self) -> BTreeSet<NetworkName> {
        self.0.borrow_and_update().keys().cloned().collect()
    }

    /// Waits for a change since they were read. False once the threads have ended.
    pub(crate) async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use tollway_model::Label;

    use super::*;

    #[test]
    fn a_network_is_held_while_any_thread_holds_some() {
        let [plant, mine] = ["plant", "mine"].map(|name| Label::new(name).unwrap());
        let board = Board::default();
        let mut changes = board.changes();
        board.note(0, &plant, true);
        board.note(1, &plant, true);
        board.note(1, &mine, true);
        assert_eq!(changes.held(), [mine.clone(), plant.clone()].into());
        assert_eq!(board.other_holder(0, &mine), Some(1));
        assert_eq!(board.other_holder(1, &mine), None);
        board.note(0, &plant, false);
        board.note(1, &mine, false);
        assert_eq!(changes.held(), [plant.clone()].into());
        board.note(1, &plant, false);
        assert_eq!(changes.held(), BTreeSet::new());
    }
}
