//! One token that ends every wait of the lab: after Ctrl-C, SIGTERM, or [`Cancel::cancel`].
//!
//! A wait returns [`Cancelled`]; dropping what was started cleans up. A second
//! signal ends the process at once, and the kernel kills its children.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// A signal or the caller ended the wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped before the end")]
pub struct Cancelled;

/// Cloned into everything that waits.
#[derive(Debug, Clone)]
pub struct Cancel {
    /// Readable once cancelled: no reader takes the byte out, so every waiter sees it.
    receiver: Arc<UnixStream>,
    sender: Arc<UnixStream>,
}

impl Cancel {
    /// A token that only [`Cancel::cancel`] triggers.
    pub fn new() -> io::Result<Self> {
        let (receiver, sender) = UnixStream::pair()?;
        sender.set_nonblocking(true)?;
        Ok(Self { receiver: Arc::new(receiver), sender: Arc::new(sender) })
    }

    /// A token that SIGINT, SIGTERM and SIGHUP trigger as well; the second of them exits with
    /// status 130.
    pub fn on_signals() -> io::Result<Self> {
        const STATUS_INTERRUPTED: i32 = 130;
        let cancel = Self::new()?;
        let first_seen = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let seen = Arc::clone(&first_seen);
            signal_hook::flag::register_conditional_shutdown(signal, STATUS_INTERRUPTED, seen)?;
            signal_hook::flag::register(signal, Arc::clone(&first_seen))?;
            signal_hook::low_level::pipe::register(signal, cancel.sender.try_clone()?)?;
        }
        Ok(cancel)
    }

    /// Ends every wait, now and later.
    pub fn cancel(&self) {
        // Fails only if the pipe is full, and then it is readable already.
        let _ = rustix::io::write(&*self.sender, &[1]);
    }

    pub fn check(&self) -> Result<(), Cancelled> {
        self.sleep(Duration::ZERO)
    }

    /// Sleeps, or returns early when cancelled.
    pub fn sleep(&self, time: Duration) -> Result<(), Cancelled> {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
            // Fails when a signal arrives or memory is short: poll again.
            let polled = rustix::event::poll(&mut fds, Some(&timespec(left)));
            if polled.is_ok_and(|ready| ready > 0) {
                return Err(Cancelled);
            }
            if left.is_zero() {
                return Ok(());
            }
        }
    }
}

impl AsFd for Cancel {
    /// Readable once cancelled.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_token_ends_a_sleep_of_every_clone() {
        let cancel = Cancel::new().unwrap();
        let waiter = cancel.clone();
        let waiting = std::thread::spawn(move || waiter.sleep(Duration::from_secs(30)));
        cancel.cancel();
        assert_eq!(waiting.join().unwrap(), Err(Cancelled));
        assert_eq!(cancel.sleep(Duration::from_secs(30)), Err(Cancelled));
        assert_eq!(cancel.check(), Err(Cancelled));
    }

    #[test]
    fn an_untouched_token_sleeps_as_long_as_asked() {
        let cancel = Cancel::new().unwrap();
        let start = Instant::now();
        assert_eq!(cancel.sleep(Duration::from_millis(20)), Ok(()));
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert_eq!(cancel.check(), Ok(()));
    }
}
