//! Waiting for a condition with a deadline, and ports.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Pause between two checks: short at first, so that a quick condition costs little.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Asks `attempt` again and again until it answers `Some`, at most for `within`.
///
/// The error names `what` was awaited. At least one attempt is made.
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

/// A TCP port without a listener on any address ([`tollway_net::free_port`]). Prefer port 0 and a
/// ports file, then [`free_address`]; use this only if the port alone can be set in advance.
pub fn free_port() -> Result<u16> {
    let free = tollway_net::free_port(Ipv4Addr::UNSPECIFIED.into()).context("no port is free")?;
    Ok(free.port())
}

/// A TCP address for a program that needs its address in advance. Each call has a loopback address
/// to itself, so nothing else takes it.
pub fn free_address() -> Result<SocketAddr> {
    /// From 127.128 on, so that none is what a test has written down.
    const FIRST: u8 = 128;
    static CALLS: AtomicU8 = AtomicU8::new(0);
    let [.., high, low] = std::process::id().to_be_bytes();
    let call = CALLS.fetch_add(1, Ordering::Relaxed) % (u8::MAX - FIRST);
    free_on(Ipv4Addr::new(127, FIRST + call, high, low))
}

fn free_on(ip: Ipv4Addr) -> Result<SocketAddr> {
    let listener = TcpListener::bind((ip, 0)).with_context(|| format!("could not bind {ip}:0"))?;
    listener.local_addr().context("a bound socket has no address")
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
    fn free_addresses_can_be_bound_and_have_no_ip_in_common() {
        let (one, other) = (free_address().unwrap(), free_address().unwrap());
        assert_ne!(one.ip(), other.ip());
        assert!(one.ip().is_loopback() && TcpListener::bind(one).is_ok());
    }
}
