//! One stream's state, and the streams of a connection: the live ones and a short memory of
//! those that ended (RFC 9113 section 5.1 treats their late frames differently).

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// A live stream: open or half-closed.
#[derive(Debug)]
pub(super) struct Stream {
    /// This side may still send.
    pub(super) is_local_open: bool,
    /// The peer may still send.
    pub(super) is_remote_open: bool,
    /// The final head went out (server), or came in (client).
    pub(super) has_response: bool,
    /// Interim heads that came for it.
    pub(super) interim_heads: u8,
    /// The request was HEAD: its response has no body for any length.
    pub(super) is_head_request: bool,
    /// The request was CONNECT: after a 2xx, lengths mean nothing.
    pub(super) is_connect: bool,
    /// What arrives is dropped: the request was refused for the size of its head.
    pub(super) is_deaf: bool,
    /// Negative after SETTINGS took window away.
    pub(super) send_window: i64,
    pub(super) recv_window: i64,
    /// Bytes handed to the consumer and not released yet.
    pub(super) unreleased: u32,
    /// Bytes released and not yet announced to the peer.
    pub(super) unannounced: u32,
    /// Bytes still to come according to `content-length`.
    pub(super) body_left: Option<u64>,
    /// What the request's head counts against `live_head_bytes`.
    pub(super) head_bytes: usize,
}

impl Stream {
    /// A stream whose request has just been sent or has just arrived.
    pub(super) fn new(send_window: u32, recv_window: u32) -> Self {
        Self {
            is_local_open: true,
            is_remote_open: true,
            has_response: false,
            interim_heads: 0,
            is_head_request: false,
            is_connect: false,
            is_deaf: false,
            send_window: i64::from(send_window),
            recv_window: i64::from(recv_window),
            unreleased: 0,
            unannounced: 0,
            body_left: None,
            head_bytes: 0,
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        !self.is_local_open && !self.is_remote_open
    }
}

/// How a stream that is gone ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    InOrder,
    ByPeer,
    /// By this side: frames already in transit are not the peer's fault.
    ByUs,
    /// Too long ago to know, or never opened.
    Unknown,
}

/// Streams reset by this side that are remembered, so that late frames are dropped quietly.
const RESETS_REMEMBERED: usize = 256;
/// Streams that the peer ended and that are remembered, to name its mistake rightly.
const ENDS_REMEMBERED: usize = 32;

#[derive(Default)]
pub(super) struct Streams {
    live: HashMap<u32, Stream, BuildHasherDefault<IdHasher>>,
    resets: VecDeque<u32>,
    ends: VecDeque<(u32, Ended)>,
}

impl Streams {
    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    pub(super) fn get(&self, id: u32) -> Option<&Stream> {
        self.live.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Stream> {
        self.live.get_mut(&id)
    }

    pub(super) fn insert(&mut self, id: u32, stream: Stream) {
        self.live.insert(id, stream);
    }

    /// Takes a live stream out and remembers how it ended.
    pub(super) fn remove(&mut self, id: u32, ended: Ended) -> Option<Stream> {
        let stream = self.live.remove(&id)?;
        self.remember(id, ended);
        Some(stream)
    }

    /// Remembers how a stream ended that never was live, or no longer is.
    pub(super) fn remember(&mut self, id: u32, ended: Ended) {
        if ended == Ended::ByUs {
            if self.resets.len() == RESETS_REMEMBERED {
                self.resets.pop_front();
            }
            self.resets.push_back(id);
        } else {
            if self.ends.len() == ENDS_REMEMBERED {
                self.ends.pop_front();
            }
            self.ends.push_back((id, ended));
        }
    }

    /// How the stream `id`, not live, ended.
    pub(super) fn ended(&self, id: u32) -> Ended {
        if self.resets.contains(&id) {
            return Ended::ByUs;
        }
        let found = self.ends.iter().rev().find(|(other, _)| *other == id);
        found.map_or(Ended::Unknown, |(_, ended)| *ended)
    }

    /// The live streams' ids in ascending order.
    pub(super) fn sorted_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.live.keys().copied().collect();
        ids.sort_unstable();
        ids
    }
}

/// Spreads stream ids by one multiplication. The number of live streams is limited, and with it
/// what a peer gains by choosing ids that collide.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        let spread = (self.0 ^ u64::from(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ (spread >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_ended_streams_is_short() {
        let mut streams = Streams::default();
        for id in 0..10_000 {
            streams.remember(id, Ended::ByUs);
            streams.remember(100_000 + id, Ended::InOrder);
        }
        assert_eq!(
            (streams.resets.len(), streams.ends.len()),
            (RESETS_REMEMBERED, ENDS_REMEMBERED)
        );
        assert_eq!((streams.ended(9999), streams.ended(109_999)), (Ended::ByUs, Ended::InOrder));
        assert_eq!((streams.ended(0), streams.ended(100_000)), (Ended::Unknown, Ended::Unknown));
    }
}
