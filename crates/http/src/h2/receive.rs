//! Every frame but DATA, whole: what it means for the connection.

use super::connection::{Block, Connection, Role, Turn};
use super::error::Fault;
use super::frame::{self, FrameHead, LARGEST_WINDOW, flag, kind};
use super::message::{Malformed, RequestBuilder, ResponseBuilder, TrailersBuilder};
use super::settings::PeerSettings;
use super::stream::{Ended, Stream};
use super::{ErrorCode, Event, StreamId};
use crate::hpack::{Decoded, ListLimits};
use crate::{Field, Method, RequestHead};

impl Connection {
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

    fn receive_headers(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        turn: &mut Turn<'_>,
    ) -> Result<(), Fault> {
        if head.stream == 0 {
            return Err(Fault::protocol("HEADERS on stream 0"));
        }
        let mut fragment = unpad(head, payload)?;
        let mut is_malformed = false;
        if head.has(flag::PRIORITY) {
            let Some((priority, rest)) = fragment.split_first_chunk::<5>() else {
                return Err(Fault::frame_size("HEADERS is too short for its priority"));
            };
            is_malformed = depends_on_itself(head.stream, priority);
            fragment = rest;
        }
        let block = Block {
            stream: head.stream,
            ends_stream: head.has(flag::END_STREAM),
            is_malformed,
            continuations: 0,
        };
        if head.has(flag::END_HEADERS) {
            return self.receive_block(block, fragment, turn);
        }
        self.block_bytes.clear();
        self.gather(block, fragment)
    }

    fn receive_continuation(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        turn: &mut Turn<'_>,
    ) -> Result<(), Fault> {
        let Some(mut block) = self.block.take() else {
            return Err(Fault::protocol("CONTINUATION without a header block"));
        };
        block.continuations += 1;
        if block.continuations > self.config.limits.continuation_frames {
            return Err(Fault::calm("a header block of too many frames (continuation_frames)"));
        }
        self.gather(block, payload)?;
        if head.has(flag::END_HEADERS) {
            self.block = None;
            let bytes = std::mem::take(&mut self.block_bytes);
            let outcome = self.receive_block(block, &bytes, turn);
            self.block_bytes = bytes;
            return outcome;
        }
        Ok(())
    }

    fn gather(&mut self, block: Block, fragment: &[u8]) -> Result<(), Fault> {
        if self.block_bytes.len() + fragment.len() > self.config.header_list_bytes as usize {
            return Err(Fault::calm("a header block is larger than header_list_bytes"));
        }
        self.block_bytes.extend_from_slice(fragment);
        self.block = Some(block);
        Ok(())
    }

    /// A whole header block: decoded in any case, since the table must stay in step.
    fn receive_block(
        &mut self,
        block: Block,
        bytes: &[u8],
        turn: &mut Turn<'_>,
    ) -> Result<(), Fault> {
        let id = block.stream;
        if self.is_dropped(id) {
            return self.decode(bytes, |_| ()).map(|_| ());
        }
        if let Some(stream) = self.streams.get(id) {
            let is_first = self.role == Role::Client && !stream.has_response;
            return match is_first {
                true => self.receive_response(block, bytes, turn),
                false => self.receive_trailers(block, bytes, turn),
            };
        }
        if self.is_idle(id) {
            if self.role == Role::Client || id.is_multiple_of(2) {
                return Err(Fault::protocol("HEADERS on a stream that is not open"));
            }
            self.last_stream = id;
            return self.receive_request(block, bytes, turn);
        }
        self.receive_late_block(id, bytes, turn)
    }

    /// HEADERS on a stream that is gone.
    fn receive_late_block(
        &mut self,
        id: u32,
        bytes: &[u8],
        turn: &mut Turn<'_>,
    ) -> Result<(), Fault> {
        self.decode(bytes, |_| ())?;
        match (self.streams.ended(id), self.role) {
            (Ended::ByUs, _) => self.charge_control_frame(turn.now),
            (Ended::InOrder, _) => {
                let reason = "HEADERS on a stream that its sender has ended";
                Err(Fault::connection(ErrorCode::STREAM_CLOSED, reason))
            }
            (Ended::ByPeer, _) | (Ended::Unknown, Role::Client) => {
                self.charge_control_frame(turn.now)?;
                Err(Fault::stream(id, ErrorCode::STREAM_CLOSED))
            }
            (Ended::Unknown, Role::Server) => {
                Err(Fault::protocol("HEADERS on a stream below one that was opened"))
            }
        }
    }

    fn receive_request(
        &mut self,
        block: Block,
        bytes: &[u8],
        turn: &mut Turn<'_>,
    ) -> Result<(), Fault> {
        let id = block.stream;
        let mut builder = RequestBuilder::default();
        let decoded = self.decode(bytes, |field| builder.add(field))?;
        if block.is_malformed {
            return Err(Fault::stream(id, ErrorCode::PROTOCOL_ERROR));
        }
        let live_head_bytes = self.live_head_bytes + decoded.bytes;
        if self.streams.len() >= self.config.max_concurrent_streams as usize
            || (!decoded.is_over_limit && live_head_bytes > self.config.limits.live_head_bytes)
        {
            return Err(Fault::stream(id, ErrorCode::REFUSED_STREAM));
        }
        let mut stream = Stream::new(self.peer.initial_window, self.new_recv_window());
        stream.is_remote_open = !block.ends_stream;
        if decoded.is_over_limit {
            self.charge_control_frame(turn.now)?;
            stream.is_deaf = true;
            self.streams.insert(id, stream);
            turn.events.push(Event::Refused { stream: StreamId(id) });
            return Ok(());
        }
        let (head, content_length) = builder
            .finish(self.config.enable_connect_protocol)
            .map_err(|Malformed| Fault::stream(id, ErrorCode::PROTOCOL_ERROR))?;
        stream.body_left = content_length.filter(|_| head.method != Method::Connect);
        if block.ends_stream && stream.body_left.is_some_and(|left| left != 0) {
            return Err(Fault::stream(id, ErrorCode::PROTOCOL_ERROR));
        }
        note_method(&mut stream, &head);
        stream.head_bytes = decoded.bytes;
        self.live_head_bytes = live_head_bytes;
        self.streams.insert(id, stream);
        let (stream, end) = (StreamId(id), block.ends_stream);
        turn.events.push(Event::Request { stream, head, content_length, end });
        Ok(())
    }

    fn receive_response(
        &mut self,
        block: Block,
        bytes: &[u8],
        turn: &mut Turn<'_>,
    ) -> Result<(), Fault> {
        let id = block.stream;
        let malformed = Fault::stream(id, ErrorCode::PROTOCOL_ERROR);
        let mut builder = ResponseBuilder::default();
        let decoded = self.decode(bytes, |field| builder.add(field))?;
        if decoded.is_over_limit {
            return Err(Fault::stream(id, ErrorCode::ENHANCE_YOUR_CALM));
        }
        let (head, content_length) = builder.finish().map_err(|Malformed| malformed)?;
        if block.is_malformed {
            return Err(malformed);
        }
        let Some(stream) = self.streams.get_mut(id) else { return Ok(()) };
        if !stream.is_remote_open {
            return Err(Fault::stream(id, ErrorCode::STREAM_CLOSED));
        }
        let end = block.ends_stream;
        if head.status < 200 {
            if end {
                return Err(malformed);
            }
            self.charge_control_frame(turn.now)?; // any number may come (RFC 9110 section 15.2)
        } else {
            stream.has_response = true;
            stream.body_left = body_of(stream, head.status, content_length);
            if end && stream.body_left.is_some_and(|left| left != 0) {
                return Err(malformed);
            }
        }
        turn.events.push(Event::Response { stream: StreamId(id), head, content_length, end });
        if end {
            self.end_remote(id);
        }
        Ok(())
    }

    fn receive_trailers(
        &mut self,
        block: Block,
        bytes: &[u8],
        turn: &mut Turn<'_>,
    ) -> Result<(), Fault> {
        let id = block.stream;
        let malformed = Fault::stream(id, ErrorCode::PROTOCOL_ERROR);
        let mut builder = TrailersBuilder::default();
        let decoded = self.decode(bytes, |field| builder.add(field))?;
        let Some(stream) = self.streams.get(id) else { return Ok(()) };
        if !stream.is_remote_open {
            return Err(Fault::stream(id, ErrorCode::STREAM_CLOSED));
        }
        if decoded.is_over_limit {
            return Err(Fault::stream(id, ErrorCode::ENHANCE_YOUR_CALM));
        }
        let is_short = stream.body_left.is_some_and(|left| left != 0);
        if block.is_malformed || !block.ends_stream || is_short {
            return Err(malformed);
        }
        let is_deaf = stream.is_deaf;
        let fields = builder.finish().map_err(|Malformed| malformed)?;
        if !is_deaf {
            turn.events.push(Event::Trailers { stream: StreamId(id), fields });
        }
        self.end_remote(id);
        Ok(())
    }

    fn decode(&mut self, bytes: &[u8], line: impl FnMut(Field<'_>)) -> Result<Decoded, Fault> {
        let limits = ListLimits {
            bytes: self.config.header_list_bytes as usize,
            lines: self.config.header_fields,
        };
        self.decoder
            .decode(bytes, limits, line)
            .map_err(|error| Fault::connection(ErrorCode::COMPRESSION_ERROR, error.reason()))
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
        if !self.end_stream(head.stream, Ended::ByPeer) {
            return self.charge_control_frame(turn.now);
        }
        let code = ErrorCode(u32::from_be_bytes(code));
        turn.events.push(Event::Reset { stream: StreamId(head.stream), code });
        if self.role == Role::Server && !self.budgets.resets.spend(turn.now) {
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
            if widen(&mut stream.send_window, &mut stream.is_short, change) {
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
        let Some(stream) = self.streams.get_mut(id) else { return Ok(()) };
        if increment == 0 {
            return Err(Fault::stream(id, ErrorCode::PROTOCOL_ERROR));
        }
        if stream.send_window + increment > i64::from(LARGEST_WINDOW) {
            return Err(Fault::stream(id, ErrorCode::FLOW_CONTROL_ERROR));
        }
        if widen(&mut stream.send_window, &mut stream.is_short, increment) {
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
        if widen(&mut self.send_window, &mut self.is_short, increment) {
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
        }
    }

    /// Takes a stream out of the live ones; false if it was none.
    pub(super) fn end_stream(&mut self, id: u32, ended: Ended) -> bool {
        let Some(stream) = self.streams.remove(id, ended) else { return false };
        self.live_head_bytes -= stream.head_bytes;
        true
    }
}

pub(super) fn note_method(stream: &mut Stream, head: &RequestHead) {
    stream.is_head_request = head.method == Method::Head;
    stream.is_connect = head.method == Method::Connect;
}

/// The bytes that must follow a response's head, if that is known (RFC 9110 section 8.6).
fn body_of(stream: &Stream, status: u16, content_length: Option<u64>) -> Option<u64> {
    if stream.is_head_request || matches!(status, 204 | 304) {
        Some(0)
    } else if stream.is_connect && status < 300 {
        None
    } else {
        content_length
    }
}

/// Adds to a window; whether someone who found it empty or too small should look again.
fn widen(window: &mut i64, is_short: &mut bool, change: i64) -> bool {
    let was_open = *window > 0;
    *window += change;
    let is_news = *window > 0 && (!was_open || (*is_short && change > 0));
    if is_news {
        *is_short = false;
    }
    is_news
}

/// The payload without its padding.
fn unpad(head: FrameHead, payload: &[u8]) -> Result<&[u8], Fault> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let Some((&padding, rest)) = payload.split_first() else {
        return Err(Fault::frame_size("a padded frame has no pad length"));
    };
    let kept = rest.len().checked_sub(usize::from(padding));
    kept.map(|kept| &rest[..kept]).ok_or(Fault::protocol("the padding is longer than its frame"))
}

fn depends_on_itself(stream: u32, priority: &[u8; 5]) -> bool {
    let &[d0, d1, d2, d3, _weight] = priority;
    u32::from_be_bytes([d0 & 0x7f, d1, d2, d3]) == stream
}
