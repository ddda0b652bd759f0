//! gRPC on the wire: messages of an app or a caller arrive unchanged, also if they are wrong, since
//! the other end judges them; sidecars only add statuses that gRPC defines.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Request;
use rustix::process::Signal;
use tollway_testkit::{Process, RawClient, retry_until};

use super::app::{Before, Said};
use super::grpc_app::GrpcApp;
use tollway_tests::h2_frames::{
    CANCEL, DATA, END_HEADERS, END_STREAM, HEADERS, NO_ERROR, block, frame, reset_with,
};
use tollway_tests::mesh::http::{Body, Client, Version, empty, full, runtime};
use tollway_tests::network::{Network, PATIENCE, until_status};

/// A caller's sidecar and a callee's with an app; the caller uses the gRPC API.
struct SidecarPair {
    app: GrpcApp,
    network: Network,
    _stock: Process,
    web: Process,
}

impl SidecarPair {
    fn open() -> Self {
        let way = Self::open_cold();
        until_status(way.web.port("http").unwrap(), &request("/warm", ""), 200);
        way
    }

    /// Before the first call.
    fn open_cold() -> Self {
        let app = GrpcApp::start();
        let network = Network::start("west");
        let port = app.address.port().to_string();
        let stock = network.sidecar("stock", &["--app-port", &port, "--app-protocol", "grpc"]);
        let web = network.sidecar("web", &[]);
        Self { app, network, _stock: stock, web }
    }

    fn call(&self, path: &str, fields: &str) -> String {
        let request = request(path, &format!("connection: close\r\n{fields}"));
        let address = self.web.port("http").unwrap();
        RawClient::exchange(address, request, PATIENCE).unwrap().text()
    }
}

/// A call of a caller over HTTP/1.1, who has its answer read as it comes.
fn request(path: &str, fields: &str) -> String {
    format!(
        "POST /v1.0/invoke/stock/method{path} HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/grpc\r\nte: trailers\r\n{fields}content-length: 0\r\n\r\n"
    )
}

fn asked(path: &str, body: Body) -> Request<Body> {
    Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("dapr-app-id", "stock")
        .header("te", "trailers")
        .body(body)
        .unwrap()
}

/// An invalid time, or one too long to be measured, is for the app to judge.
#[test]
fn odd_timeouts_arrive_as_they_are() {
    let way = SidecarPair::open();
    for (nth, value) in [
        "",
        "1",
        "S",
        "abc",
        "-1S",
        "+1S",
        "1.5S",
        "1s",
        "123456789S",
        "99999999H",
        "1 S",
        "1S, 2S",
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/odd-{nth}");
        let answer = way.call(&path, &format!("grpc-timeout: {value}\r\n"));
        assert!(answer.contains("grpc-status: 0\r\n"), "{value}: {answer}");
        let calls = way.app.calls(&path);
        assert_eq!(calls.len(), 1, "{value}");
        assert_eq!(calls[0].fields["grpc-timeout"], value);
    }
}

/// A caller that does not keep its own deadline: it gets the deadline error, and the app a reset.
#[test]
fn a_call_ends_with_its_time() {
    let way = SidecarPair::open();
    let answer = way.call("/stuck", "grpc-timeout: 2000m\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("grpc-status: 4\r\n"), "{answer}");
    assert!(answer.contains("x-tollway-error: ERR_TIMED_OUT\r\n"), "{answer}");
    let called_off = || way.app.was_called_off("/stuck").then_some(());
    retry_until(PATIENCE, "the end at the app", called_off).unwrap();
    // The app's time is no more than the caller allowed.
    let reported = way.app.calls("/stuck")[0].fields["grpc-timeout"].clone();
    let reported = timeout(reported.to_str().unwrap());
    assert!(reported <= Duration::from_secs(2), "{reported:?}");
    // Others keep their time.
    assert!(way.call("/other", "grpc-timeout: 30S\r\n").contains("grpc-status: 0\r\n"));
}

/// The app gets the time that remains when the call reaches it.
#[test]
fn time_that_a_call_waits_is_taken_off_its_own() {
    const WAITED: Duration = Duration::from_millis(300);
    let way = SidecarPair::open_cold();
    // Without a control plane that answers, the service is not known yet.
    way.network.control.signal(Signal::STOP).unwrap();
    let requests = || way.web.metric("tollway_outbound_requests_total");
    let earlier = requests().unwrap();
    let answer = std::thread::scope(|scope| {
        let call = scope.spawn(|| way.call("/waits", "grpc-timeout: 30S\r\n"));
        let taken = || (requests().ok()? > earlier).then_some(());
        retry_until(PATIENCE, "the call at its sidecar", taken).unwrap();
        std::thread::sleep(WAITED);
        way.network.control.signal(Signal::CONT).unwrap();
        call.join().unwrap()
    });
    assert!(answer.contains("grpc-status: 0\r\n"), "{answer}");
    let reported = way.app.calls("/waits")[0].fields["grpc-timeout"].clone();
    let reported = timeout(reported.to_str().unwrap());
    assert!(reported <= Duration::from_secs(30) - WAITED, "{reported:?}");
}

/// As gRPC writes it.
fn timeout(text: &str) -> Duration {
    let (amount, unit) = text.split_at(text.len() - 1);
    let amount: u64 = amount.parse().unwrap();
    match unit {
        "n" => Duration::from_nanos(amount),
        "u" => Duration::from_micros(amount),
        "m" => Duration::from_millis(amount),
        "S" => Duration::from_secs(amount),
        _ => panic!("{text}"),
    }
}

/// A caller that gives up: its app gets a reset with the code for that.
#[test]
fn a_call_that_is_called_off_ends_at_the_app() {
    let way = SidecarPair::open();
    runtime().block_on(async {
        let grpc = way.web.port("grpc").unwrap();
        let mut client = Client::connect(Version::Http2, grpc).await;
        let call = client.send(asked("/given-up-stuck", empty()));
        let begun = async {
            while way.app.calls("/given-up-stuck").is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = call => panic!("answered"),
            () = begun => {}
        }
        // The call is dropped here, and hyper resets its stream.
        let called_off = async {
            while !way.app.was_called_off("/given-up-stuck") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, called_off).await.expect("the app hears of it");
        // The connection goes on.
        let answer = client.exchange(asked("/next", full("x"))).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "x"));
    });
}

/// Messages are forwarded as bytes: a wrong length, a flag without a coding, an unknown coding.
#[test]
fn messages_arrive_as_they_are() {
    let way = SidecarPair::open();
    let bodies: [(&str, &[u8]); 6] = [
        ("/whole", b"\0\0\0\0\x05hello"),
        ("/compressed-flag", b"\x01\0\0\0\x05hello"),
        ("/unknown-flag", b"\x07\0\0\0\x05hello"),
        ("/4-gib", b"\0\xff\xff\xff\xffhello"),
        ("/cut-in-prefix", b"\0\0\0"),
        ("/cut-in-message", b"\0\0\0\0\x09hello"),
    ];
    runtime().block_on(async {
        let mut client = Client::connect(Version::Http2, way.web.port("grpc").unwrap()).await;
        for coding in ["identity", "gzip", "none-such"] {
            for (path, body) in bodies {
                let path = format!("{path}-{coding}");
                let mut call = asked(&path, full(Bytes::from_static(body)));
                call.headers_mut().insert("grpc-encoding", coding.parse().unwrap());
                call.headers_mut().insert("grpc-accept-encoding", "gzip, br".parse().unwrap());
                let answer = client.exchange(call).await;
                assert_eq!((answer.status, &answer.body[..]), (200, body), "{path}");
                let [came] = &way.app.calls(&path)[..] else { panic!("{path}") };
                assert_eq!(came.fields["grpc-encoding"], coding, "{path}");
                assert_eq!(came.fields["grpc-accept-encoding"], "gzip, br", "{path}");
                assert_eq!(came.body.as_deref(), Some(body), "{path}");
            }
        }
    });
}

/// An app's answers, and what its caller gets.
struct Case {
    name: &'static str,
    says: fn(u32) -> Vec<u8>,
    hears: Hears,
}

enum Hears {
    /// That status of HTTP, that of gRPC in the head, that body, that status in trailers.
    All(u16, Option<&'static str>, &'static [u8], Option<&'static str>),
    /// A status of gRPC from a sidecar, in the head.
    Told(&'static str),
    /// The beginning, and a reset by that code.
    Reset(u32),
}

const MESSAGE: &[u8] = b"\0\0\0\0\x05hello";

fn head(stream: u32, flags: u8, lines: &[(&str, &str)]) -> Vec<u8> {
    let all = [&[(":status", "200"), ("content-type", "application/grpc")], lines].concat();
    frame(HEADERS, END_HEADERS | flags, stream, &block(&all))
}

fn trailers(stream: u32, lines: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(lines))
}

fn begun(stream: u32) -> Vec<u8> {
    [head(stream, 0, &[]), frame(DATA, 0, stream, MESSAGE)].concat()
}

fn cases() -> Vec<Case> {
    use Hears::{All, Reset, Told};
    let case = |name, says, hears| Case { name, says, hears };
    vec![
        case(
            "trailers only",
            |s| head(s, END_STREAM, &[("grpc-status", "5"), ("grpc-message", "not%20here")]),
            All(200, Some("5"), b"", None),
        ),
        case(
            "trailers",
            |s| [begun(s), trailers(s, &[("grpc-status", "0")])].concat(),
            All(200, None, MESSAGE, Some("0")),
        ),
        case(
            "a status that nobody knows",
            |s| [begun(s), trailers(s, &[("grpc-status", "999")])].concat(),
            All(200, None, MESSAGE, Some("999")),
        ),
        case(
            "trailers without status",
            |s| [begun(s), trailers(s, &[("x-a", "b")])].concat(),
            All(200, None, MESSAGE, None),
        ),
        case(
            "no trailers",
            |s| [head(s, 0, &[]), frame(DATA, END_STREAM, s, MESSAGE)].concat(),
            All(200, None, MESSAGE, None),
        ),
        case(
            "reset behind trailers",
            |s| [begun(s), trailers(s, &[("grpc-status", "0")]), reset_with(s, NO_ERROR)].concat(),
            All(200, None, MESSAGE, Some("0")),
        ),
        case(
            "a failure of HTTP",
            |s| {
                let head = block(&[(":status", "503"), ("content-type", "text/html")]);
                let head = frame(HEADERS, END_HEADERS, s, &head);
                [head, frame(DATA, END_STREAM, s, b"<p>later</p>")].concat()
            },
            All(503, None, b"<p>later</p>", None),
        ),
        case("cancelled", |s| reset_with(s, CANCEL), Told("1")),
        case("internal", |s| reset_with(s, 2), Told("13")),
        case("calm", |s| reset_with(s, 11), Told("8")),
        case("insecure", |s| reset_with(s, 12), Told("7")),
        case("reset in the middle", |s| [begun(s), reset_with(s, 2)].concat(), Reset(2)),
        case("calm in the middle", |s| [begun(s), reset_with(s, 11)].concat(), Reset(11)),
        case(
            "cancelled in the middle",
            |s| [begun(s), reset_with(s, CANCEL)].concat(),
            Reset(CANCEL),
        ),
    ]
}

#[test]
fn answers_of_an_app_arrive_unchanged_or_as_an_error() {
    let before = Before::open("grpc", &[]);
    let web = before.caller("web");
    let grpc = web.port("grpc").unwrap();
    runtime().block_on(async {
        let mut client = Client::connect(Version::Http2, grpc).await;
        for Case { name, says, hears } in cases() {
            before.app.now_answers(move |stream| Said::Frames(says(stream)));
            let answer = client.send(asked("/any", full(MESSAGE))).await;
            let (head, body) = answer.into_parts();
            let field = |name| head.headers.get(name).map(|value| value.to_str().unwrap());
            let (status, in_head) = (head.status.as_u16(), field("grpc-status"));
            let body = tokio::time::timeout(PATIENCE, body.collect()).await.expect("an end");
            match hears {
                Hears::All(http, reported, bytes, in_trailers) => {
                    let body = body.unwrap_or_else(|error| panic!("{name}: {error}"));
                    let said = body.trailers().and_then(|t| t.get("grpc-status").cloned());
                    assert_eq!((status, in_head), (http, reported), "{name}");
                    assert_eq!(said.as_ref().map(|s| s.to_str().unwrap()), in_trailers, "{name}");
                    assert_eq!(body.to_bytes(), bytes, "{name}");
                    assert_eq!(field("x-tollway-error"), None, "{name}");
                }
                Hears::Told(code) => {
                    assert_eq!((status, in_head), (200, Some(code)), "{name}");
                    assert_eq!(field("x-tollway-error"), Some("ERR_RESET"), "{name}");
                }
                Hears::Reset(code) => {
                    let error = body.map(|body| body.to_bytes()).unwrap_err();
                    let reset = format!("{error:?}");
                    assert!(reset.contains(reason(code)), "{name}: {reset}");
                }
            }
        }
    });
}

/// As hyper names it.
fn reason(code: u32) -> &'static str {
    match code {
        2 => "INTERNAL_ERROR",
        8 => "CANCEL",
        11 => "ENHANCE_YOUR_CALM",
        _ => panic!("{code}"),
    }
}

/// A call that the app refuses unprocessed is made again, and the caller gets the last refusal.
#[test]
fn a_refused_call_is_unavailable() {
    let before = Before::open("grpc", &[]);
    let web = before.caller("web");
    before.app.now_answers(|stream| Said::Frames(reset_with(stream, REFUSED_STREAM)));
    runtime().block_on(async {
        let mut client = Client::connect(Version::Http2, web.port("grpc").unwrap()).await;
        let answer = client.send(asked("/any", full(MESSAGE))).await;
        assert_eq!(answer.headers()["grpc-status"], "14", "{answer:?}");
    });
    let asked = before.app.heard().into_iter().filter(|(_, frame)| frame.kind == HEADERS).count();
    assert!(asked > 1, "asked {asked} times");
}

const REFUSED_STREAM: u32 = 7;
