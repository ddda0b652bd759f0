//! Which network serves a request for a service in any network: by priorities, weights, the share of
//! healthy replicas, and the requests that are under way.
//!
//! The networks of the first priority take every request while enough of their replicas are healthy. With
//! fewer, they keep a share in proportion, and the next priority takes of the rest what its own health
//! allows, and so on. If all together are not healthy enough, each takes its part of the whole. A network
//! whose word is doubted cannot draw requests by it: numbers of replicas count only as a part of those of
//! the same network, and weights are the operator's.

use tollway_model::failover::{FAILOVER_NETWORKS_LIMIT, FailoverRules};

use crate::levels::{draw, fill, part, ratio};

/// What is known of the replicas of one network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetworkHealth {
    /// Replicas that can be sent requests.
    pub healthy: u32,
    /// Replicas, healthy or not. Fewer than the healthy ones count as those.
    pub registered: u32,
    /// Requests under way there.
    pub under_way: u32,
    /// A request may be sent although no replica is known to be healthy.
    pub may_be_tried: bool,
}

impl NetworkHealth {
    /// The part of the replicas that is healthy; not zero if one is.
    fn ratio(self) -> u64 {
        ratio(self.healthy, self.registered)
    }
}

/// Networks of the rules, by their places there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetworkSet(u32);

impl NetworkSet {
    pub fn insert(&mut self, index: usize) {
        // There are at most `FAILOVER_NETWORKS_LIMIT`.
        self.0 |= 1_u32.checked_shl(u32::try_from(index).unwrap_or(u32::MAX)).unwrap_or_default();
    }

    #[must_use]
    pub fn contains(self, index: usize) -> bool {
        u32::try_from(index)
            .ok()
            .and_then(|at| self.0.checked_shr(at))
            .is_some_and(|at| at & 1 == 1)
    }

    pub fn remove(&mut self, index: usize) {
        let mut of = Self::default();
        of.insert(index);
        self.0 &= !of.0;
    }

    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Why a network was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChosenBy {
    /// It is of the first priority.
    Priority,
    /// Too few replicas of the priorities before it are healthy.
    Health,
    /// The priorities before it have as many requests under way as they may.
    Load,
    /// No replica anywhere is known to be healthy; it is the first that may be tried.
    LastResort,
}

/// The network that serves a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkChoice {
    /// Its place in the rules.
    pub index: usize,
    pub by: ChosenBy,
}

/// The networks of one priority.
#[derive(Debug, PartialEq, Eq)]
struct Level {
    /// Places in the rules, with weights.
    networks: Vec<(usize, u64)>,
    /// The sum of the weights.
    weight: u64,
}

/// The rules by which one service is served in any network.
#[derive(Debug, PartialEq, Eq)]
pub struct FailoverSet {
    /// The first priority first; [`FAILOVER_NETWORKS_LIMIT`] at most.
    levels: Vec<Level>,
    threshold: u64,
    spill_over: Option<u64>,
}

impl FailoverSet {
    #[must_use]
    pub fn new(rules: &FailoverRules) -> Self {
        let networks = rules.networks.iter().take(FAILOVER_NETWORKS_LIMIT).enumerate();
        let mut ranked: Vec<_> = networks.map(|(index, of)| (of.priority, index, of)).collect();
        ranked.sort_by_key(|(priority, index, _)| (*priority, *index));
        let levels = ranked.chunk_by(|(one, ..), (other, ..)| one == other).map(|of| {
            let networks = of.iter().map(|(_, index, of)| (*index, u64::from(of.weight)));
            let networks: Vec<_> = networks.collect();
            Level { weight: networks.iter().map(|(_, weight)| weight).sum(), networks }
        });
        Self {
            levels: levels.collect(),
            threshold: u64::from(rules.threshold).max(1),
            spill_over: rules.spill_over.map(u64::from),
        }
    }

    /// The network that serves a request which has failed in those of `tried`; `random` is uniform. `None`
    /// if none is left that may be tried.
    #[must_use]
    pub fn choose(
        &self,
        health: impl Fn(usize) -> NetworkHealth,
        tried: NetworkSet,
        random: u64,
    ) -> Option<NetworkChoice> {
        let health = |index: usize| match tried.contains(index) {
            true => NetworkHealth { healthy: 0, may_be_tried: false, ..health(index) },
            false => health(index),
        };
        let capacities = self.levels.iter().map(|level| self.capacity(level, &health));
        let shares: [u64; FAILOVER_NETWORKS_LIMIT] = fill(capacities);
        let Some(drawn) = draw(shares.iter().copied(), random) else {
            let all = self.levels.iter().flat_map(|level| &level.networks);
            let index = all.map(|(index, _)| *index).find(|index| health(*index).may_be_tried)?;
            return Some(NetworkChoice { index, by: ChosenBy::LastResort });
        };
        let has_room =
            |at: &usize| self.levels.get(*at).is_some_and(|level| self.has_room(level, &health));
        let by_load = (drawn..self.levels.len()).find(has_room).unwrap_or(drawn);
        let level = self.levels.get(by_load)?;
        let weights = level
            .networks
            .iter()
            .map(|(index, weight)| weight * part(health(*index).ratio(), self.threshold));
        let place = draw(weights, random.rotate_left(32))?;
        let by = match (drawn, by_load) {
            (0, 0) => ChosenBy::Priority,
            (drawn, by_load) if drawn == by_load => ChosenBy::Health,
            _ => ChosenBy::Load,
        };
        level.networks.get(place).map(|(index, _)| NetworkChoice { index: *index, by })
    }

    /// The share of all requests that networks of a priority may take, by their health.
    fn capacity(&self, level: &Level, health: &impl Fn(usize) -> NetworkHealth) -> u64 {
        let healthy = level.networks.iter().map(|(index, weight)| weight * health(*index).ratio());
        match healthy.sum::<u64>() {
            0 => 0,
            healthy => part((healthy / level.weight.max(1)).max(1), self.threshold),
        }
    }

    /// Whether networks of a priority are healthy and may have one request more.
    fn has_room(&self, level: &Level, health: &impl Fn(usize) -> NetworkHealth) -> bool {
        let all = level.networks.iter().map(|(index, _)| health(*index));
        let (healthy, under_way) = all.fold((0_u64, 0_u64), |(healthy, under_way), of| {
            (healthy + u64::from(of.healthy), under_way + u64::from(of.under_way))
        });
        healthy > 0 && self.spill_over.is_none_or(|each| under_way < each * healthy)
    }
}

#[cfg(test)]
mod tests;
