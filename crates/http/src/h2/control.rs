//! The frames that steer a connection: PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY,
//! WINDOW_UPDATE (RFC 9113 sections 6.3 to 6.9); and how a stream ends.

use super::connection::{Connection, Role, Turn};
use super::error::Fault;
use super::frame::{self, FrameHead, LARGEST_WINDOW, flag, kind};
use super::settings::PeerSettings;
use super::stream::{Ended, Stream};
use super::{ErrorCode, Event, StreamId};

impl Connection {
    /// Any frame but DATA, whole.
    pub(super) fn receive_frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        turn: &mut Turn<'_>,
    ) -> Result<(), Fault> {
        match head.kind {
            kind::HEADERS => self.receive_headers(head, payload, turn),
            kind::PRIORITY => self.receive_priority(head, payload, turn),
            kind::RST_STREAM => self.receive_reset(head, payload, turn),
            kind::SETTINGS => self.receive_settings(head, payload, turn),
            kind::PUSH_PROMISE => Err(Fault::protocol("PUSH_PROMISE though push is off")),
            kind::PING => self.receive_ping(head, payload, turn),
            kind::GOAWAY => self.receive_goaway(head, payload, turn),
            kind::WINDOW_UPDATE => self.receive_window_update(head, payload, turn),
            _ => self.receive_continuation(head, payload, turn),
        }
    }

    fn receive_priority(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        turn: &mut Turn<'_>,
    ) -> Result<(), Fault> {
        self.charge_control_frame(turn.now)?;
        if head.stream == 0 {
            return Err(Fault::protocol("PRIORITY on stream 0"));
        }
        let is_live = self.streams.get(head.stream).is_some();
        let Ok(priority) = <&[u8; 5]>::try_from(payload) else {
            return Err(match is_live {
                true => Fault::stream(head.stream, ErrorCode::FRAME_SIZE_ERROR),
                false => Fault::frame_size("PRIORITY is not 5 bytes long"),
            });
        };
        match depends_on_itself(head.stream, priority) {
            true if is_live => Err(Fault::stream(head.stream, ErrorCode::PROTOCOL_ERROR)),
            true => Err(Fault::protocol("PRIORITY makes a stream depend on itself")),
            false => Ok(()),
        }
    }

    fn receive_reset(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        turn: &mut Turn<'_>,
    ) -> Result<(), Fault> {
        let Ok(code) = <[u8; 4]>::try_from(payload) else {
            return Err(Fault::frame_size("RST_STREAM is not 4 bytes long"));
        };
        if self.is_dropped(head.stream) {
            return self.charge_control_frame(turn.now);
        }
        if self.is_idle(head.stream) {
            return Err(Fault::protocol("RST_STREAM on a stream that is not open"));
        }
        let is_answered = self.streams.get(head.stream).is_some_and(|stream| !stream.is_local_open);
        if !self.end_stream(head.stream, Ended::ByPeer) {
            return self.charge_control_frame(turn.now);
        }
        let code = ErrorCode(u32::from_be_bytes(code));
        turn.events.push(Event::Reset { stream: StreamId(head.stream), code });
        if is_answered {
            // Only the rest of a request is called off: that is how some clients end a stream.
            self.budgets.resets.earn(1);
        } else if self.role == Role::Server && !self.budgets.resets.spend(turn.now) {
            return Err(Fault::calm("too many streams were opened and reset (resets)"));
        }
        Ok(())
    }

    fn receive_settings(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        turn: &mut Turn<'_>,
    ) -> Result<(), Fault> {
        if head.stream != 0 {
            return Err(Fault::protocol("SETTINGS on a stream"));
        }
        if head.has(flag::ACK) {
            if !payload.is_empty() {
                return Err(Fault::frame_size("a SETTINGS acknowledgement has a payload"));
            }
            return self.receive_settings_ack(turn);
        }
        if !payload.len().is_multiple_of(6) {
            return Err(Fault::frame_size("SETTINGS is not a multiple of 6 bytes long"));
        }
        self.charge_control_frame(turn.now)?;
        let old = self.peer;
        let peer_is_server = self.role == Role::Client;
        let new = match std::mem::replace(&mut self.has_applied_settings, true) {
            false => PeerSettings::first(payload, peer_is_server)?,
            true => old.updated(payload, peer_is_server)?,
        };
        self.peer = new;
        self.encoder.set_peer_limit(new.smallest_header_table_bytes as usize);
        self.encoder.set_peer_limit(new.header_table_bytes as usize);
        self.shift_send_windows(
            i64::from(new.initial_window) - i64::from(old.initial_window),
            turn,
        )?;
        frame::write_settings_ack(turn.out);
        self.charge_reply().map_err(Fault::Connection)?;
        turn.events.push(Event::SettingsChanged);
        Ok(())
    }

    fn receive_settings_ack(&mut self, turn: &mut Turn<'_>) -> Result<(), Fault> {
        if self.are_settings_acknowledged {
            return self.charge_control_frame(turn.now);
        }
        let before = self.new_recv_window();
        self.are_settings_acknowledged = true;
        self.decoder.set_allowed_size(self.config.header_table_bytes as usize);
        let change = i64::from(self.new_recv_window()) - i64::from(before);
        if change != 0 {
            for id in self.streams.sorted_ids() {
                if let Some(stream) = self.streams.get_mut(id) {
                    stream.recv_window += change;
                }
            }
        }
        Ok(())
    }

    /// The peer changed its initial window by `change` (RFC 9113 section 6.9.2).
    fn shift_send_windows(&mut self, change: i64, turn: &mut Turn<'_>) -> Result<(), Fault> {
        if change == 0 {
            return Ok(());
        }
        for id in self.streams.sorted_ids() {
            let Some(stream) = self.streams.get_mut(id) else { continue };
            if stream.send_window + change > i64::from(LARGEST_WINDOW) {
                return Err(Fault::flow_control("SETTINGS makes a stream's window too large"));
            }
            if widen(&mut stream.send_window, change) {
                turn.events.push(Event::WindowOpen { stream: Some(StreamId(id)) });
            }
        }
        Ok(())
    }

    fn receive_ping(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        turn: &mut Turn<'_>,
    ) -> Result<(), Fault> {
        self.charge_control_frame(turn.now)?;
        if head.stream != 0 {
            return Err(Fault::protocol("PING on a stream"));
        }
        let Ok(payload) = <[u8; 8]>::try_from(payload) else {
            return Err(Fault::frame_size("PING is not 8 bytes long"));
        };
        if head.has(flag::ACK) {
            turn.events.push(Event::PingAck(payload));
            return Ok(());
        }
        frame::write_ping(turn.out, flag::ACK, payload);
        self.charge_reply().map_err(Fault::Connection)
    }

    fn receive_goaway(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        turn: &mut Turn<'_>,
    ) -> Result<(), Fault> {
        self.charge_control_frame(turn.now)?;
        if head.stream != 0 {
            return Err(Fault::protocol("GOAWAY on a stream"));
        }
        let Some((&[l0, l1, l2, l3, c0, c1, c2, c3], _debug)) = payload.split_first_chunk::<8>()
        else {
            return Err(Fault::frame_size("GOAWAY is shorter than 8 bytes"));
        };
        let last = u32::from_be_bytes([l0 & 0x7f, l1, l2, l3]);
        let code = ErrorCode(u32::from_be_bytes([c0, c1, c2, c3]));
        self.is_peer_going = true;
        if self.role == Role::Client {
            for id in self.streams.sorted_ids().into_iter().filter(|&id| id > last) {
                self.end_stream(id, Ended::ByUs);
                let code = ErrorCode::REFUSED_STREAM;
                turn.events.push(Event::Reset { stream: StreamId(id), code });
            }
        }
        turn.events.push(Event::GoAway { last: StreamId(last), code });
        Ok(())
    }

    fn receive_window_update(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        turn: &mut Turn<'_>,
    ) -> Result<(), Fault> {
        let Ok(increment) = <[u8; 4]>::try_from(payload) else {
            return Err(Fault::frame_size("WINDOW_UPDATE is not 4 bytes long"));
        };
        if !self.budgets.window_updates.spend(turn.now) {
            return Err(Fault::calm("too many WINDOW_UPDATE frames (window_updates)"));
        }
        let increment = i64::from(u32::from_be_bytes(increment) & LARGEST_WINDOW);
        if head.stream == 0 {
            return self.widen_connection(increment, turn);
        }
        if self.is_dropped(head.stream) {
            return Ok(());
        }
        if self.is_idle(head.stream) {
            return Err(Fault::protocol("WINDOW_UPDATE on a stream that is not open"));
        }
        let id = head.stream;
        // Wrong at any time, so whether it is noticed does not depend on how fast an answer was.
        if increment == 0 {
            return Err(Fault::stream(id, ErrorCode::PROTOCOL_ERROR));
        }
        let Some(stream) = self.streams.get_mut(id) else { return Ok(()) };
        if stream.send_window + increment > i64::from(LARGEST_WINDOW) {
            return Err(Fault::stream(id, ErrorCode::FLOW_CONTROL_ERROR));
        }
        if widen(&mut stream.send_window, increment) {
            turn.events.push(Event::WindowOpen { stream: Some(StreamId(id)) });
        }
        Ok(())
    }

    fn widen_connection(&mut self, increment: i64, turn: &mut Turn<'_>) -> Result<(), Fault> {
        if increment == 0 {
            return Err(Fault::protocol("WINDOW_UPDATE by 0 on the connection"));
        }
        if self.send_window + increment > i64::from(LARGEST_WINDOW) {
            return Err(Fault::flow_control(
                "WINDOW_UPDATE makes the connection's window too large",
            ));
        }
        if widen(&mut self.send_window, increment) {
            turn.events.push(Event::WindowOpen { stream: None });
        }
        Ok(())
    }

    /// The peer has ended its half of `id`.
    pub(super) fn end_remote(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.is_remote_open = false;
            self.close_if_ended(id);
        }
    }

    /// Forgets a stream both halves of which have ended; that is what resets are paid with.
    pub(super) fn close_if_ended(&mut self, id: u32) {
        if self.streams.get(id).is_some_and(Stream::is_closed) {
            self.end_stream(id, Ended::InOrder);
            self.budgets.resets.earn(1);
            self.resets_owed = self.resets_owed.saturating_sub(1);
        }
    }

    /// Counts a stream that this side is about to cancel, if the server counts it too: one that is
    /// not answered in full. How much of the answer is in transit is unknown here, so this count is
    /// never below the server's.
    pub(super) fn owe_reset(&mut self, id: u32) {
        let is_unanswered = self.streams.get(id).is_some_and(|stream| stream.is_remote_open);
        if self.role == Role::Client && is_unanswered {
            self.resets_owed = self.resets_owed.saturating_add(1);
        }
    }

    /// Takes a stream out of the live ones; false if it was none.
    pub(super) fn end_stream(&mut self, id: u32, ended: Ended) -> bool {
        let Some(stream) = self.streams.remove(id, ended) else { return false };
        self.live_head_bytes -= stream.head_bytes;
        self.is_full_of_heads &= stream.head_bytes == 0;
        true
    }
}

/// Adds to a window; whether it was shut and is open now. A sender that wanted more than it got
/// has shut one of its two windows, so that is all the news there is.
fn widen(window: &mut i64, change: i64) -> bool {
    let was_open = *window > 0;
    *window += change;
    *window > 0 && !was_open
}

/// Whether a priority names its own stream (RFC 7540 section 5.3.1).
pub(super) fn depends_on_itself(stream: u32, priority: &[u8; 5]) -> bool {
    let &[d0, d1, d2, d3, _weight] = priority;
    u32::from_be_bytes([d0 & 0x7f, d1, d2, d3]) == stream
}
