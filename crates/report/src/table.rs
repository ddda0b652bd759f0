//! A table before it is text or HTML: heads with units, cells with a tone.

use crate::figures;

/// Rows of cells under heads, with a title.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) title: String,
    /// What the reader must know about these figures, one sentence.
    pub(crate) note: Option<String>,
    pub(crate) columns: Vec<Column>,
    /// As many cells each as there are columns. An empty line is between groups of rows.
    pub(crate) groups: Vec<Vec<Vec<Cell>>>,
}

/// A column's head.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) head: String,
    /// Unit, or what distinguishes columns under the same head.
    pub(crate) unit: String,
    pub(crate) align: Align,
    /// Columns above 0 are left out where space is short, the highest first.
    pub(crate) spare: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// One figure or word.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    pub(crate) text: String,
    /// The interval of a figure, shown next to it; may be empty.
    pub(crate) range: String,
    pub(crate) tone: Tone,
}

/// The emphasis of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Faint,
    Strong,
    Doubt,
}

impl Column {
    pub(crate) fn left(head: &str, unit: &str) -> Self {
        Self { head: head.to_owned(), unit: unit.to_owned(), align: Align::Left, spare: 0 }
    }

    pub(crate) fn right(head: &str, unit: &str) -> Self {
        Self { align: Align::Right, ..Self::left(head, unit) }
    }

    pub(crate) fn spare(self, spare: u8) -> Self {
        Self { spare, ..self }
    }
}

impl Cell {
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), range: String::new(), tone: Tone::Plain }
    }

    pub(crate) fn with_range((text, range): (String, String)) -> Self {
        Self { range, ..Self::plain(text) }
    }

    pub(crate) fn toned(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }

    /// Toned where there is a doubt.
    pub(crate) fn doubted(self, doubt: bool) -> Self {
        if doubt { self.toned(Tone::Doubt) } else { self }
    }
}

impl Table {
    /// The table without columns of figures that are empty.
    pub(crate) fn without_empty_columns(mut self) -> Self {
        let stands = |index: &usize| {
            self.groups.iter().flatten().any(|row| row[*index].text != figures::NONE)
        };
        let shown: Vec<usize> = (0..self.columns.len()).filter(stands).collect();
        if shown.len() < self.columns.len() && !self.is_empty() {
            self.columns = shown.iter().map(|index| self.columns[*index].clone()).collect();
            for row in self.groups.iter_mut().flatten() {
                *row = shown.iter().map(|index| row[*index].clone()).collect();
            }
        }
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.groups.iter().all(Vec::is_empty)
    }
}
