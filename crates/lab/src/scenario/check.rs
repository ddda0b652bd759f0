//! Mistakes of meaning in a scenario, each with its place in the file.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_saphyr::{Location, Spanned};
use tollway_config::Mistake;
use tollway_record::record::{Protocol, Tls, Topology};
use tollway_record::threshold::Threshold;

use super::{ArrivalSpec, Case, Length, SCENARIO_SCHEMA, Scenario, Spacing};
use crate::mistake_list::MistakeList;
use crate::subject::{Catalogue, SubjectName};

/// Cases in one scenario.
const MAX_CASES: usize = 64;
/// Rates in one case.
const MAX_STEPS: usize = 64;
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
/// Most requests of one burst: what `tollway load` takes.
const MAX_BURST: u32 = 10_000;
/// Conditions of one search.
const MAX_CONDITIONS: usize = 8;
/// Most requests in flight at once on one connection.
const MAX_STREAMS: u32 = 1_000;
/// Most messages of one stream, and of those most that wait for their answer.
const MAX_MESSAGES: u32 = 1_000_000;
const MAX_IN_FLIGHT: u32 = 1_000;
/// Most types of actors that are called one after the other.
const MAX_ACTOR_TYPES: u32 = 999;
/// Most actors that are called one after the other.
const MAX_ACTORS: u32 = 10_000_000;
/// How often each actor may be woken.
const TIMER_PERIODS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(10);
/// Most connections of a flow, each of which has a thread, and most bytes written at a time.
const MAX_FLOWS: u32 = 64;
const MAX_WRITE_BYTES: u32 = 16 << 20;

impl Scenario {
    /// All mistakes of meaning, in the order of the file's parts.
    #[must_use]
    pub fn check(&self, catalogue: &Catalogue) -> Vec<Mistake> {
        let mut errors = MistakeList::default();
        let nowhere = Location::UNKNOWN;
        if self.schema.value != SCENARIO_SCHEMA {
            errors.add(self.schema.referenced, format!("this version reads `{SCENARIO_SCHEMA}`"));
        }
        errors.name("scenario", &self.name);
        self.check_networks(&mut errors);
        for subject in self.subjects.iter().chain(&self.baselines) {
            check_subject(subject, catalogue, &mut errors);
        }
        errors.count(nowhere, "subjects", self.subjects.len(), 1..=MAX_SUBJECTS);
        if !(self.margin_pct > 0.0 && self.margin_pct < 100.0) {
            errors.add(nowhere, "`margin_pct` is between 0 and 100");
        }
        errors.count(nowhere, "cases", self.cases.len(), 1..=MAX_CASES);
        errors.unique("case", self.cases.iter().map(|case| &case.name));
        for case in &self.cases {
            self.check_case(case, catalogue, &mut errors);
        }
        for length in [&self.lengths.quick, &self.lengths.usual, &self.lengths.full] {
            check_length(length, &mut errors);
        }
        self.check_seed(catalogue, &mut errors);
        errors.into_vec()
    }

    fn check_networks(&self, errors: &mut MistakeList) {
        errors.count(Location::UNKNOWN, "networks", self.networks.len(), 1..=MAX_NETWORKS);
        errors.unique("network", self.networks.iter().map(|network| &network.name));
        let mut seen = BTreeSet::new();
        for (index, network) in self.networks.iter().enumerate() {
            let at = network.topology.referenced;
            errors.name("network", &network.name);
            let home = network.topology.value == Topology::SameNetwork;
            if home != (index == 0) {
                let what = "the first network, and no other, is the caller's: `same-network`";
                errors.add(at, what);
            } else if !seen.insert(network.topology.value) {
                errors.add(at, format!("two networks are `{}`", network.topology.value));
            }
            let name = &network.name.value;
            match &network.link {
                Some(_) if home => {
                    errors.add(at, format!("`{name}` is the caller's own: it has no link"));
                }
                None if !home => {
                    errors.add(at, format!("`{name}` lacks a link: `link: {{rtt_us: 800}}`"))
                }
                Some(link) if !(0.0..100.0).contains(&link.loss_pct) => {
                    errors.add(at, "`loss_pct` is from 0 to below 100");
                }
                Some(link) if link.jitter_us > link.rtt_us / 2 => {
                    errors.add(at, "`jitter_us` is one way: at most half of `rtt_us`")
                }
                Some(_) | None => {}
            }
        }
    }

    fn check_case(&self, case: &Case, catalogue: &Catalogue, errors: &mut MistakeList) {
        errors.name("case", &case.name);
        for network in case.networks.iter().flatten() {
            errors.known("network", network, self.networks.iter().map(|n| n.name.value.as_str()));
        }
        for subject in case.subjects.iter().flatten() {
            check_subject(subject, catalogue, errors);
            errors.known(
                "subject of this scenario",
                subject,
                self.subjects.iter().map(|s| s.value.as_str()),
            );
        }
        let at = case.connections.referenced;
        if !(1..=MAX_CONNECTIONS).contains(&case.connections.value) {
            errors.add(at, format!("`connections` is from 1 to {MAX_CONNECTIONS}"));
        }
        let at = case.name.referenced;
        check_streams(case, errors);
        let is_http = matches!(case.protocol, Protocol::Http1 | Protocol::Http2);
        if case.handshakes.is_some() && !(is_http && case.tls.value != Tls::Plain) {
            errors.add(at, "`handshakes` are of HTTP with `tls: tls` or `tls: mtls`");
        }
        if case.layouts.is_empty() {
            errors.add(at, "`layouts` is empty; leave it out for `[shared]`");
        }
        if case.answer_bytes.is_some() && !is_http {
            errors.add(at, "`answer_bytes` is of http1 and http2: give `payload_bytes`");
        }
        if case.answer_bytes.is_some() && case.payload_bytes > 0 {
            errors.add(at, "give `payload_bytes` or `answer_bytes`, not both");
        }
        check_actors(case, is_http, errors);
        if let Some(limits) = &case.limits {
            if limits.cpu_millicores.is_none() && limits.memory_bytes.is_none() {
                errors.add(at, "`limits` needs `cpu_millicores` or `memory_bytes`");
            }
            if !(1_000..=1_000_000).contains(&limits.cpu_period_us) {
                errors.add(at, "`cpu_period_us` is from 1000 to 1000000");
            }
            let quota_us = limits
                .cpu_millicores
                .map(|share| u64::from(share) * u64::from(limits.cpu_period_us) / 1_000);
            if quota_us.is_some_and(|quota_us| quota_us < 1_000) {
                let what = "the kernel's least quota is 1 ms in a period: take a longer \
                            `cpu_period_us` or more `cpu_millicores`";
                errors.add(at, what);
            }
        }
        self.check_arrival(&case.arrival, errors);
        if matches!(case.protocol, Protocol::Icmp | Protocol::Vxlan) {
            let protocol = case.protocol;
            let what = format!("`{protocol}` is forwarded in scenarios of the fabric only");
            errors.add(case.name.referenced, what);
        }
        if matches!(case.arrival, ArrivalSpec::Flow(_)) {
            check_flow(case, errors);
        }
    }

    fn check_arrival(&self, arrival: &ArrivalSpec, errors: &mut MistakeList) {
        let rate_is_possible = |rate: f64| rate > 0.0 && rate <= MAX_RATE_RPS;
        match arrival {
            ArrivalSpec::Open(open) => {
                if !rate_is_possible(open.rate_rps.value) {
                    errors.add(
                        open.rate_rps.referenced,
                        format!("a rate is above 0 and at most {MAX_RATE_RPS}"),
                    );
                }
                check_spacing(open.spacing, open.rate_rps.referenced, errors);
            }
            ArrivalSpec::Steps(steps) => {
                let (at, rates) = (steps.rates_rps.referenced, &steps.rates_rps.value);
                check_spacing(steps.spacing, at, errors);
                if rates.is_empty() || rates.len() > MAX_STEPS {
                    errors.add(at, format!("`rates_rps` has from 1 to {MAX_STEPS} rates"));
                }
                if !rates.iter().all(|&rate| rate_is_possible(rate)) {
                    errors.add(at, format!("a rate is above 0 and at most {MAX_RATE_RPS}"));
                }
                if rates.windows(2).any(|pair| pair[0] >= pair[1]) {
                    errors.add(at, "rates of steps grow");
                }
            }
            ArrivalSpec::ShareOfSlowest(share) => {
                let closed = |case: &&Case| matches!(case.arrival, ArrivalSpec::Closed);
                let names = self.cases.iter().filter(closed).map(|case| case.name.value.as_str());
                errors.known("case in closed loop", &share.case, names);
                if !(share.share.value > 0.0 && share.share.value <= 1.0) {
                    errors.add(share.share.referenced, "a share is above 0 and at most 1");
                }
                check_spacing(share.spacing, share.share.referenced, errors);
            }
            ArrivalSpec::Search(search) => {
                let at = search.slo.referenced;
                errors.count(at, "slo", search.slo.value.len(), 1..=MAX_CONDITIONS);
                for condition in &search.slo.value {
                    if let Err(error) = condition.parse::<Threshold>() {
                        errors.add(at, error.to_string());
                    }
                }
            }
            ArrivalSpec::Closed | ArrivalSpec::Flow(_) | ArrivalSpec::Idle => {}
        }
    }

    fn check_seed(&self, catalogue: &Catalogue, errors: &mut MistakeList) {
        let rows: Vec<String> = self.cases.iter().flat_map(Case::row_names).collect();
        for figure in self.seed.iter().flat_map(|seed| &seed.figures) {
            errors.known("case", &figure.case, rows.iter().map(String::as_str));
            if let Some(network) = &figure.network {
                errors.known(
                    "network",
                    network,
                    self.networks.iter().map(|n| n.name.value.as_str()),
                );
            }
            for subject in figure.subjects.iter().flatten() {
                check_subject(subject, catalogue, errors);
            }
            if !figure.metric.fits(figure.unit) {
                let what = format!("`{}` does not count this metric", figure.unit);
                errors.add(figure.case.referenced, what);
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
            | ArrivalSpec::Search(_)
            | ArrivalSpec::Flow(_)
            | ArrivalSpec::Idle => vec![name.clone()],
        }
    }
}

fn check_actors(case: &Case, is_http: bool, errors: &mut MistakeList) {
    let at = case.name.referenced;
    let Some(actors) = case.actors else { return };
    if !is_http {
        errors.add(at, "`actors` are asked over http1 and http2");
    }
    if case.answer_bytes.is_some() || case.handshakes.is_some() {
        errors.add(at, "`actors` go with `payload_bytes` only");
    }
    if actors.body().is_some() && case.payload_bytes > 0 {
        errors.add(at, "timers and reminders have a body of their own: leave `payload_bytes` out");
    }
    if actors.fires() {
        check_timers(case, errors);
    }
    if !actors.ids.is_none_or(|ids| (1..=MAX_ACTORS).contains(&ids)) {
        errors.add(at, format!("`ids` is from 1 to {MAX_ACTORS}"));
    }
    if !actors.types.is_none_or(|types| (1..=MAX_ACTOR_TYPES).contains(&types)) {
        errors.add(at, format!("`types` is from 1 to {MAX_ACTOR_TYPES}"));
    }
}

/// Actors that are woken are many, and what they have together is a steady rate.
fn check_timers(case: &Case, errors: &mut MistakeList) {
    let at = case.name.referenced;
    let Some(actors) = case.actors else { return };
    if case.payload_bytes > 0 || actors.types.is_some() || case.protocol != Protocol::Http1 {
        let what =
            "actors that are woken are of the type Echo, over http1, without `payload_bytes`";
        errors.add(at, what);
    }
    let ArrivalSpec::Open(open) = &case.arrival else {
        let what = "actors that are woken have a rate: `arrival: {open: {rate_rps: 500}}`";
        return errors.add(at, what);
    };
    if open.spacing != Spacing::Uniform {
        errors.add(at, "actors are woken evenly: leave `spacing` out");
    }
    let every = actors.every(open.rate_rps.value);
    if !every.is_some_and(|every| TIMER_PERIODS.contains(&every)) {
        let what = "actors that are woken need `ids`, so many that each is woken every 10 ms to \
                    every 10 s at the case's rate";
        errors.add(at, what);
    }
}

fn check_streams(case: &Case, errors: &mut MistakeList) {
    let at = case.name.referenced;
    let multiplexed =
        matches!(case.protocol, Protocol::Http2 | Protocol::GrpcUnary | Protocol::GrpcStream);
    if case.streams.is_some_and(|streams| !multiplexed || !(1..=MAX_STREAMS).contains(&streams)) {
        let what = format!("`streams` is from 1 to {MAX_STREAMS}, for http2 and gRPC");
        errors.add(at, what);
    }
    let Some(Spanned { value: messages, referenced: at, .. }) = case.messages else { return };
    if case.protocol != Protocol::GrpcStream {
        errors.add(at, "`messages` are of streams: `protocol: grpc-stream`");
    }
    if !(1..=MAX_MESSAGES).contains(&messages.per_stream) {
        errors.add(at, format!("`per_stream` is from 1 to {MAX_MESSAGES}"));
    }
    if !(1..=MAX_IN_FLIGHT).contains(&messages.in_flight) {
        errors.add(at, format!("`in_flight` is from 1 to {MAX_IN_FLIGHT}"));
    }
}

fn check_spacing(spacing: Spacing, at: Location, errors: &mut MistakeList) {
    if let Spacing::Bursts(size) = spacing
        && !(1..=MAX_BURST).contains(&size)
    {
        errors.add(at, format!("`bursts` is from 1 to {MAX_BURST} requests"));
    }
}

/// A flow has a thread for each connection, and writes.
fn check_flow(case: &Case, errors: &mut MistakeList) {
    let at = case.name.referenced;
    if case.protocol != Protocol::Tcp {
        errors.add(at, "a flow of bytes is of raw TCP: `protocol: tcp`");
    }
    if case.connections.value > MAX_FLOWS {
        errors.add(
            case.connections.referenced,
            format!("a flow has at most {MAX_FLOWS} connections"),
        );
    }
    if case.payload_bytes > MAX_WRITE_BYTES {
        errors.add(at, format!("a flow writes at most {MAX_WRITE_BYTES} bytes at a time"));
    }
}

/// Whether the catalogue has the subject and its variant.
fn check_subject(subject: &Spanned<String>, catalogue: &Catalogue, errors: &mut MistakeList) {
    let name = SubjectName::parse(&subject.value);
    let at = subject.referenced;
    let Some(kind) = catalogue.kind(&name.name) else {
        return errors.unknown(at, "subject", &name.name, catalogue.names());
    };
    let Some(variant) = name.variant else { return };
    let names: Vec<String> =
        kind.variants().iter().map(|variant| variant.name.to_string()).collect();
    if !names.contains(&variant) {
        errors.unknown(at, &format!("variant of {}", kind.name()), &variant, names);
    }
}

fn check_length(length: &Spanned<Length>, errors: &mut MistakeList) {
    let (at, of) = (length.referenced, length.value);
    if !(1..=MAX_BLOCKS).contains(&of.blocks) {
        errors.add(at, format!("`blocks` is from 1 to {MAX_BLOCKS}"));
    }
    if !(of.window_s >= 0.1 && of.window_s <= MAX_WINDOW_S) {
        errors.add(at, "`window_s` is from 0.1 to a day");
    }
    if !(of.warm_up_s >= 0.0 && of.warm_up_s <= MAX_WINDOW_S) {
        errors.add(at, "`warm_up_s` is from 0 to a day");
    }
}
