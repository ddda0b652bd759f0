//! Timers and reminders that fire on a host, by a clock that the tests advance.

use std::sync::atomic::{AtomicUsize, Ordering};

use tollway_actors::schedule::Terms;

use super::super::problem::Problem;
use super::super::testing::{LEASE, ScriptedApp, TestHost, actor, give_back, types};
use super::*;
use crate::actors::app::{Answer, Unanswered};

/// Outcomes that were stored, as `NAME VERSION LEFT`.
#[derive(Default)]
struct Outcomes(Mutex<Vec<String>>);

#[tonic::async_trait]
impl RecordFire for Outcomes {
    async fn record(&self, key: &Key, version: u64, left: Option<Schedule>, _: Epoch) {
        let left = match left {
            None => "over".to_owned(),
            Some(left) => format!("{:?} left", left.firings.map(std::num::NonZeroU32::get)),
        };
        self.0.lock().unwrap().push(format!("{} {version} {left}", key.1));
    }
}

/// Alarms of a host and the app that they call.
struct World {
    alarms: Arc<Alarms>,
    test: TestHost,
    app: Arc<ScriptedApp>,
    outcomes: Arc<Outcomes>,
    fired: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
}

impl World {
    fn with(app: ScriptedApp) -> Self {
        let outcomes = Arc::new(Outcomes::default());
        let (fired, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = (Arc::clone(&fired), Arc::clone(&failed));
        let counted: Counted = Box::new(move |actor_type, accepted| {
            assert_eq!(actor_type, "Cart");
            let count = if accepted { &counts.0 } else { &counts.1 };
            count.fetch_add(1, Ordering::Relaxed);
        });
        let recorder: Arc<dyn RecordFire> = Arc::clone(&outcomes) as Arc<dyn RecordFire>;
        let alarms = Alarms::new(Some(recorder), Some(counted), Clock::tokio());
        let test = TestHost::granted(types(None));
        let app = Arc::new(app);
        let what = |name, event| TurnKind::Reminder { name, event };
        let side: Arc<dyn AppSide> = Arc::clone(&app) as Arc<dyn AppSide>;
        tokio::spawn(Arc::clone(&alarms).run(Arc::clone(&test.host), side, what));
        Self { alarms, test, app, outcomes, fired, failed }
    }

    fn put(&self, name: &str, terms: [&str; 3], policy: FailurePolicy) {
        let [due_time, period, ttl] = terms;
        let schedule = Terms::new(due_time, period, ttl).read(Clock::tokio().wall()).unwrap();
        let event =
            Event { due_time: due_time.to_owned(), period: period.to_owned(), ..Event::default() };
        let alarm = Alarm { event, ttl: ttl.to_owned(), policy, version: 5 };
        self.alarms.insert(key("1", name), schedule, alarm);
    }

    /// Advances the clock and keeps the lease.
    async fn wait(&self, time: Duration) {
        let until = tokio::time::Instant::now() + time;
        while tokio::time::Instant::now() < until {
            let left = until - tokio::time::Instant::now();
            tokio::time::sleep(left.min(LEASE / 4)).await;
            self.test.host.lease_renewed(Clock::tokio().now());
        }
    }

    fn turns(&self) -> usize {
        self.app.turns().len()
    }

    fn outcomes(&self) -> Vec<String> {
        self.outcomes.0.lock().unwrap().clone()
    }
}

fn key(id: &str, name: &str) -> Key {
    (actor(id), Arc::from(name))
}

fn failing() -> ScriptedApp {
    ScriptedApp::new(|_| Err(Unanswered::Failed(Problem::invoke("no"))))
}

const SECOND: Duration = Duration::from_secs(1);
const BIT: Duration = Duration::from_millis(2);

fn constant(seconds: u64, max_retries: Option<u32>) -> FailurePolicy {
    FailurePolicy::Constant { interval: Duration::from_secs(seconds), max_retries }
}

#[tokio::test(start_paused = true)]
async fn an_alarm_without_period_fires_once_and_is_over() {
    let world = World::with(ScriptedApp::echo());
    world.put("once", ["2s", "", ""], FailurePolicy::default());
    world.wait(2 * SECOND - BIT).await;
    assert_eq!(world.turns(), 0, "never early");
    world.wait(2 * BIT).await;
    assert_eq!(world.turns(), 1);
    world.wait(10 * SECOND).await;
    assert_eq!(world.turns(), 1);
    assert_eq!(world.outcomes(), ["once 5 over"]);
    assert!(world.alarms.get(&key("1", "once")).is_none());
    assert_eq!(world.fired.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn an_alarm_with_period_fires_until_its_repetitions_are_used() {
    let world = World::with(ScriptedApp::echo());
    world.put("thrice", ["1s", "R3/PT2S", ""], FailurePolicy::default());
    for (after, turns) in [(1, 1), (2, 2), (2, 3), (10, 3)] {
        world.wait(after * SECOND + BIT).await;
        assert_eq!(world.turns(), turns);
    }
    let outcomes = ["thrice 5 Some(2) left", "thrice 5 Some(1) left", "thrice 5 over"];
    assert_eq!(world.outcomes(), outcomes);
}

#[tokio::test(start_paused = true)]
async fn an_alarm_that_is_registered_earlier_than_the_next_is_not_late() {
    let world = World::with(ScriptedApp::echo());
    world.put("late", ["1h", "", ""], FailurePolicy::default());
    world.wait(SECOND / 2).await;
    world.put("soon", ["10ms", "", ""], FailurePolicy::default());
    world.wait(10 * BIT).await;
    assert_eq!(world.turns(), 1);
    assert_eq!(world.alarms.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_app_ends_an_alarm_by_its_answer() {
    let cancelling = |_: &Turn| Ok(Answer { cancels: true, ..Answer::default() });
    let world = World::with(ScriptedApp::new(cancelling));
    world.put("often", ["1s", "1s", ""], FailurePolicy::default());
    world.wait(5 * SECOND).await;
    assert_eq!(world.turns(), 1);
    assert_eq!(world.outcomes(), ["often 5 over"]);
    assert_eq!(world.alarms.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_failed_fire_is_repeated_by_its_failure_policy() {
    let world = World::with(failing());
    world.put("twice", ["1s", "", ""], constant(3, Some(1)));
    world.wait(SECOND + BIT).await;
    assert_eq!((world.turns(), world.outcomes().len()), (1, 0), "it is not over yet");
    world.wait(3 * SECOND - 2 * BIT).await;
    assert_eq!(world.turns(), 1);
    world.wait(2 * BIT).await;
    assert_eq!(world.turns(), 2);
    world.wait(10 * SECOND).await;
    assert_eq!(world.turns(), 2);
    assert_eq!(world.outcomes(), ["twice 5 over"]);
    assert_eq!(world.failed.load(Ordering::Relaxed), 2);
    assert_eq!(world.fired.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_fire_keeps_the_rhythm() {
    let world = World::with(failing());
    world.put("drop", ["1s", "R2/PT5S", ""], FailurePolicy::Drop);
    world.wait(SECOND + BIT).await;
    assert_eq!(world.outcomes(), ["drop 5 Some(1) left"]);
    world.wait(4 * SECOND).await;
    assert_eq!(world.turns(), 1);
    world.wait(SECOND + BIT).await;
    assert_eq!(world.turns(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_alarm_whose_time_to_live_ends_does_not_fire() {
    let world = World::with(ScriptedApp::echo());
    world.put("short", ["1s", "2s", "4s"], FailurePolicy::default());
    world.wait(20 * SECOND).await;
    assert_eq!(world.turns(), 2, "at 1 s and 3 s");
    assert_eq!(world.outcomes().last().unwrap(), "short 5 over");
    assert_eq!(world.alarms.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_alarm_of_an_actor_that_is_elsewhere_is_forgotten_here_and_not_recorded() {
    let world = World::with(ScriptedApp::echo());
    world.put("gone", ["1s", "1s", ""], FailurePolicy::default());
    world.test.host.obey(&give_back());
    world.wait(2 * SECOND).await;
    assert_eq!(world.turns(), 0);
    assert!(world.alarms.get(&key("1", "gone")).is_none());
    assert!(world.outcomes().is_empty(), "the next host has it");
}

#[tokio::test(start_paused = true)]
async fn a_fire_goes_to_the_app_with_its_name_and_event() {
    let world = World::with(ScriptedApp::echo());
    world.put("n", ["1s", "3s", ""], FailurePolicy::default());
    world.wait(SECOND + BIT).await;
    let turn = world.app.turns().pop().unwrap();
    let event = Event { due_time: "1s".to_owned(), period: "3s".to_owned(), ..Event::default() };
    assert_eq!(turn.what, TurnKind::Reminder { name: "n".to_owned(), event });
    assert_eq!(turn.actor, actor("1"));
    assert!(turn.body.is_empty() && turn.fields.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_alarm_is_replaced_by_a_newer_registration_only() {
    let alarms = Alarms::new(None, None, Clock::tokio());
    let schedule = Terms::new("1h", "", "").read(Clock::tokio().wall()).unwrap();
    let of = |version, ttl: &str| Alarm {
        event: Event::default(),
        ttl: ttl.to_owned(),
        policy: FailurePolicy::default(),
        version,
    };
    alarms.insert_newer(key("1", "n"), schedule, of(2, "first"));
    for (version, ttl) in [(1, "older"), (2, "same")] {
        alarms.insert_newer(key("1", "n"), schedule, of(version, ttl));
        assert_eq!(alarms.get(&key("1", "n")).unwrap().ttl, "first");
    }
    alarms.insert_newer(key("1", "n"), schedule, of(3, "newer"));
    assert_eq!(alarms.get(&key("1", "n")).unwrap().ttl, "newer");
    alarms.remove_version(&key("1", "n"), 2);
    assert_eq!(alarms.len(), 1);
    alarms.remove_version(&key("1", "n"), 3);
    assert_eq!(alarms.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn alarms_are_listed_and_removed_by_actor() {
    let alarms = Alarms::new(None, None, Clock::tokio());
    let schedule = Terms::new("1h", "", "").read(Clock::tokio().wall()).unwrap();
    let alarm = || Alarm {
        event: Event::default(),
        ttl: String::new(),
        policy: FailurePolicy::default(),
        version: 0,
    };
    for (id, name) in [("1", "b"), ("1", "a"), ("10", "a"), ("2", "c")] {
        alarms.insert(key(id, name), schedule, alarm());
    }
    let names = |id| -> Vec<String> {
        alarms.of(&actor(id)).into_iter().map(|(name, _)| name.to_string()).collect()
    };
    assert_eq!(
        (names("1"), names("10"), names("3")),
        (vec!["a".into(), "b".into()], vec!["a".into()], vec![])
    );
    assert_eq!(alarms.counts()["Cart"], 4);
    let of_two = alarms.all_of(|(actor, _)| &*actor.id == "2");
    assert_eq!(of_two.len(), 1);
    alarms.forget(&actor("1"));
    assert_eq!((names("1").len(), names("10").len()), (0, 1));
    alarms.remove_where(|(actor, _)| &*actor.id == "10");
    assert_eq!(alarms.len(), 1);
    assert!(alarms.remove(&key("2", "c")) && !alarms.remove(&key("2", "c")));
}

#[tokio::test(start_paused = true)]
async fn a5_a_timer_fires_in_the_epoch_of_its_registration_alone() {
    let (test, app) = (TestHost::granted(types(None)), Arc::new(ScriptedApp::echo()));
    let timers = Alarms::new(None, None, Clock::tokio());
    let what = |name, event| TurnKind::Timer { name, event };
    let side: Arc<dyn AppSide> = Arc::clone(&app) as Arc<dyn AppSide>;
    tokio::spawn(Arc::clone(&timers).run(Arc::clone(&test.host), side, what));
    let schedule = Terms::new("1s", "1s", "").read(Clock::tokio().wall()).unwrap();
    let of = |version| Alarm {
        event: Event::default(),
        ttl: String::new(),
        policy: FailurePolicy::Drop,
        version,
    };
    // The host holds the shard under epoch 1; the actors are not active.
    timers.insert(key("1", "former"), schedule, of(0));
    timers.insert(key("1", "present"), schedule, of(1));
    assert!(test.host.may_write(&actor("1")).is_none());
    tokio::time::sleep(SECOND + BIT).await;
    let fired: Vec<_> = app.turns().into_iter().map(|turn| turn.what).collect();
    assert_eq!(fired, [what("present".to_owned(), Event::default())]);
    assert!(test.host.may_write(&actor("1")).is_some(), "the firing has made it active");
    assert!(timers.get(&key("1", "former")).is_none());
    timers.insert(key("2", "former"), schedule, of(0));
    timers.remove_of_former_epochs(&test.host);
    assert_eq!(timers.len(), 1);
}
