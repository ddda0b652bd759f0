//! The placements of all namespaces: which host holds which shard, stored before the host learns of
//! it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tollway_actors::placement::{Epoch, Order, Owners, Shard, ShardSet};
use tollway_model::Label;
use tollway_store::{ReadError, Store, TransactError, Transaction};
use tonic::Status;
use tracing::{info, warn};

use super::followers::Followers;
use super::host::{Host, first_epoch};
use super::realm::{
    Entered, Entry, Following, NotEntered, NotReleased, Orders, Outgoing, Realm, TypeStatus,
};
use super::record::{self, LAST_EPOCH_KEY};
use crate::clock::unix_now_s;
use crate::status::{stopping, store_status};

/// Orders waiting for a host that does not read; over it, its stream ends and it enters again.
pub(super) const ORDERS_LIMIT: usize = 1_024;
/// Orders of all hosts that wait for the store; a host with further ones has to enter again.
const UNSENT_ORDERS_LIMIT: usize = 65_536;
/// Bytes of one transaction; more types are stored in several.
const TRANSACTION_BYTES: usize = 2 << 20;
/// Pause after the store has refused a write.
const WRITE_AGAIN: Duration = Duration::from_millis(500);

/// The placements of all namespaces.
#[derive(Debug)]
pub(crate) struct Placements {
    store: Store,
    state: Mutex<State>,
    pub(super) lease: Duration,
    /// Whether apps may host each other's types, where both share them.
    may_share: bool,
    began: Instant,
    /// The streams that follow who holds what.
    pub(super) followers: Arc<Followers>,
    /// Something may have to be done earlier than was known.
    sooner: Notify,
    /// There is something in the outbox.
    posted: Notify,
}

#[derive(Debug)]
struct State {
    /// The namespaces that have hosts or types.
    realms: HashMap<Label, Realm>,
    /// No grant of an earlier control plane, or of a namespace that has gone, has a higher one.
    first: Epoch,
    outbox: Outbox,
}

/// What is to be stored, and what is to be sent once it is.
#[derive(Debug, Default)]
struct Outbox {
    unsaved: BTreeSet<(Label, String)>,
    orders: Vec<(Label, Outgoing)>,
    /// Commands of the operator that wait for it.
    waiting: Vec<oneshot::Sender<Result<(), Status>>>,
}

impl Outbox {
    fn is_empty(&self) -> bool {
        self.unsaved.is_empty() && self.orders.is_empty() && self.waiting.is_empty()
    }
}

impl State {
    /// Puts what follows from a change in the outbox, and forgets the namespace if nothing is left of it.
    /// Returns the types with other owners.
    fn settle(&mut self, namespace: &Label, now: Duration) -> Vec<String> {
        let Some(realm) = self.realms.get_mut(namespace) else { return Vec::new() };
        let Following { orders, unsaved, changed } = realm.settle(now, unix_now());
        let unsaved = unsaved.into_iter().map(|name| (namespace.clone(), name));
        self.outbox.unsaved.extend(unsaved);
        for outgoing in orders {
            if self.outbox.orders.len() < UNSENT_ORDERS_LIMIT {
                self.outbox.orders.push((namespace.clone(), outgoing));
            } else {
                realm.disconnect(outgoing.number);
            }
        }
        if realm.is_unused() {
            // Should it come back, its grants have higher numbers than before.
            self.first = self.first.max(realm.last_epoch());
            self.realms.remove(namespace);
        }
        changed
    }
}

fn unix_now() -> Duration {
    Duration::from_secs(unix_now_s())
}

impl Placements {
    /// Takes up where an earlier control plane over the same store has ended.
    pub(crate) async fn load(
        store: &Store,
        lease: Duration,
        may_share: bool,
    ) -> Result<Self, ReadError> {
        let left = record::read(store).await?;
        let first = first_epoch(left.last, unix_now_s());
        let realms = left.types.into_iter();
        let realms = realms
            .map(|(namespace, types)| (namespace, Realm::new(lease, first, types, unix_now())));
        Ok(Self {
            store: store.clone(),
            state: Mutex::new(State { realms: realms.collect(), first, outbox: Outbox::default() }),
            lease,
            may_share,
            began: Instant::now(),
            followers: Arc::default(),
            sooner: Notify::new(),
            posted: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is known of a namespace; the orders that follow are sent when they are stored. `None`
    /// for a namespace that is not known, unless `begins` is set.
    fn change<T>(
        &self,
        namespace: &Label,
        begins: bool,
        change: impl FnOnce(&mut Realm, Duration) -> T,
    ) -> Option<T> {
        let now = self.began.elapsed();
        let (result, is_sooner, changed, is_posted) = {
            let mut state = self.state();
            if begins && !state.realms.contains_key(namespace) {
                let realm = Realm::new(self.lease, state.first, BTreeMap::new(), now);
                state.realms.insert(namespace.clone(), realm);
            }
            let realm = state.realms.get_mut(namespace)?;
            let before = realm.next_moment();
            let result = change(realm, now);
            let changed = state.settle(namespace, now);
            let after = state.realms.get(namespace).and_then(Realm::next_moment);
            let is_sooner = after.is_some_and(|after| before.is_none_or(|before| after < before));
            (result, is_sooner, changed, !state.outbox.is_empty())
        };
        self.followers.mark(namespace, &changed);
        if is_sooner {
            self.sooner.notify_one();
        }
        if is_posted {
            self.posted.notify_one();
        }
        Some(result)
    }

    /// A host has entered, or returned, and gets its orders through `stream` from now on.
    ///
    /// # Errors
    /// [`NotEntered`].
    pub(super) fn enter(
        &self,
        namespace: &Label,
        host: &Host,
        mut entering: Entry<'_>,
        stream: Orders,
    ) -> Result<Entered, NotEntered> {
        entering.shares &= self.may_share;
        let enter = |realm: &mut Realm, now| realm.enter(host, entering, stream, now);
        // The namespace has begun.
        let entered = self.change(namespace, true, enter).unwrap_or(Err(NotEntered::Ended))?;
        info!(%namespace, app = %host.app, instance = %host.instance, types = entering.held.len(), refused = entered.refused.len(), "a host of actors entered");
        Ok(entered)
    }

    /// A host has gone and holds nothing.
    pub(super) fn leave(&self, namespace: &Label, host: &Host) {
        self.change(namespace, false, |realm, _| realm.leave(host));
    }

    /// A host has let go some of what it was granted.
    pub(super) fn given_back(
        &self,
        namespace: &Label,
        host: &Host,
        actor_type: &str,
        grants: &[(Epoch, ShardSet)],
    ) {
        if grants.iter().all(|(_, shards)| shards.is_empty()) {
            return;
        }
        self.change(namespace, false, |realm, _| realm.given_back(host, actor_type, grants));
    }

    /// A host is about to go.
    pub(super) fn retire(&self, namespace: &Label, host: &Host) {
        self.change(namespace, false, |realm, _| realm.retire(host));
    }

    /// From now on these apps, and no others, may host a type.
    ///
    /// # Errors
    /// The store refuses the write.
    pub(crate) async fn allow(
        &self,
        namespace: &Label,
        actor_type: &str,
        apps: BTreeSet<Label>,
    ) -> Result<(), Status> {
        self.change(namespace, true, |realm, _| realm.allow(actor_type, apps, unix_now()));
        self.saved().await
    }

    /// The next app that offers a type gets it.
    ///
    /// # Errors
    /// [`NotReleased`], as a status, or the store refuses the write.
    pub(crate) async fn release(&self, namespace: &Label, actor_type: &str) -> Result<(), Status> {
        let released = self.change(namespace, false, |realm, _| realm.release(actor_type));
        released.unwrap_or(Err(NotReleased::Unknown)).map_err(|why| match why {
            NotReleased::Unknown => Status::not_found(format!(
                "no app has the actor type {namespace}/{actor_type}; `tollway actors list` prints those there are"
            )),
            NotReleased::HasHosts => Status::failed_precondition(format!(
                "the actor type {namespace}/{actor_type} has hosts; stop them, or name the apps that may host it with `tollway actors allow`"
            )),
        })?;
        self.saved().await
    }

    /// Completes when everything that was changed before is stored.
    async fn saved(&self) -> Result<(), Status> {
        let (sender, saved) = oneshot::channel();
        self.state().outbox.waiting.push(sender);
        self.posted.notify_one();
        saved.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// All types of all namespaces, or of one.
    pub(crate) fn types(&self, namespace: Option<&Label>) -> BTreeMap<Label, Vec<TypeStatus>> {
        let state = self.state();
        let wanted = state.realms.iter().filter(|(name, _)| namespace.is_none_or(|n| n == *name));
        wanted.map(|(name, realm)| (name.clone(), realm.types())).collect()
    }

    /// Whether a host has entered with a type, or still holds a part of it.
    pub(crate) fn has_hosts(&self, namespace: &Label, actor_type: &str) -> bool {
        self.state().realms.get(namespace).is_some_and(|realm| realm.has_hosts(actor_type))
    }

    /// Types that may go to other apps unless something is stored for them, with their apps.
    pub(super) fn lapsed(&self) -> Vec<(Label, String, Vec<Label>)> {
        let (state, now) = (self.state(), unix_now());
        let lapsed = |(namespace, realm): (&Label, &Realm)| {
            let lapsed = realm.lapsed(now).into_iter();
            let namespace = namespace.clone();
            lapsed.map(move |(name, apps)| (namespace.clone(), name, apps)).collect::<Vec<_>>()
        };
        state.realms.iter().flat_map(lapsed).collect()
    }

    /// Lets a type go to the next app that offers it, if it still may.
    pub(super) fn release_lapsed(&self, namespace: &Label, actor_type: &str) {
        let released = self.change(namespace, false, |realm, _| {
            realm.has_lapsed(actor_type, unix_now()) && realm.release(actor_type).is_ok()
        });
        if released == Some(true) {
            info!(%namespace, actor_type, "an actor type without hosts belongs to no app any more");
        }
    }

    /// Stores what has changed and sends what is stored, until the control plane stops.
    pub(crate) async fn write(&self, stop: CancellationToken) {
        loop {
            let outbox = std::mem::take(&mut self.state().outbox);
            if outbox.is_empty() {
                tokio::select! {
                    () = self.posted.notified() => continue,
                    () = stop.cancelled() => return,
                }
            }
            match self.save(&outbox.unsaved).await {
                Ok(()) => {
                    self.send(outbox.orders);
                    outbox.waiting.into_iter().for_each(|waiting| drop(waiting.send(Ok(()))));
                }
                Err(error) => {
                    self.call_off(outbox, &store_status(&error));
                    tokio::select! {
                        () = tokio::time::sleep(WRITE_AGAIN) => {}
                        () = stop.cancelled() => return,
                    }
                }
            }
        }
    }

    async fn save(&self, unsaved: &BTreeSet<(Label, String)>) -> Result<(), TransactError> {
        let mut unsaved = unsaved.iter().peekable();
        while unsaved.peek().is_some() {
            let transaction = {
                let state = self.state();
                let last = state.realms.values().map(Realm::last_epoch).max();
                let last = last.unwrap_or(state.first).max(state.first).0.to_string();
                let mut transaction = Transaction::new().put(LAST_EPOCH_KEY, last);
                let mut bytes = 0;
                while bytes < TRANSACTION_BYTES
                    && let Some((namespace, actor_type)) = unsaved.next()
                {
                    let key = record::key(namespace, actor_type);
                    let realm = state.realms.get(namespace);
                    transaction = match realm.and_then(|realm| realm.record(actor_type)) {
                        Some(record) => {
                            let record = record.encode();
                            bytes += key.len() + record.len();
                            transaction.put(key, record)
                        }
                        None => transaction.delete(key),
                    };
                }
                transaction
            };
            self.store.transact(transaction).await?;
        }
        Ok(())
    }

    /// Sends orders on streams that are still those of their hosts. A host that misses one has to enter
    /// again, and then gets all.
    fn send(&self, orders: Vec<(Label, Outgoing)>) {
        let mut state = self.state();
        for (namespace, Outgoing { number, stream, order }) in orders {
            let Some(realm) = state.realms.get_mut(&namespace) else { continue };
            if realm.listens(number, &stream) && stream.try_send(Ok(order)).is_err() {
                realm.disconnect(number);
            }
        }
    }

    /// Nothing was stored: hosts that were to be granted something have to enter again.
    fn call_off(&self, outbox: Outbox, status: &Status) {
        let Outbox { unsaved, orders, waiting } = outbox;
        let mut given_back = Vec::new();
        {
            let mut state = self.state();
            for (namespace, outgoing) in orders {
                if matches!(outgoing.order, Order::GiveBack { .. }) {
                    given_back.push((namespace, outgoing));
                    continue;
                }
                let Some(realm) = state.realms.get_mut(&namespace) else { continue };
                if realm.listens(outgoing.number, &outgoing.stream) {
                    let _ = outgoing.stream.try_send(Err(status.clone()));
                    realm.disconnect(outgoing.number);
                }
            }
            state.outbox.unsaved.extend(unsaved);
        }
        self.send(given_back);
        waiting.into_iter().for_each(|waiting| drop(waiting.send(Err(status.clone()))));
        warn!("hosts of actors are granted nothing while the store refuses");
    }

    /// Ends leases in time; never returns.
    pub(crate) async fn keep(&self) {
        loop {
            let now = self.began.elapsed();
            let moments: Vec<(Label, Duration)> = {
                let state = self.state();
                let moment = |(namespace, realm): (&Label, &Realm)| {
                    Some((namespace.clone(), realm.next_moment()?))
                };
                state.realms.iter().filter_map(moment).collect()
            };
            let due: Vec<_> = moments.iter().filter(|(_, moment)| *moment <= now).collect();
            for (namespace, _) in &due {
                self.change(namespace, false, |_, _| ());
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

    /// A sign of life. False when the host has to enter again.
    pub(super) fn renew(&self, namespace: &Label, host: &Host) -> bool {
        let now = self.began.elapsed();
        self.state().realms.get_mut(namespace).is_some_and(|realm| realm.renew(host, now))
    }

    /// The version of a type's owners; 0 where no host offers it.
    pub(super) fn version(&self, namespace: &Label, actor_type: &str) -> u64 {
        self.state().realms.get(namespace).map_or(0, |realm| realm.version(actor_type))
    }

    /// The holders of the shards of a type.
    pub(super) fn owners(&self, namespace: &Label, actor_type: &str) -> Option<Owners<Host>> {
        self.state().realms.get(namespace)?.owners(actor_type)
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
        let state = self.state();
        let holds = state.realms.get(namespace)?.holdings(host)?;
        Some(answer(&holds))
    }
}

#[cfg(test)]
mod tests;
