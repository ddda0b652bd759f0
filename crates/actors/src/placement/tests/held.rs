//! One host's view of its shards.

use super::*;

const CART: &str = "cart";

fn grant(numbers: &[usize], epoch: u64) -> Order {
    Order::Grant { actor_type: CART.into(), epoch: Epoch(epoch), shards: shards(numbers) }
}

fn give_back(numbers: &[usize]) -> Order {
    Order::GiveBack { actor_type: CART.into(), shards: shards(numbers) }
}

fn shards(numbers: &[usize]) -> ShardSet {
    numbers.iter().map(|number| shard(*number)).collect()
}

fn shard(number: usize) -> Shard {
    Shard::new(number).unwrap()
}

/// Has entered at second 10, and holds shards 1 and 2.
fn holding() -> Holdings {
    let mut holdings = Holdings::new([CART.to_owned()]);
    holdings.entered(seconds(10), LEASE);
    holdings.obey(&grant(&[1, 2], 7));
    holdings
}

#[test]
fn a_turn_begins_where_the_shard_is_held_and_nowhere_else() {
    let holdings = holding();
    assert_eq!(holdings.may_begin(CART, shard(1), seconds(11)), Ok(Epoch(7)));
    assert_eq!(holdings.may_begin(CART, shard(3), seconds(11)), Err(Refusal::NotHere));
    assert_eq!(holdings.may_begin("meter", shard(1), seconds(11)), Err(Refusal::NotHere));
    let fresh = Holdings::new([CART.to_owned()]);
    assert_eq!(fresh.may_begin(CART, shard(1), AT_ONCE), Err(Refusal::LeaseEnded));
}

#[test]
fn a_host_stops_a_little_before_its_lease_ends() {
    let mut holdings = holding();
    let ends = holdings.ends().unwrap();
    assert!(ends < seconds(13) && ends > seconds(13) - LEASE / 50, "{ends:?}");
    let just_before = |moment| moment - Duration::from_nanos(1);
    let last = ends - LEASE / 8;
    assert_eq!(holdings.may_begin(CART, shard(1), just_before(last)), Ok(Epoch(7)));
    assert_eq!(holdings.may_begin(CART, shard(1), last), Err(Refusal::LeaseEnded));
    assert_eq!(holdings.may_write(CART, shard(1), just_before(ends)), Some(Epoch(7)));
    assert_eq!(holdings.may_write(CART, shard(1), ends), None);
    assert!(!holdings.end_in_time(just_before(ends)));
    assert!(holdings.end_in_time(ends));
    assert!(!holdings.end_in_time(ends), "it is said once");
    assert_eq!(holdings.to_enter(ends), offering(CART), "it holds nothing any more");
}

#[test]
fn a_lease_counts_from_when_it_was_asked_for_and_never_gets_shorter() {
    let mut holdings = holding();
    assert_eq!(holdings.renew_at(), Some(seconds(11)));
    holdings.renewed(seconds(11));
    let ends = holdings.ends().unwrap();
    assert!(ends > seconds(13) && ends < seconds(14), "{ends:?}");
    // The answer to an earlier question, come late.
    holdings.renewed(seconds(10));
    assert_eq!(holdings.ends(), Some(ends));
}

#[test]
fn what_is_asked_back_begins_no_turn_and_is_given_back_once() {
    let mut holdings = holding();
    holdings.obey(&give_back(&[2, 3]));
    assert_eq!(holdings.may_begin(CART, shard(2), seconds(11)), Err(Refusal::Leaving));
    assert_eq!(holdings.leaving().collect::<Vec<_>>(), [(CART, &shards(&[2]))]);
    assert_eq!(holdings.give_back(CART, shard(1)), None, "nobody asked for it");
    assert_eq!(holdings.give_back(CART, shard(2)), Some(Epoch(7)));
    assert_eq!(holdings.give_back(CART, shard(2)), None);
    assert_eq!(holdings.counts().collect::<Vec<_>>(), [(CART, 1)]);
}

#[test]
fn a_host_that_comes_back_names_what_it_holds_even_what_it_was_asked_for() {
    let mut holdings = holding();
    holdings.obey(&give_back(&[2]));
    let held = BTreeMap::from([(shard(1), Epoch(7)), (shard(2), Epoch(7))]);
    assert_eq!(holdings.to_enter(seconds(11)), Held::from([(CART.to_owned(), held)]));
    assert_eq!(holdings.leaving().count(), 0, "it is asked again");
}
