//! What attackers do, and what must become of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use tollway_testkit::Process;

use crate::transport::GRACE;
use crate::transport::descriptors::{Few, REFUSED};
use crate::transport::line::{Aim, Line};
use crate::transport::weigh::{Bounds, Found, Outcome, weigh};
use crate::transport::world::{ATTACKER, Listener, SHORT_MS, World};
use tollway_tests::h2_frames::{DATA, frame};
use tollway_tests::network::{PATIENCE, STOCK, metric};
use tollway_tests::tls_client::client_hello;

/// Pause of a slow peer between two bytes.
const TICK: Duration = Duration::from_millis(250);
/// How long a slow peer goes on before it falls silent.
const DRIP: Duration = Duration::from_secs(3);
/// Times that are as they are by default.
const HEAD: Duration = Duration::from_secs(10);
const CONTROL_HANDSHAKE: Duration = Duration::from_secs(5);
/// For the first bytes on a connection to a control plane, and for an answer to its pings.
const CONTROL_PREFACE: Duration = Duration::from_secs(5);
const CONTROL_PING: Duration = Duration::from_secs(15);
/// Connections that a silent crowd can have: handshakes under way at a control plane, descriptors
/// that are left to another process.
const PLACES: usize = 2_000;
/// Those that the processes are started with.
const SHORT: Duration = Duration::from_millis(SHORT_MS);
/// Body of an answer that is not taken.
const LARGE_BYTES: u64 = 20_000_000;
/// Connections from one address to one listener: there are no more ports.
const OF_ONE_ADDRESS: usize = 20_000;
/// Descriptors that this process, or one that it attacks, needs besides.
const SPARE_DESCRIPTORS: u64 = 300;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Case {
    SlowHead,
    SlowHandshake,
    SlowBody,
    SlowReader,
    SilentApp,
    Resets,
    Storm,
    Idle,
    Crowd,
}

/// How many of each.
pub(crate) struct Size {
    slow: usize,
    readers: usize,
    resets: usize,
    storm: Duration,
    idle: usize,
    idle_tls: usize,
    /// What a gateway has descriptors for: it takes two for each connection.
    idle_gateway: usize,
    crowd: usize,
    is_whole: bool,
}

impl Size {
    pub(crate) fn whole() -> Self {
        let room = room();
        Self {
            slow: 500,
            readers: 100,
            resets: 10_000,
            storm: Duration::from_secs(5),
            idle: room.min(100_000),
            idle_tls: room.min(10_000),
            idle_gateway: (room / 2).min(10_000),
            crowd: room.min(2 * OF_ONE_ADDRESS),
            is_whole: true,
        }
    }

    pub(crate) fn reduced() -> Self {
        Self {
            slow: 20,
            readers: 5,
            resets: 100,
            storm: Duration::from_millis(500),
            idle: 200,
            idle_tls: 50,
            idle_gateway: 50,
            crowd: room().min(PLACES + 200),
            is_whole: false,
        }
    }

    fn bounds(&self, growth_bytes: usize) -> Bounds {
        /// Where several cases run at once, each sees what all of them cost.
        const ALL_BYTES: u64 = 160 << 20;
        /// What a process takes for good when it first works hard.
        const WARM_BYTES: u64 = 12 << 20;
        if self.is_whole {
            let growth_bytes = growth_bytes as u64 + WARM_BYTES;
            Bounds { growth_bytes, cpu_ratio: Some(100.0) }
        } else {
            Bounds { growth_bytes: ALL_BYTES, cpu_ratio: None }
        }
    }
}

/// How many descriptors a process may have here.
pub(crate) fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(1 << 20)
}

/// Connections that this process may have.
fn room() -> usize {
    usize::try_from(descriptor_limit().saturating_sub(SPARE_DESCRIPTORS)).unwrap_or(0)
}

impl Case {
    pub(crate) const ALL: [Self; 9] = [
        Self::SlowHead,
        Self::SlowHandshake,
        Self::SlowBody,
        Self::SlowReader,
        Self::SilentApp,
        Self::Resets,
        Self::Storm,
        Self::Idle,
        Self::Crowd,
    ];

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::SlowHead => "slow head",
            Self::SlowHandshake => "slow handshake",
            Self::SlowBody => "slow body",
            Self::SlowReader => "slow reader",
            Self::SilentApp => "silent app",
            Self::Resets => "resets",
            Self::Storm => "open and close",
            Self::Idle => "idle",
            Self::Crowd => "silent crowd",
        }
    }

    /// All of them but where a case makes no sense: those without TLS have no handshake, a control
    /// plane has no app and no large answers. The ports of a sidecar are one to a silent crowd.
    pub(crate) fn listeners(self) -> &'static [Listener] {
        use Listener::{Api, Control, Front, Gateway, Grpc, Mesh, Outbound};
        match self {
            Self::SlowHandshake => &[Mesh, Gateway, Front, Control],
            Self::SlowReader | Self::SilentApp => &[Api, Grpc, Outbound, Mesh, Gateway, Front],
            Self::SlowHead | Self::SlowBody | Self::Resets | Self::Storm | Self::Idle => {
                &[Api, Grpc, Outbound, Mesh, Gateway, Front, Control]
            }
            Self::Crowd => &[Api, Mesh, Gateway, Front, Control],
        }
    }

    /// A world for this case alone. Those who come first are idle for as long as it takes until all
    /// have come.
    pub(crate) fn world(self) -> World {
        if self == Self::Idle { World::start_patient() } else { World::start() }
    }

    pub(crate) fn run(self, world: &World, listener: Listener, size: &Size) -> Outcome {
        let at = (self.words(), world, listener);
        let aim = world.attacker(listener);
        let ask = |method, path: &str, fields: &str| world.head(listener, method, path, fields);
        let is_control = listener == Listener::Control;
        match self {
            Self::SlowHead => {
                let head = ask("GET", "/slow", &format!("x-slow: {}\r\n", "a".repeat(1000)));
                let bounds = size.bounds(size.slow * (8 << 10) + tls_bytes(listener, size.slow));
                let end = if is_control {
                    End { within: CONTROL_PREFACE, answers: &["closed"] }
                } else {
                    End { within: HEAD, answers: &["408 ERR_HEAD_TIMED_OUT"] }
                };
                weigh(at, bounds, || drip(&aim, size.slow, &head, HEAD * 3, &end))
            }
            Self::SlowHandshake => {
                let within = if is_control { CONTROL_HANDSHAKE } else { HEAD };
                let hello = client_hello(STOCK);
                let bounds = size.bounds(size.slow * (24 << 10));
                let end = End { within, answers: &["closed"] };
                weigh(at, bounds, || drip(&aim.bare(), size.slow, &hello, HEAD * 3, &end))
            }
            Self::SlowBody => {
                let head = ask("POST", "/echo", "content-length: 100000\r\n");
                let bounds = size.bounds(size.slow * (16 << 10) + tls_bytes(listener, size.slow));
                let answers = &["408 ERR_BODY_TIMED_OUT", "503 ERR_OVERLOADED", BROKEN_OFF];
                let (byte, end) = if is_control {
                    // Of a message that is to have 256 bytes.
                    let byte = frame(DATA, 0, 1, &[0, 0, 0, 1, 0]);
                    (byte, End { within: DRIP + CONTROL_PING, answers: &["closed"] })
                } else {
                    (b"x".to_vec(), End { within: DRIP + SHORT, answers })
                };
                weigh(at, bounds, || after_head(&aim, size.slow, (&head, &byte), &end))
            }
            Self::SilentApp => {
                let head = ask("GET", "/delay?ms=60000", "");
                let bounds = size.bounds(size.slow * (16 << 10) + tls_bytes(listener, size.slow));
                // A gateway's relayed connection is silent for as long, and the first side that
                // notices ends it.
                let answers: &[&str] = if listener == Listener::Gateway {
                    &["504 ERR_TIMED_OUT", "503 ERR_OVERLOADED", "closed"]
                } else {
                    &["504 ERR_TIMED_OUT", "503 ERR_OVERLOADED"]
                };
                let end = End { within: SHORT, answers };
                weigh(at, bounds, || asked(&aim, size.slow, &head, &end))
            }
            Self::SlowReader => {
                let head = ask("GET", &format!("/size?bytes={LARGE_BYTES}"), "");
                // Twice what waits on each side: in a pipe and in what is queued for the wire.
                let bounds = size.bounds(size.readers * (512 << 10));
                weigh(at, bounds, || sip(&aim, size.readers, &head))
            }
            Self::Resets => {
                let count = if listener.has_tls() { size.resets / 5 } else { size.resets };
                let head = ask("GET", "/size?bytes=100000", "");
                weigh(at, size.bounds(32 << 20), || (reset(&aim, count, &head), ()))
            }
            Self::Storm => {
                weigh(at, size.bounds(32 << 20), || (storm(&aim.bare(), size.storm), ()))
            }
            Self::Idle => {
                let count = if listener == Listener::Gateway {
                    size.idle_gateway
                } else if listener.has_tls() {
                    size.idle_tls
                } else {
                    size.idle
                };
                let each = if listener.has_tls() { 32 << 10 } else { 12 << 10 };
                let small = world.ask(listener).bytes;
                weigh(at, size.bounds(count * each), || idle(&aim, count, &small))
            }
            Self::Crowd => {
                let bounds = size.bounds(PLACES * (40 << 10));
                if is_control {
                    weigh(at, bounds, || crowd_control(&aim.bare(), size.crowd, world))
                } else {
                    let process = world.attacked(listener)[0];
                    weigh(at, bounds, || crowd(&aim.bare(), size, process))
                }
            }
        }
    }
}

/// What TLS takes for so many connections.
fn tls_bytes(listener: Listener, count: usize) -> usize {
    if listener.has_tls() { count * (16 << 10) } else { 0 }
}

/// The outcome of an answer that began well and ended early.
const BROKEN_OFF: &str = "broken off";

/// How and when connections must end.
struct End<'a> {
    within: Duration,
    answers: &'a [&'a str],
}

/// Opens `count` connections; failures are reported in `wrong`.
fn open(aim: &Aim, count: usize, wrong: &mut Vec<String>) -> Vec<Line> {
    open_these(aim, 0..count, wrong)
}

/// Opens those of many connections that have these numbers.
fn open_these(aim: &Aim, numbers: Range<usize>, wrong: &mut Vec<String>) -> Vec<Line> {
    let mut lines = Vec::with_capacity(numbers.len());
    for nth in numbers {
        let aim = aim.from(address(nth / OF_ONE_ADDRESS));
        match Line::open(&aim) {
            Ok(line) => lines.push(line),
            Err(error) if wrong.len() < 3 => wrong.push(format!("connection {nth}: {error}")),
            Err(_) => {}
        }
    }
    lines
}

/// One of the attacker's addresses.
fn address(nth: usize) -> IpAddr {
    let IpAddr::V4(first) = ATTACKER else { return ATTACKER };
    IpAddr::V4(Ipv4Addr::from_bits(first.to_bits() + u32::try_from(nth).unwrap_or(0)))
}

/// Acts on every open line in each tick, and reads it, until all have ended or the time is over.
fn drive(
    lines: &mut [Line],
    within: Duration,
    mut act: impl FnMut(&mut Line, usize) -> ControlFlow<()>,
) {
    let deadline = Instant::now() + within;
    for turn in 0.. {
        for line in lines.iter_mut().filter(|line| line.is_open()) {
            if act(line, turn).is_continue() {
                line.look();
            }
        }
        if lines.iter().all(|line| !line.is_open()) || Instant::now() > deadline {
            return;
        }
        std::thread::sleep(TICK);
    }
}

/// Sends one byte at a time until the other side has had enough.
fn drip(
    aim: &Aim,
    count: usize,
    bytes: &[u8],
    most: Duration,
    end: &End<'_>,
) -> (Found, Vec<Line>) {
    let mut wrong = Vec::new();
    let mut lines = open(aim, count, &mut wrong);
    drive(&mut lines, most, |line, turn| {
        line.send(&bytes[turn % bytes.len()..][..1]);
        ControlFlow::Continue(())
    });
    let done = format!("{count} peers send a byte every {} ms", TICK.as_millis());
    (judge(done, &lines, end, wrong), lines)
}

/// Sends a head at once and its body in small pieces, then nothing more.
fn after_head(
    aim: &Aim,
    count: usize,
    (head, piece): (&[u8], &[u8]),
    end: &End<'_>,
) -> (Found, Vec<Line>) {
    let mut wrong = Vec::new();
    let mut lines = open(aim, count, &mut wrong);
    let began = Instant::now();
    drive(&mut lines, end.within + GRACE, |line, turn| {
        match turn {
            0 => line.send(head),
            _ if began.elapsed() < DRIP => line.send(piece),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    let done = format!("{count} bodies, a byte every {} ms, then silence", TICK.as_millis());
    (judge(done, &lines, end, wrong), lines)
}

/// Sends a whole request and waits.
fn asked(aim: &Aim, count: usize, head: &[u8], end: &End<'_>) -> (Found, Vec<Line>) {
    let mut wrong = Vec::new();
    let mut lines = open(aim, count, &mut wrong);
    drive(&mut lines, end.within + GRACE, |line, turn| {
        if turn == 0 {
            line.send(head);
        }
        // An answer is an end, though the connection may go on.
        line.look();
        if !line.heard.is_empty() {
            line.finish();
        }
        ControlFlow::Break(())
    });
    (judge(format!("{count} requests that the app leaves unanswered"), &lines, end, wrong), lines)
}

/// Asks for a lot, takes little of it, then nothing.
fn sip(aim: &Aim, count: usize, head: &[u8]) -> (Found, Vec<Line>) {
    const MOUTHFUL: usize = 512;
    let mut wrong = Vec::new();
    let mut lines = open(aim, count, &mut wrong);
    let began = Instant::now();
    drive(&mut lines, DRIP + SHORT + GRACE, |line, turn| {
        if turn == 0 {
            line.send(head);
        }
        if began.elapsed() < DRIP {
            line.sip(MOUTHFUL);
        } else if line.is_hung_up() {
            line.finish();
        }
        ControlFlow::Break(())
    });
    for line in &mut lines {
        line.look_at_rest();
    }
    let whole = lines.iter().filter(|line| line.taken >= LARGE_BYTES).count();
    if whole > 0 {
        wrong.push(format!("{whole} have the whole answer"));
    }
    let done = format!(
        "{count} peers take {MOUTHFUL} bytes every {} ms of 20 MB, then none",
        TICK.as_millis()
    );
    let end = End { within: DRIP + SHORT, answers: &[BROKEN_OFF] };
    (judge(done, &lines, &end, wrong), lines)
}

/// Asks and is gone at once, with a reset.
fn reset(aim: &Aim, count: usize, head: &[u8]) -> Found {
    let mut wrong = Vec::new();
    let began = Instant::now();
    for nth in 0..count {
        match Line::open(aim) {
            Ok(mut line) => {
                line.send(head);
                line.reset();
            }
            Err(error) if wrong.len() < 3 => wrong.push(format!("connection {nth}: {error}")),
            Err(_) => {}
        }
    }
    let rate = count as f64 / began.elapsed().as_secs_f64();
    let done = format!("{count} requests, each reset at once ({rate:.0}/s)");
    Found { peers: count, done, became: "called off".to_owned(), wrong, ..Found::default() }
}

/// Opens and closes as fast as it goes.
fn storm(aim: &Aim, within: Duration) -> Found {
    let began = Instant::now();
    let (mut count, mut wrong) = (0, Vec::new());
    while began.elapsed() < within {
        if let Err(error) = aim.from(address(count / OF_ONE_ADDRESS)).dial()
            && wrong.len() < 3
        {
            wrong.push(format!("connection {count}: {error}"));
        }
        count += 1;
    }
    let rate = count as f64 / began.elapsed().as_secs_f64();
    Found {
        peers: count,
        done: format!("{count} connections opened and closed, {rate:.0}/s"),
        became: "closed".to_owned(),
        opened_per_second: Some(rate),
        wrong,
    }
}

/// Asks once on each connection and leaves it.
fn idle(aim: &Aim, count: usize, small: &[u8]) -> (Found, Vec<Line>) {
    /// Connections that ask at once: it is the idle ones that count, not what they ask.
    const PART: usize = 50;
    let (mut wrong, mut lines) = (Vec::new(), Vec::with_capacity(count));
    let mut last_kept = Instant::now();
    for first in (0..count).step_by(PART) {
        let mut part = open_these(aim, first..count.min(first + PART), &mut wrong);
        for line in &mut part {
            line.send(small);
        }
        let deadline = Instant::now() + PATIENCE;
        while part.iter().any(|line| line.is_open() && line.heard.is_empty())
            && Instant::now() < deadline
        {
            part.iter_mut().for_each(Line::look);
            std::thread::yield_now();
        }
        lines.append(&mut part);
        if last_kept.elapsed() > CONTROL_PING / 4 {
            lines.iter_mut().for_each(Line::keep_alive);
            last_kept = Instant::now();
        }
    }
    std::thread::sleep(Duration::from_secs(1));
    lines.iter_mut().for_each(Line::keep_alive);
    let open = lines.iter().filter(|line| line.is_open()).count();
    let answers = tally(lines.iter().map(Line::answer));
    if open < count {
        wrong.push(format!("only {open} of {count} are open: {answers}"));
    }
    let done = format!("{count} connections, idle after one request");
    let became = format!("{open} stay");
    (Found { peers: count, done, became, wrong, ..Found::default() }, lines)
}

/// Opens silent connections, and another one for each that ends, until a workload has joined
/// meanwhile; then leaves them to end.
fn crowd_control(aim: &Aim, count: usize, world: &World) -> (Found, Vec<Line>) {
    let (mut wrong, before) = (Vec::new(), world.given_way());
    let has_joined = AtomicBool::new(false);
    let mut crowd = Crowd::open(aim, count, &mut wrong);
    std::thread::scope(|scope| {
        let joining = scope.spawn(|| {
            let _done = Done(&has_joined);
            world.have_one_join();
        });
        crowd.come_again_until(|| has_joined.load(Ordering::Relaxed));
        if joining.join().is_err() {
            wrong.push("no workload could join meanwhile".to_owned());
        }
    });
    crowd.end(CONTROL_HANDSHAKE, || world.given_way() - before, wrong)
}

/// A silent crowd for as long as a storm, at a process that has descriptors for few of them.
fn crowd(aim: &Aim, size: &Size, process: &Process) -> (Found, Vec<Line>) {
    let (mut wrong, before) = (Vec::new(), metric(process, REFUSED));
    Few::leave(process, PLACES);
    let mut crowd = Crowd::open(aim, size.crowd, &mut wrong);
    let until = Instant::now() + size.storm;
    crowd.come_again_until(|| Instant::now() > until);
    crowd.end(HEAD, || metric(process, REFUSED) - before, wrong)
}

/// Silent connections.
struct Crowd<'a> {
    aim: &'a Aim,
    lines: Vec<Line>,
    /// How many there have been.
    opened: usize,
}

impl<'a> Crowd<'a> {
    fn open(aim: &'a Aim, count: usize, wrong: &mut Vec<String>) -> Self {
        Self { aim, lines: open(aim, count, wrong), opened: count }
    }

    /// Another one for each that was ended.
    fn come_again_until(&mut self, is_over: impl Fn() -> bool) {
        while !is_over() {
            for line in &mut self.lines {
                line.look();
                if !line.is_open()
                    && let Ok(another) =
                        Line::open(&self.aim.from(address(self.opened / OF_ONE_ADDRESS)))
                {
                    *line = another;
                    self.opened += 1;
                }
            }
            std::thread::sleep(TICK);
        }
    }

    /// All end in time; at least those beyond the limit have been evicted.
    fn end(
        mut self,
        within: Duration,
        gave_way: impl Fn() -> u64,
        mut wrong: Vec<String>,
    ) -> (Found, Vec<Line>) {
        drive(&mut self.lines, within + GRACE, |_, _| ControlFlow::Continue(()));
        let count = self.lines.len();
        let (gave_way, least) = (gave_way(), count.saturating_sub(PLACES) as u64);
        if gave_way < least {
            wrong.push(format!("{gave_way} gave way, at least {least} must have"));
        }
        let end = End { within, answers: &["closed"] };
        let done = format!("{count} connections that say nothing, {} in all", self.opened);
        let found = judge(done, &self.lines, &end, wrong);
        let became = format!("{gave_way} gave way, the last {}", found.became);
        (Found { became, ..found }, self.lines)
    }
}

/// Says that something is done, however it ended.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether all have ended in time and as they must.
fn judge(done: String, lines: &[Line], end: &End<'_>, mut wrong: Vec<String>) -> Found {
    let open = lines.iter().filter(|line| line.is_open()).count();
    let slowest = lines.iter().filter_map(|line| line.ended_after).max().unwrap_or_default();
    let late = end.within + GRACE;
    if open > 0 || slowest > late {
        wrong.push(format!("{open} have not ended within {late:?}, the last after {slowest:?}"));
    }
    let answers = lines.iter().map(|line| match line.answer() {
        answer if answer == "200" => BROKEN_OFF.to_owned(),
        answer => answer,
    });
    let others = tally(answers.clone().filter(|answer| !end.answers.contains(&answer.as_str())));
    if !others.is_empty() {
        wrong.push(format!("ended otherwise: {others}"));
    }
    let became = format!("{} within {:.1} s", tally(answers), slowest.as_secs_f64());
    Found { peers: lines.len(), done, became, wrong, ..Found::default() }
}

/// How often each answer was given.
fn tally(answers: impl Iterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for answer in answers {
        *counts.entry(answer).or_default() += 1;
    }
    let reported = counts.iter().map(|(answer, count)| format!("{count} × {answer}"));
    reported.collect::<Vec<_>>().join(", ")
}
