//! `tollway lab relay`: the link where namespaces cannot be had. Streams on loopback, each byte
//! delayed by half the round trip.
//!
//! Every byte, and the end of the stream, leaves `delay` after it came in, in both directions. The
//! relay cannot show the handshake's round trip, loss, or congestion control over the delay. Bytes
//! in transit are bounded per direction; beyond the bound the sender is held back.

mod stream;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use tollway_net::{
    AcceptError, Conn, Key, Listener, ListenerOptions, Poller, Scratch, Slab, Token,
};

use crate::cancel::Cancel;
use crate::link_command;
use stream::{Pair, Side};
use tollway_net::ports_file::{self as ports, Ports, PortsError};

/// Stream pairs carried at a time; beyond it, connections wait in the listener's backlog.
pub const RELAY_PAIRS_LIMIT: usize = 4_096;
/// Longest wait for events, so that a signal is seen soon.
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// Set in the tokens of listeners. A pair's key has it only after its slot was used 2^30 times.
const LISTENER_BIT: u64 = 1 << 62;
/// Set in the token of a pair's upstream side.
const UPSTREAM_BIT: u64 = 1 << 63;

/// What to relay.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct RelayArgs {
    /// `NAME=LISTEN,TARGET`: accept on LISTEN (`ip:port`, port 0 for any) and connect to TARGET,
    /// either `ip:port` or `FILE#NAME`, a listener named in another process's ports file, which
    /// may be written later.
    #[arg(long = "forward", required = true)]
    pub forwards: Vec<Forward>,
    /// One-way delay, microseconds.
    #[arg(long)]
    pub delay_us: u64,
    /// Wait for a processor like any other process: for a relay that is measured, not a link.
    #[arg(long)]
    pub ordinary_priority: bool,
    /// Written when all listeners are bound.
    #[arg(long)]
    pub ports_file: PathBuf,
}

/// One listener and where it leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    pub name: String,
    pub listen: SocketAddr,
    pub target: Target,
}

/// Where a stream is carried to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Address(SocketAddr),
    /// A listener by its name in a ports file.
    InFile {
        path: PathBuf,
        name: String,
    },
}

/// Why the relay could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    #[error("cannot listen on {address} for {name}")]
    Listen { name: String, address: SocketAddr, source: io::Error },
    #[error("cannot wait for events")]
    Events(#[source] io::Error),
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Ports(#[from] PortsError),
}

impl RelayArgs {
    /// The arguments as [`clap`] reads them back.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let mut args: Vec<String> =
            self.forwards.iter().flat_map(|f| ["--forward".to_owned(), f.to_string()]).collect();
        args.extend(["--delay-us".to_owned(), self.delay_us.to_string()]);
        args.extend(self.ordinary_priority.then(|| "--ordinary-priority".to_owned()));
        args.extend(["--ports-file".to_owned(), self.ports_file.to_string_lossy().into_owned()]);
        args
    }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={},", self.name, self.listen)?;
        match &self.target {
            Target::Address(address) => write!(f, "{address}"),
            Target::InFile { path, name } => write!(f, "{}#{name}", path.display()),
        }
    }
}

impl FromStr for Forward {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not NAME=LISTEN,TARGET");
        let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
        let (listen, target) = rest.split_once(',').ok_or_else(wrong)?;
        let listen = listen.parse().map_err(|_| format!("{listen:?} is not ip:port"))?;
        let target = match target.rsplit_once('#') {
            Some((path, name)) => Target::InFile { path: path.into(), name: name.into() },
            None => Target::Address(
                target.parse().map_err(|_| format!("{target:?} is not ip:port or FILE#NAME"))?,
            ),
        };
        Ok(Self { name: name.into(), listen, target })
    }
}

impl Target {
    fn resolve(&self) -> Result<SocketAddr, String> {
        match self {
            Self::Address(address) => Ok(*address),
            Self::InFile { path, name } => from_file(path, name),
        }
    }
}

fn from_file(path: &Path, name: &str) -> Result<SocketAddr, String> {
    let ports = ports::read(path).map_err(|error| error.to_string())?;
    let ports = ports.ok_or_else(|| format!("{} is not there yet", path.display()))?;
    ports::port(path, &ports, name).map_err(|error| error.to_string())
}

/// Relays until SIGTERM or SIGINT.
pub fn run_relay(args: &RelayArgs) -> Result<(), RelayError> {
    let stop = Cancel::on_signals().map_err(RelayError::Signals)?;
    if !args.ordinary_priority {
        link_command::go_first();
    }
    // A refusal only makes the delay less exact.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut relay = Relay::bind(args)?;
    ports::write(&args.ports_file, &relay.ports)?;
    while stop.check().is_ok() {
        relay.pass()?;
    }
    Ok(())
}

/// The relay's loop: one thread, all streams.
struct Relay {
    delay: Duration,
    poller: Poller,
    listeners: Vec<(Listener, Target)>,
    ports: Ports,
    pairs: Slab<Pair>,
    scratch: Scratch,
    /// When each pair with bytes in transit has some due.
    due: BTreeSet<(Instant, Key<Pair>)>,
}

impl Relay {
    fn bind(args: &RelayArgs) -> Result<Self, RelayError> {
        let poller = Poller::new().map_err(RelayError::Events)?;
        let mut listeners = Vec::new();
        let mut ports = Ports::new();
        for forward in &args.forwards {
            let failed = |source| RelayError::Listen {
                name: forward.name.clone(),
                address: forward.listen,
                source,
            };
            let listener =
                Listener::bind(forward.listen, ListenerOptions::default()).map_err(failed)?;
            let token = Token(LISTENER_BIT | listeners.len() as u64);
            poller.add_listener(&listener, token).map_err(failed)?;
            ports.insert(forward.name.clone(), listener.address());
            listeners.push((listener, forward.target.clone()));
        }
        let (pairs, scratch, due) = (Slab::new(), Scratch::new(), BTreeSet::new());
        let delay = Duration::from_micros(args.delay_us);
        Ok(Self { delay, poller, listeners, ports, pairs, scratch, due })
    }

    /// Waits for what comes first, a socket or a due byte, and deals with all there is.
    fn pass(&mut self) -> Result<(), RelayError> {
        let mut ready = Vec::new();
        self.poller.wait(Some(self.next_timeout()), &mut ready).map_err(RelayError::Events)?;
        for readiness in ready {
            let token = readiness.token.0;
            if token & LISTENER_BIT != 0 {
                self.accept((token & !LISTENER_BIT) as usize);
                continue;
            }
            let key = Key::from_u64(token & !UPSTREAM_BIT);
            let side = if token & UPSTREAM_BIT != 0 { Side::Upstream } else { Side::Downstream };
            if let Some(pair) = self.pairs.get_mut(key) {
                pair.ready(side, readiness);
                self.progress(key);
            }
        }
        self.carry_due();
        Ok(())
    }

    fn next_timeout(&self) -> Duration {
        let next = self.due.first().map(|&(at, _)| at);
        next.map_or(LONGEST_WAIT, |at| {
            at.saturating_duration_since(Instant::now()).min(LONGEST_WAIT)
        })
    }

    fn carry_due(&mut self) {
        let now = Instant::now();
        while let Some(&(at, key)) = self.due.first() {
            if at > now {
                return;
            }
            self.due.pop_first();
            self.progress(key);
        }
    }

    fn accept(&mut self, listener: usize) {
        while self.pairs.len() < RELAY_PAIRS_LIMIT {
            let Some((listener, target)) = self.listeners.get(listener) else { return };
            let stream = match listener.accept() {
                Ok(stream) => stream,
                Err(AcceptError::Lost(_)) => continue,
                Err(AcceptError::Empty | AcceptError::Exhausted(_)) => return,
            };
            let upstream = target
                .resolve()
                .and_then(|to| Conn::connect(to, None).map_err(|error| error.to_string()));
            match upstream {
                Ok(upstream) => self.add(Pair::new(Conn::accepted(stream, None), upstream)),
                Err(reason) => eprintln!("relay: a stream was refused: {reason}"),
            }
        }
    }

    fn add(&mut self, pair: Pair) {
        let key = self.pairs.insert(pair);
        let Some(pair) = self.pairs.get(key) else { return };
        let down = self.poller.add(pair.conn(Side::Downstream), Token(key.to_u64()));
        let up = self.poller.add(pair.conn(Side::Upstream), Token(key.to_u64() | UPSTREAM_BIT));
        if let Err(error) = down.and(up) {
            eprintln!("relay: a stream was refused: {error}");
            self.pairs.remove(key);
            return;
        }
        self.progress(key);
    }

    /// Moves a pair as far as possible now, and notes when it is due again.
    fn progress(&mut self, key: Key<Pair>) {
        let Some(pair) = self.pairs.get_mut(key) else { return };
        let next = pair.progress(Instant::now(), self.delay, &mut self.scratch);
        match next {
            stream::Next::Done => {
                self.pairs.remove(key);
            }
            stream::Next::Waits => {}
            stream::Next::At(at) => {
                self.due.insert((at, key));
            }
        }
    }
}

#[cfg(test)]
mod tests;
