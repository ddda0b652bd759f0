//! Our connection against the `h2` crate, in both roles, over an in-memory pipe: bodies larger than
//! every window, trailers, resets, going away.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test stops where something unexpected comes"
)]

#[path = "../examples/h2_echo/echo.rs"]
#[allow(dead_code, reason = "its blocking driver is for the h2spec test and the example")]
mod echo;

use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tollway_http::h2::{Config, Connection, ErrorCode, Event, StreamId};
use tollway_http::{Fields, Method, RequestHead, ResponseHead};

const LARGE: usize = 3_000_000;

// Their client, our server.

#[tokio::test]
async fn their_client_gets_our_answer() {
    bounded(async {
        let mut client = client_of_echo().await;
        let (response, _) = client.send_request(request("GET"), true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/plain");
        assert_eq!(response.headers()["content-length"], "19");
        let (body, trailers) = read_all(response.into_body()).await;
        assert_eq!((&body[..], trailers), (echo::GREETING, None));
    })
    .await;
}

#[tokio::test]
async fn a_large_body_and_its_trailers_come_back_from_our_server() {
    bounded(async {
        let mut client = client_of_echo().await;
        let (response, mut upload) = client.send_request(request("POST"), false).unwrap();
        let sent = pattern(LARGE);
        let uploading = tokio::spawn({
            let sent = sent.clone();
            async move {
                send_all(&mut upload, &sent).await;
                let trailers = HeaderMap::from_iter([(
                    http::HeaderName::from_static("x-checksum"),
                    HeaderValue::from_static("abc"),
                )]);
                upload.send_trailers(trailers).unwrap();
            }
        });
        let (body, trailers) = read_all(response.await.unwrap().into_body()).await;
        uploading.await.unwrap();
        assert!(body == sent, "{} bytes came back", body.len());
        assert_eq!(trailers.unwrap()["x-checksum"], "abc");
    })
    .await;
}

#[tokio::test]
async fn many_streams_at_once_keep_apart() {
    bounded(async {
        let client = client_of_echo().await;
        let calls = (0..200_usize).map(|nth| {
            let mut client = client.clone();
            tokio::spawn(async move {
                client = client.ready().await.unwrap();
                let (response, mut upload) = client.send_request(request("POST"), false).unwrap();
                let sent = pattern(nth * 997);
                send_all(&mut upload, &sent).await;
                upload.send_data(Bytes::new(), true).unwrap();
                let (body, _) = read_all(response.await.unwrap().into_body()).await;
                assert!(body == sent, "stream {nth}");
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn resets_of_their_client_are_reported() {
    bounded(async {
        let (ours, theirs) = duplex(64 * 1024);
        let server = tokio::spawn(async move {
            let mut out = Vec::new();
            let connection = Connection::server(Config::default(), &mut out);
            let mut pump = Pump { connection, out, io: ours };
            loop {
                for event in pump.turn().await.0 {
                    if let Event::Reset { code, .. } = event {
                        return (code, pump.connection.active_streams());
                    }
                }
            }
        });
        let mut client = connect(theirs).await;
        let (_response, mut upload) = client.send_request(request("POST"), false).unwrap();
        upload.send_data(Bytes::from_static(b"some"), false).unwrap();
        tokio::task::yield_now().await;
        upload.send_reset(h2::Reason::CANCEL);
        assert_eq!(server.await.unwrap(), (ErrorCode::CANCEL, 0));
    })
    .await;
}

#[tokio::test]
async fn resets_of_our_server_reach_their_client() {
    bounded(async {
        let (ours, theirs) = duplex(64 * 1024);
        tokio::spawn(async move {
            let mut out = Vec::new();
            let connection = Connection::server(Config::default(), &mut out);
            let mut pump = Pump { connection, out, io: ours };
            loop {
                for event in pump.turn().await.0 {
                    if let Event::Request { stream, .. } = event {
                        pump.connection.reset(stream, ErrorCode::REFUSED_STREAM, &mut pump.out);
                    }
                }
            }
        });
        let mut client = connect(theirs).await;
        let (response, _) = client.send_request(request("GET"), true).unwrap();
        let error = response.await.unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::REFUSED_STREAM));
    })
    .await;
}

#[tokio::test]
async fn our_server_goes_away_without_losing_a_stream() {
    bounded(async {
        let (ours, theirs) = duplex(64 * 1024);
        let server = tokio::spawn(async move {
            let mut out = Vec::new();
            let connection = Connection::server(Config::default(), &mut out);
            let mut pump = Pump { connection, out, io: ours };
            let mut answered = 0;
            while answered < 2 {
                for event in pump.turn().await.0 {
                    if let Event::Request { stream, .. } = event {
                        pump.connection.goaway(ErrorCode::NO_ERROR, &mut pump.out);
                        let head = ResponseHead::new(200);
                        let out = &mut pump.out;
                        pump.connection.send_response(stream, &head, Some(0), true, out).unwrap();
                        answered += 1;
                    }
                }
            }
            pump.connection.goaway_final(&mut pump.out);
            pump.flush().await;
            assert!(pump.connection.is_going_away());
        });
        let (mut client, connection) = h2::client::handshake(theirs).await.unwrap();
        let (one, _) = client.send_request(request("GET"), true).unwrap();
        let (two, _) = client.send_request(request("GET"), true).unwrap();
        let ended = tokio::spawn(connection);
        assert_eq!(one.await.unwrap().status(), 200);
        assert_eq!(two.await.unwrap().status(), 200);
        server.await.unwrap();
        ended.await.unwrap().unwrap();
    })
    .await;
}

// Our client, their server.

#[tokio::test]
async fn our_client_sends_and_receives_large_bodies_and_trailers() {
    bounded(async {
        let io = their_echo_server(false);
        let mut pump = Pump::client(io);
        let head = post();
        let out = &mut pump.out;
        let stream = pump.connection.send_request(&head, Some(LARGE as u64), false, out).unwrap();
        let body = pattern(LARGE);
        let mut sent = 0;
        let mut received = Vec::new();
        let mut has_trailed = false;
        loop {
            let taken = pump.connection.send_data(stream, &body[sent..], false, &mut pump.out);
            sent += taken;
            if sent == body.len() && !has_trailed {
                has_trailed = true;
                let trailers = Fields::from_iter([(&b"x-end"[..], &b"yes"[..])]);
                pump.connection.send_trailers(stream, &trailers, &mut pump.out).unwrap();
            }
            let (events, input) = pump.turn().await;
            for event in events {
                match event {
                    Event::Response { head, .. } => assert_eq!(head.status, 200),
                    Event::Data { range, credit, .. } => {
                        received.extend_from_slice(&input[range]);
                        pump.connection.release(stream, credit, &mut pump.out);
                        pump.connection.release_connection(credit, &mut pump.out);
                    }
                    Event::Trailers { fields, .. } => {
                        assert_eq!(fields.value(b"x-end"), Some(&b"yes"[..]));
                        assert!(received == body, "{} bytes came back", received.len());
                        assert_eq!(pump.connection.active_streams(), 0);
                        return;
                    }
                    Event::WindowOpen { .. } | Event::SettingsChanged => {}
                    other => panic!("unexpected {other:?}"),
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn our_client_reports_informational_heads_and_the_final_one() {
    bounded(async {
        let mut pump = Pump::client(their_echo_server(true));
        pump.connection.send_request(&get(), None, true, &mut pump.out).unwrap();
        let mut statuses = Vec::new();
        loop {
            for event in pump.turn().await.0 {
                match event {
                    Event::Response { head, end, .. } => statuses.push((head.status, end)),
                    Event::Data { end: true, .. } => {
                        assert_eq!(statuses, [(103, false), (200, false)]);
                        return;
                    }
                    _ => {}
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn our_client_learns_which_streams_a_goaway_leaves_out() {
    bounded(async {
        let (ours, theirs) = duplex(64 * 1024);
        tokio::spawn(async move {
            let mut server =
                h2::server::Builder::new().handshake::<_, Bytes>(theirs).await.unwrap();
            let (_first, _respond) = server.accept().await.unwrap().unwrap();
            server.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM);
            while server.accept().await.is_some() {}
        });
        let mut pump = Pump::client(ours);
        let first = pump.connection.send_request(&post(), None, false, &mut pump.out).unwrap();
        let mut seen = Vec::new();
        while !seen.iter().any(|event| matches!(event, Event::GoAway { .. })) {
            seen.extend(pump.turn().await.0);
        }
        let Some(Event::GoAway { last, code }) = seen.pop() else { panic!("{seen:?}") };
        assert_eq!((last, code), (first, ErrorCode::ENHANCE_YOUR_CALM));
        assert!(pump.connection.is_going_away() && !pump.connection.can_open());
    })
    .await;
}

#[tokio::test]
async fn our_client_counts_the_streams_their_server_allows() {
    bounded(async {
        let (ours, theirs) = duplex(64 * 1024);
        tokio::spawn(async move {
            let mut server = h2::server::Builder::new()
                .max_concurrent_streams(3)
                .handshake::<_, Bytes>(theirs)
                .await
                .unwrap();
            let mut kept = Vec::new();
            while let Some(request) = server.accept().await {
                kept.push(request.unwrap());
            }
        });
        let mut pump = Pump::client(ours);
        while !pump.turn().await.0.contains(&Event::SettingsChanged) {}
        assert_eq!(pump.connection.peer_max_streams(), 3);
        for _ in 0..3 {
            assert!(pump.connection.can_open());
            pump.connection.send_request(&get(), None, true, &mut pump.out).unwrap();
        }
        let refused = pump.connection.send_request(&get(), None, true, &mut pump.out);
        assert_eq!(refused, Err(tollway_http::h2::OpenError::TooManyStreams { limit: 3 }));
        pump.connection.reset(StreamId(3), ErrorCode::CANCEL, &mut pump.out);
        assert!(pump.connection.can_open());
    })
    .await;
}

// Helpers.

/// Fails a test that waits for something that never comes.
async fn bounded(test: impl Future<Output = ()>) {
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, test).await.expect("the test ends within a minute");
}

/// Our side of a pipe.
struct Pump {
    connection: Connection,
    out: Vec<u8>,
    io: DuplexStream,
}

impl Pump {
    fn client(io: DuplexStream) -> Self {
        let mut out = Vec::new();
        let connection = Connection::client(Config::default(), &mut out);
        Self { connection, out, io }
    }

    /// Writes what is due, reads once; the events and the input they point into.
    async fn turn(&mut self) -> (Vec<Event>, Vec<u8>) {
        self.flush().await;
        let mut input = vec![0; 20_000];
        let reading = tokio::time::timeout(Duration::from_secs(20), self.io.read(&mut input));
        let count = reading.await.expect("the peer is silent").unwrap();
        assert_ne!(count, 0, "the peer closed the pipe");
        input.truncate(count);
        let mut events = Vec::new();
        let now = Duration::ZERO;
        self.connection.receive(&input, now, &mut events, &mut self.out).unwrap();
        (events, input)
    }

    async fn flush(&mut self) {
        self.io.write_all(&self.out).await.unwrap();
        self.out.clear();
    }
}

async fn client_of_echo() -> SendRequest<Bytes> {
    let (ours, theirs) = duplex(64 * 1024);
    tokio::spawn(serve_echo(ours));
    connect(theirs).await
}

async fn serve_echo(io: DuplexStream) {
    let mut echo = echo::Echo::new(Config::default());
    let (mut reader, mut writer) = tokio::io::split(io);
    let mut input = vec![0; 20_000];
    loop {
        let out = std::mem::take(&mut echo.out);
        if writer.write_all(&out).await.is_err() {
            return;
        }
        let Ok(count @ 1..) = reader.read(&mut input).await else { return };
        let mut events = Vec::new();
        let input = &input[..count];
        echo.connection.receive(input, Duration::ZERO, &mut events, &mut echo.out).unwrap();
        events.into_iter().for_each(|event| echo.handle(event, input));
    }
}

async fn connect(io: DuplexStream) -> SendRequest<Bytes> {
    let (client, connection) = h2::client::handshake(io).await.unwrap();
    tokio::spawn(connection);
    client.ready().await.unwrap()
}

/// A server of the `h2` crate that sends every body and its trailers back.
fn their_echo_server(with_hints: bool) -> DuplexStream {
    let (ours, theirs) = duplex(64 * 1024);
    tokio::spawn(async move {
        let mut server = h2::server::handshake(theirs).await.unwrap();
        while let Some(Ok((request, mut respond))) = server.accept().await {
            tokio::spawn(async move {
                if with_hints {
                    let hints = Response::builder().status(103).body(()).unwrap();
                    respond.send_informational(hints).unwrap();
                }
                let mut upload = respond.send_response(Response::new(()), false).unwrap();
                let mut body = request.into_body();
                while let Some(chunk) = body.data().await {
                    let chunk = chunk.unwrap();
                    body.flow_control().release_capacity(chunk.len()).unwrap();
                    send_all(&mut upload, &chunk).await;
                }
                match body.trailers().await.unwrap() {
                    Some(trailers) => upload.send_trailers(trailers).unwrap(),
                    None => upload.send_data(Bytes::new(), true).unwrap(),
                }
            });
        }
    });
    ours
}

/// Sends as their flow control allows.
async fn send_all(upload: &mut h2::SendStream<Bytes>, mut data: &[u8]) {
    while !data.is_empty() {
        upload.reserve_capacity(data.len());
        let capacity = std::future::poll_fn(|cx| upload.poll_capacity(cx)).await.unwrap().unwrap();
        let (now, later) = data.split_at(capacity.min(data.len()));
        upload.send_data(Bytes::copy_from_slice(now), false).unwrap();
        data = later;
    }
}

async fn read_all(mut body: h2::RecvStream) -> (Vec<u8>, Option<HeaderMap>) {
    let mut all = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        all.extend_from_slice(&chunk);
    }
    (all, body.trailers().await.unwrap())
}

fn request(method: &str) -> Request<()> {
    Request::builder().method(method).uri("http://stock.mesh/path").body(()).unwrap()
}

fn get() -> RequestHead {
    RequestHead { path: b"/path".to_vec(), authority: b"stock.mesh".to_vec(), ..Default::default() }
}

fn post() -> RequestHead {
    RequestHead { method: Method::Post, ..get() }
}

/// Bytes that differ from place to place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251).to_le_bytes()[0]).collect()
}
