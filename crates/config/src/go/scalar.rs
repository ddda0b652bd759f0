//! What a plain value is in YAML 1.1, and how Go writes it as a text.

use super::Reader;

/// The type of a scalar with its value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Resolved {
    Null,
    Bool(bool),
    Int(i64),
    /// Above `i64`.
    Uint(u64),
    Float(f64),
    /// The text as it is written.
    Text,
}

/// What an unquoted value is.
pub(super) fn resolve(text: &str, reader: Reader) -> Resolved {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Resolved::Null,
        "true" | "True" | "TRUE" => return Resolved::Bool(true),
        "false" | "False" | "FALSE" => return Resolved::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return Resolved::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Resolved::Float(f64::INFINITY);
        }
        "-.inf" | "-.Inf" | "-.INF" => return Resolved::Float(f64::NEG_INFINITY),
        _ => {}
    }
    if reader != Reader::Configuration
        && let Some(yes) = old_switch(text)
    {
        return Resolved::Bool(yes);
    }
    number(text).unwrap_or(Resolved::Text)
}

/// The words of YAML 1.1 for yes and no beside `true` and `false`.
pub(super) fn old_switch(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

fn number(text: &str) -> Option<Resolved> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) {
        return None;
    }
    let plain = text.replace('_', "");
    if let Some(number) = integer(&plain) {
        return Some(number);
    }
    // One that is too large is a text, as for Go: `9e72372` may be the hash of a commit.
    let number = is_float(&plain).then(|| plain.parse().ok()).flatten();
    number.filter(|number: &f64| number.is_finite()).map(Resolved::Float)
}

/// As Go's `ParseInt` with the base in the text: `0x`, `0o`, `0b`, or a mere `0` for octal.
fn integer(text: &str) -> Option<Resolved> {
    let (is_negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let number = i128::from_str_radix(digits, radix).ok()?;
    let number = if is_negative { -number } else { number };
    let above = || u64::try_from(number).ok().map(Resolved::Uint);
    i64::try_from(number).ok().map(Resolved::Int).or_else(above)
}

/// Digits with a point among or before them, and an exponent.
fn is_float(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (number, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let has_digits = !whole.is_empty() || !part.is_empty();
    let exponent = exponent.map(|text| text.strip_prefix(['+', '-']).unwrap_or(text));
    has_digits
        && digits(whole)
        && digits(part)
        && exponent.is_none_or(|text| !text.is_empty() && digits(text))
}

/// A number or switch where a field takes a text.
pub(super) fn as_text(resolved: Resolved) -> Option<String> {
    Some(match resolved {
        Resolved::Null | Resolved::Text => return None,
        Resolved::Bool(yes) => yes.to_string(),
        Resolved::Int(number) => number.to_string(),
        Resolved::Uint(number) => number.to_string(),
        #[expect(clippy::cast_possible_truncation, reason = "Go writes it with this precision")]
        Resolved::Float(number) => {
            float(f64::from(number as f32), &format!("{:e}", number as f32), -4, 6)
        }
    })
}

/// A number or switch as JSON.
pub(super) fn as_json(resolved: Resolved) -> Option<String> {
    if let Resolved::Float(number) = resolved {
        return Some(float(number, &format!("{number:e}"), -6, 21));
    }
    as_text(resolved)
}

/// The shortest digits of a number, with an exponent where it is below `least` or from `most` on.
fn float(number: f64, scientific: &str, least: i32, most: i32) -> String {
    let Some((digits, exponent)) = scientific.split_once('e') else { return number.to_string() };
    let power: i32 = exponent.parse().unwrap_or_default();
    if number == 0.0 || (least..most).contains(&power) {
        return plain_digits(digits, power);
    }
    let sign = if power < 0 { '-' } else { '+' };
    let power = power.unsigned_abs();
    // JSON has no zeros before the exponent; the text of a number has two digits.
    let power = if least == -4 { format!("{power:02}") } else { power.to_string() };
    format!("{digits}e{sign}{power}")
}

fn plain_digits(digits: &str, power: i32) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    let shift = usize::try_from(power.unsigned_abs()).unwrap_or_default();
    if power < 0 {
        return format!("{sign}0.{}{digits}", "0".repeat(shift.saturating_sub(1)));
    }
    let whole = shift + 1;
    if digits.len() <= whole {
        return format!("{sign}{digits}{}", "0".repeat(whole - digits.len()));
    }
    format!("{sign}{}.{}", &digits[..whole], &digits[whole..])
}
