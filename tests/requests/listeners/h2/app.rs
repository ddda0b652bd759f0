//! An app over HTTP/2 of which a test decides every frame, and the listeners that lead to it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tollway_testkit::{Process, TlsRelay, retry_until};

use tollway_tests::h2_frames::{
    ACK, DATA, END_HEADERS, END_STREAM, Frame, HEADERS, INITIAL_WINDOW, NO_ERROR, PING, PREFACE,
    SETTINGS, block, frame, goaway, setting, window_update,
};
use tollway_tests::network::{Network, PATIENCE, STOCK, until_status};

/// What the app does about a frame.
pub(crate) enum Said {
    Frames(Vec<u8>),
    /// The same, and then closes.
    Last(Vec<u8>),
}

/// Decides on a frame that came on the connection of that number, from 0.
type Decide = dyn Fn(usize, &Frame) -> Said + Send + Sync;

/// Threads of it end with their connections.
pub(crate) struct FrameApp {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    say: Arc<Decide>,
    heard: Vec<(usize, Frame)>,
    connections: usize,
}

impl FrameApp {
    /// Answers every request with 200 until it is set otherwise.
    pub(crate) fn start() -> Self {
        Self::start_as(None)
    }

    /// An app with TLS: another sidecar.
    pub(crate) fn start_with_tls(config: Arc<ServerConfig>) -> Self {
        Self::start_as(Some(config))
    }

    fn start_as(tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let say: Arc<Decide> = Arc::new(|_, frame| Said::Frames(honest(frame)));
        let state = Arc::new(Mutex::new(State { say, heard: Vec::new(), connections: 0 }));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, shared, tls) = (stream.unwrap(), Arc::clone(&shared), tls.clone());
                std::thread::spawn(move || match tls {
                    Some(config) => {
                        let tls = ServerConnection::new(config).unwrap();
                        serve(StreamOwned::new(tls, stream), &shared);
                    }
                    None => serve(stream, &shared),
                });
            }
        });
        Self { address, state }
    }

    /// Sets its behaviour from now on; forgets the frames it received.
    pub(crate) fn set_behaviour(
        &self,
        say: impl Fn(usize, &Frame) -> Said + Send + Sync + 'static,
    ) {
        let mut state = self.state.lock().unwrap();
        state.say = Arc::new(say);
        state.heard.clear();
    }

    /// The same, saying what `answer` makes of the stream of each request that has ended.
    pub(crate) fn now_answers(&self, answer: impl Fn(u32) -> Said + Send + Sync + 'static) {
        self.set_behaviour(move |_, frame| match frame.ends_stream() {
            true => answer(frame.stream),
            false => Said::Frames(Vec::new()),
        });
    }

    /// The frames that came since then.
    pub(crate) fn heard(&self) -> Vec<(usize, Frame)> {
        self.state.lock().unwrap().heard.clone()
    }

    /// Waits for a frame that `is_it`.
    #[track_caller]
    pub(crate) fn until_heard(&self, what: &str, is_it: impl Fn(&Frame) -> bool) -> Frame {
        let found = || self.heard().into_iter().map(|(_, frame)| frame).find(&is_it);
        retry_until(PATIENCE, what, found).unwrap()
    }
}

/// 200 and two bytes once a request has ended.
pub(crate) fn honest(frame: &Frame) -> Vec<u8> {
    if frame.ends_stream() { answer(frame.stream) } else { Vec::new() }
}

/// A whole answer.
pub(crate) fn answer(stream: u32) -> Vec<u8> {
    let head = block(&[(":status", "200"), ("content-length", "2")]);
    [frame(HEADERS, END_HEADERS, stream, &head), frame(DATA, END_STREAM, stream, b"ok")].concat()
}

/// Waits on its present connection for `streams` requests, announces that it processed the first
/// alone, answers that, and closes. On other connections it is honest.
pub(crate) fn goes_away_at_first(
    streams: usize,
) -> impl Fn(usize, &Frame) -> Said + Send + Sync + 'static {
    let open = Mutex::new((None, Vec::new()));
    move |connection, frame| {
        let mut open = open.lock().unwrap();
        let (present, ended) = &mut *open;
        if !frame.ends_stream() || *present.get_or_insert(connection) != connection {
            return Said::Frames(honest(frame));
        }
        ended.push(frame.stream);
        if ended.len() < streams {
            return Said::Frames(Vec::new());
        }
        let first = *ended.iter().min().unwrap();
        Said::Last([goaway(first, NO_ERROR), answer(first)].concat())
    }
}

fn serve(mut stream: impl Read + Write, state: &Mutex<State>) {
    let nth = {
        let mut state = state.lock().unwrap();
        state.connections += 1;
        state.connections - 1
    };
    let mut preface = [0; PREFACE.len()];
    let hello = [
        frame(SETTINGS, 0, 0, &setting(INITIAL_WINDOW, 1 << 30)),
        frame(SETTINGS, ACK, 0, &[]),
        window_update(0, 1 << 30),
    ];
    if stream.read_exact(&mut preface).is_err() || stream.write_all(&hello.concat()).is_err() {
        return;
    }
    while let Some(came) = Frame::read(&mut stream) {
        let say = {
            let mut state = state.lock().unwrap();
            state.heard.push((nth, came.clone()));
            Arc::clone(&state.say)
        };
        let said = match came.kind {
            PING if came.flags & ACK == 0 => Said::Frames(frame(PING, ACK, 0, &came.payload)),
            _ => say(nth, &came),
        };
        let (Said::Frames(bytes) | Said::Last(bytes)) = &said;
        if stream.write_all(bytes).is_err() || matches!(said, Said::Last(_)) {
            return;
        }
    }
}

/// Has a call over HTTP/1.1 reach an app of gRPC as it is: others are translated for it.
pub(crate) const GRPC_KIND: &str = "content-type: application/grpc\r\n";

/// A sidecar before such an app, and its inbound listener for callers of either version.
pub(crate) struct Before {
    pub(crate) app: FrameApp,
    network: Network,
    _sidecar: Process,
    http1: TlsRelay,
    http2: TlsRelay,
}

impl Before {
    /// `protocol` is `h2c` or `grpc`.
    pub(crate) fn open(protocol: &str, options: &[&str]) -> Self {
        let app = FrameApp::start();
        let network = Network::start("west");
        let port = app.address.port().to_string();
        let own = ["--app-port", &port, "--app-protocol", protocol];
        let sidecar = network.sidecar("stock", &[&own, options].concat());
        let inbound = sidecar.port("inbound").unwrap();
        let http1 = network.relay(inbound, "web", "stock", b"http/1.1");
        let http2 = network.relay(inbound, "web", "stock", b"h2");
        let kind = if protocol == "grpc" { GRPC_KIND } else { "" };
        let warm = Self::get("/warm").replace("\r\n\r\n", &format!("\r\n{kind}\r\n"));
        until_status(http1.address(), &warm, 200);
        Self { app, network, _sidecar: sidecar, http1, http2 }
    }

    pub(crate) const HOST: &str = STOCK;

    pub(crate) fn get(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", Self::HOST)
    }

    /// A sidecar of `app` that only calls.
    pub(crate) fn caller(&self, app: &str) -> Process {
        self.network.sidecar(app, &[])
    }

    pub(crate) fn http1(&self) -> SocketAddr {
        self.http1.address()
    }

    pub(crate) fn http2(&self) -> SocketAddr {
        self.http2.address()
    }
}
