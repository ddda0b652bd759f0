//! Look-ups of single neighbours by many agents, as they make them for what they miss.

use std::net::SocketAddr;
use std::time::Duration;

use prost::Message as _;
use tollway_model::Group;
use tollway_record::RunResult;
use tollway_wire::v1::GetNeighboursRequest;

use super::Population;
use crate::arrival::{Arrival, Extent, Spacing};
use crate::error::LoadError;
use crate::options::{GrpcRequest, Keep, LoadOptions, Target};
use crate::progress::Watch;
use crate::run::run_grpc;
use crate::tls::{ReadyTls, TlsOptions};

/// The method of the service.
const METHOD: &str = "/tollway.v1.Neighbours/GetNeighbours";
/// Most neighbours that are looked up one after the other: more would only cost memory here.
const ASKED_IN_TURN: u32 = 10_000;
/// Odd, so that neighbours that follow each other in a run are far from each other in the table.
const STRIDE: u32 = 2_654_435_761;

/// What to ask, and how.
#[derive(Clone, Debug)]
pub struct GetOptions {
    pub group: Group,
    /// Where the control plane is.
    pub control: SocketAddr,
    /// An agent's of the group.
    pub tls: ReadyTls,
    /// Connections, each with one look-up under way at a time.
    pub agents: usize,
    /// Look-ups per second of all agents together; without a rate each starts the next at once.
    pub rate_rps: Option<f64>,
    /// Neighbours of the round of writes that are looked up.
    pub entries: u32,
    pub round: u32,
    pub lasting: Duration,
    pub warm_up: Duration,
    pub timeout: Duration,
    pub seed: u64,
    pub keep: Keep,
    /// Kept in the result as it is.
    pub command_line: Vec<String>,
}

/// Looks up neighbours that a run of writes has written. An answer without the neighbour counts as
/// an answer.
///
/// # Errors
/// [`LoadError`] when the control plane cannot be reached or refuses.
pub fn get_neighbours(options: &GetOptions, watch: &mut Watch<'_>) -> Result<RunResult, LoadError> {
    let GetOptions { control, agents, timeout, lasting, .. } = options;
    let load = LoadOptions {
        arrival: match options.rate_rps {
            Some(rate_rps) => Arrival::Open { rate_rps, spacing: Spacing::Uniform },
            None => Arrival::Closed,
        },
        extent: Extent::Lasting(*lasting),
        warmup: options.warm_up,
        seed: options.seed,
        connections: *agents,
        tls: TlsOptions { ready: Some(options.tls.clone()), ..TlsOptions::default() },
        streams: 1,
        request_timeout: *timeout,
        keep: options.keep,
        command_line: options.command_line.clone(),
        ..LoadOptions::new(Target::grpc(&format!("grpcs://{control}{METHOD}"))?)
    };
    let request = GrpcRequest { in_turn: questions(options), ..GrpcRequest::default() };
    run_grpc(&load, &request, watch)
}

/// Encoded questions for one neighbour each, spread over the table.
fn questions(options: &GetOptions) -> Vec<Vec<u8>> {
    let population = Population::of_round(options.round);
    let entries = options.entries.max(1);
    let question = |index: u32| {
        let number = index.wrapping_mul(STRIDE) % entries;
        let keys = vec![(&population.key(number)).into()];
        GetNeighboursRequest { group: options.group.to_lower(), keys }.encode_to_vec()
    };
    (0..entries.min(ASKED_IN_TURN)).map(question).collect()
}
