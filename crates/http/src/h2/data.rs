//! Received DATA, and the receiving side of flow control.
//!
//! A frame is admitted when its head (and pad length) is there; its bytes are then reported as they
//! come. Bytes of a closed stream are read, dropped and credited here.

use super::connection::{Connection, Turn};
use super::error::Fault;
use super::frame::{self, FrameHead, flag};
use super::stream::Ended;
use super::{ErrorCode, Event, StreamId};

/// A DATA frame of which bytes are still to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataFrame {
    stream: u32,
    data_left: u32,
    padding_left: u32,
    /// Flow-controlled bytes to report in addition to those of the data: the padding.
    extra_credit: u32,
    ends_stream: bool,
    is_dropped: bool,
}

impl Connection {
    /// Decides what becomes of a DATA frame and charges it to the windows. The frame is to be
    /// read in any case, also if the outcome is a fault of its stream.
    pub(super) fn admit_data(
        &mut self,
        head: FrameHead,
        padding: Option<u8>,
        turn: &mut Turn<'_>,
    ) -> Result<(DataFrame, Result<(), Fault>), Fault> {
        let is_known =
            head.stream != 0 && (self.is_dropped(head.stream) || !self.is_idle(head.stream));
        if !is_known {
            return Err(Fault::protocol("DATA on a stream that is not open"));
        }
        let overhead = padding.map_or(0, |padding| u32::from(padding) + 1);
        let Some(data_len) = head.len.checked_sub(overhead) else {
            return Err(Fault::protocol("the padding is longer than its DATA frame"));
        };
        self.recv_window -= i64::from(head.len);
        if self.recv_window < 0 {
            return Err(Fault::flow_control("DATA beyond the connection's window"));
        }
        let mut frame = DataFrame {
            stream: head.stream,
            data_left: data_len,
            padding_left: padding.map_or(0, u32::from),
            extra_credit: overhead,
            ends_stream: head.has(flag::END_STREAM),
            is_dropped: false,
        };
        if !frame.ends_stream
            && data_len <= overhead.saturating_sub(1)
            && !self.budgets.empty_data.spend(turn.now)
        {
            return Err(Fault::calm("too many DATA frames without data (empty_data)"));
        }
        let outcome = self.admit_to_stream(&frame, head.len, turn);
        if !matches!(outcome, Ok(true)) {
            frame.is_dropped = true;
            self.credit_connection(overhead, turn.out);
        }
        Ok((frame, outcome.map(|_| ())))
    }

    /// Whether the frame is to be delivered.
    fn admit_to_stream(
        &mut self,
        frame: &DataFrame,
        len: u32,
        turn: &mut Turn<'_>,
    ) -> Result<bool, Fault> {
        let id = frame.stream;
        let Some(stream) = self.streams.get_mut(id) else {
            return self.admit_to_gone_stream(id, turn);
        };
        if !stream.is_remote_open {
            return Err(Fault::stream(id, ErrorCode::STREAM_CLOSED));
        }
        stream.recv_window -= i64::from(len);
        if stream.recv_window < 0 {
            return Err(Fault::stream(id, ErrorCode::FLOW_CONTROL_ERROR));
        }
        if self.role == super::connection::Role::Client && !stream.has_response {
            return Err(Fault::stream(id, ErrorCode::PROTOCOL_ERROR));
        }
        if let Some(left) = &mut stream.body_left {
            let fits = left.checked_sub(u64::from(frame.data_left));
            *left = fits.ok_or(Fault::stream(id, ErrorCode::PROTOCOL_ERROR))?;
            if frame.ends_stream && *left != 0 {
                return Err(Fault::stream(id, ErrorCode::PROTOCOL_ERROR));
            }
        }
        if stream.is_deaf {
            // The rest of a refused request: its sender's window is kept open so that it ends.
            stream.unreleased = stream.unreleased.saturating_add(len);
            self.release(StreamId(id), len as usize, turn.out);
            if frame.ends_stream {
                self.end_remote(id);
            }
            return Ok(false);
        }
        Ok(true)
    }

    fn admit_to_gone_stream(&mut self, id: u32, turn: &mut Turn<'_>) -> Result<bool, Fault> {
        if self.is_dropped(id) {
            return Ok(false);
        }
        match self.streams.ended(id) {
            Ended::ByUs => Ok(false),
            Ended::InOrder => {
                let reason = "DATA on a stream that its sender has ended";
                Err(Fault::connection(ErrorCode::STREAM_CLOSED, reason))
            }
            Ended::ByPeer | Ended::Unknown => {
                self.charge_control_frame(turn.now)?;
                Err(Fault::stream(id, ErrorCode::STREAM_CLOSED))
            }
        }
    }

    /// Reports what `input` has of the frame; what is left of the frame, if anything is.
    pub(super) fn read_data(
        &mut self,
        mut frame: DataFrame,
        input: &[u8],
        at: &mut usize,
        turn: &mut Turn<'_>,
    ) -> Option<DataFrame> {
        let available = u32::try_from(input.len() - *at).unwrap_or(u32::MAX);
        let data = frame.data_left.min(available);
        let padding = frame.padding_left.min(available - data);
        let start = *at;
        *at += (data + padding) as usize;
        frame.data_left -= data;
        frame.padding_left -= padding;
        let is_whole = frame.data_left == 0 && frame.padding_left == 0;

        let credit = data + frame.extra_credit;
        let ends = is_whole && frame.ends_stream;
        if frame.is_dropped || !self.is_listening(frame.stream) {
            // Dropped frames were credited for their padding when they were admitted.
            self.credit_connection(if frame.is_dropped { data } else { credit }, turn.out);
            frame.is_dropped = true;
        } else if credit > 0 || ends {
            if let Some(stream) = self.streams.get_mut(frame.stream) {
                stream.unreleased = stream.unreleased.saturating_add(credit);
            }
            self.unreleased += u64::from(credit);
            turn.events.push(Event::Data {
                stream: StreamId(frame.stream),
                range: start..start + data as usize,
                end: ends,
                credit: credit as usize,
            });
            if ends {
                self.end_remote(frame.stream);
            }
        }
        frame.extra_credit = 0;
        if is_whole { None } else { Some(frame) }
    }

    fn is_listening(&self, id: u32) -> bool {
        self.streams.get(id).is_some_and(|stream| stream.is_remote_open)
    }

    /// The consumer has taken `bytes` of `stream`: a WINDOW_UPDATE is sent when half the window
    /// has gathered.
    pub fn release(&mut self, stream: StreamId, bytes: usize, out: &mut Vec<u8>) {
        let threshold = half(self.config.initial_stream_window);
        let Some(state) = self.streams.get_mut(stream.0) else { return };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(state.unreleased);
        state.unreleased -= bytes;
        state.unannounced += bytes;
        if state.unannounced >= threshold && state.is_remote_open {
            frame::write_window_update(out, stream.0, state.unannounced);
            state.recv_window += i64::from(state.unannounced);
            state.unannounced = 0;
        }
    }

    /// Releases `bytes` of the connection's window.
    pub fn release_connection(&mut self, bytes: usize, out: &mut Vec<u8>) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).min(self.unreleased);
        self.unreleased -= bytes;
        self.credit_connection(u32::try_from(bytes).unwrap_or(u32::MAX), out);
    }

    fn credit_connection(&mut self, bytes: u32, out: &mut Vec<u8>) {
        self.unannounced += bytes;
        if self.unannounced >= half(self.config.connection_window) {
            frame::write_window_update(out, 0, self.unannounced);
            self.recv_window += i64::from(self.unannounced);
            self.unannounced = 0;
        }
    }
}

fn half(window: u32) -> u32 {
    (window / 2).max(1)
}
