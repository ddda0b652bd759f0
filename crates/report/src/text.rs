//! The report as text for a terminal of a given width, coloured or not.

use tollway_record::Record;
use tollway_record::record::Question;

use crate::contents;
use crate::table::{Align, Cell, Column, Table, Tone};

/// Narrower terminals are treated as this wide.
const WIDTH_FLOOR: usize = 72;

const BOLD: &str = "\x1b[1m";
const FAINT: &str = "\x1b[2m";
const YELLOW: &str = "\x1b[33m";
const CYAN: &str = "\x1b[36m";
const RESET: &str = "\x1b[0m";

/// The whole report as text, lines at most `width` columns where the figures allow. `color` adds
/// ANSI colours; control characters in the record's own text never reach the terminal.
#[must_use]
pub fn terminal(record: &Record, width: usize, color: bool) -> String {
    let mut text = Text { out: String::new(), width: width.max(WIDTH_FLOOR), color };
    text.heading(&format!("Tollway · {} · {}", record.scenario, record.started_at));
    for sentence in contents::headline(record) {
        text.paragraph("  ", &sentence);
    }
    for section in contents::sections(record) {
        text.table(&contents::latency_table(&section));
    }
    for question in Question::ALL {
        text.table(&contents::added_table(record, *question));
    }
    for table in contents::cost_tables(record) {
        text.table(&table);
    }
    text.list("Warnings", Tone::Doubt, &contents::warnings(record));
    text.list("Notes", Tone::Plain, &contents::notes(record));
    text.list("Not measured here", Tone::Plain, &record.not_measured);
    text.heading("Machine");
    for (name, value) in contents::machine(record) {
        text.paragraph("  ", &format!("{name}: {value}"));
    }
    text.out
}

struct Text {
    out: String,
    width: usize,
    color: bool,
}

impl Text {
    fn heading(&mut self, title: &str) {
        if !self.out.is_empty() {
            self.out.push('\n');
        }
        let title = self.painted(BOLD, &printable(title));
        self.out.push_str(&title);
        self.out.push('\n');
    }

    fn list(&mut self, title: &str, tone: Tone, items: &[String]) {
        if items.is_empty() {
            return;
        }
        self.heading(title);
        for item in items {
            let mark = self.painted(code(tone), "  • ");
            self.wrapped(&mark, "    ", item);
        }
    }

    fn paragraph(&mut self, indent: &str, text: &str) {
        self.wrapped(indent, &format!("{indent}  "), text);
    }

    /// `text` broken between words; `first` and `rest` stand before its lines.
    fn wrapped(&mut self, first: &str, rest: &str, text: &str) {
        let room = self.width.saturating_sub(rest.chars().count()).max(20);
        let mut used = 0;
        self.out.push_str(first);
        for word in printable(text).split_whitespace() {
            let length = word.chars().count();
            if used > 0 && used + 1 + length > room {
                self.out.push('\n');
                self.out.push_str(rest);
                used = 0;
            } else if used > 0 {
                self.out.push(' ');
                used += 1;
            }
            self.out.push_str(word);
            used += length;
        }
        self.out.push('\n');
    }

    fn table(&mut self, table: &Table) {
        if table.is_empty() {
            return;
        }
        self.heading(&table.title);
        if let Some(note) = &table.note {
            let note = self.painted(FAINT, &printable(note));
            self.out.push_str(&format!("  {note}\n"));
        }
        let layout = Layout::fit(table, self.width);
        self.line(&layout, |column, _| (column.head.clone(), CYAN));
        if table.columns.iter().any(|column| !column.unit.is_empty()) {
            self.line(&layout, |column, _| (column.unit.clone(), FAINT));
        }
        for (number, group) in table.groups.iter().enumerate() {
            if number > 0 && group.len() > 1 {
                self.out.push('\n');
            }
            let mut above = String::new();
            for row in group {
                self.line(&layout, |_, index| {
                    let Cell { text, tone } = &row[index];
                    let repeated = index == 0 && *text == above;
                    (if repeated { String::new() } else { printable(text) }, code(*tone))
                });
                above.clone_from(&row[0].text);
            }
        }
    }

    fn line(
        &mut self,
        layout: &Layout<'_>,
        cell: impl Fn(&Column, usize) -> (String, &'static str),
    ) {
        let mut line = String::from("  ");
        for (place, (index, column, width)) in layout.columns.iter().enumerate() {
            if place > 0 {
                line.push_str(layout.gap);
            }
            let (text, code) = cell(column, *index);
            let padding = " ".repeat(width.saturating_sub(text.chars().count()));
            let text = self.painted(code, &text);
            match column.align {
                Align::Left => line.push_str(&(text + &padding)),
                Align::Right => line.push_str(&(padding + &text)),
            }
        }
        self.out.push_str(line.trim_end());
        self.out.push('\n');
    }

    fn painted(&self, code: &str, text: &str) -> String {
        if self.color && !code.is_empty() && !text.is_empty() {
            format!("{code}{text}{RESET}")
        } else {
            text.to_owned()
        }
    }
}

/// The columns that are shown, each with its index and width, and what stands between them.
struct Layout<'a> {
    columns: Vec<(usize, &'a Column, usize)>,
    gap: &'static str,
}

impl<'a> Layout<'a> {
    /// Leaves out spare columns, then narrows the gap, until the table fits.
    fn fit(table: &'a Table, width: usize) -> Self {
        let mut columns: Vec<_> = table
            .columns
            .iter()
            .enumerate()
            .map(|(index, column)| (index, column, widest(table, index)))
            .collect();
        loop {
            let figures: usize = columns.iter().map(|(_, _, width)| width).sum();
            let total = |gap: usize| 2 + figures + gap * columns.len().saturating_sub(1);
            let most_spare = columns.iter().map(|(_, column, _)| column.spare).max().unwrap_or(0);
            if total(2) <= width {
                return Self { columns, gap: "  " };
            }
            if total(1) <= width || most_spare == 0 {
                return Self { columns, gap: " " };
            }
            columns.retain(|(_, column, _)| column.spare < most_spare);
        }
    }
}

fn widest(table: &Table, index: usize) -> usize {
    let column = &table.columns[index];
    let cells = table.groups.iter().flatten().map(|row| row[index].text.as_str());
    [column.head.as_str(), column.unit.as_str()]
        .into_iter()
        .chain(cells)
        .map(|text| text.chars().count())
        .max()
        .unwrap_or(0)
}

fn code(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "",
        Tone::Faint => FAINT,
        Tone::Strong => BOLD,
        Tone::Doubt => YELLOW,
    }
}

/// The text without control characters, which could move the cursor or recolour the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
