//! The placements of all namespaces: which host holds which shard. Hosts are stored before anything
//! is granted to them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tollway_actors::placement::{Epoch, Held, Order, Owners, Placement, Settled, Shard, ShardSet};
use tollway_model::Label;
use tollway_store::{Expected, ReadError, Store, TransactError, Transaction};
use tracing::{info, warn};

use super::host::{self, Host, LAST_EPOCH_KEY};
use crate::clock::unix_now_s;

/// Orders waiting for a host that does not read; over it, its stream ends and it enters again.
pub(super) const ORDERS_LIMIT: usize = 1_024;

/// Actor types of one namespace: each takes about 40 KB.
pub(crate) const ACTOR_TYPES_PER_NAMESPACE_LIMIT: usize = 1_000;

/// The placements of all namespaces.
#[derive(Debug)]
pub(crate) struct Placements {
    store: Store,
    realms: Mutex<HashMap<Label, Realm>>,
    /// No grant of an earlier control plane has this one or a higher one.
    first: Epoch,
    pub(super) lease: Duration,
    began: Instant,
    /// Rises with every change of who holds what.
    pub(super) changes: watch::Sender<u64>,
    /// Something may have to be done earlier than was known.
    sooner: Notify,
}

/// A namespace.
#[derive(Debug)]
struct Realm {
    /// Hosts have numbers there: a table of 1,024 names for each actor type would be large.
    placement: Placement<u32>,
    numbers: HashMap<Host, u32>,
    hosts: HashMap<u32, HostEntry>,
    last: u32,
}

/// A host that holds something, or may.
#[derive(Debug)]
struct HostEntry {
    host: Host,
    /// The revision of its key in the store.
    noted: u64,
    /// Where its orders are sent; without it the host has to enter again.
    stream: Option<mpsc::Sender<Order>>,
    /// Of its conversations the latest that is known.
    attempt: u64,
}

/// There are too many actor types.
pub(super) struct TooManyTypes;

/// Why a host has not entered.
#[derive(Debug)]
pub(super) enum NotEntered {
    /// The store took no write: a host that is not noted there is not granted anything.
    Store(TransactError),
    /// It has entered in a later conversation, which alone counts now.
    Superseded,
}

impl Placements {
    /// Takes up where an earlier control plane over the same store has ended.
    pub(crate) async fn load(store: &Store, lease: Duration) -> Result<Self, ReadError> {
        let left = host::read(store, unix_now_s()).await?;
        let realm = |(namespace, noted): (Label, HashMap<Host, u64>)| {
            (namespace, Realm::new(lease, left.epoch, noted))
        };
        Ok(Self {
            store: store.clone(),
            realms: Mutex::new(left.hosts.into_iter().map(realm).collect()),
            first: left.epoch,
            lease,
            began: Instant::now(),
            changes: watch::Sender::new(0),
            sooner: Notify::new(),
        })
    }

    fn realms(&self) -> MutexGuard<'_, HashMap<Label, Realm>> {
        self.realms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is known of a namespace, and sends its hosts the orders that follow.
    fn change<T>(&self, namespace: &Label, change: impl FnOnce(&mut Realm, Duration) -> T) -> T {
        let now = self.began.elapsed();
        let (result, gone) = {
            let mut realms = self.realms();
            let realm = realms
                .entry(namespace.clone())
                .or_insert_with(|| Realm::new(self.lease, self.first, HashMap::new()));
            let result = change(realm, now);
            (result, realm.settle(now))
        };
        self.changes.send_modify(|changes| *changes += 1);
        self.sooner.notify_one();
        self.forget(namespace, gone);
        result
    }

    /// A host has entered, or returned, with the conversation of this number, and gets its orders
    /// through `stream` from now on. Returns the shards it has to release of those it reports as
    /// held.
    ///
    /// # Errors
    /// [`NotEntered`].
    pub(super) async fn enter(
        &self,
        namespace: &Label,
        host: &Host,
        (held, attempt): (&Held, u64),
        stream: mpsc::Sender<Order>,
    ) -> Result<Vec<Order>, NotEntered> {
        let last = self.realms().get(namespace).map_or(self.first, |r| r.placement.last_epoch());
        let note =
            Transaction::new().put(host.key(namespace), "").put(LAST_EPOCH_KEY, last.0.to_string());
        let revision = self.store.transact(note).await.map_err(NotEntered::Store)?;
        let entered = self.change(namespace, |realm, now| {
            let number = realm.number(host, revision);
            if let Some(known) = realm.hosts.get_mut(&number) {
                known.noted = known.noted.max(revision);
                if attempt < known.attempt {
                    return Err(NotEntered::Superseded);
                }
                (known.stream, known.attempt) = (Some(stream), attempt);
            }
            Ok(realm.placement.enter(&number, held, now))
        });
        if entered.is_ok() {
            info!(%namespace, app = %host.app, instance = %host.instance, types = held.len(), "a host of actors entered");
        }
        entered
    }

    /// A host has gone and holds nothing.
    pub(super) fn leave(&self, namespace: &Label, host: &Host) {
        let gone = self.change(namespace, |realm, _| {
            let number = *realm.numbers.get(host)?;
            realm.placement.leave(&number);
            realm.remove(number)
        });
        self.forget(namespace, gone.into_iter().collect());
    }

    /// A host has let go some of what it was granted.
    pub(super) fn given_back(
        &self,
        namespace: &Label,
        host: &Host,
        actor_type: &str,
        grants: &[(Epoch, ShardSet)],
    ) {
        self.change(namespace, |realm, _| {
            let Some(number) = realm.numbers.get(host) else { return };
            for (epoch, shards) in grants {
                realm.placement.given_back(number, actor_type, shards, *epoch);
            }
        });
    }

    /// A host is about to go.
    pub(super) fn retire(&self, namespace: &Label, host: &Host) {
        self.change(namespace, |realm, _| {
            if let Some(number) = realm.numbers.get(host) {
                realm.placement.retire(number);
            }
        });
    }

    /// Removes hosts from the store, unless they have been noted again since. No request waits for it:
    /// what is not removed costs the next start a lease's time.
    fn forget(&self, namespace: &Label, gone: Vec<(Host, u64)>) {
        for (host, revision) in gone {
            info!(%namespace, app = %host.app, instance = %host.instance, "a host of actors is gone");
            let key = host.key(namespace);
            let guard = Expected::Revision(revision);
            let forget = Transaction::new().when(key.clone(), guard).delete(key);
            let store = self.store.clone();
            tokio::spawn(async move {
                match store.transact(forget).await {
                    Ok(_) | Err(TransactError::Conflict { .. } | TransactError::Closed) => {}
                    Err(error) => {
                        let error = tollway_model::chain(&error);
                        warn!(%error, "a host of actors that is gone stays noted");
                    }
                }
            });
        }
    }

    /// Ends leases in time; never returns.
    pub(crate) async fn keep(&self) {
        loop {
            let now = self.began.elapsed();
            let moments: Vec<(Label, Duration)> = {
                let realms = self.realms();
                let moment = |(namespace, realm): (&Label, &Realm)| {
                    Some((namespace.clone(), realm.placement.next_moment()?))
                };
                realms.iter().filter_map(moment).collect()
            };
            let due: Vec<_> = moments.iter().filter(|(_, moment)| *moment <= now).collect();
            for (namespace, _) in &due {
                self.change(namespace, |_, _| ());
            }
            if !due.is_empty() {
                continue;
            }
            let next = moments.iter().map(|(_, moment)| self.began + *moment).min();
            let pause = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = pause => {}
                () = self.sooner.notified() => {}
            }
        }
    }

    /// A sign of life. False when the host's lease has ended.
    pub(super) fn renew(&self, namespace: &Label, host: &Host) -> bool {
        let now = self.began.elapsed();
        let mut realms = self.realms();
        let Some(realm) = realms.get_mut(namespace) else { return false };
        realm.numbers.get(host).is_some_and(|number| realm.placement.renew(number, now))
    }

    /// The version of a type's owners; 0 where no host offers it.
    pub(super) fn version(&self, namespace: &Label, actor_type: &str) -> u64 {
        let realms = self.realms();
        let version = |realm: &Realm| realm.placement.version(actor_type);
        realms.get(namespace).and_then(version).unwrap_or(0)
    }

    /// The holders of the shards of a type.
    pub(super) fn owners(&self, namespace: &Label, actor_type: &str) -> Option<Owners<Host>> {
        let realms = self.realms();
        let realm = realms.get(namespace)?;
        let Owners { version, shards } = realm.placement.owners(actor_type)?;
        let host = |number: Option<u32>| Some(realm.hosts.get(&number?)?.host.clone());
        Some(Owners { version, shards: shards.into_iter().map(host).collect() })
    }

    /// Answers with what a host holds: whether it may write for an actor of a shard under an
    /// epoch. `None` for a host that has to enter first. Nothing is granted to any host before the
    /// answer is there.
    pub(crate) fn holding<T>(
        &self,
        namespace: &Label,
        host: &Host,
        answer: impl FnOnce(&dyn Fn(&str, Shard, Epoch) -> bool) -> T,
    ) -> Option<T> {
        let realms = self.realms();
        let realm = realms.get(namespace)?;
        let number = realm.numbers.get(host)?;
        realm.hosts.get(number).filter(|known| known.stream.is_some())?;
        Some(answer(&|actor_type, shard, epoch| {
            realm.placement.holds(number, actor_type, shard, epoch)
        }))
    }

    /// Refuses a host whose types would be too many for its namespace.
    pub(super) fn check_types(&self, namespace: &Label, held: &Held) -> Result<(), TooManyTypes> {
        let realms = self.realms();
        let Some(realm) = realms.get(namespace) else { return Ok(()) };
        let is_new = |name: &&String| realm.placement.version(name).is_none();
        let new = held.keys().filter(is_new).count();
        if realm.placement.types() + new > ACTOR_TYPES_PER_NAMESPACE_LIMIT {
            return Err(TooManyTypes);
        }
        Ok(())
    }
}

impl Realm {
    fn new(lease: Duration, first: Epoch, noted: HashMap<Host, u64>) -> Self {
        let mut realm = Self {
            placement: Placement::new(lease, first, [], Duration::ZERO),
            numbers: HashMap::new(),
            hosts: HashMap::new(),
            last: 0,
        };
        let numbers: Vec<u32> =
            noted.into_iter().map(|(host, revision)| realm.number(&host, revision)).collect();
        realm.placement = Placement::new(lease, first, numbers, Duration::ZERO);
        realm
    }

    /// The number of a host, a new one for one that is not known.
    fn number(&mut self, host: &Host, noted: u64) -> u32 {
        if let Some(number) = self.numbers.get(host) {
            return *number;
        }
        self.last += 1;
        self.numbers.insert(host.clone(), self.last);
        self.hosts
            .insert(self.last, HostEntry { host: host.clone(), noted, stream: None, attempt: 0 });
        self.last
    }

    /// Forgets a host; returns what has to go from the store.
    fn remove(&mut self, number: u32) -> Option<(Host, u64)> {
        let HostEntry { host, noted, .. } = self.hosts.remove(&number)?;
        self.numbers.remove(&host);
        Some((host, noted))
    }

    /// Sends hosts their orders; returns those that are gone.
    fn settle(&mut self, now: Duration) -> Vec<(Host, u64)> {
        let Settled { orders, ended } = self.placement.settle(now);
        for (number, orders) in orders {
            let Some(known) = self.hosts.get_mut(&number) else { continue };
            let Some(stream) = &known.stream else { continue };
            // A host that misses one order has to enter again, and then gets all.
            if orders.into_iter().any(|order| stream.try_send(order).is_err()) {
                known.stream = None;
            }
        }
        ended.into_iter().filter_map(|number| self.remove(number)).collect()
    }
}
