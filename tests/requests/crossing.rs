//! Calls from one network into another: every listener, every protocol, through real processes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::{HeaderMap, Request};
use tollway_testkit::{End, RawClient, retry_until};
use tollway_tests::mesh::chat::{self, UPGRADE};
use tollway_tests::mesh::http::{Answer, Client, Version, empty, full, get, runtime};
use tollway_tests::mesh::{AppProtocol, Mesh, PATIENCE, Sidecar, counter};

const SERVICE: &str = "echo.default.east";
const HOST: &str = "echo.default.east.mesh";
const VERSIONS: [Version; 2] = [Version::Http1, Version::Http2];

#[test]
fn every_way_of_naming_a_service_reaches_an_http_app() {
    every_way_reaches(AppProtocol::Http);
}

#[test]
fn every_way_of_naming_a_service_reaches_an_http2_app() {
    every_way_reaches(AppProtocol::H2c);
}

fn every_way_reaches(protocol: AppProtocol) {
    let mesh = Mesh::start();
    let _app = mesh.east.app("echo", "east-1", protocol);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    runtime().block_on(async {
        for version in VERSIONS {
            for way in Addressing::ALL {
                let case = format!("{version:?} {way:?}");
                let mut client = way.connect(version, &caller).await;
                let answer = client.exchange(way.request("POST", "/echo", full("ping"))).await;
                assert_eq!((answer.status, &answer.body[..]), (200, &b"ping"[..]), "{case}");
                assert_eq!(answer.replica, "east-1", "{case}");
                // The app sees its own path, whatever the caller had to write.
                let head = client.exchange(way.request("GET", "/headers?a=b%20c", empty())).await;
                let seen = head.text();
                assert!(seen.contains("\n:path: /headers?a=b%20c\n"), "{case}: {seen}");
                // No answer is not the same as no body.
                let none = client.exchange(way.request("GET", "/status/204", empty())).await;
                assert_eq!((none.status, none.body.len()), (204, 0), "{case}");
            }
            trailers_and_trace_context_cross(version, &caller).await;
        }
    });
    assert_host_header_is_enough(caller.outbound());
}

/// How a caller names the callee.
#[derive(Clone, Copy, Debug)]
enum Addressing {
    /// `/v1.0/invoke/SERVICE/method/PATH` at the HTTP API.
    InvokePath,
    /// The header `dapr-app-id` at the HTTP API.
    AppIdHeader,
    /// A URL of the host `SERVICE.mesh` at the outbound port; HTTP/1.1 sends it whole.
    MeshUrl,
    /// CONNECT at the outbound port, and the request through the tunnel.
    Connect,
}

impl Addressing {
    const ALL: [Self; 4] = [Self::InvokePath, Self::AppIdHeader, Self::MeshUrl, Self::Connect];

    async fn connect(self, version: Version, caller: &Sidecar) -> Client {
        match self {
            Self::InvokePath | Self::AppIdHeader => Client::connect(version, caller.http()).await,
            Self::MeshUrl => Client::connect(version, caller.outbound()).await,
            Self::Connect => {
                let stream = tunnel(caller.outbound());
                stream.set_nonblocking(true).unwrap();
                Client::over(version, tokio::net::TcpStream::from_std(stream).unwrap()).await
            }
        }
    }

    fn request(
        self,
        method: &str,
        path: &str,
        body: tollway_tests::mesh::http::Body,
    ) -> Request<tollway_tests::mesh::http::Body> {
        let request = Request::builder().method(method);
        let request = match self {
            Self::InvokePath => {
                request.uri(format!("http://sidecar/v1.0/invoke/{SERVICE}/method{path}"))
            }
            Self::AppIdHeader => {
                request.uri(format!("http://sidecar{path}")).header("dapr-app-id", SERVICE)
            }
            Self::MeshUrl | Self::Connect => request.uri(format!("http://{HOST}{path}")),
        };
        request.body(body).unwrap()
    }
}

/// The stream that CONNECT opens to the app.
fn tunnel(outbound: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(outbound).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "CONNECT {HOST}:80 HTTP/1.1\r\nHost: {HOST}:80\r\n\r\n").unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
    stream
}

async fn trailers_and_trace_context_cross(version: Version, caller: &Sidecar) {
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut client = Client::connect(version, caller.http()).await;
    let mut trailers = HeaderMap::new();
    trailers.insert("x-trailer", "at the end".parse().unwrap());
    let frames = [Frame::data(Bytes::from("body")), Frame::trailers(trailers)];
    let body = StreamBody::new(tokio_stream::iter(frames.map(Ok))).boxed();
    let mut request = Addressing::InvokePath.request("POST", "/echo", body);
    request.headers_mut().insert("trailer", "x-trailer".parse().unwrap());
    request.headers_mut().insert("te", "trailers".parse().unwrap());
    let answer = client.exchange(request).await;
    assert_eq!(&answer.body[..], b"body", "{version:?}");
    assert_eq!(answer.trailer.as_deref(), Some("at the end"), "{version:?}");

    let mut request = Addressing::InvokePath.request("GET", "/headers", empty());
    request.headers_mut().insert("traceparent", PARENT.parse().unwrap());
    let seen = client.exchange(request).await.text();
    let trace = PARENT.split('-').nth(1).unwrap();
    assert!(seen.contains("traceparent: ") && seen.contains(trace), "{version:?}: {seen}");
}

/// A client without proxies, whose name resolution leads here.
fn assert_host_header_is_enough(outbound: SocketAddr) {
    let request = format!("GET /headers HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
    let answer = RawClient::exchange(outbound, request, PATIENCE).unwrap();
    assert_eq!(answer.statuses(), [200]);
    assert!(answer.text().contains("x-echo-name: east-1"), "{}", answer.text());
}

#[test]
fn calls_through_the_own_gateway_cross_too() {
    let mesh = Mesh::with(&["--remote-calls", "gateway"]);
    let _app = mesh.east.app("echo", "east-1", AppProtocol::Http);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    let counts = || {
        [&mesh.west, &mesh.east]
            .map(|network| counter(&network.gateway, "tollway_relayed_bytes_total"))
    };
    let before = counts();
    runtime().block_on(async {
        let mut client = Client::connect(Version::Http1, caller.http()).await;
        let body = vec![b'x'; 1 << 20];
        let request = Addressing::InvokePath.request("POST", "/echo", full(body.clone()));
        assert!(client.exchange(request).await.body == body);
    });
    let grown = [counts()[0] - before[0], counts()[1] - before[1]];
    assert!(grown.iter().all(|bytes| *bytes >= 2 << 20), "relayed by the gateways: {grown:?}");
}

#[test]
fn refusals_name_what_was_asked_for() {
    let mesh = Mesh::start();
    let caller = mesh.west.caller(&[]);
    for (service, status, code, word) in [
        ("nobody.default.east", 404, "ERR_UNKNOWN_SERVICE", "nobody.default.east"),
        ("nobody", 404, "ERR_UNKNOWN_SERVICE", "nobody.default.west"),
        ("echo.default.south", 404, "ERR_UNKNOWN_NETWORK", "south"),
        ("a.b.c.d", 400, "ERR_BAD_NAME", "a.b.c.d"),
    ] {
        let answer = get(caller.http(), &format!("/v1.0/invoke/{service}/method/echo"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{service}: {answer}");
        assert!(answer.contains(code) && answer.contains(word), "{service}: {answer}");
    }
}

#[test]
fn a_sidecar_serves_its_health_and_metadata() {
    let mesh = Mesh::not_joined(&[]);
    let mut app = mesh.east.app("echo", "east-1", AppProtocol::Http);
    let api = app.sidecar.http();
    let until = |path: &str, status: &str| {
        let reached = retry_until(PATIENCE, path, || {
            get(api, path).starts_with(&format!("HTTP/1.1 {status} ")).then_some(())
        });
        assert!(reached.is_ok(), "{path} is not {status}: {}", get(api, path));
    };
    until("/v1.0/healthz", "204");
    until("/v1.0/healthz/outbound", "204");
    until("/v1.0/healthz?appid=echo", "204");
    until("/v1.0/healthz?appid=other", "500");
    let metadata = get(api, "/v1.0/metadata");
    let body = metadata.split_once("\r\n\r\n").unwrap().1;
    let metadata: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(metadata["id"], "echo");
    assert_eq!(metadata["network"], "east");
    assert_eq!(metadata["appConnectionProperties"]["protocol"], "http");
    // An app that takes no connections makes its sidecar unwell, and its calls outward go on.
    app.echo.kill().unwrap();
    until("/v1.0/healthz", "500");
    until("/v1.0/healthz/outbound", "204");
}

#[test]
fn tcp_crosses_and_half_closes() {
    const SENT: usize = 8 << 20;
    let mesh = Mesh::start();
    let _app = mesh.east.app("db", "east-1", AppProtocol::Tcp);
    let caller = mesh.west.caller(&["--upstream", "0=db.default.east"]);
    let address = caller.upstream("db.default.east");
    until_tcp_answers(address);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let sent: Vec<u8> = (0..SENT).map(|at| (at % 251) as u8).collect();
    let mut writing = stream.try_clone().unwrap();
    let received = std::thread::scope(|scope| {
        scope.spawn(|| {
            writing.write_all(&sent).unwrap();
            // The end of one direction is passed on, and the other side can still answer.
            writing.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        received
    });
    assert!(received == sent, "{} of {SENT} bytes came back, or others", received.len());
}

#[test]
fn an_upgraded_connection_crosses_and_ends_with_both_sides() {
    let port = chat::start("bye");
    let mesh = Mesh::start();
    let _app = mesh.east.sidecar_of("chat", port, AppProtocol::Http);
    let caller = mesh.west.caller(&[]);
    caller.until_served("chat.default.east");
    let mut client = RawClient::connect(caller.http()).unwrap();
    let target = "/v1.0/invoke/chat.default.east/method/chat";
    client.send(format!("GET {target} HTTP/1.1\r\nHost: sidecar\r\n{UPGRADE}\r\n")).unwrap();
    let head = client.read_until(PATIENCE, |bytes| bytes.ends_with(b"\r\n\r\n")).unwrap();
    assert_eq!(head.statuses(), [101], "{}", head.text());
    assert!(head.text().to_lowercase().contains("upgrade: chat\r\n"), "{}", head.text());
    for said in [&b"one"[..], b"and another"] {
        client.send(said).unwrap();
        let heard = client.read_until(PATIENCE, |bytes| bytes.len() >= said.len()).unwrap();
        assert_eq!(heard.bytes, said);
    }
    client.finish_sending().unwrap();
    let end = client.read_to_end(PATIENCE).unwrap();
    assert_eq!((end.end, end.text().as_str()), (End::Closed, "bye"));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let mesh = Mesh::start();
    let _app = mesh.east.app("echo", "east-1", AppProtocol::Http);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    // The first takes longest.
    let requests = ["delay?ms=300", "status/404", "status/201"].map(|path| {
        let last = if path == "status/201" { "Connection: close\r\n" } else { "" };
        let target = format!("/v1.0/invoke/{SERVICE}/method/{path}");
        format!("GET {target} HTTP/1.1\r\nHost: sidecar\r\n{last}\r\n")
    });
    let answer = RawClient::exchange(caller.http(), requests.concat(), PATIENCE).unwrap();
    assert_eq!((answer.statuses(), answer.end), (vec![200, 404, 201], End::Closed));
}

/// The sidecar gets the service only at the first request for it.
fn until_tcp_answers(address: SocketAddr) {
    let answered = retry_until(PATIENCE, "TCP across", || {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        stream.write_all(b"ping").ok()?;
        let mut echo = [0; 4];
        stream.read_exact(&mut echo).ok()?;
        Some(echo)
    });
    assert_eq!(&answered.unwrap(), b"ping");
}

#[test]
fn concurrent_requests_of_one_connection_keep_their_answers() {
    let mesh = Mesh::start();
    let _app = mesh.east.app("echo", "east-1", AppProtocol::Http);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    runtime().block_on(async {
        let Client::Http2(sender) = Client::connect(Version::Http2, caller.http()).await else {
            unreachable!("asked for HTTP/2")
        };
        let calls: Vec<_> = (0..300_usize)
            .map(|number| {
                let mut client = Client::Http2(sender.clone());
                // Of different lengths, so that answers overtake each other.
                let body = vec![(number % 256) as u8; number * 211 % 40_000];
                tokio::spawn(async move {
                    let request =
                        Addressing::InvokePath.request("POST", "/echo", full(body.clone()));
                    let answer: Answer = client.exchange(request).await;
                    assert_eq!(answer.status, 200);
                    assert!(answer.body == body, "call {number} got another's answer");
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
    });
}
