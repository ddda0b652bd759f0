//! The lease of a host and the shards that it holds under it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tollway_actors::placement::{Actor, Epoch, Held, Refusal, Shard};
use tollway_proxy::TurnLease;

use super::Host;

/// A new number for a lease. Turns that began under another number are too late, even if this lease
/// is valid.
pub(super) fn another_lease() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

impl Host {
    /// The epoch under which an actor may write now; `None` if it is not active here.
    pub(crate) fn may_write(&self, actor: &Actor) -> Option<Epoch> {
        self.inner().turns.may_write(actor, self.clock.now())
    }

    /// The epoch under which the shard of an actor is held, whether the actor is active or not;
    /// `None` if the shard is not held.
    pub(crate) fn epoch(&self, actor: &Actor) -> Option<Epoch> {
        let shard = Shard::of(&actor.id);
        self.inner().turns.holdings().may_write(&actor.actor_type, shard, self.clock.now())
    }

    /// The epoch under which a timer of an actor is kept here: the actor is active, or its next turn
    /// would begin here. `None` if it is elsewhere, or about to be.
    pub(crate) fn timer_epoch(&self, actor: &Actor) -> Option<Epoch> {
        let (now, mut inner) = (self.clock.now(), self.inner());
        inner.turns.may_write(actor, now).or_else(|| {
            let shard = Shard::of(&actor.id);
            inner.turns.holdings().may_begin(&actor.actor_type, shard, now).ok()
        })
    }

    /// Whether a grant is valid.
    pub(crate) fn holds(&self, actor_type: &str, shard: Shard, epoch: Epoch) -> bool {
        self.inner().turns.holdings().may_write(actor_type, shard, self.clock.now()) == Some(epoch)
    }

    /// The lease under which a turn of this epoch must begin at the app; `None` if it must not
    /// begin. A turn that was allowed before its shard was asked back may still begin.
    pub(super) fn lease(&self, actor: &Actor, epoch: Epoch) -> Option<TurnLease> {
        let (shard, mut inner) = (Shard::of(&actor.id), self.inner());
        let holdings = inner.turns.holdings();
        let is_valid = match holdings.may_begin(&actor.actor_type, shard, self.clock.now()) {
            Ok(held) => held == epoch,
            Err(Refusal::Leaving) => {
                holdings.may_write(&actor.actor_type, shard, self.clock.now()) == Some(epoch)
            }
            Err(Refusal::NotHere | Refusal::LeaseEnded) => false,
        };
        let until = holdings.begin_by().filter(|_| is_valid)?;
        Some(TurnLease { number: inner.lease, until })
    }

    /// The held shards of a type.
    pub(crate) fn held(&self, actor_type: &str) -> BTreeMap<Shard, Epoch> {
        self.inner().turns.holdings().held(actor_type, self.clock.now())
    }

    /// The held shards with which the host enters.
    pub(crate) fn to_enter(self: &Arc<Self>) -> Held {
        let mut inner = self.inner();
        let (held, effects) = inner.turns.to_enter(self.clock.now());
        self.carry_out(&mut inner, effects);
        held
    }

    /// The host has entered, by a request that it sent at `asked`, with a lease that `lasts` from
    /// then.
    pub(crate) fn entered(&self, asked: Duration, lasts: Duration) {
        let mut inner = self.inner();
        inner.lease = another_lease();
        inner.has_entered = true;
        inner.turns.holdings().entered(asked, lasts);
        drop(inner);
        self.sooner.notify_one();
    }

    /// Whether the control plane has admitted the host, now or earlier: calls of its types wait for
    /// their actors.
    pub(crate) fn has_entered(&self) -> bool {
        self.inner().has_entered
    }

    /// The lease was renewed, by a request that was sent at `asked`.
    pub(crate) fn lease_renewed(&self, asked: Duration) {
        let mut inner = self.inner();
        let holdings = inner.turns.holdings();
        let has_ended = holdings.ends().is_none_or(|ends| self.clock.now() >= ends);
        holdings.renewed(asked);
        let until = holdings.begin_by();
        if has_ended {
            inner.lease = another_lease();
        } else if let Some(until) = until {
            self.loopback.lease_renewed(TurnLease { number: inner.lease, until });
        }
    }

    /// When the lease must be renewed; `None` without one.
    pub(crate) fn renew_at(&self) -> Option<Duration> {
        self.inner().turns.holdings().renew_at()
    }

    /// Whether no shard is held, and none waits to be given back.
    pub(crate) fn holds_nothing(&self) -> bool {
        !self.outcomes.hold_up_a_shard()
            && self.inner().turns.holdings().counts().all(|(_, count)| count == 0)
    }
}
