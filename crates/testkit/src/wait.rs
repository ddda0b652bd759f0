//! Waiting for a condition with a deadline, and ports.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Pause between two looks: short at first, so that a quick condition costs little.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Asks `attempt` again and again until it answers `Some`, at most for `within`.
///
/// The error says `what` was awaited. At least one attempt is made.
pub fn retry_until<T>(
    within: Duration,
    what: &str,
    mut attempt: impl FnMut() -> Option<T>,
) -> Result<T> {
    let deadline = Instant::now() + within;
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(answer) = attempt() {
            return Ok(answer);
        }
        if Instant::now() >= deadline {
            bail!("{what}: not within {within:?}");
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// A TCP port of 127.0.0.1 that nobody used a moment ago.
///
/// Somebody else may take it before you do: prefer port 0 and a ports file, and use this only
/// for an address that must be known in advance or where nothing must answer.
pub fn free_port() -> Result<u16> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("could not bind 127.0.0.1:0")?;
    Ok(listener.local_addr().context("a bound socket has no address")?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_of_a_later_attempt_is_returned() {
        let mut attempts = 0;
        let answer = retry_until(Duration::from_secs(5), "third attempt", || {
            attempts += 1;
            (attempts == 3).then_some(attempts)
        });
        assert_eq!(answer.unwrap(), 3);
    }

    #[test]
    fn deadline_ends_the_wait_and_names_it() {
        let error = retry_until(Duration::from_millis(5), "a wonder", || None::<()>).unwrap_err();
        assert_eq!(error.to_string(), "a wonder: not within 5ms");
    }

    #[test]
    fn free_port_can_be_bound() {
        TcpListener::bind((Ipv4Addr::LOCALHOST, free_port().unwrap())).unwrap();
    }
}
