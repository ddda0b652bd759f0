//! A network that can no longer be reached: its services are withdrawn, and are back by
//! themselves when it is.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::Serialize;
use tollway_testkit::retry_until;

use crate::reliability::caller::Calls;
use crate::reliability::strike::millis;
use crate::reliability::world::{PATIENCE, World, get};

/// The promise.
const WITHDRAWN_WITHIN: Duration = Duration::from_secs(10);
const BACK_WITHIN: Duration = Duration::from_secs(10);
const CALM: Duration = Duration::from_millis(1000);
const SERVICE: &str = "web.default.far";

/// How the other network is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loss {
    /// Its gateways end without a word, and nothing listens at their addresses.
    Killed,
    /// Its gateways fall silent: connections remain open, nothing comes back.
    Silent,
}

impl Loss {
    pub(crate) const ALL: [Self; 2] = [Self::Killed, Self::Silent];

    fn words(self) -> &'static str {
        match self {
            Self::Killed => "both gateways far killed",
            Self::Silent => "both gateways far stopped",
        }
    }
}

/// What the loss of a network cost.
#[derive(Debug, Serialize)]
pub(crate) struct LostNetwork {
    pub(crate) how: &'static str,
    /// Until a call was answered at once that the network cannot be reached.
    pub(crate) withdrawn_after_ms: u64,
    /// From the moment the gateways served again until a call succeeded.
    pub(crate) back_after_ms: u64,
    /// Requests within the caller's own network meanwhile, and those that failed.
    pub(crate) near_sent: usize,
    pub(crate) near_lost: usize,
    pub(crate) passed: bool,
}

impl LostNetwork {
    pub(crate) fn line(&self) -> String {
        format!(
            "{:<6} {:<31} withdrawn after {} ms, back after {} ms, near: {} sent, {} lost",
            if self.passed { "ok" } else { "FAILED" },
            self.how,
            self.withdrawn_after_ms,
            self.back_after_ms,
            self.near_sent,
            self.near_lost,
        )
    }
}

/// Takes both gateways of the far network away and gives them back.
pub(crate) fn lose_network(world: &mut World, loss: Loss, rate_rps: u32) -> LostNetwork {
    let mut near = world.streams(rate_rps);
    near.retain(|stream| stream.service.ends_with(".near"));
    let calls = Calls::start(&near);
    std::thread::sleep(CALM);
    let listener = world.caller.port("http");
    let gateways = &mut world.far.gateways;
    let lost = Instant::now();
    match loss {
        Loss::Killed => gateways.iter_mut().for_each(|gateway| gateway.kill()),
        Loss::Silent => gateways.iter().for_each(|gateway| gateway.signal(Signal::STOP)),
    }
    // Each call from a thread of its own: one that was sent into the silence waits in it.
    let withdrawn = retry_until(PATIENCE, "the network being withdrawn", || {
        std::thread::sleep(Duration::from_millis(100));
        ask(listener).filter(|answer| answer.contains("ERR_UNREACHABLE_NETWORK"))
    });
    let withdrawn_after = lost.elapsed();
    withdrawn.unwrap();
    match loss {
        Loss::Killed => gateways.iter_mut().for_each(|gateway| gateway.restart()),
        Loss::Silent => gateways.iter().for_each(|gateway| gateway.signal(Signal::CONT)),
    }
    let returned = Instant::now();
    let back = retry_until(PATIENCE, "the network being back", || {
        ask(listener).filter(|answer| answer.starts_with("HTTP/1.1 200"))
    });
    let back_after = returned.elapsed();
    back.unwrap();
    world.until_whole();
    let sent = calls.stop();
    let near_lost = sent.iter().filter(|one| one.failure.is_some()).count();
    LostNetwork {
        how: loss.words(),
        withdrawn_after_ms: millis(withdrawn_after),
        back_after_ms: millis(back_after),
        near_sent: sent.len(),
        near_lost,
        passed: withdrawn_after <= WITHDRAWN_WITHIN && back_after <= BACK_WITHIN && near_lost == 0,
    }
}

/// The answer to a call, if there is one soon.
fn ask(listener: std::net::SocketAddr) -> Option<String> {
    const SOON: Duration = Duration::from_millis(500);
    let (tell, reported) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // The receiver is gone when the answer comes late.
        let _ = tell.send(get(listener, &format!("/v1.0/invoke/{SERVICE}/method/healthz")));
    });
    reported.recv_timeout(SOON).ok()
}
