//! The shards of one actor type: who holds them, and who is to.

use std::collections::{BTreeMap, BTreeSet};

use crate::placement::plan::plan;
use crate::placement::shard::{SHARDS, Shard, ShardSet};

/// The number of a grant. What was granted later has a higher one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u64);

/// The holders of an actor type's shards, for callers of its actors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owners<H> {
    /// Higher than before after every change, even of a type that was gone in between.
    pub version: u64,
    /// By the shard's number; `None` while it changes hands or no host is there.
    pub shards: Vec<Option<H>>,
}

/// The grants of an actor type that stand: the shards by host and epoch.
pub type Grants<H> = BTreeMap<(H, Epoch), ShardSet>;

/// One actor type.
#[derive(Clone, Debug)]
pub(crate) struct Table<H> {
    slots: Vec<Slot<H>>,
    members: BTreeSet<H>,
    version: u64,
    has_changed: bool,
    /// A shard was granted or freed since the last [`Self::take_unsaved`].
    is_unsaved: bool,
    /// There may be something to plan, to grant or to ask for.
    is_restless: bool,
}

#[derive(Clone, Debug)]
struct Slot<H> {
    holder: Option<Holder<H>>,
    wanted: Option<H>,
}

/// A host that may have turns under way, until it reports their end or its lease ends.
#[derive(Clone, Debug)]
struct Holder<H> {
    host: H,
    epoch: Epoch,
    /// It was asked to give the shard back, and will. Even if the plan has changed since, the shard
    /// has to be granted again.
    is_asked: bool,
}

impl<H: PartialEq> Slot<H> {
    fn is_held_by(&self, host: &H) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.host == *host)
    }

    fn is_granted(&self, host: &H, epoch: Epoch) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.host == *host && holder.epoch == epoch)
    }

    /// The holder that is not asked to give the shard back.
    fn owner(&self) -> Option<&Holder<H>> {
        let holder = self.holder.as_ref()?;
        (!holder.is_asked && self.wanted.as_ref() == Some(&holder.host)).then_some(holder)
    }
}

/// What one host is to do about one type.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Change {
    pub(crate) grant: ShardSet,
    pub(crate) give_back: ShardSet,
}

impl<H: Ord + Clone> Table<H> {
    pub(crate) fn new() -> Self {
        let slots = vec![Slot { holder: None, wanted: None }; SHARDS];
        Self {
            slots,
            members: BTreeSet::new(),
            version: 0,
            has_changed: false,
            is_unsaved: false,
            is_restless: true,
        }
    }

    /// What a former control plane granted. Its hosts are members until they leave or their leases
    /// end. Of a shard that is named twice the later grant counts.
    pub(crate) fn restored(grants: &Grants<H>) -> Self {
        let mut table = Self::new();
        for ((host, epoch), shards) in grants {
            table.members.insert(host.clone());
            for shard in shards.iter() {
                let slot = &mut table.slots[shard.number()];
                if slot.holder.as_ref().is_none_or(|holder| holder.epoch < *epoch) {
                    slot.wanted = Some(host.clone());
                    slot.holder =
                        Some(Holder { host: host.clone(), epoch: *epoch, is_asked: false });
                    table.has_changed = true;
                }
            }
        }
        table
    }

    /// What is granted, as [`Self::restored`] takes it.
    pub(crate) fn grants(&self) -> Grants<H> {
        let mut grants = Grants::new();
        for shard in Shard::all() {
            let Some(holder) = &self.slots[shard.number()].holder else { continue };
            let key = (holder.host.clone(), holder.epoch);
            grants.entry(key).or_insert_with(ShardSet::default).insert(shard);
        }
        grants
    }

    /// Whether [`Self::grants`] has changed since the last call.
    pub(crate) fn take_unsaved(&mut self) -> bool {
        std::mem::take(&mut self.is_unsaved)
    }

    pub(crate) fn holds_something(&self, host: &H) -> bool {
        self.slots.iter().any(|slot| slot.is_held_by(host))
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &H> {
        self.members.iter()
    }

    /// A host that holds no more than `held` and would hold more. What it was granted and does not
    /// name is free. What it names and was not granted, or what was granted to another host since,
    /// is not its.
    pub(crate) fn enter(&mut self, host: &H, held: &BTreeMap<Shard, Epoch>) {
        self.members.insert(host.clone());
        self.is_restless = true;
        for shard in Shard::all() {
            let Some(holder) = &mut self.slots[shard.number()].holder else { continue };
            if holder.host != *host {
                continue;
            }
            if held.get(&shard) == Some(&holder.epoch) {
                holder.is_asked = false;
            } else {
                self.free(shard);
            }
        }
    }

    /// The host holds nothing any more.
    pub(crate) fn leave(&mut self, host: &H) {
        self.is_restless |= self.members.remove(host);
        for shard in Shard::all() {
            if self.slots[shard.number()].is_held_by(host) {
                self.free(shard);
            }
        }
    }

    /// The host wants no shards, but holds its own until it releases them.
    pub(crate) fn retire(&mut self, host: &H) {
        self.is_restless |= self.members.remove(host);
    }

    /// The holder has let go what it was granted at `epoch`.
    pub(crate) fn given_back(&mut self, host: &H, shard: Shard, epoch: Epoch) {
        if self.holds(host, shard, epoch) {
            self.free(shard);
        }
    }

    fn free(&mut self, shard: Shard) {
        self.slots[shard.number()].holder = None;
        self.is_restless = true;
        self.has_changed = true;
        self.is_unsaved = true;
    }

    /// Plans again, grants free shards and asks back those that change hosts. Hosts for which
    /// `waits` is true are granted nothing yet. All grants of one call have one epoch, which is
    /// returned.
    pub(crate) fn settle(
        &mut self,
        waits: impl Fn(&H) -> bool,
        mut next_epoch: impl FnMut() -> Epoch,
    ) -> (BTreeMap<H, Change>, Epoch) {
        if !self.is_restless {
            return (BTreeMap::new(), Epoch::default());
        }
        self.is_restless = false;
        let members: Vec<H> = self.members.iter().cloned().collect();
        // Where each shard is, or is going to.
        let there: Vec<Option<H>> = self.slots.iter().map(|slot| slot.wanted.clone()).collect();
        let mut changes: BTreeMap<H, Change> = BTreeMap::new();
        let mut granted = None;
        for (shard, wanted) in Shard::all().zip(plan(&there, &members)) {
            let slot = &mut self.slots[shard.number()];
            slot.wanted = wanted;
            match (&mut slot.holder, &slot.wanted) {
                (Some(holder), wanted)
                    if !holder.is_asked && *wanted != Some(holder.host.clone()) =>
                {
                    holder.is_asked = true;
                    changes.entry(holder.host.clone()).or_default().give_back.insert(shard);
                    self.has_changed = true;
                }
                (None, Some(taker)) if waits(taker) => {
                    slot.wanted = None;
                    self.is_restless = true;
                }
                (holder @ None, Some(taker)) => {
                    let epoch = *granted.get_or_insert_with(&mut next_epoch);
                    changes.entry(taker.clone()).or_default().grant.insert(shard);
                    *holder = Some(Holder { host: taker.clone(), epoch, is_asked: false });
                    (self.has_changed, self.is_unsaved) = (true, true);
                }
                (_, _) => {}
            }
        }
        (changes, granted.unwrap_or_default())
    }

    pub(crate) fn owners(&self) -> Owners<H> {
        let owner = |slot: &Slot<H>| slot.owner().map(|holder| holder.host.clone());
        Owners { version: self.version, shards: self.slots.iter().map(owner).collect() }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Gives what has changed a version. Returns whether anything has.
    pub(crate) fn note_changes(&mut self, next_version: impl FnOnce() -> u64) -> bool {
        let has_changed = std::mem::take(&mut self.has_changed);
        if has_changed {
            self.version = next_version();
        }
        has_changed
    }

    /// Whether no host is here and nothing is held.
    pub(crate) fn is_vacant(&self) -> bool {
        self.members.is_empty() && self.slots.iter().all(|slot| slot.holder.is_none())
    }

    /// Whether a grant is valid: then a write under it is not a former holder's.
    pub(crate) fn holds(&self, host: &H, shard: Shard, epoch: Epoch) -> bool {
        self.slots[shard.number()].is_granted(host, epoch)
    }
}
