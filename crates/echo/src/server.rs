//! The event loop: accepts, serves connections that are ready, wakes answers that are due.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use tollway_net::{
    AcceptError, Conn, Key, Listener, ListenerOptions, Poller, Readiness, Scratch, Slab, Token,
    ask_for_punctual_wakeups,
};

use crate::bulk;
use crate::delays::Delays;
use crate::error::EchoError;
use crate::options::{EchoOptions, Ports, Stall};
use crate::peer::{Next, Peer};
use crate::shared::Shared;
use crate::stop::Stop;

/// Connections at once; further ones wait in the backlog.
pub(crate) const MAX_CONNECTIONS: usize = 20_000;
/// Tokens from here on are listeners; those of connections are smaller.
const FIRST_LISTENER: u64 = 1 << 63;
/// Interval at which connections' time limits are checked, and for which accepting pauses.
const TICK: Duration = Duration::from_secs(1);
/// Time for answers under way after a stop.
const DRAIN: Duration = Duration::from_secs(2);
/// Connections taken from one listener in a pass.
const ACCEPTS_PER_PASS: usize = 64;
/// Connections of bulk at once; further ones are closed.
const MAX_BULK_THREADS: usize = 256;

/// Listens, writes the ports file and serves until `stop` is requested; then answers the requests
/// under way and returns.
pub fn serve_echo(options: &EchoOptions, stop: &Stop) -> Result<(), EchoError> {
    let server = EchoServer::bind(options)?;
    if let Some(path) = &options.ports_file {
        server.ports().write(path)?;
    }
    server.run(stop)
}

/// Servers that listen and do not serve yet.
pub struct EchoServer {
    listeners: Vec<Bound>,
    ports: Ports,
    shared: Shared,
    stall: Option<Stall>,
}

struct Bound {
    listener: Listener,
    serves: Serves,
}

#[derive(Clone)]
enum Serves {
    Http,
    Https(Arc<ServerConfig>),
    Tcp,
}

impl EchoServer {
    /// Listens at every address that `options` names.
    pub fn bind(options: &EchoOptions) -> Result<Self, EchoError> {
        let bind = |address, serves| {
            let listener = Listener::bind(address, ListenerOptions::default())
                .map_err(|source| EchoError::Bind { address, source })?;
            Ok::<_, EchoError>(Bound { listener, serves })
        };
        let http = bind(options.http, Serves::Http)?;
        let grpc = options.grpc.map(|address| bind(address, Serves::Http)).transpose()?;
        let tcp = options.tcp.map(|address| bind(address, Serves::Tcp)).transpose()?;
        let https = match &options.https {
            Some(https) => Some(bind(https.address, Serves::Https(https.config()?))?),
            None => None,
        };
        let address = |bound: &Bound| bound.listener.address();
        let ports = Ports {
            http: address(&http),
            grpc: address(grpc.as_ref().unwrap_or(&http)),
            tcp: tcp.as_ref().map(address),
            https: https.as_ref().map(address),
        };
        Ok(Self {
            listeners: [Some(http), grpc, tcp, https].into_iter().flatten().collect(),
            ports,
            shared: Shared::new(options),
            stall: options.stall,
        })
    }

    /// The bound addresses, with the ports chosen for port 0.
    #[must_use]
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Serves on this thread until `stop` is requested.
    pub fn run(self, stop: &Stop) -> Result<(), EchoError> {
        let poller = Poller::new().map_err(EchoError::Loop)?;
        stop.attach(poller.waker());
        self.shared.timer_fires.attach(poller.waker());
        ask_for_punctual_wakeups();
        let mut serving = Serving {
            poller,
            listeners: self.listeners,
            shared: self.shared,
            peers: Slab::new(),
            delays: Delays::new(),
            scratch: Scratch::new(),
            again: Vec::new(),
            origin: Instant::now(),
            next_tick: TICK,
            accepting: false,
            stall: self.stall.map(|stall| (stall, stall.every)),
            stopped: Arc::default(),
        };
        serving.run(stop)
    }
}

struct Serving {
    poller: Poller,
    listeners: Vec<Bound>,
    shared: Shared,
    peers: Slab<Peer>,
    delays: Delays,
    scratch: Scratch,
    /// Connections that had more to read than a pass allows.
    again: Vec<Key<Peer>>,
    origin: Instant,
    next_tick: Duration,
    /// Whether the listeners are registered.
    accepting: bool,
    /// How to stall, and when next.
    stall: Option<(Stall, Duration)>,
    /// Ends the threads of bulk; each has a clone.
    stopped: Arc<AtomicBool>,
}

impl Serving {
    fn run(&mut self, stop: &Stop) -> Result<(), EchoError> {
        self.accept_again()?;
        while !stop.is_requested() {
            self.pass()?;
            self.stand_still();
        }
        self.stopped.store(true, Ordering::Relaxed);
        self.pause_accepting()?;
        self.listeners.clear();
        for key in self.peers.keys() {
            if let Some(peer) = self.peers.get_mut(key) {
                peer.drain();
            }
            self.serve(key);
        }
        let deadline = self.origin.elapsed() + DRAIN;
        while !self.peers.is_empty() && self.origin.elapsed() < deadline {
            self.pass()?;
        }
        Ok(())
    }

    fn pass(&mut self) -> Result<(), EchoError> {
        let mut ready = Vec::new();
        let timeout = self.timeout();
        self.poller.wait(Some(timeout), &mut ready).map_err(EchoError::Loop)?;
        self.delays.set_now(self.origin.elapsed());
        for readiness in &ready {
            self.take(*readiness)?;
        }
        for key in std::mem::take(&mut self.again) {
            self.serve(key);
        }
        for key in self.shared.timer_fires.take_done() {
            self.delays.serve(key);
            self.delays.set(Duration::ZERO, 0);
        }
        self.wake_due();
        if self.delays.now() >= self.next_tick {
            self.tick()?;
        }
        Ok(())
    }

    fn timeout(&self) -> Duration {
        if !self.again.is_empty() {
            return Duration::ZERO;
        }
        let since = self.origin.elapsed().saturating_sub(self.delays.now());
        let timer = self.delays.next().map(|next| next.saturating_sub(since));
        timer.map_or(TICK, |timer| timer.min(TICK))
    }

    fn take(&mut self, readiness: Readiness) -> Result<(), EchoError> {
        let Token(number) = readiness.token;
        if number >= FIRST_LISTENER {
            return self.accept(number - FIRST_LISTENER);
        }
        let key = Key::from_u64(number);
        if let Some(peer) = self.peers.get_mut(key) {
            peer.ready(readiness);
            self.serve(key);
        }
        Ok(())
    }

    fn accept(&mut self, index: u64) -> Result<(), EchoError> {
        for _ in 0..ACCEPTS_PER_PASS {
            if self.peers.len() >= MAX_CONNECTIONS {
                return self.pause_accepting();
            }
            let Some(bound) =
                usize::try_from(index).ok().and_then(|index| self.listeners.get(index))
            else {
                return Ok(());
            };
            match bound.listener.accept() {
                Ok(stream) => {
                    let peer = match &bound.serves {
                        Serves::Http => Peer::http(Conn::accepted(stream, None)),
                        Serves::Tcp => Peer::tcp(Conn::accepted(stream, None)),
                        Serves::Https(config) => {
                            // Fails for a configuration that cannot work, which was checked.
                            let Ok(tls) = UnbufferedServerConnection::new(Arc::clone(config))
                            else {
                                continue;
                            };
                            Peer::http(Conn::accepted(stream, Some(tls.into())))
                        }
                    };
                    self.insert(peer);
                }
                Err(AcceptError::Empty) => return Ok(()),
                Err(AcceptError::Lost(_)) => {}
                Err(AcceptError::Exhausted(_)) => return self.pause_accepting(),
            }
        }
        Ok(())
    }

    fn insert(&mut self, peer: Peer) {
        let key = self.peers.insert(peer);
        let Some(peer) = self.peers.get(key) else { return };
        if self.poller.add(peer.conn(), Token(key.to_u64())).is_err() {
            // Out of kernel memory for watches: this one is closed.
            self.peers.remove(key);
        }
    }

    /// Leaves new connections in the backlog until the next tick.
    fn pause_accepting(&mut self) -> Result<(), EchoError> {
        if std::mem::replace(&mut self.accepting, false) {
            for bound in &self.listeners {
                self.poller.remove(&bound.listener).map_err(EchoError::Loop)?;
            }
        }
        Ok(())
    }

    fn accept_again(&mut self) -> Result<(), EchoError> {
        if !std::mem::replace(&mut self.accepting, true) {
            for (bound, index) in self.listeners.iter().zip(0..) {
                self.poller
                    .add_listener(&bound.listener, Token(FIRST_LISTENER + index))
                    .map_err(EchoError::Loop)?;
            }
        }
        Ok(())
    }

    fn serve(&mut self, key: Key<Peer>) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        self.delays.serve(key);
        match peer.serve(&self.shared, &mut self.delays, &mut self.scratch) {
            Next::Wait => {}
            Next::Again => self.again.push(key),
            Next::HandOver => self.hand_over(key),
            Next::Over => {
                self.peers.remove(key);
            }
        }
    }

    /// Bulk moves on a thread of its own, so that the loop stays punctual for the others.
    fn hand_over(&mut self, key: Key<Peer>) {
        let Some(peer) = self.peers.remove(key) else { return };
        if Arc::strong_count(&self.stopped) > MAX_BULK_THREADS
            || self.poller.remove(peer.conn()).is_err()
        {
            return;
        }
        let Some((stream, mode, early)) = peer.into_bulk() else { return };
        let stopped = Arc::clone(&self.stopped);
        std::thread::spawn(move || {
            // The other end sees how it went; nothing here needs the result.
            let _ = bulk::serve(stream, mode, early, || stopped.load(Ordering::Relaxed));
        });
    }

    fn wake_due(&mut self) {
        while let Some((key, timer)) = self.delays.take_due() {
            let Some(peer) = self.peers.get_mut(key) else { continue };
            self.delays.serve(key);
            match peer.wake(timer, &self.shared, &mut self.delays) {
                Next::Wait => {}
                Next::Again => self.serve(key),
                Next::HandOver => self.hand_over(key),
                Next::Over => {
                    self.peers.remove(key);
                }
            }
        }
    }

    fn tick(&mut self) -> Result<(), EchoError> {
        let now = self.delays.now();
        self.next_tick = now + TICK;
        if self.peers.len() < MAX_CONNECTIONS && !self.listeners.is_empty() {
            self.accept_again()?;
        }
        for key in self.peers.keys() {
            if let Some(peer) = self.peers.get_mut(key)
                && peer.tick(now)
            {
                self.serve(key);
            }
        }
        Ok(())
    }

    fn stand_still(&mut self) {
        let Some((stall, next)) = &mut self.stall else { return };
        if self.origin.elapsed() >= *next {
            std::thread::sleep(stall.lasting);
            *next += stall.every;
            // A server without work does not make up for stalls that no request saw.
            let now = self.origin.elapsed();
            if *next <= now {
                *next = now + (stall.every - stall.lasting);
            }
        }
    }
}
