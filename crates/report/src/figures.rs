//! Numbers as readers see them: three significant digits, a unit that fits, an honest sign.
//!
//! Estimates with an interval show the digits their interval justifies, since 138.21 ms
//! [138.17, 138.25] would otherwise be 138 ms [138, 138].

/// Shown where there is no number.
pub(crate) const NONE: &str = "—";

/// Three significant digits, thousands separated: `0.0812`, `87.3`, `1,240`.
pub(crate) fn digits3(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    // Rounding may add a digit: 9.996 is 10.0.
    let rounded = format!("{value:.2e}").parse().unwrap_or(value);
    fixed(rounded, 2 - magnitude(rounded))
}

/// As [`digits3`], but never more than the value: for rates that were to be reached.
pub(crate) fn digits3_down(value: f64) -> String {
    if value <= 0.0 {
        return "0".to_owned();
    }
    let step = 10_f64.powi(magnitude(value) - 2);
    let down = (value / step * (1.0 + 1e-12)).floor() * step;
    fixed(down, 2 - magnitude(down))
}

/// As [`digits3`] without trailing zeros after the point: `5`, `2.5`.
pub(crate) fn digits_short(value: f64) -> String {
    let text = digits3(value);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A whole number with thousands separated.
pub(crate) fn count(value: u64) -> String {
    separated(&value.to_string())
}

/// Smaller values are rounding errors, not times that a clock resolves: half a nanosecond.
const LEAST_US: f64 = 0.0005;

/// A time with the unit that fits: `87.3 µs`, `1.24 ms`, `2.03 s`.
pub(crate) fn time(us: f64) -> String {
    if us.abs() < LEAST_US {
        return "0 µs".to_owned();
    }
    let unit = TimeUnit::of(us);
    format!("{} {}", digits3(us / unit.us()), unit.name())
}

/// Memory in decimal megabytes.
pub(crate) fn megabytes(bytes: u64) -> String {
    digits3(bytes as f64 / 1e6)
}

/// A difference with its sign: `+61.2 µs`, `−3.10 µs`.
pub(crate) fn difference(us: f64) -> String {
    let sign = if us.abs() < LEAST_US { "" } else { sign(us) };
    format!("{sign}{}", time(us.abs()))
}

/// A difference and its interval: `+61 µs` and `[58, 64]`; the latter empty without one.
pub(crate) fn difference_with(us: f64, ci95: Option<[f64; 2]>) -> (String, String) {
    let Some(ends) = ci95 else { return (difference(us), String::new()) };
    let (unit, decimals) = justified(us, ends);
    let rounded = |value: f64| rounded_to_zero(value / unit.us(), decimals);
    let shown = |value: f64| fixed(rounded(value).abs(), decimals);
    let minus = |value: f64| if rounded(value) < 0.0 { "−" } else { "" };
    let [lo, hi] = ends.map(|end| format!("{}{}", minus(end), shown(end)));
    (format!("{}{} {}", sign(rounded(us)), shown(us), unit.name()), format!("[{lo}, {hi}]"))
}

/// A time and its interval: `138.21 ms` and `[138.17, 138.25]`; the latter empty without one.
pub(crate) fn time_with(us: f64, ci95: Option<[f64; 2]>) -> (String, String) {
    let (text, range) = difference_with(us, ci95);
    (text.trim_start_matches('+').to_owned(), range)
}

/// The size of a difference with the digits its interval justifies, without sign or interval.
pub(crate) fn size(us: f64, ci95: Option<[f64; 2]>) -> String {
    let Some(ends) = ci95 else { return time(us.abs()) };
    let (unit, decimals) = justified(us, ends);
    format!("{} {}", fixed((us / unit.us()).abs(), decimals), unit.name())
}

fn justified(us: f64, [lo, hi]: [f64; 2]) -> (TimeUnit, i32) {
    let unit = TimeUnit::of(us.abs().max(lo.abs()).max(hi.abs()));
    (unit, decimals_for((hi - lo) / 2.0 / unit.us(), us / unit.us()))
}

/// The value as it will be shown, so that what is shown as 0 has no sign.
fn rounded_to_zero(value: f64, decimals: i32) -> f64 {
    let step = 10_f64.powi(-decimals.max(0));
    if value.abs() < step / 2.0 { 0.0 } else { value }
}

/// A ratio and its interval: `1.70` and `[1.65, 1.75]`; the latter empty without one.
pub(crate) fn ratio_with(ratio: f64, ci95: Option<[f64; 2]>) -> (String, String) {
    let Some([lo, hi]) = ci95 else { return (digits3(ratio), String::new()) };
    // More places would be the digits of the arithmetic.
    let least = i32::from(lo < 10.0);
    let decimals = decimals_for((hi - lo) / 2.0, ratio).clamp(least, 4);
    if hi >= lo * WIDE_RATIOS || (lo > 0.0 && rounded_to_zero(lo, decimals) == 0.0) {
        // So wide an interval justifies no place, and its ends no digits.
        return (digits3(ratio), format!("[{}, {}]", ratio_end(lo), ratio_end(hi)));
    }
    (fixed(ratio, decimals), format!("[{}, {}]", fixed(lo, decimals), fixed(hi, decimals)))
}

/// An interval whose ends differ by this factor shows only an order of magnitude.
const WIDE_RATIOS: f64 = 30.0;

/// Ratios beyond these are shown as bounds.
const RATIOS_READ: [f64; 2] = [0.001, 1_000.0];

fn ratio_end(ratio: f64) -> String {
    let [least, most] = RATIOS_READ;
    match ratio {
        tiny if tiny < least => format!("<{}", digits_short(least)),
        huge if huge > most => format!(">{}", digits_short(most)),
        other => digits_short(other),
    }
}

/// A fraction as percent, two significant digits: `0.24 %`.
pub(crate) fn percent(fraction: f64) -> String {
    let percent: f64 = format!("{:.1e}", fraction * 100.0).parse().unwrap_or(fraction * 100.0);
    format!("{} %", fixed(percent, 1 - magnitude(percent)))
}

/// A share as percent in whole numbers, with a place where it is below 10 %: `43 %`, `4.3 %`.
pub(crate) fn share(fraction: f64) -> String {
    let percent = fraction * 100.0;
    format!("{} %", fixed(percent, i32::from(percent.abs() < 9.95)))
}

/// Bits per second with the decimal unit that fits: `812 Mbit/s`, `23.4 Gbit/s`.
pub(crate) fn bits_per_s(bits: f64) -> String {
    match bits {
        large if large >= 999.5e6 => format!("{} Gbit/s", digits3(large / 1e9)),
        middle if middle >= 999.5e3 => format!("{} Mbit/s", digits3(middle / 1e6)),
        small => format!("{} kbit/s", digits3(small / 1e3)),
    }
}

/// The day, in UTC, of a time in seconds since 1970: `2026-11-21`.
pub(crate) fn date(unix_s: f64) -> String {
    let at = time::OffsetDateTime::from_unix_timestamp(unix_s as i64);
    at.map(|at| at.date().to_string()).unwrap_or_default()
}

/// The minute, in UTC, of a time in seconds since 1970: `11-21 09:05`.
pub(crate) fn minute(unix_s: f64) -> String {
    let at = time::OffsetDateTime::from_unix_timestamp(unix_s as i64);
    let text = |at: time::OffsetDateTime| {
        let (month, day) = (u8::from(at.month()), at.day());
        format!("{month:02}-{day:02} {:02}:{:02}", at.hour(), at.minute())
    };
    at.map(text).unwrap_or_default()
}

/// The unit in which latencies of about this size are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeUnit {
    Micro,
    Milli,
    Second,
}

impl TimeUnit {
    pub(crate) fn of(us: f64) -> Self {
        match us.abs() {
            us if us < 999.5 => Self::Micro,
            us if us < 999_500.0 => Self::Milli,
            _ => Self::Second,
        }
    }

    pub(crate) fn us(self) -> f64 {
        match self {
            Self::Micro => 1.0,
            Self::Milli => 1e3,
            Self::Second => 1e6,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Micro => "µs",
            Self::Milli => "ms",
            Self::Second => "s",
        }
    }
}

/// `value` with that many places after the point (none if negative), thousands separated.
pub(crate) fn fixed(value: f64, decimals: i32) -> String {
    let decimals = decimals.clamp(0, 12) as usize;
    let text = format!("{value:.decimals$}");
    match text.split_once('.') {
        Some((whole, rest)) => format!("{}.{rest}", separated(whole)),
        None => separated(&text),
    }
}

/// Places that an interval's half width justifies: its first digit, two if that is 1 or 2.
fn decimals_for(half: f64, estimate: f64) -> i32 {
    if half <= 0.0 {
        return 2 - magnitude(estimate);
    }
    let scale = magnitude(half);
    let leading = half / 10_f64.powi(scale);
    i32::from(leading < 3.0) - scale
}

/// The power of ten of the first significant digit.
fn magnitude(value: f64) -> i32 {
    let magnitude = value.abs().log10().floor();
    if magnitude.is_finite() { magnitude as i32 } else { 0 }
}

fn sign(value: f64) -> &'static str {
    match value {
        v if v > 0.0 => "+",
        v if v < 0.0 => "−",
        _ => "",
    }
}

fn separated(digits: &str) -> String {
    let (minus, digits) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return format!("{minus}{digits}");
    }
    let mut text = minus.to_owned();
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
    fn three_digits_are_significant() {
        let check = |value: f64, expected: &str| assert_eq!(digits3(value), expected);
        check(0.0, "0");
        check(0.08123, "0.0812");
        check(9.996, "10.0");
        check(87.34, "87.3");
        check(999.6, "1,000");
        check(1_238.0, "1,240");
        check(1_234_567.0, "1,230,000");
        check(-4.567, "-4.57");
    }

    #[test]
    fn a_rate_is_never_rounded_up() {
        let check = |value: f64, expected: &str| assert_eq!(digits3_down(value), expected);
        check(1_000.0, "1,000");
        check(999.96, "999");
        check(989.99, "989");
        check(0.0, "0");
    }

    #[test]
    fn times_carry_the_unit_that_fits() {
        let check = |us: f64, expected: &str| assert_eq!(time(us), expected);
        check(0.4, "0.400 µs");
        check(999.4, "999 µs");
        check(999.7, "1.00 ms");
        check(138_213.0, "138 ms");
        check(2_030_000.0, "2.03 s");
    }

    #[test]
    fn an_interval_shows_the_digits_it_justifies() {
        let check = |us, lo, hi, expected: &str| {
            let (text, range) = difference_with(us, Some([lo, hi]));
            assert_eq!(format!("{text} {range}"), expected);
        };
        check(61.23, 58.02, 64.44, "+61 µs [58, 64]");
        check(61.23, 60.02, 62.44, "+61.2 µs [60.0, 62.4]");
        check(138_213.0, 138_173.0, 138_253.0, "+138.21 ms [138.17, 138.25]");
        check(-3.0, -9.0, 4.0, "−3 µs [−9, 4]");
        check(120.0, -400.0, 640.0, "+120 µs [−400, 640]");
        check(0.01, -4.0, 4.02, "0 µs [−4, 4]");
        assert_eq!(difference_with(12.0, None), ("+12.0 µs".to_owned(), String::new()));
        assert_eq!(size(-61.23, Some([-64.44, -58.02])), "61 µs");
        assert_eq!(ratio_with(1.7034, Some([1.65, 1.752])).1, "[1.65, 1.75]");
        assert_eq!(ratio_with(15.2, Some([0.2, 85.1])).1, "[0.2, 85.1]");
        assert_eq!(ratio_with(1_650.2, Some([1_611.0, 1_690.0])).1, "[1,611, 1,690]");
        assert_eq!(ratio_with(2.1, Some([0.04, 1.1])).1, "[0.04, 1.1]");
        assert_eq!(ratio_with(2.1, Some([0.55, 8.0])).1, "[0.6, 8.0]");
        assert_eq!(ratio_with(4.0, Some([1e-20, 1e30])).1, "[<0.001, >1,000]");
    }

    #[test]
    fn percents_have_two_digits() {
        let check = |fraction: f64, expected: &str| assert_eq!(percent(fraction), expected);
        check(0.1123, "11 %");
        check(0.000_711, "0.071 %");
        check(0.0, "0.0 %");
    }

    #[test]
    fn shares_are_whole_percents_where_they_are_large() {
        let check = |fraction: f64, expected: &str| assert_eq!(share(fraction), expected);
        check(0.432, "43 %");
        check(1.004, "100 %");
        check(0.0432, "4.3 %");
        check(0.0996, "10 %");
    }

    #[test]
    fn bits_carry_the_unit_that_fits() {
        let check = |bits: f64, expected: &str| assert_eq!(bits_per_s(bits), expected);
        check(23.44e9, "23.4 Gbit/s");
        check(999.6e6, "1.00 Gbit/s");
        check(812e6, "812 Mbit/s");
        check(1_500.0, "1.50 kbit/s");
    }

    #[test]
    fn counts_are_exact() {
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(7), "7");
    }
}
