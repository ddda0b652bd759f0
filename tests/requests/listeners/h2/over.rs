//! Streams that are refused since there are too many, or their heads are too large: the app sees
//! none of them, and the counter does.

use tollway_testkit::retry_until;

use crate::listeners::listener::{Kind, Listener, REFUSED};
use crate::listeners::tls_listener::H2;
use tollway_tests::h2_attacker::{Aim, Wire};
use tollway_tests::h2_frames::{
    END_HEADERS, Frame, HEADERS, NEWEST, RST_STREAM, block, frame, hello, indexed_literal,
};
use tollway_tests::network::{PATIENCE, metric};
use tollway_tests::scripted_app::Script;

const REFUSED_STREAM: u32 = 7;

/// Opens streams that stay open, and waits until `least` of them are refused: as many are counted.
#[track_caller]
fn check(listener: &Listener, heads: &[Vec<u8>], least: usize) {
    let before = metric(&listener.reader, REFUSED);
    let mut wire = Wire::open(&Aim { address: listener.address, tls: None }).unwrap();
    wire.send(&hello()).unwrap();
    for (nth, head) in heads.iter().enumerate() {
        let id = u32::try_from(2 * nth + 1).unwrap();
        wire.send(&frame(HEADERS, END_HEADERS, id, head)).unwrap();
    }
    let mut came = Vec::new();
    let mut refused = || {
        came.extend(wire.take().unwrap());
        let resets = Frame::all(&came).into_iter().filter(|frame| frame.kind == RST_STREAM);
        resets.map(|reset| assert_eq!(reset.code(), Some(REFUSED_STREAM))).count()
    };
    retry_until(PATIENCE, "refused streams", || (refused() >= least).then_some(())).unwrap();
    let counted = || {
        let refused = refused() as u64;
        (metric(&listener.reader, REFUSED) - before == refused).then_some(())
    };
    retry_until(PATIENCE, "as many in the counter", counted).unwrap();
    listener.check_honest_over_http2("/beside");
}

fn lines(listener: &Listener) -> Vec<u8> {
    let path = format!("{}/held", listener.prefix);
    block(&listener.head_lines(&path))
}

#[test]
fn streams_above_the_number_are_counted() {
    let options = ["--limit", "max_concurrent_streams=2"];
    for kind in Kind::ALL {
        let listener = Listener::open_over(H2, kind, Script::new(), &options);
        check(&listener, &vec![lines(&listener); 5], 3);
    }
}

#[test]
fn streams_with_more_in_their_heads_than_all_may_have_are_counted() {
    let listener = Listener::open_over(H2, Kind::Mesh, Script::new(), &[]);
    let first = [lines(&listener), indexed_literal("x-large", &"a".repeat(3900))].concat();
    let others = [lines(&listener), vec![NEWEST; 14]].concat();
    let heads: Vec<_> = std::iter::once(first).chain(vec![others; 100]).collect();
    check(&listener, &heads, 10);
}
