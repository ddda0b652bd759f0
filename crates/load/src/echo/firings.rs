//! What the actors of the echo server see of the alarms that `tollway load firings` sets: when each
//! came, and the state that they write then, in its turn.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use tollway_net::{Key, Waker};

use super::MAX_CONNECTIONS;
use crate::firings::{Alarm, Client, FIRING_BYTES, Firing, now_us};

/// Firings that are held until they are asked for; further ones are not, so that they count as
/// missed.
const MAX_HELD: usize = 2_000_000;
/// Writes of state at once.
const WRITERS: usize = 16;
/// The status of a write that was carried out.
const WRITTEN: u16 = 204;

/// The list, and those who write.
pub(super) struct Firings {
    held: Arc<Mutex<Vec<u8>>>,
    /// Connections whose answer waits no longer.
    done: Arc<Mutex<Vec<Key>>>,
    /// Of the loop, once it runs.
    waker: RefCell<Option<Waker>>,
    /// Made with the first write.
    writes: RefCell<Option<SyncSender<Write>>>,
}

/// A write of state, and the firing in whose turn it is.
struct Write {
    key: Key,
    port: u16,
    path: String,
    firing: Firing,
}

impl Firings {
    pub(super) fn new() -> Self {
        Self {
            held: Arc::default(),
            done: Arc::default(),
            waker: RefCell::new(None),
            writes: RefCell::new(None),
        }
    }

    /// Names the loop that has to wake when state is written.
    pub(super) fn attach(&self, waker: Waker) {
        self.waker.replace(Some(waker));
    }

    /// An alarm has come, to an actor that writes nothing.
    pub(super) fn saw(&self, alarm: &Alarm) {
        hold(&self.held, firing(alarm));
    }

    /// One has come to the actor of a path, whose answer waits until its state is written; false
    /// where nobody can.
    pub(super) fn write(&self, alarm: &Alarm, port: u16, path: &[u8], key: Key) -> bool {
        let firing = firing(alarm);
        let write = actor(path).map(|actor| Write {
            key,
            port,
            path: format!("/v1.0/actors/{actor}/state"),
            firing,
        });
        let mut writes = self.writes.borrow_mut();
        let writes = writes.get_or_insert_with(|| self.start_writers());
        let is_taken = write.is_some_and(|write| writes.try_send(write).is_ok());
        if !is_taken {
            hold(&self.held, Firing { written_us: Some(Firing::FAILED), ..firing });
        }
        is_taken
    }

    /// Connections whose answers waited and may go now.
    pub(super) fn take_done(&self) -> Vec<Key> {
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All that were seen since they were taken last.
    pub(super) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn start_writers(&self) -> SyncSender<Write> {
        let (sender, writes) = sync_channel(MAX_CONNECTIONS);
        let writes = Arc::new(Mutex::new(writes));
        for _ in 0..WRITERS {
            let (writes, held, done) =
                (Arc::clone(&writes), Arc::clone(&self.held), Arc::clone(&self.done));
            let waker = self.waker.borrow().clone();
            // Ends with the server, whose end of the channel closes it.
            std::thread::spawn(move || {
                let mut clients = HashMap::new();
                while let Some(write) = next(&writes) {
                    let Write { key, port, path, firing } = write;
                    let client = clients.entry(port).or_insert_with(|| {
                        Client::new(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
                    });
                    let written_us = match carry_out(client, &path, &firing) {
                        Ok(WRITTEN) => now_us(),
                        Ok(_) | Err(_) => Firing::FAILED,
                    };
                    hold(&held, Firing { written_us: Some(written_us), ..firing });
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

/// One key of the actor, whose value is the moment that was due.
fn carry_out(client: &mut Client, path: &str, firing: &Firing) -> io::Result<u16> {
    let value = firing.due_us;
    let body = format!(r#"[{{"operation":"upsert","request":{{"key":"fired","value":{value}}}}}]"#);
    client.ask("POST", path, &body).map(|(status, _)| status)
}

fn hold(held: &Mutex<Vec<u8>>, firing: Firing) {
    let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
    if held.len() < MAX_HELD * FIRING_BYTES {
        held.extend_from_slice(&firing.to_bytes());
    }
}

fn firing(alarm: &Alarm) -> Firing {
    let seen_us = now_us();
    Firing { due_us: alarm.due_before(seen_us), seen_us, written_us: None }
}

/// The alarm that a request of the sidecar's brings, if it is one of those.
pub(super) fn alarm(path: &[u8]) -> Option<Alarm> {
    let (_, name) = split(path)?;
    Alarm::parse(name)
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
    fn the_path_of_a_firing_names_actor_and_alarm() {
        let set = Alarm { due_us: 5, period_us: 7, state_port: Some(3500) };
        for word in ["timer", "remind"] {
            let path = format!("/actors/Echo1001/17/method/{word}/{}", set.name());
            assert_eq!(alarm(path.as_bytes()), Some(set), "{path}");
            assert_eq!(actor(path.as_bytes()), Some("Echo1001/17"));
        }
        for path in ["/actors/Echo/17/method/echo", "/actors/Echo/17/method/timer/tick", "/echo"] {
            assert_eq!(alarm(path.as_bytes()), None, "{path}");
        }
    }
}
