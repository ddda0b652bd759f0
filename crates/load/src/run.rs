//! The public entry points: one per protocol.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use prost::Message as _;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tollway_record::RunResult;
use tollway_record::record::{self, Protocol, Tls};
use tollway_record::run::{RUN_SCHEMA, Stage, Streaming};

use crate::arrival::{self, Arrival, Extent, Profile, Spacing};
use crate::clients::h1::{H1Client, Rendered};
use crate::clients::h2::{Calls, H2Client, Prepared};
use crate::clients::ping::PingClient;
use crate::clients::streams::{Setting, Shape, StreamKind, StreamSession, Tally};
use crate::engine::{self, Outcome};
use crate::error::LoadError;
use crate::options::{GrpcRequest, HttpRequest, LoadOptions, Reuse, StreamRequest};
use crate::progress::Watch;
use crate::tls::TlsDialler;
use tollway_echo::frames::frame;
use tollway_echo::{EchoMessage, UNARY_PATH, payload};

/// Largest message of ping-pong.
const MAX_PING_BYTES: usize = 16 << 20;

/// Sends `request` over HTTP/1.1 as `options` plan it, on this thread.
pub fn run_http(
    options: &LoadOptions,
    request: &HttpRequest,
    watch: &mut Watch<'_>,
) -> Result<RunResult, LoadError> {
    options.check()?;
    let rendered = Rendered::new(&options.target, request)?;
    let address = options.address()?;
    let client = H1Client::new(rendered, options, address, secure(options, b"http/1.1")?);
    let frame = Frame { protocol: Protocol::Http1, payload: request.body.len() };
    frame.run(client, options, address, watch)
}

/// Sends `request` over HTTP/2 as `options` plan it, on this thread; without TLS the server must
/// know that it will be HTTP/2.
pub fn run_http2(
    options: &LoadOptions,
    request: &HttpRequest,
    watch: &mut Watch<'_>,
) -> Result<RunResult, LoadError> {
    options.check()?;
    let prepared = Prepared::http(&options.target, request)?;
    let address = options.address()?;
    let client = H2Client::<Calls>::new(prepared, options, address, secure(options, b"h2")?);
    let frame = Frame { protocol: Protocol::Http2, payload: request.body.len() };
    frame.run(client, options, address, watch)
}

/// Makes the unary call `request` as `options` plan it, on this thread.
pub fn run_grpc(
    options: &LoadOptions,
    request: &GrpcRequest,
    watch: &mut Watch<'_>,
) -> Result<RunResult, LoadError> {
    options.check()?;
    let prepared = Prepared::grpc(&options.target, request)?;
    let address = options.address()?;
    let client = H2Client::<Calls>::new(prepared, options, address, secure(options, b"h2")?);
    let frame = Frame { protocol: Protocol::GrpcUnary, payload: request.payload_bytes };
    frame.run(client, options, address, watch)
}

/// Sends and receives streams of messages as `options` plan it, on this thread. A request of the
/// plan is a message where each has an answer, else a whole stream. `options.streams` are open at
/// once on each connection.
pub fn run_stream(
    options: &LoadOptions,
    request: &StreamRequest,
    watch: &mut Watch<'_>,
) -> Result<RunResult, LoadError> {
    options.check()?;
    request.check()?;
    let mut options = options.clone();
    let target = &mut options.target;
    if target.path == UNARY_PATH {
        target.url = target.url.replace(UNARY_PATH, request.kind.path());
        target.path = request.kind.path().to_owned();
    }
    let tally = Rc::new(RefCell::new(Tally::new(streams_needed(options.extent, request))));
    let setting = setting(&options, request, Rc::clone(&tally))?;
    let address = options.address()?;
    let tls = secure(&options, b"h2")?;
    let client = H2Client::<StreamSession>::new(setting, &options, address, tls);
    let frame = Frame { protocol: Protocol::GrpcStream, payload: request.payload_bytes };
    let mut result = frame.run(client, &options, address, watch)?;
    let shape = Streaming {
        streams: options.connections as u64 * options.streams as u64,
        messages_per_stream: u64::from(request.messages),
        message_bytes: request.payload_bytes as u64,
        in_flight: request.in_flight as u64,
        window_bytes: request.window_bytes.map(u64::from),
        deadline_s: request.deadline.map(|deadline| deadline.as_secs_f64()),
        ..Streaming::default()
    };
    let streaming = tally.borrow().summary(request.kind, &result.traffic, shape);
    result.streaming = Some(streaming);
    Ok(result)
}

/// Streams that carry the messages of the plan when each carries all it can.
fn streams_needed(extent: Extent, request: &StreamRequest) -> u64 {
    match extent {
        Extent::Requests(count) if request.kind.is_by_message() => {
            count.div_ceil(u64::from(request.messages))
        }
        Extent::Requests(_) | Extent::Lasting(_) => u64::MAX,
    }
}

fn setting(
    options: &LoadOptions,
    request: &StreamRequest,
    tally: Rc<RefCell<Tally>>,
) -> Result<Setting, LoadError> {
    let StreamRequest { kind, messages, payload_bytes, .. } = *request;
    let call = GrpcRequest { metadata: request.metadata.clone(), ..GrpcRequest::default() };
    let mut head = Prepared::grpc(&options.target, &call)?.into_head();
    if let Some(deadline) = request.deadline {
        // At most eight digits, so up to a day in milliseconds.
        let ms = deadline.as_millis().clamp(1, 86_400_000);
        head.fields.push(b"grpc-timeout", format!("{ms}m").as_bytes());
    }
    let repeat = match kind {
        StreamKind::Server => messages,
        StreamKind::Push | StreamKind::Bidi | StreamKind::Client => 0,
    };
    let message = EchoMessage { payload: payload(payload_bytes), repeat }.encode_to_vec();
    let shape = Shape {
        kind,
        framed: frame(&message),
        messages: u64::from(messages),
        in_flight: request.in_flight,
    };
    let StreamRequest { deadline, window_bytes, .. } = *request;
    Ok(Setting { head, shape, deadline, window_bytes, tally })
}

/// The TLS configuration, if the target's URL needs one.
fn secure(options: &LoadOptions, alpn: &[u8]) -> Result<Option<TlsDialler>, LoadError> {
    if !options.target.tls {
        return Ok(None);
    }
    // A server may give two tickets for each connection.
    let sessions = 2 * options.connections;
    Ok(Some(TlsDialler::new(&options.target, &options.tls, alpn, sessions)?))
}

/// Sends a message of `bytes` bytes over plain TCP and waits for it to come back, as `options`
/// plan it, on this thread.
pub fn run_ping(
    options: &LoadOptions,
    bytes: usize,
    watch: &mut Watch<'_>,
) -> Result<RunResult, LoadError> {
    // Connections stay open: the other protocols measure opening them.
    let options = &LoadOptions { reuse: Reuse::default(), ..options.clone() };
    options.check()?;
    if !(1..=MAX_PING_BYTES).contains(&bytes) {
        return Err(LoadError::Bounds {
            name: "the message's size in bytes",
            given: bytes as u64,
            least: 1,
            most: MAX_PING_BYTES as u64,
        });
    }
    let address = options.address()?;
    let client = PingClient::new(payload(bytes), options, address);
    let frame = Frame { protocol: Protocol::Tcp, payload: bytes };
    frame.run(client, options, address, watch)
}

/// The parts of a result that are not counted.
struct Frame {
    protocol: Protocol,
    payload: usize,
}

impl Frame {
    fn run<C: engine::Client>(
        self,
        client: C,
        options: &LoadOptions,
        address: SocketAddr,
        watch: &mut Watch<'_>,
    ) -> Result<RunResult, LoadError> {
        let one = matches!(self.protocol, Protocol::Http1 | Protocol::Tcp);
        let streams = if one { 1 } else { options.streams };
        let started_at = OffsetDateTime::now_utc()
            .format(&Rfc3339)
            .expect("RFC 3339 has a form for every year of the system's clock");
        let Outcome { traffic, generator, tls, connections } =
            engine::run(client, options, address, watch)?;
        let mut result = RunResult {
            schema: RUN_SCHEMA.to_owned(),
            started_at,
            target: options.target.url.clone(),
            protocol: self.protocol,
            tls: match &tls {
                None => Tls::Plain,
                Some(facts) if facts.client_certificate => Tls::Mtls,
                Some(_) => Tls::Tls,
            },
            tls_facts: tls,
            requests_per_connection: options.reuse.requests,
            streams: u32::try_from(streams).unwrap_or(u32::MAX),
            arrival: arrival(options.arrival),
            connections: u32::try_from(connections).unwrap_or(u32::MAX),
            in_flight_limit: Some(options.max_inflight as u64),
            payload_bytes: self.payload as u64,
            warm_up_s: options.warmup.as_secs_f64(),
            seed: options.seed,
            command_line: options.command_line.clone(),
            stages: stages(options),
            traffic,
            generator,
            ..RunResult::default()
        };
        result.judge_client();
        Ok(result)
    }
}

fn stages(options: &LoadOptions) -> Vec<Stage> {
    let stages = options.stages.as_ref().map_or(&[][..], Profile::stages);
    let recorded = |stage: &arrival::Stage| Stage {
        lasting_s: stage.lasting.as_secs_f64(),
        to_rps: stage.to_rps,
    };
    stages.iter().map(recorded).collect()
}

fn arrival(arrival: Arrival) -> record::Arrival {
    match arrival {
        Arrival::Open { spacing: Spacing::Uniform, .. } => record::Arrival::OpenUniform,
        Arrival::Open { spacing: Spacing::Jitter { .. }, .. } => record::Arrival::OpenJitter,
        Arrival::Open { spacing: Spacing::Poisson, .. } => record::Arrival::OpenPoisson,
        Arrival::Open { spacing: Spacing::Bursts { .. }, .. } => record::Arrival::OpenBursts,
        Arrival::Closed => record::Arrival::Closed,
    }
}
