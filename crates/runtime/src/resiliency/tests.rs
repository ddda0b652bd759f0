//! Calls under rules, by a clock that the tests advance.

use std::sync::atomic::{AtomicU32, Ordering};

use tokio::time::{Instant, sleep};
use tollway_routing::{Pauses, RetryRule};

use super::*;
use crate::testing::response;

const SECOND: Duration = Duration::from_secs(1);

pub(super) fn retry(retries: u32) -> Option<RetryRule> {
    let pause = Pauses::Constant(SECOND);
    Some(RetryRule { pause, retries: Some(retries), http: Vec::new(), grpc: Vec::new() })
}

pub(super) fn rules() -> Rules {
    Rules { breakers: 10, ..Rules::default() }
}

/// A breaker that opens after two failures in a row and lets a call try after five seconds.
fn breaker() -> Option<BreakerRule> {
    let trip = "consecutiveFailures >= 2".parse().unwrap();
    Some(BreakerRule { trials: 1, interval: Duration::ZERO, rest: 5 * SECOND, trip })
}

struct World {
    state: Arc<ResiliencyState>,
    attempts: AtomicU32,
}

impl World {
    fn new() -> Self {
        let state = ResiliencyState::new(Arc::new(Resiliency::default()), None);
        Self { state, attempts: AtomicU32::new(0) }
    }

    /// Runs a call whose attempts respond with these statuses, the last one for all further ones,
    /// each after the given time.
    async fn run(
        &self,
        rules: &Rules,
        key: &str,
        repeats: bool,
        statuses: &[u16],
        takes: Duration,
    ) -> Answered {
        let made = AtomicU32::new(0);
        let attempt = || {
            self.attempts.fetch_add(1, Ordering::Relaxed);
            let at = made.fetch_add(1, Ordering::Relaxed) as usize;
            let status = statuses[at.min(statuses.len() - 1)];
            async move {
                sleep(takes).await;
                Ok(response(status, &[], ""))
            }
        };
        self.state.run(rules, "app_stock", &[key.to_owned()], repeats, attempt).await
    }

    /// Runs a call of one key that responds at once.
    async fn call(&self, rules: &Rules, statuses: &[u16]) -> Answered {
        self.run(rules, "k", true, statuses, Duration::ZERO).await
    }

    /// Attempts since the last count.
    fn attempts(&self) -> u32 {
        self.attempts.swap(0, Ordering::Relaxed)
    }
}

fn status(answered: &Answered) -> u16 {
    answered.as_ref().unwrap().status().as_u16()
}

fn code(answered: Answered) -> ErrorCode {
    answered.err().unwrap().code
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_is_made_again_until_it_succeeds_or_none_is_left() {
    let world = World::new();
    let rules = Rules { retry: retry(2), ..rules() };
    let began = Instant::now();
    let answer = world.call(&rules, &[500, 503, 200]).await;
    assert_eq!((status(&answer), world.attempts()), (200, 3));
    assert_eq!(began.elapsed(), 2 * SECOND);
    let answer = world.call(&rules, &[500, 501, 502, 200]).await;
    assert_eq!((status(&answer), world.attempts()), (502, 3), "the last failure is the answer");
    let answer = world.run(&rules, "k", false, &[500], Duration::ZERO).await;
    assert_eq!((status(&answer), world.attempts()), (500, 1), "it cannot be repeated");
}

#[tokio::test(start_paused = true)]
async fn each_attempt_has_the_whole_time() {
    let world = World::new();
    let rules = Rules { timeout: Some(3 * SECOND), retry: retry(1), ..rules() };
    let began = Instant::now();
    let timed_out = world.run(&rules, "k", true, &[200], 4 * SECOND).await;
    assert_eq!((code(timed_out), world.attempts()), (ErrorCode::TimedOut, 2));
    assert_eq!(began.elapsed(), 7 * SECOND);
    let in_time = world.run(&rules, "k", true, &[200], 2 * SECOND).await;
    assert_eq!(status(&in_time), 200);
}

#[tokio::test(start_paused = true)]
async fn a_breaker_opens_after_failures_and_lets_one_call_try() {
    let world = World::new();
    let rules = Rules { breaker: breaker(), ..rules() };
    world.call(&rules, &[500]).await.unwrap();
    world.call(&rules, &[500]).await.unwrap();
    assert_eq!(world.attempts(), 2);
    let open = world.call(&rules, &[200]).await;
    assert_eq!((code(open), world.attempts()), (ErrorCode::CircuitOpen, 0));
    sleep(6 * SECOND).await;
    assert_eq!(status(&world.call(&rules, &[500]).await), 500);
    let open = world.call(&rules, &[200]).await;
    assert_eq!(code(open), ErrorCode::CircuitOpen, "the try has failed");
    sleep(6 * SECOND).await;
    assert_eq!(status(&world.call(&rules, &[200]).await), 200);
    assert_eq!(status(&world.call(&rules, &[200]).await), 200);
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_ends_the_retries_of_a_call() {
    let world = World::new();
    let rules = Rules { breaker: breaker(), retry: retry(9), ..rules() };
    let answer = world.call(&rules, &[500]).await;
    assert_eq!((code(answer), world.attempts()), (ErrorCode::CircuitOpen, 2));
}

#[tokio::test(start_paused = true)]
async fn each_key_has_a_breaker_of_its_own_up_to_the_limit() {
    let world = World::new();
    let rules = Rules { breaker: breaker(), breakers: 2, ..rules() };
    let fail = async |key: &str| {
        let answer = world.run(&rules, key, true, &[500], Duration::ZERO).await;
        sleep(Duration::from_millis(1)).await;
        answer
    };
    for key in ["a", "a", "b"] {
        fail(key).await.unwrap();
    }
    assert_eq!(code(fail("a").await), ErrorCode::CircuitOpen);
    assert_eq!(status(&fail("b").await), 500);
    assert_eq!(code(fail("b").await), ErrorCode::CircuitOpen);
    fail("c").await.unwrap();
    assert_eq!(status(&fail("a").await), 500, "the breaker that was used least is forgotten");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_frees_its_try() {
    let world = World::new();
    let rules = Rules { breaker: breaker(), ..rules() };
    for _ in 0..2 {
        world.call(&rules, &[500]).await.unwrap();
    }
    sleep(6 * SECOND).await;
    let trying = world.run(&rules, "k", true, &[200], 60 * SECOND);
    assert!(tokio::time::timeout(SECOND, trying).await.is_err());
    assert_eq!(status(&world.call(&rules, &[200]).await), 200);
}

#[test]
fn what_counts_as_a_failure_is_read_from_status_and_fields() {
    let of = |status, fields: &[(&'static str, &str)]| {
        Answered::Ok(response(status, fields, "")).outcome()
    };
    assert_eq!(of(503, &[]), Outcome::Http(503));
    let grpc = ("content-type", "application/grpc+proto");
    assert_eq!(of(200, &[grpc]), Outcome::Grpc(0), "a stream that has begun");
    assert_eq!(of(200, &[grpc, ("grpc-status", "14")]), Outcome::Grpc(14));
    assert_eq!(of(502, &[grpc]), Outcome::Http(502));
    assert_eq!(of(200, &[("grpc-status", "x")]), Outcome::Http(200));
    let problem = |code| Answered::Err(Problem::new(code, "")).outcome();
    assert_eq!(problem(ErrorCode::TimedOut), Outcome::TimedOut);
    assert_eq!(problem(ErrorCode::Overloaded), Outcome::Http(503));
}

#[test]
fn actors_share_a_breaker_by_type_by_id_or_by_both() {
    let actor = Actor { actor_type: "Cart".into(), id: "7".into() };
    let of_type = "actors of type `Cart`".to_owned();
    let of_id = "actor `Cart||7`".to_owned();
    let keys = |scope| keys_of_actor(scope, &actor);
    assert_eq!(keys(Scope::Both), [of_type, of_id]);
    assert_eq!(keys(Scope::Type), keys(Scope::Both)[..1]);
    assert_eq!(keys(Scope::Id), keys(Scope::Both)[1..]);
}

#[test]
fn random_numbers_are_spread_from_zero_up_to_one() {
    let numbers: Vec<f64> = (0..1000).map(|_| random()).collect();
    assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
    assert!(numbers.iter().any(|number| *number < 0.1) && numbers.iter().any(|n| *n > 0.9));
}

#[tokio::test(start_paused = true)]
async fn a4_calls_of_an_app_that_is_not_known_yet_open_no_breaker() {
    let world = World::new();
    let rules = Rules { breaker: breaker(), ..rules() };
    let keys = ["k".to_owned()];
    for code in [ErrorCode::UnknownService, ErrorCode::ActorNoAddress] {
        for _ in 0..5 {
            let answer = || async { Ok(response(404, &[(ERROR_FIELD, code.word())], "")) };
            let answered = world.state.run(&rules, "app_stock", &keys, true, answer).await;
            assert_eq!(status(&answered), 404);
            let problem = || async { Err(Problem::new(code, "nobody")) };
            let answered = world.state.run(&rules, "app_stock", &keys, true, problem).await;
            assert_eq!(self::code(answered), code);
        }
    }
    // What an app answers counts.
    for _ in 0..2 {
        assert_eq!(status(&world.call(&rules, &[404]).await), 404);
    }
    assert_eq!(code(world.call(&rules, &[200]).await), ErrorCode::CircuitOpen);
}
