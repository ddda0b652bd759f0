//! Which replicas of a service are near its caller, and what each level takes of the requests. It is kept
//! where a traffic policy prefers near replicas, this sidecar's zone or region is stated, and replicas are
//! not all equally near. Which replica takes a request is decided by `routing`.

use std::hash::BuildHasher as _;
use std::net::SocketAddr;

use foldhash::fast::FixedState;
use tollway_model::call_trace::LevelShown;
use tollway_model::traffic_policy::LocalityRules;
use tollway_model::{Level, Locality, ServiceState};
use tollway_routing::{LevelHealth, Levels, near_quotas};

/// The replicas of one service by how near they are.
pub(crate) struct Near {
    rules: LocalityRules,
    /// Ready replicas, the nearest first. Within a level each sidecar has an order of its own.
    replicas: Vec<(SocketAddr, Level)>,
    /// Registered replicas that are not ready.
    unready: [u32; Level::ALL.len()],
    levels: Levels,
}

impl Near {
    /// `None` where no replica is preferred to another. `own` is where this sidecar runs; `seed` stays
    /// the same while the service is known.
    pub(super) fn new(
        rules: Option<LocalityRules>,
        own: &Locality,
        state: Option<&ServiceState>,
        seed: u64,
    ) -> Option<Self> {
        let rules = rules.filter(|rules| rules.prefer != Level::Network && own.is_stated())?;
        let Some(ServiceState::Local { endpoints, unready: away, .. }) = state else { return None };
        let level = |other: &Locality| own.level_of(other).max(rules.prefer);
        let order = FixedState::with_seed(seed);
        let mut replicas: Vec<_> =
            endpoints.iter().map(|of| (of.address, level(&of.locality))).collect();
        replicas.sort_by_cached_key(|(address, level)| (*level, order.hash_one(address)));
        let mut unready = [0_u32; Level::ALL.len()];
        for of in away.iter() {
            let count = &mut unready[level(&of.locality).index()];
            *count = count.saturating_add(of.replicas);
        }
        let levels = Levels::new(&rules, Default::default());
        let mut near = Self { rules, replicas, unready, levels };
        near.refresh(|_| true);
        let has_some = |level: &&Level| near.levels.health(**level).registered > 0;
        (Level::ALL.iter().filter(has_some).count() > 1).then_some(near)
    }

    /// What each level takes now.
    pub(crate) fn levels(&self) -> &Levels {
        &self.levels
    }

    /// What each level takes now, as a call trace has it: levels that have replicas.
    pub(super) fn shown(&self) -> Vec<LevelShown> {
        let shown = Level::ALL.into_iter().map(|level| {
            let LevelHealth { healthy, registered } = self.levels.health(level);
            LevelShown { level, healthy, registered, percent: self.levels.percent(level) }
        });
        shown.filter(|shown| shown.registered > 0).collect()
    }

    /// Other replicas can be sent requests than before.
    pub(super) fn refresh(&mut self, is_healthy: impl Fn(SocketAddr) -> bool) {
        let mut health =
            self.unready.map(|unready| LevelHealth { healthy: 0, registered: unready });
        for (address, level) in &self.replicas {
            let of = &mut health[level.index()];
            of.registered = of.registered.saturating_add(1);
            of.healthy = of.healthy.saturating_add(u32::from(is_healthy(*address)));
        }
        self.levels = Levels::new(&self.rules, health);
    }

    /// How near the replica at an address is; what is not known is far.
    pub(super) fn level(&self, address: SocketAddr) -> Level {
        let found = self.replicas.iter().find(|(of, _)| *of == address);
        found.map_or(Level::Network, |(_, level)| *level)
    }

    /// The replicas to which connections are to be kept, `most` at most, of those that are usable.
    pub(super) fn wanted(
        &self,
        most: usize,
        is_usable: impl Fn(SocketAddr) -> bool,
    ) -> Vec<SocketAddr> {
        let usable = || self.replicas.iter().filter(|(address, _)| is_usable(*address));
        let mut counts = [0; Level::ALL.len()];
        usable().for_each(|(_, level)| counts[level.index()] += 1);
        let mut quotas = near_quotas(counts, most);
        let is_within = |(_, level): &&(SocketAddr, Level)| {
            let quota = &mut quotas[level.index()];
            let is_one = *quota > 0;
            *quota = quota.saturating_sub(1);
            is_one
        };
        usable().filter(is_within).map(|(address, _)| *address).collect()
    }

    /// The replica to which a connection of its own leads, of those that are usable: of the level that is
    /// drawn, one further, or one nearer. `turn` is another one each time.
    pub(super) fn draw(
        &self,
        random: u64,
        turn: usize,
        is_usable: impl Fn(SocketAddr) -> bool,
    ) -> Option<SocketAddr> {
        let drawn = self.levels.draw(random).index();
        let order = (drawn..Level::ALL.len()).chain((0..drawn).rev());
        order.map(|at| Level::ALL[at]).find_map(|level| {
            let is_meant = |of: &&(SocketAddr, Level)| of.1 == level && is_usable(of.0);
            let count = self.replicas.iter().filter(is_meant).count();
            let mut all = self.replicas.iter().filter(is_meant);
            all.nth(turn.checked_rem(count)?).map(|(address, _)| *address)
        })
    }
}
