//! The state of actors: stored under Dapr's keys, and fenced by the epoch under which the host runs
//! the actors.
//!
//! A host raises the fence of a shard in the store before it reads or writes there. From then on
//! the store refuses a former host, which may not know yet that it lost the shard. So state that
//! was read does not change while the new host runs the actor.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tollway_actors::placement::{Actor, Epoch, Shard};
use tollway_model::{ErrorCode, chain};
use tollway_state::{
    Consistency, Entry, Fence, Op, StateError, StateStore, Transaction, actor_fence_key,
    actor_state_key,
};

use super::Actors;
use super::problem::Problem;

/// The state store of an app's actors.
pub(crate) struct ActorStore {
    store: Arc<dyn StateStore>,
    app: String,
    /// The lowest epoch that the fence of each shard can have.
    raised: Mutex<HashMap<(Arc<str>, Shard), Epoch>>,
}

impl ActorStore {
    pub(crate) fn new(store: Arc<dyn StateStore>, app: String) -> Self {
        Self { store, app, raised: Mutex::default() }
    }

    fn key(&self, actor: &Actor, key: &str) -> String {
        actor_state_key(&self.app, &actor.actor_type, &actor.id, key)
    }

    fn fence(&self, actor: &Actor, epoch: Epoch) -> Fence {
        let shard = Shard::of(&actor.id).number();
        Fence { key: actor_fence_key(&self.app, &actor.actor_type, shard), number: epoch.0 }
    }

    async fn get(
        &self,
        actor: &Actor,
        epoch: Epoch,
        key: &str,
    ) -> Result<Option<Entry>, StateError> {
        let shard = (Arc::clone(&actor.actor_type), Shard::of(&actor.id));
        let known = self.raised().get(&shard).copied();
        if known.is_none_or(|known| known < epoch) {
            let fence = Some(self.fence(actor, epoch));
            self.store.transact(Transaction { ops: Vec::new(), fence }).await?;
            self.note(shard, epoch);
        }
        self.store.get(&self.key(actor, key), Consistency::Strong).await
    }

    /// Reads an entry without a right to the actor: its host may change it at the same time.
    async fn look_up(&self, actor: &Actor, key: &str) -> Result<Option<Entry>, StateError> {
        self.store.get(&self.key(actor, key), Consistency::Strong).await
    }

    async fn transact(&self, actor: &Actor, epoch: Epoch, ops: Vec<Op>) -> Result<(), StateError> {
        let fence = Some(self.fence(actor, epoch));
        self.store.transact(Transaction { ops, fence }).await?;
        self.note((Arc::clone(&actor.actor_type), Shard::of(&actor.id)), epoch);
        Ok(())
    }

    fn note(&self, shard: (Arc<str>, Shard), epoch: Epoch) {
        let mut raised = self.raised();
        let known = raised.entry(shard).or_insert(epoch);
        *known = epoch.max(*known);
    }

    fn raised(&self) -> std::sync::MutexGuard<'_, HashMap<(Arc<str>, Shard), Epoch>> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Actors {
    /// Reads an entry of the state of an actor: of one that is active at this host as its turns see
    /// it, of every other one as the store has it under the key of this app.
    ///
    /// # Errors
    /// [`Problem`].
    pub(crate) async fn get_state(
        &self,
        actor: &Actor,
        key: &str,
    ) -> Result<Option<Entry>, Problem> {
        let store = self.actor_store()?;
        let epoch = self.hosting().and_then(|hosting| hosting.host.may_write(actor));
        let found = match epoch {
            Some(epoch) => store.get(actor, epoch, key).await,
            None => store.look_up(actor, key).await,
        };
        found.map_err(|error| {
            let text = format!("error getting actor state: {}", chain(&error));
            Problem::new(ErrorCode::ActorStateGet, text)
        })
    }

    /// Makes all changes to the state of an actor that is active at this host, or none of them.
    /// Keys are the actor's own.
    ///
    /// # Errors
    /// [`Problem`].
    pub(crate) async fn transact(&self, actor: &Actor, ops: Vec<Op>) -> Result<(), Problem> {
        let store = self.actor_store()?;
        let epoch = self.hosting().and_then(|hosting| hosting.host.may_write(actor));
        let epoch = epoch.ok_or_else(Problem::instance_missing)?;
        let ops = ops.into_iter().map(|op| keyed(op, |key| store.key(actor, key))).collect();
        let done = store.transact(actor, epoch, ops).await;
        done.map_err(|error| {
            let why = if matches!(error, StateError::Fenced { .. }) {
                "another host runs this actor now".to_owned()
            } else {
                chain(&error)
            };
            let text = format!("error saving actor transaction state: {why}");
            Problem::new(ErrorCode::ActorStateSave, text)
        })
    }

    fn actor_store(&self) -> Result<&ActorStore, Problem> {
        self.store.as_ref().ok_or_else(|| {
            let text = "the state store is not configured to use the actor runtime. Have you set \
                        the - name: actorStateStore value: \"true\" in your state store component \
                        file?";
            Problem::new(ErrorCode::ActorRuntimeNotFound, text)
        })
    }
}

fn keyed(op: Op, key: impl Fn(&str) -> String) -> Op {
    match op {
        Op::Set(mut set) => {
            set.key = key(&set.key);
            Op::Set(set)
        }
        Op::Delete(mut delete) => {
            delete.key = key(&delete.key);
            Op::Delete(delete)
        }
    }
}
