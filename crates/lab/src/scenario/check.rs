//! Mistakes of meaning in a scenario, each with its place in the file.

use std::collections::BTreeSet;

use serde_saphyr::{Location, Spanned};
use tollway_record::record::{Protocol, Topology};

use super::{ArrivalSpec, Case, Length, SCENARIO_SCHEMA, Scenario};
use crate::subject::{Catalogue, SubjectName};

/// Cases in one scenario.
pub const MAX_CASES: usize = 64;
/// Rates in one case.
pub const MAX_STEPS: usize = 64;
/// Networks in one scenario: one for each distance.
const MAX_NETWORKS: usize = Topology::ALL.len();
/// Subjects in one scenario.
const MAX_SUBJECTS: usize = 32;
/// Blocks of one scenario.
const MAX_BLOCKS: u32 = 1_000;
/// Longest window, seconds.
const MAX_WINDOW_S: f64 = 24.0 * 3600.0;
/// Highest rate, and most connections.
const MAX_RATE_RPS: f64 = 10_000_000.0;
const MAX_CONNECTIONS: u32 = 10_000;
/// Most requests in flight at once on one connection.
const MAX_STREAMS: u32 = 1_000;
/// Longest name of a scenario, network or case.
const MAX_NAME: usize = 40;

/// A mistake of meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Counted from 1; 0 where the file has no place to point at.
    pub line: u64,
    pub column: u64,
    /// What is wrong and what would be right.
    pub what: String,
    /// What was written and what is known, to suggest a likely name; empty where no name is
    /// unknown.
    pub known: Vec<String>,
    pub written: String,
}

impl Scenario {
    /// All mistakes of meaning, in the order of the file's parts.
    #[must_use]
    pub fn check(&self, catalogue: &Catalogue) -> Vec<Fault> {
        let mut faults = Faults::default();
        if self.schema.value != SCENARIO_SCHEMA {
            faults.add(self.schema.referenced, format!("this version reads `{SCENARIO_SCHEMA}`"));
        }
        faults.name("scenario", &self.name);
        self.check_networks(&mut faults);
        for subject in self.subjects.iter().chain(&self.baselines) {
            faults.subject(subject, catalogue);
        }
        faults.count("subjects", self.subjects.len(), MAX_SUBJECTS);
        if !(self.margin_pct > 0.0 && self.margin_pct < 100.0) {
            faults.add(Location::UNKNOWN, "`margin_pct` is between 0 and 100".to_owned());
        }
        faults.count("cases", self.cases.len(), MAX_CASES);
        faults.unique("case", self.cases.iter().map(|case| &case.name));
        for case in &self.cases {
            self.check_case(case, catalogue, &mut faults);
        }
        for length in [&self.lengths.quick, &self.lengths.usual, &self.lengths.full] {
            faults.length(length);
        }
        self.check_seed(catalogue, &mut faults);
        faults.0
    }

    fn check_networks(&self, faults: &mut Faults) {
        faults.count("networks", self.networks.len(), MAX_NETWORKS);
        faults.unique("network", self.networks.iter().map(|network| &network.name));
        let mut seen = BTreeSet::new();
        for (index, network) in self.networks.iter().enumerate() {
            let at = network.topology.referenced;
            faults.name("network", &network.name);
            let home = network.topology.value == Topology::SameNetwork;
            if home != (index == 0) {
                let what = "the first network, and no other, is the caller's: `same-network`";
                faults.add(at, what.to_owned());
            } else if !seen.insert(network.topology.value) {
                faults.add(at, format!("two networks are `{}`", network.topology.value));
            }
            let name = &network.name.value;
            match &network.link {
                Some(_) if home => {
                    faults.add(at, format!("`{name}` is the caller's own: it has no link"));
                }
                None if !home => {
                    faults.add(at, format!("`{name}` lacks a link: `link: {{rtt_us: 800}}`"))
                }
                Some(link) if !(0.0..100.0).contains(&link.loss_pct) => {
                    faults.add(at, "`loss_pct` is from 0 to below 100".to_owned());
                }
                Some(link) if link.jitter_us > link.rtt_us / 2 => {
                    faults.add(at, "`jitter_us` is one way: at most half of `rtt_us`".to_owned())
                }
                Some(_) | None => {}
            }
        }
    }

    fn check_case(&self, case: &Case, catalogue: &Catalogue, faults: &mut Faults) {
        faults.name("case", &case.name);
        for network in case.networks.iter().flatten() {
            faults.known("network", network, self.networks.iter().map(|n| n.name.value.as_str()));
        }
        for subject in case.subjects.iter().flatten() {
            faults.subject(subject, catalogue);
            faults.known(
                "subject of this scenario",
                subject,
                self.subjects.iter().map(|s| s.value.as_str()),
            );
        }
        let at = case.connections.referenced;
        if !(1..=MAX_CONNECTIONS).contains(&case.connections.value) {
            faults.add(at, format!("`connections` is from 1 to {MAX_CONNECTIONS}"));
        }
        let at = case.name.referenced;
        if matches!(case.protocol, Protocol::GrpcStream | Protocol::Tcp) {
            faults.add(at, "cases speak http1, http2 or grpc-unary".to_owned());
        }
        let multiplexed = matches!(case.protocol, Protocol::Http2 | Protocol::GrpcUnary);
        if case.streams.is_some_and(|streams| !multiplexed || !(1..=MAX_STREAMS).contains(&streams))
        {
            let what = format!("`streams` is from 1 to {MAX_STREAMS}, for http2 and grpc-unary");
            faults.add(at, what);
        }
        if case.layouts.is_empty() {
            faults.add(at, "`layouts` is empty; leave it out for `[shared]`".to_owned());
        }
        if case.answer_bytes.is_some() && case.payload_bytes > 0 {
            faults.add(at, "give `payload_bytes` or `answer_bytes`, not both".to_owned());
        }
        if let Some(limits) = &case.limits {
            if limits.cpu_millicores.is_none() && limits.memory_bytes.is_none() {
                faults.add(at, "`limits` needs `cpu_millicores` or `memory_bytes`".to_owned());
            }
            if !(1_000..=1_000_000).contains(&limits.cpu_period_us) {
                faults.add(at, "`cpu_period_us` is from 1000 to 1000000".to_owned());
            }
            let quota_us = limits
                .cpu_millicores
                .map(|share| u64::from(share) * u64::from(limits.cpu_period_us) / 1_000);
            if quota_us.is_some_and(|quota_us| quota_us < 1_000) {
                let what = "the kernel's least quota is 1 ms in a period: take a longer \
                            `cpu_period_us` or more `cpu_millicores`";
                faults.add(at, what.to_owned());
            }
        }
        self.check_arrival(&case.arrival, faults);
    }

    fn check_arrival(&self, arrival: &ArrivalSpec, faults: &mut Faults) {
        let rate_is_possible = |rate: f64| rate > 0.0 && rate <= MAX_RATE_RPS;
        match arrival {
            ArrivalSpec::Open(open) => {
                if !rate_is_possible(open.rate_rps.value) {
                    faults.add(
                        open.rate_rps.referenced,
                        format!("a rate is above 0 and at most {MAX_RATE_RPS}"),
                    );
                }
            }
            ArrivalSpec::Steps(steps) => {
                let (at, rates) = (steps.rates_rps.referenced, &steps.rates_rps.value);
                if rates.is_empty() || rates.len() > MAX_STEPS {
                    faults.add(at, format!("`rates_rps` has from 1 to {MAX_STEPS} rates"));
                }
                if !rates.iter().all(|&rate| rate_is_possible(rate)) {
                    faults.add(at, format!("a rate is above 0 and at most {MAX_RATE_RPS}"));
                }
                if rates.windows(2).any(|pair| pair[0] >= pair[1]) {
                    faults.add(at, "rates of steps grow".to_owned());
                }
            }
            ArrivalSpec::ShareOfSlowest(share) => {
                let closed = |case: &&Case| matches!(case.arrival, ArrivalSpec::Closed);
                let names = self.cases.iter().filter(closed).map(|case| case.name.value.as_str());
                faults.known("case in closed loop", &share.case, names);
                if !(share.share.value > 0.0 && share.share.value <= 1.0) {
                    faults
                        .add(share.share.referenced, "a share is above 0 and at most 1".to_owned());
                }
            }
            ArrivalSpec::Closed | ArrivalSpec::Idle => {}
        }
    }

    fn check_seed(&self, catalogue: &Catalogue, faults: &mut Faults) {
        let rows: Vec<String> = self.cases.iter().flat_map(Case::row_names).collect();
        for figure in self.seed.iter().flat_map(|seed| &seed.figures) {
            faults.known("case", &figure.case, rows.iter().map(String::as_str));
            if let Some(network) = &figure.network {
                faults.known(
                    "network",
                    network,
                    self.networks.iter().map(|n| n.name.value.as_str()),
                );
            }
            for subject in figure.subjects.iter().flatten() {
                faults.subject(subject, catalogue);
            }
            if !figure.metric.fits(figure.unit) {
                let what = format!("`{}` does not count this metric", figure.unit);
                faults.add(figure.case.referenced, what);
            }
        }
    }
}

impl Case {
    /// Names of its rows: its own, or one for each step.
    #[must_use]
    pub fn row_names(&self) -> Vec<String> {
        let name = &self.name.value;
        match &self.arrival {
            ArrivalSpec::Steps(steps) => {
                steps.rates_rps.value.iter().map(|rate| format!("{name}-{rate}")).collect()
            }
            ArrivalSpec::Open(_)
            | ArrivalSpec::Closed
            | ArrivalSpec::ShareOfSlowest(_)
            | ArrivalSpec::Idle => vec![name.clone()],
        }
    }
}

#[derive(Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn add(&mut self, at: Location, what: String) {
        let (line, column) = (at.line(), at.column());
        self.0.push(Fault { line, column, what, known: Vec::new(), written: String::new() });
    }

    fn name(&mut self, kind: &str, name: &Spanned<String>) {
        let plain =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        let text = &name.value;
        if text.is_empty() || text.len() > MAX_NAME || !text.chars().all(plain) {
            let what = format!(
                "the name of a {kind} has 1 to {MAX_NAME} lower-case letters, digits, `-` and `.`"
            );
            self.add(name.referenced, what);
        }
    }

    fn count(&mut self, what: &str, count: usize, limit: usize) {
        if count == 0 || count > limit {
            self.add(
                Location::UNKNOWN,
                format!("`{what}` has from 1 to {limit} entries, here {count}"),
            );
        }
    }

    fn unique<'a>(&mut self, kind: &str, names: impl Iterator<Item = &'a Spanned<String>>) {
        let mut seen = BTreeSet::new();
        for name in names {
            if !seen.insert(&name.value) {
                self.add(name.referenced, format!("two {kind}s are called `{}`", name.value));
            }
        }
    }

    fn known<'a>(
        &mut self,
        kind: &str,
        name: &Spanned<String>,
        known: impl Iterator<Item = &'a str>,
    ) {
        let known: Vec<String> = known.map(str::to_owned).collect();
        if !known.contains(&name.value) {
            let (line, column) = (name.referenced.line(), name.referenced.column());
            let (what, written) = (kind.to_owned(), name.value.clone());
            self.0.push(Fault { line, column, what, known, written });
        }
    }

    fn subject(&mut self, subject: &Spanned<String>, catalogue: &Catalogue) {
        let name = SubjectName::parse(&subject.value);
        let Some(kind) = catalogue.kind(&name.name) else {
            let names: Vec<String> = catalogue.names();
            let short = Spanned::new(name.name, subject.referenced, subject.defined);
            return self.known("subject", &short, names.iter().map(String::as_str));
        };
        let Some(variant) = name.variant else { return };
        let names: Vec<&str> =
            kind.variants().iter().map(|variant| variant.name.as_ref()).collect();
        let of = format!("variant of {}", kind.name());
        let short = Spanned::new(variant, subject.referenced, subject.defined);
        self.known(&of, &short, names.into_iter());
    }

    fn length(&mut self, length: &Spanned<Length>) {
        let (at, of) = (length.referenced, length.value);
        if !(1..=MAX_BLOCKS).contains(&of.blocks) {
            self.add(at, format!("`blocks` is from 1 to {MAX_BLOCKS}"));
        }
        if !(of.window_s >= 0.1 && of.window_s <= MAX_WINDOW_S) {
            self.add(at, "`window_s` is from 0.1 to a day".to_owned());
        }
        if !(of.warm_up_s >= 0.0 && of.warm_up_s <= MAX_WINDOW_S) {
            self.add(at, "`warm_up_s` is from 0 to a day".to_owned());
        }
    }
}
