//! Limits as the documentation has them.

/// Holds a page to what a limit is: it has a row for `name` that begins with the default.
#[track_caller]
pub fn check_limit(page: &str, name: &str, default: &str) {
    let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
    let row = row.unwrap_or_else(|| panic!("docs/limits.md has no row for `{name}`"));
    let written = row.split('|').nth(2).unwrap_or_default().trim();
    assert_eq!(written, default, "`{name}` in docs/limits.md");
}

/// With commas between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let (mut text, lead) = (String::new(), digits.len() % 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && at % 3 == lead {
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
    fn thousands_have_commas_between_them() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345_678, "12,345,678")]
        {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn a_row_is_found_by_its_name() {
        check_limit("| `a` | 1 |\n| `a_b` | 10 s | of |\n", "a_b", "10 s");
    }

    #[test]
    #[should_panic(expected = "no row for `b`")]
    fn a_limit_without_a_row_fails_the_check() {
        check_limit("| `a` | 1 |\n", "b", "1");
    }
}
