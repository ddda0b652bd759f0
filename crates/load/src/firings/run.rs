//! One measurement: alarms are set, have their rhythm for a while, and are removed.

use std::collections::HashSet;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tollway_record::record::Arrival;
use tollway_record::{RunResult, Traffic};

use super::alarm::micros;
use super::{Alarm, Client, FIRING_BYTES, Firing, now_us};
use crate::clock::Clock;
use crate::cost::Cost;
use crate::options::Keep;
use crate::progress::{Phase, Progress, Watch};
use crate::recorder::{Call, Failure, Recorder};

/// Most alarms at once.
pub const MAX_ALARMS: u32 = 1_000_000;
/// Longest and shortest period.
const PERIODS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(60);
/// How far ahead the first moment of an alarm is at least when it is set.
const LEAD: Duration = Duration::from_millis(500);
/// What was due in the window may still come for so long.
const GRACE: Duration = Duration::from_secs(2);
/// Between two looks at what has come, or at a request to stop.
const PAUSE: Duration = Duration::from_millis(50);
/// Where the window begins on the recorder's clock.
const BEGIN_NS: u64 = 1_000_000_000;

/// What wakes the actors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmKind {
    Timer,
    Reminder,
}

impl AlarmKind {
    fn api(self) -> &'static str {
        match self {
            Self::Timer => "timers",
            Self::Reminder => "reminders",
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct FiringOptions {
    /// HTTP API of the sidecar beside the app, on this machine: `http://127.0.0.1:3500`.
    pub api: String,
    /// The app by the name under which its sidecar can invoke it: `echo.default.local`.
    pub app: String,
    pub kind: AlarmKind,
    /// One for each of so many actors of the type `Echo`, evenly spread over a period.
    pub alarms: u32,
    pub every: Duration,
    /// Each actor writes state whenever it is woken.
    pub writes_state: bool,
    /// Connections on which alarms are set and removed.
    pub connections: usize,
    pub lasting: Duration,
    /// Firings before the window.
    pub warm_up: Duration,
    pub keep: Keep,
    /// Kept in the result as it is.
    pub command_line: Vec<String>,
}

/// Why firings cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum FiringsError {
    #[error("{0:?} is no HTTP API; write it as http://127.0.0.1:3500")]
    Api(String),
    #[error("the address of {api} cannot be found")]
    Resolve { api: String, source: io::Error },
    #[error("{name} of {given} is out of bounds: give {least} to {most}")]
    Bounds { name: &'static str, given: u64, least: u64, most: u64 },
    #[error("{alarms} alarms cannot be spread over {period_us} us: give a longer period")]
    TooDense { alarms: u32, period_us: u64 },
    #[error("{what} got no answer")]
    Ask { what: String, source: io::Error },
    #[error("{what} was answered with {status}: {told}")]
    Refused { what: String, status: u16, told: String },
    #[error(
        "the app's list of firings has {0} bytes, which are no firings; is it `tollway echo --actors`?"
    )]
    List(usize),
}

/// Sets the alarms, counts what the app sees of them in a window and removes them again. A request
/// of the result is a firing that was due in the window, its latency the time from then until the
/// app had it. What did not come is an error (`missed`), and so is state that was not written
/// (`state`).
///
/// # Errors
/// [`FiringsError`] when alarms cannot be set, or the app does not say what it saw.
pub fn run_firings(
    options: &FiringOptions,
    watch: &mut Watch<'_>,
) -> Result<RunResult, FiringsError> {
    let site = Site::new(options)?;
    let started_at = OffsetDateTime::from(SystemTime::now());
    let set = site.set();
    let measured = match &set {
        (alarms, None) => Some(site.measure(alarms, watch)),
        (_, Some(_)) => None,
    };
    let (alarms, failure) = set;
    // What was set fires on otherwise, also after a failure.
    let removed = site.each(&alarms, |client, (id, alarm)| {
        let path = site.alarm_path(*id, alarm);
        ask(client, "DELETE", &path, "").map(drop)
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

/// The alarms that stand, by the numbers of their actors, and why not all of them do.
type Set = (Vec<(u32, Alarm)>, Option<FiringsError>);

/// Where alarms are set, and of what kind.
struct Site<'a> {
    options: &'a FiringOptions,
    address: SocketAddr,
    period_us: u64,
}

impl<'a> Site<'a> {
    fn new(options: &'a FiringOptions) -> Result<Self, FiringsError> {
        let api = &options.api;
        let host = api.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        let host = host.ok_or_else(|| FiringsError::Api(api.clone()))?;
        let resolve = |source| FiringsError::Resolve { api: api.clone(), source };
        let mut found = host.to_socket_addrs().map_err(resolve)?;
        let address = found.next().ok_or_else(|| FiringsError::Api(api.clone()))?;
        let bounds = |name, given, least, most| match (least..=most).contains(&given) {
            true => Ok(()),
            false => Err(FiringsError::Bounds { name, given, least, most }),
        };
        bounds("the number of alarms", u64::from(options.alarms), 1, u64::from(MAX_ALARMS))?;
        bounds("the number of connections", options.connections as u64, 1, 1_000)?;
        let period_us = micros(options.every);
        bounds("the period in us", period_us, micros(*PERIODS.start()), micros(*PERIODS.end()))?;
        if u64::from(options.alarms) > period_us {
            return Err(FiringsError::TooDense { alarms: options.alarms, period_us });
        }
        Ok(Self { options, address, period_us })
    }

    fn alarm_path(&self, id: u32, alarm: &Alarm) -> String {
        format!("/v1.0/actors/Echo/{id}/{}/{}", self.options.kind.api(), alarm.name())
    }

    /// Wakes every actor and sets its alarm, so that no two are due at the same microsecond.
    fn set(&self) -> Set {
        let origin_us = now_us();
        let ids: Vec<u32> = (0..self.options.alarms).collect();
        let stand = Mutex::new(Vec::with_capacity(ids.len()));
        let set = self.each(&ids, |client, id| {
            let shift = u64::from(*id) * self.period_us / u64::from(self.options.alarms);
            ask(client, "PUT", &format!("/v1.0/actors/Echo/{id}/method/echo"), "")?;
            let first = Alarm {
                due_us: origin_us + shift,
                period_us: self.period_us,
                state_port: self.options.writes_state.then_some(self.address.port()),
            };
            let ahead_us = now_us() + micros(LEAD);
            let due_us = match first.due_us > ahead_us {
                true => first.due_us,
                false => first.due_before(ahead_us) + self.period_us,
            };
            let alarm = Alarm { due_us, ..first };
            let body =
                format!(r#"{{"dueTime":"{}","period":"{}us"}}"#, moment(due_us), self.period_us);
            ask(client, "PUT", &self.alarm_path(*id, &alarm), &body)?;
            stand.lock().unwrap_or_else(PoisonError::into_inner).push((*id, alarm));
            Ok(())
        });
        (stand.into_inner().unwrap_or_else(PoisonError::into_inner), set.err())
    }

    /// Does something for each, on all connections at once; tells of the first failure, after which
    /// a connection does no more.
    fn each<T: Sync>(
        &self,
        all: &[T],
        act: impl Fn(&mut Client, &T) -> Result<(), FiringsError> + Sync,
    ) -> Result<(), FiringsError> {
        let share = all.len().div_ceil(self.options.connections).max(1);
        std::thread::scope(|scope| {
            let parts: Vec<_> = all
                .chunks(share)
                .map(|part| {
                    scope.spawn(|| {
                        let mut client = Client::new(self.address);
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
        alarms: &[(u32, Alarm)],
        watch: &mut Watch<'_>,
    ) -> Result<Window, FiringsError> {
        let (mut client, clock) = (Client::new(self.address), Clock::start());
        let ahead = LEAD + self.options.every + self.options.warm_up;
        let begin_us = now_us() + micros(ahead);
        self.wait(begin_us, Phase::WarmUp, watch);
        // What was due before the window is told apart by its moment.
        let mut firings = self.take(&mut client)?;
        let (mut cost, begin_ns) = (Cost::default(), clock.now_ns());
        cost.note(begin_ns, begin_ns, None);
        let planned_us = begin_us + micros(self.options.lasting);
        self.wait(planned_us, Phase::Window, watch);
        let end_us = now_us().clamp(begin_us, planned_us);
        let end_ns = clock.now_ns();
        cost.note(end_ns, begin_ns, Some(end_ns));
        let expected: HashSet<u64> =
            alarms.iter().flat_map(|(_, alarm)| alarm.dues(begin_us, end_us)).collect();
        firings.extend(self.take(&mut client)?);
        let until = Instant::now() + GRACE;
        while count_of(&firings, &expected) < expected.len() && Instant::now() < until {
            std::thread::sleep(PAUSE);
            firings.extend(self.take(&mut client)?);
        }
        let rate_rps = f64::from(self.options.alarms) * 1e6 / self.period_us as f64;
        let recorder = Recorder::new(Some(rate_rps), self.options.keep);
        let traffic = tell(recorder, (begin_us, end_us), expected, firings);
        Ok(Window { traffic, cost })
    }

    /// Until then, or until the run is to end.
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
                    in_flight: self.options.alarms as usize,
                    waiting: 0,
                    last_second: None,
                    part: None,
                });
            }
        }
    }

    /// What the app has seen since it was asked last.
    fn take(&self, client: &mut Client) -> Result<Vec<Firing>, FiringsError> {
        let path = format!("/v1.0/invoke/{}/method/firings", self.options.app);
        let bytes = ask(client, "GET", &path, "")?;
        let (firings, rest) = bytes.as_chunks::<FIRING_BYTES>();
        if !rest.is_empty() {
            return Err(FiringsError::List(bytes.len()));
        }
        Ok(firings.iter().map(Firing::from_bytes).collect())
    }
}

fn count_of(firings: &[Firing], expected: &HashSet<u64>) -> usize {
    let due: HashSet<u64> = firings.iter().map(|firing| firing.due_us).collect();
    due.intersection(expected).count()
}

/// The numbers of a window. Of one that fired twice the first counts.
fn tell(
    mut recorder: Recorder,
    (begin_us, end_us): (u64, u64),
    mut expected: HashSet<u64>,
    mut firings: Vec<Firing>,
) -> Traffic {
    let on_clock = |us: u64| BEGIN_NS + us.saturating_sub(begin_us) * 1_000;
    recorder.begin_window(on_clock(begin_us));
    recorder.end_window(on_clock(end_us));
    let call =
        |due_us: u64| Call { sent_ns: on_clock(due_us), ..Call::new(on_clock(due_us), 0, true) };
    firings.sort_by_key(|firing| firing.seen_us);
    for firing in firings {
        if !expected.remove(&firing.due_us) {
            continue;
        }
        let seen_ns = on_clock(firing.seen_us);
        let call = Call { answered_ns: seen_ns, ..call(firing.due_us) };
        match firing.written_us {
            Some(Firing::FAILED) => recorder.failed(&call, seen_ns, Failure::State),
            Some(_) | None => recorder.succeeded(&call, seen_ns),
        }
    }
    for due_us in expected {
        recorder.failed(&call(due_us), on_clock(end_us.max(due_us)), Failure::Missed);
    }
    recorder.finish()
}

/// The body of an answer of 2xx.
fn ask(client: &mut Client, method: &str, path: &str, body: &str) -> Result<Vec<u8>, FiringsError> {
    let what = || format!("{method} {path}");
    let answer = client.ask(method, path, body);
    let (status, body) = answer.map_err(|source| FiringsError::Ask { what: what(), source })?;
    if (200..300).contains(&status) {
        return Ok(body);
    }
    let told = String::from_utf8_lossy(&body).chars().take(300).collect();
    Err(FiringsError::Refused { what: what(), status, told })
}

/// As RFC 3339 writes it.
fn moment(us: u64) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(us) * 1_000);
    at.ok().and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(alarms: u32, every: Duration) -> FiringOptions {
        FiringOptions {
            api: "http://127.0.0.1:3500".to_owned(),
            app: "echo".to_owned(),
            kind: AlarmKind::Timer,
            alarms,
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
    fn a_firing_is_late_from_its_moment_and_what_did_not_come_is_missed() {
        let seen = |due_us, seen_us, written_us| Firing { due_us, seen_us, written_us };
        let expected = HashSet::from([1_000_000, 1_200_000, 1_400_000, 1_600_000]);
        let firings = vec![
            seen(1_200_000, 1_207_000, Some(1_300_000)),
            seen(1_000_000, 1_001_000, None),
            // Twice, one of another window, and one whose state was not written.
            seen(1_000_000, 1_500_000, None),
            seen(900_000, 1_000_000, None),
            seen(1_400_000, 1_401_000, Some(Firing::FAILED)),
        ];
        let recorder = Recorder::new(Some(4.0), Keep::default());
        let told = tell(recorder, (1_000_000, 2_000_000), expected, firings);
        assert_eq!((told.requests, told.errors), (2, 2));
        let kinds: Vec<_> = told.errors_by_kind.iter().map(|(k, n)| (k.as_str(), *n)).collect();
        assert_eq!(kinds, [("missed", 1), ("state", 1)]);
        let max = told.latency_us.max.unwrap();
        assert!((6_990.0..=7_010.0).contains(&max), "{max}");
        assert!((told.achieved_rps - 2.0).abs() < 1e-9, "{}", told.achieved_rps);
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let check = |options: &FiringOptions, part: &str| {
            let told = Site::new(options).map(|_| ()).unwrap_err().to_string();
            assert!(told.contains(part), "{told}");
        };
        let second = Duration::from_secs(1);
        check(&options(0, second), "number of alarms of 0");
        check(&options(1, Duration::from_secs(61)), "period in us of 61000000");
        check(&options(1_001, Duration::from_millis(1)), "cannot be spread over 1000 us");
        check(
            &FiringOptions { api: "127.0.0.1:1".to_owned(), ..options(1, second) },
            "no HTTP API",
        );
        check(&FiringOptions { connections: 0, ..options(1, second) }, "connections of 0");
        assert!(Site::new(&options(1_000, Duration::from_millis(1))).is_ok());
    }

    #[test]
    fn moments_are_told_to_the_microsecond() {
        assert_eq!(moment(1_700_000_000_123_456), "2023-11-14T22:13:20.123456Z");
    }
}
