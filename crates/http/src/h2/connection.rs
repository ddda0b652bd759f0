//! One connection: its state, its reading loop, and what can be asked of it.
//!
//! Frames are cut out here and handed to `receive` (everything but DATA, whole) and to `data`
//! (DATA, in the pieces in which it arrives); `send` holds the way out.

use std::time::Duration;

use super::budget::Budget;
use super::data::DataFrame;
use super::error::Fault;
use super::frame::{self, FrameHead, HEAD_LEN, PREFACE, flag, kind};
use super::settings::{self, DEFAULT_WINDOW, PeerSettings};
use super::stream::{Ended, Streams};
use super::{Config, ConnectionError, ErrorCode, Event, StreamId};
use crate::hpack;

/// One HTTP/2 connection without its socket.
///
/// `out` is always the bytes to be written to the peer, in order. A driver whose `out` is not
/// drained stops calling `receive`: then a peer that does not read cannot make it grow.
pub struct Connection {
    pub(super) role: Role,
    pub(super) config: Config,
    pub(super) streams: Streams,
    pub(super) decoder: hpack::Decoder,
    pub(super) encoder: hpack::Encoder,

    reading: Reading,
    /// The beginning of a preface, frame head or frame that is not complete.
    held: Vec<u8>,
    /// When the preface, block or frame that is being read began.
    unit_since: Duration,
    has_peer_settings: bool,
    pub(super) has_applied_settings: bool,
    /// The header block being assembled.
    pub(super) block: Option<Block>,
    pub(super) block_bytes: Vec<u8>,

    pub(super) peer: PeerSettings,
    pub(super) are_settings_acknowledged: bool,
    started: Option<Duration>,

    pub(super) send_window: i64,
    pub(super) is_short: bool,
    pub(super) recv_window: i64,
    pub(super) unreleased: u64,
    pub(super) unannounced: u32,

    /// Server: the last stream the client opened. Client: the last one this side opened.
    pub(super) last_stream: u32,
    pub(super) live_head_bytes: usize,
    pub(super) going: Going,
    pub(super) is_peer_going: bool,
    dead: Option<ConnectionError>,

    pub(super) budgets: Budgets,
    pub(super) queued_replies: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Server,
    Client,
}

/// What this side has said about its going away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Going {
    No,
    /// Announced; streams on their way are still taken.
    Announced,
    /// Streams above this one are dropped.
    Final(u32),
}

pub(super) struct Budgets {
    pub(super) resets: Budget,
    pub(super) control_frames: Budget,
    pub(super) window_updates: Budget,
    pub(super) empty_data: Budget,
}

/// A header block of which more frames are to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) ends_stream: bool,
    /// The HEADERS frame made the stream depend on itself.
    pub(super) is_malformed: bool,
    pub(super) continuations: u32,
}

/// What the next byte of input belongs to.
#[derive(Clone, Copy, Debug)]
enum Reading {
    Preface {
        matched: usize,
    },
    Head,
    Payload(FrameHead),
    /// An unknown frame's payload.
    Skip {
        left: u32,
    },
    PadLength(FrameHead),
    Data(DataFrame),
}

/// What one call to `receive` works with.
pub(super) struct Turn<'a> {
    pub(super) now: Duration,
    pub(super) events: &'a mut Vec<Event>,
    pub(super) out: &'a mut Vec<u8>,
}

impl Connection {
    /// The server's side; queues SETTINGS (and the connection's WINDOW_UPDATE).
    #[must_use]
    pub fn server(config: Config, out: &mut Vec<u8>) -> Self {
        Self::new(Role::Server, config, out)
    }

    /// The client's side; queues the preface, SETTINGS and the connection's WINDOW_UPDATE.
    #[must_use]
    pub fn client(config: Config, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(PREFACE);
        Self::new(Role::Client, config, out)
    }

    fn new(role: Role, config: Config, out: &mut Vec<u8>) -> Self {
        let config = config.within_protocol();
        let is_server = role == Role::Server;
        frame::write_settings(out, &settings::announced(&config, is_server));
        if config.connection_window > DEFAULT_WINDOW {
            frame::write_window_update(out, 0, config.connection_window - DEFAULT_WINDOW);
        }
        let limits = &config.limits;
        let budgets = Budgets {
            resets: Budget::new(limits.resets),
            control_frames: Budget::new(limits.control_frames),
            window_updates: Budget::new(limits.window_updates),
            empty_data: Budget::new(limits.empty_data),
        };
        Self {
            role,
            streams: Streams::default(),
            decoder: hpack::Decoder::new(),
            encoder: hpack::Encoder::new(config.header_table_bytes as usize),
            reading: if is_server { Reading::Preface { matched: 0 } } else { Reading::Head },
            held: Vec::new(),
            unit_since: Duration::ZERO,
            has_peer_settings: false,
            has_applied_settings: false,
            block: None,
            block_bytes: Vec::new(),
            peer: PeerSettings::default(),
            are_settings_acknowledged: false,
            started: None,
            send_window: i64::from(DEFAULT_WINDOW),
            is_short: false,
            recv_window: i64::from(config.connection_window),
            unreleased: 0,
            unannounced: 0,
            last_stream: 0,
            live_head_bytes: 0,
            going: Going::No,
            is_peer_going: false,
            dead: None,
            budgets,
            queued_replies: 0,
            config,
        }
    }

    /// Takes all of `input` (an unfinished frame is kept inside, bounded) and appends events.
    ///
    /// `now` is the time since an epoch of the caller's choice and never goes back.
    ///
    /// # Errors
    /// The connection is over; GOAWAY is already in `out`. Events before the error stand.
    pub fn receive(
        &mut self,
        input: &[u8],
        now: Duration,
        events: &mut Vec<Event>,
        out: &mut Vec<u8>,
    ) -> Result<(), ConnectionError> {
        if let Some(error) = self.dead {
            return Err(error);
        }
        self.start(now);
        if out.is_empty() {
            self.queued_replies = 0;
        }
        let mut turn = Turn { now, events, out };
        let mut at = 0;
        loop {
            match self.step(input, &mut at, &mut turn) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(Fault::Connection(error)) => return Err(self.die(error, turn.out)),
                Err(Fault::Stream { stream, code }) => self
                    .reset_for_peers_mistake(stream, code, &mut turn)
                    .map_err(|error| self.die(error, turn.out))?,
            }
        }
    }

    /// Checks what only time can tell: `unfinished_timeout` and `settings_timeout`. Call it
    /// about once a second.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn tick(&mut self, now: Duration, out: &mut Vec<u8>) -> Result<(), ConnectionError> {
        if let Some(error) = self.dead {
            return Err(error);
        }
        let started = self.start(now);
        let limits = &self.config.limits;
        let error = if self.is_unfinished()
            && now.saturating_sub(self.unit_since) > limits.unfinished_timeout
        {
            let reason = "a frame or header block took longer than unfinished_timeout";
            ConnectionError { code: ErrorCode::ENHANCE_YOUR_CALM, reason }
        } else if !self.are_settings_acknowledged
            && now.saturating_sub(started) > limits.settings_timeout
        {
            let reason = "SETTINGS were not acknowledged within settings_timeout";
            ConnectionError { code: ErrorCode::SETTINGS_TIMEOUT, reason }
        } else {
            return Ok(());
        };
        Err(self.die(error, out))
    }

    /// Streams that are neither closed nor reset.
    #[must_use]
    pub fn active_streams(&self) -> usize {
        self.streams.len()
    }

    /// Whether `send_request` would work now.
    #[must_use]
    pub fn can_open(&self) -> bool {
        self.role == Role::Client
            && !self.is_going_away()
            && self.streams.len() < self.peer.max_concurrent_streams as usize
    }

    /// Streams the peer lets this side have at once.
    #[must_use]
    pub fn peer_max_streams(&self) -> u32 {
        self.peer.max_concurrent_streams
    }

    /// Whether the peer takes extended CONNECT (RFC 8441).
    #[must_use]
    pub fn peer_takes_connect_protocol(&self) -> bool {
        self.peer.takes_connect_protocol
    }

    /// No new stream will come or go: the peer or this side sent GOAWAY, or ids are used up.
    #[must_use]
    pub fn is_going_away(&self) -> bool {
        self.is_peer_going
            || self.going != Going::No
            || self.dead.is_some()
            || self.last_stream >= frame::LARGEST_STREAM - 1
    }

    /// Takes one step of reading; false when `input` has no byte for the next one.
    fn step(&mut self, input: &[u8], at: &mut usize, turn: &mut Turn<'_>) -> Result<bool, Fault> {
        match self.reading {
            Reading::Preface { matched } => self.read_preface(matched, input, at),
            Reading::Head => self.read_head(input, at, turn),
            Reading::Payload(head) => self.read_payload(head, input, at, turn),
            Reading::Skip { left } => {
                let taken = left.min(available(input, *at));
                *at += taken as usize;
                self.reading = match left - taken {
                    0 => Reading::Head,
                    left => Reading::Skip { left },
                };
                Ok(left == taken)
            }
            Reading::PadLength(head) => {
                let Some(&padding) = input.get(*at) else { return Ok(false) };
                *at += 1;
                self.begin_data(head, Some(padding), turn)
            }
            Reading::Data(frame) => match self.read_data(frame, input, at, turn) {
                Some(unfinished) => {
                    self.reading = Reading::Data(unfinished);
                    Ok(false)
                }
                None => {
                    self.reading = Reading::Head;
                    Ok(true)
                }
            },
        }
    }

    fn read_preface(
        &mut self,
        matched: usize,
        input: &[u8],
        at: &mut usize,
    ) -> Result<bool, Fault> {
        let rest = &PREFACE[matched..];
        let taken = rest.len().min(input.len() - *at);
        if input[*at..*at + taken] != rest[..taken] {
            return Err(Fault::protocol("the connection does not begin with the HTTP/2 preface"));
        }
        *at += taken;
        let is_whole = taken == rest.len();
        self.reading =
            if is_whole { Reading::Head } else { Reading::Preface { matched: matched + taken } };
        Ok(is_whole)
    }

    fn read_head(
        &mut self,
        input: &[u8],
        at: &mut usize,
        turn: &mut Turn<'_>,
    ) -> Result<bool, Fault> {
        if self.held.is_empty() && self.block.is_none() {
            self.unit_since = turn.now;
        }
        let bytes = match input[*at..].first_chunk::<HEAD_LEN>() {
            Some(bytes) if self.held.is_empty() => {
                *at += HEAD_LEN;
                *bytes
            }
            _ => {
                self.hold(HEAD_LEN, input, at);
                let Some(&bytes) = self.held.first_chunk::<HEAD_LEN>() else { return Ok(false) };
                self.held.clear();
                bytes
            }
        };
        let head = FrameHead::parse(bytes);
        self.check_head(head)?;
        self.reading = match head.kind {
            kind::DATA if head.has(flag::PADDED) => {
                if head.len == 0 {
                    return Err(Fault::frame_size("a padded DATA frame has no pad length"));
                }
                Reading::PadLength(head)
            }
            kind::DATA => return self.begin_data(head, None, turn),
            kind::HEADERS..=kind::CONTINUATION => Reading::Payload(head),
            _ => {
                self.charge_control_frame(turn.now)?;
                Reading::Skip { left: head.len }
            }
        };
        Ok(true)
    }

    /// What must hold of any frame, whatever its payload.
    fn check_head(&mut self, head: FrameHead) -> Result<(), Fault> {
        if !self.has_peer_settings {
            if head.kind != kind::SETTINGS || head.has(flag::ACK) {
                return Err(Fault::protocol("the first frame is not SETTINGS"));
            }
            self.has_peer_settings = true;
        }
        if let Some(block) = self.block
            && (head.kind != kind::CONTINUATION || head.stream != block.stream)
        {
            return Err(Fault::protocol("a header block is interrupted by another frame"));
        }
        if head.len > self.config.max_frame {
            return Err(Fault::frame_size("a frame is larger than SETTINGS_MAX_FRAME_SIZE"));
        }
        Ok(())
    }

    fn read_payload(
        &mut self,
        head: FrameHead,
        input: &[u8],
        at: &mut usize,
        turn: &mut Turn<'_>,
    ) -> Result<bool, Fault> {
        let len = head.len as usize;
        if self.held.is_empty()
            && let Some(payload) = input[*at..].get(..len)
        {
            *at += len;
            self.reading = Reading::Head;
            self.receive_frame(head, payload, turn)?;
            return Ok(true);
        }
        self.hold(len, input, at);
        if self.held.len() < len {
            return Ok(false);
        }
        self.reading = Reading::Head;
        let mut payload = std::mem::take(&mut self.held);
        let outcome = self.receive_frame(head, &payload, turn);
        payload.clear();
        self.held = payload;
        outcome.map(|()| true)
    }

    /// DATA begins: if the frame may not be delivered, its bytes are read and dropped.
    fn begin_data(
        &mut self,
        head: FrameHead,
        padding: Option<u8>,
        turn: &mut Turn<'_>,
    ) -> Result<bool, Fault> {
        let (frame, outcome) = self.admit_data(head, padding, turn)?;
        self.reading = Reading::Data(frame);
        outcome.map(|()| true)
    }

    /// Moves input to `held` until that has `wanted` bytes.
    fn hold(&mut self, wanted: usize, input: &[u8], at: &mut usize) {
        let taken = (wanted - self.held.len()).min(input.len() - *at);
        self.held.extend_from_slice(&input[*at..*at + taken]);
        *at += taken;
    }

    fn is_unfinished(&self) -> bool {
        match self.reading {
            Reading::Head => !self.held.is_empty() || self.block.is_some(),
            Reading::Preface { .. } | Reading::Payload(_) | Reading::PadLength(_) => true,
            Reading::Skip { .. } => true,
            Reading::Data(_) => false,
        }
    }

    fn start(&mut self, now: Duration) -> Duration {
        *self.started.get_or_insert_with(|| {
            self.unit_since = now;
            now
        })
    }

    fn die(&mut self, error: ConnectionError, out: &mut Vec<u8>) -> ConnectionError {
        frame::write_goaway(out, self.last_taken(), error.code, error.reason);
        self.dead = Some(error);
        error
    }

    /// The last stream of the peer that was or might have been acted on.
    pub(super) fn last_taken(&self) -> u32 {
        match (self.role, self.going) {
            (Role::Client, _) => 0,
            (Role::Server, Going::Final(last)) => last,
            (Role::Server, Going::No | Going::Announced) => self.last_stream,
        }
    }

    /// Whether the peer may not have used `stream` yet: its frames would be out of order.
    pub(super) fn is_idle(&self, stream: u32) -> bool {
        stream.is_multiple_of(2) || stream > self.last_stream
    }

    /// Whether `stream` came after the last one that the final GOAWAY lets in.
    pub(super) fn is_dropped(&self, stream: u32) -> bool {
        matches!(self.going, Going::Final(last) if self.role == Role::Server
            && stream > last && !stream.is_multiple_of(2))
    }

    /// The window of a stream that begins now. Until the peer has acknowledged our SETTINGS it
    /// may still count on the default one.
    pub(super) fn new_recv_window(&self) -> u32 {
        let announced = self.config.initial_stream_window;
        if self.are_settings_acknowledged { announced } else { announced.max(DEFAULT_WINDOW) }
    }

    pub(super) fn charge_control_frame(&mut self, now: Duration) -> Result<(), Fault> {
        match self.budgets.control_frames.spend(now) {
            true => Ok(()),
            false => Err(Fault::calm("too many frames that do nothing (control_frames)")),
        }
    }

    pub(super) fn charge_reply(&mut self) -> Result<(), ConnectionError> {
        self.queued_replies += 1;
        if self.queued_replies > self.config.limits.queued_replies {
            let reason = "too many replies wait to be read by the peer (queued_replies)";
            return Err(ConnectionError { code: ErrorCode::ENHANCE_YOUR_CALM, reason });
        }
        Ok(())
    }

    /// Ends a stream whose peer broke a rule on it.
    fn reset_for_peers_mistake(
        &mut self,
        id: u32,
        code: ErrorCode,
        turn: &mut Turn<'_>,
    ) -> Result<(), ConnectionError> {
        frame::write_reset(turn.out, id, code);
        if self.end_stream(id, Ended::ByUs) {
            turn.events.push(Event::Reset { stream: StreamId(id), code });
        } else {
            self.streams.remember(id, Ended::ByUs);
        }
        self.charge_reply()?;
        if self.role == Role::Server && !self.budgets.resets.spend(turn.now) {
            let reason = "too many streams had to be reset for the peer's mistakes (resets)";
            return Err(ConnectionError { code: ErrorCode::ENHANCE_YOUR_CALM, reason });
        }
        Ok(())
    }
}

fn available(input: &[u8], at: usize) -> u32 {
    u32::try_from(input.len() - at).unwrap_or(u32::MAX)
}
