//! Hosts that come, go, fall silent and are slow, against what must always hold.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// What may happen.
#[derive(Clone, Debug)]
enum Step {
    Start(usize),
    /// Everything given back, then gone.
    Leave(usize),
    /// It sends and receives nothing for so many tenths of a second.
    Silence(usize, u64),
    /// It comes back with what it holds, as after a broken stream.
    Reconnect(usize),
    /// It ends without a message; [`Step::Start`] begins its next life.
    Kill(usize),
    /// It comes back and claims everything, under the epoch of any grant.
    Lie(usize),
    /// The control plane restarts.
    Restart,
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let host = 0..6_usize;
    let step = prop_oneof![
        4 => host.clone().prop_map(Step::Start),
        2 => host.clone().prop_map(Step::Leave),
        2 => (host.clone(), 1..80_u64).prop_map(|(host, tenths)| Step::Silence(host, tenths)),
        2 => host.clone().prop_map(Step::Reconnect),
        2 => host.clone().prop_map(Step::Kill),
        1 => host.prop_map(Step::Lie),
        1 => Just(Step::Restart),
        6 => (1..20_u64).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..40)
}

/// A host: it trusts its own lease only.
#[derive(Default)]
struct Host {
    life: u64,
    is_up: bool,
    silent_until: Duration,
    holdings: Holdings,
    /// Turns under way, and when they end.
    turns: BTreeMap<Shard, Duration>,
    /// Sent, and not received yet.
    mail: Vec<Order>,
}

struct World {
    now: Duration,
    placement: Placement<(usize, u64)>,
    hosts: Vec<Host>,
    /// The latest life of each host that the control plane has seen.
    current: BTreeMap<usize, u64>,
    /// What the control plane has stored.
    stored: BTreeMap<String, Grants<(usize, u64)>>,
    /// The highest epoch at which any host held each shard.
    highest: BTreeMap<Shard, Epoch>,
    restarts: u64,
}

/// Some of the shards: what goes wrong does so in many.
fn sampled_shards() -> impl Iterator<Item = Shard> {
    Shard::all().step_by(13)
}

const TICK: Duration = Duration::from_millis(100);

impl World {
    fn new() -> Self {
        let placement = Placement::new(LEASE, Epoch(0), &BTreeMap::new(), Duration::ZERO);
        let hosts = (0..6).map(|_| Host::default()).collect();
        Self {
            now: Duration::ZERO,
            placement,
            hosts,
            current: BTreeMap::new(),
            stored: BTreeMap::new(),
            highest: BTreeMap::new(),
            restarts: 0,
        }
    }

    fn receives(&self, at: usize) -> bool {
        self.hosts[at].is_up && self.now >= self.hosts[at].silent_until
    }

    fn name(&self, at: usize) -> (usize, u64) {
        (at, self.hosts[at].life)
    }

    fn enter(&mut self, at: usize) {
        let held = self.hosts[at].holdings.to_enter(self.now);
        let name = self.name(at);
        if let Some(former) = self.current.insert(at, name.1).filter(|former| *former != name.1) {
            self.placement.succeed(&(at, former), &name);
        }
        let wrong = self.placement.enter(&name, &held, self.now);
        let host = &mut self.hosts[at];
        host.holdings.entered(self.now, LEASE);
        // Messages in transit on the old stream are lost.
        host.mail = wrong;
    }

    /// A tenth of a second: leases are renewed, turns end, orders arrive.
    fn tick(&mut self) {
        self.now += TICK;
        for at in 0..self.hosts.len() {
            let now = self.now;
            let host = &mut self.hosts[at];
            if host.holdings.end_in_time(now) {
                // The stream is of no use either.
                host.mail.clear();
            }
            host.turns.retain(|_, ends| *ends > now);
            if !self.receives(at) {
                continue;
            }
            for order in std::mem::take(&mut self.hosts[at].mail) {
                self.hosts[at].holdings.obey(&order);
            }
            if self.placement.renew(&self.name(at), now) {
                if self.hosts[at].holdings.ends().is_some() {
                    self.hosts[at].holdings.renewed(now);
                } else {
                    self.enter(at);
                }
                self.give_back(at);
            } else {
                self.enter(at);
            }
            self.begin_turns(at);
        }
        self.settle();
        self.check();
    }

    /// Turns of two ticks in some of the shards.
    fn begin_turns(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        for shard in sampled_shards().filter(|shard| shard.number() % 7 == at) {
            if host.holdings.may_begin("cart", shard, self.now).is_ok() {
                host.turns.entry(shard).or_insert(self.now + 2 * TICK);
            }
        }
    }

    fn give_back(&mut self, at: usize) {
        let name = self.name(at);
        let host = &mut self.hosts[at];
        let leaving = host.holdings.leaving().flat_map(|(_, shards)| shards.iter());
        let idle: Vec<Shard> = leaving.filter(|shard| !host.turns.contains_key(shard)).collect();
        for shard in idle {
            if let Some(epoch) = host.holdings.give_back("cart", shard) {
                let shards = [shard].into_iter().collect();
                self.placement.given_back(&name, "cart", &shards, epoch);
            }
        }
    }

    fn settle(&mut self) {
        let settled = self.placement.settle(self.now);
        for actor_type in settled.unsaved {
            self.stored.insert(actor_type.clone(), self.placement.grants(&actor_type));
        }
        for actor_type in settled.vacated {
            self.stored.remove(&actor_type);
        }
        for ((at, life), orders) in settled.orders {
            for order in &orders {
                let Order::Grant { epoch, shards, .. } = order else { continue };
                for shard in shards.iter() {
                    let highest = self.highest.entry(shard).or_default();
                    assert!(*epoch > *highest, "epochs of a shard only grow");
                    *highest = *epoch;
                }
            }
            if self.hosts[at].is_up && self.hosts[at].life == life {
                self.hosts[at].mail.extend(orders);
            }
        }
    }

    fn check(&self) {
        let mut taken = BTreeSet::new();
        for host in self.hosts.iter().filter(|host| host.is_up) {
            for shard in sampled_shards() {
                if host.holdings.may_begin("cart", shard, self.now).is_ok() {
                    assert!(taken.insert(shard), "{shard:?} is held twice at {:?}", self.now);
                }
            }
        }
        // Of a host's lives one holds something at most.
        let mut holding = BTreeMap::new();
        for ((at, life), _) in self.placement.grants("cart").keys() {
            assert_eq!(holding.entry(*at).or_insert(*life), life, "two lives of host {at}");
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Start(at) if !self.hosts[at].is_up => {
                let life = self.hosts[at].life + 1;
                let holdings = Holdings::new(["cart".to_owned()]);
                self.hosts[at] = Host { life, is_up: true, holdings, ..Host::default() };
                self.enter(at);
            }
            Step::Leave(at) if self.receives(at) => {
                self.placement.leave(&self.name(at));
                self.hosts[at].is_up = false;
            }
            Step::Silence(at, tenths) => {
                self.hosts[at].silent_until = self.now + TICK * tenths as u32;
            }
            Step::Reconnect(at) if self.receives(at) => {
                self.enter(at);
            }
            Step::Restart => {
                self.restarts += 1;
                let epoch = Epoch(self.restarts << 40);
                self.placement = Placement::new(LEASE, epoch, &self.stored, self.now);
                self.current.clear();
                for (at, life) in self.stored.values().flat_map(Grants::keys).map(|(name, _)| *name)
                {
                    self.current.insert(at, life);
                }
            }
            Step::Kill(at) => self.hosts[at].is_up = false,
            Step::Lie(at) if self.receives(at) => {
                let epoch = self.highest.values().copied().max().unwrap_or_default();
                let all = Shard::all().map(|shard| (shard, epoch)).collect();
                let held = Held::from([("cart".to_owned(), all)]);
                let name = self.name(at);
                let before = self.placement.grants("cart");
                let wrong = self.placement.enter(&name, &held, self.now);
                for ((host, _), shards) in self.placement.grants("cart") {
                    let had = |shard| {
                        before.iter().any(|((of, _), set)| *of == host && set.contains(shard))
                    };
                    assert!(shards.iter().all(had), "a claim gives a host nothing");
                }
                // What it holds under another epoch than it claims is free by its own words.
                let holdings = &mut self.hosts[at].holdings;
                wrong.iter().for_each(|order| holdings.obey(order));
                for shard in Shard::all() {
                    holdings.give_back("cart", shard);
                }
                self.enter(at);
            }
            Step::Pass(tenths) => (0..tenths).for_each(|_| self.tick()),
            Step::Start(_) | Step::Leave(_) | Step::Reconnect(_) | Step::Lie(_) => {}
        }
        self.settle();
        self.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Turns of two hosts never overlap, and at the end the shards are even again.
    #[test]
    fn a_shard_never_has_two_holders(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        for host in &mut world.hosts {
            host.silent_until = Duration::ZERO;
        }
        // A lease for those who are gone, one more after a restart, and some ticks to move.
        (0..80).for_each(|_| world.tick());
        let held = |host: &Host| host.holdings.counts().map(|(_, count)| count).sum::<usize>();
        let held: Vec<usize> =
            world.hosts.iter().filter(|host| host.is_up).map(held).collect();
        prop_assert_eq!(held.iter().sum::<usize>(), if held.is_empty() { 0 } else { SHARDS });
        let (least, most) = (held.iter().min(), held.iter().max());
        prop_assert!(most.zip(least).is_none_or(|(most, least)| most - least <= 1), "{:?}", held);
    }

    /// As even as can be, and nothing moves that need not.
    #[test]
    fn a_plan_is_even_and_moves_the_least(
        holders in proptest::collection::vec(proptest::option::of(0..12_u8), SHARDS),
        members in proptest::collection::btree_set(0..12_u8, 1..10),
    ) {
        let members: Vec<u8> = members.into_iter().collect();
        let planned = plan(&holders, &members);
        let count = |who: u8, of: &[Option<u8>]| of.iter().filter(|it| **it == Some(who)).count();
        let (each, more) = (SHARDS / members.len(), SHARDS % members.len());
        let mut kept: Vec<usize> = Vec::new();
        for member in &members {
            let has = count(*member, &planned);
            prop_assert!(has == each || has == each + 1, "{has}");
            kept.push(count(*member, &holders));
        }
        // The most that can stay: up to the quota each, the one more where it helps.
        kept.sort_unstable_by(|one, other| other.cmp(one));
        let quota = |at: usize| each + usize::from(at < more);
        let best: usize = kept.iter().enumerate().map(|(at, has)| (*has).min(quota(at))).sum();
        let stay = holders.iter().zip(&planned).filter(|(old, new)| old.is_some() && old == new);
        prop_assert_eq!(stay.count(), best);
        prop_assert_eq!(plan(&planned, &members), planned.clone(), "it is a place to rest");
    }
}
