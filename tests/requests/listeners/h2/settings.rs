//! Frame sizes that a caller changes again and again: answers come whole, in frames of the allowed
//! size, and an invalid size ends its connection.

use tollway_testkit::retry_until;

use crate::listeners::listener::{Kind, Listener, REFUSED};
use crate::listeners::tls_listener::H2;
use tollway_tests::h2_attacker::{Aim, Wire};
use tollway_tests::h2_frames::{
    DATA, END_HEADERS, END_STREAM, Frame, HEADER_TABLE_SIZE, HEADERS, INITIAL_WINDOW,
    MAX_FRAME_SIZE, PROTOCOL_ERROR, SETTINGS, block, frame, hello, setting, window_update,
};
use tollway_tests::network::{PATIENCE, metric};
use tollway_tests::scripted_app::{Reply, Script, Then};

const LEAST: u32 = 16_384;
const MOST: u32 = 16_777_215;
/// Several frames of any size that a listener sends.
const BODY: usize = 100_000;

fn script() -> Script {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY}\r\n\r\n");
    let bytes = [head.into_bytes(), vec![b'x'; BODY]].concat();
    Script::from([("/large", Reply { bytes, then: Then::GoOn })])
}

fn connect(listener: &Listener) -> Wire {
    let mut wire = Wire::open(&Aim { address: listener.address, tls: None }).unwrap();
    wire.send(&hello()).unwrap();
    wire
}

fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let values = values.iter().flat_map(|(id, value)| setting(*id, *value));
    frame(SETTINGS, 0, 0, &values.collect::<Vec<_>>())
}

#[test]
fn frame_sizes_change_within_their_range_and_not_beyond() {
    for kind in Kind::ALL {
        let listener = Listener::open_over(H2, kind, script(), &[]);
        let mut wire = connect(&listener);
        wire.send(&settings(&[(INITIAL_WINDOW, 1 << 30)])).unwrap();
        wire.send(&window_update(0, 1 << 30)).unwrap();
        for (nth, size) in [MOST, LEAST, 65_536, LEAST, MOST].into_iter().enumerate() {
            // Each is the last of several.
            let values: Vec<_> = [LEAST, MOST, size]
                .into_iter()
                .flat_map(|size| [(HEADER_TABLE_SIZE, size % 4096), (MAX_FRAME_SIZE, size)])
                .collect();
            wire.send(&settings(&values)).unwrap();
            check_answer(&listener, &mut wire, 2 * u32::try_from(nth).unwrap() + 1);
        }
        for size in [0, LEAST - 1, MOST + 1, u32::MAX] {
            check_refused(&listener, size);
        }
        listener.check_honest_over_http2("/behind");
    }
}

/// Asks on that stream: what comes is whole, and in frames that any peer must take.
#[track_caller]
fn check_answer(listener: &Listener, wire: &mut Wire, stream: u32) {
    let path = format!("{}/large", listener.prefix);
    let head = block(&listener.head_lines(&path));
    wire.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &head)).unwrap();
    let mut came = Vec::new();
    let answered = retry_until(PATIENCE, "the answer", || {
        came.extend(wire.take().unwrap());
        let frames = Frame::all(&came).into_iter().filter(|frame| frame.stream == stream);
        let frames: Vec<_> = frames.collect();
        frames.last().is_some_and(Frame::ends_stream).then_some(frames)
    });
    let data = answered.unwrap().into_iter().filter(|frame| frame.kind == DATA);
    let sizes: Vec<_> = data.map(|frame| frame.payload.len()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), BODY, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size <= LEAST as usize), "{sizes:?}");
}

#[track_caller]
fn check_refused(listener: &Listener, size: u32) {
    let before = metric(&listener.reader, REFUSED);
    let mut wire = connect(listener);
    wire.send(&settings(&[(MAX_FRAME_SIZE, LEAST), (MAX_FRAME_SIZE, size)])).unwrap();
    let mut came = Vec::new();
    let closed = retry_until(PATIENCE, "the end of the connection", || match wire.take() {
        Ok(bytes) => {
            came.extend(bytes);
            None
        }
        Err(_) => Some(()),
    });
    closed.unwrap();
    let code = Frame::all(&came).iter().find_map(Frame::goaway_code);
    assert_eq!(code, Some(PROTOCOL_ERROR), "frames of {size} bytes");
    assert_eq!(metric(&listener.reader, REFUSED), before + 1, "frames of {size} bytes");
}
