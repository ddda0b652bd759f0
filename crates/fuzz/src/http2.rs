//! HTTP/2 frames, as a server and as a client.

use std::collections::BTreeMap;
use std::time::Duration;

use tollway_http::h1::HTTP2_PREFACE;
use tollway_http::h2::{Config, Connection, ConnectionError, ErrorCode, Event, StreamId};
use tollway_http::{RequestHead, ResponseHead};

use crate::pieces::split;

/// What a peer sends first: SETTINGS without any.
const NO_SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
/// What a connection may write for each byte that it reads: an answer to the shortest request,
/// which its driver makes, and the replies of the protocol. Trailers, which the driver sends back,
/// come on top: one byte may stand for a whole line of them.
const OUT_PER_BYTE: usize = 16;
const OUT_AT_ONCE: usize = 4096;
/// What a field line takes besides its name and value: its kind, and two lengths.
const OUT_PER_LINE: usize = 8;

pub(crate) fn server(data: &[u8]) {
    let Some((size, frames)) = frames(data) else { return };
    let input = [&HTTP2_PREFACE[..], &NO_SETTINGS, &frames].concat();
    let make = |out: &mut Vec<u8>| Connection::server(Config::default(), out);
    check(make, &input, size);
}

pub(crate) fn client(data: &[u8]) {
    let Some((size, frames)) = frames(data) else { return };
    let input = [&NO_SETTINGS[..], &frames].concat();
    let make = |out: &mut Vec<u8>| {
        let mut client = Connection::client(Config::default(), out);
        let head = RequestHead { path: b"/".to_vec(), ..RequestHead::default() };
        for _ in 0..3 {
            client.send_request(&head, None, false, out).expect("a new connection takes streams");
        }
        client
    };
    check(make, &input, size);
}

/// The bytes as they are, or, so that whole frames are found by chance, frames written in short:
/// type, flags, stream and length in a byte each, then the payload.
fn frames(data: &[u8]) -> Option<(usize, Vec<u8>)> {
    let (size, rest) = split(data)?;
    let (&form, rest) = rest.split_first()?;
    if form & 1 == 0 {
        return Some((size, rest.to_vec()));
    }
    let mut frames = Vec::new();
    let mut rest = rest;
    while let [kind, flags, stream, length, tail @ ..] = rest {
        let (payload, later) = tail.split_at(tail.len().min(usize::from(*length)));
        let length = u8::try_from(payload.len()).expect("a byte said how many");
        frames.extend_from_slice(&[0, 0, length, *kind % 12, *flags, 0, 0, 0, *stream % 16]);
        frames.extend_from_slice(payload);
        rest = later;
    }
    Some((size, frames))
}

fn check(make: impl Fn(&mut Vec<u8>) -> Connection, input: &[u8], size: usize) {
    let whole = receive(&make, input, input.len());
    let in_pieces = receive(&make, input, size);
    assert_eq!(whole, in_pieces, "what is received depends on how the input was cut");
    drive(&make, input, size);
}

/// What came, with the data of each stream joined, and how it ended.
#[derive(Debug, PartialEq)]
struct Received {
    events: Vec<Event>,
    bodies: BTreeMap<u32, (Vec<u8>, usize, bool)>,
    outcome: Result<(), ConnectionError>,
    written: Vec<u8>,
}

fn receive(make: impl Fn(&mut Vec<u8>) -> Connection, input: &[u8], size: usize) -> Received {
    let mut out = Vec::new();
    let mut connection = make(&mut out);
    let mut received = Received {
        events: Vec::new(),
        bodies: BTreeMap::new(),
        outcome: Ok(()),
        written: Vec::new(),
    };
    for piece in input.chunks(size) {
        let mut events = Vec::new();
        let outcome = connection.receive(piece, Duration::ZERO, &mut events, &mut out);
        for event in events {
            let Event::Data { stream: StreamId(id), range, end, credit } = event else {
                received.events.push(event);
                continue;
            };
            let body = received.bodies.entry(id).or_default();
            assert!(!body.2, "data after the end of stream {id}");
            body.0.extend_from_slice(&piece[range]);
            body.1 += credit;
            body.2 |= end;
        }
        if outcome.is_err() {
            received.outcome = outcome;
            break;
        }
    }
    received.written = out;
    received
}

/// A driver that answers everything: errors are final, and what is written is bounded.
fn drive(make: impl Fn(&mut Vec<u8>) -> Connection, input: &[u8], size: usize) {
    let mut out = Vec::new();
    let mut connection = make(&mut out);
    let mut now = Duration::ZERO;
    let mut dead = None;
    let mut trailers = 0;
    for piece in input.chunks(size) {
        let before = out.len();
        let mut events = Vec::new();
        let outcome = connection.receive(piece, now, &mut events, &mut out);
        if let Some(error) = dead {
            assert_eq!((outcome, out.len()), (Err(error), before), "an error is final");
            continue;
        }
        dead = outcome.err();
        for event in events {
            trailers += size_of_trailers(&event);
            answer(&mut connection, event, piece, &mut out);
        }
        now += Duration::from_millis(1);
        if connection.deadline().is_some_and(|deadline| deadline <= now) {
            dead = dead.or(connection.tick(now, &mut out).err());
        }
        assert!(connection.active_streams() <= 1000);
    }
    assert!(
        out.len() <= OUT_AT_ONCE + OUT_PER_BYTE * input.len() + trailers,
        "{} bytes written for {} and {trailers} of trailers",
        out.len(),
        input.len()
    );
}

/// What its trailers take when none of them is known to the peer.
fn size_of_trailers(event: &Event) -> usize {
    let Event::Trailers { fields, .. } = event else { return 0 };
    fields.iter().map(|line| line.name.len() + line.value.len() + OUT_PER_LINE).sum()
}

fn answer(connection: &mut Connection, event: Event, piece: &[u8], out: &mut Vec<u8>) {
    match event {
        Event::Request { stream, end, .. } if end => {
            let _ = connection.send_response(stream, &ResponseHead::new(204), None, true, out);
        }
        Event::Request { stream, .. } => {
            let _ = connection.send_response(stream, &ResponseHead::new(200), None, false, out);
        }
        Event::Refused { stream } => connection.reset(stream, ErrorCode::NO_ERROR, out),
        Event::Data { stream, range, end, credit } => {
            assert!(range.len() <= credit);
            let echoed = connection.send_data(stream, &piece[range], end, out);
            assert!(echoed <= credit);
            connection.release(stream, credit, out);
            connection.release_connection(credit, out);
        }
        Event::Trailers { stream, fields } => {
            let _ = connection.send_trailers(stream, &fields, out);
            connection.recycle(fields);
        }
        Event::Response { head, .. } => connection.recycle(head.fields),
        Event::Reset { .. }
        | Event::WindowOpen { .. }
        | Event::GoAway { .. }
        | Event::PingAck(_)
        | Event::SettingsChanged => {}
    }
}
