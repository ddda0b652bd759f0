//! Bodies that are held whole, because they are to become one message: a bound over all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body;

/// Largest message of the API and of apps that are called by one, in bytes, unless told otherwise.
pub const MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// Most bytes that callers may have a sidecar hold at a time, over all calls.
pub const HELD_BYTES: usize = 64 * 1024 * 1024;

/// Why a body is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotWhole {
    /// It is larger than a message may be.
    TooLarge,
    /// Others have taken all room.
    NoRoom,
    /// It ended before its end.
    CutOff,
}

/// Room for bodies; clones share it.
#[derive(Clone)]
pub(crate) struct Room {
    left: Arc<AtomicUsize>,
    /// What one body may have of it.
    message_bytes: usize,
}

/// A body, and the room that it takes until it is dropped.
pub(crate) struct Held {
    pub(crate) bytes: Vec<u8>,
    taken: usize,
    room: Room,
}

impl Room {
    pub(crate) fn new(bytes: usize, message_bytes: usize) -> Self {
        Self { left: Arc::new(AtomicUsize::new(bytes)), message_bytes }
    }

    /// Largest body, in bytes.
    pub(crate) fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// A body that nobody needs.
    pub(crate) fn nothing(&self) -> Held {
        Held { bytes: Vec::new(), taken: 0, room: self.clone() }
    }

    /// Reads a body to its end. It takes room as it comes, not as it is announced: whoever sends
    /// slowly takes none from others, and nobody waits for room that nobody will give.
    pub(crate) async fn whole<B>(&self, mut body: B) -> Result<Held, NotWhole>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let mut held = self.nothing();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| NotWhole::CutOff)?.into_data() else { continue };
            if held.bytes.len() + data.len() > self.message_bytes {
                return Err(NotWhole::TooLarge);
            }
            held.add(&data)?;
        }
        Ok(held)
    }
}

impl Held {
    /// More of the body.
    ///
    /// # Errors
    /// [`NotWhole::NoRoom`].
    pub(crate) fn add(&mut self, data: &[u8]) -> Result<(), NotWhole> {
        self.take(data.len())?;
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// What was read, to be sent on: it takes no more room.
    pub(crate) fn send_on(&mut self) -> Vec<u8> {
        self.room.left.fetch_add(std::mem::take(&mut self.taken), Ordering::Relaxed);
        std::mem::take(&mut self.bytes)
    }

    fn take(&mut self, bytes: usize) -> Result<(), NotWhole> {
        let smaller = |left: usize| left.checked_sub(bytes);
        let taken = self.room.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, smaller);
        taken.map_err(|_| NotWhole::NoRoom)?;
        self.taken += bytes;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.left.fetch_add(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    fn whole(room: &Room, bytes: usize) -> Result<Held, NotWhole> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(room.whole(Full::new(Bytes::from(vec![7; bytes]))))
    }

    #[test]
    fn what_is_held_is_bounded_over_all_and_given_back() {
        let room = Room::new(MESSAGE_BYTES + 100, MESSAGE_BYTES);
        let first = whole(&room, MESSAGE_BYTES).unwrap();
        assert_eq!(first.bytes.len(), MESSAGE_BYTES);
        let second = whole(&room, 100).unwrap();
        assert_eq!(whole(&room, 1).err(), Some(NotWhole::NoRoom));
        assert_eq!(whole(&room, MESSAGE_BYTES + 1).err(), Some(NotWhole::TooLarge));
        drop(second);
        assert!(whole(&room, 100).is_ok() && whole(&room, 100).is_ok());
        drop(first);
        assert!(whole(&room, MESSAGE_BYTES).is_ok());
        let mut sent = whole(&room, MESSAGE_BYTES).unwrap();
        assert_eq!(sent.send_on().len(), MESSAGE_BYTES);
        assert!(whole(&room, MESSAGE_BYTES).is_ok(), "what was sent on takes no room");
        drop(sent);
        assert_eq!(whole(&room, MESSAGE_BYTES + 1).err(), Some(NotWhole::TooLarge));
        let (all, rest) = (whole(&room, MESSAGE_BYTES), whole(&room, 101).err());
        assert!(all.is_ok() && rest == Some(NotWhole::NoRoom), "room is given back once");
    }
}
