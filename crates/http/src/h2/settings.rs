//! SETTINGS: what this side announces, and what the peer has announced (RFC 9113 section 6.5).

use super::error::Fault;
use super::frame::LARGEST_WINDOW;
use super::{Config, ErrorCode};

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;
const ENABLE_CONNECT_PROTOCOL: u16 = 8;

/// The window of both sides before any SETTINGS.
pub(super) const DEFAULT_WINDOW: u32 = 65_535;
/// The frame size everybody accepts.
pub(super) const SMALLEST_MAX_FRAME: u32 = 16_384;
pub(super) const LARGEST_MAX_FRAME: u32 = 0x00ff_ffff;

/// Streams assumed to be allowed until the peer's first SETTINGS arrives, unless the configuration has
/// another number.
pub(super) const STREAMS_BEFORE_SETTINGS: u32 = 100;

/// The settings of `config` that differ from the protocol's defaults.
pub(super) fn announced(config: &Config, is_server: bool) -> Vec<(u16, u32)> {
    let mut settings = vec![
        (HEADER_TABLE_SIZE, config.header_table_bytes),
        (INITIAL_WINDOW_SIZE, config.initial_stream_window),
        (MAX_FRAME_SIZE, config.max_frame),
        (MAX_HEADER_LIST_SIZE, config.header_list_bytes),
    ];
    if is_server {
        settings.push((MAX_CONCURRENT_STREAMS, config.max_concurrent_streams));
        if config.enable_connect_protocol {
            settings.push((ENABLE_CONNECT_PROTOCOL, 1));
        }
    } else {
        settings.push((ENABLE_PUSH, 0));
    }
    settings
}

/// The peer's settings in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerSettings {
    pub(super) header_table_bytes: u32,
    /// The smallest table size the last frame went through (RFC 7541 section 4.2).
    pub(super) smallest_header_table_bytes: u32,
    pub(super) max_concurrent_streams: u32,
    pub(super) initial_window: u32,
    pub(super) max_frame: u32,
    pub(super) takes_connect_protocol: bool,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            header_table_bytes: 4096,
            smallest_header_table_bytes: 4096,
            max_concurrent_streams: STREAMS_BEFORE_SETTINGS,
            initial_window: DEFAULT_WINDOW,
            max_frame: SMALLEST_MAX_FRAME,
            takes_connect_protocol: false,
        }
    }
}

impl PeerSettings {
    /// The settings after the first SETTINGS frame: from then on the peer's number of streams
    /// applies, and no limit if it sets none.
    pub(super) fn first(payload: &[u8], peer_is_server: bool) -> Result<Self, Fault> {
        let unlimited = Self { max_concurrent_streams: u32::MAX, ..Self::default() };
        unlimited.updated(payload, peer_is_server)
    }

    /// The settings after `payload`, whose length is a multiple of six. Values are applied in
    /// order, the last one of a kind counts.
    pub(super) fn updated(mut self, payload: &[u8], peer_is_server: bool) -> Result<Self, Fault> {
        self.smallest_header_table_bytes = self.header_table_bytes;
        let (entries, _) = payload.as_chunks::<6>();
        for &[i0, i1, v0, v1, v2, v3] in entries {
            let value = u32::from_be_bytes([v0, v1, v2, v3]);
            self.apply(u16::from_be_bytes([i0, i1]), value, peer_is_server)?;
        }
        Ok(self)
    }

    fn apply(&mut self, id: u16, value: u32, peer_is_server: bool) -> Result<(), Fault> {
        match id {
            HEADER_TABLE_SIZE => {
                self.header_table_bytes = value;
                self.smallest_header_table_bytes = self.smallest_header_table_bytes.min(value);
            }
            ENABLE_PUSH if value > 1 || (peer_is_server && value == 1) => {
                return Err(Fault::protocol("SETTINGS_ENABLE_PUSH has a value it must not have"));
            }
            MAX_CONCURRENT_STREAMS => self.max_concurrent_streams = value,
            INITIAL_WINDOW_SIZE if value > LARGEST_WINDOW => {
                let reason = "SETTINGS_INITIAL_WINDOW_SIZE is larger than a window can be";
                return Err(Fault::connection(ErrorCode::FLOW_CONTROL_ERROR, reason));
            }
            INITIAL_WINDOW_SIZE => self.initial_window = value,
            MAX_FRAME_SIZE if !(SMALLEST_MAX_FRAME..=LARGEST_MAX_FRAME).contains(&value) => {
                return Err(Fault::protocol("SETTINGS_MAX_FRAME_SIZE is out of range"));
            }
            MAX_FRAME_SIZE => self.max_frame = value,
            ENABLE_CONNECT_PROTOCOL if value > 1 || (self.takes_connect_protocol && value == 0) => {
                let reason = "SETTINGS_ENABLE_CONNECT_PROTOCOL has a value it must not have";
                return Err(Fault::protocol(reason));
            }
            ENABLE_CONNECT_PROTOCOL => self.takes_connect_protocol = value == 1,
            _ => {}
        }
        Ok(())
    }
}
