//! Connections through another network's gateway: enough of them, over different replicas.
//!
//! The caller knows only how many replicas are ready. An established connection shows which
//! instance accepted it. Duplicates are dialled again until every replica has a connection.

use std::collections::HashMap;
use std::hash::Hash;

/// How many connections a thread keeps to one remote service.
#[derive(Clone, Copy, Debug)]
pub struct SpreadLimits {
    /// At least so many, however few the replicas: a lost segment stalls every stream behind it.
    pub least: usize,
    /// At most so many, however many the replicas.
    pub most: usize,
}

impl Default for SpreadLimits {
    fn default() -> Self {
        Self { least: 4, most: 8 }
    }
}

/// One connection as the plan sees it.
#[derive(Clone, Debug)]
pub struct Dialled<K, I> {
    pub key: K,
    /// The replica that accepted it; `None` while the connection is being made.
    pub instance: Option<I>,
    pub outstanding: u32,
}

/// What to change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpreadPlan<K> {
    /// Connections to open.
    pub dial: usize,
    /// Connections to drain and close: others reach the same instance.
    pub retire: Vec<K>,
}

/// Plans towards one connection per replica within the limits.
///
/// While fewer instances are reached than could be, one connection more than wanted is opened at a
/// time. A surplus duplicate is retired when its successor is established.
#[must_use]
pub fn plan_spread<K: Copy, I: Eq + Hash + Clone>(
    replicas: usize,
    connections: &[Dialled<K, I>],
    limits: SpreadLimits,
) -> SpreadPlan<K> {
    if replicas == 0 {
        return SpreadPlan { dial: 0, retire: Vec::new() };
    }
    let wanted = replicas.clamp(limits.least.min(limits.most), limits.most);
    let under_way = connections.iter().filter(|c| c.instance.is_none()).count();
    let standing = connections.len() - under_way;
    let mut per_instance: HashMap<&I, usize> = HashMap::new();
    for instance in connections.iter().filter_map(|c| c.instance.as_ref()) {
        *per_instance.entry(instance).or_default() += 1;
    }
    let reachable = replicas.min(wanted);
    let missing = reachable.saturating_sub(per_instance.len());
    let short = wanted.saturating_sub(standing + under_way);
    let probing = if missing > 0 && short == 0 && under_way == 0 { missing } else { 0 };
    let surplus = standing.saturating_sub(wanted);
    SpreadPlan {
        dial: short + probing,
        retire: surplus_duplicates(connections, per_instance, surplus),
    }
}

/// The idlest connections of the instances that have the most of them.
fn surplus_duplicates<K: Copy, I: Eq + Hash + Clone>(
    connections: &[Dialled<K, I>],
    mut per_instance: HashMap<&I, usize>,
    surplus: usize,
) -> Vec<K> {
    let mut candidates: Vec<_> = connections.iter().filter(|c| c.instance.is_some()).collect();
    candidates.sort_by_key(|c| c.outstanding);
    let mut retire = Vec::new();
    while retire.len() < surplus {
        let fullest = candidates
            .iter()
            .enumerate()
            .filter_map(|(at, c)| c.instance.as_ref().map(|i| (per_instance[i], at)))
            .max_by_key(|(count, at)| (*count, std::cmp::Reverse(*at)));
        let Some((count, at)) = fullest else { break };
        if count < 2 {
            break;
        }
        let chosen = candidates.remove(at);
        if let Some(count) = chosen.instance.as_ref().and_then(|i| per_instance.get_mut(i)) {
            *count -= 1;
        }
        retire.push(chosen.key);
    }
    retire
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ab-` is a connection to `a`, one to `b`, one under way.
    fn plan(replicas: usize, connections: &str) -> String {
        let dialled: Vec<_> = connections
            .chars()
            .enumerate()
            .map(|(key, c)| Dialled { key, instance: (c != '-').then_some(c), outstanding: 0 })
            .collect();
        let plan = plan_spread(replicas, &dialled, SpreadLimits::default());
        let retired: String =
            plan.retire.iter().map(|k| connections.chars().nth(*k).unwrap()).collect();
        format!("dial {} retire {retired}", plan.dial)
    }

    #[test]
    fn four_connections_at_least_and_one_a_replica_up_to_eight() {
        assert_eq!(plan(1, ""), "dial 4 retire ");
        assert_eq!(plan(3, "--"), "dial 2 retire ");
        assert_eq!(plan(6, ""), "dial 6 retire ");
        assert_eq!(plan(60, ""), "dial 8 retire ");
        assert_eq!(plan(0, "ab"), "dial 0 retire ");
    }

    #[test]
    fn duplicates_are_replaced_until_every_replica_is_reached() {
        assert_eq!(plan(3, "aabb"), "dial 1 retire ");
        assert_eq!(plan(3, "aabb-"), "dial 0 retire ");
        assert_eq!(plan(3, "aabbc"), "dial 0 retire a");
        assert_eq!(plan(3, "aabbb"), "dial 1 retire b");
        assert_eq!(plan(3, "abcc"), "dial 0 retire ");
    }

    #[test]
    fn a_scale_up_is_met_and_a_scale_down_shrinks_duplicates_only() {
        assert_eq!(plan(5, "abca"), "dial 1 retire ");
        assert_eq!(plan(5, "abcda"), "dial 1 retire ");
        assert_eq!(plan(2, "aabbab"), "dial 0 retire ab");
        assert_eq!(plan(4, "abcdef"), "dial 0 retire ");
    }

    /// Rounds of dialling, each new connection reaching a replica by `choose`.
    fn rounds_until_spread(replicas: u64, mut seed: u64) -> usize {
        let mut connections: Vec<Dialled<u64, u64>> = Vec::new();
        let mut next = 0;
        for round in 0.. {
            let plan = plan_spread(
                usize::try_from(replicas).unwrap(),
                &connections,
                SpreadLimits::default(),
            );
            if plan.dial == 0 && plan.retire.is_empty() {
                return round;
            }
            connections.retain(|c| !plan.retire.contains(&c.key));
            for _ in 0..plan.dial {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let instance = Some((seed >> 33) % replicas);
                connections.push(Dialled { key: next, instance, outstanding: 0 });
                next += 1;
            }
        }
        unreachable!("the loop returns")
    }

    #[test]
    fn a_random_gateway_is_spread_over_in_few_rounds() {
        for seed in 0..500 {
            for replicas in 1..=8 {
                let rounds = rounds_until_spread(replicas, seed);
                assert!(rounds < 120, "{replicas} replicas took {rounds} rounds");
            }
        }
    }
}
