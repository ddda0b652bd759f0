//! How near the replica is that takes a request: in the zone of its caller, in its region, or anywhere in
//! its network.
//!
//! The replicas of the nearest level take every request while enough of them are healthy. With fewer they
//! keep a share in proportion, and the next level takes of the rest what its own health allows. Near
//! replicas are kept from more than they can do: a request goes further if that saves it enough others
//! before it, and if a near replica has a share that is below the whole, since it has come back, is new, or
//! has refused requests as too many.

use tollway_model::Level;
use tollway_model::traffic_policy::LocalityRules;

use crate::balance::{Candidate, choose_any, choose_in_luck, luck};
use crate::levels::{draw, fill, part, ratio};

/// Levels that there are.
const LEVELS: usize = Level::ALL.len();
/// Of the replicas to which connections are kept so many parts are near, and one is of each level beyond.
const PARTS: usize = 4;

/// What is known of the replicas of one level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LevelHealth {
    /// Those that can be sent requests.
    pub healthy: u32,
    /// Healthy or not. Fewer than the healthy ones count as those.
    pub registered: u32,
}

/// What each level takes, for one service and one caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Levels {
    health: [LevelHealth; LEVELS],
    shares: [u64; LEVELS],
    spill_over: u32,
}

impl Levels {
    /// `health` is that of each level, the nearest first. Those that are nearer than the rules prefer have
    /// no replicas: these count for the level that is preferred.
    #[must_use]
    pub fn new(rules: &LocalityRules, health: [LevelHealth; LEVELS]) -> Self {
        let capacity =
            |of: &LevelHealth| part(ratio(of.healthy, of.registered), u64::from(rules.threshold));
        let shares = fill(health.iter().map(capacity));
        Self { health, shares, spill_over: rules.spill_over }
    }

    /// The part of all requests that a level takes by its health alone, in percent.
    #[must_use]
    pub fn percent(&self, level: Level) -> u32 {
        let total: u64 = self.shares.iter().sum();
        let share = self.shares[level.index()];
        let percent = (share * 100 + total / 2) / total.max(1);
        // One that takes something is not shown as one that takes nothing.
        u32::try_from(percent.max(u64::from(share > 0))).unwrap_or(100)
    }

    #[must_use]
    pub fn health(&self, level: Level) -> LevelHealth {
        self.health[level.index()]
    }

    /// The level that is to take a request; the nearest one if no replica is healthy.
    #[must_use]
    pub fn draw(&self, random: u64) -> Level {
        let drawn = draw(self.shares.iter().copied(), random);
        drawn.map_or(Level::Zone, |at| Level::ALL[at])
    }

    /// The nearest level that has replicas.
    fn nearest(&self) -> Level {
        let has_some = |level: &Level| self.health(*level).registered > 0;
        Level::ALL.into_iter().find(has_some).unwrap_or(Level::Network)
    }
}

/// Why a replica of its level was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NearBy {
    /// No other is nearer.
    Nearest,
    /// Too few of those that are nearer are healthy, or they get less than their share now.
    Health,
    /// Those that are nearer have too many requests under way.
    Load,
}

/// The replica that takes a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NearChoice {
    /// Its place among the candidates.
    pub index: usize,
    pub level: Level,
    pub by: NearBy,
}

/// A replica that may take a request.
#[derive(Clone, Copy, Debug)]
pub struct NearReplica {
    pub candidate: Candidate,
    /// Requests under way there.
    pub under_way: u32,
}

/// Picks one of `count` replicas, which are listed by level, the nearest first. `level` gives that of each,
/// and `replica` gives `None` for one that cannot take a request.
#[must_use]
pub fn choose_near(
    levels: &Levels,
    count: usize,
    random: u64,
    level: impl Fn(usize) -> Level,
    replica: impl Fn(usize) -> Option<NearReplica>,
) -> Option<NearChoice> {
    let mut bounds = [0; LEVELS + 1];
    for index in 0..count {
        for bound in &mut bounds[level(index).index() + 1..] {
            *bound = index + 1;
        }
    }
    let range = |at: usize| (bounds[at], bounds[at + 1] - bounds[at]);
    let random_of = |at: usize| random.rotate_left(7 * u32::try_from(at).unwrap_or(0));
    let in_luck = |at: usize| {
        let (first, count) = range(at);
        let candidate = |index: usize| Some(replica(first + index)?.candidate);
        choose_in_luck(count, random_of(at), &candidate).map(|index| (at, first + index))
    };
    let any = |at: usize| {
        let (first, count) = range(at);
        let candidate = |index: usize| Some(replica(first + index)?.candidate);
        choose_any(count, random_of(at), &candidate).map(|index| (at, first + index))
    };
    let drawn = levels.draw(luck(random, LEVELS)).index();
    // Where the drawn level has none, those that are further take it, since the nearer ones have theirs.
    let order = || (drawn..LEVELS).chain((0..drawn).rev());
    let found = order().find_map(in_luck).or_else(|| order().find_map(any))?;
    let (mut at, mut index) = found;
    let mut is_spilled = false;
    for further in at + 1..LEVELS {
        let under_way = |index: usize| replica(index).map_or(0, |of| of.under_way);
        if let Some((_, other)) = in_luck(further)
            && under_way(index).saturating_sub(under_way(other)) >= levels.spill_over
        {
            (at, index, is_spilled) = (further, other, true);
        }
    }
    let level = Level::ALL[at];
    let by = if is_spilled {
        NearBy::Load
    } else if level <= levels.nearest() {
        NearBy::Nearest
    } else {
        NearBy::Health
    };
    Some(NearChoice { index, level, by })
}

/// To how many replicas of each level connections are kept, where there are `counts` of them, and `most`
/// altogether: to near ones first, and to some of each other level, so that what is to go there finds
/// a connection.
#[must_use]
pub fn near_quotas(counts: [usize; LEVELS], most: usize) -> [usize; LEVELS] {
    let reserve = most / PARTS;
    let mut quotas = [0; LEVELS];
    let mut rest = most;
    for at in 0..LEVELS {
        let further: usize = counts[at + 1..].iter().map(|count| *count.min(&reserve)).sum();
        quotas[at] = counts[at].min(rest.saturating_sub(further));
        rest -= quotas[at];
    }
    quotas
}

#[cfg(test)]
mod tests;
