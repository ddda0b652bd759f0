//! An app that calls at a steady rate and records the outcome of every single request.
//!
//! Open loop: a request is sent when its time has come, however many have not been answered. The
//! clients are hyper's, which shares no code with the proxy, and do not try anything twice.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Longest wait for one answer: longer than any pause that a process is put to.
const ANSWER_LIMIT: Duration = Duration::from_secs(25);
/// A unary call of the echo app with an empty message.
const UNARY_PATH: &str = "/tollway.lab.v1.Echo/Unary";
const EMPTY_MESSAGE: [u8; 5] = [0; 5];
/// Body of an HTTP request: more than fits with its head into one small write.
const BODY_BYTES: usize = 1024;
/// Every other HTTP request takes the app so long: at any blow some are under way.
const DELAY_PATH: &str = "delay?ms=40";

/// One kind of request, sent at a rate of its own.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    /// How the record calls it.
    pub(crate) name: &'static str,
    /// The caller's sidecar: its HTTP API, or its gRPC API.
    pub(crate) listener: SocketAddr,
    pub(crate) service: &'static str,
    pub(crate) is_grpc: bool,
    pub(crate) rate_rps: u32,
}

/// The outcome of one request.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) stream: &'static str,
    pub(crate) at: Instant,
    pub(crate) done: Instant,
    /// `None` for a good answer.
    pub(crate) failure: Option<Failure>,
}

/// Why a request failed, as the app sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nothing listens at the sidecar's listener: nothing was sent.
    Refused,
    /// The connection ended before the answer was whole.
    Broken(String),
    /// An answer that reports a failure.
    Answer(String),
    /// No answer in [`ANSWER_LIMIT`].
    Silence,
}

impl Failure {
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Refused => "connection refused".to_owned(),
            Self::Broken(reason) => format!("connection ended: {reason}"),
            Self::Answer(answer) => answer.clone(),
            Self::Silence => format!("no answer in {} s", ANSWER_LIMIT.as_secs()),
        }
    }
}

/// Calls under way until [`Calls::stop`].
pub(crate) struct Calls {
    runtime: tokio::runtime::Runtime,
    stop: watch::Sender<bool>,
    senders: Vec<tokio::task::JoinHandle<()>>,
    sent: Arc<Mutex<Vec<Sent>>>,
}

impl Calls {
    pub(crate) fn start(streams: &[Stream]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (stop, _) = watch::channel(false);
        let sent = Arc::new(Mutex::new(Vec::new()));
        let senders = streams
            .iter()
            .enumerate()
            .map(|(index, stream)| {
                let phase = Duration::from_millis(u64::try_from(index).unwrap() * 3);
                runtime.spawn(send(stream.clone(), phase, stop.subscribe(), sent.clone()))
            })
            .collect();
        Self { runtime, stop, senders, sent }
    }

    /// Sends no more, waits for all answers, and returns the outcome of every request.
    pub(crate) fn stop(self) -> Vec<Sent> {
        self.stop.send_replace(true);
        self.runtime.block_on(async {
            for sender in self.senders {
                sender.await.unwrap();
            }
        });
        let mut sent = std::mem::take(&mut *self.sent.lock().unwrap());
        sent.sort_by_key(|one| one.at);
        sent
    }
}

/// Sends at the stream's rate until stopped, then waits for the answers.
async fn send(
    stream: Stream,
    phase: Duration,
    mut stop: watch::Receiver<bool>,
    all: Arc<Mutex<Vec<Sent>>>,
) {
    let client = Arc::new(Client::new(stream.clone()));
    let mut tick = tokio::time::interval(Duration::from_secs(1) / stream.rate_rps);
    tokio::time::sleep(phase).await;
    let mut under_way = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            _ = stop.changed() => break,
        }
        let (client, all) = (client.clone(), all.clone());
        under_way.spawn(async move {
            let at = Instant::now();
            let outcome = tokio::time::timeout(ANSWER_LIMIT, client.call()).await;
            let failure = outcome.unwrap_or(Err(Failure::Silence)).err();
            let stream = client.stream.name;
            all.lock().unwrap().push(Sent { stream, at, done: Instant::now(), failure });
        });
        while under_way.try_join_next().is_some() {}
    }
    while under_way.join_next().await.is_some() {}
}

struct Client {
    stream: Stream,
    /// HTTP requests sent.
    count: AtomicU64,
    /// HTTP/1.1 connections without a request, last used last.
    idle: Mutex<Vec<http1::SendRequest<Full<Bytes>>>>,
    /// The HTTP/2 connection; replaced when it takes no more requests.
    shared: tokio::sync::Mutex<Option<http2::SendRequest<Full<Bytes>>>>,
}

impl Client {
    fn new(stream: Stream) -> Self {
        let (idle, shared) = (Mutex::new(Vec::new()), tokio::sync::Mutex::new(None));
        Self { stream, count: AtomicU64::new(0), idle, shared }
    }

    async fn call(&self) -> Result<(), Failure> {
        if self.stream.is_grpc { self.call_grpc().await } else { self.call_http().await }
    }

    async fn call_http(&self) -> Result<(), Failure> {
        let mut sender = self.http_connection().await?;
        let Stream { listener, service, .. } = &self.stream;
        let is_slow = self.count.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        let (path, expected) = if is_slow { (DELAY_PATH, 0) } else { ("echo", BODY_BYTES) };
        let uri = format!("/v1.0/invoke/{service}/method/{path}");
        let body = Full::new(Bytes::from(vec![b'x'; BODY_BYTES]));
        let request = Request::post(uri).header("host", listener.to_string()).body(body).unwrap();
        let answer = sender.send_request(request).await.map_err(broken)?;
        let status = answer.status();
        let body = whole(answer).await?;
        if status != 200 || body.len() != expected {
            let text = String::from_utf8_lossy(&body);
            return Err(Failure::Answer(format!("status {}: {text:.200}", status.as_u16())));
        }
        // One that the sidecar is about to close reports so and is left.
        if sender.ready().await.is_ok() {
            self.idle.lock().unwrap().push(sender);
        }
        Ok(())
    }

    async fn http_connection(&self) -> Result<http1::SendRequest<Full<Bytes>>, Failure> {
        loop {
            let Some(sender) = self.idle.lock().unwrap().pop() else { break };
            if sender.is_ready() {
                return Ok(sender);
            }
        }
        let stream = dial(self.stream.listener).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn call_grpc(&self) -> Result<(), Failure> {
        let mut sender = self.grpc_connection().await?;
        let request = Request::post(format!("http://{}{UNARY_PATH}", self.stream.listener))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("dapr-app-id", self.stream.service)
            .body(Full::new(Bytes::from_static(&EMPTY_MESSAGE)))
            .unwrap();
        let answer = sender.send_request(request).await.map_err(broken)?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await.map_err(broken)?;
        let of = |name: &str| {
            let trailer = body.trailers().and_then(|trailers| trailers.get(name));
            let value = trailer.or_else(|| head.headers.get(name));
            value.and_then(|value| value.to_str().ok()).unwrap_or("none").to_owned()
        };
        match of("grpc-status").as_str() {
            "0" => Ok(()),
            status => Err(Failure::Answer(format!("gRPC {status}: {:.200}", of("grpc-message")))),
        }
    }

    async fn grpc_connection(&self) -> Result<http2::SendRequest<Full<Bytes>>, Failure> {
        let mut shared = self.shared.lock().await;
        if let Some(sender) = &mut *shared
            && !sender.is_closed()
            && sender.ready().await.is_ok()
        {
            return Ok(sender.clone());
        }
        let stream = TokioIo::new(dial(self.stream.listener).await?);
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), stream).await.map_err(broken)?;
        tokio::spawn(connection);
        *shared = Some(sender.clone());
        Ok(sender)
    }
}

async fn dial(listener: SocketAddr) -> Result<TcpStream, Failure> {
    let stream = TcpStream::connect(listener).await.map_err(|error| {
        if error.kind() == std::io::ErrorKind::ConnectionRefused {
            Failure::Refused
        } else {
            Failure::Broken(error.to_string())
        }
    })?;
    stream.set_nodelay(true).unwrap();
    Ok(stream)
}

async fn whole(answer: Response<hyper::body::Incoming>) -> Result<Bytes, Failure> {
    Ok(answer.into_body().collect().await.map_err(broken)?.to_bytes())
}

/// An error and its causes in one line.
fn broken(error: impl std::error::Error) -> Failure {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    Failure::Broken(text)
}
