//! Quantities of Kubernetes: `100m`, `1.5`, `64Mi`.

/// Whether a text is a quantity above zero.
#[must_use]
pub fn is_quantity(text: &str) -> bool {
    value(text).is_some()
}

/// The value of a quantity, to be compared with others; `None` if it is none or not above zero.
pub(crate) fn value(text: &str) -> Option<f64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let has_digit = number.bytes().any(|byte| byte.is_ascii_digit());
    let number: f64 = number.parse().ok().filter(|_| has_digit)?;
    let value = number * scale(suffix)?;
    (value > 0.0 && value.is_finite()).then_some(value)
}

fn scale(suffix: &str) -> Option<f64> {
    let binary = |power: i32| 1024_f64.powi(power);
    Some(match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            10_f64.powi(exponent.parse().ok()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::value;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("100m", Some(0.1)),
            ("1.5", Some(1.5)),
            ("64Mi", Some(67_108_864.0)),
            ("1e3", Some(1000.0)),
            ("2E", Some(2e18)),
            (".5", Some(0.5)),
            ("0", None),
            ("", None),
            (".", None),
            ("Mi", None),
            ("64MB", None),
            ("-1", None),
            ("1 Gi", None),
            ("1e400", None),
            ("nan", None),
        ] {
            let found = value(text);
            let same = match (found, expected) {
                (Some(found), Some(expected)) => (found / expected - 1.0).abs() < 1e-9,
                (None, None) => true,
                _ => false,
            };
            assert!(same, "{text}: {found:?}");
        }
    }
}
