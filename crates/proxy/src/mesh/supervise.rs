//! Opens one session after the other, for as long as the client lives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tollway_dial::Targets;
use tollway_net::Backoff;
use tracing::{debug, info, warn};

use super::enroll::{self, Enrolment};
use super::knowledge::Knowledge;
use super::session::{self, End};
use super::{MeshDelta, MeshError, Shared};

/// Before connecting again.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(5) };
/// The same where it may be at several addresses: another one may serve soon.
const BACKOFF_OF_SEVERAL: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(1) };
/// A session that lived for this long was no failed attempt.
const GOOD_SESSION: Duration = Duration::from_secs(5);

/// Never returns; it is cancelled when the client is dropped.
pub(super) async fn run(
    who: Enrolment,
    shared: Arc<Shared>,
    mut on_delta: Box<dyn FnMut(MeshDelta) + Send>,
) {
    let mut knowledge = Knowledge::default();
    let mut attempt: u32 = 0;
    let mut is_refused = false;
    let mut moved = who.control.moves();
    loop {
        let began = Instant::now();
        let ended = tokio::select! {
            ended = one(&who, &shared, is_refused, &mut knowledge, &mut *on_delta) => ended,
            // The address that is dialled is not the control plane any more.
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
                is_refused = false;
                continue;
            }
            Err(error) => error,
        };
        is_refused = error.needs_renewal();
        let has_lasted = began.elapsed() >= GOOD_SESSION;
        who.control.note_lost(has_lasted);
        attempt = if has_lasted { 0 } else { attempt.saturating_add(1) };
        let reason = tollway_model::chain(&error);
        report_loss(&shared, &reason);
        let is_one = who.control.targets().only().is_some();
        let backoff = if is_one { BACKOFF } else { BACKOFF_OF_SEVERAL };
        tokio::select! {
            () = tokio::time::sleep(backoff.pause(attempt)) => {}
            true = has_moved(&mut moved) => attempt = 0,
        }
    }
}

/// Returns when the control plane is somewhere else; false when it will never move.
async fn has_moved(moved: &mut watch::Receiver<Targets>) -> bool {
    moved.changed().await.is_ok()
}

async fn one(
    who: &Enrolment,
    shared: &Arc<Shared>,
    is_refused: bool,
    knowledge: &mut Knowledge,
    on_delta: &mut (dyn FnMut(MeshDelta) + Send),
) -> Result<End, MeshError> {
    let present = shared.credentials.borrow().clone();
    let has_ended = enroll::has_ended(&present);
    if has_ended || is_refused {
        match enroll::again(who, &present).await {
            Ok(renewed) => {
                warn!("the certificate had ended and is renewed");
                session::take_over(who, shared, renewed, session::Unwritten::IsUsed).await?;
            }
            // By this machine's clock it is good.
            Err(error) if !has_ended => {
                debug!(error = %tollway_model::chain(&error), "not renewed")
            }
            Err(error) => return Err(error),
        }
    }
    session::run(who, shared, knowledge, on_delta).await
}

/// Puts a loss into the status. Logs it once, and not every failed attempt after it.
fn report_loss(shared: &Shared, reason: &str) {
    let was_connected = shared.status.borrow().connected;
    let news = shared.status.borrow().last_error.as_deref() != Some(reason);
    if was_connected {
        warn!(reason, "lost the control plane; serving on with what is known");
    } else if news {
        info!(reason, "no control plane yet");
    }
    shared.status.send_modify(|status| {
        status.connected = false;
        status.registered = None;
        status.last_error = Some(reason.to_owned());
    });
}
