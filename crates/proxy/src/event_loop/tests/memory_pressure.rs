//! Bodies that wait: how much of them, who is not read meanwhile, and who loses what waits.

use hyper::client::conn::http2;

use super::app_unreachable::Fleet;
use super::sim::Peer;
use super::*;
use crate::exchange::memory_pressure::{CROWDED_FOR, FLOODED_FROM};

/// What most tests here allow all bodies together.
const HELD: usize = 512 * 1024;
/// What a stream may send that is not taken, and so the most that waits of an answer that the client
/// does not read. Credit goes back when half of it is due, so that less may wait.
const STREAM_WINDOW: usize = 256 * 1024;

/// A caller with these limits, and `stock` with an app for each of `apps`.
fn fleet(limits: Limits, apps: &[SocketAddr]) -> Fleet {
    let fleet = Fleet::new(AppProtocol::Http, apps);
    fleet.caller.configure(MeshProtocol::default(), (limits, patient()));
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    fleet
}

fn get(path: &str) -> String {
    format!("GET /v1.0/invoke/stock/method{path} HTTP/1.1\r\nhost: a\r\n\r\n")
}

fn waiting(thread: &Running) -> usize {
    thread.metrics.buffered_body_bytes.value().try_into().unwrap()
}

#[track_caller]
fn check_served(fleet: &Fleet) {
    let answer = fleet.post();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hi"), "{answer}");
}

type Sender = http2::SendRequest<Full<Bytes>>;

/// Opens a connection over HTTP/2.
async fn open(peer: Peer, settings: &http2::Builder<TokioExecutor>) -> Sender {
    let (sender, connection) = settings.handshake(TokioIo::new(peer)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// A client that asks over HTTP/2 and reads nothing of the answers until `read`.
struct Greedy {
    answers: Vec<Response<Incoming>>,
}

impl Greedy {
    const ANSWER_BYTES: usize = 2_000_000;

    /// The heads of its answers have come.
    fn start(sidecar: SocketAddr, answers: usize) -> Self {
        Self { answers: block_on(Self::ask(sim::network().connect(sidecar), answers)) }
    }

    async fn ask(peer: Peer, count: usize) -> Vec<Response<Incoming>> {
        let mut settings = http2::Builder::new(TokioExecutor::new());
        settings.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
        let mut sender = open(peer, &settings).await;
        let mut answers = Vec::new();
        for _ in 0..count {
            let uri = "http://a/v1.0/invoke/stock/method/large/2";
            let request = Request::get(uri).body(Full::new(Bytes::new())).unwrap();
            answers.push(sender.send_request(request).await.unwrap());
        }
        answers
    }

    /// Reads each answer to its end; says how many were broken off with a word about it.
    async fn read(self) -> u64 {
        let mut broken = 0;
        for answer in self.answers {
            broken += u64::from(read(answer).await);
        }
        broken
    }
}

/// Whether an answer was broken off.
async fn read(answer: Response<Incoming>) -> bool {
    let mut body = answer.into_body();
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => received += frame.into_data().map_or(0, |data| data.len()),
            Err(error) => {
                let text = format!("{error:?}");
                assert!(text.contains("ENHANCE_YOUR_CALM"), "{text}");
                return true;
            }
        }
    }
    assert_eq!(received, Greedy::ANSWER_BYTES, "an answer that was not broken off is whole");
    false
}

/// Once more waits than all may have, the connection to the callee is no longer credited: a caller
/// that shares it would wait for as long as one caller lets its answers wait.
#[test]
fn a_caller_that_takes_no_answers_loses_them_and_who_shares_its_connection_goes_on() {
    let h2 = tollway_http::h2::Config { connection_window: 1 << 20, ..Limits::default().h2 };
    let limits = Limits { buffered_bytes: HELD, bulk_connections: 0, h2, ..Limits::default() };
    let fleet = fleet(limits, &[start_app()]);
    let greedy = Greedy::start(fleet.caller.addresses[0], 16);
    check_served(&fleet);
    until("the greedy caller's losing something", || {
        fleet.caller.metrics.request_failures.value() > 0
    });
    check_served(&fleet);
    let broken = block_on(greedy.read());
    assert!(broken > 0, "the greedy caller got no error");
    assert_eq!(fleet.caller.metrics.request_failures.value(), broken);
    until("nothing waiting", || waiting(&fleet.caller) == 0);
    check_served(&fleet);
}

/// Callers each of which has less than a quarter of what may wait, and all together more than that.
struct Crowd {
    fleet: Fleet,
    callers: Vec<Greedy>,
}

impl Crowd {
    const HELD: usize = 5 * STREAM_WINDOW;

    fn gather(count: usize) -> Self {
        const { assert!(Self::HELD / 4 > STREAM_WINDOW) };
        assert!(Self::HELD < count * STREAM_WINDOW / 2);
        let h2 = tollway_http::h2::Config { connection_window: 1 << 20, ..Limits::default().h2 };
        let limits =
            Limits { buffered_bytes: Self::HELD, bulk_connections: 0, h2, ..Limits::default() };
        let fleet = fleet(limits, &[start_app()]);
        let begin = || Greedy::start(fleet.caller.addresses[0], 1);
        let callers = std::iter::repeat_with(begin).take(count).collect();
        Self { fleet, callers }
    }

    /// All read at once, since nothing more comes for one as long as too much waits; says how many
    /// answers were broken off.
    fn read(self) -> u64 {
        let reading: Vec<_> = self.callers.into_iter().map(|caller| spawn(caller.read())).collect();
        let broken = reading.into_iter().map(|reading| block_on(reading).unwrap()).sum();
        assert_eq!(self.fleet.caller.metrics.request_failures.value(), broken);
        until("nothing waiting", || waiting(&self.fleet.caller) == 0);
        check_served(&self.fleet);
        broken
    }
}

#[test]
fn callers_with_less_than_a_quarter_of_the_bytes_keep_them_at_first() {
    let crowd = Crowd::gather(12);
    let faults = || crowd.fleet.caller.metrics.request_failures.value();
    until("too much waiting", || waiting(&crowd.fleet.caller) > Crowd::HELD);
    // Longer than a caller to blame would keep its buffered bytes.
    advance(CROWDED_FOR - 3 * SWEEP);
    assert_eq!(faults(), 0);
    advance(6 * SWEEP);
    assert!(faults() > 0, "a crowd loses it after {CROWDED_FOR:?}");
    crowd.read();
}

/// Otherwise the caller with most in reserve makes all others wait by many small requests.
#[test]
fn many_small_holders_make_others_wait_for_some_seconds_only() {
    let crowd = Crowd::gather(24);
    let mut other = connect(crowd.fleet.caller.addresses[0]);
    until("a request failing", || crowd.fleet.caller.metrics.request_failures.value() > 0);
    let answer = talk(&mut other, get("/large/1").as_bytes(), b"\r\n0\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{} bytes", answer.len());
    assert!(crowd.read() > 0, "no caller got an error");
}

/// Callers over HTTP/2, each on a connection of its own, that send a body to `stock` before its
/// endpoints are known, so that all of them wait.
struct Uploads {
    fleet: Fleet,
    answers: Vec<tokio::task::JoinHandle<hyper::StatusCode>>,
}

impl Uploads {
    const HELD: usize = 1 << 20;

    fn start(count: usize, bytes: usize) -> Self {
        assert!(bytes < Self::HELD / 4, "one of them is to blame");
        assert!(count * bytes > 2 * FLOODED_FROM * Self::HELD, "that is no flood");
        let limits = Limits { buffered_bytes: Self::HELD, ..Limits::default() };
        let timeouts = Timeouts { discovery: CROWDED_FOR * 4, ..Timeouts::default() };
        let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
        fleet.caller.configure(MeshProtocol::default(), (limits, timeouts));
        let sidecar = fleet.caller.addresses[0];
        let upload = |_| spawn(upload(sim::network().connect(sidecar), bytes));
        let answers = (0..count).map(upload).collect();
        Self { fleet, answers }
    }

    fn faults(&self) -> u64 {
        self.fleet.caller.metrics.request_failures.value()
    }

    /// Lets the others reach `stock`; returns how many did not and got an error.
    fn end(self) -> u64 {
        let caller = &self.fleet.caller;
        caller.send_state(&self.fleet.stock, self.fleet.local(&self.fleet.addresses()));
        let mut refused = 0;
        for answer in self.answers {
            match block_on(answer).unwrap().as_u16() {
                200 => {}
                503 => refused += 1,
                other => panic!("answered {other}"),
            }
        }
        assert_eq!(caller.metrics.request_failures.value(), refused);
        until("nothing waiting", || waiting(caller) == 0);
        check_served(&self.fleet);
        refused
    }
}

async fn upload(peer: Peer, bytes: usize) -> hyper::StatusCode {
    let mut sender = open(peer, &http2::Builder::new(TokioExecutor::new())).await;
    let request = Request::post("http://a/v1.0/invoke/stock/method/echo");
    let body = Full::new(Bytes::from(vec![b'x'; bytes]));
    let answer = sender.send_request(request.body(body).unwrap()).await.unwrap();
    let status = answer.status();
    answer.into_body().collect().await.unwrap();
    status
}

/// Each connection begins with credit, so that many of them send what is far too much at once.
#[test]
fn a_flood_from_many_connections_is_not_waited_for() {
    let uploads = Uploads::start(24, 250_000);
    let begun = now();
    until("a request failing", || uploads.faults() > 0);
    let took = now() - begun;
    assert!(took <= 2 * SWEEP, "it was waited for {took:?}");
    let (most, caller) = (FLOODED_FROM * Uploads::HELD, &uploads.fleet.caller);
    until("less waiting", || waiting(caller) <= most);
    let refused = uploads.end();
    assert!((1..24).contains(&refused), "{refused} were refused");
}

/// Who sends no more than any source may have waiting is no part of a flood.
#[test]
fn many_with_little_waiting_lose_nothing_at_once() {
    let uploads = Uploads::start(80, 60_000);
    let flooded = || waiting(&uploads.fleet.caller) > FLOODED_FROM * Uploads::HELD;
    until("a flood", flooded);
    advance(CROWDED_FOR - 3 * SWEEP);
    assert_eq!(uploads.faults(), 0);
    uploads.end();
}

#[test]
fn a_request_that_the_app_does_not_read_fails_as_overloaded() {
    let (network, stock) = (Network::new("west"), service("stock"));
    let app = Some(AppTarget::at(start_app(), AppProtocol::Http));
    let limits = Limits { buffered_bytes: 64 * 1024, ..Limits::default() };
    let credentials = network.credentials(&stock, "s-1", &[]);
    let (bounds, listeners) = ((limits, patient()), [ListenerKind::Inbound]);
    let callee = Running::start_at(None, bounds, stock.clone(), credentials, &listeners, app, None);
    let web = service("web");
    let credentials = network.credentials(&web, "w-1", &[]);
    let caller = Running::start(web, credentials, &[ListenerKind::HttpApi], None, None);
    let endpoints = [Endpoint::new(label("s-1"), callee.addresses[0])].into();
    let trust_domain = network.trust_domain;
    let state = ServiceState::Local {
        unready: [].into(),
        endpoints,
        protocol: AppProtocol::Http,
        trust_domain,
    };
    caller.send_state(&stock, state);

    let mut stream = send_unread(caller.addresses[0]);
    let other = talk(&mut connect(caller.addresses[0]), get("/other").as_bytes(), b"\r\n\r\n");
    assert!(other.starts_with("HTTP/1.1 200 "), "{other}");
    let answer = talk(&mut stream, b"", b"}");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("ERR_OVERLOADED"), "{answer}");
    assert!(answer.contains("the memory for bodies is full (65536)"), "{answer}");
    assert_eq!(callee.metrics.request_failures.value(), 1);
    until("nothing waiting", || waiting(&callee) == 0);
    let other = talk(&mut connect(caller.addresses[0]), get("/other").as_bytes(), b"\r\n\r\n");
    assert!(other.starts_with("HTTP/1.1 200 "), "{other}");
}

/// Sends more than all buffers on the way hold to an app that reads nothing.
fn send_unread(sidecar: SocketAddr) -> Stream {
    const BYTES: usize = 64_000_000;
    let stream = connect(sidecar);
    let head = format!(
        "POST /v1.0/invoke/stock/method/stuck HTTP/1.1\r\nhost: a\r\ncontent-length: {BYTES}\r\n\r\n"
    );
    // It ends early, by the answer or by the end of the test.
    stream.send_meanwhile([head.as_bytes(), &vec![b'x'; BYTES]].concat());
    stream
}

/// The app is not read while its answer is not taken, and what waits is shown; neither is a caller
/// that sends to an app that takes nothing.
#[test]
fn what_is_not_taken_waits_up_to_a_limit_and_its_source_is_held_back() {
    let fleet = fleet(Limits::default(), &[start_app()]);
    let (caller, callee) = (&fleet.caller, &fleet.callees[0]);
    let paused = |thread: &Running| thread.metrics.backpressure_pauses.value();
    // What is read at a time comes on top of what makes it too much.
    let most = 2 * Limits::default().pipe_bytes;
    let mut reader = connect(caller.addresses[0]);
    reader.write_all(get("/large").as_bytes()).unwrap();
    until("the app being held back", || paused(callee) > 0);
    until("the answer waiting", || waiting(caller) >= STREAM_WINDOW / 2);
    assert_eq!(paused(caller), 0, "another sidecar has credit");
    check_served(&fleet);
    let (here, there) = (waiting(caller), waiting(callee));
    assert!(here <= STREAM_WINDOW && there <= most, "{here} bytes wait here, {there} there");
    drop(reader);
    until("nothing waiting", || waiting(caller) + waiting(callee) == 0);

    let sender = send_unread(caller.addresses[0]);
    until("the caller being held back", || paused(caller) > 0);
    until("the request waiting", || waiting(callee) >= STREAM_WINDOW / 2);
    check_served(&fleet);
    let (here, there) = (waiting(caller), waiting(callee));
    assert!(here <= most && there <= STREAM_WINDOW, "{here} bytes wait here, {there} there");
    drop(sender);
    advance(SWEEP);
    assert_eq!(
        (caller.metrics.request_failures.value(), callee.metrics.request_failures.value()),
        (0, 0)
    );
}

#[test]
fn a_caller_that_reads_no_answers_has_no_more_requests_read() {
    const REQUESTS: usize = 10_000;
    let limits = Limits { unread_bytes: 16 * 1024, ..Limits::default() };
    let fleet = fleet(limits, &[start_app()]);
    let paused = || fleet.caller.metrics.backpressure_pauses.value();
    let refused = "GET /v1.0/invoke/a.b.c.d/method/x HTTP/1.1\r\nhost: a\r\n\r\n";
    let mut stream = connect(fleet.caller.addresses[0]);
    stream.send_meanwhile(refused.repeat(REQUESTS));
    until("it being held back", || paused() > 0);
    check_served(&fleet);
    let mut received = Vec::new();
    let mut buffer = vec![0; 1 << 20];
    let mut answers = 0;
    while answers < REQUESTS {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "closed after {answers} answers");
        received.extend_from_slice(&buffer[..count]);
        let heads = received.windows(13).filter(|bytes| bytes == b"HTTP/1.1 400 ").count();
        answers += heads;
        // A head may have been cut.
        received.drain(..received.len().saturating_sub(12));
    }
}

#[test]
fn a_request_is_sent_again_only_while_all_of_it_is_kept() {
    const KEPT: usize = 1000;
    let ask = |bytes: usize| {
        let limits = Limits { replay_bytes: KEPT, ..Limits::default() };
        // Neither replica's app is there, so that each says it has done nothing.
        let fleet = fleet(limits, &[unused_address(), unused_address()]);
        let request = format!(
            "POST /v1.0/invoke/stock/method/x HTTP/1.1\r\nhost: a\r\ncontent-length: {bytes}\r\n\r\n{}",
            "x".repeat(bytes)
        );
        let answer = talk(&mut connect(fleet.caller.addresses[0]), request.as_bytes(), b"}");
        assert!(answer.contains("ERR_APP_UNREACHABLE"), "{answer}");
        let metrics = &fleet.caller.metrics;
        (metrics.retries.value() > 0, metrics.retry_buffer_exceeded.value())
    };
    assert_eq!(ask(KEPT), (true, 0));
    assert_eq!(ask(KEPT + 1), (false, 1));
}
