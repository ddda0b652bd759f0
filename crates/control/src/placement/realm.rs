//! The actors of one namespace: its types, the apps that may host them, and the hosts. Without I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tokio::sync::mpsc;
use tollway_actors::placement::{
    Epoch, Grants, Held, Order, Owners, Placement, Settled, Shard, ShardSet, TypeApps,
};
use tollway_model::{ErrorCode, Instance, Label};
use tollway_wire::ACTOR_HOSTS_PER_TYPE_LIMIT;
use tonic::Status;
use tracing::info;

use super::host::Host;
use super::record::TypeRecord;

/// Actor types of one namespace: each takes about 40 KB.
pub(crate) const ACTOR_TYPES_PER_NAMESPACE_LIMIT: usize = 1_000;
/// Actor types of one app: half of what its namespace has, so that no app takes what is left for all
/// others.
pub(crate) const ACTOR_TYPES_PER_APP_LIMIT: usize = 500;
const _: () = assert!(ACTOR_TYPES_PER_APP_LIMIT <= ACTOR_TYPES_PER_NAMESPACE_LIMIT / 2);
/// Former lives of an instance that are refused while a later one is there; further ones count as new.
const FORMER_LIVES_LIMIT: usize = 16;

/// Where the orders to a host are sent, or why its stream ends.
pub(super) type Orders = mpsc::Sender<Result<Order, Status>>;

/// The actors of a namespace.
#[derive(Debug)]
pub(super) struct Realm {
    /// Hosts have numbers there: a table of 1,024 names for each actor type would be large.
    placement: Placement<u32>,
    numbers: HashMap<Host, u32>,
    hosts: HashMap<u32, HostEntry>,
    /// The latest life of each instance.
    current: HashMap<(Label, Instance), u32>,
    last: u32,
    apps: BTreeMap<String, TypeApps<Label>>,
    /// Types whose record has to be stored again.
    unsaved: BTreeSet<String>,
}

/// A host that holds something, or may.
#[derive(Debug)]
struct HostEntry {
    host: Host,
    /// Where its orders are sent; without it the host has to enter again.
    stream: Option<Orders>,
    /// Of its conversations the latest that is known.
    attempt: u64,
    /// The operator has excluded it: it may enter again when its lease has ended.
    is_ended: bool,
    /// Lives of the same instance before this one.
    former: Vec<u64>,
    /// The types that it offers and may not host.
    refused: BTreeSet<String>,
}

/// What a host states when it enters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    /// What it offers, and what it holds of that.
    pub(super) held: &'a Held,
    /// The number of its conversation.
    pub(super) attempt: u64,
    /// Other apps that share their types may host its types, too.
    pub(super) shares: bool,
}

/// The answer to a host that has entered.
#[derive(Debug)]
pub(super) struct Entered {
    /// What it has to let go of what it reports as held.
    pub(super) wrong: Vec<Order>,
    pub(super) refused: Vec<RefusedType>,
}

/// A type that a host offers and may not host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RefusedType {
    pub(super) actor_type: String,
    pub(super) code: ErrorCode,
    pub(super) text: String,
}

/// Why a host has not entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotEntered {
    /// It has entered in a later conversation, which alone counts now.
    Superseded,
    /// The instance has been started again.
    Succeeded,
    /// The operator has excluded it, and its lease runs out.
    Ended,
}

/// Why an actor type was not released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotReleased {
    Unknown,
    HasHosts,
}

/// An actor type, as the operator sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TypeStatus {
    pub(crate) actor_type: String,
    pub(crate) apps: Vec<Label>,
    pub(crate) is_named: bool,
    /// Other apps that share their types may host it, too.
    pub(crate) is_shared: bool,
    pub(crate) hosts: usize,
    /// Since when no host offers it, since 1970.
    pub(crate) vacant_since: Option<Duration>,
    /// Apps that offer it and may not host it.
    pub(crate) refused: BTreeSet<Label>,
}

/// An order, and the stream that it is for.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) number: u32,
    pub(super) stream: Orders,
    pub(super) order: Order,
}

/// What follows from a change.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) orders: Vec<Outgoing>,
    /// Types whose records have to be stored before the orders are sent.
    pub(super) unsaved: BTreeSet<String>,
    /// Types with other owners.
    pub(super) changed: Vec<String>,
}

impl Realm {
    /// With what an earlier control plane has stored, under epochs from `first` on.
    pub(super) fn new(
        lease: Duration,
        first: Epoch,
        types: BTreeMap<String, TypeRecord>,
        unix: Duration,
    ) -> Self {
        let mut realm = Self {
            placement: Placement::new(lease, first, &BTreeMap::new(), Duration::ZERO),
            numbers: HashMap::new(),
            hosts: HashMap::new(),
            current: HashMap::new(),
            last: 0,
            apps: BTreeMap::new(),
            unsaved: BTreeSet::new(),
        };
        let mut latest: BTreeMap<u32, Epoch> = BTreeMap::new();
        let mut grants: BTreeMap<String, Grants<u32>> = BTreeMap::new();
        for (actor_type, mut record) in types {
            if record.grants.is_empty() {
                record.apps.vacate(unix);
            }
            let of_type = grants.entry(actor_type.clone()).or_default();
            for ((host, epoch), shards) in record.grants {
                let number = realm.number(&host);
                let last = latest.entry(number).or_insert(epoch);
                *last = epoch.max(*last);
                of_type.insert((number, epoch), shards);
            }
            realm.apps.insert(actor_type, record.apps);
        }
        realm.placement = Placement::new(lease, first, &grants, Duration::ZERO);
        // The life that was granted something last is the latest.
        let mut numbers: Vec<(Epoch, u32)> = latest.into_iter().map(|(n, e)| (e, n)).collect();
        numbers.sort_unstable();
        numbers.into_iter().for_each(|(_, number)| realm.succeed(number));
        realm
    }

    /// The number of a host, a new one for one that is not known.
    fn number(&mut self, host: &Host) -> u32 {
        if let Some(number) = self.numbers.get(host) {
            return *number;
        }
        self.last += 1;
        self.numbers.insert(host.clone(), self.last);
        let entry = HostEntry {
            host: host.clone(),
            stream: None,
            attempt: 0,
            is_ended: false,
            former: Vec::new(),
            refused: BTreeSet::new(),
        };
        self.hosts.insert(self.last, entry);
        self.last
    }

    /// Makes a host the latest life of its instance.
    fn succeed(&mut self, number: u32) {
        let Some(entry) = self.hosts.get(&number) else { return };
        let instance = (entry.host.app.clone(), entry.host.instance.clone());
        let Some(former) = self.current.insert(instance, number) else { return };
        let mut before = Vec::new();
        // The former keeps its stream: it can give back what it holds before its lease ends.
        if let Some(entry) = self.hosts.get_mut(&former) {
            before = std::mem::take(&mut entry.former);
            before.truncate(FORMER_LIVES_LIMIT - 1);
            before.insert(0, entry.host.life);
        }
        if self.placement.succeed(&former, &number) {
            self.remove(former);
        }
        if let Some(entry) = self.hosts.get_mut(&number) {
            entry.former = before;
        }
    }

    /// A host has entered, or returned, and gets its orders through `stream` from now on.
    ///
    /// # Errors
    /// [`NotEntered`].
    pub(super) fn enter(
        &mut self,
        host: &Host,
        entering: Entry<'_>,
        stream: Orders,
        now: Duration,
    ) -> Result<Entered, NotEntered> {
        let Entry { held, attempt, shares } = entering;
        let current = self.current.get(&(host.app.clone(), host.instance.clone())).copied();
        let known = self.numbers.get(host).copied();
        let has_later = |number| {
            let is_former =
                self.hosts.get(&number).is_some_and(|entry| entry.former.contains(&host.life));
            is_former || known.is_some_and(|known| known != number)
        };
        if current.is_some_and(has_later) {
            return Err(NotEntered::Succeeded);
        }
        let number = self.number(host);
        if current != Some(number) {
            self.succeed(number);
        }
        let Some(entry) = self.hosts.get_mut(&number) else { return Err(NotEntered::Ended) };
        if entry.is_ended {
            return Err(NotEntered::Ended);
        }
        if attempt < entry.attempt {
            return Err(NotEntered::Superseded);
        }
        (entry.stream, entry.attempt) = (Some(stream), attempt);
        let (admitted, refused) = self.admit(number, &host.app, held, shares);
        let mut wrong = self.placement.enter(&number, &admitted, now);
        for refused in &refused {
            let shards = held.get(&refused.actor_type).into_iter().flat_map(BTreeMap::keys);
            let shards: ShardSet = shards.copied().collect();
            if !shards.is_empty() {
                wrong.push(Order::GiveBack { actor_type: refused.actor_type.clone(), shards });
            }
        }
        if let Some(entry) = self.hosts.get_mut(&number) {
            entry.refused = refused.iter().map(|refused| refused.actor_type.clone()).collect();
        }
        Ok(Entered { wrong, refused })
    }

    /// Divides what a host offers into what it may host and what not. A type that no app has becomes
    /// the type of this one.
    fn admit(
        &mut self,
        number: u32,
        app: &Label,
        held: &Held,
        shares: bool,
    ) -> (Held, Vec<RefusedType>) {
        let mut own = self.apps.values().filter(|apps| apps.may_host(app)).count();
        let (mut admitted, mut refused) = (Held::new(), Vec::new());
        for (actor_type, shards) in held {
            match self.may_host(number, app, actor_type, (own, shares)) {
                Ok(()) => {
                    let known = self.apps.get(actor_type);
                    if known.is_none_or(|apps| apps.vacant_since().is_some()) {
                        self.unsaved.insert(actor_type.clone());
                    }
                    own += usize::from(known.is_none());
                    let apps = self.apps.entry(actor_type.clone());
                    let apps = apps.or_insert_with(|| TypeApps::first(app.clone(), shares));
                    apps.occupy();
                    if !shares && apps.end_sharing() {
                        self.unsaved.insert(actor_type.clone());
                    }
                    admitted.insert(actor_type.clone(), shards.clone());
                }
                Err((code, text)) => {
                    refused.push(RefusedType { actor_type: actor_type.clone(), code, text });
                }
            }
        }
        (admitted, refused)
    }

    /// Whether an app that has `own` types, and may share them, may host one.
    fn may_host(
        &self,
        number: u32,
        app: &Label,
        actor_type: &str,
        (own, shares): (usize, bool),
    ) -> Result<(), (ErrorCode, String)> {
        match self.apps.get(actor_type) {
            Some(apps) if !(apps.may_host(app) || (shares && apps.is_shared())) => {
                let owners: Vec<&str> = apps.apps().map(Label::as_str).collect();
                let owners = owners.join(", ");
                let text = format!(
                    "the actor type `{actor_type}` belongs to the app {owners}, and {app} may not host it; give the type another name, or let the operator assign it with `tollway actors allow`"
                );
                return Err((ErrorCode::ActorTypeTaken, text));
            }
            Some(_) => {}
            None if self.apps.len() >= ACTOR_TYPES_PER_NAMESPACE_LIMIT => {
                let text = format!(
                    "the actor type `{actor_type}` is one too many: a namespace has at most {ACTOR_TYPES_PER_NAMESPACE_LIMIT}; release some that are not used with `tollway actors release`"
                );
                return Err((ErrorCode::ActorTypesExceeded, text));
            }
            None if own >= ACTOR_TYPES_PER_APP_LIMIT => {
                let text = format!(
                    "the actor type `{actor_type}` is one too many: an app has at most {ACTOR_TYPES_PER_APP_LIMIT}; release some that are not used with `tollway actors release`"
                );
                return Err((ErrorCode::ActorTypesExceeded, text));
            }
            None => {}
        }
        let mut hosts = 0;
        for host in self.placement.hosts(actor_type) {
            if *host == number {
                return Ok(());
            }
            hosts += 1;
        }
        if hosts >= ACTOR_HOSTS_PER_TYPE_LIMIT {
            let text = format!(
                "the actor type `{actor_type}` has {ACTOR_HOSTS_PER_TYPE_LIMIT} hosts, and no more can hold a part of it; run fewer replicas"
            );
            return Err((ErrorCode::ActorTypesExceeded, text));
        }
        Ok(())
    }

    /// A host has gone and holds nothing.
    pub(super) fn leave(&mut self, host: &Host) {
        if let Some(number) = self.numbers.get(host).copied() {
            self.placement.leave(&number);
            self.remove(number);
        }
    }

    /// A host has let go some of what it was granted.
    pub(super) fn given_back(
        &mut self,
        host: &Host,
        actor_type: &str,
        grants: &[(Epoch, ShardSet)],
    ) {
        let Some(number) = self.numbers.get(host) else { return };
        for (epoch, shards) in grants {
            self.placement.given_back(number, actor_type, shards, *epoch);
        }
    }

    /// A host is about to go.
    pub(super) fn retire(&mut self, host: &Host) {
        if let Some(number) = self.numbers.get(host) {
            self.placement.retire(number);
        }
    }

    /// A sign of life. False when the host has to enter again.
    pub(super) fn renew(&mut self, host: &Host, now: Duration) -> bool {
        self.numbers.get(host).is_some_and(|number| self.placement.renew(number, now))
    }

    /// From now on these apps, and no others, may host a type. Hosts of other apps lose what they hold
    /// when their leases have ended, of other types too.
    pub(super) fn allow(&mut self, actor_type: &str, apps: BTreeSet<Label>, unix: Duration) {
        let mut named = TypeApps::named(apps, unix);
        if self.placement.version(actor_type).is_some() {
            named.occupy();
        }
        let mut hosts: BTreeSet<u32> = self.placement.hosts(actor_type).copied().collect();
        hosts.extend(self.placement.grants(actor_type).keys().map(|(host, _)| *host));
        for number in hosts {
            let Some(entry) = self.hosts.get_mut(&number) else { continue };
            if named.may_host(&entry.host.app) {
                continue;
            }
            entry.is_ended = true;
            if let Some(stream) = entry.stream.take() {
                let text = "the operator has assigned a type of this host to other apps; enter again when the lease has ended";
                let _ = stream.try_send(Err(Status::aborted(text)));
            }
            if self.placement.run_out(&number) {
                self.remove(number);
            }
        }
        self.apps.insert(actor_type.to_owned(), named);
        self.unsaved.insert(actor_type.to_owned());
        self.recall(actor_type);
    }

    /// The next app that offers a type gets it.
    ///
    /// # Errors
    /// [`NotReleased`].
    pub(super) fn release(&mut self, actor_type: &str) -> Result<(), NotReleased> {
        if self.has_hosts(actor_type) {
            return Err(NotReleased::HasHosts);
        }
        self.apps.remove(actor_type).ok_or(NotReleased::Unknown)?;
        self.unsaved.insert(actor_type.to_owned());
        self.recall(actor_type);
        Ok(())
    }

    /// Whether a host has entered with a type, or still holds a part of it.
    pub(super) fn has_hosts(&self, actor_type: &str) -> bool {
        self.placement.version(actor_type).is_some()
    }

    /// Has hosts that may not host a type enter again: they may now.
    fn recall(&mut self, actor_type: &str) {
        for entry in self.hosts.values_mut().filter(|entry| entry.refused.contains(actor_type)) {
            if let Some(stream) = entry.stream.take() {
                let text = "the apps that may host a type have changed; enter again";
                let _ = stream.try_send(Err(Status::aborted(text)));
            }
        }
    }

    /// Types that may go to other apps unless something is stored for them, with their apps.
    pub(super) fn lapsed(&self, unix: Duration) -> Vec<(String, Vec<Label>)> {
        let has_lapsed = |(_, apps): &(&String, &TypeApps<Label>)| apps.has_lapsed(unix);
        let lapsed = self.apps.iter().filter(has_lapsed);
        lapsed.map(|(name, apps)| (name.clone(), apps.apps().cloned().collect())).collect()
    }

    pub(super) fn has_lapsed(&self, actor_type: &str, unix: Duration) -> bool {
        self.apps.get(actor_type).is_some_and(|apps| apps.has_lapsed(unix))
    }

    /// The types, in order.
    pub(super) fn types(&self) -> Vec<TypeStatus> {
        let mut refused: BTreeMap<&str, BTreeSet<Label>> = BTreeMap::new();
        for entry in self.hosts.values() {
            for actor_type in &entry.refused {
                refused.entry(actor_type).or_default().insert(entry.host.app.clone());
            }
        }
        let status = |(name, apps): (&String, &TypeApps<Label>)| TypeStatus {
            actor_type: name.clone(),
            apps: apps.apps().cloned().collect(),
            is_named: apps.is_named(),
            is_shared: apps.is_shared(),
            hosts: self.placement.hosts(name).count(),
            vacant_since: apps.vacant_since(),
            refused: refused.remove(name.as_str()).unwrap_or_default(),
        };
        self.apps.iter().map(status).collect()
    }

    /// What is to be stored of a type; `None` if nothing.
    pub(super) fn record(&self, actor_type: &str) -> Option<TypeRecord> {
        let apps = self.apps.get(actor_type)?.clone();
        let named = |((number, epoch), shards): ((u32, Epoch), ShardSet)| {
            Some(((self.hosts.get(&number)?.host.clone(), epoch), shards))
        };
        let grants = self.placement.grants(actor_type).into_iter().filter_map(named).collect();
        Some(TypeRecord { apps, grants })
    }

    /// The number given last, to a grant or a version.
    pub(super) fn last_epoch(&self) -> Epoch {
        self.placement.last_epoch()
    }

    /// The version of a type's owners; 0 where no host offers it.
    pub(super) fn version(&self, actor_type: &str) -> u64 {
        self.placement.version(actor_type).unwrap_or(0)
    }

    pub(super) fn owners(&self, actor_type: &str) -> Option<Owners<Host>> {
        let Owners { version, shards } = self.placement.owners(actor_type)?;
        let host = |number: Option<u32>| Some(self.hosts.get(&number?)?.host.clone());
        Some(Owners { version, shards: shards.into_iter().map(host).collect() })
    }

    /// Whether a host has entered and holds a shard under an epoch; `None` for a host that has to enter
    /// first.
    pub(super) fn holdings(&self, host: &Host) -> Option<impl Fn(&str, Shard, Epoch) -> bool> {
        let number = *self.numbers.get(host)?;
        self.hosts.get(&number).filter(|entry| entry.stream.is_some())?;
        Some(move |actor_type: &str, shard, epoch| {
            self.placement.holds(&number, actor_type, shard, epoch)
        })
    }

    /// Whether orders on this stream still reach the host: neither has its lease ended nor has it entered
    /// again since.
    pub(super) fn listens(&self, number: u32, stream: &Orders) -> bool {
        let entry = self.hosts.get(&number).and_then(|entry| entry.stream.as_ref());
        entry.is_some_and(|current| current.same_channel(stream))
    }

    /// The host has to enter again.
    pub(super) fn disconnect(&mut self, number: u32) {
        if let Some(entry) = self.hosts.get_mut(&number) {
            entry.stream = None;
        }
    }

    pub(super) fn next_moment(&self) -> Option<Duration> {
        self.placement.next_moment()
    }

    fn remove(&mut self, number: u32) {
        let Some(HostEntry { host, .. }) = self.hosts.remove(&number) else { return };
        self.numbers.remove(&host);
        info!(app = %host.app, instance = %host.instance, "a host of actors is gone");
        let instance = (host.app, host.instance);
        if self.current.get(&instance) == Some(&number) {
            self.current.remove(&instance);
        }
    }

    /// Whether nothing is left of the namespace: no host, no type, nothing to store or to wait for.
    pub(super) fn is_unused(&self) -> bool {
        self.hosts.is_empty() && self.apps.is_empty() && self.next_moment().is_none()
    }

    /// Ends leases.
    pub(super) fn settle(&mut self, now: Duration, unix: Duration) -> Following {
        let Settled { orders, ended, unsaved, vacated, changed } = self.placement.settle(now);
        ended.into_iter().for_each(|number| self.remove(number));
        for actor_type in vacated {
            if let Some(apps) = self.apps.get_mut(&actor_type) {
                apps.vacate(unix);
            }
            self.unsaved.insert(actor_type);
        }
        self.unsaved.extend(unsaved);
        let mut outgoing = Vec::new();
        for (number, orders) in orders {
            let stream = self.hosts.get(&number).and_then(|entry| entry.stream.clone());
            let Some(stream) = stream else { continue };
            let order = |order| Outgoing { number, stream: stream.clone(), order };
            outgoing.extend(orders.into_iter().map(order));
        }
        Following { orders: outgoing, unsaved: std::mem::take(&mut self.unsaved), changed }
    }
}

#[cfg(test)]
mod tests;
