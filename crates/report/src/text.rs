//! The report as text for a terminal of a given width, coloured or not.

use tollway_record::Record;

use crate::contents::{self, SeedLines};
use crate::document::RunFile;
use crate::figures::NONE;
use crate::table::{Align, Cell, Column, Table, Tone};

/// Narrower terminals are treated as this wide.
const WIDTH_FLOOR: usize = 60;

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
    for table in contents::particular_tables(record).iter().chain(&contents::added_tables(record)) {
        text.table(table);
    }
    for table in contents::fabric_tables(record) {
        text.table(&table);
    }
    for table in contents::cost_tables(record) {
        text.table(&table);
    }
    text.table(&contents::idle_table(record));
    text.seed_table(record);
    text.list("Warnings", Tone::Doubt, &contents::warnings_in_short(record));
    text.list("Notes", Tone::Plain, &contents::notes(record));
    text.list("Not measured here", Tone::Plain, &record.not_measured);
    text.heading("Machine");
    for (name, value) in contents::machine(record) {
        text.paragraph("  ", &format!("{name}: {value}"));
    }
    text.out
}

/// The report of a load run, in the same manner.
pub(crate) fn run(file: &RunFile, width: usize, color: bool) -> String {
    let mut text = Text { out: String::new(), width: width.max(WIDTH_FLOOR), color };
    text.heading(&format!("Tollway · {} · {}", file.kind.word(), file.run.started_at));
    for sentence in contents::run_headline(file) {
        text.paragraph("  ", &sentence);
    }
    text.table(&contents::run_table(file));
    text.table(&contents::run_errors(&file.run.traffic));
    text.table(&contents::run_trials(&file.run));
    text.heading("How it was measured");
    for (name, value) in contents::run_facts(file) {
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

    /// Published figures with today's below them.
    fn seed_table(&mut self, record: &Record) {
        let Some(table) = &record.seed_table else { return };
        self.heading(&table.title);
        for SeedLines { what, unit, published, today } in contents::seed_lines(table) {
            self.paragraph("  ", &format!("{what}, {unit}"));
            for (name, values) in [("published", published), ("today", today)] {
                let values: Vec<String> =
                    values.iter().map(|(of, value)| format!("{of} {value}")).collect();
                let values = if values.is_empty() { NONE.to_owned() } else { values.join(" · ") };
                self.wrapped(&format!("    {name:<11}"), &" ".repeat(15), &values);
            }
        }
        for note in &table.notes {
            let mark = self.painted(FAINT, "  • ");
            self.wrapped(&mark, "    ", note);
        }
    }

    fn paragraph(&mut self, indent: &str, text: &str) {
        self.wrapped(indent, &format!("{indent}  "), text);
    }

    /// `text` broken between words; `first` and `rest` precede its lines.
    fn wrapped(&mut self, first: &str, rest: &str, text: &str) {
        let room = self.width.saturating_sub(rest.chars().count());
        for (number, line) in broken(text, room).into_iter().enumerate() {
            self.out.push_str(if number == 0 { first } else { rest });
            self.out.push_str(&line);
            self.out.push('\n');
        }
    }

    fn table(&mut self, table: &Table) {
        if table.is_empty() {
            return;
        }
        self.heading(&table.title);
        if let Some(note) = &table.note {
            for line in broken(note, self.width - 2) {
                let line = self.painted(FAINT, &line);
                self.out.push_str(&format!("  {line}\n"));
            }
        }
        let layout = Layout::fit(table, self.width);
        self.line(&layout, |column, _| Shown::head(&column.head, CYAN));
        if table.columns.iter().any(|column| !column.unit.is_empty()) {
            self.line(&layout, |column, _| Shown::head(&column.unit, FAINT));
        }
        for (number, group) in table.groups.iter().enumerate() {
            if number > 0 && group.len() > 1 {
                self.out.push('\n');
            }
            let mut above = String::new();
            for row in group {
                self.line(&layout, |_, index| {
                    let cell = &row[index];
                    let repeated = index == 0 && cell.text == above;
                    let text = if repeated { "" } else { &cell.text };
                    let (text, range) = (printable(text), cell.range.clone());
                    Shown { text, range, code: code(cell.tone), head: false }
                });
                above.clone_from(&row[0].text);
            }
        }
    }

    fn line(&mut self, layout: &Layout<'_>, cell: impl Fn(&Column, usize) -> Shown) {
        let mut line = String::from("  ");
        for (index, fitted) in layout.columns.iter().enumerate() {
            if index > 0 {
                line.push_str(layout.gap);
            }
            let shown = cell(fitted.column, fitted.index);
            line.push_str(&self.aligned(&shown, fitted));
        }
        self.out.push_str(line.trim_end());
        self.out.push('\n');
    }

    /// The cell in its column's width. Figures end, and their intervals begin, at the same place.
    fn aligned(&self, shown: &Shown, fitted: &Fitted<'_>) -> String {
        let range = match fitted.range {
            0 => String::new(),
            _ if shown.head => String::new(),
            width => format!(" {:<width$}", shown.range),
        };
        let width = fitted.width().saturating_sub(range.chars().count());
        let padding = " ".repeat(width.saturating_sub(shown.text.chars().count()));
        let text = self.painted(shown.code, &shown.text);
        match fitted.column.align {
            Align::Left => format!("{text}{range}{padding}"),
            Align::Right => format!("{padding}{text}{range}"),
        }
    }

    fn painted(&self, code: &str, text: &str) -> String {
        if self.color && !code.is_empty() && !text.is_empty() {
            format!("{code}{text}{RESET}")
        } else {
            text.to_owned()
        }
    }
}

/// The text of a cell, and its colour.
struct Shown {
    text: String,
    range: String,
    code: &'static str,
    head: bool,
}

impl Shown {
    fn head(text: &str, code: &'static str) -> Self {
        Self { text: printable(text), range: String::new(), code, head: true }
    }
}

/// The columns that are shown and their separators.
struct Layout<'a> {
    columns: Vec<Fitted<'a>>,
    gap: &'static str,
}

/// A column with the widths of its widest head, figure and interval.
struct Fitted<'a> {
    index: usize,
    column: &'a Column,
    head: usize,
    text: usize,
    range: usize,
}

impl<'a> Layout<'a> {
    /// Leaves out spare columns, then narrows the gap, until the table fits.
    fn fit(table: &'a Table, width: usize) -> Self {
        let mut columns: Vec<_> =
            (0..table.columns.len()).map(|index| Fitted::new(table, index)).collect();
        loop {
            let figures: usize = columns.iter().map(Fitted::width).sum();
            let total = |gap: usize| 2 + figures + gap * columns.len().saturating_sub(1);
            let most_spare = columns.iter().map(|fitted| fitted.column.spare).max().unwrap_or(0);
            if total(2) <= width {
                return Self { columns, gap: "  " };
            }
            if total(1) <= width || most_spare == 0 {
                return Self { columns, gap: " " };
            }
            columns.retain(|fitted| fitted.column.spare < most_spare);
        }
    }
}

impl<'a> Fitted<'a> {
    fn new(table: &'a Table, index: usize) -> Self {
        let column = &table.columns[index];
        let widest = |part: fn(&Cell) -> &str| {
            let cells = table.groups.iter().flatten().map(|row| part(&row[index]).chars().count());
            cells.max().unwrap_or(0)
        };
        let head = column.head.chars().count().max(column.unit.chars().count());
        let (text, range) = (widest(|cell| &cell.text), widest(|cell| &cell.range));
        Self { index, column, head, text, range }
    }

    fn width(&self) -> usize {
        let range = if self.range > 0 { 1 + self.range } else { 0 };
        self.head.max(self.text + range)
    }
}

fn code(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "",
        Tone::Faint => FAINT,
        Tone::Strong => BOLD,
        Tone::Doubt => YELLOW,
    }
}

/// The text in lines of at most `room` columns, broken between words if possible.
fn broken(text: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut used = 0;
    for word in printable(text).split_whitespace() {
        let length = word.chars().count();
        match lines.last_mut() {
            Some(line) if used + 1 + length <= room => {
                line.push(' ');
                line.push_str(word);
                used += 1 + length;
            }
            _ => {
                lines.push(word.to_owned());
                used = length;
            }
        }
    }
    lines
}

/// The text without control characters, which could move the cursor or recolour the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
