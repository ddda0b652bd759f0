//! Requests from callers of HTTP/2: each valid request of the corpus comes in each shape that its
//! body may have there, and is read with its meaning.

use tollway_testkit::{RawClient, need_tool};

use super::chains::{Behind, Chain};
use super::corpus::{Case, SMUGGLED, corpus, report_of};
use super::servers::Server;
use crate::listeners::tls_listener::H2;
use tollway_tests::h2_frames::{
    DATA, END_HEADERS, END_STREAM, Frame, HEADERS, PADDED, block, frame, hello,
};
use tollway_tests::network::{PATIENCE, STOCK};

/// `:status 200` in a header block (RFC 7541 appendix A).
const STATUS_200: u8 = 0x88;

/// Fields without meaning in HTTP/2; a body's shape decides whether there is a length.
const OF_HTTP1: [&str; 6] =
    ["connection", "upgrade", "http2-settings", "transfer-encoding", "te", "content-length"];

/// How the body of a request comes.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// In one frame, its length in the head.
    Whole,
    /// In one frame, without a length.
    NoLength,
    /// A byte in each frame, the end of the stream in another.
    Bytes,
    /// Before padding that looks like a request.
    Padded,
    /// Trailers end it.
    Trailers,
}

/// The first two are all that there are without a body.
const SHAPES: [Shape; 5] =
    [Shape::Whole, Shape::NoLength, Shape::Bytes, Shape::Padded, Shape::Trailers];

#[test]
fn go_reads_what_came_over_http2_as_we_do() {
    check(&Server::go(&need_tool!("framing-app")));
}

#[test]
fn python_reads_what_came_over_http2_as_we_do() {
    check(&Server::python(&need_tool!("python3")));
}

#[test]
fn nginx_reads_what_came_over_http2_as_we_do() {
    check(&Server::nginx(&need_tool!("nginx")));
}

#[test]
fn haproxy_reads_what_came_over_http2_as_we_do() {
    check(&Server::haproxy(&need_tool!("haproxy")));
}

fn check(server: &Server) {
    for way in Chain::ALL {
        let behind = Behind::start(way, H2, server);
        for case in corpus().iter().filter(|case| case.is_valid) {
            let shapes = if case.body.is_empty() { &SHAPES[..2] } else { &SHAPES[..] };
            for &shape in shapes {
                check_case(server, &behind, case, shape, way);
            }
        }
    }
}

fn check_case(server: &Server, behind: &Behind, case: &Case, shape: Shape, way: Chain) {
    let what = format!("{}-{shape:?}-{way:?}", case.name);
    let end = format!("/end-of-{what}");
    let end_of = frame(HEADERS, END_HEADERS | END_STREAM, 3, &block(&pseudo("GET", &end)));
    let requests = [
        (1, case.target(), [hello(), request(case, shape)].concat()),
        // As which whatever is left over of the first would be read.
        (3, end.clone(), end_of),
    ];
    let mut client = RawClient::connect(behind.address).unwrap();
    for (stream, target, frames) in requests {
        client.send(frames).unwrap();
        let own = |bytes: &[u8]| {
            Frame::all(bytes).into_iter().filter(move |frame| frame.stream == stream)
        };
        let is_over = |bytes: &[u8]| own(bytes).any(|frame| frame.ends_stream());
        let answer = client.read_until(PATIENCE, is_over).unwrap().bytes;
        // What comes before is interim.
        let head = own(&answer).rfind(|frame| frame.kind == HEADERS).expect("an answer");
        assert_eq!(head.payload[0], STATUS_200, "{what}: {head:?}");
        let body = own(&answer).filter(|frame| frame.kind == DATA);
        let body: Vec<u8> = body.flat_map(|frame| frame.payload).collect();
        assert_eq!(String::from_utf8_lossy(&body), server.answer_to(&target), "{what}");
    }
    let read = server.read_until_fence(behind.http1, &what);
    let fields = fields(case);
    let fields = fields.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let whole = report_of(case.method, &case.target(), &case.body, fields);
    assert_eq!(read, [whole, format!("GET {end} .")], "{what}");
}

fn pseudo<'a>(method: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![(":method", method), (":scheme", "http"), (":path", path), (":authority", STOCK)]
}

/// The frames of stream 1.
fn request(case: &Case, shape: Shape) -> Vec<u8> {
    let (target, fields, length) = (case.target(), fields(case), case.body.len().to_string());
    let mut lines = pseudo(case.method, &target);
    lines.extend(fields.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    if !matches!(shape, Shape::NoLength) {
        lines.push(("content-length", &length));
    }
    let head = frame(HEADERS, END_HEADERS, 1, &block(&lines));
    let body = match shape {
        Shape::Whole | Shape::NoLength => frame(DATA, END_STREAM, 1, &case.body),
        Shape::Bytes => {
            let bytes = case.body.iter().flat_map(|byte| frame(DATA, 0, 1, &[*byte]));
            bytes.chain(frame(DATA, END_STREAM, 1, &[])).collect()
        }
        Shape::Padded => {
            let padding = SMUGGLED.as_bytes();
            let length = u8::try_from(padding.len()).unwrap();
            let payload = [&[length], &case.body[..], padding].concat();
            frame(DATA, END_STREAM | PADDED, 1, &payload)
        }
        Shape::Trailers => {
            let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[("x-sum", "7")]));
            [frame(DATA, 0, 1, &case.body), trailers].concat()
        }
    };
    [head, body].concat()
}

/// The case's fields that a caller of HTTP/2 would send.
fn fields(case: &Case) -> Vec<(String, String)> {
    let mut fields = case.fields();
    fields.retain(|(name, _)| !OF_HTTP1.contains(&name.as_str()));
    fields
}
