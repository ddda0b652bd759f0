//! Bodies that are held whole, because they are to become one message: a bound over all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body;

use crate::grpc::MESSAGE_BYTES;

/// Most bytes that callers may have a sidecar hold at a time, over all calls.
pub(crate) const HELD_BYTES: usize = 64 * 1024 * 1024;

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
}

/// A body, and the room that it takes until it is dropped.
pub(crate) struct Held {
    pub(crate) bytes: Vec<u8>,
    taken: usize,
    room: Room,
}

impl Room {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { left: Arc::new(AtomicUsize::new(bytes)) }
    }

    /// Reads a body to its end. It takes room as it comes, not as it is announced: whoever sends
    /// slowly takes none from others, and nobody waits for room that nobody will give.
    pub(crate) async fn whole<B>(&self, mut body: B) -> Result<Held, NotWhole>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let mut held = Held { bytes: Vec::new(), taken: 0, room: self.clone() };
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| NotWhole::CutOff)?.into_data() else { continue };
            if held.bytes.len() + data.len() > MESSAGE_BYTES {
                return Err(NotWhole::TooLarge);
            }
            held.take(data.len())?;
            held.bytes.extend_from_slice(&data);
        }
        Ok(held)
    }
}

impl Held {
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
        let room = Room::new(MESSAGE_BYTES + 100);
        let first = whole(&room, MESSAGE_BYTES).unwrap();
        assert_eq!(first.bytes.len(), MESSAGE_BYTES);
        let second = whole(&room, 100).unwrap();
        assert_eq!(whole(&room, 1).err(), Some(NotWhole::NoRoom));
        assert_eq!(whole(&room, MESSAGE_BYTES + 1).err(), Some(NotWhole::TooLarge));
        drop(second);
        assert!(whole(&room, 100).is_ok() && whole(&room, 100).is_ok());
        drop(first);
        assert!(whole(&room, MESSAGE_BYTES).is_ok());
    }
}
