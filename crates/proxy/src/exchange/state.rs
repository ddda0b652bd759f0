//! One request and its response on their way through.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tollway_http::h2::StreamId;
use tollway_http::{Method, RequestHead, h1};
use tollway_model::{Instance, ServiceName};
use tollway_routing::{Attempt, Failure, Retry, decide_retry};

use tollway_telemetry::SeriesId;

use super::fault::Held;
use super::outcome::{FailedReplica, JudgedAttempt};
use super::{ChosenNetwork, Pipe, Steering};
use crate::as_daprd::BodyLimit;
use crate::conn::{ConnKey, ListenerKind};
use crate::inbound::CountedRequest;
use crate::observe::Observed;
use crate::protocol::Arrival;
use crate::runtime_protocol::TurnLease;
use crate::{error_response, headers};

/// A stream of a connection; HTTP/1.1 connections have one at a time, stream 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StreamRef {
    pub(crate) conn: ConnKey,
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
    /// As HTTP/1.1 frames it; `chunked`: the peer understands chunks.
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
    /// One workload of a service, and no other.
    Workload(Arc<WorkloadName>),
    /// The app beside this sidecar, at the port that it is set to.
    App,
    /// The app beside this sidecar, at another port that Services of a cluster lead to.
    AppPort(AppPort),
    /// The sidecar's own API, served in this process.
    Api,
    /// The app beside this sidecar, which speaks gRPC, for a call that came over HTTP: this process
    /// translates it.
    Callback,
    /// The actors of this sidecar, which this process runs.
    Actors,
}

/// A port of an app beside the one that its sidecar is set to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct AppPort {
    pub(crate) address: SocketAddr,
    /// Whether it speaks HTTP/2, and not HTTP/1.1.
    pub(crate) is_h2: bool,
}

/// One workload of a service.
#[derive(PartialEq, Eq, Hash, Debug)]
pub(crate) struct WorkloadName {
    pub(crate) service: ServiceName,
    pub(crate) instance: Instance,
}

impl Destination {
    pub(crate) fn workload(service: ServiceName, instance: Instance) -> Self {
        Self::Workload(Arc::new(WorkloadName { service, instance }))
    }

    /// The service it belongs to; `None` for what is beside this sidecar or in it.
    pub(crate) fn service(&self) -> Option<&ServiceName> {
        match self {
            Self::Service(service) => Some(service),
            Self::Workload(workload) => Some(&workload.service),
            Self::App | Self::AppPort(_) | Self::Api | Self::Callback | Self::Actors => None,
        }
    }

    /// Whether this process answers it over a connection that always speaks HTTP/2.
    pub(crate) fn is_served_here(&self) -> bool {
        matches!(self, Self::Api | Self::Callback | Self::Actors)
    }

    /// Whether it is the app beside this sidecar, which is asked directly.
    pub(crate) fn is_app(&self) -> bool {
        matches!(self, Self::App | Self::AppPort(_))
    }

    /// Whether other sidecars serve it.
    pub(crate) fn is_of_mesh(&self) -> bool {
        self.service().is_some()
    }
}

/// The upstream half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UpstreamState {
    /// Waits for discovery or a connection.
    Waiting,
    /// Waits until its caller's connection may have another one to the app.
    FairQueue,
    /// Waits until the app has fewer requests.
    Permit,
    /// Waits until all of it has come.
    Gathering,
    /// Waits before a retry.
    Pausing,
    Open(StreamRef),
    /// Done with, or never needed.
    Gone,
}

/// What has become of the response so far.
#[derive(Default)]
pub(super) struct Answer {
    /// Its head has gone downstream.
    pub(super) has_begun: bool,
    /// 0 before it has begun; 101 where the connections left HTTP.
    pub(super) status: u16,
    /// Informational responses before it.
    pub(super) informational: u8,
    /// The request was refused or failed here.
    pub(super) failed: bool,
    /// The status by which the response's head ended a gRPC call, where it is counted.
    pub(super) grpc_status: Option<u16>,
}

/// One request and its response.
pub(crate) struct Exchange {
    pub(crate) via: ListenerKind,
    pub(crate) down: StreamRef,
    pub(crate) up: UpstreamState,
    pub(crate) destination: Destination,
    /// The request as it goes upstream.
    pub(crate) head: Box<RequestHead>,
    pub(crate) request_size: BodySize,
    pub(crate) request: Pipe,
    pub(crate) response: Pipe,
    pub(super) answer: Answer,
    pub(crate) is_grpc: bool,
    pub(crate) is_head: bool,
    /// It asked to leave HTTP (`Upgrade`) and needs a connection of its own.
    pub(crate) is_upgrade: bool,
    /// One of its bodies has grown large.
    pub(crate) is_bulk: bool,
    /// Attempts made.
    pub(crate) attempts: u32,
    /// The connection of the last one; one that never was before the first.
    pub(super) sent_on: ConnKey,
    /// Its replica, until its outcome is known; `None` where no traffic policy asks for it.
    pub(super) judged: Option<Box<JudgedAttempt>>,
    /// Where attempts have failed.
    pub(crate) avoided: Vec<FailedReplica>,
    /// Request body bytes already sent, for another attempt; `None` once they are too many.
    pub(super) replay: Option<Vec<u8>>,
    pub(crate) started: Instant,
    /// When the time that its caller or a route gives it is over.
    pub(crate) deadline: Option<Instant>,
    /// Last byte seen in either direction.
    pub(crate) active: Instant,
    /// Where it is counted; `None` if it calls no service.
    pub(crate) series: Option<SeriesId>,
    /// It is the call of an actor: carried out once at most, and its response shows if nothing of
    /// it was.
    pub(crate) is_of_actors: bool,
    /// By which the runtime that asked for it may call it off.
    pub(crate) number: Option<u64>,
    /// It is a turn of an actor: until when it may be sent.
    pub(crate) turn: Option<TurnLease>,
    /// Something of that turn has been sent.
    pub(crate) is_begun: bool,
    /// Where the app's requests are bounded, it needs a permit. A translated call has that of the call.
    pub(crate) needs_permit: bool,
    /// It counts among the requests that the app has.
    pub(crate) holds_permit: bool,
    /// Of a body whose length is not known, in daprd's place.
    pub(crate) body_limit: Option<Box<BodyLimit>>,
    /// In daprd's place the label of its path, which it has lost where it calls a service.
    pub(crate) path_label: Option<Box<str>>,
    /// It counts among the requests of its caller, where these are limited.
    pub(crate) under_way: Option<Box<CountedRequest>>,
    /// It is a copy of another one, and its response is dropped.
    pub(crate) is_mirrored: bool,
    /// What the routes of its service have decided; `None` without routes, and before that.
    pub(crate) steering: Option<Box<Steering>>,
    /// Its network, if its service is called in any.
    pub(crate) network: Option<Box<ChosenNetwork>>,
    /// What goes wrong with it on purpose was drawn, or nothing is to.
    pub(crate) is_fault_drawn: bool,
    /// It is held back on purpose.
    pub(super) held: Option<Box<Held>>,
    /// Set when it is recorded.
    pub(crate) observed: Option<Box<Observed>>,
}

impl Exchange {
    /// A request whose head has come at `now` on a listener of the kind `via`; nothing is decided yet.
    #[inline]
    pub(crate) fn new(
        via: ListenerKind,
        arrival: Arrival,
        now: Instant,
        observed: Option<Box<Observed>>,
    ) -> Self {
        let Arrival { down, head, size, ended, is_upgrade } = arrival;
        let is_grpc = error_response::is_grpc(&head.fields);
        Self {
            via,
            down,
            up: UpstreamState::Waiting,
            destination: Destination::Api,
            is_grpc,
            is_head: head.method == Method::Head,
            is_upgrade,
            deadline: if is_grpc { headers::deadline(&head.fields, now) } else { None },
            head,
            request_size: size,
            request: Pipe::new(ended),
            response: Pipe::new(false),
            answer: Answer::default(),
            is_bulk: false,
            attempts: 0,
            sent_on: ConnKey::dangling(),
            judged: None,
            avoided: Vec::new(),
            replay: Some(Vec::new()),
            series: None,
            is_of_actors: false,
            number: None,
            turn: None,
            is_begun: false,
            needs_permit: true,
            holds_permit: false,
            body_limit: None,
            path_label: None,
            under_way: None,
            is_mirrored: false,
            steering: None,
            network: None,
            is_fault_drawn: false,
            held: None,
            started: now,
            active: now,
            observed,
        }
    }

    /// Whether it may be sent once more after an attempt that failed so.
    pub(crate) fn may_retry(&self, failure: Failure) -> bool {
        let attempt = Attempt {
            made: self.attempts,
            idempotent: self.head.method.is_idempotent() && !self.is_of_actors,
            body_held: self.replay.is_some(),
        };
        let unsent = failure == Failure::NotConnected;
        (unsent || !self.is_upgrade) && decide_retry(failure, attempt) == Retry::Again
    }

    /// Whether the response's head has gone downstream.
    pub(crate) fn has_response_begun(&self) -> bool {
        self.answer.has_begun
    }

    /// The status of the response; 0 before it has begun.
    pub(crate) fn status(&self) -> u16 {
        self.answer.status
    }

    /// Whether it is one of the own runtime with the app, which no other sidecar has asked for.
    pub(crate) fn is_of_runtime(&self) -> bool {
        self.via == ListenerKind::Loopback && self.destination == Destination::App
    }

    /// Whether it is for the app behind this process, or the actors there.
    pub(crate) fn is_for_app(&self) -> bool {
        self.via.is_inbound() || self.is_of_runtime()
    }
}

/// The upstream in words.
pub(crate) fn describe(destination: &Destination) -> String {
    match destination {
        Destination::Service(name) => format!("service {name}"),
        Destination::Workload(of) => format!("workload {} of service {}", of.instance, of.service),
        Destination::App => "the app".to_owned(),
        Destination::AppPort(port) => format!("the app at port {}", port.address.port()),
        Destination::Api => "the sidecar's API".to_owned(),
        Destination::Callback => "the sidecar's translation to gRPC".to_owned(),
        Destination::Actors => "the sidecar's actors".to_owned(),
    }
}
