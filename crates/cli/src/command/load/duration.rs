//! Times on the command line.

use std::time::Duration;

use anyhow::{Context, Result, bail};

/// `500ms`, `10s`, `2m`, `1h`; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().with_context(|| format!("`{text}` has no number"))?;
    let seconds = match unit {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "" | "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => bail!("`{unit}` is no unit of time; use us, ms, s, m or h"),
    };
    Duration::try_from_secs_f64(seconds).with_context(|| format!("`{text}` is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let check = |text, ms| assert_eq!(duration(text).unwrap(), Duration::from_millis(ms));
        check("500ms", 500);
        check("1.5s", 1500);
        check("2", 2000);
        check("2m", 120_000);
        for bad in ["", "s", "5 years", "-1s", "1e99s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
