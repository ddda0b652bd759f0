//! Numbers as a person reads them: three significant digits and a unit.

/// Microseconds as a time: `12.3 µs`, `1.00 ms`, `1.50 s`.
pub(crate) fn duration(us: f64) -> String {
    match us {
        _ if us < 999.5 => format!("{} µs", significant(us)),
        _ if us < 999_500.0 => format!("{} ms", significant(us / 1e3)),
        _ => format!("{} s", significant(us / 1e6)),
    }
}

/// How long was measured, and what came before: `10.0 s after 1.00 s of warm-up`.
pub(super) fn window(lasting_s: f64, warm_up_s: f64) -> String {
    let lasting = duration(lasting_s * 1e6);
    match warm_up_s {
        0.0 => format!("{lasting}, no warm-up"),
        _ => format!("{lasting} after {} of warm-up", duration(warm_up_s * 1e6)),
    }
}

/// `1 stream`, `2,000 streams`.
pub(super) fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// As [`duration`], and a dash for what is not known.
pub(super) fn duration_or_dash(us: Option<f64>) -> String {
    us.map_or_else(|| "—".to_owned(), duration)
}

/// Bits per second: `9.41 Gbit/s`.
pub(crate) fn bit_rate(bits_per_s: f64) -> String {
    scaled(bits_per_s, "bit/s")
}

/// Bytes, decimal: `1.13 GB`.
pub(crate) fn bytes(bytes: f64) -> String {
    scaled(bytes, "B")
}

fn scaled(value: f64, unit: &str) -> String {
    for (size, prefix) in [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value >= size * 0.9995 {
            return format!("{} {prefix}{unit}", significant(value / size));
        }
    }
    format!("{value:.0} {unit}")
}

/// Three significant digits below a thousand, whole and grouped above.
pub(super) fn significant(value: f64) -> String {
    match value {
        _ if value >= 999.5 => grouped(value.round() as u64),
        _ if value >= 99.95 => format!("{value:.0}"),
        _ if value >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Thousands apart: `12,345`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_carry_three_digits_and_a_unit() {
        for (us, text) in [
            (0.0, "0.00 µs"),
            (12.34, "12.3 µs"),
            (999.4, "999 µs"),
            (999.6, "1.00 ms"),
            (138_210.0, "138 ms"),
            (1_500_000.0, "1.50 s"),
            (4_000_000_000.0, "4,000 s"),
        ] {
            assert_eq!(duration(us), text);
        }
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(0), "0");
        assert_eq!(bit_rate(9.412e9), "9.41 Gbit/s");
        assert_eq!(bytes(999_600.0), "1.00 MB");
        assert_eq!(bytes(12.0), "12 B");
    }

    #[test]
    fn one_is_no_plural_and_no_warm_up_is_shown_as_none() {
        assert_eq!(counted(1, "stream"), "1 stream");
        assert_eq!(counted(2000, "stream"), "2,000 streams");
        assert_eq!(window(0.5, 0.0), "500 ms, no warm-up");
        assert_eq!(window(10.0, 1.0), "10.0 s after 1.00 s of warm-up");
    }
}
