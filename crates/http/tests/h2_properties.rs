//! What must hold of a connection whatever comes in, and in whatever pieces.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test stops where something unexpected comes"
)]

#[path = "../examples/h2_echo/echo.rs"]
#[allow(dead_code, reason = "its blocking driver is for the h2spec test and the example")]
mod echo;
#[allow(dead_code, reason = "the frames are shared by several tests")]
mod frames;

use std::collections::BTreeMap;
use std::time::Duration;

use frames::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use tollway_http::h2::{Config, Connection, ErrorCode, Event, StreamId};
use tollway_http::{Fields, Method, RequestHead};

/// One thing a client does on a new stream.
#[derive(Clone, Debug)]
enum Call {
    Get {
        path: String,
    },
    Post {
        body: Vec<u8>,
        has_length: bool,
        trailers: bool,
    },
    /// DATA in padded frames, made by hand.
    Padded {
        chunks: Vec<(Vec<u8>, u8)>,
    },
    Cancelled {
        body: Vec<u8>,
    },
    Malformed,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn pieces_do_not_change_what_is_received(calls in vec(call(), 1..8), sizes in vec(1..40_usize, 1..50)) {
        let bytes = record(&calls);
        let whole = receive_in_pieces(&bytes, &[bytes.len()]);
        prop_assert_eq!(&receive_in_pieces(&bytes, &sizes), &whole);
        prop_assert_eq!(&receive_in_pieces(&bytes, &[1]), &whole);
    }

    #[test]
    fn damaged_input_never_panics_and_an_error_is_final(
        calls in vec(call(), 1..8),
        damage in vec((any::<Index>(), any::<u8>()), 1..10),
        size in 1..2000_usize,
    ) {
        let mut bytes = record(&calls);
        for (at, with) in damage {
            let at = at.index(bytes.len());
            bytes[at] = with;
        }
        feed_server(&bytes, size);
        let mut answers = answers_to(&record(&calls));
        let at = size.min(answers.len() - 1);
        answers[at] ^= 0x55;
        feed_client(&answers, size);
    }

    #[test]
    fn arbitrary_frames_never_panic(frames in vec(any_frame(), 1..60), size in 1..500_usize) {
        let hello = frame(SETTINGS, 0, 0, &[]);
        let noise = frames.concat();
        feed_server(&[PREFACE, &hello, &noise].concat(), size);
        feed_client(&[&hello[..], &noise].concat(), size);
    }

    /// Every flow-controlled byte comes back, also those of frames that were dropped: after all is
    /// released the client can send as much as at the beginning.
    #[test]
    fn credit_is_neither_lost_nor_invented(
        calls in vec((call(), any::<bool>()), 1..60),
        size in 1..5000_usize,
    ) {
        let config = Config { connection_window: 100_000, ..Config::default() };
        let mut server = Server::new(config);
        let mut window = 100_000_i64;
        for (nth, (call, is_reset_early)) in calls.iter().enumerate() {
            let stream = 2 * u32::try_from(nth).unwrap() + 1;
            if *is_reset_early {
                // What follows was in transit when this side gave the stream up.
                server.take(&post(stream)).unwrap();
                server.connection.reset(StreamId(stream), ErrorCode::CANCEL, &mut server.out);
                server.events.clear();
            }
            let input = match is_reset_early {
                true => body_of(call, stream),
                false => hand_made(call, stream),
            };
            for (kind, _, _, payload) in parse(&input) {
                if kind == DATA {
                    window -= i64::try_from(payload.len()).unwrap();
                }
            }
            for piece in input.chunks(size) {
                server.take(piece).unwrap();
            }
            prop_assert!(!is_reset_early || server.events.is_empty());
            for event in std::mem::take(&mut server.events) {
                if let Event::Data { credit, stream, .. } = event {
                    server.connection.release_connection(credit, &mut server.out);
                    server.connection.release(stream, credit, &mut server.out);
                }
            }
            for (kind, _, stream, payload) in parse(&server.out) {
                if kind == WINDOW_UPDATE && stream == 0 {
                    window += i64::from(u32::from_be_bytes(payload.try_into().unwrap()));
                }
            }
            server.out.clear();
            prop_assert!(window > 50_000 && window <= 100_000, "{}", window);
        }
    }
}

fn call() -> impl Strategy<Value = Call> {
    let body = || vec(any::<u8>(), 0..3000);
    prop_oneof![
        "/[a-z]{0,20}".prop_map(|path| Call::Get { path }),
        (body(), any::<bool>(), any::<bool>())
            .prop_map(|(body, has_length, trailers)| Call::Post { body, has_length, trailers }),
        vec((vec(any::<u8>(), 0..300), any::<u8>()), 1..5)
            .prop_map(|chunks| Call::Padded { chunks }),
        body().prop_map(|body| Call::Cancelled { body }),
        Just(Call::Malformed),
    ]
}

/// Mostly frames of known types, streams and flags that could mean something.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        4 => vec(any::<u8>(), 0..40),
        2 => Just(block(&[(":method", "GET"), (":scheme", "http"), (":path", "/")])),
        2 => Just(block(&[(":status", "200")])),
        1 => Just(vec![0, 0, 0, 9]),
        1 => Just(vec![0, 3, 0, 0, 0, 9]),
        1 => vec(any::<u8>(), 300..400),
    ];
    (0..11_u8, any::<u8>(), 0..8_u32, payload)
        .prop_map(|(kind, flags, stream, payload)| frame(kind, flags, stream, &payload))
}

/// What a client of ours sends for these calls.
fn record(calls: &[Call]) -> Vec<u8> {
    let mut hello = Vec::new();
    let _server = Connection::server(Config::default(), &mut hello);
    let mut out = Vec::new();
    let mut client = Connection::client(Config::default(), &mut out);
    client.receive(&hello, Duration::ZERO, &mut Vec::new(), &mut out).unwrap();
    for call in calls {
        let mut head = RequestHead {
            method: Method::Post,
            scheme: tollway_http::Scheme::Borrowed(b"http"),
            authority: b"stock.mesh".to_vec(),
            path: b"/".to_vec(),
            ..RequestHead::default()
        };
        head.fields.push(b"x-tenant", b"the same every time");
        match call {
            Call::Get { path } => {
                head.method = Method::Get;
                head.path = path.clone().into_bytes();
                client.send_request(&head, None, true, &mut out).unwrap();
            }
            Call::Post { body, has_length, trailers } => {
                let length = has_length.then_some(body.len() as u64);
                let stream = client.send_request(&head, length, false, &mut out).unwrap();
                client.send_data(stream, body, !trailers, &mut out);
                if *trailers {
                    let fields = Fields::from_iter([(&b"x-end"[..], &b"yes"[..])]);
                    client.send_trailers(stream, &fields, &mut out).unwrap();
                }
            }
            Call::Padded { .. } => {
                let stream = client.send_request(&head, None, false, &mut out).unwrap();
                out.extend(body_of(call, stream.0));
            }
            Call::Cancelled { body } => {
                let stream = client.send_request(&head, None, false, &mut out).unwrap();
                client.send_data(stream, body, false, &mut out);
                client.reset(stream, ErrorCode::CANCEL, &mut out);
            }
            Call::Malformed => {
                head.path = b"not a path".to_vec();
                client.send_request(&head, None, true, &mut out).unwrap();
            }
        }
    }
    out
}

/// The same calls without our client: HEADERS and DATA.
fn hand_made(call: &Call, stream: u32) -> Vec<u8> {
    [post(stream), body_of(call, stream)].concat()
}

fn body_of(call: &Call, stream: u32) -> Vec<u8> {
    match call {
        Call::Padded { chunks } => {
            let last = chunks.len() - 1;
            let frames = chunks.iter().enumerate().map(|(nth, (data, padding))| {
                let payload = [&[*padding][..], data, &vec![0; usize::from(*padding)]].concat();
                let flags = PADDED | if nth == last { END_STREAM } else { 0 };
                frame(DATA, flags, stream, &payload)
            });
            frames.collect::<Vec<_>>().concat()
        }
        Call::Post { body, .. } => frame(DATA, END_STREAM, stream, body),
        Call::Cancelled { body } => [frame(DATA, 0, stream, body), reset(stream)].concat(),
        Call::Get { .. } | Call::Malformed => frame(DATA, END_STREAM, stream, &[]),
    }
}

/// What a server makes of `bytes`, its events with the DATA of each stream joined; also the types
/// and streams of the frames it writes, but for the moment of its WINDOW_UPDATEs.
#[derive(Debug, PartialEq)]
struct Received {
    events: Vec<Event>,
    bodies: BTreeMap<u32, (Vec<u8>, usize, bool)>,
    frames: Vec<(u8, u32)>,
}

fn receive_in_pieces(bytes: &[u8], sizes: &[usize]) -> Received {
    let mut out = Vec::new();
    let mut server = Connection::server(Config::default(), &mut out);
    let mut received = Received { events: vec![], bodies: BTreeMap::new(), frames: vec![] };
    let mut rest = bytes;
    for size in sizes.iter().cycle() {
        let (piece, later) = rest.split_at(rest.len().min(*size));
        rest = later;
        let mut events = Vec::new();
        server.receive(piece, Duration::ZERO, &mut events, &mut out).unwrap();
        for event in events {
            match event {
                Event::Data { stream: StreamId(id), range, end, credit } => {
                    let body = received.bodies.entry(id).or_default();
                    body.0.extend_from_slice(&piece[range]);
                    body.1 += credit;
                    assert!(!body.2, "DATA after the end");
                    body.2 |= end;
                }
                other => received.events.push(other),
            }
        }
        if rest.is_empty() {
            break;
        }
    }
    let frames = parse(&out).into_iter().filter(|frame| frame.0 != WINDOW_UPDATE);
    received.frames = frames.map(|frame| (frame.0, frame.2)).collect();
    received
}

/// What an echo server answers to `bytes`.
fn answers_to(bytes: &[u8]) -> Vec<u8> {
    let mut echo = echo::Echo::new(Config::default());
    let mut events = Vec::new();
    echo.connection.receive(bytes, Duration::ZERO, &mut events, &mut echo.out).unwrap();
    events.into_iter().for_each(|event| echo.handle(event, bytes));
    echo.out
}

fn feed_server(bytes: &[u8], size: usize) {
    let mut out = Vec::new();
    let server = Connection::server(Config::default(), &mut out);
    feed(server, bytes, size);
}

fn feed_client(bytes: &[u8], size: usize) {
    let mut out = Vec::new();
    let mut client = Connection::client(Config::default(), &mut out);
    let head = RequestHead { path: b"/".to_vec(), ..RequestHead::default() };
    for _ in 0..4 {
        client.send_request(&head, None, false, &mut out).unwrap();
    }
    feed(client, bytes, size);
}

fn feed(mut connection: Connection, bytes: &[u8], size: usize) {
    let (mut out, mut events) = (Vec::new(), Vec::new());
    let mut outcome = Ok(());
    for piece in bytes.chunks(size) {
        let before = out.len();
        let now = connection.receive(piece, Duration::ZERO, &mut events, &mut out);
        if outcome.is_err() {
            assert_eq!(now, outcome, "an error is final");
            assert_eq!(out.len(), before, "and nothing is written after it");
        }
        outcome = now;
        for event in events.drain(..) {
            if let Event::Data { stream, range, credit, .. } = event {
                assert!(range.end <= piece.len() && range.len() <= credit);
                connection.release(stream, credit, &mut out);
                connection.release_connection(credit, &mut out);
            }
        }
        assert!(connection.active_streams() <= 1000);
    }
    parse(&out); // whole frames only
    if let Err(error) = outcome {
        let frames = parse(&out);
        let goaway = frames.iter().rfind(|frame| frame.0 == GOAWAY).unwrap();
        assert_eq!(goaway.3[4..8], error.code.0.to_be_bytes());
    }
}
