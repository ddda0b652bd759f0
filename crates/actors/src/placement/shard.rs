//! Parts of an actor type: what changes hands as one.

use std::fmt;

/// Into how many shards the ids of an actor type fall. It cannot change while hosts that believe
/// in another number are connected.
pub const SHARDS: usize = 1024;

const WORDS: usize = SHARDS / 64;

/// One of the [`SHARDS`] parts of an actor type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Shard(u16);

impl Shard {
    /// The shard of an actor, the same in every version: FNV-1a over the id, its bits mixed as
    /// MurmurHash3 does at its end, modulo [`SHARDS`].
    #[must_use]
    pub fn of(actor_id: &str) -> Self {
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        for byte in actor_id.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^= hash >> 33;
        Self((hash % SHARDS as u64) as u16)
    }

    /// `None` from [`SHARDS`] on.
    #[must_use]
    pub fn new(number: usize) -> Option<Self> {
        (number < SHARDS).then_some(Self(number as u16))
    }

    #[must_use]
    pub fn number(self) -> usize {
        usize::from(self.0)
    }

    /// All of them, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SHARDS as u16).map(Self)
    }
}

/// Some of the shards of one actor type.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ShardSet([u64; WORDS]);

impl ShardSet {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    #[must_use]
    pub fn contains(&self, shard: Shard) -> bool {
        self.0[shard.number() / 64] & Self::bit(shard) != 0
    }

    pub fn insert(&mut self, shard: Shard) {
        self.0[shard.number() / 64] |= Self::bit(shard);
    }

    pub fn remove(&mut self, shard: Shard) {
        self.0[shard.number() / 64] &= !Self::bit(shard);
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = Shard> {
        Shard::all().filter(|shard| self.contains(*shard))
    }

    fn bit(shard: Shard) -> u64 {
        1 << (shard.number() % 64)
    }
}

impl FromIterator<Shard> for ShardSet {
    fn from_iter<T: IntoIterator<Item = Shard>>(shards: T) -> Self {
        let mut set = Self::default();
        shards.into_iter().for_each(|shard| set.insert(shard));
        set
    }
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Shard::number)).finish()
    }
}
