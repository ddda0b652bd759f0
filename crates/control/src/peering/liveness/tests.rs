//! Probes over a network that loses, delays and holds back packets, in virtual time.

use std::collections::BinaryHeap;

use super::*;

const MS: Duration = Duration::from_millis(1);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A generator that is good enough for loss and jitter (xorshift64*).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// What the link does to packets that are sent in this time.
#[derive(Clone, Copy)]
struct Link {
    loss: f64,
    delay: Duration,
    jitter: Duration,
}

const CALM: Link = Link { loss: 0.0, delay: ms_const(10), jitter: Duration::ZERO };

const fn ms_const(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// What happens between `from` and `to`.
#[derive(Clone, Copy)]
enum Event {
    /// Every packet is lost.
    Cut,
    /// Packets wait, and come when it is over.
    Held,
    /// The gateway's process is stopped; its kernel accepts connections.
    GatewayStopped,
    /// The probing process is stopped.
    ProberStopped,
    Lossy(f64),
}

struct World {
    link: Link,
    events: Vec<(Duration, Duration, Event)>,
    dice: Dice,
}

impl World {
    fn active(&self, at: Duration) -> impl Iterator<Item = (Duration, Event)> {
        let now = self.events.iter().filter(move |(from, to, _)| (*from..*to).contains(&at));
        now.map(|(_, to, event)| (*to, *event))
    }

    /// When a packet that is sent now arrives; `None` if it is lost.
    fn arrives(&mut self, at: Duration) -> Option<Duration> {
        let (mut loss, mut leaves) = (self.link.loss, at);
        for (to, event) in self.active(at).collect::<Vec<_>>() {
            match event {
                Event::Cut => return None,
                Event::Held => leaves = to,
                Event::Lossy(share) => loss = share,
                Event::GatewayStopped | Event::ProberStopped => {}
            }
        }
        if self.dice.roll() < loss {
            return None;
        }
        Some(leaves + self.link.delay + self.link.jitter.mul_f64(self.dice.roll()))
    }

    /// As [`Self::arrives`], with TCP's repetition: the first after `first`, each in twice the time.
    fn arrives_of_tcp(&mut self, at: Duration, first: Duration) -> Option<Duration> {
        let (mut sent, mut pause) = (at, first);
        while sent < at + ms(3_000) {
            if let Some(at) = self.arrives(sent) {
                return Some(at);
            }
            sent += pause;
            pause *= 2;
        }
        None
    }

    /// When the answer to a probe comes: connection, question and answer.
    fn answered(&mut self, at: Duration) -> Option<Duration> {
        // A lost SYN is repeated after a second, as is what answers it; data after 200 ms at least.
        let accepted = self.arrives_of_tcp(at, ms(1_000))?;
        let open = self.arrives_of_tcp(accepted, ms(1_000))?;
        let asked = self.arrives_of_tcp(open, ms(220) + self.link.jitter)?;
        let awake = self.active(asked).collect::<Vec<_>>();
        let stopped = awake.iter().filter(|(_, event)| matches!(event, Event::GatewayStopped));
        let awake = stopped.map(|(to, _)| *to).max().unwrap_or(asked);
        self.arrives_of_tcp(awake, ms(220) + self.link.jitter)
    }
}

/// Times at which the network was withdrawn and came back.
#[derive(Debug, Default)]
struct Seen {
    withdrawn: Vec<Duration>,
    back: Vec<Duration>,
    probes: usize,
}

fn address(port: u16) -> SocketAddr {
    ([192, 0, 2, 1], port).into()
}

/// Lets a control plane probe one gateway for so long.
fn run(link: Link, events: &[(Duration, Duration, Event)], seed: u64, length: Duration) -> Seen {
    let mut world = World { link, events: events.to_vec(), dice: Dice(seed | 1) };
    let began = Instant::now();
    let mut liveness = Liveness::default();
    liveness.follow(&[address(1)], |_| false);
    let mut seen = Seen::default();
    let mut is_silent = false;
    // When probes end, the first first, and with which answer.
    let mut ends: BinaryHeap<(std::cmp::Reverse<Duration>, bool)> = BinaryHeap::new();
    let mut now = Duration::ZERO;
    while now < length {
        let stopped = world.active(now).filter(|(_, event)| matches!(event, Event::ProberStopped));
        if let Some(to) = stopped.map(|(to, _)| to).max() {
            now = to;
        }
        let look = liveness.look(began + now);
        let verdict = liveness.verdict().unwrap();
        if (verdict == Verdict::Silent) != is_silent {
            is_silent = !is_silent;
            if is_silent { &mut seen.withdrawn } else { &mut seen.back }.push(now);
        }
        for _ in look.probes {
            seen.probes += 1;
            let given_up = now + super::super::probe::PROBE_WITHIN;
            let answer = world.answered(now).filter(|at| *at <= given_up);
            ends.push((std::cmp::Reverse(answer.unwrap_or(given_up)), answer.is_some()));
        }
        let mut next = now + look.wait.max(MS);
        while let Some((std::cmp::Reverse(at), is_answer)) = ends.peek().copied()
            && at <= next
        {
            ends.pop();
            // An answer is a reason to look.
            let answer = is_answer.then_some(GatewayState::Serving);
            liveness.ended(address(1), answer, began + at.max(now));
            if is_answer {
                next = at.max(now);
                break;
            }
        }
        now = next;
    }
    seen
}

const FAR: Link = Link { delay: ms_const(40), ..CALM };
/// A probe takes four ways, up to 1.24 s here.
const JITTERY: Link = Link { delay: ms_const(10), jitter: ms_const(300), loss: 0.0 };
/// A link within a country, across a continent, and one with much jitter.
const LINKS: [Link; 3] = [CALM, FAR, JITTERY];
/// As [`LINKS`], with half the jitter: a packet that is late by 300 ms makes a pause of 1 s longer than a
/// network may be silent.
const PAUSING: [Link; 3] = [CALM, FAR, Link { jitter: ms_const(150), ..JITTERY }];

#[test]
fn a_network_that_falls_silent_is_withdrawn_within_two_seconds() {
    for (seed, link) in (0..900).flat_map(|seed| LINKS.map(|link| (seed, link))) {
        let at = ms(3_000 + seed % 400);
        let seen = run(link, &[(at, ms(60_000), Event::Cut)], seed * 2_654_435_761, ms(8_000));
        assert_eq!(seen.withdrawn.len(), 1, "{seed} {seen:?}");
        // What was under way at the cut may still have come; the store and the way to callers take
        // what is left of two seconds.
        let took = seen.withdrawn[0].saturating_sub(at + link.delay + link.jitter);
        assert!(took <= SILENT_AFTER + 2 * HURRY_EVERY, "{seed} {took:?}");
    }
}

#[test]
fn a_pause_of_a_second_withdraws_nothing() {
    let pauses = [Event::Cut, Event::Held, Event::GatewayStopped, Event::ProberStopped];
    for (seed, link) in (0..500).flat_map(|seed| PAUSING.map(|link| (seed, link))) {
        for event in pauses {
            let at = ms(3_000 + seed % 400);
            let events = [(at, at + ms(1_000), event)];
            let seen = run(link, &events, seed * 2_654_435_761, ms(8_000));
            assert!(seen.withdrawn.is_empty(), "{seed} {seen:?}");
        }
    }
}

#[test]
fn a_pause_of_a_second_with_a_jitter_of_300_ms_seldom_withdraws() {
    let withdrawn = (0..500_u64).filter(|seed| {
        let at = ms(3_000 + seed % 400);
        let events = [(at, at + ms(1_000), Event::Cut)];
        !run(JITTERY, &events, seed * 2_654_435_761, ms(8_000)).withdrawn.is_empty()
    });
    assert!(withdrawn.count() < 50);
}

#[test]
fn a_loss_of_three_tenths_for_ten_seconds_withdraws_nothing() {
    for (seed, link) in (0..2_000).flat_map(|seed| PAUSING.map(|link| (seed, link))) {
        let events = [(ms(2_000), ms(12_000), Event::Lossy(0.3))];
        let seen = run(link, &events, seed * 2_654_435_761, ms(15_000));
        assert!(seen.withdrawn.is_empty(), "{seed} {seen:?}");
    }
}

#[test]
fn a_process_that_stood_still_for_long_draws_no_conclusion() {
    for seed in 0..200 {
        let at = ms(3_000 + seed % 400);
        let events = [(at, at + ms(30_000), Event::ProberStopped)];
        let seen = run(CALM, &events, seed, ms(40_000));
        assert!(seen.withdrawn.is_empty(), "{seed} {seen:?}");
    }
}

#[test]
fn a_network_that_answers_again_is_back_within_a_second() {
    for (seed, link) in (0..500).flat_map(|seed| LINKS.map(|link| (seed, link))) {
        let (from, to) = (ms(3_000), ms(20_000 + seed % 400));
        let seen = run(link, &[(from, to, Event::Cut)], seed * 2_654_435_761, ms(30_000));
        assert_eq!((seen.withdrawn.len(), seen.back.len()), (1, 1), "{seed} {seen:?}");
        let took = seen.back[0].saturating_sub(to);
        assert!(took <= ms(1_000) + 4 * link.jitter, "{seed} {took:?}");
    }
}

#[test]
fn while_all_is_well_a_gateway_is_probed_five_times_a_second() {
    let seen = run(CALM, &[], 1, ms(100_000));
    assert!((450..=520).contains(&seen.probes), "{}", seen.probes);
}

#[test]
fn probes_that_do_not_end_are_bounded() {
    let mut liveness = Liveness::default();
    liveness.follow(&[address(1), address(2)], |_| false);
    let began = Instant::now();
    let mut now = began;
    let mut probes = 0;
    while now < began + ms(60_000) {
        let look = liveness.look(now);
        probes += look.probes.len();
        now += look.wait.max(MS);
    }
    assert_eq!(probes, 2 * PROBES_LIMIT);
}

#[test]
fn a_gateway_that_is_silent_or_drains_is_passed_over_while_another_serves() {
    let all = [address(1), address(2), address(3)];
    let mut liveness = Liveness::default();
    let began = Instant::now();
    assert_eq!(liveness.verdict(), None);
    liveness.follow(&all, |address| address.port() == 3);
    let passed_over = |liveness: &Liveness| match liveness.verdict() {
        Some(Verdict::Reachable { passed_over }) => {
            passed_over.iter().map(SocketAddr::port).collect::<Vec<_>>()
        }
        Some(Verdict::Silent) | None => vec![0],
    };
    assert_eq!(passed_over(&liveness), [3]);
    liveness.ended(address(3), Some(GatewayState::Serving), began);
    assert_eq!(passed_over(&liveness), [0; 0]);
    liveness.ended(address(1), Some(GatewayState::Draining), began);
    assert_eq!(passed_over(&liveness), [1]);
    // Two fall silent; the one that drains is what is left.
    let mut now = began;
    for _ in 0..200 {
        now += ms(20);
        let _ = liveness.look(now);
        liveness.ended(address(1), Some(GatewayState::Draining), now);
    }
    assert_eq!(passed_over(&liveness), [2, 3]);
    liveness.follow(&[address(2)], |_| true);
    assert_eq!(liveness.verdict(), Some(Verdict::Silent));
    liveness.ended(address(2), Some(GatewayState::Serving), began);
    assert_eq!(passed_over(&liveness), [0; 0]);
}

#[test]
fn the_limit_is_documented() {
    const PAGE: &str = include_str!("../../../../../docs/limits.md");
    tollway_testkit::check_limit(PAGE, "PROBES_LIMIT", &PROBES_LIMIT.to_string());
}
