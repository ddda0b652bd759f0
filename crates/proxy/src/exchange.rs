//! One request and its response on their way through.

use std::time::Instant;

use tollway_http::h2::StreamId;
use tollway_http::{RequestHead, h1};
use tollway_model::ServiceName;
use tollway_net::Key;

use tollway_telemetry::ServicePlace;

use crate::connection::Door;
use crate::observe::Observed;
use crate::pipe::Pipe;

/// A stream of a connection; HTTP/1.1 connections have one at a time, stream 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StreamRef {
    pub(crate) conn: Key,
    pub(crate) stream: StreamId,
}

/// One of the two directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Request,
    Response,
}

/// What is known of a body's length before it comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BodySize {
    None,
    Fixed(u64),
    Unknown,
}

impl BodySize {
    /// As HTTP/1.1 frames it; `chunked` tells whether the peer understands chunks.
    pub(crate) fn framing(self, chunked: bool) -> h1::BodyLength {
        match self {
            Self::None => h1::BodyLength::None,
            Self::Fixed(length) => h1::BodyLength::Fixed(length),
            Self::Unknown if chunked => h1::BodyLength::Chunked,
            Self::Unknown => h1::BodyLength::UntilClose,
        }
    }

    pub(crate) fn content_length(self) -> Option<u64> {
        match self {
            Self::Fixed(length) => Some(length),
            Self::None | Self::Unknown => None,
        }
    }
}

/// Where an exchange goes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Destination {
    /// A service of the mesh.
    Service(ServiceName),
    /// The app beside this sidecar.
    App,
    /// The sidecar's own API, served in this process.
    Api,
    /// The app beside this sidecar, which speaks gRPC, for a call that came over HTTP: this process
    /// translates it.
    Callback,
}

/// The upstream half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Upstream {
    /// Waits for discovery or a connection.
    Waiting,
    /// Waits until its caller's connection may have another one to the app.
    Late,
    Open(StreamRef),
    /// Done with, or never needed.
    Gone,
}

/// One request and its response.
pub(crate) struct Exchange {
    pub(crate) door: Door,
    pub(crate) down: StreamRef,
    pub(crate) up: Upstream,
    pub(crate) destination: Destination,
    /// The request as it goes upstream.
    pub(crate) head: RequestHead,
    pub(crate) request_size: BodySize,
    pub(crate) request: Pipe,
    pub(crate) response: Pipe,
    /// The response's head has gone downstream.
    pub(crate) responding: bool,
    pub(crate) status: u16,
    pub(crate) informational: u8,
    pub(crate) is_grpc: bool,
    pub(crate) is_head: bool,
    /// It asked to leave HTTP (`Upgrade`) and needs a connection of its own.
    pub(crate) is_upgrade: bool,
    /// One of its bodies has grown large.
    pub(crate) is_bulk: bool,
    /// Attempts made.
    pub(crate) attempts: u32,
    /// Request body bytes already sent, for another attempt; `None` once they are too many.
    pub(crate) replay: Option<Vec<u8>>,
    pub(crate) started: Instant,
    /// When the time that its caller gave it is over (`grpc-timeout`).
    pub(crate) deadline: Option<Instant>,
    /// Last byte seen in either direction.
    pub(crate) active: Instant,
    /// Where it is counted; `None` if it calls no service.
    pub(crate) place: Option<ServicePlace>,
    /// It was refused or failed here.
    pub(crate) failed: bool,
    /// A gRPC call whose answer's head ended it with another status than OK.
    pub(crate) grpc_failed: bool,
    /// Set when something will be told of it.
    pub(crate) observed: Option<Box<Observed>>,
}
