//! Records when actor timers fire, and writes state in the actor's turn if a timer has that option.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use tollway_net::{Key, Waker};

use crate::actor_timer::{ActorTimer, FIRE_BYTES, TimerFire, now_us};
use crate::http_client::HttpClient;
use crate::peer::Peer;
use crate::server::MAX_CONNECTIONS;

/// Fires that are stored until a request takes them; further ones are dropped and so count as
/// missed.
const MAX_STORED: usize = 2_000_000;
/// Threads that write state.
const WRITERS: usize = 16;
/// The status of a write that was carried out.
const WRITTEN: u16 = 204;

/// The stored fires and the threads that write state.
pub(crate) struct TimerFires {
    stored: Arc<Mutex<Vec<u8>>>,
    /// Connections whose answer waits no longer.
    done: Arc<Mutex<Vec<Key<Peer>>>>,
    /// Of the event loop, once it runs.
    waker: RefCell<Option<Waker>>,
    /// Made with the first write.
    writes: RefCell<Option<SyncSender<Write>>>,
}

/// A write of state, and the fire in whose turn it happens.
struct Write {
    key: Key<Peer>,
    port: u16,
    path: String,
    fire: TimerFire,
}

impl TimerFires {
    pub(crate) fn new() -> Self {
        Self {
            stored: Arc::default(),
            done: Arc::default(),
            waker: RefCell::new(None),
            writes: RefCell::new(None),
        }
    }

    /// Registers the event loop that wakes when state is written.
    pub(crate) fn attach(&self, waker: Waker) {
        self.waker.replace(Some(waker));
    }

    /// Stores a fire at an actor that writes no state.
    pub(crate) fn record(&self, timer: &ActorTimer) {
        store(&self.stored, fire_now(timer));
    }

    /// Has state of the path's actor written, and stores the fire when that is done. The answer to
    /// connection `key` waits until then; false if the write cannot be queued.
    pub(crate) fn write(&self, timer: &ActorTimer, port: u16, path: &[u8], key: Key<Peer>) -> bool {
        let fire = fire_now(timer);
        let write = actor(path).map(|actor| Write {
            key,
            port,
            path: format!("/v1.0/actors/{actor}/state"),
            fire,
        });
        let mut writes = self.writes.borrow_mut();
        let writes = writes.get_or_insert_with(|| self.start_writers());
        let is_queued = write.is_some_and(|write| writes.try_send(write).is_ok());
        if !is_queued {
            store(&self.stored, TimerFire { written_us: Some(TimerFire::FAILED), ..fire });
        }
        is_queued
    }

    /// Takes the connections whose answers waited for a write that is done.
    pub(crate) fn take_done(&self) -> Vec<Key<Peer>> {
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes all fires since the last call, encoded one after the other.
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.stored.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn start_writers(&self) -> SyncSender<Write> {
        let (sender, writes) = sync_channel(MAX_CONNECTIONS);
        let writes = Arc::new(Mutex::new(writes));
        for _ in 0..WRITERS {
            let (writes, stored, done) =
                (Arc::clone(&writes), Arc::clone(&self.stored), Arc::clone(&self.done));
            let waker = self.waker.borrow().clone();
            // Ends with the server, whose end of the channel closes it.
            std::thread::spawn(move || {
                let mut clients = HashMap::new();
                while let Some(write) = next(&writes) {
                    let Write { key, port, path, fire } = write;
                    let client = clients.entry(port).or_insert_with(|| {
                        HttpClient::new(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
                    });
                    let written_us = match carry_out(client, &path, &fire) {
                        Ok(WRITTEN) => now_us(),
                        Ok(_) | Err(_) => TimerFire::FAILED,
                    };
                    store(&stored, TimerFire { written_us: Some(written_us), ..fire });
                    done.lock().unwrap_or_else(PoisonError::into_inner).push(key);
                    if let Some(waker) = &waker {
                        waker.wake();
                    }
                }
            });
        }
        sender
    }
}

fn next(writes: &Mutex<Receiver<Write>>) -> Option<Write> {
    writes.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// Writes one key of the actor, whose value is the due time.
fn carry_out(client: &mut HttpClient, path: &str, fire: &TimerFire) -> io::Result<u16> {
    let value = fire.due_us;
    let body = format!(r#"[{{"operation":"upsert","request":{{"key":"fired","value":{value}}}}}]"#);
    client.request("POST", path, &body).map(|(status, _)| status)
}

fn store(stored: &Mutex<Vec<u8>>, fire: TimerFire) {
    let mut stored = stored.lock().unwrap_or_else(PoisonError::into_inner);
    if stored.len() < MAX_STORED * FIRE_BYTES {
        stored.extend_from_slice(&fire.to_bytes());
    }
}

fn fire_now(timer: &ActorTimer) -> TimerFire {
    let seen_us = now_us();
    TimerFire { due_us: timer.due_before(seen_us), seen_us, written_us: None }
}

/// The timer whose fire a sidecar's request brings; `None` for other requests.
pub(crate) fn timer_of_path(path: &[u8]) -> Option<ActorTimer> {
    let (_, name) = split(path)?;
    ActorTimer::parse(name)
}

/// `TYPE/ID` of the actor.
fn actor(path: &[u8]) -> Option<&str> {
    str::from_utf8(split(path)?.0).ok()
}

/// `TYPE/ID` and the name of `/actors/TYPE/ID/method/timer/NAME`, or of `remind`.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = path.strip_prefix(b"/actors/")?;
    [&b"/method/timer/"[..], b"/method/remind/"].into_iter().find_map(|middle| {
        let at = rest.windows(middle.len()).position(|part| part == middle)?;
        Some((&rest[..at], &rest[at + middle.len()..]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_fire_names_actor_and_timer() {
        let set = ActorTimer { due_us: 5, period_us: 7, state_port: Some(3500) };
        for word in ["timer", "remind"] {
            let path = format!("/actors/Echo1001/17/method/{word}/{}", set.name());
            assert_eq!(timer_of_path(path.as_bytes()), Some(set), "{path}");
            assert_eq!(actor(path.as_bytes()), Some("Echo1001/17"));
        }
        for path in ["/actors/Echo/17/method/echo", "/actors/Echo/17/method/timer/tick", "/echo"] {
            assert_eq!(timer_of_path(path.as_bytes()), None, "{path}");
        }
    }
}
