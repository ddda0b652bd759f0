//! Near replicas first.

use tollway_model::traffic_policy::LocalityRules;
use tollway_model::{AreaName, Locality, Unready};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn zone(name: &str) -> Locality {
    Locality { region: None, zone: Some(AreaName::new(name).unwrap()) }
}

impl Script {
    /// Of replicas with these last numbers of an address in zones `a` and `b`, and of so many in `a` that
    /// are not ready. The caller is in `a`.
    fn zoned(near: &[u8], far: &[u8], unready: u32) -> Self {
        let endpoint = |name: &str, host: u8| Endpoint {
            locality: zone(name),
            ..Endpoint::new(label(&format!("s-{host}")), address(host))
        };
        let near = near.iter().map(|host| endpoint("a", *host));
        let far = far.iter().map(|host| endpoint("b", *host));
        let mut script = Self::new(ServiceState::Local {
            endpoints: near.chain(far).collect(),
            unready: [Unready { locality: zone("a"), replicas: unready }].into(),
            protocol: AppProtocol::Http,
            trust_domain: TrustDomain::default_for(&label("west")),
        });
        script.run_at(zone("a"));
        script
    }

    fn run_at(&mut self, locality: Locality) {
        let config = (*self.cx.config).clone();
        self.cx.config = Arc::new(LoopConfig { locality, ..config });
    }

    fn prefer(&mut self, rules: LocalityRules) {
        self.police(TrafficParts { locality: Some(rules), ..TrafficParts::default() });
    }

    fn join_near_or_far(&mut self, host: u8) {
        let pool = self.upstreams.pools.get(&self.stock).unwrap();
        let level = pool.near().map_or(Level::Network, |near| near.level(address(host)));
        self.join_replica(host);
        let key = Key::from_u64(self.keys);
        self.links.get_mut(&key).unwrap().level = level;
    }

    /// How many of 1000 requests, one after the other, go to each host.
    fn calm_spread(&mut self) -> HashMap<u8, usize> {
        let mut spread = HashMap::new();
        for _ in 0..1000 {
            let key = self.pick().expect("a connection takes it");
            *spread.entry(self.links[&key].host).or_default() += 1;
        }
        spread
    }

    fn counted(&self) -> [u64; 3] {
        let of = &self.cx.metrics.locality;
        [&of.nearest, &of.health, &of.load].map(|levels| levels.iter().map(|of| of.value()).sum())
    }
}

fn sum(spread: &HashMap<u8, usize>, hosts: &[u8]) -> usize {
    hosts.iter().filter_map(|host| spread.get(host)).sum()
}

#[test]
fn near_replicas_take_all_until_too_much_is_under_way() {
    let mut script = Script::zoned(&[1, 2], &[3], 0);
    script.prefer(LocalityRules::DEFAULT);
    (1..=3).for_each(|host| script.join_near_or_far(host));
    let spread = script.calm_spread();
    assert!(sum(&spread, &[1]) > 350 && sum(&spread, &[1, 2]) == 1000, "{spread:?}");
    assert_eq!(script.counted(), [1000, 0, 0]);
    // Of 100 that stay under way the far one gets ten less than each near one: 110 are shared by three.
    let spread = script.spread();
    assert!(sum(&spread, &[3]).abs_diff(27) < 4, "{spread:?}");
    assert!(sum(&spread, &[1]).abs_diff(sum(&spread, &[2])) < 4, "{spread:?}");
    assert!(script.counted()[2] > 20);
}

#[test]
fn replicas_that_cannot_be_reached_or_are_not_ready_have_others_take_a_share() {
    let mut script = Script::zoned(&[1, 2], &[3, 4], 0);
    script.prefer(LocalityRules::DEFAULT);
    (1..=4).for_each(|host| script.join_near_or_far(host));
    script.back_off(1, SECOND);
    let near = sum(&script.calm_spread(), &[1, 2]);
    assert!(near.abs_diff(714) < 50, "{near}: half of them is healthy, of 70 percent");
    // Behind the registry's back: two more of the zone are registered, and not ready.
    let mut script = Script::zoned(&[1, 2], &[3, 4], 2);
    script.prefer(LocalityRules::DEFAULT);
    (1..=4).for_each(|host| script.join_near_or_far(host));
    let near = sum(&script.calm_spread(), &[1, 2]);
    assert!(near.abs_diff(714) < 50, "{near}");
}

#[test]
fn without_a_policy_or_a_zone_of_the_own_nothing_is_preferred() {
    let even = |script: &mut Script| {
        let near = sum(&script.calm_spread(), &[1]);
        assert!(near.abs_diff(500) < 80, "{near}");
        assert_eq!(script.counted(), [0, 0, 0]);
    };
    let mut script = Script::zoned(&[1], &[2], 0);
    script.prefer(LocalityRules { prefer: Level::Network, ..LocalityRules::DEFAULT });
    (1..=2).for_each(|host| script.join_near_or_far(host));
    even(&mut script);
    let mut script = Script::zoned(&[1], &[2], 0);
    script.run_at(Locality::default());
    script.prefer(LocalityRules::DEFAULT);
    (1..=2).for_each(|host| script.join_near_or_far(host));
    even(&mut script);
}

#[test]
fn where_no_near_replica_is_left_others_take_all_and_leave_when_it_is_back() {
    let mut script = Script::zoned(&[1], &[2], 0);
    script.prefer(LocalityRules::DEFAULT);
    (1..=2).for_each(|host| script.join_near_or_far(host));
    script.back_off(1, SECOND);
    assert_eq!(sum(&script.calm_spread(), &[2]), 1000);
    assert_eq!(script.counted(), [0, 1000, 0]);
    script.cx.now += 2 * SECOND;
    script.update_replicas();
    assert_eq!(sum(&script.calm_spread(), &[1]), 1000);
}

#[test]
fn connections_are_kept_to_near_replicas_and_to_some_that_are_further() {
    let (near, far): (Vec<u8>, Vec<u8>) = ((1..=20).collect(), (21..=40).collect());
    let mut script = Script::zoned(&near, &far, 0);
    script.prefer(LocalityRules::DEFAULT);
    assert_eq!(script.plan(), "dial 16 retire 0");
    let wanted = |script: &Script| {
        let pool = script.upstreams.pools.get(&script.stock).unwrap();
        let of =
            pool.near().unwrap().wanted(16, |address| !pool.is_passed_over(address, script.cx.now));
        of.into_iter().map(host).collect::<Vec<u8>>()
    };
    let first = wanted(&script);
    assert_eq!(first.iter().filter(|host| **host <= 20).count(), 12);
    // All that is near fails at once, and comes back.
    near.iter().for_each(|host| script.back_off(*host, SECOND));
    let while_away = wanted(&script);
    assert!(while_away.len() == 16 && while_away.iter().all(|host| *host > 20));
    while_away.iter().for_each(|host| script.join_near_or_far(*host));
    assert_eq!(script.plan(), "dial 0 retire 0");
    script.cx.now += 2 * SECOND;
    script.update_replicas();
    assert_eq!(wanted(&script), first, "the order stays");
    assert_eq!(script.plan(), "dial 12 retire 0", "what stands leaves later");
    first.iter().filter(|host| **host <= 20).for_each(|host| script.join_near_or_far(*host));
    assert_eq!(script.plan(), "dial 0 retire 12");
}
