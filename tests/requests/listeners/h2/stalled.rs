//! Callers who stop: who never take their answers, or leave bodies unfinished, on as many streams
//! as they may have. Each stream ends when nothing has moved on it for `stream_idle`, what it held
//! is let go, and others are answered meanwhile.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use tollway_testkit::{peak_resident_bytes, reset_peak, resident_bytes, retry_until};

use super::attacks::{OF_ANSWERS, OF_FRAMES, OF_REQUESTS, Target};
use super::{Kind, Stand};
use tollway_tests::h2_attacker::Wire;
use tollway_tests::h2_frames::{
    DATA, END_STREAM, Frame, HEADERS, INITIAL_WINDOW, INTERNAL_ERROR, NO_ERROR, RST_STREAM,
    SETTINGS, frame, hello, setting, window_update,
};
use tollway_tests::network::{PATIENCE, metric};

/// Far longer than anything honest is silent here.
const IDLE_MS: &str = "5000";
/// The listener's limit: twice that if the answer that announces it is not read either.
const AT_MOST: Duration = Duration::from_secs(60);
/// As many as a connection may have (`max_concurrent_streams`).
const STREAMS: u32 = 1000;
/// So many are requested between two calls of another caller, which does not wait for all of them.
const AT_ONCE: usize = 50;
/// Descriptors of a process in addition to one for each request at the app.
const SPARE_DESCRIPTORS: u64 = 200;
/// Bytes of an answer. All of them are fewer than what a process holds at most (`buffered_bytes`).
const ANSWER: &str = "/size?bytes=40000";
/// What a process keeps at most: what it takes for good when it first works hard.
const KEPT_BYTES: u64 = OF_FRAMES;

/// A caller's behaviour on all of its streams, and how each must end.
struct Case {
    name: &'static str,
    /// The window that the caller leaves for its answers.
    window: u32,
    stream: fn(&Target, u32) -> Vec<u8>,
    /// The types of the frames that come.
    frames: &'static [u8],
    /// A part of the answer's body, if it may come.
    body: &'static str,
    code: u32,
    most_growth: u64,
}

const CASES: [Case; 3] = [
    Case {
        name: "answers that are never taken",
        window: 0,
        stream: |to, id| to.get(id, ANSWER),
        frames: &[HEADERS, RST_STREAM],
        body: "",
        code: INTERNAL_ERROR,
        most_growth: OF_ANSWERS,
    },
    Case {
        name: "bodies that are never finished",
        window: 65_535,
        stream: unfinished,
        frames: &[HEADERS, DATA, RST_STREAM],
        body: "ERR_BODY_TIMED_OUT",
        code: NO_ERROR,
        most_growth: OF_REQUESTS,
    },
    Case {
        name: "bodies that are never finished, of callers who do not hear of it",
        window: 0,
        stream: unfinished,
        frames: &[HEADERS, RST_STREAM],
        body: "",
        code: INTERNAL_ERROR,
        most_growth: OF_REQUESTS,
    },
];

fn unfinished(to: &Target, id: u32) -> Vec<u8> {
    [to.post(id, "/size?bytes=10"), frame(DATA, 0, id, b"begun")].concat()
}

#[test]
fn streams_on_which_callers_stop_end_in_time_at_every_listener() {
    let options = ["--idle-timeout-ms", IDLE_MS];
    let open = |kind| Stand::open_with(kind, "http", &options);
    let stands = [
        ("HTTP API", open(Kind::HttpApi)),
        ("gRPC API", open(Kind::GrpcApi)),
        ("outbound port", open(Kind::Outbound)),
        ("tunnel", open(Kind::Tunnel)),
        ("inbound listener", open(Kind::Mesh)),
        ("front", Stand::front_with(&options)),
    ];
    // All wait at once: it is the time of one.
    std::thread::scope(|scope| {
        for (listener, stand) in &stands {
            scope.spawn(move || {
                let mut call = stand.honest.caller();
                for case in &CASES {
                    check(listener, stand, case, &mut call);
                }
                check_cut_frame(listener, stand, &mut call);
            });
        }
    });
}

/// One for each request that one caller may have at an app, and that the app may have.
fn streams() -> Range<u32> {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = descriptors.saturating_sub(SPARE_DESCRIPTORS).min(STREAMS.into());
    0..u32::try_from(most).unwrap()
}

#[track_caller]
fn check(listener: &str, stand: &Stand, case: &Case, call: &mut dyn FnMut()) {
    let what = format!("{} at the {listener}", case.name);
    let attacked = stand.attacked();
    let faults =
        || attacked.iter().map(|p| metric(p, "tollway_request_failures_total")).sum::<u64>();
    let failed_before = faults();
    let resident = attacked.iter().map(|process| {
        reset_peak(process.pid()).unwrap();
        resident_bytes(process.pid()).unwrap()
    });
    let resident: Vec<_> = resident.collect();
    let mut wire = Wire::open(&stand.aim).unwrap();
    let ids: Vec<_> = streams().map(|nth| 2 * nth + 1).collect();
    let window = |bytes| frame(SETTINGS, 0, 0, &setting(INITIAL_WINDOW, bytes));
    wire.send(&[hello(), window(case.window), window_update(0, 1 << 30)].concat()).unwrap();
    for some in ids.chunks(AT_ONCE) {
        let asked: Vec<_> = some.iter().flat_map(|id| (case.stream)(&stand.target, *id)).collect();
        wire.send(&asked).unwrap();
        call();
    }
    let heard = until_reset(&mut wire, streams().len(), &what, call);
    for id in ids {
        check_end(&heard[&id], case, &what);
    }
    let failed = faults() - failed_before;
    assert!(failed >= u64::from(streams().end), "{what}: {failed} in the counter");
    // Nothing of it is the connection's fault.
    let next = 2 * streams().end + 1;
    let again = [window(65_535), stand.target.get(next, "/size?bytes=10")].concat();
    wire.send(&again).unwrap();
    let answered =
        || Frame::all(&wire.take().unwrap()).iter().any(Frame::ends_stream).then_some(());
    retry_until(PATIENCE, "an answer on the same connection", answered).unwrap();
    for (process, before) in attacked.iter().zip(resident) {
        let grown = peak_resident_bytes(process.pid()).unwrap().saturating_sub(before);
        assert!(grown < case.most_growth, "{what}: grown by {grown} bytes");
        let now = || resident_bytes(process.pid()).unwrap();
        let waiting = || metric(process, "tollway_buffered_body_bytes");
        let is_let_go = || (waiting() == 0 && now() < before + KEPT_BYTES).then_some(());
        let let_go = retry_until(PATIENCE, "the memory", is_let_go);
        assert!(
            let_go.is_ok(),
            "{what}: {before} bytes before, grown by {grown}, {} now, {} of them waiting",
            now(),
            waiting()
        );
    }
}

/// What came of each stream until all of them were reset. Others are answered meanwhile.
fn until_reset(
    wire: &mut Wire,
    streams: usize,
    what: &str,
    call: &mut dyn FnMut(),
) -> HashMap<u32, Vec<Frame>> {
    let (began, mut came) = (Instant::now(), Vec::new());
    loop {
        came.extend(wire.take().unwrap());
        wire.send(&[]).unwrap();
        let mut heard: HashMap<u32, Vec<Frame>> = HashMap::new();
        for frame in Frame::all(&came).into_iter().filter(|frame| frame.stream > 0) {
            heard.entry(frame.stream).or_default().push(frame);
        }
        let is_reset = |frames: &&Vec<Frame>| frames.iter().any(|frame| frame.kind == RST_STREAM);
        let reset = heard.values().filter(is_reset).count();
        if reset == streams {
            return heard;
        }
        assert!(began.elapsed() < AT_MOST, "{what}: {reset} of {streams} ended");
        call();
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A body that stops in the middle of a frame ends as others do.
#[track_caller]
fn check_cut_frame(listener: &str, stand: &Stand, call: &mut dyn FnMut()) {
    let what = format!("half a frame of a body at the {listener}");
    let mut wire = Wire::open(&stand.aim).unwrap();
    let cut = &frame(DATA, END_STREAM, 1, b"of a body")[..12];
    let head = stand.target.post(1, "/size?bytes=10");
    wire.send(&[&hello(), &head[..], cut].concat()).unwrap();
    let heard = until_reset(&mut wire, 1, &what, call);
    check_end(&heard[&1], &CASES[1], &what);
}

#[track_caller]
fn check_end(frames: &[Frame], case: &Case, what: &str) {
    let kinds: Vec<_> = frames.iter().map(|frame| frame.kind).collect();
    assert_eq!(kinds, case.frames, "{what}: {frames:?}");
    let code = frames.last().and_then(Frame::code);
    assert_eq!(code, Some(case.code), "{what}: {frames:?}");
    let body = frames.iter().filter(|frame| frame.kind == DATA).map(|frame| &frame.payload[..]);
    let body = String::from_utf8(body.flatten().copied().collect()).unwrap();
    assert!(body.contains(case.body), "{what}: {body}");
}
