//! How the kinds of data planes differ: each is a composition of parts.

use std::time::Duration;

use tollway_identity::TlsError;
use tollway_net::{Closed, ConnError, Tls};

use super::Command;
use crate::conn::{ConnKey, Connections, Expired, ListenerKind, Role};
use crate::cx::{Cx, Effect};

/// One kind of data plane: what it composes of the parts, and what it does with a connection. The
/// event loop itself accepts, reads, flushes and closes, the same for all kinds.
pub(crate) trait Composition {
    /// At least so long after the beginning of a drain connections are still taken.
    const LEAVES_IN: Duration = Duration::ZERO;

    /// The loop is about to begin.
    fn start(&mut self, _: &mut Cx) {}

    /// The first role of an accepted connection, and the TLS that it speaks.
    ///
    /// # Errors
    /// The TLS library refuses to begin a handshake.
    fn first_role(&mut self, cx: &Cx, via: &ListenerKind) -> Result<(Option<Tls>, Role), TlsError>;

    /// An accepted connection is registered.
    fn on_accepted(&mut self, _: &mut Cx, conns: &mut Connections, key: ConnKey) {
        conns.queue_read(key);
    }

    /// Bytes came, or (empty) what is left unparsed shall be looked at again.
    fn on_bytes(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, data: &[u8]);

    /// The peer sends no more.
    fn on_closed(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, how: Closed);

    /// The connection broke.
    fn on_failed(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, error: &ConnError);

    /// Nothing more can be sent; more may come.
    fn on_unsendable(
        &mut self,
        cx: &mut Cx,
        conns: &mut Connections,
        key: ConnKey,
        error: &ConnError,
    ) {
        self.on_failed(cx, conns, key, error);
    }

    /// A time is over that this kind decides on.
    fn on_expired(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, expired: Expired);

    /// Turns of actors are about to be sent on a connection. Returns whether they may be.
    fn may_send_turns(&mut self, _: &mut Cx, _: &mut Connections, _: ConnKey) -> bool {
        true
    }

    /// Bytes of turns of actors were sent on a connection: all of them if `is_done`.
    fn on_turns_sent(&mut self, _: &mut Connections, _: ConnKey, _is_done: bool) {}

    /// A connection was flushed and has room.
    fn on_room(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey);

    /// A peer has read so much that its connection takes requests again.
    fn on_peer_has_read(&mut self, _: &mut Cx, _: &Connections, _: ConnKey) {}

    /// Carries out what one part asks of another.
    fn carry_out(&mut self, cx: &mut Cx, conns: &mut Connections, effect: Effect);

    /// Carries effects out until none is left.
    fn settle(&mut self, cx: &mut Cx, conns: &mut Connections) {
        while let Some(effect) = cx.effects.pop() {
            self.carry_out(cx, conns, effect);
        }
    }

    /// Takes a command of the rest of the process. One that is for another kind has no effect.
    fn on_command(&mut self, cx: &mut Cx, conns: &mut Connections, command: Command);

    /// Whether a request may be dispatched without waiting for anything to happen.
    fn is_due(&self) -> bool {
        false
    }

    /// How long the loop may wait for the next time that is kept more exactly than by the work done ten
    /// times a second; `None` if there is none.
    fn timer_wait(&self) -> Option<Duration> {
        None
    }

    /// Does what is due by such times.
    fn serve_timers(&mut self, _: &mut Cx, _: &mut Connections) {}

    /// Dispatches requests that wait and may go on.
    fn serve_queues(&mut self, _: &mut Cx, _: &mut Connections) {}

    /// The work that is done ten times a second.
    fn sweep(&mut self, _: &mut Cx, _: &mut Connections) {}

    /// The requests under way, and what they hold.
    fn load(&self) -> Load {
        Load::default()
    }

    /// Gives memory back after a peak. Returns whether it did.
    fn shrink(&mut self) -> bool {
        false
    }
}

/// What a data plane has under way.
#[derive(Clone, Copy, Default)]
pub(crate) struct Load {
    pub(crate) requests: usize,
    pub(crate) buffered_bytes: usize,
}

/// No part of this kind of data plane asks for such work. A debug build panics, so that tests find it.
pub(super) fn unexpected(_: &Effect) {
    debug_assert!(false, "an effect of another kind of data plane");
}
