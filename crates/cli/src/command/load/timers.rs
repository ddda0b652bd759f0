//! `tollway load timers`.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use tollway_load::{MAX_TIMERS, TimerKind, TimerOptions, Watch, run_timers};
use tollway_record::RunResult;

use super::duration::duration;
use super::result_output::OutputArgs;

#[derive(Args)]
pub(super) struct TimersArgs {
    /// HTTP API of the app's sidecar on this machine, as http://127.0.0.1:3500.
    #[arg(value_name = "API")]
    api: String,
    /// The app, `tollway echo --actors`, as its own sidecar can call it.
    #[arg(long, value_name = "NAME")]
    app: String,
    /// What fires.
    #[arg(long, value_enum, default_value_t = Kind::Timer)]
    kind: Kind,
    /// Actors, each with one timer or reminder.
    #[arg(
        short = 'n',
        long,
        value_name = "COUNT",
        default_value_t = 1_000,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_TIMERS))
    )]
    actors: u32,
    /// Time between two fires of one timer; all timers are spread evenly over it.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    every: Duration,
    /// Have each actor write state at each fire, before it answers.
    #[arg(long)]
    state: bool,
    /// Connections on which timers or reminders are set and removed.
    #[arg(short = 'c', long, value_name = "COUNT", default_value_t = 16)]
    connections: usize,
    /// How long to measure.
    #[arg(short = 'z', long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// Time of fires before the measured time.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    warm_up: Duration,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Timer,
    Reminder,
}

impl TimersArgs {
    pub(super) fn output(&self) -> &OutputArgs {
        &self.output
    }

    pub(super) fn run(&self, watch: &mut Watch<'_>) -> Result<RunResult> {
        self.output.check(false)?;
        let options = TimerOptions {
            api: self.api.clone(),
            app: self.app.clone(),
            kind: match self.kind {
                Kind::Timer => TimerKind::Timer,
                Kind::Reminder => TimerKind::Reminder,
            },
            timers: self.actors,
            every: self.every,
            writes_state: self.state,
            connections: self.connections,
            lasting: self.duration,
            warm_up: self.warm_up,
            keep: self.output.keep(),
            command_line: std::env::args().collect(),
        };
        Ok(run_timers(&options, watch)?)
    }
}
