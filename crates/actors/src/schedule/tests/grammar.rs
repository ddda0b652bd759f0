//! What texts mean.
//!
//! Dapr's own reader (`ParseDuration` and `ParseTime` of dapr/kit, May 2026) and Go's
//! `time.ParseDuration` gave the expected values: the tables agree, except for the rows that note a
//! difference.

use super::*;

/// A period without months.
fn time(text: &str) -> Result<Option<Duration>, TermProblem> {
    let schedule = Terms::new("", text, "").read(now()).map_err(|error| error.problem)?;
    assert_eq!(schedule.due, now());
    assert_eq!(schedule.firings, None);
    Ok(schedule.period.map(|period| {
        assert_eq!(period.months(), 0, "{text}");
        period.time()
    }))
}

fn fault(text: &str) -> TermProblem {
    match time(text) {
        Ok(time) => panic!("{text:?} is taken as {time:?}"),
        Err(fault) => fault,
    }
}

const MICRO: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn durations_of_go() {
    let cases = [
        ("0h0m3s0ms", 3 * SECOND),
        ("3s", 3 * SECOND),
        ("1h30m", HOUR + 30 * MINUTE),
        ("2h45m30.5s", 2 * HOUR + 45 * MINUTE + millis(30_500)),
        ("1.5h", 90 * MINUTE),
        (".5s", millis(500)),
        ("1.s", SECOND),
        ("0.000001s", MICRO),
        ("100us", 100 * MICRO),
        ("100\u{b5}s", 100 * MICRO),
        ("0h0m0s0ms7\u{3bc}s", 7 * MICRO),
        ("1000ns", MICRO),
        ("1ms1ms", millis(2)),
        ("3s2h", 2 * HOUR + 3 * SECOND),
        ("+5s", 5 * SECOND),
        ("0001m", MINUTE),
        ("0.1000000000000000000000000000001h", 6 * MINUTE),
        ("2562047h", 2_562_047 * HOUR),
        // Longer than Go can hold, which ends at 2,562,047 hours.
        ("8000000h", 8_000_000 * HOUR),
    ];
    for (text, expected) in cases {
        assert_eq!(time(text), Ok(Some(expected)), "{text}");
    }
}

#[test]
fn durations_of_iso_8601() {
    let cases = [
        ("PT3S", 3 * SECOND),
        ("P1DT2H", 26 * HOUR),
        ("P2W", 14 * DAY),
        ("P2WT1M", 14 * DAY + MINUTE),
        ("P1W2D", 9 * DAY),
        ("PT36H", 36 * HOUR),
        ("PT90M", 90 * MINUTE),
        ("P0DT0H0M5S", 5 * SECOND),
        // Not of Dapr: what SDKs write that it does not read.
        ("PT0.5S", millis(500)),
        ("PT1,25S", millis(1_250)),
        ("p1dt2h", 26 * HOUR),
        ("pt3s", 3 * SECOND),
    ];
    for (text, expected) in cases {
        assert_eq!(time(text), Ok(Some(expected)), "{text}");
    }
}

#[test]
fn months_and_years_are_those_of_the_calendar() {
    let cases = [("P1M", 1, 0), ("P1Y", 12, 0), ("P1Y2M3D", 14, 3), ("P10Y5M3DT0M", 125, 3)];
    for (text, months, days) in cases {
        let period = read("", text, "").period;
        assert_eq!(period, Period::new(months, days * DAY), "{text}");
        assert!(period.is_some());
    }
    // As Go's `AddDate`: a day that the month does not have is counted on.
    let cases = [
        ("2026-01-31T12:00:00Z", "P1M", "2026-03-03T12:00:00Z"),
        ("2024-01-31T12:00:00Z", "P1M", "2024-03-02T12:00:00Z"),
        ("2024-02-29T00:00:00.5Z", "P1Y", "2025-03-01T00:00:00.5Z"),
        ("2020-02-03T11:12:13Z", "P1Y2M3D", "2021-04-06T11:12:13Z"),
        ("2019-02-03T11:12:13Z", "P1Y2M3D", "2020-04-06T11:12:13Z"),
        ("2021-12-06T17:43:51Z", "P1MT2H10M3S", "2022-01-06T19:53:54Z"),
        ("2026-12-31T23:59:59Z", "PT1S", "2027-01-01T00:00:00Z"),
        ("1969-12-31T23:59:59.75Z", "P1M", "1970-01-31T23:59:59.75Z"),
    ];
    for (from, due_time, expected) in cases {
        let schedule = Terms::new(due_time, "", "").read(at(from)).unwrap();
        assert_eq!(schedule.due, at(expected), "{due_time} after {from}");
    }
}

#[test]
fn what_has_no_length_is_one_firing_at_once() {
    for text in ["", "0", "+0", "-0", "-0s", "0s", "0h0m0s0ms", "PT0S", "P0D", "P0M"] {
        assert_eq!(read(text, "", "").due, now(), "{text:?}");
        assert_eq!(read("", text, "").period, None, "{text:?}");
    }
    let once = Schedule { due: now(), period: None, firings: None, ends: None };
    assert_eq!(Terms::default().read(now()), Ok(once));
}

#[test]
fn less_than_a_microsecond_is_one() {
    assert_eq!(time("1ns"), Ok(Some(MICRO)));
    assert_eq!(time("1.0000015s"), Ok(Some(SECOND + 2 * MICRO)));
    assert_eq!(read("1ns", "", "").due, later(MICRO));
    assert_eq!(at("2026-01-31T12:00:00.0000001Z"), later(MICRO));
}

#[test]
fn nonsense_is_not_understood() {
    let texts = [
        "nonsense",
        " ",
        " 3s",
        "3s ",
        "3",
        "3 s",
        "3S",
        "3d",
        "1w",
        "s",
        ".s",
        ".",
        "-",
        "+",
        "--3s",
        "1h-3m",
        "1,5s",
        "0x5s",
        "3s!",
        "\u{663}s",
        "@every 3s",
        "5s/R3",
        "P",
        "PT",
        "PM",
        "PT1D",
        "P_D",
        "PTxS",
        "P1D1",
        "-PT5S",
        "PT-5S",
        "PT+5S",
        "P 1D",
        "P1H",
        "PT1Y",
        "PT.5S",
        "PT1.S",
        "PT1.5H",
        "P1.5D",
        "2026-01-31",
        "12:00",
        "2026-01-31T12:00:00Z",
        "R",
        "R/PT1S",
        "R-1/PT1S",
        "R+1/PT1S",
        "Rx/PT1S",
        "R1.5/PT1S",
        "R5/1s",
        "R5/nonsense",
        "R5/P",
        "R5//PT1S",
        // Dapr takes these: a number without a unit as zero, what is out of order or twice there.
        "P5",
        "PT5",
        "P1DT",
        "PT1S1H",
        "PT1S1S",
        "P1D1W",
    ];
    for text in texts {
        assert_eq!(fault(text), TermProblem::Unreadable, "{text:?}");
    }
}

#[test]
fn too_far_too_long_and_negative_terms_have_their_own_problems() {
    let digits = "9".repeat(100);
    for text in ["100000000h", "P10000Y", "PT99999999999999999S", "P999999999W", "P4294967296M"] {
        assert_eq!(fault(text), TermProblem::TooFar, "{text}");
    }
    assert_eq!(fault(&format!("{digits}h")), TermProblem::TooFar);
    assert_eq!(fault(&format!("P{digits}Y")), TermProblem::TooFar);
    assert_eq!(fault(&format!("R1/P{digits}Y")), TermProblem::TooFar);
    assert_eq!(fault(&"1s".repeat(65)), TermProblem::TooLong);
    assert_eq!(time(&"1s".repeat(64)), Ok(Some(64 * SECOND)));
    assert_eq!(fault("-5s"), TermProblem::Negative);
    assert_eq!(fault("-1h30m"), TermProblem::Negative);
}

#[test]
fn repetitions_go_with_a_period_and_with_nothing_else() {
    let firings = |text| {
        let schedule = read("", text, "");
        (schedule.firings.map(std::num::NonZero::get), schedule.period)
    };
    let second = Period::new(0, SECOND);
    assert_eq!(firings("R5/PT1S"), (Some(5), second));
    assert_eq!(firings("r1/pt1s"), (Some(1), second));
    assert_eq!(firings("R4294967295/P1M"), (Some(u32::MAX), Period::new(1, Duration::ZERO)));
    assert_eq!(firings("PT1S"), (None, second));
    for text in ["R0/PT1S", "R4294967296/PT1S", "R99999999999999999999/PT1S"] {
        assert_eq!(fault(text), TermProblem::RepetitionCount, "{text}");
    }
    for text in ["R1", "R1/", "R1/PT0S"] {
        assert_eq!(firings(text), (None, None), "{text}");
    }
    // Dapr takes these as one firing.
    for text in ["R5", "R5/", "R5/PT0S"] {
        assert_eq!(fault(text), TermProblem::NoPeriod, "{text}");
    }
    for terms in [Terms::new("R5/PT1S", "", ""), Terms::new("", "1s", "R5/PT1S")] {
        assert_eq!(terms.read(now()).unwrap_err().problem, TermProblem::Repetitions, "{terms:?}");
    }
}

#[test]
fn a_moment_is_one_of_rfc_3339() {
    let cases = [
        ("2026-01-31T12:00:01Z", "2026-01-31T12:00:01Z"),
        ("2026-01-31T13:00:01+01:00", "2026-01-31T12:00:01Z"),
        ("2026-01-31T06:30:01.5-05:30", "2026-01-31T12:00:01.5Z"),
        ("2026-01-31t12:00:01z", "2026-01-31T12:00:01Z"),
        ("2020-02-29T00:00:00Z", "2020-02-29T00:00:00Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        // The value for «never» in some languages.
        ("9999-12-31T23:59:59.9999999Z", "9999-12-31T23:59:59.999999Z"),
        ("9999-12-31T23:59:59-08:00", "9999-12-31T23:59:59.999999Z"),
    ];
    for (text, expected) in cases {
        assert_eq!(read(text, "", "").due.to_string(), expected, "{text}");
    }
    for text in [
        "2026-01-31",
        "2026-01-31 12:00",
        "12:00:00Z",
        "2026-01-31T12:00:00",
        "2026-1-31T12:00:00Z",
        "2026-02-30T12:00:00Z",
        "2026-01-31T24:00:00Z",
        "10000-01-01T00:00:00Z",
        "1:",
        ":",
    ] {
        let error = Terms::new(text, "", "").read(now()).unwrap_err();
        assert_eq!(
            (error.field, error.problem),
            (Field::DueTime, TermProblem::Unreadable),
            "{text}"
        );
    }
}

#[test]
fn an_end_counts_from_the_first_firing() {
    let ends = |due_time, ttl| read(due_time, "3s", ttl).ends;
    assert_eq!(ends("", ""), None);
    assert_eq!(ends("", "20s"), Some(later(20 * SECOND)));
    assert_eq!(ends("10s", "PT10S"), Some(later(20 * SECOND)));
    assert_eq!(ends("10s", "2026-01-31T13:00:00Z"), Some(later(HOUR)));
    assert_eq!(ends("2026-01-30T12:00:00Z", "P2D"), Some(later(DAY)));
    // Dapr's API reference: without a period it means nothing.
    assert_eq!(read("10s", "", "1s").ends, None);
    assert_eq!(read("10s", "0s", "2020-01-01T00:00:00Z").ends, None);
    for (due_time, ttl) in [
        ("", "0s"),
        ("10s", "0s"),
        ("10s", "2026-01-31T12:00:10Z"),
        ("", "2026-01-31T12:00:00Z"),
        ("", "2020-01-01T00:00:00Z"),
        ("2026-01-30T12:00:00Z", "PT24H"),
    ] {
        let error = Terms::new(due_time, "3s", ttl).read(now()).unwrap_err();
        assert_eq!(
            (error.field, error.problem),
            (Field::Ttl, TermProblem::Over),
            "{due_time} {ttl}"
        );
    }
}

#[test]
fn an_error_names_the_field_the_value_and_the_accepted_forms() {
    let message = |due_time, period, ttl| {
        Terms::new(due_time, period, ttl).read(now()).unwrap_err().to_string()
    };
    assert_eq!(
        message("soon", "", ""),
        "`dueTime` is not understood: \"soon\"; it takes a duration (1h30m, PT1H30M) or a moment \
         (2030-01-02T15:00:00Z); without it, firing begins at once"
    );
    assert_eq!(
        message("", "-5s", "x"),
        "`period` is negative: \"-5s\"; it takes a duration (1h30m, PT1H30M), or one with \
         repetitions (R5/PT1H30M fires five times); without it, there is one firing"
    );
    assert!(message("", "1s", "1\n").starts_with("`ttl` is not understood: \"1\\n\"; "));
    let long = message(&"\u{e9}".repeat(100), "", "");
    assert!(long.contains(&format!("\"{}\"", "\u{e9}".repeat(32))), "{long}");
    assert!(long.contains("is longer than 128 bytes"), "{long}");
}

#[test]
fn intervals_of_failure_policies_are_durations() {
    assert_eq!(FailurePolicy::read_interval("2s"), Ok(2 * SECOND));
    assert_eq!(FailurePolicy::read_interval("PT1M"), Ok(MINUTE));
    assert_eq!(FailurePolicy::read_interval("0s"), Ok(Duration::ZERO));
    for text in ["", "P1M", "x", "2026-01-31T12:00:00Z"] {
        let error = FailurePolicy::read_interval(text).unwrap_err();
        assert_eq!(
            (error.field, error.problem),
            (Field::Interval, TermProblem::Unreadable),
            "{text}"
        );
    }
    assert_eq!(FailurePolicy::read_interval("-1s").unwrap_err().problem, TermProblem::Negative);
}

#[test]
fn periods_and_moments_read_back() {
    for text in ["PT1S", "PT0.000001S", "P1M", "P25MT93784.500000S", "PT31536000S"] {
        let period = read("", text, "").period.unwrap();
        assert_eq!(period.to_string(), text);
        assert_eq!(read("", &period.to_string(), "").period, Some(period));
    }
    for moment in [Moment::MIN, Moment::MAX, now(), later(MICRO)] {
        assert_eq!(at(&moment.to_string()), moment);
        assert_eq!(Moment::from_unix_micros(moment.unix_micros()), Some(moment));
    }
    assert_eq!(Moment::from_unix_micros(Moment::MAX.unix_micros() + 1), None);
    assert_eq!(Moment::from_unix_micros(i64::MIN), None);
    assert_eq!(Moment::since_unix_epoch(Duration::MAX), Moment::MAX);
    assert_eq!(Moment::since_unix_epoch(SECOND).to_string(), "1970-01-01T00:00:01Z");
    assert_eq!(later(SECOND).after(now()), SECOND);
    assert_eq!(now().after(later(SECOND)), Duration::ZERO);
}
