//! The terms of timers and reminders.

use tollway_actors::schedule::{Moment, Schedule, TERM_LIMIT_BYTES, Terms};

/// Firings that are followed.
const STEPS: usize = 8;
/// An error repeats the beginning of what was given, and says what would be taken.
const ERROR_BYTES: usize = 1024;

/// Three lines: `dueTime`, `period`, `ttl`.
pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut lines = text.splitn(3, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let terms = Terms::new(line(), line(), line());
    let now = Moment::from_unix_micros(1_769_860_800_000_000).expect("it is in 2026");
    match terms.read(now) {
        Ok(schedule) => check(&terms, schedule, now),
        Err(error) => assert!(error.to_string().len() <= ERROR_BYTES, "{error}"),
    }
}

fn check(terms: &Terms, schedule: Schedule, now: Moment) {
    let texts = [&terms.due_time, &terms.period, &terms.ttl];
    assert!(texts.iter().all(|text| text.len() <= TERM_LIMIT_BYTES));
    assert!(schedule.ends.is_none_or(|ends| ends > schedule.due && ends > now));
    assert_eq!(written(schedule).read(now), Ok(schedule), "what was written reads otherwise");
    let mut left = Some(schedule);
    let mut began = now;
    for step in 0..STEPS {
        let Some(before) = left else { break };
        // On time, a little late, and much later.
        let late = std::time::Duration::from_micros(1 << (step * 7));
        began = began.max(before.due).checked_add(late).unwrap_or(Moment::MAX);
        left = before.after(began);
        if let Some(next) = left {
            assert!(next.due > began && !next.is_over(next.due), "{before:?}, at {began}");
            assert_eq!(before.firings.map(|n| n.get() - 1), next.firings.map(|n| n.get()));
        }
    }
}

/// The terms in the one form that says everything.
fn written(schedule: Schedule) -> Terms {
    let period = match (schedule.period, schedule.firings) {
        (Some(period), Some(firings)) => format!("R{firings}/{period}"),
        (Some(period), None) => period.to_string(),
        (None, _) => String::new(),
    };
    let ends = schedule.ends.map(|ends| ends.to_string()).unwrap_or_default();
    Terms::new(&schedule.due.to_string(), &period, &ends)
}
