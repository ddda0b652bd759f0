//! The model of scenarios of the fabric: how many neighbours, how they are distributed, how often.
//! `schema/tollway-fabric-scenario-1.schema.json` is the format's schema.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use tollway_config::Mistake;
use tollway_record::neighbours::Stage;
use tollway_record::record::{FigureUnit, SeedValue};

use super::LengthName;
use crate::mistake_list::MistakeList;

/// The format's name and version.
pub const FABRIC_SCENARIO_SCHEMA: &str = "tollway.fabric-scenario/1";

/// Cases of one scenario, and sizes of one case.
const MAX_CASES: usize = 16;
const MAX_SIZES: usize = 64;
/// As many as there are.
const MAX_DATAPATHS: usize = 6;
/// Most neighbours that a control plane keeps.
const MAX_ENTRIES: u32 = 4_000_000;
const MAX_BLOCKS: u32 = 1_000;
const MAX_ROUNDS: u32 = 100_000;
/// Most agents of a row, and the highest rate.
const MAX_AGENTS: u32 = 1_000;
const MAX_RATE_PER_S: f64 = 1_000_000.0;
const MAX_WINDOW_S: f64 = 3_600.0;

/// A scenario of the fabric.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricScenario {
    /// [`FABRIC_SCENARIO_SCHEMA`].
    pub schema: Spanned<String>,
    /// Letters, digits and `-`.
    pub name: Spanned<String>,
    /// One line: which question it answers.
    pub purpose: String,
    pub cases: Vec<FabricCase>,
    pub lengths: FabricLengths,
    /// Published figures to show with today's.
    #[serde(default)]
    pub seed: Option<FabricSeed>,
    /// What a reader must know to read the numbers rightly.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One measurement, for each of some sizes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricCase {
    /// Unique; the first part of the row's id.
    pub name: Spanned<String>,
    pub measure: Measure,
    /// Of `list` and `watch`: neighbours of a round, one row for each.
    #[serde(default)]
    pub entries: Option<Spanned<Vec<u32>>>,
    /// Of `get` and `fanout`: how many ask or follow, one row for each.
    #[serde(default)]
    pub agents: Option<Spanned<Vec<u32>>>,
    /// Of what is forwarded: by what, one row for each.
    #[serde(default)]
    pub datapaths: Option<Spanned<Vec<Datapath>>>,
    /// Of `packets`: neighbours that they go to, at random.
    #[serde(default)]
    pub flows: Option<Spanned<u32>>,
    /// Of all but `list` and `watch`: neighbours that are there before.
    #[serde(default)]
    pub table: Option<Spanned<u32>>,
    /// Of `get`: look-ups per second of all agents together; without it each starts the next when
    /// it has its answer. Of `churn`: changes per second.
    #[serde(default)]
    pub rate_per_s: Option<Spanned<f64>>,
    #[serde(default)]
    pub store: Store,
}

/// Where the control plane keeps neighbours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Store {
    /// A file of its own.
    #[default]
    Embedded,
    /// An etcd of one member that is started for it, on the same disk.
    Etcd,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// From the control plane's disk into an agent's table, all at once.
    List,
    /// The start of an agent that has its table and its journal, until it follows its group again.
    Restart,
    /// From an operator's write over the control plane's disk into an agent's table.
    Watch,
    /// From the control plane to agents that ask for one at a time.
    Get,
    /// As `watch` with a single neighbour, until each of many agents has it.
    Fanout,
    /// Changes of neighbours that are there, at a rate, from their writes into an agent's table.
    Churn,
    /// Echoes of ICMP from guest to guest.
    Ping,
    /// Questions and answers over one connection of TCP from guest to guest.
    Calls,
    /// Bytes over one connection of TCP from guest to guest.
    Bulk,
    /// As many packets as possible in one direction.
    Packets,
}

/// What carries the guests' packets from one host to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Datapath {
    /// A cable: the hosts' tunnels end at each other.
    Direct,
    /// The forwarder, as a program of the driver's XDP.
    Xdp,
    /// The same, as a program of the kernel's own XDP.
    XdpGeneric,
    /// The forwarder, as a program of tc.
    Tc,
    /// The kernel's tunnel, bridged to another one.
    KernelBridge,
    /// The kernel's routing of the hosts' packets, whatever is in them.
    KernelRouting,
}

/// How much is measured, in three forms.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricLengths {
    pub quick: Spanned<FabricLength>,
    pub usual: Spanned<FabricLength>,
    pub full: Spanned<FabricLength>,
}

/// Blocks, and rounds within a block.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricLength {
    /// How often everything is restarted.
    pub blocks: u32,
    /// Larger sizes are left out.
    pub most_entries: u32,
    /// As many rounds as make about so many neighbours of a row in a block; at least one.
    pub block_entries: u32,
    /// Rounds of a row in a block at most.
    pub most_rounds: u32,
    /// Measured in each block of a row with a rate or with agents that ask, seconds.
    #[serde(default = "default_window_s")]
    pub window_s: f64,
}

/// Figures that others published for the same question.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricSeed {
    /// Where, and of what.
    pub title: String,
    /// How they were measured, and what is known to be wrong with them.
    #[serde(default)]
    pub notes: Vec<String>,
    pub figures: Vec<FabricFigure>,
}

/// One published figure and where today's is found.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricFigure {
    pub what: String,
    /// Of the published values: us or ms.
    pub unit: FigureUnit,
    /// By what was measured.
    pub published: BTreeMap<String, SeedValue>,
    pub case: Spanned<String>,
    /// Of which row: the last part of its id.
    pub row: u32,
    #[serde(default = "total")]
    pub stage: Stage,
    /// Of each neighbour instead of all of them.
    #[serde(default)]
    pub each: bool,
}

fn default_window_s() -> f64 {
    2.0
}

fn total() -> Stage {
    Stage::Total
}

impl FabricScenario {
    #[must_use]
    pub fn length(&self, name: LengthName) -> FabricLength {
        match name {
            LengthName::Quick => self.lengths.quick.value,
            LengthName::Usual => self.lengths.usual.value,
            LengthName::Full => self.lengths.full.value,
        }
    }

    /// All mistakes of meaning, in the order of the file's parts.
    #[must_use]
    pub fn check(&self) -> Vec<Mistake> {
        let mut errors = MistakeList::default();
        if self.schema.value != FABRIC_SCENARIO_SCHEMA {
            let what = format!("this version reads `{FABRIC_SCENARIO_SCHEMA}`");
            errors.add(self.schema.referenced, what);
        }
        errors.name("scenario", &self.name);
        errors.count(Location::UNKNOWN, "cases", self.cases.len(), 1..=MAX_CASES);
        errors.unique("case", self.cases.iter().map(|case| &case.name));
        for case in &self.cases {
            case.check(&mut errors);
        }
        for length in [&self.lengths.quick, &self.lengths.usual, &self.lengths.full] {
            self.check_length(length, &mut errors);
        }
        for figure in self.seed.iter().flat_map(|seed| &seed.figures) {
            self.check_figure(figure, &mut errors);
        }
        errors.into_vec()
    }

    fn check_length(&self, length: &Spanned<FabricLength>, errors: &mut MistakeList) {
        let (at, of) = (length.referenced, length.value);
        if !(1..=MAX_BLOCKS).contains(&of.blocks) {
            errors.add(at, format!("`blocks` is from 1 to {MAX_BLOCKS}"));
        }
        if !(1..=MAX_ENTRIES).contains(&of.block_entries) {
            errors.add(at, format!("`block_entries` is from 1 to {MAX_ENTRIES}"));
        }
        if !(of.window_s >= 0.1 && of.window_s <= MAX_WINDOW_S) {
            errors.add(at, "`window_s` is from 0.1 to an hour");
        }
        if !(1..=MAX_ROUNDS).contains(&of.most_rounds) {
            errors.add(at, format!("`most_rounds` is from 1 to {MAX_ROUNDS}"));
        }
        let least = self.cases.iter().flat_map(FabricCase::sizes).min();
        if least.is_some_and(|entries| entries > of.most_entries) {
            errors.add(at, "`most_entries` leaves nothing to measure");
        }
    }

    fn check_figure(&self, figure: &FabricFigure, errors: &mut MistakeList) {
        let at = figure.case.referenced;
        errors.known("case", &figure.case, self.cases.iter().map(|case| case.name.value.as_str()));
        let case = self.cases.iter().find(|case| case.name.value == figure.case.value);
        if case.is_some_and(|case| !case.rows().contains(&figure.row)) {
            errors.add(at, format!("`{}` has no row {}", figure.case.value, figure.row));
        }
        if !matches!(figure.unit, FigureUnit::Microseconds | FigureUnit::Milliseconds) {
            errors.add(at, format!("`{}` is no unit of time here: give us or ms", figure.unit));
        }
    }
}

impl FabricCase {
    fn check(&self, errors: &mut MistakeList) {
        errors.name("case", &self.name);
        self.check_parts(errors);
        let entries = self.entries.as_ref().map(|of| ("entries", of, MAX_ENTRIES));
        let agents = self.agents.as_ref().map(|of| ("agents", of, MAX_AGENTS));
        if let Some(datapaths) = &self.datapaths {
            errors.count(
                datapaths.referenced,
                "datapaths",
                datapaths.value.len(),
                1..=MAX_DATAPATHS,
            );
            let mut sorted = datapaths.value.clone();
            sorted.sort_unstable();
            if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
                errors.add(datapaths.referenced, "`datapaths` has one of them twice");
            }
        }
        let most = self.table.as_ref().map_or(1, |table| table.value).max(1);
        if let Some(flows) = self.flows.as_ref().filter(|flows| !(1..=most).contains(&flows.value))
        {
            errors.add(flows.referenced, "`flows` is from 1 to as many as `table` has");
        }
        for (part, of, most) in entries.into_iter().chain(agents) {
            let (at, sizes) = (of.referenced, &of.value);
            errors.count(at, part, sizes.len(), 1..=MAX_SIZES);
            if !sizes.iter().all(|size| (1..=most).contains(size)) {
                errors.add(at, format!("`{part}` are from 1 to {most}"));
            }
            if sizes.windows(2).any(|pair| pair[0] >= pair[1]) {
                errors.add(at, format!("`{part}` grow"));
            }
        }
        let table = self.table.as_ref();
        if let Some(table) = table.filter(|table| !(1..=MAX_ENTRIES).contains(&table.value)) {
            errors.add(table.referenced, format!("`table` is from 1 to {MAX_ENTRIES}"));
        }
        let rate = self.rate_per_s.as_ref();
        if let Some(rate) = rate.filter(|rate| !(rate.value > 0.0 && rate.value <= MAX_RATE_PER_S))
        {
            let what = format!("`rate_per_s` is above 0 and at most {MAX_RATE_PER_S}");
            errors.add(rate.referenced, what);
        }
    }

    /// Each path has its own parts.
    fn check_parts(&self, errors: &mut MistakeList) {
        let (needed, allowed): (&[&str], &[&str]) = match self.measure {
            Measure::List | Measure::Restart | Measure::Watch => (&["entries"], &[]),
            Measure::Get => (&["agents", "table"], &["rate_per_s"]),
            Measure::Fanout => (&["agents", "table"], &[]),
            Measure::Churn => (&["table", "rate_per_s"], &[]),
            Measure::Ping | Measure::Calls | Measure::Bulk => (&["datapaths", "table"], &[]),
            Measure::Packets => (&["datapaths", "table", "flows"], &[]),
        };
        for (part, is_there) in [
            ("entries", self.entries.is_some()),
            ("agents", self.agents.is_some()),
            ("datapaths", self.datapaths.is_some()),
            ("flows", self.flows.is_some()),
            ("table", self.table.is_some()),
            ("rate_per_s", self.rate_per_s.is_some()),
        ] {
            let (is_needed, measure) = (needed.contains(&part), self.measure.as_str());
            if is_needed && !is_there {
                let what = format!("a case of `measure: {measure}` needs `{part}`");
                errors.add(self.name.referenced, what);
            }
            if is_there && !is_needed && !allowed.contains(&part) {
                let what = format!("a case of `measure: {measure}` has no `{part}`");
                errors.add(self.name.referenced, what);
            }
        }
    }

    /// By what its rows differ, where that is a number: neighbours, agents, or changes per second.
    #[must_use]
    pub fn rows(&self) -> Vec<u32> {
        match (&self.agents, &self.entries, &self.rate_per_s) {
            (Some(agents), _, _) => agents.value.clone(),
            (None, Some(entries), _) => entries.value.clone(),
            (None, None, rate) => rate.iter().map(|rate| rate.value.ceil() as u32).collect(),
        }
    }

    /// Neighbours that its tables have.
    fn sizes(&self) -> Vec<u32> {
        match (&self.table, &self.entries) {
            (Some(table), _) => vec![table.value],
            (None, Some(entries)) => entries.value.clone(),
            (None, None) => Vec::new(),
        }
    }
}

impl Measure {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Restart => "restart",
            Self::Watch => "watch",
            Self::Get => "get",
            Self::Fanout => "fanout",
            Self::Churn => "churn",
            Self::Ping => "ping",
            Self::Calls => "calls",
            Self::Bulk => "bulk",
            Self::Packets => "packets",
        }
    }
}

impl Datapath {
    /// The word of scenarios and of rows' ids.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Xdp => "xdp",
            Self::XdpGeneric => "xdp-generic",
            Self::Tc => "tc",
            Self::KernelBridge => "kernel-bridge",
            Self::KernelRouting => "kernel-routing",
        }
    }

    /// How the agent's programs meet packets; `None` where no agent takes part.
    #[must_use]
    pub fn mode(self) -> Option<&'static str> {
        match self {
            Self::Xdp => Some("native"),
            Self::XdpGeneric => Some("generic"),
            Self::Tc => Some("tc"),
            Self::Direct | Self::KernelBridge | Self::KernelRouting => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{BUILT_IN, ScenarioKind};

    const SCHEMA: &str = include_str!("../../../../schema/tollway-fabric-scenario-1.schema.json");

    const GOOD: &str = "schema: tollway.fabric-scenario/1\nname: mine\npurpose: to see\ncases:\n  \
        - {name: list, measure: list, entries: [1, 1000]}\nlengths:\n  \
        quick: {blocks: 1, most_entries: 10, block_entries: 10, most_rounds: 5}\n  \
        usual: {blocks: 2, most_entries: 1000, block_entries: 10, most_rounds: 5}\n  \
        full: {blocks: 3, most_entries: 1000, block_entries: 10, most_rounds: 5}\n";

    fn read(text: &str) -> FabricScenario {
        serde_saphyr::from_str(text).unwrap()
    }

    fn errors(text: &str) -> Vec<String> {
        read(text).check().into_iter().map(|fault| fault.what).collect()
    }

    #[test]
    fn built_in_scenarios_are_right_and_fit_the_schema() {
        let schema: serde_json::Value = serde_json::from_str(SCHEMA).unwrap();
        let validator = jsonschema::draft202012::new(&schema).unwrap();
        for known in BUILT_IN.iter().filter(|known| known.kind == ScenarioKind::Fabric) {
            let scenario = read(known.text);
            assert_eq!(scenario.name.value, known.name);
            assert!(scenario.purpose.len() <= 80, "{}", scenario.purpose);
            assert_eq!(scenario.check(), [], "{}", known.name);
            let value: serde_json::Value = serde_saphyr::from_str(known.text).unwrap();
            let errors: Vec<_> = validator.iter_errors(&value).map(|e| e.to_string()).collect();
            assert!(errors.is_empty(), "{}: {errors:?}", known.name);
        }
        let value: serde_json::Value =
            serde_saphyr::from_str(&GOOD.replace("1000]", "0]")).unwrap();
        assert!(!validator.is_valid(&value));
    }

    #[test]
    fn mistakes_of_meaning_are_reported() {
        assert_eq!(errors(GOOD), [""; 0]);
        let check = |from: &str, to: &str, what: &str| {
            assert!(GOOD.contains(from), "{from}");
            assert_eq!(errors(&GOOD.replacen(from, to, 1)), [what]);
        };
        check("[1, 1000]", "[1, 5, 5]", "`entries` grow");
        check("[1, 1000]", "[1, 4000001]", "`entries` are from 1 to 4000000");
        check("most_entries: 10,", "most_entries: 0,", "`most_entries` leaves nothing to measure");
        check("blocks: 2", "blocks: 0", "`blocks` is from 1 to 1000");
        check("scenario/1", "scenario/2", "this version reads `tollway.fabric-scenario/1`");
        let figure = "seed:\n  title: x\n  figures:\n    - {what: x, unit: ms, published: {a: 1}, \
            case: list, row: 7}\nlengths:";
        check("lengths:", figure, "`list` has no row 7");
        let case = "measure: list, entries: [1, 1000]";
        check(
            case,
            "measure: list, entries: [1], table: 5",
            "a case of `measure: list` has no `table`",
        );
        check(case, "measure: fanout, agents: [1, 9]", "a case of `measure: fanout` needs `table`");
        check(case, "measure: get, agents: [3, 2], table: 5", "`agents` grow");
        check(
            case,
            "measure: ping, datapaths: [tc, direct, tc], table: 5",
            "`datapaths` has one of them twice",
        );
        check(
            case,
            "measure: packets, datapaths: [tc], table: 5, flows: 6",
            "`flows` is from 1 to as many as `table` has",
        );
        check(case, "measure: bulk, table: 5", "a case of `measure: bulk` needs `datapaths`");
        check(
            case,
            "measure: churn, table: 5, rate_per_s: 0",
            "`rate_per_s` is above 0 and at most 1000000",
        );
    }
}
