//! Waiting for a condition with a deadline, and ports.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Pause between two looks: short at first, so that a quick condition costs little.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The first and the last port that the kernel gives to those who ask for any.
const GIVEN_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

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

/// A TCP port that nobody listens at, for a program that must be told where to.
///
/// The kernel gives it to nobody who asks for any port, and no two calls of a process return the
/// same; another process may ask for just this one. Prefer port 0 and a ports file, then
/// [`free_address`], and use this only where the port alone can be told in advance.
pub fn free_port() -> Result<u16> {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let ports = never_given(&std::fs::read_to_string(GIVEN_PORTS).unwrap_or_default());
    let span = u32::from(ports.end - ports.start);
    // Processes of tests that follow one another begin in different places.
    let begin = std::process::id().wrapping_mul(101);
    for _ in 0..span {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let offset = begin.wrapping_add(call) % span;
        let port = ports.start + u16::try_from(offset).context("more ports than there are")?;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("none of the ports {ports:?} is free")
}

/// Ports that the kernel does not give to those who ask for any, by the text of [`GIVEN_PORTS`], and
/// that no program is known for.
fn never_given(given: &str) -> Range<u16> {
    const BELOW: u16 = 20_000;
    const ABOVE: u16 = 61_000;
    let mut bounds = given.split_whitespace().filter_map(|bound| bound.parse().ok());
    let (first, last) = (bounds.next().unwrap_or(32_768), bounds.next().unwrap_or(ABOVE - 1));
    if first > BELOW {
        BELOW..first
    } else if last < u16::MAX - 1 {
        last.max(ABOVE - 1) + 1..u16::MAX
    } else {
        // All are given: whichever, then.
        BELOW..u16::MAX
    }
}

/// A TCP address for a program that must be told where to listen: nobody takes it meanwhile, as
/// each call has an address of loopback to itself.
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
    use std::collections::BTreeSet;

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
    fn free_ports_can_be_bound_and_differ() {
        let ports: BTreeSet<u16> = (0..100).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 100);
        let given = never_given(&std::fs::read_to_string(GIVEN_PORTS).unwrap());
        for port in ports {
            assert!(given.contains(&port), "{port} of {given:?}");
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        }
    }

    #[test]
    fn free_ports_are_those_that_the_kernel_gives_to_nobody() {
        assert_eq!(never_given("32768\t60999\n"), 20_000..32_768);
        assert_eq!(never_given("1024 60999"), 61_000..65_535);
        assert_eq!(never_given("1024 64000"), 64_001..65_535);
        assert_eq!(never_given("1024 65535"), 20_000..65_535);
        assert_eq!(never_given(""), 20_000..32_768, "no such file");
    }

    #[test]
    fn free_addresses_can_be_bound_and_have_no_ip_in_common() {
        let (one, other) = (free_address().unwrap(), free_address().unwrap());
        assert_ne!(one.ip(), other.ip());
        assert!(one.ip().is_loopback() && TcpListener::bind(one).is_ok());
    }
}
