//! The listeners of a thread. A slot's number is its token with the poller and never moves, so
//! that listeners can come and go while others are served.

use super::{Composition, EventLoop};

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tollway_net::{Listener, Poller, Token};

use crate::conn::ListenerKind;

/// How long accepting pauses when no descriptor is left and no connection can be evicted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Tokens with this bit belong to listeners; connection keys never have it.
const LISTENER_BIT: u64 = 1 << 63;

/// Open listeners, each with its kind.
#[derive(Default)]
pub(super) struct Listeners {
    slots: Vec<Option<(Listener, ListenerKind)>>,
    /// Accepting pauses until then: no descriptor is left.
    pub(super) accept_again: Option<Instant>,
}

impl Listeners {
    /// Registers listeners with the poller.
    pub(super) fn open(
        &mut self,
        poller: &Poller,
        listeners: Vec<(Listener, ListenerKind)>,
    ) -> std::io::Result<()> {
        for (listener, via) in listeners {
            let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
            poller.add_listener(&listener, token(slot))?;
            if slot == self.slots.len() {
                self.slots.push(None);
            }
            self.slots[slot] = Some((listener, via));
        }
        Ok(())
    }

    pub(super) fn get(&self, slot: usize) -> Option<&(Listener, ListenerKind)> {
        self.slots.get(slot)?.as_ref()
    }

    /// Open listeners with their tokens.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Token, &Listener)> {
        self.slots.iter().enumerate().filter_map(|(slot, entry)| {
            let (listener, _) = entry.as_ref()?;
            Some((token(slot), listener))
        })
    }

    /// Takes the listeners out of the poller for a moment, since no descriptor is left: they are
    /// level-triggered and would spin.
    pub(super) fn pause(&mut self, poller: &Poller, now: Instant) {
        self.accept_again = Some(now + ACCEPT_PAUSE);
        for (_, listener) in self.iter() {
            // It was registered; if that failed there is nothing to take out.
            let _ = poller.remove(listener);
        }
    }

    /// Ends a pause whose time is over.
    pub(super) fn resume(&mut self, poller: &Poller, now: Instant) {
        if self.accept_again.is_none_or(|at| now < at) {
            return;
        }
        self.accept_again = None;
        for (token, listener) in self.iter() {
            if let Err(error) = poller.add_listener(listener, token) {
                tracing::error!(%error, "a listener could not be registered again");
            }
        }
    }

    /// Changes the kind of a listener. Connections that it has accepted keep theirs.
    pub(super) fn redirect(&mut self, address: SocketAddr, to: ListenerKind) {
        if let Some(slot) = self.slot_at(address)
            && let Some((_, kind)) = &mut self.slots[slot]
        {
            *kind = to;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
    }

    fn slot_at(&self, address: SocketAddr) -> Option<usize> {
        let at = |entry: &Option<(Listener, ListenerKind)>| {
            entry.as_ref().is_some_and(|(listener, _)| listener.address() == address)
        };
        self.slots.iter().position(at)
    }
}

/// The slot of a listener's token; `None` for a connection's.
pub(super) fn slot_of(token: Token) -> Option<usize> {
    let is_listener = token.0 & LISTENER_BIT != 0;
    is_listener.then(|| usize::try_from(token.0 & !LISTENER_BIT).unwrap_or(usize::MAX))
}

fn token(slot: usize) -> Token {
    Token(LISTENER_BIT | slot as u64)
}

impl<C: Composition> EventLoop<C> {
    /// Takes new listeners, unless it is about to end.
    pub(super) fn open_listeners(&mut self, listeners: Vec<(Listener, ListenerKind)>) {
        if self.cx.draining.is_some() {
            return;
        }
        if let Err(error) = self.listeners.open(self.conns.poller(), listeners) {
            tracing::error!(%error, "a new listener could not be registered");
        }
    }

    /// Closes a listener. Connections that wait there are accepted before, as far as one pass may.
    pub(super) fn close_listener(&mut self, address: SocketAddr) {
        if let Some(slot) = self.listeners.slot_at(address) {
            self.accept_pass(slot);
            self.listeners.slots[slot] = None;
        }
    }
}
