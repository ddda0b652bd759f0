//! The echo server's loop: accept, serve who is ready, wake who is due.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use tollway_net::{
    AcceptError, Conn, Key, Listener, ListenerOptions, Poller, Readiness, Scratch, Slab, Token,
};

use super::firings::Firings;
use super::peer::{Peer, Turn};
use super::source::plain_pattern;
use super::{EchoOptions, MAX_CONNECTIONS, Ports, Site, Stall, Timers};
use crate::arrival::SplitMix64;
use crate::bulk;
use crate::error::EchoError;
use crate::pacer::ask_for_punctual_wakeups;
use crate::stop::Stop;

/// Tokens from here on are listeners; those of connections are smaller.
const FIRST_LISTENER: u64 = 1 << 63;
/// How often connections' own time limits are looked at, and how long accepting pauses.
const TICK: Duration = Duration::from_secs(1);
/// How long answers under way are waited for after a stop.
const DRAIN: Duration = Duration::from_secs(2);
/// Connections taken from one listener in a turn.
const ACCEPTS_PER_TURN: usize = 64;
/// Connections of bulk at once; further ones are closed.
const MAX_BULK_THREADS: usize = 256;

/// Servers that listen and do not serve yet.
pub struct EchoServer {
    doors: Vec<Door>,
    ports: Ports,
    site: Site,
    stall: Option<Stall>,
}

struct Door {
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
            Ok::<_, EchoError>(Door { listener, serves })
        };
        let http = bind(options.http, Serves::Http)?;
        let grpc = options.grpc.map(|address| bind(address, Serves::Http)).transpose()?;
        let tcp = options.tcp.map(|address| bind(address, Serves::Tcp)).transpose()?;
        let https = match &options.https {
            Some(https) => Some(bind(https.address, Serves::Https(https.config()?))?),
            None => None,
        };
        let address = |door: &Door| door.listener.address();
        let ports = Ports {
            http: address(&http),
            grpc: address(grpc.as_ref().unwrap_or(&http)),
            tcp: tcp.as_ref().map(address),
            https: https.as_ref().map(address),
        };
        Ok(Self {
            doors: [Some(http), grpc, tcp, https].into_iter().flatten().collect(),
            ports,
            site: Site {
                pattern: plain_pattern(),
                name: options.name.clone(),
                actor_types: options.actor_types,
                firings: Firings::new(),
                faults: options.faults.clone(),
                random: RefCell::new(SplitMix64::new(options.seed)),
            },
            stall: options.stall,
        })
    }

    /// Where it listens, with the ports chosen where 0 was asked for.
    #[must_use]
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Serves on this thread until `stop` is requested.
    pub fn run(self, stop: &Stop) -> Result<(), EchoError> {
        let poller = Poller::new().map_err(EchoError::Loop)?;
        stop.attach(poller.waker());
        self.site.firings.attach(poller.waker());
        ask_for_punctual_wakeups();
        let mut serving = Serving {
            poller,
            doors: self.doors,
            site: self.site,
            peers: Slab::new(),
            timers: Timers::new(),
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
    doors: Vec<Door>,
    site: Site,
    peers: Slab<Peer>,
    timers: Timers,
    scratch: Scratch,
    /// Connections that had more to read than their turn allowed.
    again: Vec<Key>,
    origin: Instant,
    next_tick: Duration,
    /// Whether the listeners are registered.
    accepting: bool,
    /// How to stand still, and when next.
    stall: Option<(Stall, Duration)>,
    /// Ends the threads of bulk; each has a clone.
    stopped: Arc<AtomicBool>,
}

impl Serving {
    fn run(&mut self, stop: &Stop) -> Result<(), EchoError> {
        self.accept_again()?;
        while !stop.is_requested() {
            self.turn()?;
            self.stand_still();
        }
        self.stopped.store(true, Ordering::Relaxed);
        self.pause_accepting()?;
        self.doors.clear();
        for key in self.peers.keys() {
            if let Some(peer) = self.peers.get_mut(key) {
                peer.drain();
            }
            self.serve(key);
        }
        let deadline = self.origin.elapsed() + DRAIN;
        while !self.peers.is_empty() && self.origin.elapsed() < deadline {
            self.turn()?;
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<(), EchoError> {
        let mut ready = Vec::new();
        let timeout = self.timeout();
        self.poller.wait(Some(timeout), &mut ready).map_err(EchoError::Loop)?;
        self.timers.set_now(self.origin.elapsed());
        for readiness in &ready {
            self.take(*readiness)?;
        }
        for key in std::mem::take(&mut self.again) {
            self.serve(key);
        }
        for key in self.site.firings.take_done() {
            self.timers.serve(key);
            self.timers.set(Duration::ZERO, 0);
        }
        self.wake_due();
        if self.timers.now() >= self.next_tick {
            self.tick()?;
        }
        Ok(())
    }

    fn timeout(&self) -> Duration {
        if !self.again.is_empty() {
            return Duration::ZERO;
        }
        let since = self.origin.elapsed().saturating_sub(self.timers.now());
        let timer = self.timers.next().map(|next| next.saturating_sub(since));
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

    fn accept(&mut self, door: u64) -> Result<(), EchoError> {
        for _ in 0..ACCEPTS_PER_TURN {
            if self.peers.len() >= MAX_CONNECTIONS {
                return self.pause_accepting();
            }
            let Some(door) = usize::try_from(door).ok().and_then(|door| self.doors.get(door))
            else {
                return Ok(());
            };
            match door.listener.accept() {
                Ok(stream) => {
                    let peer = match &door.serves {
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
                    self.welcome(peer);
                }
                Err(AcceptError::Empty) => return Ok(()),
                Err(AcceptError::Lost(_)) => {}
                Err(AcceptError::Exhausted(_)) => return self.pause_accepting(),
            }
        }
        Ok(())
    }

    fn welcome(&mut self, peer: Peer) {
        let key = self.peers.insert(peer);
        let Some(peer) = self.peers.get(key) else { return };
        if self.poller.add(peer.conn(), Token(key.to_u64())).is_err() {
            // Out of kernel memory for watches: this one is turned away.
            self.peers.remove(key);
        }
    }

    /// Leaves new connections in the backlog until the next tick.
    fn pause_accepting(&mut self) -> Result<(), EchoError> {
        if std::mem::replace(&mut self.accepting, false) {
            for door in &self.doors {
                self.poller.remove(&door.listener).map_err(EchoError::Loop)?;
            }
        }
        Ok(())
    }

    fn accept_again(&mut self) -> Result<(), EchoError> {
        if !std::mem::replace(&mut self.accepting, true) {
            for (door, index) in self.doors.iter().zip(0..) {
                self.poller
                    .add_listener(&door.listener, Token(FIRST_LISTENER + index))
                    .map_err(EchoError::Loop)?;
            }
        }
        Ok(())
    }

    fn serve(&mut self, key: Key) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        self.timers.serve(key);
        match peer.serve(&self.site, &mut self.timers, &mut self.scratch) {
            Turn::Wait => {}
            Turn::Again => self.again.push(key),
            Turn::HandOver => self.hand_over(key),
            Turn::Over => {
                self.peers.remove(key);
            }
        }
    }

    /// Bulk moves on a thread of its own, so that the loop stays punctual for the others.
    fn hand_over(&mut self, key: Key) {
        let Some(peer) = self.peers.remove(key) else { return };
        if Arc::strong_count(&self.stopped) > MAX_BULK_THREADS
            || self.poller.remove(peer.conn()).is_err()
        {
            return;
        }
        let Some((stream, mode, early)) = peer.into_bulk() else { return };
        let stopped = Arc::clone(&self.stopped);
        std::thread::spawn(move || {
            // The other end sees how it went; there is nobody here to tell.
            let _ = bulk::serve(stream, mode, early, || stopped.load(Ordering::Relaxed));
        });
    }

    fn wake_due(&mut self) {
        while let Some((key, timer)) = self.timers.take_due() {
            let Some(peer) = self.peers.get_mut(key) else { continue };
            self.timers.serve(key);
            match peer.wake(timer, &self.site, &mut self.timers) {
                Turn::Wait => {}
                Turn::Again => self.serve(key),
                Turn::HandOver => self.hand_over(key),
                Turn::Over => {
                    self.peers.remove(key);
                }
            }
        }
    }

    fn tick(&mut self) -> Result<(), EchoError> {
        let now = self.timers.now();
        self.next_tick = now + TICK;
        if self.peers.len() < MAX_CONNECTIONS && !self.doors.is_empty() {
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
            // One that had nothing to do does not make up for stalls that nobody saw.
            let now = self.origin.elapsed();
            if *next <= now {
                *next = now + (stall.every - stall.lasting);
            }
        }
    }
}
