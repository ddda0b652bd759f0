use super::*;
use crate::Traffic;
use crate::split_mix::SplitMix64;
use proptest::prelude::*;

const OPTIONS: SearchOptions =
    SearchOptions { start_rps: 100.0, most_rps: 1_000_000.0, precision: 0.05 };

#[test]
fn a_sharp_target_is_found_and_confirmed() {
    let (search, trials) = run(OPTIONS, |trial| trial.rate_rps <= 7_300.0);
    let (held, missed) = (search.held_rps().unwrap(), search.missed_rps().unwrap());
    assert!(held <= 7_300.0 && missed > 7_300.0, "{held} to {missed}");
    assert!(missed / held <= 1.05 && search.is_complete());
    let rates: Vec<_> = trials[..7].iter().map(|trial| trial.rate_rps).collect();
    assert_eq!(rates, [100.0, 200.0, 400.0, 800.0, 1_600.0, 3_200.0, 6_400.0], "doubled");
    assert!(trials.len() <= 25, "{}", trials.len());
    let confirming: Vec<_> =
        trials.iter().filter(|trial| trial.confirms).map(|trial| trial.rate_rps).collect();
    assert_eq!(confirming, [held, held, missed, missed]);
}

#[test]
fn one_noisy_trial_loses_no_range() {
    let (quiet, without) = run(OPTIONS, |trial| trial.rate_rps <= 7_300.0);
    for noisy in 0..without.len() {
        let mut index = 0;
        let (search, _) = run(OPTIONS, |trial| {
            let holds = trial.rate_rps <= 7_300.0 && index != noisy;
            index += 1;
            holds
        });
        assert_eq!(search.held_rps(), quiet.held_rps(), "trial {noisy} was noisy");
        assert_eq!(search.missed_rps(), quiet.missed_rps(), "trial {noisy} was noisy");
    }
}

#[test]
fn a_target_below_the_first_rate_is_found() {
    let (search, _) = run(OPTIONS, |trial| trial.rate_rps <= 9.0);
    assert!(search.held_rps().unwrap() <= 9.0 && search.missed_rps().unwrap() > 9.0);
    let (search, _) = run(OPTIONS, |_| false);
    assert_eq!((search.held_rps(), search.missed_rps()), (None, Some(LEAST_RPS)));
    assert!(search.is_complete());
}

#[test]
fn a_target_that_holds_everything_ends_the_search_at_the_highest_rate() {
    let options = SearchOptions { most_rps: 3_000.0, ..OPTIONS };
    let (search, trials) = run(options, |_| true);
    assert_eq!((search.held_rps(), search.missed_rps()), (Some(3_000.0), None));
    assert!(trials.iter().all(|trial| trial.rate_rps <= 3_000.0) && search.is_complete());
}

#[test]
fn an_end_that_its_confirmation_contradicts_is_moved() {
    // Longer trials show what shorter ones do not.
    let (search, _) =
        run(OPTIONS, |trial| trial.rate_rps <= if trial.confirms { 5_000.0 } else { 8_000.0 });
    assert!(search.held_rps().unwrap() <= 5_000.0 && search.missed_rps().unwrap() > 5_000.0);
    let (search, _) =
        run(OPTIONS, |trial| trial.rate_rps <= if trial.confirms { 8_000.0 } else { 5_000.0 });
    assert!(search.held_rps().unwrap() <= 8_000.0 && search.missed_rps().unwrap() > 8_000.0);
}

#[test]
fn the_generator_is_named_when_it_was_the_limit() {
    let mut search = Search::new(OPTIONS);
    while let Some(trial) = search.next() {
        search.take(&match trial.rate_rps <= 500.0 {
            true => Outcome::Held,
            false => Outcome::Missed { why: "late".into(), by_client: true },
        });
    }
    assert!(search.client_limited());
}

#[test]
fn a_rate_holds_when_it_is_achieved_without_errors_and_its_conditions_are_true() {
    let slo = Slo { conditions: vec!["p99<5ms".parse().unwrap()], error_fraction: 0.001 };
    let trial = |achieved: f64, errors: u64, ms: u64| {
        let mut latencies = crate::Histogram::new();
        latencies.record_n(ms * 1_000_000, 10_000 - errors);
        let mut run = crate::run::tests::run_of(&latencies);
        run.traffic.errors = errors;
        run.traffic.achieved_rps = achieved;
        run
    };
    let why = |run: &RunResult| match slo.judge(run).unwrap() {
        Outcome::Held => "held".to_owned(),
        Outcome::Missed { why, by_client } => format!("{why}; by the client: {by_client}"),
    };
    assert_eq!(why(&trial(9_900.0, 0, 2)), "held");
    assert_eq!(why(&trial(9_898.0, 0, 2)), "99.0 % of the rate was achieved; by the client: false");
    assert_eq!(why(&trial(9_900.0, 10, 2)), "held");
    assert_eq!(why(&trial(9_900.0, 11, 2)), "0.11 % of the requests failed; by the client: false");
    assert_eq!(why(&trial(9_900.0, 0, 7)), "p99<5ms: 7.00 ms; by the client: false");
    let mut late = trial(9_900.0, 0, 2);
    late.traffic.lateness =
        Some(crate::traffic::Lateness { late_fraction: 0.2, ..Default::default() });
    assert_eq!(why(&late), "held", "in spite of a late generator");
    late.traffic.achieved_rps = 5_000.0;
    assert_eq!(why(&late), "50.0 % of the rate was achieved; by the client: true");
}

#[test]
fn errors_that_are_allowed_do_not_count_as_a_rate_that_was_missed() {
    let slo = Slo { conditions: Vec::new(), error_fraction: 0.3 };
    let holds = |achieved_rps: f64, unfinished: u64| {
        let mut latencies = crate::Histogram::new();
        latencies.record_n(1_000_000, 8_000);
        let mut run = crate::run::tests::run_of(&latencies);
        run.traffic = Traffic { errors: 2_000, unfinished, achieved_rps, ..run.traffic };
        slo.judge(&run).unwrap() == Outcome::Held
    };
    assert!(holds(8_000.0, 0), "all others came in time");
    assert!(!holds(7_000.0, 0), "some came late");
    assert!(!holds(8_000.0, 500), "what was not answered at all is no allowed error");
}

/// Each trial sees the capacity with an error of 0.5 % (longer ones of 0.3 %), and one trial in
/// twenty is disturbed and sees three quarters of it.
#[test]
fn the_true_capacity_lies_in_the_interval_in_95_of_100_noisy_searches() {
    let mut inside = 0;
    for seed in 0..400 {
        let mut seeded = SplitMix64::new(seed);
        let capacity = 500.0 * (1.0 + seeded.below(200) as f64);
        let (search, trials) = run(OPTIONS, |trial| {
            let error = if trial.confirms { 0.003 } else { 0.005 };
            let disturbed = if seeded.below(20) == 0 { 0.75 } else { 1.0 };
            trial.rate_rps <= capacity * (1.0 + error * bell(&mut seeded)) * disturbed
        });
        assert!(trials.len() < MAX_TRIALS, "seed {seed}");
        let (held, missed) = (search.held_rps().unwrap(), search.missed_rps().unwrap());
        inside += u32::from(held <= capacity && capacity <= missed);
        assert!(missed / held < 1.5, "seed {seed}: {held} to {missed}");
    }
    assert!(inside >= 380, "{inside} of 400");
}

proptest! {
    #[test]
    fn every_search_ends_with_its_ends_in_order(
        start_rps in 0.1_f64..1e6,
        most_rps in 0.1_f64..1e7,
        answers in proptest::collection::vec(any::<bool>(), 1..200),
    ) {
        let options = SearchOptions { start_rps, most_rps, precision: 0.02 };
        let mut answers = answers.iter().cycle();
        let (search, trials) = run(options, |_| *answers.next().unwrap());
        prop_assert!(trials.len() <= MAX_TRIALS);
        let allowed = LEAST_RPS..=most_rps.max(LEAST_RPS);
        let all_allowed = trials.iter().all(|trial| allowed.contains(&trial.rate_rps));
        prop_assert!(all_allowed);
        if let (Some(held), Some(missed)) = (search.held_rps(), search.missed_rps()) {
            prop_assert!(held < missed, "{held} {missed}");
        }
    }
}

fn run(options: SearchOptions, mut holds: impl FnMut(Trial) -> bool) -> (Search, Vec<Trial>) {
    let mut search = Search::new(options);
    let mut trials = Vec::new();
    while let Some(trial) = search.next() {
        trials.push(trial);
        search.take(&match holds(trial) {
            true => Outcome::Held,
            false => Outcome::Missed { why: String::new(), by_client: false },
        });
    }
    (search, trials)
}

/// About normal with variance 1: the sum of twelve uniforms.
fn bell(seeded: &mut SplitMix64) -> f64 {
    let sum: f64 = (0..12).map(|_| seeded.next_u64() as f64 / u64::MAX as f64).sum();
    sum - 6.0
}
