//! The load generator of a run: its command line, the wait for its end, its result.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tollway_record::run::RunResult;

use super::super::plan::{Cell, CellArrival};
use super::Bench;
use crate::actors::ActorsSpec;
use crate::commands::{Load, LoadArrival};
use crate::error::LabError;
use crate::experiment::kind::Run;
use crate::process::{Running, Spec};
use crate::scenario::MessagesSpec;
use crate::subject::{HOME, Leg, Route};

/// Beyond a run's expected time, before it is given up: requests may wait this long.
const RUN_GRACE: Duration = Duration::from_secs(20);
/// A search is given up after as long as so many trials take: it makes a hundred at most, each
/// with its warm-up, those that confirm twice as long.
const SEARCH_LIMIT_TRIALS: u32 = 300;

/// The address of an answer of so many bytes; routes of HTTP end in `/echo`.
fn sized(url: &str, bytes: u64) -> String {
    url.strip_suffix("/echo").map_or(url.to_owned(), |base| format!("{base}/size?bytes={bytes}"))
}

fn file_name(id: &str) -> String {
    id.replace(['/', ':'], "-")
}

impl Bench<'_> {
    /// The load of a run, and the process that makes it.
    pub(in crate::experiment::requests) fn load_of(
        &self,
        cell: &Cell,
        run: &Run,
        rate_rps: Option<f64>,
    ) -> Result<(Spec, Load), LabError> {
        let route = self.route(cell)?;
        let name = format!("load-{}-{}", file_name(&cell.id), run.block);
        let mut load = self.load(&name, &cell.leg, route);
        if let Some(bytes) = cell.answer_bytes {
            load.url = sized(&load.url, bytes);
        }
        if let Some(actors) = cell.actors {
            load = match actors.fires() {
                true => self.to_timers(load, actors, cell.subject, rate_rps.unwrap_or_default())?,
                false => self.to_actors(load, actors, cell.subject, &cell.leg)?,
            };
        }
        let arrival = match (&cell.arrival, rate_rps) {
            (
                CellArrival::Open { spacing, .. } | CellArrival::ShareOfSlowest { spacing, .. },
                Some(rate_rps),
            ) => LoadArrival::Open(rate_rps, *spacing),
            (CellArrival::Flow(direction), _) => LoadArrival::Flow(*direction),
            (CellArrival::Search(slo), _) => {
                LoadArrival::Search { slo: slo.clone(), trial: cell.trial() }
            }
            _ => LoadArrival::Closed,
        };
        let load = Load {
            arrival,
            connections: cell.connections_at(rate_rps),
            streams: cell.streams,
            messages: cell.messages.unwrap_or_default(),
            handshakes: cell.handshakes,
            duration: cell.window,
            warm_up: cell.warm_up,
            payload_bytes: cell.payload_bytes,
            seed: self.seed.wrapping_add(u64::from(run.block)),
            ..load
        };
        let spec = self.ground.commands.load(self.ground.home(), &name, &load);
        Ok((spec.in_cgroup(route.cgroup.as_deref()), load))
    }

    /// A load of one connection without a body.
    pub(super) fn load(&self, name: &str, leg: &Leg, route: &Route) -> Load {
        Load {
            protocol: leg.protocol,
            url: route.url.clone(),
            headers: route.headers.clone(),
            tls: route.caller_tls.clone(),
            arrival: LoadArrival::Closed,
            connections: 1,
            streams: None,
            messages: MessagesSpec::default(),
            handshakes: None,
            timers: None,
            duration: Duration::ZERO,
            warm_up: Duration::ZERO,
            payload_bytes: 0,
            method: None,
            body: None,
            seed: self.seed,
            json: self.ground.file(&format!("{name}.json")),
        }
    }

    /// Changes a load so that its requests are to actors in place of the app.
    pub(super) fn to_actors(
        &self,
        load: Load,
        actors: ActorsSpec,
        subject: usize,
        leg: &Leg,
    ) -> Result<Load, LabError> {
        let Some(url) = actors.url(&load.url, leg.network != HOME) else {
            let subject = self.subjects[subject].label.clone();
            return Err(LabError::NoActors { subject, url: load.url });
        };
        Ok(Load { url, method: Some("PUT"), body: actors.body(), ..load })
    }

    /// Changes a load so that timers of actors fire in place of requests.
    fn to_timers(
        &self,
        load: Load,
        actors: ActorsSpec,
        subject: usize,
        rate_rps: f64,
    ) -> Result<Load, LabError> {
        let Some((url, timers)) = actors.timers(&load.url, rate_rps) else {
            let subject = self.subjects[subject].label.clone();
            return Err(LabError::NoActors { subject, url: load.url });
        };
        Ok(Load { url, timers: Some(timers), ..load })
    }

    /// Starts a load generator; [`Running`] kills it when dropped.
    pub(in crate::experiment::requests) fn begin_load(
        &self,
        spec: &Spec,
    ) -> Result<Running, LabError> {
        Ok(self.ground.supervisor.begin(spec)?)
    }

    /// Runs a load generator to its end.
    pub(in crate::experiment::requests) fn run_load(
        &self,
        spec: &Spec,
        load: &Load,
        row: &str,
    ) -> Result<RunResult, LabError> {
        let mut running = self.begin_load(spec)?;
        self.finish_load(&mut running, spec, load, row)
    }

    /// Waits for the end of a load generator. Its status may report errors; only its result counts.
    pub(in crate::experiment::requests) fn finish_load(
        &self,
        running: &mut Running,
        spec: &Spec,
        load: &Load,
        row: &str,
    ) -> Result<RunResult, LabError> {
        let expected = match &load.arrival {
            LoadArrival::Search { trial, .. } => *trial * SEARCH_LIMIT_TRIALS,
            LoadArrival::Open(..) | LoadArrival::Closed | LoadArrival::Flow(_) => {
                load.warm_up + load.duration
            }
        };
        let limit = expected + RUN_GRACE;
        let status = self.ground.supervisor.finish(running, limit)?;
        let result = read_result(&load.json, row).map_err(|error| {
            if status.success() {
                error
            } else {
                self.ground.supervisor.exit_error(&spec.name, status).into()
            }
        })?;
        // The results are in the record; an experiment of hours would fill the directory.
        let _ = fs::remove_file(&load.json);
        Ok(result)
    }
}

fn read_result(path: &Path, row: &str) -> Result<RunResult, LabError> {
    let text = fs::read_to_string(path).map_err(|source| LabError::ReadResult {
        row: row.into(),
        path: path.into(),
        source,
    })?;
    let mut result = RunResult::from_json(&text).map_err(|source| LabError::Result {
        row: row.into(),
        path: path.into(),
        source,
    })?;
    result.judge_client();
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_s_size_is_asked_for_in_the_path() {
        let check = |url, expected: &str| assert_eq!(sized(url, 4_096), expected);
        check("http://127.0.0.1:80/echo", "http://127.0.0.1:80/size?bytes=4096");
        check(
            "http://127.0.0.1:1/v1.0/invoke/echo/method/echo",
            "http://127.0.0.1:1/v1.0/invoke/echo/method/size?bytes=4096",
        );
        check("127.0.0.1:80", "127.0.0.1:80");
    }
}
