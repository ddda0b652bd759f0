//! What one HTTP/2 connection offers its peer, and what it refuses to spend on it.

use std::time::Duration;

use super::frame::LARGEST_WINDOW;
use super::settings::{
    DEFAULT_WINDOW, LARGEST_MAX_FRAME, SMALLEST_MAX_FRAME, STREAMS_BEFORE_SETTINGS,
};

/// Windows, sizes and limits of a connection. [`Config::default`] suits a sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes a peer may send on one stream before the consumer releases some. Default 256 KiB.
    pub initial_stream_window: u32,
    /// Bytes a peer may send on all streams together before they are released; never less than
    /// the protocol's 65,535. Default 1 MiB.
    pub connection_window: u32,
    /// Largest frame payload accepted and sent, 16,384 to 16,777,215. Default 16,384.
    pub max_frame: u32,
    /// Streams the peer may have open at once. Default 1,000.
    pub max_concurrent_streams: u32,
    /// Streams that this side opens before the peer has stated how many it takes. Default 100.
    pub streams_before_settings: u32,
    /// Largest header list, as RFC 9113 section 6.5.2 counts it (name + value + 32 for each
    /// line); also the most bytes of one encoded header block. Default 64 KiB.
    pub header_list_bytes: u32,
    /// Most field lines of a head or of trailers, pseudo-header fields and each `cookie` crumb
    /// included. Default 128.
    pub header_fields: usize,
    /// Size of the HPACK table the peer's encoder may use, and the most this side's encoder
    /// uses of what the peer offers. Default 4,096.
    pub header_table_bytes: u32,
    /// Offers extended CONNECT (RFC 8441): server only. Default false.
    pub enable_connect_protocol: bool,
    /// Limits against a hostile peer.
    pub limits: Limits,
}

/// What a peer may make this side do without getting anything useful done.
///
/// Exceeding one of these ends the connection with ENHANCE_YOUR_CALM unless stated otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Streams that the client reset before they were answered, or that its own errors made the
    /// server reset (rapid reset, MadeYouReset). Every stream that ends in order earns one back. Default 1,000, 100 a second.
    pub resets: Rate,
    /// PING, SETTINGS, PRIORITY, unknown frames, frames on streams that are gone, and interim
    /// heads beyond [`FREE_INTERIM_HEADS`](Self::FREE_INTERIM_HEADS) of a stream; every DATA
    /// frame sent earns [`CONTROL_FRAMES_PER_DATA_FRAME`](Self::CONTROL_FRAMES_PER_DATA_FRAME).
    /// Default 2,000, 500 a second.
    pub control_frames: Rate,
    /// WINDOW_UPDATE frames; every DATA frame sent earns
    /// [`WINDOW_UPDATES_PER_DATA_FRAME`](Self::WINDOW_UPDATES_PER_DATA_FRAME). Default 10,000,
    /// 1,000 a second.
    pub window_updates: Rate,
    /// DATA frames that carry nothing, or no more data than padding; those that end a stream are
    /// free. Default 1,000, 100 a second.
    pub empty_data: Rate,
    /// CONTINUATION frames of one header block. Default 32.
    pub continuation_frames: u32,
    /// Header list bytes of all live streams the peer opened. A request over it is refused
    /// (REFUSED_STREAM), the connection stays; until a stream has gone, so is every other one with
    /// more than 4 KiB. Default 4 MiB.
    pub live_head_bytes: usize,
    /// Replies to the peer's frames (SETTINGS and PING acknowledgements, resets) since `out` was
    /// last seen empty; every DATA frame sent forgives one. Default 1,000.
    pub queued_replies: u32,
    /// Time from the first byte of the preface, of a header block or of a frame other than DATA
    /// to its last byte; checked by [`Connection::tick`](super::Connection::tick). Default 15 s.
    pub unfinished_timeout: Duration,
    /// Time the peer has to acknowledge SETTINGS; checked by
    /// [`Connection::tick`](super::Connection::tick). Default 30 s.
    pub settings_timeout: Duration,
}

/// An allowance: `burst` at once, refilled by `per_second`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub burst: u32,
    pub per_second: u32,
}

impl Limits {
    /// WINDOW_UPDATE frames that each DATA frame sent allows the peer.
    pub const WINDOW_UPDATES_PER_DATA_FRAME: u32 = 4;

    /// Control frames that each DATA frame sent allows the peer: receivers that estimate their
    /// bandwidth-delay product (grpc-go among them) answer a frame with a PING.
    pub const CONTROL_FRAMES_PER_DATA_FRAME: u32 = 1;

    /// Interim heads of one stream that cost the peer nothing: this side has opened the stream.
    pub const FREE_INTERIM_HEADS: u8 = 4;

    /// Control frames that each [`reset`](super::Connection::reset) allows the peer: heads,
    /// trailers and a reset of its own may be in transit.
    pub const LATE_FRAMES_PER_RESET: u32 = 4;
}

impl Config {
    /// With values the protocol cannot express moved to the nearest it can.
    pub(super) fn within_protocol(mut self) -> Self {
        self.initial_stream_window = self.initial_stream_window.min(LARGEST_WINDOW);
        self.connection_window = self.connection_window.clamp(DEFAULT_WINDOW, LARGEST_WINDOW);
        self.max_frame = self.max_frame.clamp(SMALLEST_MAX_FRAME, LARGEST_MAX_FRAME);
        self
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            initial_stream_window: 256 * 1024,
            connection_window: 1024 * 1024,
            max_frame: 16_384,
            max_concurrent_streams: 1000,
            streams_before_settings: STREAMS_BEFORE_SETTINGS,
            header_list_bytes: 64 * 1024,
            header_fields: 128,
            header_table_bytes: 4096,
            enable_connect_protocol: false,
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            resets: Rate { burst: 1000, per_second: 100 },
            control_frames: Rate { burst: 2000, per_second: 500 },
            window_updates: Rate { burst: 10_000, per_second: 1000 },
            empty_data: Rate { burst: 1000, per_second: 100 },
            continuation_frames: 32,
            live_head_bytes: 4 * 1024 * 1024,
            queued_replies: 1000,
            unfinished_timeout: Duration::from_secs(15),
            settings_timeout: Duration::from_secs(30),
        }
    }
}
