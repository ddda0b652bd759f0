//! One connection of a data thread and the role it plays.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollway_http::h2::StreamId;
use tollway_http::{h1, h2};
use tollway_identity::{PeerIdentity, ServerNameReader};
use tollway_model::{ErrorCode, Instance, NetworkName, ServiceName};
use tollway_net::Conn;

use super::Listed;
use crate::conn::ConnKey;
use crate::exchange::{ChosenNetwork, Destination, ExchangeKey, Side};
use crate::front::Client;
use crate::headers::Caller;
use crate::inbound::{Rated, Rights, Upgraded};
use crate::observe::Finished;
use crate::outbound::ExternalCall;
use crate::runtime_protocol::TurnLease;
use crate::upstream::{PoolKey, ReplicaRef};

/// Through which listener a downstream connection came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ListenerKind {
    HttpApi,
    GrpcApi,
    /// The HTTP API, from within this process.
    Loopback,
    /// What of the HTTP API everybody may know: health and metadata.
    Public,
    Outbound,
    /// Inside a CONNECT tunnel to one service.
    Tunnel(ServiceName),
    /// The inbound listener, from an authenticated peer.
    Inbound,
    /// A TCP port that stands for one service.
    Tcp(ServiceName),
    /// Where the kernel leads the app's connections, until it is known what to.
    Intercepted,
    /// A gateway's port for other networks: it leads to the own one.
    Gateway,
    /// A gateway's listener for its own network: it leads to joined ones, too.
    GatewayInside,
    /// A front's listener, from any client or from clients with a certificate.
    Front,
}

impl ListenerKind {
    /// Whether what comes through it is for the app behind this process.
    pub(crate) fn is_inbound(&self) -> bool {
        matches!(self, Self::Inbound | Self::Front)
    }

    /// Whether what comes through it is relayed by its server name.
    pub(crate) fn is_gateway(&self) -> bool {
        matches!(self, Self::Gateway | Self::GatewayInside)
    }
}

/// What a connection is doing.
pub(crate) enum Role {
    /// A plain downstream whose first bytes will show HTTP/1.1 or HTTP/2.
    Detect {
        input: Vec<u8>,
    },
    /// A connection during its TLS handshake, at the inbound listener or a front's.
    Accepting,
    /// A dial until it is connected and, with TLS, authenticated.
    Dialling(Dial),
    Http1Server(Box<Http1Server>),
    Http2Server(Box<Http2Link>),
    Http1Client(Box<Http1Client>),
    Http2Client(Box<Http2Link>),
    /// Bytes to and from another connection.
    Relay(Relay),
    /// A gateway's connection of which the server name is not known yet.
    Hello(Box<Hello>),
    /// A connection between two gateways that waits for another one to carry.
    Reverse(Box<Reverse>),
    /// All was said, at that time; what still comes is read and dropped until the peer closes.
    Lingering(Instant),
}

/// A connection and its state.
pub(crate) struct Connection {
    pub(crate) io: Conn,
    pub(crate) role: Role,
    pub(crate) via: Option<ListenerKind>,
    pub(crate) remote: Option<SocketAddr>,
    /// Its address as text, once a request needed it.
    remote_text: Option<Box<str>>,
    pub(crate) peer: Option<Arc<PeerIdentity>>,
    /// The port of the app that its caller has asked for, if that is not the one that this sidecar is set
    /// to.
    pub(crate) app_port: Option<u16>,
    /// The replica that it leads to, where traffic policies distinguish replicas.
    pub(crate) replica: Option<ReplicaRef>,
    /// What a front knows of its client.
    pub(crate) client: Option<Box<Client>>,
    pub(super) listed: Listed,
    /// Not read until the sink of its bytes has room again.
    pub(crate) paused: bool,
    /// Gets no more requests until the upstream has read what was sent to it.
    pub(crate) unread: bool,
    /// The turns of actors of which something waits to be sent here.
    pub(crate) turns: Vec<(ExchangeKey, TurnLease)>,
    /// Pipes that wait for room to write here, in order of arrival.
    pub(crate) write_queue: VecDeque<(ExchangeKey, Side)>,
    /// Since when it has been in its present state: handshaking, idle, in a head.
    pub(crate) since: Instant,
    /// No new requests; closed when the present ones are done.
    pub(crate) draining: bool,
    /// What a gateway chose for it, and among what.
    pub(crate) relays_to: Option<(RelayedTo, SocketAddr)>,
    /// A gateway passes it to a control plane: it lasts as long as the networks are joined.
    pub(crate) leads_to_control: bool,
    /// The TCP service it leads to, or waits to know of.
    pub(crate) raw_target: Option<ServiceName>,
    /// Where it goes out of the mesh, if it does and that is subject to egress.
    pub(crate) external: Option<Box<ExternalCall>>,
    /// What policies mean for its caller, once that was asked for.
    pub(crate) rights: Option<Rights>,
    /// What its caller takes of the limits of traffic policies; only where there are any.
    pub(crate) rated: Option<Box<Rated>>,
    /// By which request it left HTTP, at the inbound listener.
    pub(crate) upgraded: Option<Box<Upgraded>>,
    /// What the access log will have of the bytes it carries, when it ends.
    pub(crate) access_log: Option<Box<Finished>>,
}

impl Connection {
    pub(crate) fn new(io: Conn, role: Role, now: Instant) -> Self {
        Self {
            io,
            role,
            via: None,
            remote: None,
            remote_text: None,
            peer: None,
            app_port: None,
            replica: None,
            client: None,
            listed: Listed::default(),
            paused: false,
            unread: false,
            turns: Vec::new(),
            write_queue: VecDeque::new(),
            since: now,
            draining: false,
            relays_to: None,
            leads_to_control: false,
            raw_target: None,
            external: None,
            rights: None,
            rated: None,
            upgraded: None,
            access_log: None,
        }
    }

    /// Where its requests come from.
    pub(crate) fn caller(&mut self) -> Option<Caller<'_>> {
        let ip = self.remote?.ip();
        let text = self.remote_text.get_or_insert_with(|| ip.to_string().into());
        Some(Caller { ip, text })
    }

    /// Whether this is a caller that has at least `limit` bytes of answers to read.
    pub(crate) fn owes_reading(&self, limit: usize) -> bool {
        matches!(self.role, Role::Http1Server(_) | Role::Http2Server(_))
            && self.io.pending() >= limit
    }

    /// Whether this is an upstream that does not read what it was sent, `limit` bytes at least. Heads
    /// that were called off are among them: bytes that are queued are not taken back.
    pub(crate) fn is_unread(&self, limit: usize) -> bool {
        matches!(self.role, Role::Http2Client(_)) && self.io.pending() >= limit
    }
}

impl Connection {
    /// The instance that its peer proved to be.
    pub(crate) fn instance(&self) -> Option<&Instance> {
        self.peer.as_ref()?.instance.as_ref()
    }

    /// The destination of whose pool it is a member; `None` for other connections.
    pub(crate) fn destination(&self) -> Option<&Destination> {
        self.membership()?.0
    }

    /// The pool of which it is a member; `None` for other connections.
    pub(crate) fn pool(&self) -> Option<PoolKey> {
        self.membership()?.1
    }

    /// Destination and pool of a connection to an upstream.
    fn membership(&self) -> Option<(Option<&Destination>, Option<PoolKey>)> {
        match &self.role {
            Role::Http2Client(link) => Some((link.destination.as_ref(), link.pool)),
            Role::Http1Client(client) => Some((Some(&client.destination), client.pool)),
            Role::Detect { .. }
            | Role::Accepting
            | Role::Dialling(_)
            | Role::Http1Server(_)
            | Role::Http2Server(_)
            | Role::Relay(_)
            | Role::Hello(_)
            | Role::Reverse(_)
            | Role::Lingering(_) => None,
        }
    }

    /// Requests that were called off on this connection to the runtime and that it has not read;
    /// they are forgotten here. 0 for other connections.
    pub(crate) fn take_called_off(&mut self) -> usize {
        match &mut self.role {
            Role::Http2Client(link) if link.leads_to_runtime() => {
                let CalledOff { asked, later } = std::mem::take(&mut link.called_off);
                asked + later
            }
            _ => 0,
        }
    }

    /// Whether a front's client has shown a certificate.
    pub(crate) fn has_proven_client(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.certificate.is_some())
    }

    /// What a front's client proved, as the app gets it.
    pub(crate) fn proven_client(&self) -> Option<Box<[u8]>> {
        let certificate = self.client.as_ref()?.certificate.as_ref()?;
        Some(certificate.field().into())
    }

    /// How it was made, if it is one to another sidecar or to the app.
    pub(crate) fn opened(&self) -> Option<&Opened> {
        match &self.role {
            Role::Http2Client(link) => link.opened.as_ref(),
            Role::Http1Client(client) => client.opened.as_ref(),
            Role::Detect { .. }
            | Role::Accepting
            | Role::Dialling(_)
            | Role::Http1Server(_)
            | Role::Http2Server(_)
            | Role::Relay(_)
            | Role::Hello(_)
            | Role::Reverse(_)
            | Role::Lingering(_) => None,
        }
    }

    /// The other end of a dial has answered.
    pub(crate) fn note_connected(&mut self, now: Instant) {
        if let Role::Dialling(dial) = &mut self.role {
            dial.connected = Some(now);
            if matches!(&dial.purpose, Purpose::PoolH2(to) if to.is_of_mesh()) {
                // Only the kernel's clock does not count how long this thread did something else.
                dial.round_trip = self.io.round_trip().ok();
            }
        }
    }

    /// Whether it has no protocol yet: its handshake may be over since.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.role, Role::Accepting | Role::Dialling(_))
    }

    /// Whether bytes were read and not parsed.
    pub(crate) fn has_unparsed(&self) -> bool {
        match &self.role {
            Role::Detect { input } => !input.is_empty(),
            Role::Http1Server(server) => !server.input.is_empty(),
            Role::Http1Client(client) => !client.input.is_empty(),
            Role::Hello(hello) => !hello.input.is_empty(),
            Role::Accepting
            | Role::Dialling(_)
            | Role::Http2Server(_)
            | Role::Http2Client(_)
            | Role::Relay(_)
            | Role::Reverse(_)
            | Role::Lingering(_) => false,
        }
    }
}

/// Where a gateway passes connections of one kind: what it may choose another address of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RelayedTo {
    /// The endpoints of a service of its own network.
    Service(ServiceName),
    /// The gateways of a joined network.
    Network(NetworkName),
    /// The control plane of its own network.
    Control,
}

/// What a dial is for.
pub(crate) struct Dial {
    pub(crate) address: Option<SocketAddr>,
    pub(crate) purpose: Purpose,
    /// It leads to the app, which proves nothing of itself, or to a host out of the mesh, of which TLS has
    /// verified the name.
    pub(crate) is_app: bool,
    /// What it is for may go to another address, or to another network, instead.
    pub(crate) has_other_way: bool,
    /// When the other end answered; with TLS, a handshake follows.
    pub(crate) connected: Option<Instant>,
    /// As TCP has measured it then.
    round_trip: Option<Duration>,
}

/// A dial that takes so long counts as one that fails where another address or network may serve instead.
pub(crate) const SLOW_DIAL: Duration = Duration::from_secs(2);

/// How a connection was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) at: Instant,
    pub(crate) connect: Duration,
    pub(crate) handshake: Duration,
    /// Round trip to the peer, as TCP has measured it; of multiplexed connections to services.
    pub(crate) round_trip: Option<Duration>,
}

impl Dial {
    pub(crate) fn to(address: SocketAddr, purpose: Purpose) -> Self {
        let address = Some(address);
        Self {
            address,
            purpose,
            is_app: false,
            has_other_way: false,
            connected: None,
            round_trip: None,
        }
    }

    /// How long it may take where others may take as long as `usual`.
    pub(super) fn limit(&self, usual: Duration) -> Duration {
        if self.has_other_way { usual.min(SLOW_DIAL) } else { usual }
    }

    /// A dial that began at `began` stands.
    pub(crate) fn opened(&self, began: Instant, now: Instant) -> Opened {
        let connected = self.connected.unwrap_or(now);
        Opened {
            at: now,
            connect: connected.saturating_duration_since(began),
            handshake: now.saturating_duration_since(connected),
            round_trip: self.round_trip,
        }
    }
}

/// The protocol that a dialled connection will speak, and its destination.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// A member of the destination's pool, HTTP/2.
    PoolH2(Destination),
    /// A member of the destination's pool, HTTP/1.1.
    PoolH1(Destination),
    /// HTTP/1.1 for one exchange that wants to leave HTTP.
    Upgrade(ExchangeKey),
    /// Raw bytes for the other connection.
    Relay(ConnKey),
    /// A reverse connection to a gateway of that network.
    Reverse(NetworkName),
}

/// The server's side of an HTTP/1.1 connection.
#[derive(Default)]
pub(crate) struct Http1Server {
    pub(crate) scanner: h1::HeadScanner,
    /// Bytes read and not yet parsed.
    pub(crate) input: Vec<u8>,
    pub(crate) exchange: Option<ExchangeKey>,
    /// The request's body, until it has ended.
    pub(crate) body: Option<h1::BodyDecoder>,
    pub(crate) version: h1::Version,
    pub(crate) keep_alive: bool,
    /// The first bytes of a head have come.
    pub(crate) in_head: bool,
    /// The response's framing, once its head is written.
    pub(crate) sink: Option<h1::BodyLength>,
}

/// The client's side of an HTTP/1.1 connection.
pub(crate) struct Http1Client {
    pub(crate) destination: Destination,
    /// The pool that it belongs to; `None` if it belongs to one exchange.
    pub(crate) pool: Option<PoolKey>,
    pub(crate) scanner: h1::HeadScanner,
    pub(crate) input: Vec<u8>,
    pub(crate) exchange: Option<ExchangeKey>,
    /// The response's body, once its head has been read and until it has ended.
    pub(crate) body: Option<h1::BodyDecoder>,
    pub(crate) keep_alive: bool,
    pub(crate) sink: h1::BodyLength,
    /// Requests answered on it.
    pub(crate) served: u64,
    /// Bytes of the present response have come.
    pub(crate) answered: bool,
    pub(crate) opened: Option<Opened>,
}

/// An HTTP/2 connection, either side.
pub(crate) struct Http2Link {
    pub(crate) codec: h2::Connection,
    pub(crate) streams: HashMap<u32, ExchangeKey, BuildHasherDefault<StreamHasher>>,
    /// Requests that wait for its share of the connections to the app (server's side).
    pub(crate) over_share: VecDeque<ExchangeKey>,
    /// Where it leads, and the pool that it belongs to (client's side).
    pub(crate) destination: Option<Destination>,
    pub(crate) pool: Option<PoolKey>,
    pub(crate) address: Option<SocketAddr>,
    /// Connection-level credit held back because the thread holds too many bytes.
    pub(crate) held_credit: usize,
    /// Streams of which a body has grown large, and when the last of them ended.
    bulk: Vec<u32>,
    bulk_ended: Option<Instant>,
    /// Requests go elsewhere until then: the peer's app could not be reached.
    pub(crate) ejected_until: Option<Instant>,
    /// When the drain began; the final GOAWAY follows.
    pub(crate) goaway_at: Option<Instant>,
    /// When bytes came last.
    pub(crate) received: Instant,
    /// In which round of the sweep it was asked for a sign of life that has not come.
    pub(crate) asked: Option<u64>,
    /// The sign did not come in time: requests go elsewhere if they can.
    pub(crate) is_silent: bool,
    /// How it was made (client's side).
    pub(crate) opened: Option<Opened>,
    /// Requests that were called off and that the runtime may not have looked at.
    pub(crate) called_off: CalledOff,
}

/// Requests of one connection to the runtime that were called off.
#[derive(Default)]
pub(crate) struct CalledOff {
    /// Before the PING that is under way.
    pub(crate) asked: usize,
    /// After it.
    pub(crate) later: usize,
}

impl Http2Link {
    pub(crate) fn new(codec: h2::Connection, now: Instant) -> Self {
        Self {
            codec,
            streams: HashMap::default(),
            over_share: VecDeque::new(),
            destination: None,
            pool: None,
            address: None,
            held_credit: 0,
            bulk: Vec::new(),
            bulk_ended: None,
            ejected_until: None,
            goaway_at: None,
            received: now,
            asked: None,
            is_silent: false,
            opened: None,
            called_off: CalledOff::default(),
        }
    }
}

impl Http2Link {
    /// Whether this process serves the other end.
    pub(crate) fn leads_to_runtime(&self) -> bool {
        self.destination.as_ref().is_some_and(Destination::is_served_here)
    }

    /// A stream is over. Gives its exchange.
    pub(crate) fn close(&mut self, stream: StreamId, now: Instant) -> Option<ExchangeKey> {
        if !self.bulk.is_empty() {
            self.bulk.retain(|other| *other != stream.0);
            self.bulk_ended = self.bulk.is_empty().then_some(now);
        }
        self.streams.remove(&stream.0)
    }

    /// A stream carries bulk until it is over.
    pub(crate) fn begin_bulk(&mut self, stream: StreamId) {
        if self.streams.contains_key(&stream.0) && !self.bulk.contains(&stream.0) {
            self.bulk.push(stream.0);
        }
    }

    /// Whether small requests should have another connection: it carries bulk, or did until a
    /// moment ago.
    pub(crate) fn carries_bulk(&self) -> bool {
        !self.bulk.is_empty() || self.bulk_ended.is_some()
    }

    /// How long it still takes no small requests after its last bulk; `None` while it carries bulk, or if
    /// it takes them.
    pub(crate) fn bulk_pause_left(&self, now: Instant, pause: Duration) -> Option<Duration> {
        let ended = self.bulk_ended.filter(|_| self.bulk.is_empty())?;
        Some(pause.saturating_sub(now.saturating_duration_since(ended)))
    }

    /// Small requests may use it again.
    pub(crate) fn end_bulk_pause(&mut self) {
        self.bulk_ended = None;
    }
}

/// A ClientHello that is being looked at.
#[derive(Default)]
pub(crate) struct Hello {
    /// Everything read so far; it goes on unchanged.
    pub(crate) input: Vec<u8>,
    pub(crate) reader: ServerNameReader,
    /// The server name, once it has been seen.
    pub(crate) name: Option<String>,
}

/// A reverse connection: a gateway that only dials out has opened it to a gateway of a joined network,
/// which sends one connection into it.
pub(crate) struct Reverse {
    /// The network of the gateway at the other end.
    pub(crate) network: NetworkName,
    /// When something came last.
    pub(crate) heard: Instant,
    /// What comes from then on is a sign of life.
    pub(crate) lives_from: Instant,
    pub(crate) side: ReverseSide,
}

/// Which end of a reverse connection this is, and how far it has come.
pub(crate) enum ReverseSide {
    /// This gateway has opened it, to this address.
    Opened {
        address: SocketAddr,
        /// Since when a keepalive is not answered.
        asked: Option<Instant>,
        /// The other end has answered once: it has taken it.
        is_taken: bool,
    },
    /// The other end has opened it.
    Held,
    /// The other end has opened it, and has been sent the ClientHello of `down`. `hello` is a copy,
    /// for another reverse connection if this one is not confirmed.
    Offered { down: ConnKey, hello: Vec<u8>, since: Instant },
}

/// One half of a pair of connections that exchange raw bytes.
pub(crate) struct Relay {
    /// `None` until it is dialled.
    pub(crate) other: Option<ConnKey>,
    /// Bytes have come from this side since it is one.
    pub(crate) has_spoken: bool,
    /// Bytes that came before there was another side.
    pub(crate) early: Vec<u8>,
    pub(crate) ended: bool,
    /// Bytes went either way.
    pub(crate) active: Instant,
    /// Bytes came from this side.
    pub(crate) heard: Instant,
    /// Dials that failed for it.
    pub(crate) failed_dials: u32,
    /// Its network, if its service is called in any.
    pub(crate) network: Option<Box<ChosenNetwork>>,
    /// Why it is refused, unless its first bytes show HTTP, in which the refusal is an answer.
    pub(crate) refusal: Option<ErrorCode>,
    /// What comes from this side waits until egress has decided on it.
    pub(crate) is_held: bool,
    /// Set in a gateway until the callee has shown that it speaks TLS.
    pub(crate) unproven: Option<Box<Unproven>>,
}

/// What waits in a gateway until the callee has shown that it speaks TLS.
#[derive(Default)]
pub(crate) struct Unproven {
    /// Of the caller, what it sent after its ClientHello; of the callee, the beginning of its first
    /// record.
    pub(crate) bytes: Vec<u8>,
    /// Of the callee, where it was dialled.
    pub(crate) address: Option<SocketAddr>,
}

impl Relay {
    /// Without another side yet; `early` goes there first.
    pub(crate) fn to_be_dialled(early: Vec<u8>, now: Instant) -> Self {
        Self {
            other: None,
            has_spoken: false,
            early,
            ended: false,
            active: now,
            heard: now,
            failed_dials: 0,
            network: None,
            refusal: None,
            is_held: false,
            unproven: None,
        }
    }
}

/// Hashes stream numbers by one multiplication: they are small, dense and bounded in number.
#[derive(Default)]
pub(crate) struct StreamHasher(u64);

impl Hasher for StreamHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }
    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0.rotate_left(5) ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
