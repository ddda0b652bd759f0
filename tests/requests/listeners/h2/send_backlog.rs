//! Authenticated workloads that stop reading their answers, or sending the rest of their requests,
//! and still answer the control plane's keepalives.

use std::io;
use std::time::{Duration, Instant};

use prost::Message as _;
use tollway_testkit::retry_until;
use tollway_wire::v1::open::Scope;
use tollway_wire::v1::watch_request::Request;
use tollway_wire::v1::{Open, ServiceName, WatchRequest};

use super::attacks::OF_ANSWERS;
use super::bear::Scales;
use super::{Stand, grpc_head};
use tollway_tests::h2_attacker::{Aim, Wire};
use tollway_tests::h2_frames::{
    ACK, DATA, END_HEADERS, Frame, HEADERS, INITIAL_WINDOW, PING, SETTINGS, WINDOW_UPDATE, frame,
    hello, setting, window_update,
};
use tollway_tests::network::{PATIENCE, metric};

const UNTAKEN: &str = "tollway_control_send_buffer_bytes";
const ENDED: &str = "tollway_control_connections_refused_total{reason=\"send_buffer\"}";
/// As many as one connection may have.
const STREAMS: u32 = 64;
/// Bytes that may come on a connection before a control plane sends its limits.
const FIRST_WINDOW: usize = 65_535;
/// Of a call that has begun: its part of the connection's window (256 KiB), and what serves it.
const OF_CALL: u64 = 32 << 10;
const FRAME_BYTES: usize = 16 << 10;
/// Names in a question, and bytes of each.
const NAMES: usize = 700;
const NAME_BYTES: usize = 60;
/// Time for a part of an answer to be read, until a keepalive is sent, and to see both.
const TAKE: Duration = Duration::from_secs(60);
const AT_MOST: Duration = Duration::from_secs(90);
/// Longer than until a sign of life has to be there (`PING_EVERY` and `PING_TIMEOUT`).
const SOME_PINGS: Duration = Duration::from_secs(20);
/// Of those who leave their requests unfinished.
const CONNECTIONS: u64 = 20;
const BEGUN_BYTES: usize = 4000;
/// The window of who takes what comes.
const OPEN: u32 = 65_535;
const REST: Duration = Duration::from_millis(100);

/// A connection that answers signs of life and leaves everything else.
struct Stopped {
    wire: Wire,
    came: Vec<u8>,
    /// Signs of life that were answered.
    answered: usize,
    /// Bytes of bodies.
    sent: usize,
}

impl Stopped {
    fn open(aim: &Aim, window: u32) -> Self {
        let mut wire = Wire::open(aim).unwrap();
        let settings = frame(SETTINGS, 0, 0, &setting(INITIAL_WINDOW, window));
        wire.send(&[hello(), settings, window_update(0, 1 << 30)].concat()).unwrap();
        Self { wire, came: Vec::new(), answered: 0, sent: 0 }
    }

    /// Takes what has come; an error once the control plane has closed.
    fn look(&mut self) -> io::Result<Vec<Frame>> {
        self.came.extend(self.wire.take()?);
        let frames = Frame::all(&self.came);
        let is_question = |frame: &&Frame| frame.kind == PING && frame.flags & ACK == 0;
        let questions: Vec<_> = frames.iter().filter(is_question).collect();
        for question in &questions[self.answered..] {
            self.wire.send(&frame(PING, ACK, 0, &question.payload))?;
        }
        self.answered = questions.len();
        Ok(frames)
    }

    /// Begins to watch as a data plane does.
    fn watch(&mut self, stream: u32, open: &[u8]) {
        self.call("/tollway.v1.Discovery/Watch", stream, open);
    }

    /// Calls `path` with a message of which all or a part is sent.
    fn call(&mut self, path: &str, stream: u32, message: &[u8]) {
        self.wire.send(&frame(HEADERS, END_HEADERS, stream, &grpc_head(path))).unwrap();
        self.sent += message.len();
        let has_room = |stopped: &mut Self| {
            let frames = stopped.look().unwrap();
            let credits = frames.iter().filter(|f| f.kind == WINDOW_UPDATE && f.stream == 0);
            let bytes = |frame: &Frame| u32::from_be_bytes(*frame.payload.first_chunk().unwrap());
            let credit: usize = credits.map(|frame| bytes(frame) as usize).sum();
            (stopped.sent <= FIRST_WINDOW + credit).then_some(())
        };
        retry_until(PATIENCE, "room on the connection", || has_room(self)).unwrap();
        for part in message.chunks(FRAME_BYTES) {
            self.wire.send(&frame(DATA, 0, stream, part)).unwrap();
        }
    }
}

/// The first message of a stream, about services that there are not.
fn open_message(names: usize) -> Vec<u8> {
    let name = |nth| ServiceName {
        app: format!("a{nth:0width$}", width = NAME_BYTES - 1),
        namespace: "default".to_owned(),
        network: "west".to_owned(),
    };
    let resume = (0..names).map(name).collect();
    let open = Open { scope: Scope::Subscribed.into(), resume, ..Open::default() };
    let message = WatchRequest { request: Some(Request::Open(open)) }.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, &message].concat()
}

fn streams() -> impl Iterator<Item = u32> {
    (0..STREAMS).map(|nth| 2 * nth + 1)
}

/// The control plane is all that there is on the scales.
#[track_caller]
fn check_grown(scales: &Scales<'_>, most: u64) {
    let grown: u64 = scales.grown().iter().sum();
    assert!(grown < most, "grown by {grown} bytes");
}

#[test]
fn a_workload_that_takes_no_answers_loses_its_connection() {
    let stand = Stand::control();
    let control = stand.attacked()[0];
    let mut call = stand.honest.caller();
    let idle = &mut Stopped::open(&stand.aim_of_another(), OPEN);
    idle.watch(1, &open_message(1));
    let is_told = |idle: &mut Stopped| {
        idle.look().unwrap().iter().any(|frame| frame.kind == DATA).then_some(())
    };
    retry_until(PATIENCE, "what there is to know", || is_told(idle)).unwrap();
    let scales = Scales::set(stand.attacked());
    let (mut greedy, question) = (Stopped::open(&stand.aim, 0), open_message(NAMES));
    let began = Instant::now();
    for stream in streams() {
        greedy.watch(stream, &question);
        call();
    }
    let waits = || (metric(control, UNTAKEN) > 0).then_some(());
    retry_until(PATIENCE, "answers that wait", waits).unwrap();
    while greedy.look().is_ok() {
        assert!(began.elapsed() < AT_MOST, "open after {:?}", began.elapsed());
        call();
        idle.look().unwrap();
        std::thread::sleep(REST);
    }
    assert!(began.elapsed() > TAKE, "ended after {:?}", began.elapsed());
    check_grown(&scales, OF_ANSWERS);
    assert_eq!(metric(control, ENDED), 1, "who takes answers and asks for none stays");
    let let_go = || (metric(control, UNTAKEN) == 0).then_some(());
    retry_until(PATIENCE, "the bytes", let_go).unwrap();
    assert!(idle.answered > 0 && is_told(idle).is_some());
}

#[test]
fn workloads_that_finish_no_request_take_little() {
    let stand = Stand::control();
    let mut call = stand.honest.caller();
    let scales = Scales::set(stand.attacked());
    let begun = &open_message(NAMES)[..BEGUN_BYTES];
    let open = |_| {
        let mut stopped = Stopped::open(&stand.aim, OPEN);
        streams().for_each(|stream| stopped.call("/tollway.v1.State/ReadState", stream, begun));
        stopped
    };
    let mut stopped: Vec<_> = (0..CONNECTIONS).map(open).collect();
    let began = Instant::now();
    while began.elapsed() < SOME_PINGS {
        call();
        stopped.iter_mut().for_each(|stopped| drop(stopped.look()));
        std::thread::sleep(REST);
    }
    check_grown(&scales, CONNECTIONS * u64::from(STREAMS) * OF_CALL);
}
