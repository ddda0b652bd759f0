//! One token that ends everything the lab waits for: Ctrl-C, SIGTERM, or the caller's wish.
//!
//! Whoever waits gets [`Cancelled`] and returns; dropping what was started cleans up. A second
//! signal ends the process at once, and the kernel kills its children.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The wait was ended by the user or the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped before the end")]
pub struct Cancelled;

/// How a wait for a descriptor ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    Readable,
    TimedOut,
}

/// Cloned into everything that waits.
#[derive(Debug, Clone)]
pub struct Cancel {
    /// Holds a byte once cancelled. Nobody takes it out, so every waiter sees it.
    told: Arc<UnixStream>,
    tell: Arc<UnixStream>,
}

impl Cancel {
    /// A token that only [`Cancel::cancel`] triggers.
    pub fn new() -> io::Result<Self> {
        let (told, tell) = UnixStream::pair()?;
        tell.set_nonblocking(true)?;
        Ok(Self { told: Arc::new(told), tell: Arc::new(tell) })
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
            signal_hook::low_level::pipe::register(signal, cancel.tell.try_clone()?)?;
        }
        Ok(cancel)
    }

    /// Ends every wait, now and later.
    pub fn cancel(&self) {
        // A full pipe has been told already.
        let _ = rustix::io::write(&*self.tell, &[1]);
    }

    pub fn check(&self) -> Result<(), Cancelled> {
        self.sleep(Duration::ZERO)
    }

    /// Sleeps, or returns early when cancelled.
    pub fn sleep(&self, time: Duration) -> Result<(), Cancelled> {
        self.wait(None, Instant::now() + time).map(|_| ())
    }

    /// Waits until `fd` is readable or `until` has passed.
    pub(crate) fn wait(
        &self,
        fd: Option<BorrowedFd<'_>>,
        until: Instant,
    ) -> Result<Waited, Cancelled> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let told = self.told.as_fd();
            // Without a descriptor of the caller's, ours stands in its place, unasked.
            let (fd, flags) = fd.map_or((told, PollFlags::empty()), |fd| (fd, PollFlags::IN));
            let mut fds = [
                PollFd::from_borrowed_fd(told, PollFlags::IN),
                PollFd::from_borrowed_fd(fd, flags),
            ];
            // Interrupted or out of memory for a moment: look again.
            let _ = rustix::event::poll(&mut fds, Some(&timespec(left)));
            if !fds[0].revents().is_empty() {
                return Err(Cancelled);
            }
            if !flags.is_empty() && !fds[1].revents().is_empty() {
                return Ok(Waited::Readable);
            }
            if left.is_zero() {
                return Ok(Waited::TimedOut);
            }
        }
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
