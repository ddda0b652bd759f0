//! One measurement: sets timers, lets them fire for a while, removes them.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tollway_dial::reachable_blocking;
use tollway_echo::actor_timer::{ActorTimer, FIRE_BYTES, TimerFire, micros, now_us};
use tollway_echo::http_client::HttpClient;
use tollway_record::record::Arrival;
use tollway_record::{RunResult, Traffic};

use crate::clock::Clock;
use crate::cost::Cost;
use crate::options::{FIND_WITHIN, Keep, Target};
use crate::progress::{Phase, Progress, Watch};
use crate::recorder::{Call, Failure, Recorder};

/// Most timers at once.
pub const MAX_TIMERS: u32 = 1_000_000;
/// Longest and shortest period.
const PERIODS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(60);
/// Least time from setting a timer to its first fire.
const LEAD: Duration = Duration::from_millis(500);
/// How long fires that were due in the window are still waited for.
const GRACE: Duration = Duration::from_secs(2);
/// Interval of reading fires from the app, and of checking for a stop.
const PAUSE: Duration = Duration::from_millis(50);
/// Where the window begins on the recorder's clock.
const BEGIN_NS: u64 = 1_000_000_000;

/// What fires: a timer ends with its actor, a reminder survives restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerKind {
    Timer,
    Reminder,
}

impl TimerKind {
    fn api(self) -> &'static str {
        match self {
            Self::Timer => "timers",
            Self::Reminder => "reminders",
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct TimerOptions {
    /// HTTP API of the app's sidecar, on this machine: `http://127.0.0.1:3500`.
    pub api: String,
    /// The app by the name under which its sidecar can invoke it: `echo.default.local`.
    pub app: String,
    pub kind: TimerKind,
    /// Number of actors of the type `Echo`, each with one timer; fires are spread evenly over a period.
    pub timers: u32,
    pub every: Duration,
    /// Each actor writes state whenever its timer fires.
    pub writes_state: bool,
    /// Connections on which timers are set and removed.
    pub connections: usize,
    pub lasting: Duration,
    /// Time of fires before the window.
    pub warm_up: Duration,
    pub keep: Keep,
    /// Kept in the result as it is.
    pub command_line: Vec<String>,
}

/// Why timer fires cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum TimersError {
    #[error("{0:?} is no HTTP API; write it as http://127.0.0.1:3500")]
    Api(String),
    #[error("the address of {api} cannot be found")]
    Resolve { api: String, source: io::Error },
    #[error("{name} of {given} is out of bounds: give {least} to {most}")]
    Bounds { name: &'static str, given: u64, least: u64, most: u64 },
    #[error("{timers} timers cannot be spread over {period_us} us: give a longer period")]
    TooDense { timers: u32, period_us: u64 },
    #[error("{what} got no answer")]
    Ask { what: String, source: io::Error },
    #[error("{what} was answered with {status}: {answer}")]
    Refused { what: String, status: u16, answer: String },
    #[error(
        "the app's list of timer fires has {0} bytes, which is no multiple of one fire; is it `tollway echo --actors`?"
    )]
    List(usize),
}

/// Sets timers, counts the fires that the app sees in a window and removes the timers again. A request
/// of the result is a fire that was due in the window; its latency is the time from the due time until
/// the app had it. A fire that did not come is an error (`missed`), and so is state that was not
/// written (`state`).
///
/// # Errors
/// [`TimersError`] if timers cannot be set or the app does not list its fires.
pub fn run_timers(options: &TimerOptions, watch: &mut Watch<'_>) -> Result<RunResult, TimersError> {
    let sidecar = Sidecar::new(options)?;
    let started_at = OffsetDateTime::from(SystemTime::now());
    let set = sidecar.set();
    let measured = match &set {
        (timers, None) => Some(sidecar.measure(timers, watch)),
        (_, Some(_)) => None,
    };
    let (timers, failure) = set;
    // What was set fires on otherwise, also after a failure.
    let removed = sidecar.each(&timers, |client, (id, timer)| {
        let path = sidecar.timer_path(*id, timer);
        request(client, "DELETE", &path, "").map(drop)
    });
    if let Some(failure) = failure {
        return Err(failure);
    }
    let Window { traffic, cost } = match measured {
        Some(window) => window?,
        None => Window { traffic: Traffic::default(), cost: Cost::default() },
    };
    removed?;
    let mut result = RunResult {
        started_at: started_at.format(&Rfc3339).unwrap_or_default(),
        target: format!("{} of {}", options.kind.api(), options.app),
        arrival: Arrival::OpenUniform,
        connections: u32::try_from(options.connections).unwrap_or(u32::MAX),
        warm_up_s: options.warm_up.as_secs_f64(),
        command_line: options.command_line.clone(),
        traffic,
        generator: cost.generator(),
        ..RunResult::default()
    };
    result.judge_client();
    Ok(result)
}

struct Window {
    traffic: Traffic,
    cost: Cost,
}

/// The timers that were set, by the numbers of their actors, and the first failure.
type Set = (Vec<(u32, ActorTimer)>, Option<TimersError>);

/// Where timers are set, and of what kind.
struct Sidecar<'a> {
    options: &'a TimerOptions,
    address: SocketAddr,
    period_us: u64,
}

impl<'a> Sidecar<'a> {
    fn new(options: &'a TimerOptions) -> Result<Self, TimersError> {
        let api = &options.api;
        let target = Target::http(api).ok().filter(|target| !target.tls && target.path == "/");
        let target = target.ok_or_else(|| TimersError::Api(api.clone()))?;
        let resolve = |source| TimersError::Resolve { api: api.clone(), source };
        let found = reachable_blocking(&target.host, target.port, FIND_WITHIN);
        let address = found.map_err(resolve)?;
        let bounds = |name, given, least, most| match (least..=most).contains(&given) {
            true => Ok(()),
            false => Err(TimersError::Bounds { name, given, least, most }),
        };
        bounds("the number of timers", u64::from(options.timers), 1, u64::from(MAX_TIMERS))?;
        bounds("the number of connections", options.connections as u64, 1, 1_000)?;
        let period_us = micros(options.every);
        bounds("the period in us", period_us, micros(*PERIODS.start()), micros(*PERIODS.end()))?;
        if u64::from(options.timers) > period_us {
            return Err(TimersError::TooDense { timers: options.timers, period_us });
        }
        Ok(Self { options, address, period_us })
    }

    fn timer_path(&self, id: u32, timer: &ActorTimer) -> String {
        format!("/v1.0/actors/Echo/{id}/{}/{}", self.options.kind.api(), timer.name())
    }

    /// Activates every actor and sets its timer, so that no two are due at the same microsecond.
    fn set(&self) -> Set {
        let origin_us = now_us();
        let ids: Vec<u32> = (0..self.options.timers).collect();
        let done = Mutex::new(Vec::with_capacity(ids.len()));
        let set = self.each(&ids, |client, id| {
            let shift = u64::from(*id) * self.period_us / u64::from(self.options.timers);
            request(client, "PUT", &format!("/v1.0/actors/Echo/{id}/method/echo"), "")?;
            let first = ActorTimer {
                due_us: origin_us + shift,
                period_us: self.period_us,
                state_port: self.options.writes_state.then_some(self.address.port()),
            };
            let ahead_us = now_us() + micros(LEAD);
            let due_us = match first.due_us > ahead_us {
                true => first.due_us,
                false => first.due_before(ahead_us) + self.period_us,
            };
            let timer = ActorTimer { due_us, ..first };
            let body =
                format!(r#"{{"dueTime":"{}","period":"{}us"}}"#, moment(due_us), self.period_us);
            request(client, "PUT", &self.timer_path(*id, &timer), &body)?;
            done.lock().unwrap_or_else(PoisonError::into_inner).push((*id, timer));
            Ok(())
        });
        (done.into_inner().unwrap_or_else(PoisonError::into_inner), set.err())
    }

    /// Does something for each, on all connections at once. A connection ends with its first failure;
    /// the first of all is the result.
    fn each<T: Sync>(
        &self,
        all: &[T],
        act: impl Fn(&mut HttpClient, &T) -> Result<(), TimersError> + Sync,
    ) -> Result<(), TimersError> {
        let share = all.len().div_ceil(self.options.connections).max(1);
        std::thread::scope(|scope| {
            let parts: Vec<_> = all
                .chunks(share)
                .map(|part| {
                    scope.spawn(|| {
                        let mut client = HttpClient::new(self.address);
                        part.iter().try_for_each(|one| act(&mut client, one))
                    })
                })
                .collect();
            let ended = parts.into_iter().map(|part| part.join());
            ended.map(|ended| ended.unwrap_or(Ok(()))).fold(Ok(()), Result::and)
        })
    }

    fn measure(
        &self,
        timers: &[(u32, ActorTimer)],
        watch: &mut Watch<'_>,
    ) -> Result<Window, TimersError> {
        let (mut client, clock) = (HttpClient::new(self.address), Clock::start());
        let ahead = LEAD + self.options.every + self.options.warm_up;
        let begin_us = now_us() + micros(ahead);
        self.wait(begin_us, Phase::WarmUp, watch);
        // What was due before the window is traffic apart by its moment.
        let mut fires = self.take(&mut client)?;
        let (mut cost, begin_ns) = (Cost::default(), clock.now_ns());
        cost.note(begin_ns, begin_ns, None);
        let planned_us = begin_us + micros(self.options.lasting);
        self.wait(planned_us, Phase::Window, watch);
        let end_us = now_us().clamp(begin_us, planned_us);
        let end_ns = clock.now_ns();
        cost.note(end_ns, begin_ns, Some(end_ns));
        let expected: HashSet<u64> =
            timers.iter().flat_map(|(_, timer)| timer.dues(begin_us, end_us)).collect();
        fires.extend(self.take(&mut client)?);
        let until = Instant::now() + GRACE;
        while count_of(&fires, &expected) < expected.len() && Instant::now() < until {
            std::thread::sleep(PAUSE);
            fires.extend(self.take(&mut client)?);
        }
        let rate_rps = f64::from(self.options.timers) * 1e6 / self.period_us as f64;
        let recorder = Recorder::new(Some(rate_rps), self.options.keep);
        let traffic = summarize(recorder, (begin_us, end_us), expected, fires);
        Ok(Window { traffic, cost })
    }

    /// Sleeps until `until_us` or until the run is stopped, and reports progress every second.
    fn wait(&self, until_us: u64, phase: Phase, watch: &mut Watch<'_>) {
        let begun = Instant::now();
        let mut reported = Duration::ZERO;
        while !watch.stop.is_requested() {
            let left = Duration::from_micros(until_us.saturating_sub(now_us()));
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(PAUSE));
            if begun.elapsed() >= reported + Duration::from_secs(1) {
                reported = begun.elapsed();
                (watch.report)(&Progress {
                    phase,
                    elapsed: reported,
                    requests: 0,
                    errors: 0,
                    in_flight: self.options.timers as usize,
                    waiting: 0,
                    last_second: None,
                    part: None,
                });
            }
        }
    }

    /// Takes the fires that the app has seen since the last call.
    fn take(&self, client: &mut HttpClient) -> Result<Vec<TimerFire>, TimersError> {
        let path = format!("/v1.0/invoke/{}/method/timer-fires", self.options.app);
        let bytes = request(client, "GET", &path, "")?;
        let (fires, rest) = bytes.as_chunks::<FIRE_BYTES>();
        if !rest.is_empty() {
            return Err(TimersError::List(bytes.len()));
        }
        Ok(fires.iter().map(TimerFire::from_bytes).collect())
    }
}

fn count_of(fires: &[TimerFire], expected: &HashSet<u64>) -> usize {
    let due: HashSet<u64> = fires.iter().map(|fire| fire.due_us).collect();
    due.intersection(expected).count()
}

/// The numbers of a window. Of a fire that came twice the first counts.
fn summarize(
    mut recorder: Recorder,
    (begin_us, end_us): (u64, u64),
    mut expected: HashSet<u64>,
    mut fires: Vec<TimerFire>,
) -> Traffic {
    let on_clock = |us: u64| BEGIN_NS + us.saturating_sub(begin_us) * 1_000;
    recorder.begin_window(on_clock(begin_us));
    recorder.end_window(on_clock(end_us));
    let call =
        |due_us: u64| Call { sent_ns: on_clock(due_us), ..Call::new(on_clock(due_us), 0, true) };
    fires.sort_by_key(|fire| fire.seen_us);
    for fire in fires {
        if !expected.remove(&fire.due_us) {
            continue;
        }
        let seen_ns = on_clock(fire.seen_us);
        let call = Call { answered_ns: seen_ns, ..call(fire.due_us) };
        match fire.written_us {
            Some(TimerFire::FAILED) => recorder.failed(&call, seen_ns, Failure::State),
            Some(_) | None => recorder.succeeded(&call, seen_ns),
        }
    }
    for due_us in expected {
        recorder.failed(&call(due_us), on_clock(end_us.max(due_us)), Failure::Missed);
    }
    recorder.finish()
}

/// The body of an answer of 2xx.
fn request(
    client: &mut HttpClient,
    method: &str,
    path: &str,
    body: &str,
) -> Result<Vec<u8>, TimersError> {
    let what = || format!("{method} {path}");
    let answer = client.request(method, path, body);
    let (status, body) = answer.map_err(|source| TimersError::Ask { what: what(), source })?;
    if (200..300).contains(&status) {
        return Ok(body);
    }
    let answer = String::from_utf8_lossy(&body).chars().take(300).collect();
    Err(TimersError::Refused { what: what(), status, answer })
}

/// As RFC 3339 writes it.
fn moment(us: u64) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(us) * 1_000);
    at.ok().and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(timers: u32, every: Duration) -> TimerOptions {
        TimerOptions {
            api: "http://127.0.0.1:3500".to_owned(),
            app: "echo".to_owned(),
            kind: TimerKind::Timer,
            timers,
            every,
            writes_state: false,
            connections: 4,
            lasting: Duration::from_secs(1),
            warm_up: Duration::ZERO,
            keep: Keep::default(),
            command_line: Vec::new(),
        }
    }

    #[test]
    fn a_fire_is_late_from_its_due_time_and_one_that_did_not_come_is_missed() {
        let seen = |due_us, seen_us, written_us| TimerFire { due_us, seen_us, written_us };
        let expected = HashSet::from([1_000_000, 1_200_000, 1_400_000, 1_600_000]);
        let fires = vec![
            seen(1_200_000, 1_207_000, Some(1_300_000)),
            seen(1_000_000, 1_001_000, None),
            // Twice, one of another window, and one whose state was not written.
            seen(1_000_000, 1_500_000, None),
            seen(900_000, 1_000_000, None),
            seen(1_400_000, 1_401_000, Some(TimerFire::FAILED)),
        ];
        let recorder = Recorder::new(Some(4.0), Keep::default());
        let traffic = summarize(recorder, (1_000_000, 2_000_000), expected, fires);
        assert_eq!((traffic.requests, traffic.errors), (2, 2));
        let kinds: Vec<_> = traffic.errors_by_kind.iter().map(|(k, n)| (k.as_str(), *n)).collect();
        assert_eq!(kinds, [("missed", 1), ("state", 1)]);
        let max = traffic.latency_us.max.unwrap();
        assert!((6_990.0..=7_010.0).contains(&max), "{max}");
        assert!((traffic.achieved_rps - 2.0).abs() < 1e-9, "{}", traffic.achieved_rps);
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let check = |options: &TimerOptions, part: &str| {
            let error = Sidecar::new(options).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        let second = Duration::from_secs(1);
        check(&options(0, second), "number of timers of 0");
        check(&options(1, Duration::from_secs(61)), "period in us of 61000000");
        check(&options(1_001, Duration::from_millis(1)), "cannot be spread over 1000 us");
        check(
            &TimerOptions { api: "https://127.0.0.1:1".to_owned(), ..options(1, second) },
            "no HTTP API",
        );
        check(&TimerOptions { connections: 0, ..options(1, second) }, "connections of 0");
        assert!(Sidecar::new(&options(1_000, Duration::from_millis(1))).is_ok());
    }

    #[test]
    fn moments_have_microseconds() {
        assert_eq!(moment(1_700_000_000_123_456), "2023-11-14T22:13:20.123456Z");
    }
}
