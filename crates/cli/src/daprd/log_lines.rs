//! Lines about the start and the end of a sidecar in daprd's place, in daprd's words: programs that start
//! daprd wait for them.

use std::time::{Duration, Instant};

pub(super) fn starts() {
    tracing::info!("Starting Dapr Runtime -- version {} -- tollway", env!("CARGO_PKG_VERSION"));
}

/// The sidecar is ready.
pub(super) fn runs(since: Instant) {
    let took = since.elapsed().as_millis();
    tracing::info!("dapr initialized. Status: Running. Init Elapsed {took}ms");
}

/// The app is not asked for its actors.
pub(super) fn asks_no_actors() {
    tracing::info!("Skipping programmatic dapr configuration loading");
}

/// It hosts no actors, and no placement service is named. Those of others can be called all the same.
pub(super) fn hosts_no_actors() {
    tracing::info!("Actor runtime disabled: there is no app, and no placement service is named");
}

/// Calls are served for a time before the end.
pub(super) fn is_blocked(time: Duration) {
    let time = in_words(time);
    tracing::info!("Blocking graceful shutdown for {time} or until app reports unhealthy...");
}

pub(super) fn is_unblocked(by_app: bool) {
    match by_app {
        true => tracing::info!("App reported unhealthy, entering shutdown..."),
        false => tracing::info!("Block shutdown period expired, entering shutdown..."),
    }
}

pub(super) fn ended() {
    tracing::info!("Daprd shutdown gracefully");
}

/// Calls under way were cut off.
pub(super) fn was_cut_off() {
    tracing::error!(fatal = true, "Graceful shutdown timeout exceeded, forcing shutdown");
}

pub(super) fn failed(error: &anyhow::Error) {
    tracing::error!(fatal = true, "Fatal error from runtime: {error:#}");
}

/// A time as Go writes it: `3m0s`, `1h0m2.5s`, `250ms`.
fn in_words(time: Duration) -> String {
    let whole = time.as_secs();
    if whole == 0 && !time.is_zero() {
        return format!("{time:?}");
    }
    let (hours, minutes) = (whole / 3600, whole / 60 % 60);
    let seconds =
        Duration::from_secs(whole % 60) + Duration::from_nanos(time.subsec_nanos().into());
    let seconds = seconds.as_secs_f64();
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_go_writes_them() {
        for (seconds, text) in [
            (0.0, "0s"),
            (2.0, "2s"),
            (180.0, "3m0s"),
            (3602.5, "1h0m2.5s"),
            (0.25, "250ms"),
            (61.5, "1m1.5s"),
        ] {
            assert_eq!(in_words(Duration::from_secs_f64(seconds)), text);
        }
    }
}
