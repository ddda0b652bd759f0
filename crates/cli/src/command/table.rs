//! Tables on the terminal.

/// A heading, and on which side its column is flush.
pub(crate) type Column = (&'static str, Side);

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// Each column is as wide as its widest entry.
pub(crate) fn table(columns: &[Column], rows: Vec<Vec<String>>) -> String {
    let headings = columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(headings).chain(rows).collect();
    let width = |at: usize| {
        let widths = rows.iter().filter_map(|row| row.get(at)).map(|text| text.chars().count());
        widths.max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(columns.iter().zip(&widths));
        let cells = cells.map(|(cell, ((_, side), width))| match side {
            Side::Left => format!("{cell:<width$}"),
            Side::Right => format!("{cell:>width$}"),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text += line.trim_end();
        text.push('\n');
    }
    text
}
