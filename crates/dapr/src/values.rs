//! Values as Go and Kubernetes write them: switches, times, sizes.

use std::time::Duration;

/// The longest time that is taken: a year.
const LONGEST: f64 = 365.0 * 24.0 * 3600.0;

/// A switch, in the words that Go takes.
pub(crate) fn switch(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A time such as `1m30s`, `500ms` or `0`. A time below zero is none.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut seconds) = (text, 0.0);
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

/// A size in bytes, such as `4Mi`, `16M` or `4096`. `None` where it is none; -1 is any size.
pub(crate) fn size(text: &str) -> Option<Size> {
    if text == "-1" {
        return Some(Size::Any);
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().ok()?;
    let factor: u64 = match &text[end..] {
        "" => 1,
        "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(factor).map(Size::Bytes)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Size {
    Bytes(u64),
    Any,
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
            ("1.5s", 1500),
            ("1h0m0.25s", 3_600_250),
            ("2000us", 2),
        ] {
            assert_eq!(ms(text), Some(expected), "{text}");
        }
        for wrong in ["", "5", "s", "5 s", "-1s", "1d", "1..5s", "9999999h"] {
            assert_eq!(ms(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sizes_are_quantities_of_kubernetes() {
        for (text, expected) in [
            ("4Mi", Some(Size::Bytes(4 << 20))),
            ("16M", Some(Size::Bytes(16_000_000))),
            ("4096", Some(Size::Bytes(4096))),
            ("64Ki", Some(Size::Bytes(64 << 10))),
            ("-1", Some(Size::Any)),
            ("", None),
            ("-2", None),
            ("4MiB", None),
            ("99999999999Gi", None),
        ] {
            assert_eq!(size(text), expected, "{text}");
        }
    }
}
