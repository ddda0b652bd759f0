//! One connection: its state, its beginning and its end, and its methods.
//!
//! `reading` cuts frames out of the input and passes them to `heads` and `control` (whole) and to
//! `data` (in the pieces in which it arrives); `send` writes output.

use std::time::Duration;

use super::budget::Budget;
use super::error::Fault;
use super::frame::{self, PREFACE};
use super::reading::Reading;
use super::settings::{self, DEFAULT_WINDOW, PeerSettings};
use super::stream::{Ended, Streams};
use super::{Config, ConnectionError, ErrorCode, Event, StreamId};
use crate::{Fields, RequestHead, hpack};

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

    pub(super) reading: Reading,
    /// The beginning of a preface, frame head or frame that is not complete.
    pub(super) held: Vec<u8>,
    /// When the preface, block or frame that is being read began.
    pub(super) unit_since: Duration,
    pub(super) has_peer_settings: bool,
    pub(super) has_applied_settings: bool,
    /// The header block being assembled.
    pub(super) block: Option<Block>,
    pub(super) block_bytes: Vec<u8>,

    pub(super) peer: PeerSettings,
    pub(super) are_settings_acknowledged: bool,
    started: Option<Duration>,

    pub(super) send_window: i64,
    pub(super) recv_window: i64,
    pub(super) unreleased: u64,
    pub(super) unannounced: u32,

    /// Server: the last stream the client opened. Client: the last one this side opened.
    pub(super) last_stream: u32,
    pub(super) live_head_bytes: usize,
    /// A request was refused for `live_head_bytes`, and no head has gone since.
    pub(super) is_full_of_heads: bool,
    pub(super) going: Going,
    pub(super) is_peer_going: bool,
    dead: Option<ConnectionError>,

    pub(super) budgets: Budgets,
    pub(super) queued_replies: u32,
    /// Client: streams called off before they were answered, less those that ended in order.
    pub(super) resets_owed: u32,
    /// Streams reset for the peer's mistakes since the last [`take_mistakes`](Self::take_mistakes).
    mistakes: u64,

    /// Emptied fields whose memory the next heads use.
    pub(super) spare: Vec<Fields>,
    /// Empty heads of requests.
    #[expect(clippy::vec_box, reason = "a head is passed on in its box, and not moved")]
    pub(super) spare_heads: Vec<Box<RequestHead>>,
}

/// Empty fields that a connection retains at most: one read may bring a head and trailers for each
/// of many streams.
const SPARE_FIELDS: usize = 256;
/// What remains of them with a server whose client has no stream open.
const SPARE_FIELDS_AT_REST: usize = 4;
/// Fields with more capacity than this are not retained.
const SPARE_FIELD_BYTES: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Server,
    Client,
}

/// How far this side has announced its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Going {
    No,
    /// Announced; streams in transit are still taken.
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

    pub(super) fn new(role: Role, config: Config, out: &mut Vec<u8>) -> Self {
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
        let peer = PeerSettings {
            max_concurrent_streams: config.streams_before_settings,
            ..PeerSettings::default()
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
            peer,
            are_settings_acknowledged: false,
            started: None,
            send_window: i64::from(DEFAULT_WINDOW),
            recv_window: i64::from(config.connection_window),
            unreleased: 0,
            unannounced: 0,
            last_stream: 0,
            live_head_bytes: 0,
            is_full_of_heads: false,
            going: Going::No,
            is_peer_going: false,
            dead: None,
            budgets,
            queued_replies: 0,
            resets_owed: 0,
            mistakes: 0,
            spare: Vec::new(),
            spare_heads: Vec::new(),
            config,
        }
    }

    /// Takes all of `input` (an unfinished frame is held inside, bounded) and appends events.
    ///
    /// `now` is the time since an epoch of the caller's choice and never goes back.
    ///
    /// # Errors
    /// The connection is over; GOAWAY is already in `out`. Events before the error are valid.
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

    /// When [`tick`](Self::tick) next has to be called, on the clock of [`receive`](Self::receive);
    /// `None` while the peer owes nothing.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let limits = &self.config.limits;
        let unfinished = self.is_unfinished().then(|| self.unit_since + limits.unfinished_timeout);
        let settings = self.started.filter(|_| !self.are_settings_acknowledged);
        let settings = settings.map(|started| started + limits.settings_timeout);
        [unfinished, settings].into_iter().flatten().min()
    }

    /// Checks time limits: `unfinished_timeout` and `settings_timeout`. Call it when
    /// [`deadline`](Self::deadline) has passed.
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

    /// Gives the fields of a head or of trailers back when they have been read: the next ones
    /// need no new memory. Not needed for correctness.
    pub fn recycle(&mut self, mut fields: Fields) {
        let most = self.spares();
        self.spare.truncate(most);
        if self.spare.len() < most && fields.room() <= SPARE_FIELD_BYTES {
            fields.clear();
            self.spare.push(fields);
        }
    }

    /// Gives the head of a request back, as [`Self::recycle`].
    pub fn recycle_head(&mut self, mut head: Box<RequestHead>) {
        let most = self.spares();
        self.spare_heads.truncate(most);
        if self.spare_heads.len() < most && head.room() <= SPARE_FIELD_BYTES {
            head.clear();
            self.spare_heads.push(head);
        }
    }

    /// The most spare fields and heads of this connection: fewer for a server without an open stream, since
    /// most callers' connections have none.
    fn spares(&self) -> usize {
        let is_at_rest = self.role == Role::Server && self.streams.len() == 0;
        if is_at_rest { SPARE_FIELDS_AT_REST } else { SPARE_FIELDS }
    }

    /// Whether the peer has stated its settings, of which one is how many streams it takes.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.has_applied_settings
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

    /// Streams that this side may still call off before a server with the same limits takes it
    /// for an attacker ([`Limits::resets`](super::Limits::resets)). A driver that carries streams
    /// of several callers has no more of them open, so that none pays for another. Client only.
    #[must_use]
    pub fn resets_left(&self) -> usize {
        self.config.limits.resets.burst.saturating_sub(self.resets_owed) as usize
    }

    /// Streams that this side has called off and that no others, which ended in order, have made
    /// up for. Client only.
    #[must_use]
    pub fn resets_owed(&self) -> usize {
        self.resets_owed as usize
    }

    /// How many streams were reset since the last call because the peer broke a rule on them or
    /// exceeded a limit. Streams that never opened have no events.
    pub fn take_mistakes(&mut self) -> u64 {
        std::mem::take(&mut self.mistakes)
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

    pub(super) fn start(&mut self, now: Duration) -> Duration {
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
        self.mistakes += 1;
        self.owe_reset(id);
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
