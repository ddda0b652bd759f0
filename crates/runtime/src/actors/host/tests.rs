//! Turns, leases and shards of one host, by a clock that the tests advance.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::sleep;

use super::super::testing::{LEASE, TestHost, actor, all_shards, give_back, grant, types};
use super::*;

const MOMENT: Duration = Duration::from_millis(1);

/// A turn that takes this long and returns its name.
async fn turn(
    host: &Arc<Host>,
    id: &str,
    chain: Option<&str>,
    name: &'static str,
    takes: Duration,
) -> Result<&'static str, NotRun> {
    let work = move |_| async move {
        sleep(takes).await;
        Ok(name)
    };
    host.turn(&actor(id), chain.map(Arc::from), work).await
}

fn spawn(
    test: &TestHost,
    id: &'static str,
    chain: Option<&'static str>,
    name: &'static str,
    takes: Duration,
) -> tokio::task::JoinHandle<Result<&'static str, NotRun>> {
    let host = Arc::clone(&test.host);
    tokio::spawn(async move { turn(&host, id, chain, name, takes).await })
}

fn not_begun(refusal: Refusal) -> Result<&'static str, NotRun> {
    Err(NotRun::No(NoTurn::Elsewhere(refusal)))
}

#[tokio::test(start_paused = true)]
async fn a_turn_must_begin_before_the_last_part_of_the_lease() {
    let test = TestHost::granted(types(None));
    let lease = test.host.turn(&actor("1"), None, |lease| async move { Ok(lease) }).await.unwrap();
    let left = lease.until - test.host.clock().now();
    assert!(left < LEASE - LEASE / 8 && left > LEASE / 2, "{left:?}");
    assert_ne!(lease.number, 0);
}

#[tokio::test(start_paused = true)]
async fn turns_of_one_actor_take_turns_and_those_of_two_run_at_once() {
    let test = TestHost::granted(types(None));
    let second = Duration::from_secs(1);
    let began = tokio::time::Instant::now();
    let (first, other) =
        (spawn(&test, "1", None, "a", second), spawn(&test, "2", None, "b", second));
    sleep(MOMENT).await;
    let next = spawn(&test, "1", None, "c", second);
    sleep(MOMENT).await;
    assert_eq!(test.host.waiting(), [("Cart".to_owned(), 1)]);
    assert_eq!((first.await.unwrap(), other.await.unwrap()), (Ok("a"), Ok("b")));
    assert!(began.elapsed() < second + 3 * MOMENT);
    assert_eq!(next.await.unwrap(), Ok("c"));
    assert!(began.elapsed() >= 2 * second);
    assert_eq!(test.host.counts(), [("Cart".to_owned(), 2)]);
}

#[tokio::test(start_paused = true)]
async fn without_lease_or_shard_no_turn_begins() {
    let test = TestHost::idle(types(None));
    let nothing = || turn(&test.host, "1", None, "a", Duration::ZERO);
    assert_eq!(nothing().await, not_begun(Refusal::LeaseEnded));
    test.host.entered(test.host.clock().now(), LEASE);
    assert_eq!(nothing().await, not_begun(Refusal::NotHere));
    assert_eq!(test.host.epoch(&actor("1")), None);
    test.host.obey(&grant(7));
    assert_eq!(test.host.epoch(&actor("1")), Some(Epoch(7)));
    assert_eq!(nothing().await, Ok("a"));
    sleep(LEASE).await;
    assert_eq!(nothing().await, not_begun(Refusal::LeaseEnded));
    assert_eq!(test.host.epoch(&actor("1")), None);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_waited_until_the_lease_was_over_does_not_begin() {
    let test = TestHost::granted(types(None));
    let first = spawn(&test, "1", None, "a", LEASE - Duration::from_millis(100));
    sleep(MOMENT).await;
    let late = spawn(&test, "1", None, "b", Duration::ZERO);
    assert_eq!(first.await.unwrap(), Ok("a"));
    assert_eq!(late.await.unwrap(), not_begun(Refusal::LeaseEnded));
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lease_extends_turns_that_have_begun() {
    let test = TestHost::granted(types(None));
    let host = &test.host;
    let lease = host.turn(&actor("1"), None, |lease| async move { Ok(lease) }).await.unwrap();
    sleep(LEASE / 3).await;
    host.lease_renewed(host.clock().now());
    let renewed = test.loopback.renewed();
    assert_eq!(renewed.len(), 1);
    assert_eq!(renewed[0].number, lease.number);
    assert_eq!(renewed[0].until, lease.until + LEASE / 3);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_has_ended_is_another_one_when_it_is_renewed() {
    let test = TestHost::granted(types(None));
    let host = &test.host;
    let lease = host.turn(&actor("1"), None, |lease| async move { Ok(lease) }).await.unwrap();
    sleep(LEASE).await;
    host.lease_renewed(host.clock().now());
    assert!(test.loopback.renewed().is_empty(), "turns of the ended lease are not extended");
    host.obey(&grant(2));
    let next = host.turn(&actor("1"), None, |lease| async move { Ok(lease) }).await.unwrap();
    assert_ne!(next.number, lease.number);
}

#[tokio::test(start_paused = true)]
async fn a_shard_is_given_back_when_its_turns_have_ended() {
    let mut test = TestHost::granted(types(None));
    let running = spawn(&test, "1", None, "a", Duration::from_secs(1));
    sleep(MOMENT).await;
    test.host.obey(&give_back());
    let next = turn(&test.host, "1", None, "b", Duration::ZERO).await;
    assert_eq!(next, not_begun(Refusal::Leaving));
    assert_eq!(test.host.may_write(&actor("1")), Some(Epoch(1)), "a turn under way may write");
    assert_eq!(running.await.unwrap(), Ok("a"));
    sleep(MOMENT).await;
    let mut back = ShardSet::default();
    while let Ok(given) = test.given_back.try_recv() {
        assert_eq!(given.epoch, Epoch(1));
        back.insert(given.shard);
    }
    assert_eq!(back, all_shards());
    assert!(test.host.holds_nothing());
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_outlasts_the_drain_time_is_called_off() {
    let mut test = TestHost::granted(types(None));
    let timers = tokio::spawn(Arc::clone(&test.host).run_timers());
    let running = spawn(&test, "1", None, "a", Duration::from_secs(60));
    sleep(MOMENT).await;
    // Renewed in time: it is the order that ends the turn.
    test.host.obey(&give_back());
    sleep(Duration::from_secs(1)).await;
    test.host.lease_renewed(test.host.clock().now());
    let began = tokio::time::Instant::now();
    assert_eq!(running.await.unwrap(), Err(NotRun::CalledOff));
    assert!(began.elapsed() <= Duration::from_millis(1300), "{:?}", began.elapsed());
    test.host.lease_renewed(test.host.clock().now());
    sleep(CALLED_OFF + CHECK_EVERY).await;
    let mut back = 0;
    while test.given_back.try_recv().is_ok() {
        back += 1;
    }
    assert_eq!(back, all_shards().len());
    timers.abort();
}

#[tokio::test(start_paused = true)]
async fn a_turn_under_way_goes_on_without_its_caller_and_one_that_waits_does_not() {
    let test = TestHost::granted(types(None));
    let done = Arc::new(AtomicUsize::new(0));
    let counted = |takes| {
        let (host, done) = (Arc::clone(&test.host), Arc::clone(&done));
        tokio::spawn(async move {
            let work = move |_| async move {
                sleep(takes).await;
                done.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            host.turn(&actor("1"), None, work).await
        })
    };
    let running = counted(Duration::from_secs(1));
    sleep(MOMENT).await;
    let waiting = counted(Duration::ZERO);
    sleep(MOMENT).await;
    running.abort();
    waiting.abort();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(done.load(Ordering::Relaxed), 1);
    assert_eq!(turn(&test.host, "1", None, "next", Duration::ZERO).await, Ok("next"));
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_chain_come_back_to_their_actor_up_to_a_depth() {
    let test = TestHost::granted(types(Some(2)));
    let hour = Duration::from_millis(500);
    let outer = spawn(&test, "1", Some("chain"), "a", hour);
    sleep(MOMENT).await;
    let inner = spawn(&test, "1", Some("chain"), "b", hour);
    sleep(MOMENT).await;
    let third = turn(&test.host, "1", Some("chain"), "c", Duration::ZERO).await;
    assert_eq!(third, Err(NotRun::No(NoTurn::TooDeep { limit: 2 })));
    let other = spawn(&test, "1", Some("another"), "d", Duration::ZERO);
    sleep(MOMENT).await;
    assert!(!other.is_finished(), "another chain waits");
    assert_eq!((outer.await.unwrap(), inner.await.unwrap()), (Ok("a"), Ok("b")));
    assert_eq!(other.await.unwrap(), Ok("d"));
}

#[tokio::test(start_paused = true)]
async fn a_chain_is_the_callers_or_a_new_one_where_the_type_is_reentrant() {
    let reentrant = TestHost::idle(types(Some(32))).host;
    assert_eq!(reentrant.chain("Cart", Some("mine")).as_deref(), Some("mine"));
    let new = reentrant.chain("Cart", None).unwrap();
    assert_ne!(reentrant.chain("Cart", None).unwrap(), new);
    assert_eq!(reentrant.chain("Other", Some("mine")), None);
    assert_eq!(TestHost::idle(types(None)).host.chain("Cart", Some("mine")), None);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_failed_differs_from_one_that_did_not_begin() {
    let test = TestHost::granted(types(None));
    let failure = Problem::invoke("it broke");
    let failed = Unanswered::Failed(failure.clone());
    let run = |end: Unanswered| {
        let host = Arc::clone(&test.host);
        async move { host.turn(&actor("1"), None, |_| async { Err::<(), _>(end) }).await }
    };
    assert_eq!(run(failed).await, Err(NotRun::Failed(failure)));
    let late = NotRun::No(NoTurn::Elsewhere(Refusal::LeaseEnded));
    assert_eq!(run(Unanswered::TooLate).await, Err(late));
}

#[tokio::test(start_paused = true)]
async fn grants_are_passed_on_for_the_types_that_the_app_offers() {
    let mut test = TestHost::idle(types(None));
    test.host.obey(&Order::Grant {
        actor_type: "Other".to_owned(),
        epoch: Epoch(1),
        shards: all_shards(),
    });
    test.host.obey(&grant(2));
    let granted = test.granted.try_recv().unwrap();
    assert_eq!((&*granted.actor_type, granted.epoch), ("Cart", Epoch(2)));
    assert_eq!(granted.shards, all_shards());
    assert!(test.granted.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn an_actor_that_is_idle_for_long_enough_is_deactivated() {
    let mut options = types(None);
    options.get_mut("Cart").unwrap().idle = Duration::from_secs(1);
    let test = TestHost::granted(options);
    let timers = tokio::spawn(Arc::clone(&test.host).run_timers());
    assert_eq!(turn(&test.host, "1", None, "a", Duration::ZERO).await, Ok("a"));
    sleep(Duration::from_millis(900)).await;
    assert_eq!(test.host.counts(), [("Cart".to_owned(), 1)]);
    sleep(Duration::from_millis(100) + CHECK_EVERY + MOMENT).await;
    assert_eq!(test.host.counts(), [("Cart".to_owned(), 0)]);
    timers.abort();
}

#[tokio::test(start_paused = true)]
async fn a_host_enters_again_with_what_it_holds_while_its_lease_stands() {
    let test = TestHost::granted(types(None));
    let held = test.host.to_enter();
    assert_eq!(held["Cart"].len(), all_shards().len());
    assert_eq!(test.host.held("Cart").len(), all_shards().len());
    sleep(LEASE).await;
    assert!(test.host.to_enter()["Cart"].is_empty());
    assert!(test.host.held("Cart").is_empty());
    assert_eq!(test.host.renew_at(), None);
}
