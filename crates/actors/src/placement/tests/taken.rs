//! Turns on one host.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

const IDLE: Duration = Duration::from_secs(60);
const DRAIN: Duration = Duration::from_secs(2);
const WAITING: usize = 3;
const EPOCH: Epoch = Epoch(7);

fn actor(id: &str) -> Actor {
    Actor { actor_type: "cart".into(), id: id.into() }
}

fn options() -> TypeOptions {
    TypeOptions { idle: IDLE, drain: DRAIN, reentrancy: Some(2) }
}

/// Holds everything from second 10 on, for a long time.
fn holding() -> Turns {
    holding_for(seconds(100_000))
}

fn holding_for(lease: Duration) -> Turns {
    let mut turns = Turns::new([("cart".into(), options())], WAITING);
    turns.holdings().entered(seconds(10), lease);
    let grant =
        Order::Grant { actor_type: "cart".into(), epoch: EPOCH, shards: Shard::all().collect() };
    assert_eq!(turns.obey(&grant, seconds(10)), []);
    turns
}

fn ask(turns: &mut Turns, turn: u64, id: &str) -> Vec<Effect> {
    turns.ask(turn, &actor(id), None, seconds(11))
}

fn begin(turn: u64) -> Effect {
    Effect::Begin { turn, epoch: EPOCH }
}

fn refuse(turn: u64, refusal: Refusal) -> Effect {
    Effect::Refuse { turn, why: NoTurn::Elsewhere(refusal) }
}

fn deactivate(id: &str) -> Effect {
    Effect::Deactivate { actor: actor(id) }
}

/// Asks for the shard of an actor back.
fn ask_back(turns: &mut Turns, id: &str, now: Duration) -> Vec<Effect> {
    let shards = [Shard::of(id)].into_iter().collect();
    turns.obey(&Order::GiveBack { actor_type: "cart".into(), shards }, now)
}

fn given_back(id: &str) -> Effect {
    Effect::GiveBack { actor_type: "cart".into(), shard: Shard::of(id), epoch: EPOCH }
}

#[test]
fn an_actor_has_one_turn_at_a_time_in_the_order_of_asking() {
    let mut turns = holding();
    assert_eq!(ask(&mut turns, 1, "a"), [begin(1)]);
    assert_eq!(ask(&mut turns, 2, "b"), [begin(2)], "another actor is another matter");
    for turn in [3, 4, 5] {
        assert_eq!(ask(&mut turns, turn, "a"), []);
    }
    let why = NoTurn::Crowded { limit: WAITING };
    assert_eq!(ask(&mut turns, 6, "a"), [Effect::Refuse { turn: 6, why }]);
    turns.give_up(4);
    assert_eq!(turns.ended(1, seconds(11)), [begin(3)]);
    assert_eq!(turns.ended(1, seconds(11)), [], "it has ended before");
    assert_eq!(turns.ended(3, seconds(11)), [begin(5)], "nobody waits for 4 any more");
    assert_eq!(turns.ended(5, seconds(11)), []);
    assert_eq!(turns.counts().collect::<Vec<_>>(), [("cart", 2)]);
}

#[test]
fn a_chain_of_calls_may_come_back_so_deep() {
    let mut turns = holding();
    let chain: Arc<str> = "chain".into();
    let mut come = |turn: u64, chain: &Arc<str>| {
        turns.ask(turn, &actor("a"), Some(chain.clone()), seconds(11))
    };
    assert_eq!(come(1, &chain), [begin(1)]);
    assert_eq!(come(2, &chain), [begin(2)]);
    let why = NoTurn::TooDeep { limit: 2 };
    assert_eq!(come(3, &chain), [Effect::Refuse { turn: 3, why }]);
    assert_eq!(come(4, &"other".into()), [], "another chain waits");
    assert_eq!(turns.ended(1, seconds(12)), [], "the inner turn is under way");
    assert_eq!(turns.ended(2, seconds(12)), [begin(4)]);
}

#[test]
fn without_reentrancy_a_chain_waits_like_any_other() {
    let options = TypeOptions { reentrancy: None, ..options() };
    let mut turns = Turns::new([("cart".into(), options)], WAITING);
    turns.holdings().entered(seconds(10), seconds(100));
    let shards = Shard::all().collect();
    turns.obey(&Order::Grant { actor_type: "cart".into(), epoch: EPOCH, shards }, seconds(10));
    let chain = || Some("chain".into());
    assert_eq!(turns.ask(1, &actor("a"), chain(), seconds(11)), [begin(1)]);
    assert_eq!(turns.ask(2, &actor("a"), chain(), seconds(11)), []);
}

#[test]
fn a_call_at_a_host_that_lacks_the_shard_is_refused() {
    let mut turns = Turns::new([("cart".into(), options())], WAITING);
    assert_eq!(ask(&mut turns, 1, "a"), [refuse(1, Refusal::LeaseEnded)]);
    turns.holdings().entered(seconds(10), seconds(100));
    assert_eq!(ask(&mut turns, 2, "a"), [refuse(2, Refusal::NotHere)]);
    let other = Actor { actor_type: "meter".into(), id: "a".into() };
    assert_eq!(turns.ask(3, &other, None, seconds(11)), [refuse(3, Refusal::NotHere)]);
}

#[test]
fn a_shard_is_given_back_when_its_turns_have_ended_and_its_actors_are_gone() {
    let mut turns = holding();
    ask(&mut turns, 1, "a");
    ask(&mut turns, 2, "a");
    assert_eq!(ask_back(&mut turns, "a", seconds(12)), [refuse(2, Refusal::Leaving)]);
    assert_eq!(turns.next_moment(), Some(seconds(12) + DRAIN));
    assert_eq!(ask(&mut turns, 3, "a"), [refuse(3, Refusal::Leaving)]);
    assert_eq!(turns.ended(1, seconds(13)), [deactivate("a")]);
    assert_eq!(turns.deactivated(&actor("a"), seconds(13)), [given_back("a")]);
    assert_eq!(ask(&mut turns, 4, "a"), [refuse(4, Refusal::NotHere)]);
    assert_eq!(ask_back(&mut turns, "b", seconds(12)), [given_back("b")], "nobody is there");
}

#[test]
fn a_turn_that_goes_on_for_too_long_is_called_off() {
    let mut turns = holding();
    ask(&mut turns, 1, "a");
    assert_eq!(ask_back(&mut turns, "a", seconds(12)), []);
    assert_eq!(turns.sweep(seconds(13)), []);
    assert_eq!(turns.sweep(seconds(12) + DRAIN), [Effect::CallOff { turn: 1 }]);
    assert_eq!(turns.sweep(seconds(20)), [], "it is said once");
    assert_eq!(turns.ended(1, seconds(21)), [deactivate("a")]);
    assert_eq!(turns.deactivated(&actor("a"), seconds(21)), [given_back("a")]);
}

#[test]
fn an_idle_actor_is_let_go_and_comes_back_with_its_next_turn() {
    let mut turns = holding();
    ask(&mut turns, 1, "a");
    assert_eq!(turns.sweep(seconds(11) + IDLE), [], "it has a turn");
    turns.ended(1, seconds(80));
    assert_eq!(turns.sweep(seconds(80) + IDLE - Duration::from_millis(1)), []);
    assert_eq!(turns.sweep(seconds(80) + 2 * IDLE), [deactivate("a")]);
    // Meanwhile there is a call: the app first deactivates its actor.
    assert_eq!(ask(&mut turns, 2, "a"), []);
    assert_eq!(turns.deactivated(&actor("a"), seconds(200)), [begin(2)]);
    assert_eq!(turns.deactivated(&actor("a"), seconds(200)), [], "it is another one");
    assert_eq!(turns.ended(2, seconds(200)), []);
    assert_eq!(turns.sweep(seconds(200) + IDLE), [deactivate("a")]);
    turns.deactivated(&actor("a"), seconds(200) + IDLE);
    assert_eq!(turns.counts().collect::<Vec<_>>(), [("cart", 0)]);
}

#[test]
fn when_the_lease_ends_so_does_everything() {
    let mut turns = holding_for(LEASE);
    ask(&mut turns, 1, "a");
    ask(&mut turns, 2, "a");
    ask(&mut turns, 3, "b");
    turns.ended(3, seconds(11));
    let ended = turns.next_moment().unwrap();
    assert!(ended < seconds(10) + LEASE, "{ended:?}");
    let mut effects = turns.sweep(ended);
    effects.sort_by_key(|effect| format!("{effect:?}"));
    let expected = [Effect::CallOff { turn: 1 }, deactivate("b"), refuse(2, Refusal::LeaseEnded)];
    assert_eq!(effects, expected);
    // It gets the shard again before the app has deactivated the actor: the call waits for that.
    turns.holdings().entered(ended, LEASE);
    let shards = Shard::all().collect();
    turns.obey(&Order::Grant { actor_type: "cart".into(), epoch: EPOCH, shards }, ended);
    assert_eq!(turns.ask(4, &actor("a"), None, ended), []);
    assert_eq!(turns.ended(1, ended), [deactivate("a")]);
    assert_eq!(turns.deactivated(&actor("a"), ended), [begin(4)]);
}

#[test]
fn who_enters_after_the_lease_has_ended_lets_go_of_what_it_had() {
    let mut turns = holding_for(LEASE);
    ask(&mut turns, 1, "a");
    ask(&mut turns, 2, "b");
    turns.ended(2, seconds(11));
    let (held, effects) = turns.to_enter(seconds(11));
    assert_eq!((held["cart"].len(), effects), (Shard::all().count(), Vec::new()), "it stands");
    // There was no check of the lease meanwhile.
    let (held, effects) = turns.to_enter(seconds(10) + LEASE);
    assert!(held["cart"].is_empty(), "{held:?}");
    assert_eq!(effects, [Effect::CallOff { turn: 1 }, deactivate("b")]);
}

/// What may happen to a host.
#[derive(Clone, Debug)]
enum Step {
    Ask(usize),
    /// The turn that began so many ago ends.
    End(usize),
    Deactivated,
    GiveUp(usize),
    AskBack(usize),
    Grant(usize),
    Renew,
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let id = 0..5_usize;
    let step = prop_oneof![
        8 => id.clone().prop_map(Step::Ask),
        5 => (0..6_usize).prop_map(Step::End),
        3 => Just(Step::Deactivated),
        1 => (0..20_usize).prop_map(Step::GiveUp),
        2 => id.clone().prop_map(Step::AskBack),
        2 => id.prop_map(Step::Grant),
        2 => Just(Step::Renew),
        4 => (1..3_000_u64).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..120)
}

/// Every effect so far, and the state that follows.
struct World {
    turns: Turns,
    now: Duration,
    asked: u64,
    of: HashMap<u64, String>,
    /// In the order of requests, by actor.
    waiting: HashMap<String, VecDeque<u64>>,
    running: Vec<u64>,
    called_off: Vec<u64>,
    leaving: Vec<Actor>,
    epoch: u64,
}

impl World {
    fn new() -> Self {
        let options = TypeOptions { idle: seconds(3), drain: seconds(1), reentrancy: None };
        let mut turns = Turns::new([("cart".into(), options)], WAITING);
        turns.holdings().entered(AT_ONCE, LEASE);
        Self {
            turns,
            now: AT_ONCE,
            asked: 0,
            of: HashMap::new(),
            waiting: HashMap::new(),
            running: Vec::new(),
            called_off: Vec::new(),
            leaving: Vec::new(),
            epoch: 0,
        }
    }

    fn note(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Begin { turn, .. } => {
                    let id = self.of[&turn].clone();
                    let may = self.turns.holdings().may_begin("cart", Shard::of(&id), self.now);
                    assert!(may.is_ok(), "{turn} began: {may:?}");
                    let first = self.waiting.entry(id.clone()).or_default().pop_front();
                    assert_eq!(first, Some(turn), "turns of {id} are in the order of asking");
                    assert!(!self.running.iter().any(|other| self.of[other] == id), "{id} has one");
                    let is_leaving = self.leaving.iter().any(|actor| *actor.id == *id);
                    assert!(!is_leaving, "the app is letting go of {id}");
                    self.running.push(turn);
                }
                Effect::Refuse { turn, .. } => {
                    let waiting = self.waiting.entry(self.of[&turn].clone()).or_default();
                    assert!(waiting.contains(&turn), "{turn} is refused once, before it begins");
                    waiting.retain(|other| *other != turn);
                }
                Effect::CallOff { turn } => {
                    assert!(self.running.contains(&turn) && !self.called_off.contains(&turn));
                    self.called_off.push(turn);
                }
                Effect::Deactivate { actor } => {
                    assert!(!self.running.iter().any(|turn| *self.of[turn] == *actor.id));
                    assert!(!self.leaving.contains(&actor), "{actor:?} is told once");
                    self.leaving.push(actor);
                }
                Effect::GiveBack { shard, .. } => {
                    let is_there = |id: &str| Shard::of(id) == shard;
                    assert!(!self.running.iter().any(|turn| is_there(&self.of[turn])));
                    assert!(!self.leaving.iter().any(|actor| is_there(&actor.id)));
                }
            }
        }
    }

    fn end(&mut self, at: usize) {
        if self.running.is_empty() {
            return;
        }
        let turn = self.running.remove(at % self.running.len());
        let effects = self.turns.ended(turn, self.now);
        self.note(effects);
    }

    fn deactivated(&mut self) {
        if let Some(actor) = self.leaving.pop() {
            let effects = self.turns.deactivated(&actor, self.now);
            self.note(effects);
        }
    }

    fn step(&mut self, step: &Step) {
        let effects = match *step {
            Step::Ask(at) => {
                self.asked += 1;
                let id = format!("id-{at}");
                self.of.insert(self.asked, id.clone());
                self.waiting.entry(id.clone()).or_default().push_back(self.asked);
                self.turns.ask(self.asked, &actor(&id), None, self.now)
            }
            Step::End(at) => return self.end(at),
            Step::Deactivated => return self.deactivated(),
            Step::GiveUp(ago) => {
                let turn = self.asked.saturating_sub(ago as u64);
                self.turns.give_up(turn);
                if let Some(waiting) = self.of.get(&turn).and_then(|id| self.waiting.get_mut(id)) {
                    waiting.retain(|other| *other != turn);
                }
                Vec::new()
            }
            Step::AskBack(at) => ask_back(&mut self.turns, &format!("id-{at}"), self.now),
            Step::Grant(at) => {
                let shards = [Shard::of(&format!("id-{at}"))].into_iter().collect();
                self.epoch += 1;
                let epoch = Epoch(self.epoch);
                let grant = Order::Grant { actor_type: "cart".into(), epoch, shards };
                let is_leaving = self
                    .turns
                    .holdings()
                    .leaving()
                    .any(|(_, leaving)| leaving.contains(Shard::of(&format!("id-{at}"))));
                if is_leaving { Vec::new() } else { self.turns.obey(&grant, self.now) }
            }
            Step::Renew => {
                let effects = self.turns.sweep(self.now);
                self.turns.holdings().entered(self.now, LEASE);
                effects
            }
            Step::Pass(millis) => {
                self.now += Duration::from_millis(millis);
                self.turns.sweep(self.now)
            }
        };
        self.note(effects);
    }
}

proptest! {
    #[test]
    fn whatever_happens_turns_of_an_actor_follow_each_other(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        // Everything comes to its end: turns, the lease, and the actors.
        for _ in 0..1_000 {
            world.end(0);
            world.deactivated();
            world.step(&Step::Pass(100));
        }
        prop_assert!(world.waiting.values().all(VecDeque::is_empty), "{:?}", world.waiting);
        prop_assert!(world.running.is_empty() && world.leaving.is_empty());
        prop_assert_eq!(world.turns.counts().collect::<Vec<_>>(), [("cart", 0)]);
        prop_assert_eq!(world.turns.holdings().leaving().count(), 0);
        prop_assert_eq!(world.turns.next_moment(), None);
    }
}
