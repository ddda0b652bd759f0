//! A header block that is begun and held open: HEADERS without its end, and CONTINUATION frames so
//! few that no limit of theirs is met. The connection ends in time all the same, at every door.

use std::time::{Duration, Instant};

use super::attacker::{Aim, Wire};
use super::frames::{CONTINUATION, HEADERS, frame, hello};
use super::{Kind, Stand};

/// The least that shows that somebody is still there.
const EVERY: Duration = Duration::from_secs(1);
/// How long a door may bear it (`unfinished_timeout`, 15 s).
const AT_MOST: Duration = Duration::from_secs(60);

#[test]
fn a_header_block_held_open_ends_its_connection_at_every_door() {
    let stands = [
        ("HTTP API", Stand::open(Kind::HttpApi, "http")),
        ("gRPC API", Stand::open(Kind::GrpcApi, "grpc")),
        ("outbound port", Stand::open(Kind::Outbound, "http")),
        ("mesh door", Stand::open(Kind::Mesh, "http")),
        ("front", Stand::front()),
        ("control plane", Stand::control()),
    ];
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

/// Holds a block open until the door has closed; how long that was. Others are answered meanwhile.
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
