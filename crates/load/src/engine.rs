//! One run on one thread: release what is due, send it, take the answers, wait.
//!
//! The engine owns time: when each request starts, which wait for a free slot or are dropped, when
//! the window and the drain end. A [`Client`] owns the connections and the protocol.

use std::collections::VecDeque;
use std::iter::Peekable;
use std::net::SocketAddr;
use std::time::Duration;

use tollway_net::{Poller, Readiness, Scratch};
use tollway_record::Traffic;
use tollway_record::run::Generator;
use tollway_record::tls::TlsFacts;

use crate::arrival::{Arrival, Extent, Planned, Schedule, nanos};
use crate::clock::Clock;
use crate::cost::Cost;
use crate::error::LoadError;
use crate::options::LoadOptions;
use crate::pacer::Pacer;
use crate::progress::{Phase, Progress, Watch};
use crate::recorder::{Call, Failure, Recorder};

/// Interval at which timeouts, reconnects and a stop are checked.
const DUTY_NS: u64 = 20_000_000;
/// Interval of progress reports.
const PROGRESS_NS: u64 = 1_000_000_000;

/// What a client needs of the loop.
pub(crate) struct Io {
    pub(crate) poller: Poller,
    pub(crate) clock: Clock,
    pub(crate) scratch: Scratch,
    pub(crate) recorder: Recorder,
    /// Connection attempts that failed since the engine's last check.
    pub(crate) failed_connects: u64,
    /// What the last of them failed of.
    pub(crate) connect_failure: Failure,
}

pub(crate) type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// Connections of one protocol.
///
/// Every call that was started is recorded exactly once, or counted by `abandon`.
pub(crate) trait Client {
    /// Starts to open every connection.
    fn open(&mut self, io: &mut Io);
    /// Whether every connection can carry requests or its first attempt has failed.
    fn is_settled(&self) -> bool;
    /// Connections that can carry requests.
    fn connected(&self) -> usize;
    /// The last reason why a connection could not be opened.
    fn take_connect_error(&mut self) -> Option<BoxedError>;
    /// Whether a call could start now.
    fn has_slot(&self) -> bool;
    /// Starts a call and stamps its send. Without a slot the call fails.
    fn start(&mut self, call: Call, io: &mut Io);
    /// Hands to the kernel what this pass of the loop has queued.
    fn flush(&mut self, io: &mut Io);
    fn ready(&mut self, readiness: Readiness, io: &mut Io);
    /// Request timeouts and due reconnects.
    fn tick(&mut self, io: &mut Io);
    /// Calls started and not yet answered.
    fn in_flight(&self) -> usize;
    /// Gives up the calls in flight; returns how many of them were measured.
    fn abandon(&mut self) -> u64;
}

/// What a run gave.
pub(crate) struct Outcome {
    pub(crate) traffic: Traffic,
    pub(crate) generator: Generator,
    /// `None` without TLS.
    pub(crate) tls: Option<TlsFacts>,
    pub(crate) connections: usize,
}

/// A request that is due and has not been started.
struct Waiting {
    planned: Planned,
    released_ns: u64,
}

impl Waiting {
    fn call(&self, now_ns: u64) -> Call {
        let Planned { at_ns, measured } = self.planned;
        Call::new(at_ns, now_ns - self.released_ns, measured)
    }
}

/// Runs `client` to the end of the plan or until `watch` requests a stop.
pub(crate) fn run<C: Client>(
    client: C,
    options: &LoadOptions,
    address: SocketAddr,
    watch: &mut Watch<'_>,
) -> Result<Outcome, LoadError> {
    tollway_net::ask_for_punctual_wakeups();
    let poller = Poller::new().map_err(LoadError::Loop)?;
    watch.stop.attach(poller.waker());
    let mut io = Io {
        poller,
        clock: Clock::start(),
        scratch: Scratch::new(),
        recorder: Recorder::new(options.arrival.rate_rps(), options.keep),
        failed_connects: 0,
        connect_failure: Failure::Connect,
    };
    let mut client = client;
    let connections = connect(&mut client, &mut io, options, address)?;
    io.failed_connects = 0;
    let engine = Engine::new(client, io, options)?;
    let outcome = engine.run(watch)?;
    Ok(Outcome { connections, ..outcome })
}

/// Opens the connections. One open connection is enough; the others are tried again during the run.
fn connect<C: Client>(
    client: &mut C,
    io: &mut Io,
    options: &LoadOptions,
    address: SocketAddr,
) -> Result<usize, LoadError> {
    let deadline_ns = io.clock.now_ns() + nanos(options.connect_timeout);
    let mut ready = Vec::new();
    client.open(io);
    while !client.is_settled() && io.clock.now_ns() < deadline_ns {
        client.flush(io);
        ready.clear();
        io.poller.wait(Some(Duration::from_nanos(DUTY_NS)), &mut ready).map_err(LoadError::Loop)?;
        for readiness in &ready {
            client.ready(*readiness, io);
        }
    }
    if client.connected() > 0 {
        return Ok(client.connected());
    }
    let source = client.take_connect_error();
    Err(LoadError::Connect { address, connections: options.connections, source })
}

struct Engine<C> {
    client: C,
    io: Io,
    /// The open loop's plan; `None` in closed loop and when no request is to be released any more.
    plan: Option<Peekable<Schedule>>,
    closed_loop: bool,
    extent: Extent,
    interval_ns: u64,
    pacer: Pacer,
    /// Released and waiting for a slot.
    waiting: VecDeque<Waiting>,
    max_inflight: usize,
    /// When the plan began.
    begin_ns: u64,
    /// When the window starts and, once that is known, ends.
    start_ns: u64,
    end_ns: Option<u64>,
    /// Measured requests released so far.
    released: u64,
    /// No request is released any more.
    over: bool,
    stopped: bool,
    drain_ns: u64,
    next_duty_ns: u64,
    next_progress_ns: u64,
    cost: Cost,
}

impl<C: Client> Engine<C> {
    /// The plan begins now: the connections are open.
    fn new(client: C, io: Io, options: &LoadOptions) -> Result<Self, LoadError> {
        let begin_ns = io.clock.now_ns();
        let plan = match options.arrival {
            Arrival::Open { rate_rps, spacing } => {
                let LoadOptions { seed, warmup, extent, .. } = *options;
                let schedule = match &options.stages {
                    Some(profile) => Schedule::varying(profile, spacing, seed, warmup)?,
                    None => Schedule::new(rate_rps, spacing, seed, warmup, extent)?,
                };
                Some(schedule.begin_at(begin_ns))
            }
            Arrival::Closed => None,
        };
        let start_ns = begin_ns.saturating_add(nanos(options.warmup));
        let end_ns = match options.extent {
            Extent::Lasting(duration) => Some(start_ns.saturating_add(nanos(duration))),
            Extent::Requests(_) => None,
        };
        let interval = plan.as_ref().map_or(Duration::ZERO, Schedule::interval);
        let mut engine = Self {
            client,
            io,
            closed_loop: plan.is_none(),
            plan: plan.map(Iterator::peekable),
            extent: options.extent,
            interval_ns: nanos(interval),
            pacer: Pacer::new(interval),
            waiting: VecDeque::new(),
            max_inflight: options.max_inflight,
            begin_ns,
            start_ns,
            end_ns: None,
            released: 0,
            over: false,
            stopped: false,
            drain_ns: nanos(options.drain),
            next_duty_ns: begin_ns + DUTY_NS,
            next_progress_ns: begin_ns + PROGRESS_NS,
            cost: Cost::default(),
        };
        engine.io.recorder.begin_window(start_ns);
        if let Some(end_ns) = end_ns {
            engine.end_window(end_ns);
        }
        Ok(engine)
    }

    fn run(mut self, watch: &mut Watch<'_>) -> Result<Outcome, LoadError> {
        let mut ready = Vec::new();
        loop {
            let now_ns = self.io.clock.now_ns();
            self.release(now_ns);
            self.dispatch(now_ns);
            self.client.flush(&mut self.io);
            self.cost.note(now_ns, self.start_ns, self.end_ns);
            if self.is_finished(now_ns) {
                return Ok(self.finish(now_ns));
            }
            ready.clear();
            let sleep = self.sleep(now_ns);
            self.io.poller.wait(Some(sleep), &mut ready).map_err(LoadError::Loop)?;
            for readiness in &ready {
                self.client.ready(*readiness, &mut self.io);
            }
            if now_ns >= self.next_duty_ns {
                self.next_duty_ns = now_ns + DUTY_NS;
                self.duties(now_ns, watch);
            }
        }
    }

    /// Moves what is due from the plan to the waiting requests.
    fn release(&mut self, now_ns: u64) {
        let Some(plan) = &mut self.plan else { return };
        let mut last_ns = None;
        while let Some(planned) = plan.next_if(|planned| planned.at_ns <= now_ns) {
            last_ns = Some(planned.at_ns);
            if planned.measured {
                self.released += 1;
                self.io.recorder.released(now_ns, now_ns - planned.at_ns);
            }
            if self.waiting.len() + self.client.in_flight() < self.max_inflight {
                self.waiting.push_back(Waiting { planned, released_ns: now_ns });
            } else if planned.measured {
                self.io.recorder.dropped();
            }
        }
        if plan.peek().is_none() {
            self.plan = None;
            self.over = true;
            if self.end_ns.is_none() {
                self.end_window(last_ns.unwrap_or(now_ns) + self.interval_ns);
            }
        }
    }

    /// Starts as many requests as there are slots for.
    fn dispatch(&mut self, now_ns: u64) {
        if self.closed_loop {
            return self.dispatch_closed(now_ns);
        }
        while !self.waiting.is_empty() && self.client.has_slot() {
            let Some(waiting) = self.waiting.pop_front() else { return };
            self.client.start(waiting.call(now_ns), &mut self.io);
        }
    }

    fn dispatch_closed(&mut self, now_ns: u64) {
        while !self.over && self.client.has_slot() {
            if let Some(call) = self.next_closed(now_ns) {
                self.client.start(call, &mut self.io);
            }
        }
    }

    /// The next request of a closed loop; its intended start is now.
    fn next_closed(&mut self, now_ns: u64) -> Option<Call> {
        self.over |= self.has_all(now_ns);
        if self.over {
            return None;
        }
        let measured = now_ns >= self.start_ns;
        self.released += u64::from(measured);
        Some(Call::new(now_ns, 0, measured))
    }

    /// Whether a closed loop has released all requests of its extent.
    fn has_all(&self, now_ns: u64) -> bool {
        match self.extent {
            Extent::Lasting(_) => self.end_ns.is_some_and(|end_ns| now_ns >= end_ns),
            Extent::Requests(count) => self.released >= count,
        }
    }

    fn end_window(&mut self, end_ns: u64) {
        self.end_ns = Some(end_ns);
        self.io.recorder.end_window(end_ns);
    }

    fn is_finished(&mut self, now_ns: u64) -> bool {
        // A closed loop without a free slot at its end never requests the call that ends it.
        self.over |= self.closed_loop && self.has_all(now_ns);
        if !self.over {
            return false;
        }
        let idle = self.waiting.is_empty() && self.client.in_flight() == 0;
        match self.end_ns {
            Some(end_ns) if idle => now_ns >= end_ns,
            Some(end_ns) => now_ns >= end_ns.saturating_add(self.drain_ns),
            // A closed loop of so many requests: the window ends with the last answer. Each
            // request has its timeout.
            None => idle,
        }
    }

    fn sleep(&mut self, now_ns: u64) -> Duration {
        let start_ns = self.plan.as_mut().and_then(Peekable::peek).map(|planned| planned.at_ns);
        let mut duty_ns = self.next_duty_ns;
        for at_ns in [Some(self.start_ns), self.end_ns].into_iter().flatten() {
            if now_ns < at_ns {
                duty_ns = duty_ns.min(at_ns);
            }
        }
        self.pacer.sleep(now_ns, start_ns, duty_ns)
    }

    fn duties(&mut self, now_ns: u64, watch: &mut Watch<'_>) {
        self.client.tick(&mut self.io);
        self.fail_unconnected(now_ns);
        if watch.stop.is_requested() && !self.stopped {
            self.stop(now_ns);
        }
        if now_ns >= self.next_progress_ns {
            self.next_progress_ns += PROGRESS_NS;
            (watch.report)(&self.progress(now_ns));
        }
    }

    /// Without any connection, each failed attempt to connect fails the request that has waited
    /// longest.
    fn fail_unconnected(&mut self, now_ns: u64) {
        let failed = std::mem::take(&mut self.io.failed_connects);
        if failed == 0 || self.client.connected() > 0 {
            return;
        }
        for _ in 0..failed {
            let call = if self.closed_loop {
                self.next_closed(now_ns)
            } else {
                self.waiting.pop_front().map(|waiting| waiting.call(now_ns))
            };
            let Some(call) = call else { return };
            self.io.recorder.failed(&call, now_ns, self.io.connect_failure);
        }
    }

    /// Ends the window here; what waits is not sent, what is in flight is drained.
    fn stop(&mut self, now_ns: u64) {
        self.stopped = true;
        self.over = true;
        self.plan = None;
        self.give_up_waiting();
        if self.end_ns.is_none_or(|end_ns| now_ns < end_ns) {
            self.end_window(now_ns);
        }
    }

    fn give_up_waiting(&mut self) {
        let measured = self.waiting.drain(..).filter(|waiting| waiting.planned.measured).count();
        self.io.recorder.unfinished(measured as u64);
    }

    fn finish(mut self, now_ns: u64) -> Outcome {
        self.give_up_waiting();
        let abandoned = self.client.abandon();
        self.io.recorder.unfinished(abandoned);
        if self.end_ns.is_none() {
            self.end_window(now_ns);
        }
        self.cost.note(now_ns, self.start_ns, self.end_ns);
        let tls = self.io.recorder.tls_facts();
        let traffic = self.io.recorder.finish();
        Outcome { traffic, generator: self.cost.generator(), tls, connections: 0 }
    }

    fn progress(&mut self, now_ns: u64) -> Progress {
        let phase = match self.end_ns {
            _ if now_ns < self.start_ns => Phase::WarmUp,
            Some(end_ns) if now_ns >= end_ns => Phase::Drain,
            Some(_) | None => Phase::Window,
        };
        Progress {
            phase,
            elapsed: Duration::from_nanos(now_ns - self.begin_ns),
            requests: self.io.recorder.requests(),
            errors: self.io.recorder.errors(),
            in_flight: self.client.in_flight(),
            waiting: self.waiting.len(),
            last_second: self.io.recorder.last_point(now_ns),
            part: None,
        }
    }
}
