//! What is begun and not ended: a header block to which CONTINUATION frames are added, so few that no
//! limit of theirs is met; a header block, or a frame, to which nothing is. The connection ends in
//! time all the same, at every listener.

use std::time::{Duration, Instant};

use super::attacks::Target;
use super::{Kind, Stand};
use crate::listeners::listener::REFUSED;
use tollway_tests::h2_attacker::{Aim, Wire};
use tollway_tests::h2_frames::{
    CONTINUATION, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frame, HEADERS, frame, hello,
};
use tollway_tests::network::metric;

/// The least that shows that a peer is still there.
const EVERY: Duration = Duration::from_secs(1);
/// The listener's limit (`unfinished_timeout`, 15 s).
const AT_MOST: Duration = Duration::from_secs(60);

/// The listeners of data planes.
fn stands() -> [(&'static str, Stand); 6] {
    [
        ("HTTP API", Stand::open(Kind::HttpApi, "http")),
        ("gRPC API", Stand::open(Kind::GrpcApi, "grpc")),
        ("outbound port", Stand::open(Kind::Outbound, "http")),
        ("tunnel", Stand::open(Kind::Tunnel, "http")),
        ("inbound listener", Stand::open(Kind::Mesh, "http")),
        ("front", Stand::front()),
    ]
}

#[test]
fn a_header_block_held_open_ends_its_connection_at_every_listener() {
    let control = ("control plane", Stand::control());
    let stands: Vec<_> = stands().into_iter().chain([control]).collect();
    // All wait at once: it is the time of one.
    std::thread::scope(|scope| {
        for (name, stand) in &stands {
            scope.spawn(move || {
                let mut call = stand.honest.caller();
                let held = hold(&stand.aim, &stand.target.head("GET", "/"), &mut call);
                assert!(held < AT_MOST, "{name}: open for {held:?}");
            });
        }
    });
}

/// What is begun, and that nothing follows. A frame of a body may take as long as the body.
fn begun(to: &Target) -> [(&'static str, Vec<u8>); 3] {
    let head = to.head("GET", "/size?bytes=10");
    let block = frame(HEADERS, END_STREAM, 1, &head);
    let whole = frame(HEADERS, END_HEADERS | END_STREAM, 1, &head);
    [
        ("a frame of a head", whole[..whole.len() / 2].to_vec()),
        ("a header block", block.clone()),
        (
            "the next frame of it",
            [block, frame(CONTINUATION, 0, 1, &[0; 9])[..10].to_vec()].concat(),
        ),
    ]
}

#[test]
fn what_is_begun_and_left_ends_its_connection_at_every_listener() {
    let stands = stands();
    std::thread::scope(|scope| {
        for (name, stand) in &stands {
            scope.spawn(move || leave_all(name, stand));
        }
    });
}

/// Begins something on a connection each, and waits until the listener has closed them all with a
/// reason. Others are answered meanwhile.
fn leave_all(name: &str, stand: &Stand) {
    let refused = || metric(&stand.attacked[0], REFUSED);
    let (mut call, before, since) = (stand.honest.caller(), refused(), Instant::now());
    let mut left = begun(&stand.target).map(|(what, bytes)| {
        let mut wire = Wire::open(&stand.aim).unwrap();
        wire.send(&[hello(), bytes].concat()).unwrap();
        (what, wire, Vec::new(), false)
    });
    while left.iter().any(|(.., is_closed)| !is_closed) {
        call();
        std::thread::sleep(EVERY);
        for (what, wire, came, is_closed) in &mut left {
            match wire.take() {
                Ok(bytes) => came.extend(bytes),
                Err(_) => *is_closed = true,
            }
            assert!(*is_closed || since.elapsed() < AT_MOST, "{name}: {what}: open");
        }
    }
    for (what, _, came, _) in &left {
        let code = Frame::all(came).iter().find_map(Frame::goaway_code);
        assert_eq!(code, Some(ENHANCE_YOUR_CALM), "{name}: {what}");
    }
    assert!(refused() >= before + left.len() as u64, "{name}: not counted");
}

/// Holds a block open until the listener has closed; how long that was. Others are answered meanwhile.
fn hold(aim: &Aim, head: &[u8], call: &mut dyn FnMut()) -> Duration {
    let began = Instant::now();
    let mut wire = Wire::open(aim).unwrap();
    let begun = [hello(), frame(HEADERS, 0, 1, head)].concat();
    let mut ended = wire.send(&begun).is_err();
    while !ended && began.elapsed() < AT_MOST {
        call();
        std::thread::sleep(EVERY);
        ended = wire.take().is_err() || wire.send(&frame(CONTINUATION, 0, 1, &[])).is_err();
    }
    began.elapsed()
}
