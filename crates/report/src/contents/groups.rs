//! Which rows belong in one chart, what they are called there, and in which colour.

use std::collections::BTreeMap;

use tollway_record::HistogramError;
use tollway_record::record::{Arrival, Conditions, Limits, Record, Row};

use super::differences::{Differences, limited, offered};
use super::{path, protocol, under};
use crate::figures;
use crate::plot::{Climb, Course, Sample};

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
        under(&mut grouped, Key::of(row)).push(row);
    }
    let differences = Differences::of(record);
    let title = |key: &Key, row: &Row| match differences.words(row) {
        words if words.is_empty() => format!("{}, {}", key.protocol, key.path),
        words => format!("{}, {}, {words}", key.protocol, key.path),
    };
    let mut colours = Colours::default();
    grouped
        .into_iter()
        .map(|(key, rows)| Group { title: title(&key, rows[0]), rows: named(&rows, &mut colours) })
        .collect()
}

/// Rows that differ in the offered rate alone, under what they have in common.
pub(crate) fn climbs(groups: &[Group<'_>]) -> Vec<(String, Vec<Climb>)> {
    let mut found: Vec<(String, Vec<Climb>)> = Vec::new();
    for named in groups.iter().flat_map(|group| &group.rows) {
        let conditions = &named.row.conditions;
        let Some(rps) = named.row.traffic.requested_rps else { continue };
        let layout = conditions.layout;
        let limits = conditions.limits.as_ref().map(limited).filter(|words| !words.is_empty());
        let title = [
            protocol(conditions.protocol).to_owned(),
            path(conditions.topology).to_owned(),
            format!("{} bytes", figures::count(conditions.payload_bytes)),
            format!("{layout} processors"),
        ];
        let title = title.into_iter().chain(limits).collect::<Vec<_>>().join(", ");
        let climbs = under(&mut found, title);
        let rung = (rps, named.row.traffic.latency_us);
        match climbs.iter_mut().find(|climb| climb.name == named.name) {
            Some(climb) => climb.rungs.push(rung),
            None => {
                let (name, colour) = (named.name.clone(), named.colour);
                climbs.push(Climb { name, colour, rungs: vec![rung] });
            }
        }
    }
    found
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
        Course::of(&self.name, self.colour, &self.row.traffic, &self.row.cost.cost_series)
    }
}

/// What rows of one chart have in common.
#[derive(PartialEq, Clone)]
struct Key {
    case: String,
    path: &'static str,
    protocol: &'static str,
    layout: &'static str,
    arrival: Arrival,
    payload_bytes: u64,
    offered: String,
    limits: Option<Limits>,
}

impl Key {
    fn of(row: &Row) -> Self {
        let conditions = &row.conditions;
        Self {
            case: conditions.case.clone(),
            path: path(conditions.topology),
            protocol: protocol(conditions.protocol),
            layout: conditions.layout.as_str(),
            arrival: conditions.arrival,
            payload_bytes: conditions.payload_bytes,
            offered: offered(row),
            limits: conditions.limits,
        }
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
            row.conditions.label() == other.conditions.label()
                && !same(&row.conditions, &other.conditions)
        };
        rows.iter().any(|row| rows.iter().any(|other| alike(row, other)))
    };
    let variant = differs(|a, b| a.variant == b.variant);
    let tls = differs(|a, b| a.tls == b.tls);
    let connections = differs(|a, b| a.connections == b.connections);
    let name = |conditions: &Conditions| {
        let mut name = conditions.label();
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
