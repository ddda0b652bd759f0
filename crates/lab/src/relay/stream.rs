//! One relayed stream pair: what came in on one side and when it goes out on the other.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tollway_net::{Conn, Flush, Read, Readiness, Scratch};

/// Bytes of one direction in transit or waiting for the other side's socket.
pub(super) const HELD_LIMIT_BYTES: usize = 4 << 20;

/// Which of a pair's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Accepted from the one who called.
    Downstream,
    /// Dialled to the target.
    Upstream,
}

/// What a pair waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Both directions have ended, or one has failed.
    Done,
    /// Its sockets.
    Waits,
    /// The time when the next bytes are due, or its sockets.
    At(Instant),
}

/// Two connections and the bytes in transit between them.
pub(super) struct Pair {
    downstream: Conn,
    upstream: Conn,
    to_upstream: InFlight,
    to_downstream: InFlight,
}

/// Bytes of one direction in transit, oldest first.
#[derive(Default)]
struct InFlight {
    pieces: VecDeque<Piece>,
    bytes: usize,
}

struct Piece {
    due: Instant,
    /// Empty: the end of the stream.
    bytes: Vec<u8>,
}

struct Failed;

impl Pair {
    pub(super) fn new(downstream: Conn, upstream: Conn) -> Self {
        let (to_upstream, to_downstream) = (InFlight::default(), InFlight::default());
        Self { downstream, upstream, to_upstream, to_downstream }
    }

    pub(super) fn conn(&self, side: Side) -> &Conn {
        match side {
            Side::Downstream => &self.downstream,
            Side::Upstream => &self.upstream,
        }
    }

    pub(super) fn ready(&mut self, side: Side, readiness: Readiness) {
        match side {
            Side::Downstream => self.downstream.ready(readiness),
            Side::Upstream => self.upstream.ready(readiness),
        }
    }

    pub(super) fn progress(
        &mut self,
        now: Instant,
        delay: Duration,
        scratch: &mut Scratch,
    ) -> Next {
        let Self { downstream, upstream, to_upstream, to_downstream } = self;
        let forth = carry(downstream, to_upstream, upstream, now, delay, scratch);
        let back = carry(upstream, to_downstream, downstream, now, delay, scratch);
        if forth.is_err() || back.is_err() {
            return Next::Done;
        }
        if self.downstream.is_finished() && self.upstream.is_finished() {
            return Next::Done;
        }
        let due = [&self.to_upstream, &self.to_downstream].map(InFlight::next_due);
        due.into_iter().flatten().min().map_or(Next::Waits, Next::At)
    }
}

impl InFlight {
    fn next_due(&self) -> Option<Instant> {
        self.pieces.front().map(|piece| piece.due)
    }
}

/// Moves one direction: in from `from`, out to `to` what is due.
fn carry(
    from: &mut Conn,
    way: &mut InFlight,
    to: &mut Conn,
    now: Instant,
    delay: Duration,
    scratch: &mut Scratch,
) -> Result<(), Failed> {
    take_in(from, way, to, now + delay, scratch)?;
    loop {
        while way.next_due().is_some_and(|due| due <= now) {
            let Some(piece) = way.pieces.pop_front() else { break };
            way.bytes -= piece.bytes.len();
            if piece.bytes.is_empty() {
                to.finish();
            }
            to.out().extend_from_slice(&piece.bytes);
        }
        match to.flush() {
            Flush::Done => {}
            Flush::Blocked => return Ok(()),
            Flush::Failed(_) => return Err(Failed),
        }
        // All is sent, so there is room for the bytes left in the socket, which reports no second
        // time: also if nothing was due and the flush alone made the room.
        take_in(from, way, to, now + delay, scratch)?;
        if way.next_due().is_none_or(|due| due > now) {
            return Ok(());
        }
    }
}

fn take_in(
    from: &mut Conn,
    way: &mut InFlight,
    to: &Conn,
    due: Instant,
    scratch: &mut Scratch,
) -> Result<(), Failed> {
    while way.bytes + to.pending() < HELD_LIMIT_BYTES {
        match from.read(scratch) {
            Read::Data(bytes) => {
                way.bytes += bytes.len();
                way.pieces.push_back(Piece { due, bytes: bytes.to_vec() });
            }
            Read::Blocked => return Ok(()),
            Read::Closed(_) => {
                way.pieces.push_back(Piece { due, bytes: Vec::new() });
                return Ok(());
            }
            Read::Failed(_) => return Err(Failed),
        }
    }
    Ok(())
}
