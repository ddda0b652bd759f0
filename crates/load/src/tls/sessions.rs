//! The TLS sessions of a run, stored so that later connections can resume them.
//!
//! A run has one server name, so names are not compared. rustls' own store holds eight tickets of a
//! server, too few if hundreds of connections are opened at once.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

#[derive(Debug)]
pub(super) struct Sessions {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    group: Option<NamedGroup>,
    tls12: Option<Tls12ClientSessionValue>,
    /// Newest last.
    tickets: VecDeque<Tls13ClientSessionValue>,
}

impl Sessions {
    /// Keeps at most `limit` tickets, at least one.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.state().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.state().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.state().tls12 = Some(value);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.state().tls12.clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.state().tls12 = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        let tickets = &mut self.state().tickets;
        if tickets.len() == self.limit {
            tickets.pop_front();
        }
        tickets.push_back(value);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.state().tickets.pop_front()
    }
}
