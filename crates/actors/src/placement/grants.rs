//! Every actor type of a namespace, and the hosts that offer them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::placement::leases::Leases;
use crate::placement::shard::{Shard, ShardSet};
use crate::placement::table::{Change, Epoch, Grants, Owners, Table};

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
    /// Hosts that did not renew in time, or that were ended and have given everything back; they hold
    /// nothing any more.
    pub ended: Vec<H>,
    /// Types whose [`Placement::grants`] have changed. They have to be stored before the orders are
    /// sent.
    pub unsaved: Vec<String>,
    /// Types that no host offers or holds any more.
    pub vacated: Vec<String>,
    /// Types whose [`Placement::owners`] have changed.
    pub changed: Vec<String>,
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
    /// Hosts of a former control plane that have not entered yet: they keep what they hold and are
    /// granted nothing.
    absent: BTreeSet<H>,
    /// Hosts whose leases run out: they cannot renew them any more.
    retired: BTreeSet<H>,
    /// Later lives of hosts, with the former ones: while one of these holds something, the later life is
    /// granted nothing.
    heirs: BTreeMap<H, BTreeSet<H>>,
}

impl<H: Ord + Clone> Placement<H> {
    /// Continues with what a former control plane granted: `grants` by actor type, and an epoch that
    /// no grant has reached. Its hosts have a lease from now.
    #[must_use]
    pub fn new(
        lease: Duration,
        epoch: Epoch,
        grants: &BTreeMap<String, Grants<H>>,
        now: Duration,
    ) -> Self {
        let mut leases = Leases::new(lease);
        let holders = grants.values().flat_map(Grants::keys).map(|(host, _)| host.clone());
        let absent: BTreeSet<H> = holders.collect();
        absent.iter().for_each(|host| leases.renew(host.clone(), now));
        let mut tables: BTreeMap<String, Table<H>> =
            grants.iter().map(|(name, grants)| (name.clone(), Table::restored(grants))).collect();
        tables.retain(|_, table| !table.is_vacant());
        let (retired, heirs) = (BTreeSet::new(), BTreeMap::new());
        Self { leases, tables, last: epoch, absent, retired, heirs }
    }

    /// A host has come, or come back: it offers the types of `held` and holds exactly that. What
    /// it held beyond, it has let go. Returns what of it the host has to let go as well, because
    /// it was not granted that, or another host has been granted it since.
    #[must_use]
    pub fn enter(&mut self, host: &H, held: &Held, now: Duration) -> Vec<Order> {
        self.leases.renew(host.clone(), now);
        self.absent.remove(host);
        for (actor_type, table) in &mut self.tables {
            if !held.contains_key(actor_type) {
                table.leave(host);
            }
        }
        let mut orders = Vec::new();
        for (actor_type, shards) in held {
            let table = self.tables.entry(actor_type.clone()).or_insert_with(Table::new);
            table.enter(host, shards);
            let is_wrong = |(shard, epoch): &(&Shard, &Epoch)| !table.holds(host, **shard, **epoch);
            let wrong: ShardSet = shards.iter().filter(is_wrong).map(|(shard, _)| *shard).collect();
            if !wrong.is_empty() {
                orders.push(Order::GiveBack { actor_type: actor_type.clone(), shards: wrong });
            }
        }
        orders
    }

    /// A later life of a host is about to enter. The lease of the former one runs out, and until then
    /// the later one is granted nothing: at most one life of a host holds something. Returns whether
    /// the former holds nothing: then it has left.
    pub fn succeed(&mut self, former: &H, later: &H) -> bool {
        let mut before = self.heirs.remove(former).unwrap_or_default();
        let has_left = self.run_out(former);
        if !has_left {
            before.insert(former.clone());
        }
        if !before.is_empty() {
            self.heirs.insert(later.clone(), before);
        }
        has_left
    }

    /// Ends a host: it wants no shards and cannot renew its lease, and what it holds is free when it
    /// is given back or the lease ends. Returns whether it holds nothing: then it has left.
    pub fn run_out(&mut self, host: &H) -> bool {
        if !self.holds_something(host) {
            self.leave(host);
            return true;
        }
        self.retire(host);
        self.retired.insert(host.clone());
        false
    }

    fn holds_something(&self, host: &H) -> bool {
        self.tables.values().any(|table| table.holds_something(host))
    }

    /// A sign of life. False when the host's lease has ended, or runs out: it has to enter again.
    #[must_use]
    pub fn renew(&mut self, host: &H, now: Duration) -> bool {
        let has_entered = !self.absent.contains(host) && !self.retired.contains(host);
        let stands = self.leases.stands(host) && has_entered;
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
        self.absent.remove(host);
        self.retired.remove(host);
        self.heirs.remove(host);
        self.heirs.retain(|_, former| {
            former.remove(host);
            !former.is_empty()
        });
        self.tables.values_mut().for_each(|table| table.leave(host));
    }

    /// Takes the shards of hosts whose lease has ended, and returns what is to be done now.
    /// Says the same thing only once.
    pub fn settle(&mut self, now: Duration) -> Settled<H> {
        let mut ended = self.leases.take_ended(now);
        let holds_nothing = |host: &&H| !self.holds_something(host);
        ended.extend(self.retired.iter().filter(holds_nothing).cloned());
        for host in &ended {
            self.leave(host);
        }
        let waits = |host: &H| self.absent.contains(host) || self.heirs.contains_key(host);
        let mut unsaved = Vec::new();
        let mut orders: BTreeMap<H, Vec<Order>> = BTreeMap::new();
        let mut changed = Vec::new();
        for (actor_type, table) in &mut self.tables {
            let last = &mut self.last;
            let mut next = || {
                last.0 += 1;
                *last
            };
            let (changes, epoch) = table.settle(waits, &mut next);
            if table.note_changes(|| next().0) || table.is_vacant() {
                changed.push(actor_type.clone());
            }
            if table.take_unsaved() {
                unsaved.push(actor_type.clone());
            }
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
        let is_vacant = |(_, table): &(&String, &Table<H>)| table.is_vacant();
        let vacated: Vec<String> =
            self.tables.iter().filter(is_vacant).map(|(name, _)| name.clone()).collect();
        vacated.iter().for_each(|name| drop(self.tables.remove(name)));
        Settled { orders, ended, unsaved, vacated, changed }
    }

    /// When [`Self::settle`] has to be called although nothing has happened.
    #[must_use]
    pub fn next_moment(&self) -> Option<Duration> {
        self.leases.next_end()
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

    /// The grants of a type that stand, for [`Self::new`].
    #[must_use]
    pub fn grants(&self, actor_type: &str) -> Grants<H> {
        self.tables.get(actor_type).map(Table::grants).unwrap_or_default()
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
