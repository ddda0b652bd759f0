//! Tables of what apps keep.

/// A text of an app, which may hold what moves a terminal's cursor.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}

/// Per cent.
pub(crate) fn share(bytes: u64, most: u64) -> f64 {
    if most == 0 { 0.0 } else { bytes as f64 * 100.0 / most as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_does_not_move_the_cursor() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
    }
}
