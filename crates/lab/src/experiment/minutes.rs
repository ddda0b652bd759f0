//! Expected times in words.

use std::time::Duration;

/// `45 s`, `3 min`, `2 h 5 min`.
#[must_use]
pub fn minutes(time: Duration) -> String {
    let seconds = time.as_secs_f64().ceil() as u64;
    match seconds {
        0..100 => format!("{seconds} s"),
        100..6_000 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_well() {
        let check = |seconds, text| assert_eq!(minutes(Duration::from_secs(seconds)), text);
        check(45, "45 s");
        check(161, "3 min");
        check(7_500, "2 h 5 min");
    }
}
