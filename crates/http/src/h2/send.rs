//! What this side sends: heads, bodies, trailers, resets, the announcement of its end.

use super::connection::{Connection, Going, Role};
use super::frame::{self, FrameHead, HEAD_LEN, LARGEST_STREAM, flag, kind};
use super::heads::note_method;
use super::stream::{Ended, Stream};
use super::{ErrorCode, Limits, OpenError, StreamGone, StreamId};
use crate::hpack::Encoder;
use crate::{Fields, Method, RequestHead, ResponseHead};

impl Connection {
    /// Opens a stream (client). `content-length`, `host` and connection-specific fields in
    /// `head.fields` are left out; the length comes from `content_length`.
    ///
    /// # Errors
    /// Nothing was sent: try another connection.
    pub fn send_request(
        &mut self,
        head: &RequestHead,
        content_length: Option<u64>,
        end: bool,
        out: &mut Vec<u8>,
    ) -> Result<StreamId, OpenError> {
        let id = self.next_stream()?;
        self.last_stream = id;
        let mut stream = Stream::new(self.peer.initial_window, self.new_recv_window());
        stream.is_local_open = !end;
        note_method(&mut stream, head);
        self.streams.insert(id, stream);

        let frame_size = self.send_frame_size();
        let mut block = BlockWriter::begin(&mut self.encoder, out);
        block.request(head, content_length);
        block.finish(id, end, frame_size);
        Ok(StreamId(id))
    }

    fn next_stream(&self) -> Result<u32, OpenError> {
        if self.role == Role::Server || self.is_going_away() {
            let is_used_up = self.last_stream >= LARGEST_STREAM - 1;
            return Err(if is_used_up { OpenError::IdsExhausted } else { OpenError::GoingAway });
        }
        let limit = self.peer.max_concurrent_streams;
        if self.streams.len() >= limit as usize {
            return Err(OpenError::TooManyStreams { limit });
        }
        Ok(if self.last_stream == 0 { 1 } else { self.last_stream + 2 })
    }

    /// Sends a response's head (server); informational ones any number of times, with `end`
    /// false.
    ///
    /// # Errors
    /// The stream is gone or has its final head already.
    pub fn send_response(
        &mut self,
        stream: StreamId,
        head: &ResponseHead,
        content_length: Option<u64>,
        end: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamGone> {
        let state = self.streams.get_mut(stream.0).ok_or(StreamGone)?;
        if self.role == Role::Client || !state.is_local_open || state.has_response {
            return Err(StreamGone);
        }
        let is_final = head.status >= 200;
        let end = end && is_final;
        state.has_response = is_final;
        let frame_size = self.send_frame_size();
        let mut block = BlockWriter::begin(&mut self.encoder, out);
        block.response(head, content_length);
        block.finish(stream.0, end, frame_size);
        if end {
            self.end_local(stream.0);
        }
        Ok(())
    }

    /// Bytes `send_data` would take now on `stream`; 0 if it is gone.
    #[must_use]
    pub fn capacity(&self, stream: StreamId) -> usize {
        match self.streams.get(stream.0) {
            Some(state) if self.takes_body(state) => {
                window(state.send_window.min(self.send_window))
            }
            _ => 0,
        }
    }

    /// Bytes the peer's connection window has left.
    #[must_use]
    pub fn connection_capacity(&self) -> usize {
        window(self.send_window)
    }

    /// Sends as much of `data` as the windows allow and returns how much; `end` is applied only
    /// if all was taken. What is left is to be offered again after `WindowOpen`.
    pub fn send_data(
        &mut self,
        stream: StreamId,
        data: &[u8],
        end: bool,
        out: &mut Vec<u8>,
    ) -> usize {
        let frame_size = self.send_frame_size();
        if !self.streams.get(stream.0).is_some_and(|state| self.takes_body(state)) {
            return 0;
        }
        let Some(state) = self.streams.get_mut(stream.0) else { return 0 };
        let allowed = window(state.send_window.min(self.send_window));
        let taken = data.len().min(allowed);
        let ends = end && taken == data.len();
        let sent = i64::try_from(taken).expect("limited by a window of 31 bits");
        state.send_window -= sent;
        self.send_window -= sent;
        let frames = write_data(out, stream.0, &data[..taken], ends, frame_size);
        self.budgets.window_updates.earn(frames * Limits::WINDOW_UPDATES_PER_DATA_FRAME);
        self.budgets.control_frames.earn(frames * Limits::CONTROL_FRAMES_PER_DATA_FRAME);
        // During a long body `out` may never be seen empty; free space for data shows that it was
        // sent.
        self.queued_replies = self.queued_replies.saturating_sub(frames);
        if ends {
            self.end_local(stream.0);
        }
        taken
    }

    /// Sends trailers and ends this side's half.
    ///
    /// # Errors
    /// The stream is gone, or this side has ended it, or its response's head is still to come.
    pub fn send_trailers(
        &mut self,
        stream: StreamId,
        fields: &Fields,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamGone> {
        let state = self.streams.get(stream.0).ok_or(StreamGone)?;
        if !self.takes_body(state) {
            return Err(StreamGone);
        }
        let frame_size = self.send_frame_size();
        let mut block = BlockWriter::begin(&mut self.encoder, out);
        block.fields(fields);
        block.finish(stream.0, true, frame_size);
        self.end_local(stream.0);
        Ok(())
    }

    /// Ends `stream` at once; nothing if it is gone. No event follows.
    pub fn reset(&mut self, stream: StreamId, code: ErrorCode, out: &mut Vec<u8>) {
        self.owe_reset(stream.0);
        if self.end_stream(stream.0, Ended::ByUs) {
            self.budgets.control_frames.earn(Limits::LATE_FRAMES_PER_RESET);
            frame::write_reset(out, stream.0, code);
        }
    }

    /// Announces the end. With NO_ERROR a server still takes the streams in transit: send
    /// [`goaway_final`](Self::goaway_final) a round trip later.
    pub fn goaway(&mut self, code: ErrorCode, out: &mut Vec<u8>) {
        if self.going != Going::No {
            return;
        }
        if self.role == Role::Server && code == ErrorCode::NO_ERROR {
            frame::write_goaway(out, LARGEST_STREAM, code, "");
            self.going = Going::Announced;
        } else {
            self.write_final_goaway(code, out);
        }
    }

    /// Names the last stream taken; later ones are dropped unseen.
    pub fn goaway_final(&mut self, out: &mut Vec<u8>) {
        if !matches!(self.going, Going::Final(_)) {
            self.write_final_goaway(ErrorCode::NO_ERROR, out);
        }
    }

    fn write_final_goaway(&mut self, code: ErrorCode, out: &mut Vec<u8>) {
        let last = self.last_taken();
        frame::write_goaway(out, last, code, "");
        self.going = Going::Final(last);
    }

    /// Sends PING; `PingAck` with the same bytes follows.
    pub fn ping(&mut self, payload: [u8; 8], out: &mut Vec<u8>) {
        frame::write_ping(out, 0, payload);
    }

    /// Whether this side's head is out and its half still open.
    fn takes_body(&self, stream: &Stream) -> bool {
        stream.is_local_open && (self.role == Role::Client || stream.has_response)
    }

    fn end_local(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.is_local_open = false;
            self.close_if_ended(id);
        }
    }

    fn send_frame_size(&self) -> usize {
        self.config.max_frame.min(self.peer.max_frame) as usize
    }
}

/// DATA frames of at most `frame_size`; how many. Nothing at all makes a frame only if it ends.
fn write_data(out: &mut Vec<u8>, stream: u32, data: &[u8], ends: bool, frame_size: usize) -> u32 {
    if data.is_empty() {
        if ends {
            frame::write_head(out, 0, kind::DATA, flag::END_STREAM, stream);
        }
        return u32::from(ends);
    }
    let count = data.len().div_ceil(frame_size);
    out.reserve(data.len() + count * HEAD_LEN);
    for (nth, chunk) in data.chunks(frame_size).enumerate() {
        let flags = if ends && nth + 1 == count { flag::END_STREAM } else { 0 };
        frame::write_head(out, frame_len(chunk.len()), kind::DATA, flags, stream);
        out.extend_from_slice(chunk);
    }
    u32::try_from(count).unwrap_or(u32::MAX / Limits::WINDOW_UPDATES_PER_DATA_FRAME)
}

/// A header block written in place behind the head of its first frame.
struct BlockWriter<'a> {
    encoder: &'a mut Encoder,
    out: &'a mut Vec<u8>,
    /// Offset in `out` of the first frame's head.
    head_at: usize,
}

impl<'a> BlockWriter<'a> {
    fn begin(encoder: &'a mut Encoder, out: &'a mut Vec<u8>) -> Self {
        let head_at = out.len();
        out.extend_from_slice(&[0; HEAD_LEN]);
        encoder.begin(out);
        Self { encoder, out, head_at }
    }

    fn request(&mut self, head: &RequestHead, content_length: Option<u64>) {
        self.line(b":method", head.method.as_bytes());
        let is_plain_connect = head.method == Method::Connect && head.protocol.is_none();
        if !is_plain_connect {
            self.line(b":scheme", if head.scheme.is_empty() { b"http" } else { &head.scheme });
            self.line(b":path", if head.path.is_empty() { b"/" } else { &head.path });
        }
        if !head.authority.is_empty() {
            self.line(b":authority", &head.authority);
        }
        if let Some(protocol) = &head.protocol {
            self.line(b":protocol", protocol);
        }
        self.fields(&head.fields);
        self.length(content_length);
    }

    fn response(&mut self, head: &ResponseHead, content_length: Option<u64>) {
        let mut digits = [0; MAX_DIGITS];
        self.line(b":status", decimal(u64::from(head.status), &mut digits));
        self.fields(&head.fields);
        self.length(content_length);
    }

    fn fields(&mut self, fields: &Fields) {
        for field in fields.iter() {
            if !stays_behind(field.name, field.value) {
                self.encoder.field(field.name, field.value, field.sensitive, self.out);
            }
        }
    }

    fn length(&mut self, content_length: Option<u64>) {
        if let Some(length) = content_length {
            let mut digits = [0; MAX_DIGITS];
            self.line(b"content-length", decimal(length, &mut digits));
        }
    }

    fn line(&mut self, name: &[u8], value: &[u8]) {
        self.encoder.field(name, value, false, self.out);
    }

    /// Writes the head left open; a block that needs more frames is moved apart for their heads.
    fn finish(self, stream: u32, end: bool, frame_size: usize) {
        let block_at = self.head_at + HEAD_LEN;
        let len = self.out.len() - block_at;
        let end_stream = if end { flag::END_STREAM } else { 0 };
        let first_len = len.min(frame_size);
        let end_headers = if first_len == len { flag::END_HEADERS } else { 0 };
        let head = FrameHead {
            len: frame_len(first_len),
            kind: kind::HEADERS,
            flags: end_stream | end_headers,
            stream,
        };
        self.out[self.head_at..block_at].copy_from_slice(&head.to_bytes());
        if first_len == len {
            return;
        }
        let rest = self.out.split_off(block_at + frame_size);
        let count = rest.len().div_ceil(frame_size);
        for (nth, fragment) in rest.chunks(frame_size).enumerate() {
            let flags = if nth + 1 == count { flag::END_HEADERS } else { 0 };
            frame::write_head(
                self.out,
                frame_len(fragment.len()),
                kind::CONTINUATION,
                flags,
                stream,
            );
            self.out.extend_from_slice(fragment);
        }
    }
}

/// Fields that HTTP/2 forbids, or that are written from elsewhere.
fn stays_behind(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade"
        | b"host" | b"content-length" => true,
        b"te" => !value.eq_ignore_ascii_case(b"trailers"),
        _ => false,
    }
}

/// Digits of the largest `u64`.
const MAX_DIGITS: usize = 20;

fn decimal(mut value: u64, digits: &mut [u8; MAX_DIGITS]) -> &[u8] {
    let mut at = MAX_DIGITS;
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10).to_le_bytes()[0];
        value /= 10;
        if value == 0 {
            return &digits[at..];
        }
    }
}

/// Frames are limited to 24 bits of length.
fn frame_len(len: usize) -> u32 {
    u32::try_from(len).expect("a frame is at most 16 MiB")
}

fn window(bytes: i64) -> usize {
    usize::try_from(bytes).unwrap_or(0)
}
