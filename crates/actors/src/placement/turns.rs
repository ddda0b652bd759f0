//! What one host does with its actors: whose turn it is, who waits, who has been idle for too long,
//! and what happens to all of them when a shard goes elsewhere or the lease ends.
//!
//! A turn is requested under a number of the caller's choice. Its outcome, and everything else to
//! be done, are [`Effect`]s; the caller carries them out and reports when they are done.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::placement::actor::{Actor, Rest, State, TypeOptions, Waiting};
use crate::placement::grants::{Held, Order};
use crate::placement::holdings::{Holdings, Refusal};
use crate::placement::shard::Shard;
use crate::placement::table::Epoch;

/// Why a turn did not begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoTurn {
    /// The actor is at another host now.
    Elsewhere(Refusal),
    /// Too many wait for this actor.
    Crowded { limit: usize },
    /// Its chain of calls has come back to this actor too often.
    TooDeep { limit: usize },
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The turn is to be run, and what it writes goes under this epoch. Its end is to be reported
    /// ([`Turns::ended`]).
    Begin { turn: u64, epoch: Epoch },
    /// The turn does not take place.
    Refuse { turn: u64, why: NoTurn },
    /// No caller waits for the outcome of this turn any more, and it may write no more. Its end is
    /// still to be reported.
    CallOff { turn: u64 },
    /// The app is to let go of the actor; then [`Turns::deactivated`] is to be called.
    Deactivate { actor: Actor },
    /// The shard can be given back.
    GiveBack { actor_type: Arc<str>, shard: Shard, epoch: Epoch },
}

/// The actors of one host.
#[derive(Debug)]
pub struct Turns {
    holdings: Holdings,
    types: BTreeMap<Arc<str>, Type>,
    /// Turns that wait or are under way.
    turns: HashMap<u64, Actor>,
    /// When to check whether an actor has been idle for too long: one entry for each that is.
    idle_checks: BinaryHeap<Reverse<(Duration, u64, Actor)>>,
    last_check: u64,
    /// When turns in shards that were asked back are cancelled.
    draining: BTreeSet<(Duration, Arc<str>, Shard)>,
    waiting_limit: usize,
}

#[derive(Debug)]
struct Type {
    options: TypeOptions,
    shards: BTreeMap<Shard, HashMap<Arc<str>, State>>,
    count: usize,
}

impl Turns {
    /// Of a host that offers these types, none of whose actors lets more than `waiting_limit` turns
    /// wait.
    #[must_use]
    pub fn new(
        types: impl IntoIterator<Item = (Arc<str>, TypeOptions)>,
        waiting_limit: usize,
    ) -> Self {
        let kind = |options| Type { options, shards: BTreeMap::new(), count: 0 };
        let types: BTreeMap<Arc<str>, Type> =
            types.into_iter().map(|(name, options)| (name, kind(options))).collect();
        Self {
            holdings: Holdings::new(types.keys().map(ToString::to_string)),
            types,
            turns: HashMap::new(),
            idle_checks: BinaryHeap::new(),
            last_check: 0,
            draining: BTreeSet::new(),
            waiting_limit,
        }
    }

    /// What the host holds; [`Holdings::obey`], [`Holdings::end_in_time`] and
    /// [`Holdings::to_enter`] are for the methods of their names here, and for [`Self::sweep`], to
    /// call.
    pub fn holdings(&mut self) -> &mut Holdings {
        &mut self.holdings
    }

    /// Actors that the app has, by type.
    pub fn counts(&self) -> impl Iterator<Item = (&str, usize)> {
        self.types.iter().map(|(name, kind)| (&**name, kind.count))
    }

    /// Turns that wait for their actor, by type.
    pub fn waiting(&self) -> impl Iterator<Item = (&str, usize)> {
        self.types.iter().map(|(name, kind)| {
            let states = kind.shards.values().flat_map(HashMap::values);
            (&**name, states.map(|state| state.waiting.len()).sum())
        })
    }

    /// Requests a turn of an actor, as part of this call chain. `turn` must differ from all numbers
    /// that wait or are under way.
    pub fn ask(
        &mut self,
        turn: u64,
        actor: &Actor,
        chain: Option<Arc<str>>,
        now: Duration,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.admit(Waiting { turn, chain }, actor, now, &mut effects);
        effects
    }

    fn admit(&mut self, asked: Waiting, actor: &Actor, now: Duration, effects: &mut Vec<Effect>) {
        let turn = asked.turn;
        let shard = Shard::of(&actor.id);
        let epoch = match self.holdings.may_begin(&actor.actor_type, shard, now) {
            Ok(epoch) => epoch,
            Err(refusal) => {
                return effects.push(Effect::Refuse { turn, why: NoTurn::Elsewhere(refusal) });
            }
        };
        let limit = self.waiting_limit;
        let idle = self.types.get(&actor.actor_type).map(|kind| kind.options.idle);
        let (Some(idle), false) = (idle, self.turns.contains_key(&turn)) else { return };
        if self.state(actor).is_none() {
            self.activate(actor, now, idle);
        }
        let reentrancy = self.types[&actor.actor_type].options.reentrancy;
        let Some(state) = self.state(actor) else { return };
        let is_in_chain = asked.chain.is_some() && state.chain == asked.chain;
        if state.running.is_empty() && state.rest == Rest::Active {
            state.begin(asked);
        } else if let (Some(limit), true, Rest::Active) = (reentrancy, is_in_chain, state.rest) {
            if state.running.len() >= limit {
                return effects.push(Effect::Refuse { turn, why: NoTurn::TooDeep { limit } });
            }
            state.begin(asked);
        } else if state.waiting.len() >= limit {
            return effects.push(Effect::Refuse { turn, why: NoTurn::Crowded { limit } });
        } else {
            state.waiting.push_back(asked);
            self.turns.insert(turn, actor.clone());
            return;
        }
        self.turns.insert(turn, actor.clone());
        effects.push(Effect::Begin { turn, epoch });
    }

    fn state(&mut self, actor: &Actor) -> Option<&mut State> {
        let shards = &mut self.types.get_mut(&actor.actor_type)?.shards;
        shards.get_mut(&Shard::of(&actor.id))?.get_mut(&actor.id)
    }

    fn activate(&mut self, actor: &Actor, now: Duration, idle: Duration) {
        self.last_check += 1;
        let check = self.last_check;
        self.idle_checks.push(Reverse((now + idle, check, actor.clone())));
        let Some(kind) = self.types.get_mut(&actor.actor_type) else { return };
        let state = State::new(now, check);
        kind.shards.entry(Shard::of(&actor.id)).or_default().insert(actor.id.clone(), state);
        kind.count += 1;
    }

    /// The epoch under which an actor may write now: it is active and the lease lasts. Valid also
    /// while its shard is asked back, until it is given back.
    #[must_use]
    pub fn may_write(&self, actor: &Actor, now: Duration) -> Option<Epoch> {
        let shard = Shard::of(&actor.id);
        let actors = self.types.get(&actor.actor_type)?.shards.get(&shard)?;
        actors.get(&actor.id)?;
        self.holdings.may_write(&actor.actor_type, shard, now)
    }

    /// No caller waits for this turn any more. If it is under way, it continues to its end.
    pub fn give_up(&mut self, turn: u64) {
        let Some(actor) = self.turns.get(&turn).cloned() else { return };
        let Some(state) = self.state(&actor) else { return };
        let before = state.waiting.len();
        state.waiting.retain(|waiting| waiting.turn != turn);
        if state.waiting.len() < before {
            self.turns.remove(&turn);
        }
    }

    /// A turn has ended.
    pub fn ended(&mut self, turn: u64, now: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some(actor) = self.turns.get(&turn).cloned() else { return effects };
        let Some(state) = self.state(&actor) else { return effects };
        let before = state.running.len();
        state.running.retain(|running| running.turn != turn);
        if state.running.len() == before {
            return effects;
        }
        let is_idle = state.running.is_empty();
        if is_idle {
            state.chain = None;
            state.idle_since = now;
        }
        self.turns.remove(&turn);
        if is_idle {
            self.go_on(&actor, now, &mut effects);
        }
        effects
    }

    /// The next turn of an actor without one, or its end.
    fn go_on(&mut self, actor: &Actor, now: Duration, effects: &mut Vec<Effect>) {
        let Some(state) = self.state(actor) else { return };
        match state.rest {
            Rest::UnderWay => {}
            Rest::Due => {
                state.rest = Rest::UnderWay;
                effects.push(Effect::Deactivate { actor: actor.clone() });
            }
            Rest::Active => {
                while let Some(next) = self.state(actor).and_then(|s| s.waiting.pop_front()) {
                    self.turns.remove(&next.turn);
                    self.admit(next, actor, now, effects);
                    if self.state(actor).is_none_or(|state| !state.running.is_empty()) {
                        return;
                    }
                }
            }
        }
    }

    /// The app has deactivated an actor. Turns that wait for it get a new one.
    pub fn deactivated(&mut self, actor: &Actor, now: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        let shard = Shard::of(&actor.id);
        let Some(kind) = self.types.get_mut(&actor.actor_type) else { return effects };
        let Some(actors) = kind.shards.get_mut(&shard) else { return effects };
        if actors.get(&actor.id).is_none_or(|state| state.rest != Rest::UnderWay) {
            return effects;
        }
        let state = actors.remove(&actor.id);
        kind.count -= 1;
        if actors.is_empty() {
            kind.shards.remove(&shard);
        }
        for waiting in state.into_iter().flat_map(|state| state.waiting) {
            self.turns.remove(&waiting.turn);
            self.admit(waiting, actor, now, &mut effects);
        }
        self.give_back(&actor.actor_type, shard, &mut effects);
        effects
    }

    /// Gives back a shard that was asked back, if it has no actor any more.
    fn give_back(&mut self, actor_type: &Arc<str>, shard: Shard, effects: &mut Vec<Effect>) {
        let is_used = |kind: &Type| kind.shards.contains_key(&shard);
        if self.types.get(actor_type).is_some_and(is_used) {
            return;
        }
        if let Some(epoch) = self.holdings.give_back(actor_type, shard) {
            self.draining.retain(|(_, name, other)| (name, *other) != (actor_type, shard));
            effects.push(Effect::GiveBack { actor_type: actor_type.clone(), shard, epoch });
        }
    }

    /// Takes note of an order, and does what follows from it.
    pub fn obey(&mut self, order: &Order, now: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.holdings.obey(order);
        let Order::GiveBack { actor_type, shards } = order else { return effects };
        let Some((name, kind)) = self.types.get_key_value(actor_type.as_str()) else {
            return effects;
        };
        let (name, drain) = (name.clone(), kind.options.drain);
        for shard in shards.iter() {
            self.let_go(&name, shard, Refusal::Leaving, &mut effects);
            self.draining.insert((now + drain, name.clone(), shard));
            self.give_back(&name, shard, &mut effects);
        }
        self.call_off_late(now, &mut effects);
        effects
    }

    /// Refuses who waits for the actors of a shard, and has them deactivated when their turns have
    /// ended.
    fn let_go(
        &mut self,
        actor_type: &Arc<str>,
        shard: Shard,
        why: Refusal,
        effects: &mut Vec<Effect>,
    ) {
        let Some(kind) = self.types.get_mut(actor_type) else { return };
        for (id, state) in kind.shards.get_mut(&shard).into_iter().flatten() {
            for Waiting { turn, .. } in state.waiting.drain(..) {
                self.turns.remove(&turn);
                effects.push(Effect::Refuse { turn, why: NoTurn::Elsewhere(why) });
            }
            if state.rest == Rest::Active {
                state.rest = Rest::Due;
            }
            if state.rest == Rest::Due && state.running.is_empty() {
                state.rest = Rest::UnderWay;
                let actor = Actor { actor_type: actor_type.clone(), id: id.clone() };
                effects.push(Effect::Deactivate { actor });
            }
        }
    }

    fn call_off(&mut self, actor_type: &Arc<str>, shard: Shard, effects: &mut Vec<Effect>) {
        let Some(kind) = self.types.get_mut(actor_type) else { return };
        let states = kind.shards.get_mut(&shard).into_iter().flat_map(HashMap::values_mut);
        for running in states.flat_map(|state| &mut state.running) {
            if !std::mem::replace(&mut running.is_called_off, true) {
                effects.push(Effect::CallOff { turn: running.turn });
            }
        }
    }

    fn call_off_late(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        while self.draining.first().is_some_and(|(by, _, _)| *by <= now) {
            let Some((_, actor_type, shard)) = self.draining.pop_first() else { return };
            self.call_off(&actor_type, shard, effects);
        }
    }

    /// What to enter with. Where the lease has ended, its actors are lost before the host gets new
    /// ones: what the app still has of them may be old.
    pub fn to_enter(&mut self, now: Duration) -> (Held, Vec<Effect>) {
        let effects = self.sweep(now);
        (self.holdings.to_enter(now), effects)
    }

    /// Does what is due: the lease may have ended, turns may have been drained for long enough,
    /// actors may have been idle for too long.
    pub fn sweep(&mut self, now: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.holdings.end_in_time(now) {
            self.draining.clear();
            let shards_of = |(name, kind): (&Arc<str>, &Type)| {
                let name = name.clone();
                kind.shards.keys().map(move |shard| (name.clone(), *shard)).collect::<Vec<_>>()
            };
            let all: Vec<(Arc<str>, Shard)> = self.types.iter().flat_map(shards_of).collect();
            for (actor_type, shard) in all {
                self.let_go(&actor_type, shard, Refusal::LeaseEnded, &mut effects);
                self.call_off(&actor_type, shard, &mut effects);
            }
        }
        self.call_off_late(now, &mut effects);
        while self.idle_checks.peek().is_some_and(|Reverse((at, _, _))| *at <= now) {
            let Some(Reverse((_, check, actor))) = self.idle_checks.pop() else { break };
            self.check_idle(check, actor, now, &mut effects);
        }
        effects
    }

    /// Whether an actor has been idle for too long.
    fn check_idle(&mut self, check: u64, actor: Actor, now: Duration, effects: &mut Vec<Effect>) {
        let idle = self.types.get(&actor.actor_type).map_or(Duration::ZERO, |k| k.options.idle);
        let Some(state) = self.state(&actor).filter(|state| state.check == check) else { return };
        if state.rest != Rest::Active {
            return;
        }
        let is_used = !state.running.is_empty();
        let due = if is_used { now } else { state.idle_since } + idle;
        if is_used || due > now {
            // Never at once again, not even where idle means at once.
            let at = due.max(now + Duration::from_millis(1));
            return self.idle_checks.push(Reverse((at, check, actor)));
        }
        state.rest = Rest::UnderWay;
        effects.push(Effect::Deactivate { actor });
    }

    /// When [`Self::sweep`] has to be called although nothing has happened.
    #[must_use]
    pub fn next_moment(&self) -> Option<Duration> {
        let checked = self.idle_checks.peek().map(|Reverse((at, _, _))| *at);
        let drained = self.draining.first().map(|(by, _, _)| *by);
        [self.holdings.ends(), checked, drained].into_iter().flatten().min()
    }
}
