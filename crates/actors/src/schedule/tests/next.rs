//! What comes next.

use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;

/// Fires as a host does that is called for each firing `late[n]` after it could be, until nothing
/// is left or this is used up. Returns when each firing was due and when it was made.
fn fire(mut schedule: Schedule, late: &[Duration]) -> (Vec<(Moment, Moment)>, Option<Schedule>) {
    let mut clock = now();
    let mut fired = Vec::new();
    for late in late {
        clock = clock.max(schedule.due).checked_add(*late).unwrap();
        if schedule.is_over(clock) {
            return (fired, None);
        }
        fired.push((schedule.due, clock));
        match schedule.after(clock) {
            Some(next) => schedule = next,
            None => return (fired, None),
        }
    }
    (fired, Some(schedule))
}

fn seconds(seconds: u64) -> Moment {
    later(Duration::from_secs(seconds))
}

#[test]
fn firings_keep_their_rhythm_however_late_each_is() {
    let late: Vec<_> = [0, 300, 900, 0].map(millis).to_vec();
    let (fired, left) = fire(read("1s", "1s", ""), &late);
    let due: Vec<_> = fired.iter().map(|(due, _)| *due).collect();
    assert_eq!(due, [seconds(1), seconds(2), seconds(3), seconds(4)]);
    assert_eq!(left.map(|left| left.due), Some(seconds(5)));
}

#[test]
fn who_was_away_is_called_once_for_all_that_was_missed() {
    let minutely = read("", "1m", "");
    let back = seconds(5 * 60 + 20);
    let next = minutely.after(back).unwrap();
    assert_eq!(next.due, seconds(6 * 60));
    // On the very moment that a firing is due, that firing is made.
    assert_eq!(minutely.after(seconds(60)).unwrap().due, seconds(120));
    // What comes due during a call is not forgotten.
    let during = minutely.after(now()).unwrap();
    assert_eq!(during.due, seconds(60), "the call ended at second 150: it is due at once");
    assert_eq!(during.after(seconds(150)).unwrap().due, seconds(180));
}

#[test]
fn repetitions_are_calls() {
    let (fired, left) = fire(read("", "R5/PT1S", ""), &[millis(3_500); 10]);
    assert_eq!((fired.len(), left), (5, None));
    let (fired, left) = fire(read("10s", "R1/PT1S", ""), &[Duration::ZERO; 10]);
    assert_eq!((fired, left), (vec![(seconds(10), seconds(10))], None));
    assert_eq!(fire(read("", "", ""), &[Duration::ZERO; 10]).0.len(), 1);
}

#[test]
fn a_past_moment_fires_at_once_and_sets_the_rhythm() {
    let past = read("2026-01-31T11:59:58.5Z", "1s", "");
    assert!(past.due < now());
    assert_eq!(past.after(now()).unwrap().due, later(millis(500)));
}

/// Dapr's own test counts three firings for a period of one second and an end after three, and ten
/// for a millisecond and ten.
#[test]
fn nothing_is_fired_from_the_end_on() {
    assert_eq!(fire(read("", "PT1S", "3s"), &[Duration::ZERO; 10]).0.len(), 3);
    assert_eq!(fire(read("", "1ms", "10ms"), &[Duration::ZERO; 20]).0.len(), 10);
    let schedule = read("10s", "R4/PT3S", "10s");
    assert_eq!(fire(schedule, &[Duration::ZERO; 10]).0.len(), 4);
    let late = fire(read("", "1s", "3s"), &[Duration::ZERO, Duration::from_secs(5)]);
    assert_eq!(late, (vec![(now(), now())], None), "its end came while nobody could fire");
}

#[test]
fn months_go_on_from_month_to_month() {
    let monthly = Terms::new("2026-02-28T12:00:00Z", "P1M", "").read(now()).unwrap();
    let due = |passed| monthly.after(at(passed)).unwrap().due;
    assert_eq!(due("2026-02-28T12:00:00Z"), at("2026-03-28T12:00:00Z"));
    assert_eq!(due("2027-01-10T00:00:00Z"), at("2027-01-28T12:00:00Z"));
    let far = Terms::new("0000-01-31T00:00:00Z", "P1M", "").read(now()).unwrap();
    assert_eq!(far.after(now()).unwrap().due, at("2026-02-02T00:00:00Z"));
}

#[test]
fn there_is_nothing_after_the_year_9999() {
    let last = Schedule { due: Moment::MAX, ..read("", "1s", "") };
    assert_eq!(last.after(Moment::MAX), None);
    let yearly = Schedule { due: at("9999-06-01T00:00:00Z"), ..read("", "P1Y", "") };
    assert_eq!(yearly.after(now()), None);
    let longest = read("", "PT8000H", "");
    assert_eq!(longest.after(Moment::MAX), None);
}

fn schedules() -> impl Strategy<Value = Schedule> {
    let periods =
        prop_oneof![(0_u32..1, 1_u64..20_000_000), (0_u32..30, 0_u64..100_000_000_000_000),]
            .prop_filter_map("it has a length", |(months, micros)| {
                Period::new(months, Duration::from_micros(micros))
            });
    let due = (-10_000_000_i64..100_000_000)
        .prop_map(|micros| Moment::from_unix_micros(now().unix_micros() + micros).unwrap());
    let firings = proptest::option::of(1_u32..20);
    let ends = proptest::option::of(1_u64..200_000_000);
    (due, periods, firings, ends).prop_map(|(due, period, firings, ends)| Schedule {
        due,
        period: Some(period),
        firings: firings.and_then(NonZeroU32::new),
        ends: ends.and_then(|ends| due.checked_add(Duration::from_micros(ends))),
    })
}

fn lateness() -> impl Strategy<Value = Vec<Duration>> {
    let late = prop_oneof![Just(0), 0_u64..1_000_000, 0_u64..60_000_000];
    proptest::collection::vec(late.prop_map(Duration::from_micros), 1..30)
}

proptest! {
    #[test]
    fn a_firing_is_never_early_and_what_is_due_is_never_lost(
        schedule in schedules(), late in lateness()
    ) {
        let (fired, left) = fire(schedule, &late);
        for (due, made) in &fired {
            prop_assert!(due <= made);
            prop_assert!(!schedule.is_over(*made));
        }
        // Every point of the rhythm until the last call has a call at or after it, and calls are
        // due at points of the rhythm only, each once.
        let period = schedule.period.unwrap();
        let last = fired.last().map(|(_, made)| *made);
        let mut due = fired.iter().map(|(due, _)| *due).peekable();
        let mut point = Some(schedule.due);
        while let Some(at) = point.filter(|at| due.peek().is_some_and(|due| at <= due)) {
            if due.peek() == Some(&at) {
                due.next();
            }
            point = period.after(at);
        }
        prop_assert_eq!(due.next(), None, "due beside the rhythm");
        if let (Some(left), Some(last)) = (left, last) {
            prop_assert!(left.due > last, "what was due until the last call was made by it");
            let before = period.next(schedule.due, last);
            prop_assert_eq!(before, Some(left.due), "and nothing after it was left out");
        }
    }

    #[test]
    fn repetitions_are_exact(schedule in schedules(), late in lateness()) {
        let asked = schedule.firings.map_or(u32::MAX, NonZeroU32::get) as usize;
        let (fired, left) = fire(schedule, &late);
        prop_assert!(fired.len() <= asked);
        match left {
            Some(left) => {
                let used = schedule.firings.zip(left.firings);
                let used = used.map(|(before, after)| (before.get() - after.get()) as usize);
                prop_assert!(used.is_none_or(|used| used == fired.len()));
            }
            // It ends for want of repetitions, or of time.
            None => prop_assert!(fired.len() == asked || schedule.ends.is_some()),
        }
    }

    #[test]
    fn the_next_point_is_the_one_that_counting_finds(
        schedule in schedules(), passed in 0_u64..400_000_000
    ) {
        let period = schedule.period.unwrap();
        let passed = later(Duration::from_micros(passed));
        let mut counted = period.after(schedule.due);
        let mut steps = 0;
        while counted.is_some_and(|counted| counted <= passed) && steps < 100_000 {
            counted = counted.and_then(|counted| period.after(counted));
            steps += 1;
        }
        prop_assume!(steps < 100_000);
        prop_assert_eq!(period.next(schedule.due, passed), counted);
    }

    #[test]
    fn no_text_breaks_the_reader(due in "\\PC{0,40}", period in "R?[0-9]{0,3}/?P?[0-9YMWDTHS.]{0,20}",
        ttl in "[0-9a-zA-Zµμ.:+-]{0,40}") {
        let terms = Terms::new(&due, &period, &ttl);
        if let Ok(schedule) = terms.read(now()) {
            prop_assert_eq!(Terms::read(&terms, now()), Ok(schedule));
        }
    }
}
