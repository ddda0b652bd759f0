//! The settings that every data plane has, and those of a log.

use std::net::SocketAddr;
use std::path::PathBuf;

use tollway_proxy::{Limits, Timeouts};
use tollway_telemetry::{LogFilter, LogFormat};

use crate::{LimitValue, Millis, Settings};

pub(super) const TIMES_AND_LIMITS: &str = "Times and limits";
const LOG: &str = "Log";

/// A data plane of any kind.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct Plane {
    /// Metrics and health; port 0 takes a free one.
    #[setting(form = "IP:PORT", default = "127.0.0.1:9090")]
    pub admin_listen: SocketAddr,
    /// Data-plane threads.
    #[setting(form = "COUNT", default = "1")]
    pub threads: usize,
    /// Time for requests under way at the end, in milliseconds.
    #[setting(form = "MS", default = "10000", live, heading = TIMES_AND_LIMITS)]
    pub drain_timeout_ms: Millis,
    /// Time from the end of a request to the head of its response, in milliseconds.
    #[setting(form = "MS", default = "60000", live, heading = TIMES_AND_LIMITS)]
    pub request_timeout_ms: Millis,
    /// Time to connect and authenticate, in milliseconds.
    #[setting(form = "MS", default = "5000", live, heading = TIMES_AND_LIMITS)]
    pub connect_timeout_ms: Millis,
    /// Time an exchange may be silent in both directions, in milliseconds.
    #[setting(form = "MS", default = "300000", live, heading = TIMES_AND_LIMITS)]
    pub idle_timeout_ms: Millis,
    /// Most connections held at once, by each data-plane thread.
    #[setting(form = "COUNT", default = "100000", live, heading = TIMES_AND_LIMITS)]
    pub max_connections: usize,
    /// Most requests under way at once, in each data-plane thread.
    #[setting(form = "COUNT", default = "50000", live, heading = TIMES_AND_LIMITS)]
    pub max_requests: usize,
    /// Set a limit by its name in docs/limits.md, such as `head_ms=5000`; may be repeated.
    #[setting(form = "NAME=VALUE", flag = "limit", live, heading = TIMES_AND_LIMITS)]
    pub limits: Vec<LimitValue>,
    /// File that receives the bound addresses as JSON.
    #[setting(form = "FILE")]
    pub ports_file: Option<PathBuf>,
    /// Read files with tokens and private keys although others than their owner can use them.
    #[setting()]
    pub allow_open_files: bool,
    #[setting(flatten)]
    pub log: Log,
}

impl Plane {
    /// What it spends on its peers.
    #[must_use]
    pub fn bounds(&self) -> (Limits, Timeouts) {
        let mut limits = Limits {
            connections: self.max_connections,
            exchanges: self.max_requests,
            ..Limits::default()
        };
        let mut timeouts = Timeouts {
            drain: self.drain_timeout_ms.0,
            request: self.request_timeout_ms.0,
            connect: self.connect_timeout_ms.0,
            stream_idle: self.idle_timeout_ms.0,
            ..Timeouts::default()
        };
        for limit in &self.limits {
            limit.apply(&mut limits, &mut timeouts);
        }
        (limits, timeouts)
    }
}

/// The log of a part.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct Log {
    /// What is logged: off, error, warn, info, debug, trace; `PART=LEVEL` for single parts.
    #[setting(form = "LEVEL", variable = "TOLLWAY_LOG", default = "info", live, heading = LOG)]
    pub log_level: LogFilter,
    /// Format of log lines.
    #[setting(default = "text", heading = LOG)]
    pub log_format: LogFormat,
}
