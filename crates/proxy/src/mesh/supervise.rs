//! Opens one session after the other, for as long as the client lives.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tracing::{info, warn};

use super::enroll::{self, Who};
use super::knowledge::Knowledge;
use super::session::{self, End};
use super::{MeshDelta, MeshError, Shared};

/// First and longest pause before connecting again.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A session that lived for this long was no failed attempt.
const GOOD_SESSION: Duration = Duration::from_secs(5);

/// Never returns; it is cancelled when the client is dropped.
pub(super) async fn run(
    who: Who,
    shared: Arc<Shared>,
    mut on_delta: Box<dyn FnMut(MeshDelta) + Send>,
) {
    let mut knowledge = Knowledge::default();
    let mut attempt: u32 = 0;
    let mut moved = who.control.clone();
    loop {
        let began = Instant::now();
        let ended = tokio::select! {
            ended = one(&who, &shared, &mut knowledge, &mut *on_delta) => ended,
            // Whoever is dialled now is not the control plane any more.
            true = has_moved(&mut moved) => {
                attempt = 0;
                continue;
            }
        };
        let error = match ended {
            Ok(End::Renewed) => {
                // The registration goes over to the next session within the grace that the
                // control plane gives a broken connection.
                attempt = 0;
                continue;
            }
            Err(error) => error,
        };
        attempt = if began.elapsed() >= GOOD_SESSION { 0 } else { attempt.saturating_add(1) };
        let reason = tollway_model::chain(&error);
        tell(&shared, &reason);
        tokio::select! {
            () = tokio::time::sleep(pause(attempt, jitter())) => {}
            true = has_moved(&mut moved) => attempt = 0,
        }
    }
}

/// Returns when the control plane is somewhere else; false when it will never move.
async fn has_moved(moved: &mut watch::Receiver<String>) -> bool {
    moved.changed().await.is_ok()
}

async fn one(
    who: &Who,
    shared: &Arc<Shared>,
    knowledge: &mut Knowledge,
    on_delta: &mut (dyn FnMut(MeshDelta) + Send),
) -> Result<End, MeshError> {
    let ended = enroll::has_ended(&shared.credentials.borrow());
    if ended {
        warn!("the certificate has ended; redeeming the join token again");
        let credentials = enroll::by_token(who).await?;
        shared.credentials.send_replace(Arc::new(credentials));
    }
    session::run(who, shared, knowledge, on_delta).await
}

/// Logs a loss once, and not every failed attempt after it.
fn tell(shared: &Shared, reason: &str) {
    let was_connected = shared.status.borrow().connected;
    let news = shared.status.borrow().last_error.as_deref() != Some(reason);
    if was_connected {
        warn!(reason, "lost the control plane; serving on with what is known");
    } else if news {
        info!(reason, "no control plane yet");
    }
    shared.status.send_modify(|status| {
        status.connected = false;
        status.registered = false;
        status.last_error = Some(reason.to_owned());
    });
}

/// The pause before the `attempt`-th connection in a row: doubles up to a bound; `jitter` (any
/// number) takes away up to half, so that a restarted control plane is not met by all at once.
fn pause(attempt: u32, jitter: u64) -> Duration {
    let whole = FIRST_PAUSE.saturating_mul(1 << attempt.min(10)).min(LONGEST_PAUSE);
    let thousandths = u32::try_from(jitter % 500).expect("below 500");
    whole - whole * thousandths / 1000
}

/// Not for secrets: the low bits of the clock spread restarts well enough.
fn jitter() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::from(since.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        let ms = |attempt, jitter| pause(attempt, jitter).as_millis();
        assert_eq!((ms(0, 0), ms(1, 0), ms(4, 0)), (100, 200, 1_600));
        assert_eq!((ms(u32::MAX, 0), ms(u32::MAX, 499)), (5_000, 2_505));
    }
}
