//! Every actor type of a namespace, and the hosts that offer them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::placement::leases::Leases;
use crate::placement::shard::{Shard, ShardSet};
use crate::placement::table::{Change, Epoch, Owners, Table};

/// The shards that a host reports as held, by actor type. A type without shards is offered only.
pub type Held = BTreeMap<String, BTreeMap<Shard, Epoch>>;

/// An order to a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// It may run turns of the actors in these shards, and writes under this epoch.
    Grant { actor_type: String, epoch: Epoch, shards: ShardSet },
    /// It starts no new turn there, and reports when those under way have ended
    /// ([`Placement::given_back`]).
    GiveBack { actor_type: String, shards: ShardSet },
}

/// What [`Placement::settle`] came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settled<H> {
    /// The orders for each host, in sequence.
    pub orders: BTreeMap<H, Vec<Order>>,
    /// Hosts that did not renew in time; they hold nothing any more.
    pub ended: Vec<H>,
}

/// Which host holds which shard of which actor type.
///
/// Methods record events; [`Self::settle`] then returns the orders to hosts. `H` names one life of
/// a host: after a restart the host is another.
#[derive(Clone, Debug)]
pub struct Placement<H> {
    leases: Leases<H>,
    tables: BTreeMap<String, Table<H>>,
    /// The number given last, to grants and to versions of tables.
    last: Epoch,
    /// Hosts that held something when this was last known and have not come back yet; nothing is
    /// granted before they have, or `missing_until`.
    missing: BTreeSet<H>,
    missing_until: Duration,
}

impl<H: Ord + Clone> Placement<H> {
    /// Starts from what is known of an earlier life: the hosts that were there, and an epoch that
    /// no grant has reached. Until these hosts have entered again, left, or had their time, they
    /// may hold anything.
    #[must_use]
    pub fn new(
        lease: Duration,
        epoch: Epoch,
        hosts: impl IntoIterator<Item = H>,
        now: Duration,
    ) -> Self {
        Self {
            leases: Leases::new(lease),
            tables: BTreeMap::new(),
            last: epoch,
            missing: hosts.into_iter().collect(),
            missing_until: now + lease,
        }
    }

    /// A host has come, or come back: it offers the types of `held` and holds exactly that. What
    /// it held beyond, it has let go. Returns what of it the host has to let go as well, because
    /// it does not hold it by what is known here.
    #[must_use]
    pub fn enter(&mut self, host: &H, held: &Held, now: Duration) -> Vec<Order> {
        self.leases.renew(host.clone(), now);
        self.missing.remove(host);
        for (actor_type, table) in &mut self.tables {
            if !held.contains_key(actor_type) {
                table.leave(host);
            }
        }
        let mut orders = Vec::new();
        for (actor_type, shards) in held {
            let table = self.tables.entry(actor_type.clone()).or_insert_with(Table::new);
            // No host can hold a grant of an epoch that has not been yet.
            let mut credible = shards.clone();
            credible.retain(|_, epoch| *epoch <= self.last);
            table.enter(host, &credible);
            let is_wrong = |(shard, epoch): &(&Shard, &Epoch)| !table.holds(host, **shard, **epoch);
            let wrong: ShardSet = shards.iter().filter(is_wrong).map(|(shard, _)| *shard).collect();
            if !wrong.is_empty() {
                orders.push(Order::GiveBack { actor_type: actor_type.clone(), shards: wrong });
            }
        }
        orders
    }

    /// A sign of life. False when the host's lease has ended: it has to enter again.
    #[must_use]
    pub fn renew(&mut self, host: &H, now: Duration) -> bool {
        let stands = self.leases.stands(host);
        if stands {
            self.leases.renew(host.clone(), now);
        }
        stands
    }

    /// A host is about to leave: all its shards are asked back.
    pub fn retire(&mut self, host: &H) {
        self.tables.values_mut().for_each(|table| table.retire(host));
    }

    /// A host has let go what it was granted at this epoch.
    pub fn given_back(&mut self, host: &H, actor_type: &str, shards: &ShardSet, epoch: Epoch) {
        if let Some(table) = self.tables.get_mut(actor_type) {
            shards.iter().for_each(|shard| table.given_back(host, shard, epoch));
        }
    }

    /// A host has gone and holds nothing.
    pub fn leave(&mut self, host: &H) {
        self.leases.end(host);
        self.missing.remove(host);
        self.tables.values_mut().for_each(|table| table.leave(host));
    }

    /// Takes the shards of hosts whose lease has ended, and returns what is to be done now.
    /// Says the same thing only once.
    pub fn settle(&mut self, now: Duration) -> Settled<H> {
        let mut ended = self.leases.take_ended(now);
        for host in &ended {
            self.leave(host);
        }
        if now >= self.missing_until {
            ended.extend(std::mem::take(&mut self.missing));
        }
        let may_grant = self.missing.is_empty();
        let mut orders: BTreeMap<H, Vec<Order>> = BTreeMap::new();
        for (actor_type, table) in &mut self.tables {
            let last = &mut self.last;
            let mut next = || {
                last.0 += 1;
                *last
            };
            let (changes, epoch) = table.settle(may_grant, &mut next);
            table.note_changes(|| next().0);
            for (host, Change { grant, give_back }) in changes {
                let orders = orders.entry(host).or_default();
                let actor_type = actor_type.clone();
                if !give_back.is_empty() {
                    let actor_type = actor_type.clone();
                    orders.push(Order::GiveBack { actor_type, shards: give_back });
                }
                if !grant.is_empty() {
                    orders.push(Order::Grant { actor_type, epoch, shards: grant });
                }
            }
        }
        self.tables.retain(|_, table| !table.is_vacant());
        Settled { orders, ended }
    }

    /// When [`Self::settle`] has to be called although nothing has happened.
    #[must_use]
    pub fn next_moment(&self) -> Option<Duration> {
        let missing = (!self.missing.is_empty()).then_some(self.missing_until);
        self.leases.next_end().into_iter().chain(missing).min()
    }

    /// The version of a type's [`Self::owners`]; `None` where no host offers it.
    #[must_use]
    pub fn version(&self, actor_type: &str) -> Option<u64> {
        self.tables.get(actor_type).map(Table::version)
    }

    /// How many types are offered or held by a host.
    #[must_use]
    pub fn types(&self) -> usize {
        self.tables.len()
    }

    /// The number given last, to a grant or a version.
    #[must_use]
    pub fn last_epoch(&self) -> Epoch {
        self.last
    }

    /// The holders of the shards of a type; `None` if no host offers it.
    #[must_use]
    pub fn owners(&self, actor_type: &str) -> Option<Owners<H>> {
        self.tables.get(actor_type).map(Table::owners)
    }

    /// Hosts that offer a type.
    pub fn hosts(&self, actor_type: &str) -> impl Iterator<Item = &H> {
        self.tables.get(actor_type).into_iter().flat_map(Table::members)
    }

    /// Whether a host may write for an actor of this shard under this epoch.
    #[must_use]
    pub fn holds(&self, host: &H, actor_type: &str, shard: Shard, epoch: Epoch) -> bool {
        self.tables.get(actor_type).is_some_and(|table| table.holds(host, shard, epoch))
    }
}
