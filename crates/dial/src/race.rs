//! Happy eyeballs (RFC 8305): the addresses of a server are tried one a quarter of a second after the
//! other, the families in turn, and the first that accepts a connection is taken. Addresses that are
//! found later join in.
//!
//! Which comes first, and when the next attempt starts, is decided here; connecting is an argument.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::finding::{Finding, Found, Position};

/// From the start of an attempt to that of the next, unless it fails before.
pub const ATTEMPT_EVERY: Duration = Duration::from_millis(250);
/// Time for names that stand earlier in a list, once an address is known: their addresses come first.
const EARLIER_NAMES: Duration = Duration::from_millis(50);

/// Addresses of a name that are tried; the others are left out.
pub const ADDRESSES_LIMIT: usize = 16;

/// The order in which to try addresses: as they came, but with the families in turn, each address
/// once, and at most [`ADDRESSES_LIMIT`].
#[must_use]
pub fn in_turn(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut first = Vec::new();
    let mut second = Vec::new();
    for address in addresses {
        let family = match first.first() {
            None => &mut first,
            Some(known) if SocketAddr::is_ipv4(known) == address.is_ipv4() => &mut first,
            Some(_) => &mut second,
        };
        if !family.contains(&address) {
            family.push(address);
        }
    }
    let mut ordered = Vec::with_capacity(ADDRESSES_LIMIT);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    loop {
        let before = ordered.len();
        ordered.extend(first.next());
        ordered.extend(second.next());
        if ordered.len() == before || ordered.len() >= ADDRESSES_LIMIT {
            ordered.truncate(ADDRESSES_LIMIT);
            return ordered;
        }
    }
}

/// Connects to the first of `addresses`, in their order, that accepts. The next attempt starts when
/// the last one has failed, or after [`ATTEMPT_EVERY`]; what is under way when one succeeds is given
/// up. Without an end of its own: the caller sets the time.
///
/// # Errors
/// Of several addresses an error that names each with its reason, of the kind of the last failure;
/// of one address its own.
pub async fn race<T, F>(
    addresses: &[SocketAddr],
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<(T, SocketAddr)>
where
    T: Send + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
{
    if let [address] = addresses {
        return connect(*address).await.map(|connected| (connected, *address));
    }
    match race_found(Finding::known(addresses), &[], None, connect).await {
        Ok(won) => Ok((won.connected, won.address)),
        Err(missed) => Err(unconnected(missed)),
    }
}

/// An attempt that succeeded.
pub(crate) struct Won<T, E> {
    pub(crate) connected: T,
    pub(crate) address: SocketAddr,
    /// What was tried before, in vain.
    pub(crate) missed: Vec<(String, Miss<E>)>,
}

/// Why an address, or a name, is none to which there is a connection.
#[derive(Debug)]
pub(crate) enum Miss<E> {
    /// The name has no address, or nothing answers for it.
    NotFound(io::Error),
    Failed(E),
    /// The time was over.
    Unfinished,
}

/// As [`race`], of addresses that may still be looked for, with an end. Those of `last` come after all
/// others, in this order. Each address, or name, that was tried in vain comes with the reason.
pub(crate) async fn race_found<T, E, F>(
    mut finding: Finding,
    last: &[SocketAddr],
    until: Option<Instant>,
    connect: impl Fn(SocketAddr) -> F,
) -> Result<Won<T, E>, Vec<(String, Miss<E>)>>
where
    T: Send + 'static,
    E: Send + 'static,
    F: Future<Output = Result<T, E>> + Send + 'static,
{
    let rank =
        |address: SocketAddr| last.iter().position(|one| *one == address).map_or(0, |at| at + 1);
    let mut waiting: BTreeMap<(usize, Position), SocketAddr> = BTreeMap::new();
    let mut known: Vec<SocketAddr> = Vec::new();
    // What is still under way ends with it.
    let mut attempts = JoinSet::new();
    let mut under_way: Vec<SocketAddr> = Vec::new();
    let mut missed = Vec::new();
    let mut has_begun = false;
    let mut next_at = Instant::now();
    loop {
        if Instant::now() >= next_at
            && let Some((_, address)) = waiting.pop_first()
        {
            let connected = connect(address);
            attempts.spawn(async move { (address, connected.await) });
            under_way.push(address);
            (has_begun, next_at) = (true, Instant::now() + ATTEMPT_EVERY);
        }
        let is_found = finding.is_over();
        let is_over = attempts.is_empty() && waiting.is_empty() && is_found;
        tokio::select! {
            biased;
            ended = attempts.join_next(), if !attempts.is_empty() => match ended {
                Some(Ok((address, Ok(connected)))) => return Ok(Won { connected, address, missed }),
                Some(Ok((address, Err(error)))) => {
                    under_way.retain(|one| *one != address);
                    missed.push((address.to_string(), Miss::Failed(error)));
                    next_at = Instant::now();
                }
                // An attempt that panicked is none.
                Some(Err(_)) | None => next_at = Instant::now(),
            },
            found = finding.next(), if !is_found => {
                match found {
                    Some(Found::Addresses(position, addresses)) => {
                        if known.is_empty() {
                            next_at = Instant::now() + EARLIER_NAMES;
                        }
                        for (at, address) in addresses.into_iter().enumerate() {
                            if known.len() < ADDRESSES_LIMIT && !known.contains(&address) {
                                known.push(address);
                                waiting.insert((rank(address), position.address(at)), address);
                            }
                        }
                    }
                    Some(Found::Nothing(name, error)) => missed.push((name, Miss::NotFound(error))),
                    None => {}
                }
                let next = waiting.first_key_value();
                if !has_begun && next.is_some_and(|((_, at), _)| !finding.may_precede(*at)) {
                    next_at = Instant::now();
                }
            }
            () = sleep_until(next_at), if !waiting.is_empty() => {}
            () = passed(until), if !is_over => {
                let untried = under_way.iter().chain(waiting.values()).map(SocketAddr::to_string);
                let names = finding.unfinished();
                missed.extend(untried.chain(names).map(|at| (at, Miss::Unfinished)));
                return Err(missed);
            }
            else => return Err(missed),
        }
    }
}

/// Ends at that time; never without one.
async fn passed(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// Each address of a name, and why it cannot be connected to.
#[derive(Debug)]
struct Unconnected(Vec<(String, io::Error)>);

impl fmt::Display for Unconnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (address, error)) in self.0.iter().enumerate() {
            let between = if at == 0 { "" } else { ", " };
            write!(f, "{between}{address}: {error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Unconnected {}

fn unconnected(missed: Vec<(String, Miss<io::Error>)>) -> io::Error {
    let each = missed.into_iter().map(|(at, miss)| match miss {
        Miss::NotFound(error) | Miss::Failed(error) => (at, error),
        Miss::Unfinished => (at, io::ErrorKind::TimedOut.into()),
    });
    let mut failed: Vec<_> = each.collect();
    match failed.len() {
        0 => io::Error::other("the name has no address"),
        1 => failed.swap_remove(0).1,
        _ => {
            let kind = failed.last().map_or(io::ErrorKind::Other, |(_, error)| error.kind());
            io::Error::new(kind, Unconnected(failed))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn ordered(texts: &[&str]) -> Vec<String> {
        in_turn(addresses(texts)).iter().map(SocketAddr::to_string).collect()
    }

    #[test]
    fn families_come_in_turn_beginning_with_that_of_the_first() {
        let order =
            ordered(&["[::1]:1", "[::2]:1", "[::1]:1", "1.1.1.1:1", "[::3]:1", "1.1.1.2:1"]);
        assert_eq!(order, ["[::1]:1", "1.1.1.1:1", "[::2]:1", "1.1.1.2:1", "[::3]:1"]);
        assert_eq!(ordered(&["1.1.1.1:1", "[::1]:1"]), ["1.1.1.1:1", "[::1]:1"]);
        assert!(ordered(&[]).is_empty());
        let many: Vec<_> = (1..100).map(|n| format!("10.0.0.{n}:1")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert_eq!(ordered(&many).len(), ADDRESSES_LIMIT);
    }

    /// What an address does: accepts or fails after so many milliseconds, or never ends.
    #[derive(Clone, Copy)]
    enum Does {
        Accepts(u64),
        Fails(u64),
        Hangs,
    }

    struct Raced {
        /// The address that was taken, or the error.
        outcome: Result<String, String>,
        /// When each attempt started, in milliseconds.
        started: Vec<u64>,
        took_ms: u64,
    }

    /// A race of addresses that do so, on a clock that waits for nothing.
    async fn raced(does: &[Does]) -> Raced {
        let began = Instant::now();
        let since = || u64::try_from(began.elapsed().as_millis()).unwrap();
        let list: Vec<_> =
            (0..does.len()).map(|n| SocketAddr::from(([10, 0, 0, 0], n as u16))).collect();
        let started = Arc::new(Mutex::new(Vec::new()));
        let connect = |address: SocketAddr| {
            started.lock().unwrap().push(since());
            let does = does[usize::from(address.port())];
            async move {
                let after = |ms| tokio::time::sleep(Duration::from_millis(ms));
                match does {
                    Does::Accepts(ms) => after(ms).await,
                    Does::Fails(ms) => {
                        after(ms).await;
                        return Err(io::ErrorKind::ConnectionRefused.into());
                    }
                    Does::Hangs => std::future::pending().await,
                }
                Ok(())
            }
        };
        let outcome = race(&list, connect).await;
        let outcome = outcome.map(|((), address)| address.to_string());
        let (took_ms, started) = (since(), started.lock().unwrap().clone());
        Raced { outcome: outcome.map_err(|e| e.to_string()), started, took_ms }
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_refuses_costs_no_time() {
        let raced = raced(&[Does::Fails(0), Does::Accepts(0)]).await;
        assert_eq!((raced.outcome.unwrap().as_str(), raced.took_ms), ("10.0.0.0:1", 0));
        assert_eq!(raced.started, [0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_silent_costs_a_quarter_of_a_second() {
        let raced = raced(&[Does::Hangs, Does::Hangs, Does::Accepts(10), Does::Accepts(0)]).await;
        assert_eq!((raced.outcome.unwrap().as_str(), raced.took_ms), ("10.0.0.0:2", 510));
        assert_eq!(raced.started, [0, 250, 500]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_slow_wins_if_the_next_is_slower() {
        let raced = raced(&[Does::Accepts(300), Does::Accepts(100)]).await;
        assert_eq!((raced.outcome.unwrap().as_str(), raced.took_ms), ("10.0.0.0:0", 300));
    }

    #[tokio::test(start_paused = true)]
    async fn the_error_names_each_address_that_was_tried() {
        let raced = raced(&[Does::Fails(300), Does::Fails(10)]).await;
        assert_eq!(
            raced.outcome.unwrap_err(),
            "10.0.0.0:1: connection refused, 10.0.0.0:0: connection refused"
        );
        assert_eq!((raced.started, raced.took_ms), (vec![0, 250], 300));
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_fails_with_its_own_error() {
        assert_eq!(raced(&[Does::Fails(0)]).await.outcome.unwrap_err(), "connection refused");
        assert_eq!(raced(&[]).await.outcome.unwrap_err(), "the name has no address");
    }
}
