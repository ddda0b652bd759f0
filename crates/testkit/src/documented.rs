//! Limits as the documentation has them.

/// Holds a page to what a limit is: it has a row for `name` that begins with the default.
#[track_caller]
pub fn check_limit(page: &str, name: &str, default: &str) {
    let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
    let row = row.unwrap_or_else(|| panic!("docs/limits.md has no row for `{name}`"));
    let written = row.split('|').nth(2).unwrap_or_default().trim();
    assert_eq!(written, default, "`{name}` in docs/limits.md");
}

/// The rows of the table on a page whose head begins with `| FIRST |`: for each the cells of `keys`
/// columns, without code marks, and those of the named columns, in their order.
#[track_caller]
pub fn table<const N: usize>(
    page: &str,
    first: &str,
    keys: usize,
    columns: [&str; N],
) -> Vec<(Vec<String>, [String; N])> {
    let cells = |line: &str| {
        let line = line.trim().trim_matches('|').to_owned();
        line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    let mut lines = page.lines().skip_while(|line| !line.starts_with(&format!("| {first} |")));
    let head = cells(lines.next().unwrap_or_else(|| panic!("there is no table of {first:?}")));
    let at = columns.map(|column| {
        let at = head.iter().position(|cell| cell == column);
        at.unwrap_or_else(|| panic!("the table of {first:?} has no column {column:?}"))
    });
    let rows = lines.skip(1).take_while(|line| line.starts_with('|')).map(|line| {
        let cells = cells(line);
        let key = |cell: &String| cell.trim_matches('`').to_owned();
        (cells[..keys].iter().map(key).collect(), at.map(|at| cells[at].clone()))
    });
    rows.collect()
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

    #[test]
    fn the_rows_of_a_table_are_read_by_their_columns() {
        let page = "| b | x |\n|---|---|\n| 1 | 2 |\n\n| a | x | y |\n|---|---|---|\n| `p q` | 3 | 4 |\nend\n";
        let rows = table(page, "a", 1, ["y", "x"]);
        assert_eq!(rows, [(vec!["p q".to_owned()], ["4".to_owned(), "3".to_owned()])]);
    }
}
