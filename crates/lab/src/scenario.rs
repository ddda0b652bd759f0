//! The model of scenario files, and whether a scenario makes sense. There are two formats: scenarios
//! of requests ([`Scenario`]) and of the fabric ([`FabricScenario`]).
//!
//! A file of requests describes networks and links, subjects, cases (what is asked, how arrivals lie,
//! where the callee is), limits and lengths; `schema/tollway-scenario-1.schema.json` and
//! `schema/tollway-fabric-scenario-1.schema.json` are the schemas. The parser reports errors of form;
//! [`AnyScenario::check`] finds the others, such as a case in a network that does not exist, with
//! their line and column.

mod any;
mod builtin;
mod check;
mod fabric;
mod seed;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_saphyr::Spanned;
use tollway_record::record::{Arrival, Layout, Protocol, Tls, Topology};
use tollway_record::throughput::Direction;

use crate::actors::ActorsSpec;

pub use any::{AnyScenario, ScenarioKind};
pub use builtin::{BUILT_IN, BuiltIn, built_in};
pub use fabric::{
    Datapath, FABRIC_SCENARIO_SCHEMA, FabricCase, FabricFigure, FabricLength, FabricLengths,
    FabricScenario, FabricSeed, Measure, Store,
};
pub use seed::{FigureMetric, FigureSpec, SeedSpec};

/// The format's name and version.
pub const SCENARIO_SCHEMA: &str = "tollway.scenario/1";

/// A scenario of requests.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// [`SCENARIO_SCHEMA`].
    pub schema: Spanned<String>,
    /// Letters, digits and `-`.
    pub name: Spanned<String>,
    /// One line: which question it answers.
    pub purpose: String,
    /// The caller's first. Each has another distance to it.
    pub networks: Vec<NetworkSpec>,
    /// `NAME` or `NAME:VARIANT`, in the order of the report.
    pub subjects: Vec<Spanned<String>>,
    /// With which subjects the others are compared, where they share a case.
    #[serde(default = "default_baselines")]
    pub baselines: Vec<Spanned<String>>,
    /// Differences within this many percent count as the same.
    #[serde(default = "default_margin_pct")]
    pub margin_pct: f64,
    pub cases: Vec<Case>,
    pub lengths: Lengths,
    #[serde(default)]
    pub start: Start,
    /// Published figures to show with today's.
    #[serde(default)]
    pub seed: Option<SeedSpec>,
    /// What a reader must know to read the numbers rightly.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A network in which apps can be called.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkSpec {
    pub name: Spanned<String>,
    /// How far it is, in words; of the first network `same-network`.
    pub topology: Spanned<Topology>,
    /// To the first network, which has none.
    #[serde(default)]
    pub link: Option<LinkSpec>,
}

/// A link between two networks, both directions alike.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    pub rtt_us: u64,
    /// In one direction.
    #[serde(default)]
    pub jitter_us: u64,
    #[serde(default)]
    pub loss_pct: f64,
    /// Bits per second; unlimited when left out.
    #[serde(default)]
    pub rate_bps: Option<u64>,
}

/// What is requested, and how.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Unique; the middle part of the row's id.
    pub name: Spanned<String>,
    pub protocol: Protocol,
    /// Between caller and callee (or the first proxy).
    #[serde(default = "default_tls")]
    pub tls: Spanned<Tls>,
    pub arrival: ArrivalSpec,
    /// Connections of the load generator. HTTP/1.1 in open loop gets more where the round trip
    /// needs it.
    pub connections: Spanned<u32>,
    /// Requests, or streams of messages, in flight at once on one connection; HTTP/2 and gRPC
    /// only.
    #[serde(default)]
    pub streams: Option<u32>,
    /// What each stream of messages is; `grpc-stream` only.
    #[serde(default)]
    pub messages: Option<Spanned<MessagesSpec>>,
    /// A new connection for each request, after such a handshake; HTTP over TLS only.
    #[serde(default)]
    pub handshakes: Option<Handshakes>,
    /// Body of each request, which the app sends back; of a stream, of each message; of a flow,
    /// what is written at a time.
    #[serde(default)]
    pub payload_bytes: u32,
    /// Instead: requests without a body, answered with so many bytes.
    #[serde(default)]
    pub answer_bytes: Option<u64>,
    /// Requests to actors that the app runs; http1 and http2 only.
    #[serde(default)]
    pub actors: Option<ActorsSpec>,
    /// Where the callee is; the first network when left out.
    #[serde(default)]
    pub networks: Option<Vec<Spanned<String>>>,
    /// All of the scenario's when left out.
    #[serde(default)]
    pub subjects: Option<Vec<Spanned<String>>>,
    #[serde(default = "default_layouts")]
    pub layouts: Vec<Layout>,
    /// For each process of the subject.
    #[serde(default)]
    pub limits: Option<LimitSpec>,
    /// Instead of the length's.
    #[serde(default)]
    pub window_s: Option<f64>,
}

/// When requests are sent.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ArrivalSpec {
    /// At a rate, whatever comes back.
    Open(OpenSpec),
    /// One row for each rate.
    Steps(StepsSpec),
    /// The next when the last is answered, on each connection.
    Closed,
    /// At a share of what the slowest subject of a closed-loop case answered.
    ShareOfSlowest(ShareSpec),
    /// In open loop at the highest rate that meets the conditions, which is searched for.
    Search(SearchSpec),
    /// A flow of as many bytes as possible, over raw TCP, without requests.
    Flow(FlowSpec),
    /// Without load: what the processes use then.
    Idle,
}

/// What a rate must hold, besides 99 % of it being answered.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchSpec {
    /// Such as `p99<10ms`.
    pub slo: Spanned<Vec<String>>,
}

/// The handshake of connections for single requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handshakes {
    Full,
    /// A session of an earlier connection is resumed, where the server lets it.
    Resumed,
}

/// A flow of bytes on each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowSpec {
    /// Seen from the caller.
    pub direction: Direction,
}

/// What each stream of messages is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessagesSpec {
    #[serde(default)]
    pub kind: StreamKind,
    /// Messages of one stream; then another one begins.
    #[serde(default = "default_messages_per_stream")]
    pub per_stream: u32,
    /// Messages of one stream that may wait for their answer.
    #[serde(default = "default_in_flight")]
    pub in_flight: u32,
}

/// The sender of messages, and the answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamKind {
    /// To the app, which acknowledges each.
    #[default]
    Push,
    /// To the app, which sends each back.
    Bidi,
}

/// Open loop at one rate.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenSpec {
    pub rate_rps: Spanned<f64>,
    #[serde(default)]
    pub spacing: Spacing,
}

/// Open loop at several rates, one after the other.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepsSpec {
    pub rates_rps: Spanned<Vec<f64>>,
    #[serde(default)]
    pub spacing: Spacing,
}

/// Open loop at a rate that another case finds out.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareSpec {
    /// Name of a case in closed loop.
    pub case: Spanned<String>,
    /// 0 to 1.
    pub share: Spanned<f64>,
    #[serde(default)]
    pub spacing: Spacing,
}

/// How the arrivals of an open loop lie in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spacing {
    #[default]
    Uniform,
    Poisson,
    /// So many at once, then none for as long as they take at the rate.
    Bursts(u32),
}

/// What each process of a subject may use.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    /// Thousandths of a processor.
    #[serde(default)]
    pub cpu_millicores: Option<u32>,
    /// Over which the processor's share is counted, microseconds.
    #[serde(default = "default_period_us")]
    pub cpu_period_us: u32,
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// What to do where limits cannot be set.
    #[serde(default)]
    pub when_impossible: WhenImpossible,
}

/// What becomes of a limited case where limits cannot be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenImpossible {
    /// It is left out, and the report states why.
    #[default]
    LeaveOut,
    /// It runs without limits, and the report states that.
    Unlimited,
}

/// How often the subjects' processes are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// Once, and stay warm; load generators are fresh for each run.
    #[default]
    Once,
    /// Made again before each block.
    PerBlock,
}

/// How long the scenario is, in three forms.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lengths {
    pub quick: Spanned<Length>,
    pub usual: Spanned<Length>,
    pub full: Spanned<Length>,
}

/// Blocks and windows.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Length {
    /// Interleaved rounds over all rows.
    pub blocks: u32,
    /// Measured in each run.
    pub window_s: f64,
    /// Least load before each window.
    #[serde(default = "default_warm_up_s")]
    pub warm_up_s: f64,
    /// Longest time for everything; windows are shortened to fit.
    #[serde(default)]
    pub budget_s: Option<f64>,
}

/// Which of the three lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LengthName {
    Quick,
    #[default]
    Usual,
    Full,
}

impl Scenario {
    #[must_use]
    pub fn length(&self, name: LengthName) -> Length {
        match name {
            LengthName::Quick => self.lengths.quick.value,
            LengthName::Usual => self.lengths.usual.value,
            LengthName::Full => self.lengths.full.value,
        }
    }

    #[must_use]
    pub fn network(&self, name: &str) -> Option<usize> {
        self.networks.iter().position(|network| network.name.value == name)
    }
}

impl Default for MessagesSpec {
    fn default() -> Self {
        let (per_stream, in_flight) = (default_messages_per_stream(), default_in_flight());
        Self { kind: StreamKind::default(), per_stream, in_flight }
    }
}

impl Handshakes {
    /// The word of `tollway load`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Resumed => "resumed",
        }
    }
}

impl StreamKind {
    /// The word of `tollway load`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Bidi => "bidi",
        }
    }
}

impl Spacing {
    /// The word of the record.
    #[must_use]
    pub fn arrival(self) -> Arrival {
        match self {
            Self::Uniform => Arrival::OpenUniform,
            Self::Poisson => Arrival::OpenPoisson,
            Self::Bursts(_) => Arrival::OpenBursts,
        }
    }

    /// The word of `tollway load`.
    #[must_use]
    pub fn word(self) -> Cow<'static, str> {
        match self {
            Self::Uniform => "uniform".into(),
            Self::Poisson => "poisson".into(),
            Self::Bursts(size) => format!("bursts:{size}").into(),
        }
    }
}

impl LengthName {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Usual => "usual",
            Self::Full => "full",
        }
    }
}

fn default_baselines() -> Vec<Spanned<String>> {
    vec![nowhere("direct".to_owned())]
}

fn default_margin_pct() -> f64 {
    tollway_record::compare::DEFAULT_MARGIN_PCT
}

fn default_tls() -> Spanned<Tls> {
    nowhere(Tls::Plain)
}

fn default_layouts() -> Vec<Layout> {
    vec![Layout::Shared]
}

fn default_period_us() -> u32 {
    100_000
}

fn default_messages_per_stream() -> u32 {
    100
}

fn default_in_flight() -> u32 {
    1
}

fn default_warm_up_s() -> f64 {
    0.2
}

/// A value that is in no file.
pub(crate) fn nowhere<T>(value: T) -> Spanned<T> {
    let unknown = serde_saphyr::Location::UNKNOWN;
    Spanned::new(value, unknown, unknown)
}

#[cfg(test)]
mod tests;
