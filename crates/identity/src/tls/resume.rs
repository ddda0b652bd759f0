//! Session resumption that never outlives trust.
//!
//! Tickets are sealed with a random AES-256-GCM key that lives as long as its configuration,
//! and carry the second in which they end. rustls adds fresh key exchange to every resumption,
//! so a stolen ticket key does not open recorded connections.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;
use rustls::server::ProducesTickets;
use rustls::time_provider::TimeProvider;

use super::TlsError;

/// Longest life of a session ticket.
pub const TICKET_LIFE_LIMIT: Duration = Duration::from_secs(3600);

/// Largest ticket that is opened, in bytes: a session holds the peer's certificates.
const TICKET_BYTES_LIMIT: usize = 16 * 1024;
/// Most tickets sealed with one key; random nonces stay unique far beyond that (NIST SP 800-38D
/// allows 2^32).
const TICKETS_PER_KEY_LIMIT: u64 = 1 << 30;
/// Most sessions a dialler keeps for one expectation.
const SESSIONS_LIMIT: usize = 16;

/// Bytes of the end time in front of a session.
const DEADLINE_BYTES: usize = 8;

/// Makes and opens the tickets of one server configuration.
pub(super) struct BoundedTickets {
    key: RandomizedNonceKey,
    sealed: AtomicU64,
    clock: Arc<dyn TimeProvider>,
    /// End of the own certificate, in seconds since 1970.
    not_after: u64,
}

impl BoundedTickets {
    pub(super) fn new(
        clock: Arc<dyn TimeProvider>,
        not_after: SystemTime,
    ) -> Result<Self, TlsError> {
        let mut key = [0; 32];
        SystemRandom::new().fill(&mut key).map_err(|_| TlsError::Randomness)?;
        let key = RandomizedNonceKey::new(&AES_256_GCM, &key).map_err(|_| TlsError::Randomness)?;
        Ok(Self { key, sealed: AtomicU64::new(0), clock, not_after: unix_seconds(not_after) })
    }

    fn now(&self) -> Option<u64> {
        Some(self.clock.current_time()?.as_secs())
    }

    /// Seconds a ticket made now may live.
    fn lifetime_s(&self) -> u64 {
        let rest = self.now().map_or(0, |now| self.not_after.saturating_sub(now));
        rest.min(TICKET_LIFE_LIMIT.as_secs())
    }
}

impl ProducesTickets for BoundedTickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.lifetime_s()).unwrap_or(0)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let life = self.lifetime_s();
        if life == 0 || self.sealed.fetch_add(1, Ordering::Relaxed) >= TICKETS_PER_KEY_LIMIT {
            return None;
        }
        let mut sealed = Vec::with_capacity(DEADLINE_BYTES + plain.len() + 16 + NONCE_LEN);
        sealed.extend_from_slice(&(self.now()? + life).to_be_bytes());
        sealed.extend_from_slice(plain);
        let nonce = self.key.seal_in_place_append_tag(Aad::empty(), &mut sealed).ok()?;
        sealed.extend_from_slice(nonce.as_ref());
        Some(sealed)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        if cipher.len() > TICKET_BYTES_LIMIT {
            return None;
        }
        let (sealed, nonce) = cipher.split_last_chunk::<NONCE_LEN>()?;
        let mut opened = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let plain = self.key.open_in_place(nonce, Aad::empty(), &mut opened).ok()?;
        let (deadline, session) = plain.split_first_chunk::<DEADLINE_BYTES>()?;
        (self.now()? < u64::from_be_bytes(*deadline)).then(|| session.to_vec())
    }
}

impl fmt::Debug for BoundedTickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundedTickets").finish_non_exhaustive()
    }
}

/// The sessions a dialler keeps for one expectation, newest last. Each is used once.
#[derive(Debug)]
pub(super) struct BoundedSessions {
    clock: Arc<dyn TimeProvider>,
    /// End of the own certificate, in seconds since 1970.
    not_after: u64,
    state: Mutex<SessionsState>,
}

#[derive(Debug, Default)]
struct SessionsState {
    sessions: VecDeque<Session>,
    group: Option<NamedGroup>,
}

#[derive(Debug)]
struct Session {
    server_name: ServerName<'static>,
    deadline: u64,
    value: Tls13ClientSessionValue,
}

impl BoundedSessions {
    pub(super) fn new(clock: Arc<dyn TimeProvider>, not_after: SystemTime) -> Self {
        Self { clock, not_after: unix_seconds(not_after), state: Mutex::default() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, SessionsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Option<u64> {
        Some(self.clock.current_time()?.as_secs())
    }
}

impl ClientSessionStore for BoundedSessions {
    fn set_kx_hint(&self, _server_name: ServerName<'static>, group: NamedGroup) {
        self.state().group = Some(group);
    }

    fn kx_hint(&self, _server_name: &ServerName<'_>) -> Option<NamedGroup> {
        self.state().group
    }

    fn set_tls12_session(&self, _name: ServerName<'static>, _value: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _name: &ServerName<'static>) {}

    fn insert_tls13_ticket(
        &self,
        server_name: ServerName<'static>,
        value: Tls13ClientSessionValue,
    ) {
        let Some(now) = self.now() else { return };
        let deadline = now.saturating_add(TICKET_LIFE_LIMIT.as_secs()).min(self.not_after);
        let mut state = self.state();
        while state.sessions.len() >= SESSIONS_LIMIT {
            state.sessions.pop_front();
        }
        state.sessions.push_back(Session { server_name, deadline, value });
    }

    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let now = self.now()?;
        let mut state = self.state();
        state.sessions.retain(|session| now < session.deadline);
        let newest = state.sessions.iter().rposition(|session| session.server_name == *name)?;
        state.sessions.remove(newest).map(|session| session.value)
    }
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
