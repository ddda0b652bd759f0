//! Large bodies between networks: whole, in both directions at once, and never held whole.

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::Request;
use hyper::body::{Frame, Incoming};
use tollway_testkit::retry_until;
use tollway_tests::mesh::http::{Body, Client, Version, empty, runtime};
use tollway_tests::mesh::memory::Watch;
use tollway_tests::mesh::{AppProtocol, Mesh, PATIENCE, Sidecar, counter};

const BUFFERED: &str = "tollway_buffered_body_bytes";
const SERVICE: &str = "echo.default.east";
const LARGE: usize = 100_000_000;
/// Length of the piece that is repeated: a prime, so that a lost or doubled piece of any other
/// length shows.
const PIECE: usize = 65_521;

#[test]
fn a_hundred_megabytes_cross_both_ways_over_http1() {
    large_bodies_cross(Version::Http1, AppProtocol::Http);
}

#[test]
fn a_hundred_megabytes_cross_both_ways_over_http2() {
    large_bodies_cross(Version::Http2, AppProtocol::H2c);
}

fn large_bodies_cross(version: Version, protocol: AppProtocol) {
    let mesh = Mesh::start();
    let app = mesh.east.app("echo", "east-1", protocol);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    let memory = Watch::start(&mesh, &[&caller, &app.sidecar]);
    runtime().block_on(async {
        let mut client = Client::connect(version, caller.http()).await;
        let request = to("POST", "echo").body(pieces()).unwrap();
        let response = client.send(request).await;
        assert_eq!(response.status(), 200);
        assert_is_pieces(response.into_body()).await;
        unread_answer_waits(version, &caller).await;
    });
    memory.assert_bounded();
}

/// A reader that pauses holds its sender back, so that bytes wait in its sidecar; the rest is there
/// when it reads on.
async fn unread_answer_waits(version: Version, caller: &Sidecar) {
    let mut client = Client::connect(version, caller.http()).await;
    let request = to("GET", &format!("size?bytes={LARGE}")).body(empty()).unwrap();
    let response = client.send(request).await;
    assert_eq!(response.status(), 200);
    tokio::task::block_in_place(|| {
        let buffered = || (counter(&caller.process, BUFFERED) > 0).then_some(());
        retry_until(PATIENCE, "bytes that wait for their reader", buffered).unwrap();
    });
    let mut body = response.into_body();
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        received += frame.unwrap().into_data().map_or(0, |data| data.len());
    }
    assert_eq!(received, LARGE);
}

fn to(method: &str, path: &str) -> hyper::http::request::Builder {
    let uri = format!("http://sidecar/v1.0/invoke/{SERVICE}/method/{path}");
    Request::builder().method(method).uri(uri)
}

/// A body of [`LARGE`] bytes that is made as it is sent.
fn pieces() -> Body {
    let piece = piece();
    let frames = (0..LARGE.div_ceil(PIECE)).map(move |number| {
        let length = PIECE.min(LARGE - number * PIECE);
        Ok(Frame::data(piece.slice(..length)))
    });
    StreamBody::new(tokio_stream::iter(frames)).boxed()
}

async fn assert_is_pieces(mut body: Incoming) {
    let piece = piece();
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.unwrap().into_data() else { continue };
        let mut rest = &data[..];
        while !rest.is_empty() {
            let expected = &piece[received % PIECE..];
            let length = expected.len().min(rest.len());
            assert!(rest[..length] == expected[..length], "other bytes after {received}");
            received += length;
            rest = &rest[length..];
        }
    }
    assert_eq!(received, LARGE);
}

fn piece() -> Bytes {
    (0..PIECE).map(|at| (at * 31 + at / 256) as u8).collect()
}
