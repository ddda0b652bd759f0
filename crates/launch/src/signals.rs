//! The signals that are passed on to the app.
//!
//! Signals that are ignored since the start of this process (by `nohup`, or a shell without job
//! control) stay ignored, and the app inherits that.

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::error::LaunchError;

const PASSED_ON: [Signal; 8] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::CONT,
];
/// Signals that wait to be read.
const WAITING_LIMIT: usize = 16;

pub(crate) struct Signals {
    received: mpsc::Receiver<Signal>,
    children: tokio::signal::unix::Signal,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self, LaunchError> {
        let ignored = ignored();
        let (sender, received) = mpsc::channel(WAITING_LIMIT);
        for passed_on in PASSED_ON.into_iter().filter(|&signal| !is_in(ignored, signal)) {
            let kind = SignalKind::from_raw(passed_on.as_raw());
            let mut stream =
                signal(kind).map_err(LaunchError::system("cannot wait for signals"))?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && sender.send(passed_on).await.is_ok() {}
            });
        }
        let children =
            signal(SignalKind::child()).map_err(LaunchError::system("cannot wait for signals"))?;
        Ok(Self { received, children })
    }

    /// The next one for the app.
    pub(crate) async fn next(&mut self) -> Signal {
        match self.received.recv().await {
            Some(signal) => signal,
            // All are ignored.
            None => std::future::pending().await,
        }
    }

    /// The next one that asks a program to end.
    pub(crate) async fn next_request_to_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if matches!(signal, Signal::HUP | Signal::INT | Signal::QUIT | Signal::TERM) {
                return signal;
            }
        }
    }

    /// What comes first: a signal for the app, or (`None`) a change of some child.
    pub(crate) async fn next_or_child(&mut self) -> Option<Signal> {
        tokio::select! {
            signal = self.received.recv() => match signal {
                Some(signal) => Some(signal),
                None => { self.children.recv().await; None }
            },
            _ = self.children.recv() => None,
        }
    }

    /// What comes first: a signal that asks a program to end (`true`), or a change of some child.
    pub(crate) async fn next_end_or_child(&mut self) -> bool {
        loop {
            match self.next_or_child().await {
                Some(Signal::HUP | Signal::INT | Signal::QUIT | Signal::TERM) => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }
}

/// The mask of signals that this process ignores, bit n-1 for signal n; none where it cannot be
/// known.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(mask: u64, signal: Signal) -> bool {
    u32::try_from(signal.as_raw() - 1).is_ok_and(|bit| mask.checked_shr(bit).unwrap_or(0) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_names_signals_by_their_numbers() {
        // SIGHUP is 1, SIGINT 2, SIGQUIT 3, as `nohup` and `&` in scripts have them ignored.
        assert!(is_in(0b111, Signal::HUP) && is_in(0b111, Signal::INT));
        assert!(!is_in(0b111, Signal::TERM) && !is_in(0, Signal::HUP));
    }
}
