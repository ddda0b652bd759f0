//! Times as Go writes them.

use std::time::Duration;

/// The longest time that is taken, in seconds: a year.
const LONGEST: f64 = 365.0 * 24.0 * 3600.0;

/// A time such as `1m30s`, `1.5s`, `500ms` or `0`. `None` for what is none, or below zero.
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut seconds) = (text.strip_prefix('+').unwrap_or(text), 0.0);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let unit_end = rest[end..].find(|c: char| c.is_ascii_digit() || c == '.');
        let unit_end = unit_end.map_or(rest.len(), |length| end + length);
        seconds += number * unit(&rest[end..unit_end])?;
        rest = &rest[unit_end..];
    }
    (seconds <= LONGEST).then(|| Duration::from_secs_f64(seconds))
}

fn unit(text: &str) -> Option<f64> {
    Some(match text {
        "ns" => 1e-9,
        "us" | "µs" | "μs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_go_writes_them() {
        let ms = |text| duration(text).map(|time| time.as_millis());
        for (text, expected) in [
            ("0", 0),
            ("0s", 0),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("+1.5s", 1500),
            ("1h0m0.25s", 3_600_250),
            ("2000us", 2),
        ] {
            assert_eq!(ms(text), Some(expected), "{text}");
        }
        for wrong in ["", "+", "5", "s", "5 s", "-1s", "1d", "1..5s", "9999999h"] {
            assert_eq!(ms(wrong), None, "{wrong}");
        }
    }
}
