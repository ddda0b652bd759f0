//! HEADERS and CONTINUATION: blocks are assembled, bounded, and become requests, responses and
//! trailers (RFC 9113 sections 6.2, 6.10, 8.1).

use super::connection::{Block, Connection, Role, Turn};
use super::control::depends_on_itself;
use super::error::Fault;
use super::frame::{FrameHead, flag};
use super::message::{Malformed, RequestBuilder, ResponseBuilder, TrailersBuilder};
use super::stream::{Ended, Stream};
use super::{ErrorCode, Event, Limits, StreamId};
use crate::hpack::{Decoded, ListLimits};
use crate::{Field, Fields, Method, RequestHead};

/// Largest head that is decoded while others are refused for lack of room.
const SMALL_HEAD_BYTES: usize = 4096;

impl Connection {
    pub(super) fn receive_headers(
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

    pub(super) fn receive_continuation(
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
        let room = self.room_for_head();
        let mut builder = RequestBuilder::collecting(self.spare_heads.pop().unwrap_or_default());
        let decoded = self.decode_up_to(room, bytes, |field| builder.add(field))?;
        if block.is_malformed {
            return Err(Fault::stream(id, ErrorCode::PROTOCOL_ERROR));
        }
        if room == 0 || (!decoded.is_over_limit && decoded.bytes > room) {
            self.is_full_of_heads |= room > 0;
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
        self.live_head_bytes += decoded.bytes;
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
        let mut builder = ResponseBuilder::collecting(self.take_spare());
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
            // Any number may come (RFC 9110 section 15.2).
            stream.interim_heads = stream.interim_heads.saturating_add(1);
            if stream.interim_heads > Limits::FREE_INTERIM_HEADS {
                self.charge_control_frame(turn.now)?;
            }
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
        let mut builder = TrailersBuilder::collecting(self.take_spare());
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

    /// Bytes that the head of a new stream may have without being refused; 0 if there may be none.
    ///
    /// A refused head costs its sender little and this side all of its lines. So after a refusal
    /// only small heads are decoded until another stream has ended.
    fn room_for_head(&self) -> usize {
        if self.streams.len() >= self.config.max_concurrent_streams as usize {
            return 0;
        }
        let room = self.config.limits.live_head_bytes.saturating_sub(self.live_head_bytes);
        if self.is_full_of_heads { room.min(SMALL_HEAD_BYTES) } else { room }
    }

    fn take_spare(&mut self) -> Fields {
        self.spare.pop().unwrap_or_default()
    }

    fn decode(&mut self, bytes: &[u8], line: impl FnMut(Field<'_>)) -> Result<Decoded, Fault> {
        self.decode_up_to(usize::MAX, bytes, line)
    }

    /// Passes on the lines within `room` bytes; a block larger than any head may be is over the
    /// limit.
    fn decode_up_to(
        &mut self,
        room: usize,
        bytes: &[u8],
        line: impl FnMut(Field<'_>),
    ) -> Result<Decoded, Fault> {
        let largest = self.config.header_list_bytes as usize;
        let limits = ListLimits { bytes: largest.min(room), lines: self.config.header_fields };
        let decoded = self
            .decoder
            .decode(bytes, limits, line)
            .map_err(|error| Fault::connection(ErrorCode::COMPRESSION_ERROR, error.reason()))?;
        let is_over_limit = decoded.bytes > largest || decoded.lines > limits.lines;
        Ok(Decoded { is_over_limit, ..decoded })
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
