//! The addresses of a server while they are looked for: those of literals at once, those of names and
//! services when they are known, each with its position in the list.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;

use tokio::task::JoinSet;

use crate::race::{ADDRESSES_LIMIT, in_turn};
use crate::srv;

/// Where an address stands: its entry, the host of that entry's service, the address of that host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Position(usize, usize, usize);

/// What is found.
pub(crate) enum Found {
    /// The addresses of a host, at the position of its first.
    Addresses(Position, Vec<SocketAddr>),
    /// This name leads to none.
    Nothing(String, io::Error),
}

/// The outcome of a look-up.
enum Answer {
    Addresses(Vec<SocketAddr>),
    /// Hosts and ports of a service, in their order.
    Hosts(Vec<(String, u16)>),
}

/// Look-ups that are under way; they end with it.
#[derive(Default)]
pub(crate) struct Finding {
    known: VecDeque<(Position, Vec<SocketAddr>)>,
    lookups: JoinSet<(Position, String, io::Result<Answer>)>,
    /// The names that are looked for.
    pending: BTreeSet<(Position, String)>,
}

impl Position {
    pub(crate) fn entry(entry: usize) -> Self {
        Self(entry, 0, 0)
    }

    fn host(self, host: usize) -> Self {
        Self(self.0, host, 0)
    }

    pub(crate) fn address(self, address: usize) -> Self {
        Self(self.0, self.1, address)
    }
}

impl Finding {
    /// Addresses that are known already.
    pub(crate) fn known(addresses: &[SocketAddr]) -> Self {
        let mut finding = Self::default();
        finding.add_known(Position::entry(0), addresses.to_vec());
        finding
    }

    pub(crate) fn add_known(&mut self, position: Position, addresses: Vec<SocketAddr>) {
        self.known.push_back((position, addresses));
    }

    /// Looks for the addresses of a host.
    pub(crate) fn add_host(&mut self, position: Position, host: String, port: u16) {
        let name = format!("{host}:{port}");
        self.pending.insert((position, name.clone()));
        self.lookups.spawn(async move {
            let found = tokio::net::lookup_host((host, port)).await;
            (position, name, found.map(|found| Answer::Addresses(in_turn(found))))
        });
    }

    /// Looks for the hosts of a service, and their addresses.
    pub(crate) fn add_service(&mut self, position: Position, name: String) {
        self.pending.insert((position, name.clone()));
        self.lookups.spawn(async move {
            let found = srv::lookup(&name).await;
            (position, name, found.map(Answer::Hosts))
        });
    }

    /// Nothing more will be found.
    pub(crate) fn is_over(&self) -> bool {
        self.known.is_empty() && self.lookups.is_empty()
    }

    /// Whether an address may still be found that is tried before the one at that position: what is known
    /// is taken in first, since those that failed lately come last.
    pub(crate) fn may_precede(&self, position: Position) -> bool {
        !self.known.is_empty() || self.pending.first().is_some_and(|(at, _)| *at < position)
    }

    /// The names that are still looked for.
    pub(crate) fn unfinished(&self) -> impl Iterator<Item = String> {
        self.pending.iter().map(|(_, name)| name.clone())
    }

    /// Waits for the next; `None` if that is only the hosts of a service, or nothing. Nothing is lost
    /// where it is cancelled.
    pub(crate) async fn next(&mut self) -> Option<Found> {
        if let Some((position, addresses)) = self.known.pop_front() {
            return Some(Found::Addresses(position, addresses));
        }
        // A look-up that panicked found nothing; its name stays unfinished.
        let (position, name, answer) = self.lookups.join_next().await?.ok()?;
        self.pending.remove(&(position, name.clone()));
        match answer {
            Ok(Answer::Addresses(addresses)) if addresses.is_empty() => {
                Some(Found::Nothing(name, io::Error::other("the name has no address")))
            }
            Ok(Answer::Addresses(addresses)) => Some(Found::Addresses(position, addresses)),
            Ok(Answer::Hosts(hosts)) => {
                for (at, (host, port)) in hosts.into_iter().take(ADDRESSES_LIMIT).enumerate() {
                    self.add_host(position.host(at), host, port);
                }
                None
            }
            Err(error) => Some(Found::Nothing(name, error)),
        }
    }
}
