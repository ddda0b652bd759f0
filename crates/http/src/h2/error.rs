//! Error codes of the protocol, and the errors of calls on a connection.

use std::fmt;

/// An error code of RFC 9113 section 7.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    pub const NO_ERROR: Self = Self(0x0);
    pub const PROTOCOL_ERROR: Self = Self(0x1);
    pub const INTERNAL_ERROR: Self = Self(0x2);
    pub const FLOW_CONTROL_ERROR: Self = Self(0x3);
    pub const SETTINGS_TIMEOUT: Self = Self(0x4);
    pub const STREAM_CLOSED: Self = Self(0x5);
    pub const FRAME_SIZE_ERROR: Self = Self(0x6);
    pub const REFUSED_STREAM: Self = Self(0x7);
    pub const CANCEL: Self = Self(0x8);
    pub const COMPRESSION_ERROR: Self = Self(0x9);
    pub const CONNECT_ERROR: Self = Self(0xa);
    pub const ENHANCE_YOUR_CALM: Self = Self(0xb);
    pub const INADEQUATE_SECURITY: Self = Self(0xc);
    pub const HTTP_1_1_REQUIRED: Self = Self(0xd);

    /// The name RFC 9113 gives the code, if it does.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        const NAMES: [&str; 14] = [
            "NO_ERROR",
            "PROTOCOL_ERROR",
            "INTERNAL_ERROR",
            "FLOW_CONTROL_ERROR",
            "SETTINGS_TIMEOUT",
            "STREAM_CLOSED",
            "FRAME_SIZE_ERROR",
            "REFUSED_STREAM",
            "CANCEL",
            "COMPRESSION_ERROR",
            "CONNECT_ERROR",
            "ENHANCE_YOUR_CALM",
            "INADEQUATE_SECURITY",
            "HTTP_1_1_REQUIRED",
        ];
        NAMES.get(usize::try_from(self.0).ok()?).copied()
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "error code {:#x}", self.0),
        }
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The peer broke the protocol or a limit; the connection is over. A GOAWAY with this code is
/// already in `out`: write it, then close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("HTTP/2 connection refused with {code}: {reason}")]
pub struct ConnectionError {
    pub code: ErrorCode,
    /// What the peer did, with the limit's name where it is one of [`Limits`](super::Limits).
    pub reason: &'static str,
}

/// Why a request was not sent; nothing was written, another connection may take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("the peer allows {limit} streams at once and they are taken")]
    TooManyStreams { limit: u32 },
    #[error("the connection is going away")]
    GoingAway,
    #[error("the connection's stream ids are used up")]
    IdsExhausted,
}

/// The stream has ended or was reset, or this side has ended its half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream is gone")]
pub struct StreamGone;

/// A rule broken by the peer, and how far the damage goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Connection(ConnectionError),
    /// Only the stream is over.
    Stream {
        stream: u32,
        code: ErrorCode,
    },
}

impl Fault {
    pub(super) fn connection(code: ErrorCode, reason: &'static str) -> Self {
        Self::Connection(ConnectionError { code, reason })
    }

    pub(super) fn protocol(reason: &'static str) -> Self {
        Self::connection(ErrorCode::PROTOCOL_ERROR, reason)
    }

    pub(super) fn frame_size(reason: &'static str) -> Self {
        Self::connection(ErrorCode::FRAME_SIZE_ERROR, reason)
    }

    pub(super) fn flow_control(reason: &'static str) -> Self {
        Self::connection(ErrorCode::FLOW_CONTROL_ERROR, reason)
    }

    pub(super) fn calm(reason: &'static str) -> Self {
        Self::connection(ErrorCode::ENHANCE_YOUR_CALM, reason)
    }

    pub(super) fn stream(stream: u32, code: ErrorCode) -> Self {
        Self::Stream { stream, code }
    }
}
