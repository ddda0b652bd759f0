//! What is due when, and how it goes on.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn due(agenda: &mut Agenda<&'static str>, now: Moment) -> Due<&'static str> {
    match agenda.pop(now) {
        Some(Popped::Due(due)) => due,
        other => panic!("{other:?}"),
    }
}

fn seconds(seconds: u64) -> Moment {
    later(Duration::from_secs(seconds))
}

#[test]
fn what_is_due_comes_in_order_and_once() {
    let mut agenda = Agenda::default();
    agenda.insert("late", read("9s", "", ""), FailurePolicy::default());
    agenda.insert("early", read("3s", "5s", ""), FailurePolicy::default());
    agenda.insert("early too", read("3s", "", ""), FailurePolicy::default());
    assert_eq!((agenda.next_moment(), agenda.len()), (Some(seconds(3)), 3));
    assert_eq!(agenda.pop(seconds(2)), None);
    let first = due(&mut agenda, seconds(4));
    assert_eq!((first.key, first.failures), ("early", 0));
    assert_eq!(due(&mut agenda, seconds(4)).key, "early too");
    assert_eq!(agenda.pop(seconds(4)), None, "they are under way");
    assert_eq!(agenda.next_moment(), Some(seconds(9)));
    let next = agenda.succeeded(&"early", first.ticket, seconds(4));
    assert_eq!(next, Next::Then(Schedule { due: seconds(8), ..first.schedule }));
    assert_eq!(agenda.get(&"early").map(|left| left.due), Some(seconds(8)));
    assert_eq!(agenda.next_moment(), Some(seconds(8)));
    assert_eq!(agenda.succeeded(&"early", first.ticket, seconds(4)), Next::Unknown, "told twice");
}

#[test]
fn a_failed_firing_is_tried_again_and_then_given_up() {
    let mut agenda = Agenda::default();
    let ticket = agenda.insert("a", read("", "1m", ""), FailurePolicy::default());
    for failures in 0..4 {
        let at = seconds(u64::from(failures));
        let popped = due(&mut agenda, at);
        assert_eq!((popped.failures, popped.schedule.due), (failures, now()));
        let next = agenda.failed(&"a", ticket, at, at);
        match failures {
            0..3 => assert_eq!(next, Next::Again(seconds(u64::from(failures) + 1))),
            _ => assert!(matches!(next, Next::Then(Schedule { due, .. }) if due == seconds(60))),
        }
    }
    assert_eq!(due(&mut agenda, seconds(60)).failures, 0, "the next one starts afresh");
}

#[test]
fn a_failure_policy_sets_the_number_and_the_interval_of_retries() {
    let waits = |policy: FailurePolicy| [1, 2, 3, 4].map(|failures| policy.wait_after(failures));
    let constant = |interval, max_retries| FailurePolicy::Constant { interval, max_retries };
    let second = Some(Duration::from_secs(1));
    assert_eq!(waits(FailurePolicy::default()), [second, second, second, None]);
    assert_eq!(waits(FailurePolicy::Drop), [None; 4]);
    assert_eq!(waits(constant(millis(5), Some(1))), [Some(millis(5)), None, None, None]);
    assert_eq!(waits(constant(Duration::ZERO, None)), [Some(millis(1)); 4]);
    assert_eq!(waits(constant(millis(5), Some(0))), [None; 4]);
}

#[test]
fn the_last_firing_leaves_nothing_even_if_it_failed() {
    let mut agenda = Agenda::default();
    let one = agenda.insert("one", read("", "", ""), FailurePolicy::Drop);
    let two = agenda.insert("two", read("", "R1/PT1S", ""), FailurePolicy::Drop);
    due(&mut agenda, now());
    due(&mut agenda, now());
    assert_eq!(agenda.succeeded(&"one", one, now()), Next::Over);
    assert_eq!(agenda.failed(&"two", two, now(), now()), Next::Over);
    assert!(agenda.is_empty() && agenda.next_moment().is_none());
}

#[test]
fn what_is_over_is_not_fired() {
    let mut agenda = Agenda::default();
    agenda.insert("a", read("1s", "1s", "5s"), FailurePolicy::default());
    assert_eq!(agenda.pop(seconds(6)), Some(Popped::Over("a")));
    assert!(agenda.is_empty());
}

#[test]
fn outcomes_of_a_replaced_entry_are_ignored_and_a_removed_one_is_gone() {
    let mut agenda = Agenda::default();
    let old = agenda.insert("a", read("", "1s", ""), FailurePolicy::default());
    due(&mut agenda, now());
    let new = agenda.insert("a", read("1h", "", ""), FailurePolicy::default());
    assert_eq!(agenda.succeeded(&"a", old, now()), Next::Unknown);
    assert_eq!(agenda.failed(&"a", old, now(), now()), Next::Unknown);
    assert!(!agenda.put_back(&"a", old, now()));
    assert_eq!(agenda.next_moment(), Some(seconds(3_600)));
    assert_eq!(agenda.succeeded(&"a", new, now()), Next::Unknown, "it is not under way");
    assert!(agenda.remove(&"a") && !agenda.remove(&"a"));
    assert_eq!((agenda.next_moment(), agenda.len()), (None, 0));
}

#[test]
fn what_could_not_be_called_comes_back() {
    let mut agenda = Agenda::default();
    let ticket = agenda.insert("a", read("", "R2/PT10S", ""), FailurePolicy::default());
    let before = due(&mut agenda, now());
    assert!(agenda.put_back(&"a", ticket, seconds(2)));
    assert_eq!(agenda.pop(seconds(1)), None);
    assert_eq!(due(&mut agenda, seconds(2)), before, "it counts neither as failed nor as made");
}

#[test]
fn those_of_one_actor_are_found_by_their_keys() {
    let mut agenda = Agenda::default();
    for key in [("b", "x"), ("a", "y"), ("b", "y"), ("c", "x")] {
        agenda.insert(key, read("", "", ""), FailurePolicy::default());
    }
    let of_b = agenda.keys_from(&("b", "")).take_while(|(actor, _)| *actor == "b");
    assert_eq!(of_b.copied().collect::<Vec<_>>(), [("b", "x"), ("b", "y")]);
    assert_eq!(agenda.keys().count(), 4);
}

#[derive(Clone, Debug)]
enum Step {
    Insert { key: u8, wait: u64, period: Option<u64>, firings: u32 },
    Remove(u8),
    Pop,
    Tell { key: u8, is_well: bool },
    PutBack(u8),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0_u8..6;
    let step = prop_oneof![
        (key.clone(), 0_u64..5_000, proptest::option::of(1_u64..4_000), 1_u32..4)
            .prop_map(|(key, wait, period, firings)| Step::Insert { key, wait, period, firings }),
        key.clone().prop_map(Step::Remove),
        Just(Step::Pop),
        (key.clone(), any::<bool>()).prop_map(|(key, is_well)| Step::Tell { key, is_well }),
        key.prop_map(Step::PutBack),
        (0_u64..3_000).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..80)
}

/// The same, as a list that is searched.
#[derive(Clone, Debug)]
struct Plain {
    schedule: Schedule,
    failures: u32,
    at: Option<Moment>,
    order: u64,
    ticket: Ticket,
}

const POLICY: FailurePolicy =
    FailurePolicy::Constant { interval: Duration::from_millis(700), max_retries: Some(1) };

proptest! {
    #[test]
    fn it_does_what_a_searched_list_does(steps in steps()) {
        let mut agenda = Agenda::default();
        let mut plain: BTreeMap<u8, Plain> = BTreeMap::new();
        let mut clock = now();
        let mut order = 0;
        for step in steps {
            match step {
                Step::Insert { key, wait, period, firings } => {
                    let due = clock.checked_add(millis(wait)).unwrap();
                    let period = period.and_then(|period| Period::new(0, millis(period)));
                    let firings = std::num::NonZeroU32::new(firings);
                    let schedule = Schedule { due, period, firings, ends: None };
                    let ticket = agenda.insert(key, schedule, POLICY);
                    order += 1;
                    let entry = Plain { schedule, failures: 0, at: Some(due), order, ticket };
                    plain.insert(key, entry);
                }
                Step::Remove(key) => {
                    prop_assert_eq!(agenda.remove(&key), plain.remove(&key).is_some());
                }
                Step::Pop => {
                    let due = |entry: &Plain| entry.at.filter(|at| *at <= clock);
                    let first = plain
                        .iter_mut()
                        .filter(|(_, entry)| due(entry).is_some())
                        .min_by_key(|(_, entry)| (entry.at, entry.order));
                    let expected = first.map(|(key, entry)| {
                        entry.at = None;
                        let Plain { ticket, schedule, failures, .. } = *entry;
                        Popped::Due(Due { key: *key, ticket, schedule, failures })
                    });
                    prop_assert_eq!(agenda.pop(clock), expected);
                }
                Step::Tell { key, is_well } => {
                    let Some(entry) = plain.get_mut(&key) else { continue };
                    let next = match is_well {
                        true => agenda.succeeded(&key, entry.ticket, clock),
                        false => agenda.failed(&key, entry.ticket, clock, clock),
                    };
                    if entry.at.is_some() {
                        prop_assert_eq!(next, Next::Unknown);
                        continue;
                    }
                    if !is_well && entry.failures == 0 {
                        entry.failures = 1;
                        let again = clock.checked_add(millis(700)).unwrap();
                        entry.at = Some(again);
                        prop_assert_eq!(next, Next::Again(again));
                        continue;
                    }
                    match entry.schedule.after(clock) {
                        Some(schedule) => {
                            entry.schedule = schedule;
                            entry.failures = 0;
                            entry.at = Some(schedule.due);
                            prop_assert_eq!(next, Next::Then(schedule));
                        }
                        None => {
                            plain.remove(&key);
                            prop_assert_eq!(next, Next::Over);
                        }
                    }
                }
                Step::PutBack(key) => {
                    let Some(entry) = plain.get_mut(&key) else { continue };
                    let expected = entry.at.is_none();
                    prop_assert_eq!(agenda.put_back(&key, entry.ticket, clock), expected);
                    if expected {
                        entry.at = Some(clock);
                    }
                }
                Step::Pass(gone) => clock = clock.checked_add(millis(gone)).unwrap(),
            }
            prop_assert_eq!(agenda.next_moment(), plain.values().filter_map(|entry| entry.at).min());
            prop_assert_eq!(agenda.len(), plain.len());
        }
    }
}
