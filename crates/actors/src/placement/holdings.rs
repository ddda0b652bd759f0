//! The shards of one host, in its own view.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::placement::grants::{Held, Order};
use crate::placement::shard::{Shard, ShardSet};
use crate::placement::table::Epoch;

/// Clocks do not run equally fast: a host trusts its lease for so much less than it lasts.
const DRIFT_SHARE: u32 = 64;
/// No turn begins in the last part of a lease, so that those under way have that long to end. By
/// then the host has tried to renew twice.
const LAST_SHARE: u32 = 8;
/// A lease is renewed when this part of it is over.
const RENEWAL_SHARE: u32 = 3;

/// Why no turn may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The shard is not here: it may be a moment from now, or be elsewhere.
    NotHere,
    /// It is about to be somewhere else.
    Leaving,
    /// Whether it is here is not known any more, or not for long enough.
    LeaseEnded,
}

/// The shards that a host holds, and until when it may rely on that.
///
/// A clock that goes on while the machine sleeps has to give the time, or a host that has slept
/// takes its lease for longer than it lasts.
#[derive(Clone, Debug, Default)]
pub struct Holdings {
    lasts: Duration,
    /// Until when the lease can be relied on; `None` without one.
    ends: Option<Duration>,
    renew_at: Duration,
    types: BTreeMap<String, Type>,
}

/// One actor type.
#[derive(Clone, Debug, Default)]
struct Type {
    held: BTreeMap<Shard, Epoch>,
    /// Asked back, and not given back yet.
    leaving: ShardSet,
}

impl Holdings {
    /// Of a host that offers these types and holds nothing.
    #[must_use]
    pub fn new(types: impl IntoIterator<Item = String>) -> Self {
        let types = types.into_iter().map(|name| (name, Type::default())).collect();
        Self { types, ..Self::default() }
    }

    /// The shards to enter with: held and not being given back, while the lease lasts.
    #[must_use]
    pub fn to_enter(&mut self, now: Duration) -> Held {
        self.end_in_time(now);
        for kind in self.types.values_mut() {
            // Its turns continue; the order to end them comes again.
            kind.leaving = ShardSet::default();
        }
        self.types.iter().map(|(name, kind)| (name.clone(), kind.held.clone())).collect()
    }

    /// The host has entered by a request sent at `asked`, with a lease that `lasts` from then.
    pub fn entered(&mut self, asked: Duration, lasts: Duration) {
        self.lasts = lasts;
        self.renewed(asked);
    }

    /// The lease was renewed by a request sent at `asked`.
    pub fn renewed(&mut self, asked: Duration) {
        let ends = asked + self.lasts - self.lasts / DRIFT_SHARE;
        self.ends = Some(self.ends.map_or(ends, |before| before.max(ends)));
        self.renew_at = asked + self.lasts / RENEWAL_SHARE;
    }

    /// When the lease has to be renewed, if there is one.
    #[must_use]
    pub fn renew_at(&self) -> Option<Duration> {
        self.ends.map(|_| self.renew_at)
    }

    /// When everything is lost unless the lease is renewed.
    #[must_use]
    pub fn ends(&self) -> Option<Duration> {
        self.ends
    }

    /// Takes note of an order. Shards to give back are held until [`Self::give_back`].
    pub fn obey(&mut self, order: &Order) {
        match order {
            Order::Grant { actor_type, epoch, shards } => {
                let Some(kind) = self.types.get_mut(actor_type) else { return };
                kind.held.extend(shards.iter().map(|shard| (shard, *epoch)));
            }
            Order::GiveBack { actor_type, shards } => {
                let Some(kind) = self.types.get_mut(actor_type) else { return };
                let held = shards.iter().filter(|shard| kind.held.contains_key(shard));
                held.for_each(|shard| kind.leaving.insert(shard));
            }
        }
    }

    /// From when on no turn may begin; `None` without a lease.
    #[must_use]
    pub fn begin_by(&self) -> Option<Duration> {
        self.ends.map(|ends| ends.saturating_sub(self.lasts / LAST_SHARE))
    }

    /// Whether a turn of an actor in this shard may begin now, and under which epoch it writes.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn may_begin(
        &self,
        actor_type: &str,
        shard: Shard,
        now: Duration,
    ) -> Result<Epoch, Refusal> {
        if self.begin_by().is_none_or(|by| now >= by) {
            return Err(Refusal::LeaseEnded);
        }
        let kind = self.types.get(actor_type).ok_or(Refusal::NotHere)?;
        let epoch = kind.held.get(&shard).ok_or(Refusal::NotHere)?;
        if kind.leaving.contains(shard) {
            return Err(Refusal::Leaving);
        }
        Ok(*epoch)
    }

    /// The epoch under which an actor in this shard may write now. Turns that have begun may write
    /// also while the shard is asked back.
    #[must_use]
    pub fn may_write(&self, actor_type: &str, shard: Shard, now: Duration) -> Option<Epoch> {
        self.ends.filter(|ends| now < *ends)?;
        self.types.get(actor_type)?.held.get(&shard).copied()
    }

    /// The held shards of a type, while the lease lasts.
    #[must_use]
    pub fn held(&self, actor_type: &str, now: Duration) -> BTreeMap<Shard, Epoch> {
        let stands = self.ends.is_some_and(|ends| now < ends);
        let kind = self.types.get(actor_type).filter(|_| stands);
        kind.map(|kind| kind.held.clone()).unwrap_or_default()
    }

    /// Shards to be given back once no turn is under way there, by type.
    pub fn leaving(&self) -> impl Iterator<Item = (&str, &ShardSet)> {
        let all = self.types.iter().map(|(name, kind)| (name.as_str(), &kind.leaving));
        all.filter(|(_, leaving)| !leaving.is_empty())
    }

    /// Releases a shard that was asked back and in which no turn is under way. Returns the epoch of
    /// the grant that ends; `None` if the shard is not held any more.
    pub fn give_back(&mut self, actor_type: &str, shard: Shard) -> Option<Epoch> {
        let kind = self.types.get_mut(actor_type)?;
        if !kind.leaving.contains(shard) {
            return None;
        }
        kind.leaving.remove(shard);
        kind.held.remove(&shard)
    }

    /// Forgets everything if the lease has ended. Returns whether it has, just now: turns under way
    /// continue without the right to write, and the host has to enter again.
    pub fn end_in_time(&mut self, now: Duration) -> bool {
        let has_ended = self.ends.is_some_and(|ends| now >= ends);
        if has_ended {
            self.ends = None;
            for kind in self.types.values_mut() {
                *kind = Type::default();
            }
        }
        has_ended
    }

    /// How many shards of each type are held.
    pub fn counts(&self) -> impl Iterator<Item = (&str, usize)> {
        self.types.iter().map(|(name, kind)| (name.as_str(), kind.held.len()))
    }
}
