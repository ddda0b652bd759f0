//! Which rows belong in one chart, what they are called there, and in which colour.

use std::collections::BTreeMap;

use tollway_record::HistogramError;
use tollway_record::record::{Arrival, Conditions, Record, Row};

use super::{arrival, place, protocol};
use crate::figures;
use crate::plot::{Course, Point, Sample};

/// Longest name that is shown of what a record names itself, in characters.
pub(crate) const NAME_LIMIT: usize = 60;

/// Rows that differ in what was measured, not in how.
pub(crate) struct Group<'a> {
    /// What its rows have in common.
    pub(crate) title: String,
    pub(crate) rows: Vec<Named<'a>>,
}

/// A row with the name it has among its neighbours.
pub(crate) struct Named<'a> {
    pub(crate) row: &'a Row,
    pub(crate) name: String,
    pub(crate) colour: usize,
}

/// The record's rows by their conditions, in the record's order; a subject has one colour in all.
pub(crate) fn groups(record: &Record) -> Vec<Group<'_>> {
    let mut grouped: Vec<(Key, Vec<&Row>)> = Vec::new();
    for row in &record.rows {
        let key = Key::of(row);
        match grouped.iter_mut().find(|(known, _)| *known == key) {
            Some((_, rows)) => rows.push(row),
            None => grouped.push((key, vec![row])),
        }
    }
    let titles = Titles::of(&grouped);
    let mut colours = Colours::default();
    grouped
        .into_iter()
        .map(|(key, rows)| Group { title: titles.title(&key), rows: named(&rows, &mut colours) })
        .collect()
}

impl Group<'_> {
    /// # Errors
    /// [`HistogramError`] when a row's histogram is damaged.
    pub(crate) fn samples(&self) -> Result<Vec<Sample>, HistogramError> {
        self.rows.iter().map(Named::sample).collect()
    }

    pub(crate) fn courses(&self) -> Vec<Course> {
        self.rows.iter().map(Named::course).collect()
    }

    /// Where the blocks of these rows meet, in seconds of measured time.
    pub(crate) fn joints_s(&self) -> Vec<f64> {
        let Some(first) = self.rows.first() else { return Vec::new() };
        let mut at = 0.0;
        let mut joints = Vec::new();
        for block in &first.row.blocks {
            at += block.traffic.duration_s;
            joints.push(at);
        }
        joints.pop();
        joints
    }
}

impl Named<'_> {
    fn sample(&self) -> Result<Sample, HistogramError> {
        let parts = self.row.blocks.iter().map(|block| block.traffic.latencies());
        Ok(Sample {
            name: self.name.clone(),
            colour: self.colour,
            whole: self.row.traffic.latencies()?,
            parts: parts.collect::<Result<_, _>>()?,
        })
    }

    fn course(&self) -> Course {
        let points = self.row.traffic.series.iter().map(Point::from).collect();
        Course { name: self.name.clone(), colour: self.colour, points }
    }
}

/// What rows of one chart have in common.
#[derive(PartialEq, Clone)]
struct Key {
    case: String,
    place: &'static str,
    protocol: &'static str,
    layout: &'static str,
    arrival: Arrival,
    payload_bytes: u64,
    /// Offered requests per second as they are shown; empty in closed loop.
    offered: String,
}

impl Key {
    fn of(row: &Row) -> Self {
        let conditions = &row.conditions;
        Self {
            case: conditions.case.clone(),
            place: place(conditions.topology),
            protocol: protocol(conditions.protocol),
            layout: conditions.layout.as_str(),
            arrival: conditions.arrival,
            payload_bytes: conditions.payload_bytes,
            offered: row.traffic.requested_rps.map(figures::digits3).unwrap_or_default(),
        }
    }
}

/// Which conditions differ between the record's groups, and so belong in their titles.
struct Titles {
    layout: bool,
    arrival: bool,
    payload: bool,
    offered: bool,
}

impl Titles {
    fn of(grouped: &[(Key, Vec<&Row>)]) -> Self {
        let differs = |same: fn(&Key, &Key) -> bool| {
            grouped.windows(2).any(|pair| !same(&pair[0].0, &pair[1].0))
        };
        Self {
            layout: differs(|a, b| a.layout == b.layout),
            arrival: differs(|a, b| a.arrival == b.arrival),
            payload: differs(|a, b| a.payload_bytes == b.payload_bytes),
            offered: differs(|a, b| a.offered == b.offered),
        }
    }

    fn title(&self, key: &Key) -> String {
        let mut title = format!("{}, {}", key.protocol, key.place);
        let mut add = |wanted: bool, text: String| {
            if wanted {
                title.push_str(", ");
                title.push_str(&text);
            }
        };
        add(self.layout, format!("{} processors", key.layout));
        add(self.arrival, arrival(key.arrival).to_owned());
        add(self.payload, format!("{} bytes", figures::count(key.payload_bytes)));
        add(self.offered && !key.offered.is_empty(), format!("{} requests/s", key.offered));
        title
    }
}

/// Colours in order of appearance: one name has one colour in the whole record.
#[derive(Default)]
struct Colours(BTreeMap<String, usize>);

impl Colours {
    fn of(&mut self, name: &str) -> usize {
        let next = self.0.len();
        *self.0.entry(name.to_owned()).or_insert(next)
    }
}

fn named<'a>(rows: &[&'a Row], colours: &mut Colours) -> Vec<Named<'a>> {
    let differs = |same: fn(&Conditions, &Conditions) -> bool| {
        let alike = |row: &&Row, other: &&Row| {
            row.conditions.subject == other.conditions.subject
                && !same(&row.conditions, &other.conditions)
        };
        rows.iter().any(|row| rows.iter().any(|other| alike(row, other)))
    };
    let variant = differs(|a, b| a.variant == b.variant);
    let tls = differs(|a, b| a.tls == b.tls);
    let connections = differs(|a, b| a.connections == b.connections);
    let name = |conditions: &Conditions| {
        let mut name = conditions.subject.clone();
        if variant && !conditions.variant.is_empty() {
            name.push_str(&format!(", {}", conditions.variant));
        }
        if tls {
            name.push_str(&format!(", {}", conditions.tls));
        }
        if connections {
            name.push_str(&format!(", {} connections", conditions.connections));
        }
        name
    };
    let names: Vec<String> = rows.iter().map(|row| name(&row.conditions)).collect();
    let unique = |name: &String| names.iter().filter(|other| *other == name).count() == 1;
    let of = |(row, name): (&&'a Row, &String)| {
        let name = clipped(if unique(name) { name } else { &row.conditions.id });
        Named { row, colour: colours.of(&name), name }
    };
    rows.iter().zip(&names).map(of).collect()
}

/// The text, cut off where it is longer than any honest name.
pub(crate) fn clipped(text: &str) -> String {
    match text.char_indices().nth(NAME_LIMIT) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
