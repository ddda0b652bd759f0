use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits {
    instance: 4,
    service: 8,
    service_base: u64::MAX,
    service_step: 0,
    namespace: 12,
    all: 16,
};

fn who(text: &str) -> Holder {
    let parts: Vec<_> = text.split('.').collect();
    Holder::new(parts[2], parts[1], parts[0])
}

/// Admits one newcomer as an owner does. Returns its number, and the names of those that gave way.
fn admit(shares: &mut Shares, text: &str) -> (Option<u64>, Vec<String>) {
    let (who, mut evicted) = (who(text), Vec::new());
    loop {
        match shares.decide(&who, 1, Own::GivesWay) {
            Decision::Admit => return (Some(shares.add(&who, 1)), evicted),
            Decision::Evict { number, .. } => {
                evicted.push(shares.holder(number).unwrap().to_string());
                assert!(shares.remove(number));
            }
            Decision::Refuse { .. } => return (None, evicted),
        }
    }
}

fn fill(shares: &mut Shares, text: &str, count: usize) {
    for _ in 0..count {
        assert_eq!(admit(shares, text).1, [""; 0]);
    }
}

#[test]
fn a_service_has_half_of_all_and_a_namespace_three_quarters() {
    let of = |all, instance| {
        let Limits { instance, service, namespace, all, .. } = Limits::of(all, instance);
        [instance, service, namespace, all]
    };
    assert_eq!(of(16, 3), [3, 8, 12, 16]);
    assert_eq!(of(2, 9), [2, 2, 2, 2], "at least what an instance has");
    assert_eq!(of(0, 0), [1, 1, 1, 0]);
}

#[test]
fn levels_are_named_in_messages() {
    let levels = [Level::Instance, Level::Service, Level::Namespace, Level::All];
    assert_eq!(levels.map(Level::word), ["instance", "service", "namespace", "network"]);
}

#[test]
fn an_instance_over_its_limit_loses_its_own_oldest() {
    let mut shares = Shares::new(LIMITS);
    let first = admit(&mut shares, "a.web.shop").0.unwrap();
    fill(&mut shares, "a.web.shop", 3);
    fill(&mut shares, "b.web.shop", 1);
    let (number, evicted) = admit(&mut shares, "a.web.shop");
    assert!(number.is_some() && shares.holder(first).is_none());
    assert_eq!(evicted, ["a.web.shop"]);
}

#[test]
fn the_instance_with_most_gives_way_within_a_service() {
    let mut shares = Shares::new(LIMITS);
    for (instance, count) in [("a", 4), ("b", 3), ("c", 1)] {
        fill(&mut shares, &format!("{instance}.web.shop"), count);
    }
    assert_eq!(admit(&mut shares, "c.web.shop").1, ["a.web.shop"]);
    assert_eq!(admit(&mut shares, "d.web.shop").1, ["a.web.shop"]);
    assert_eq!(shares.all(), 8);
}

#[test]
fn of_equals_none_gives_way_and_the_newcomer_is_refused() {
    let mut shares = Shares::new(LIMITS);
    for instance in 0..8 {
        fill(&mut shares, &format!("{instance}.web.shop"), 1);
    }
    let refused = Decision::Refuse { level: Level::Service, limit: 8 };
    assert_eq!(shares.decide(&who("new.web.shop"), 1, Own::GivesWay), refused);
    // One that returns takes the place of its own connection, which may be a broken one.
    assert_eq!(admit(&mut shares, "3.web.shop").1, ["3.web.shop"]);
}

#[test]
fn a_crowd_of_one_namespace_gives_way_to_another_namespace() {
    let mut shares = Shares::new(LIMITS);
    for service in ["a", "b", "c"] {
        fill(&mut shares, &format!("1.{service}.evil"), 4);
    }
    fill(&mut shares, "1.web.shop", 4);
    assert_eq!(shares.all(), LIMITS.all);
    for nth in 0..4 {
        let (number, evicted) = admit(&mut shares, &format!("{nth}.cart.shop"));
        assert!(number.is_some() && evicted.iter().all(|name| name.ends_with(".evil")));
    }
    // Both have eight now.
    assert!(shares.held(&who("1.web.shop")).namespace == 8);
}

#[test]
fn a_service_has_more_the_more_instances_it_has() {
    let mut shares = Shares::new(LIMITS.with_growth(2, 1));
    let full = |limit| Decision::Refuse { level: Level::Service, limit };
    fill(&mut shares, "a.web.shop", 3);
    assert_eq!(shares.decide(&who("a.web.shop"), 1, Own::Stays), full(3));
    fill(&mut shares, "b.web.shop", 1);
    assert_eq!(shares.decide(&who("a.web.shop"), 1, Own::Stays), full(4));
    assert_eq!(shares.decide(&who("c.web.shop"), 1, Own::Stays), Decision::Admit);
}

#[test]
fn amounts_grow_and_shrink_and_go_with_their_number() {
    let mut shares = Shares::new(LIMITS);
    let number = shares.add(&who("a.web.shop"), 0);
    shares.grow(number, 3);
    shares.shrink(number, 1);
    assert_eq!(shares.all(), 2);
    assert!(shares.remove(number) && !shares.remove(number));
    shares.grow(number, 9);
    assert!(shares.all() == 0 && shares.namespaces.is_empty() && shares.holders.is_empty());
}

/// A newcomer of one of a few identities, or the end of one that is held.
#[derive(Clone, Debug)]
enum Event {
    Comes(String),
    Ends(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let comes =
        (0..5_u8, 0..3_u8, 0..3_u8).prop_map(|(i, s, n)| Event::Comes(format!("{i}.{s}.{n}")));
    let event = prop_oneof![4 => comes, 1 => (0..99_usize).prop_map(Event::Ends)];
    proptest::collection::vec(event, 1..200)
}

/// What an identity, its service and its namespace hold by a list of all that is held.
fn counts(held: &HashMap<u64, String>, text: &str) -> [usize; 3] {
    let (_, service) = text.split_once('.').unwrap();
    let (_, namespace) = service.split_once('.').unwrap();
    let of = |end: &str| held.values().filter(|name| name.ends_with(end)).count();
    let instance = held.values().filter(|name| *name == text).count();
    [instance, of(&format!(".{service}")), of(&format!(".{namespace}"))]
}

proptest! {
    #[test]
    fn nothing_gives_way_to_what_has_as_much_and_no_limit_is_exceeded(events in events()) {
        let mut shares = Shares::new(LIMITS);
        let mut held: HashMap<u64, String> = HashMap::new();
        for event in events {
            let text = match event {
                Event::Comes(text) => text,
                Event::Ends(nth) => {
                    let mut numbers: Vec<_> = held.keys().copied().collect();
                    numbers.sort_unstable();
                    if let Some(number) = numbers.get(nth) {
                        prop_assert!(shares.remove(*number));
                        held.remove(number);
                    }
                    continue;
                }
            };
            let newcomer = who(&text);
            loop {
                match shares.decide(&newcomer, 1, Own::GivesWay) {
                    Decision::Admit => {
                        held.insert(shares.add(&newcomer, 1), text.clone());
                        break;
                    }
                    Decision::Evict { number, .. } => {
                        let victim = held[&number].clone();
                        let (has, comes) = (counts(&held, &victim), counts(&held, &text));
                        // At the level where they differ it has more, even with the newcomer in.
                        let other = shares.holder(number).unwrap();
                        let is_fair = if other.namespace != newcomer.namespace {
                            has[2] > comes[2] + 1
                        } else if other.service != newcomer.service {
                            has[1] > comes[1] + 1
                        } else {
                            other.instance == newcomer.instance || has[0] > comes[0] + 1
                        };
                        prop_assert!(is_fair, "{victim} {has:?} gave way to {text} {comes:?}");
                        shares.remove(number);
                        held.remove(&number);
                    }
                    Decision::Refuse { level, .. } => {
                        let full = counts(&held, &text);
                        let is_full = match level {
                            Level::Instance => false,
                            Level::Service => full[1] == 8 && full[0] == 0,
                            Level::Namespace => full[2] == 12 && full[0] == 0,
                            Level::All => held.len() == 16 && full[0] == 0,
                        };
                        prop_assert!(is_full, "{text} was refused at {level:?} with {full:?}");
                        break;
                    }
                }
            }
            prop_assert_eq!(shares.all(), held.len() as u64);
            prop_assert!(held.len() <= 16);
            for name in held.values() {
                let [instance, service, namespace] = counts(&held, name);
                prop_assert!(instance <= 4 && service <= 8 && namespace <= 12);
            }
        }
        for number in held.keys() {
            shares.remove(*number);
        }
        prop_assert!(shares.all() == 0 && shares.namespaces.is_empty());
    }
}
