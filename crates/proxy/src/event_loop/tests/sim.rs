//! Event loops on a network in memory, with a clock that only the test moves. Everything runs on the
//! thread of the test, while the test reads, writes, waits or moves the clock.
//!
//! What waits for something (a read, [`until`], [`block_on`]) moves the clock by [`SWEEP`] again and
//! again, up to [`PATIENCE`]. A loop has a pass where that of a process would not sleep.
//!
//! What differs from a process: every connection is accepted at once, also in a drain (`listeners.rs`
//! tries listeners of the kernel); bytes are delayed by nothing, unless a test holds a connection; and
//! the timers of foreign code, of which these tests use none, go by the real clock.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::UnixTime;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tollway_identity::TimeProvider;
use tollway_model::traffic_policy::TrafficParts;
use tollway_model::{Revision, ServiceName, ServiceState, ServiceUpdate};
use tollway_net::memory::{self, End, Hold};
use tollway_net::{Conn, Scratch};

use super::{Around, Running};
use crate::conn::{ListenerKind, SWEEP};
use crate::cx::Clocks;
use crate::event_loop::{Command, Commands, Composition, EventLoop};
use crate::mesh::RoutesUpdate;

/// The longest that a test waits for anything, by its own clock.
pub(super) const PATIENCE: Duration = Duration::from_secs(1800);
/// The time of day at which every test begins: 2027-01-15.
const BEGAN: Duration = Duration::from_secs(1_800_000_000);
/// How long before the test its machine began.
const LONG_AGO: Duration = Duration::from_secs(3600);
/// Most bytes under way in one direction of a connection.
const CAPACITY: usize = 256 * 1024;
/// Polls of the foreign clients and servers between two passes of the loops.
const POLLS: usize = 16;
/// After so many passes without an end, two parts keep each other busy.
const ENDLESS: usize = 1_000_000;

thread_local! {
    static SIMULATION: &'static Simulation = Box::leak(Box::new(Simulation::new()));
}

fn sim() -> &'static Simulation {
    SIMULATION.with(|simulation| *simulation)
}

/// The present, by the clock of the test.
pub(super) fn now() -> Instant {
    sim().now.get()
}

/// The time of the test by which certificates are judged.
pub(super) fn wall() -> SystemTime {
    let simulation = sim();
    simulation.began_wall + (simulation.now.get() - simulation.began)
}

/// The same, for a TLS library.
#[derive(Debug)]
pub(super) struct Clock;

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(wall().duration_since(SystemTime::UNIX_EPOCH).ok()?))
    }
}

/// The time of the test by which leases are judged. It goes on by a microsecond each time that it is
/// read, so that a deadline can fall between any two reads.
pub(super) fn boot() -> Duration {
    let simulation = sim();
    let read = simulation.boot_reads.replace(simulation.boot_reads.get() + 1);
    simulation.now.get() - simulation.began + LONG_AGO + Duration::from_micros(read)
}

/// Lets so much time pass.
pub(super) fn advance(mut time: Duration) {
    let simulation = sim();
    simulation.settle();
    while !time.is_zero() {
        let step = time.min(SWEEP);
        simulation.now.set(simulation.now.get() + step);
        simulation.settle();
        time -= step;
    }
}

/// Has everything that `act` sends arrive in the same pass.
pub(super) fn at_once<T>(act: impl FnOnce() -> T) -> T {
    sim().is_held.set(true);
    let acted = act();
    sim().is_held.set(false);
    sim().settle();
    acted
}

/// Lets time pass until the condition holds.
#[track_caller]
pub(super) fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = now();
    sim().settle();
    while !is_so() {
        assert!(now() < begun + PATIENCE, "not in time: {what}");
        advance(SWEEP);
    }
}

/// Runs a future of foreign code to its end.
pub(super) fn block_on<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let task = spawn(future);
    until("the future's end", || task.is_finished());
    sim().runtime.block_on(task).unwrap()
}

/// Runs a future of foreign code beside the loops.
pub(super) fn spawn<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    sim().runtime.spawn(future)
}

/// An address at which connections are refused, and that no one else gets.
pub(super) fn unused_address() -> SocketAddr {
    let port = sim().next_port.replace(sim().next_port.get() + 1);
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// An address whose connections the test accepts.
pub(super) fn listen() -> Listening {
    let queue = Rc::default();
    Listening { address: sim().open(Listener::Queue(Rc::clone(&queue))), queue }
}

pub(super) struct Listening {
    pub(super) address: SocketAddr,
    queue: Rc<RefCell<VecDeque<End>>>,
}

impl Listening {
    /// The next connection.
    #[track_caller]
    pub(super) fn accept(&self) -> Stream {
        until("a connection", || !self.queue.borrow().is_empty());
        Stream::new(Wire::Memory(self.queue.borrow_mut().pop_front().unwrap()))
    }

    /// Connections that are not accepted yet.
    pub(super) fn waiting(&self) -> usize {
        sim().settle();
        self.queue.borrow().len()
    }
}

/// An address whose connections are handed to `serve`.
pub(super) fn listen_with(serve: impl Fn(Peer) + 'static) -> SocketAddr {
    sim().open(Listener::Served(Rc::new(serve)))
}

/// The same at an address of the test's own.
pub(super) fn listen_at(address: SocketAddr, serve: impl Fn(Peer) + 'static) {
    sim().listeners.borrow_mut().insert(address, Listener::Served(Rc::new(serve)));
}

/// An address that stands for `target`, as far away as `round_trip` says. `taken` gets a hold on each
/// connection there.
pub(super) fn forward(
    target: SocketAddr,
    round_trip: Duration,
    taken: impl Fn(Hold) + 'static,
) -> SocketAddr {
    sim().open(Listener::Forward { target, round_trip, taken: Rc::new(taken) })
}

/// A connection to an address.
pub(super) fn connect(address: SocketAddr) -> Stream {
    let stream = Stream::new(Wire::Memory(network().dial(address)));
    sim().settle();
    stream
}

/// The network, from which foreign code dials.
pub(super) fn network() -> Network {
    sim().network.clone()
}

/// The connections that were dialled and have not arrived yet.
#[derive(Clone, Default)]
pub(super) struct Network(Arc<Mutex<Vec<(SocketAddr, End)>>>);

impl Network {
    fn dial(&self, address: SocketAddr) -> End {
        let (near, far) = memory::dial(CAPACITY).unwrap();
        self.0.lock().unwrap().push((address, far));
        near
    }

    pub(super) fn connect(&self, address: SocketAddr) -> Peer {
        Peer(self.dial(address))
    }
}

/// The number of a loop in the simulation.
#[derive(Clone, Copy)]
pub(super) struct NodeId(usize);

/// Starts a loop with these listeners; the first gets `address` if there is one.
pub(super) fn start<C: Composition + 'static>(
    mut event_loop: EventLoop<C>,
    address: Option<SocketAddr>,
    listeners: &[ListenerKind],
) -> (NodeId, Vec<SocketAddr>) {
    let (simulation, network) = (sim(), network());
    event_loop.cx.dialler =
        Box::new(move |address| Ok(Conn::connect_in_memory(network.dial(address))));
    event_loop.cx.clocks = Clocks { wall, boot };
    let mut nodes = simulation.nodes.borrow_mut();
    let id = NodeId(nodes.len());
    nodes.push(Some(Box::new(event_loop)));
    let mut address = address;
    let open = |via: &ListenerKind| {
        let at = address.take().unwrap_or_else(unused_address);
        let listener = Listener::Node { id, via: via.clone() };
        simulation.listeners.borrow_mut().insert(at, listener);
        at
    };
    (id, listeners.iter().map(open).collect())
}

/// Ends a loop as if its process were killed.
pub(super) fn kill(id: NodeId) {
    let node = sim().nodes.borrow_mut()[id.0].take();
    drop(node);
}

pub(super) fn has_ended(id: NodeId) -> bool {
    sim().nodes.borrow()[id.0].is_none()
}

/// Keeps a loop informed of the state of a service from now on: at once, and whenever it asks for it.
pub(super) fn keep_informed(to: &Running, service: &ServiceName, state: ServiceState) {
    let simulation = sim();
    let mut informed = simulation.informed.borrow_mut();
    let at = to.around.times_asked(service);
    let is_older = |entry: &Informed| entry.node.0 == to.node.0 && entry.update.service == *service;
    let older = informed.iter().position(is_older).map(|at| informed.remove(at));
    let revision = Revision(simulation.revisions.replace(simulation.revisions.get() + 1));
    let update = ServiceUpdate {
        service: service.clone(),
        revision,
        state,
        routes: Arc::default(),
        traffic: older.as_ref().map(|entry| entry.update.traffic.clone()).unwrap_or_default(),
    };
    let (commands, around) = (to.commands.clone(), to.around.clone());
    let routes = older.and_then(|entry| entry.routes);
    let entry = Informed { node: to.node, commands, around, update, routes, at: Cell::new(at) };
    entry.send();
    informed.push(entry);
}

/// From now on a loop that is informed of a service gets these routes with it.
pub(super) fn keep_routed(to: &Running, routes: RoutesUpdate) {
    let simulation = sim();
    let mut informed = simulation.informed.borrow_mut();
    let is_it =
        |entry: &&mut Informed| entry.node.0 == to.node.0 && entry.update.service == routes.service;
    let entry = informed.iter_mut().find(is_it).expect("it is informed of the service");
    entry.routes = Some(routes);
    entry.send();
}

/// From now on a loop that is informed of a service gets these traffic policies with it.
pub(super) fn keep_policed(to: &Running, service: &ServiceName, parts: TrafficParts) {
    let simulation = sim();
    let mut informed = simulation.informed.borrow_mut();
    let is_it =
        |entry: &&mut Informed| entry.node.0 == to.node.0 && entry.update.service == *service;
    let entry = informed.iter_mut().find(is_it).expect("it is informed of the service");
    entry.update.traffic = Arc::new(parts);
    entry.send();
}

/// What a loop is to know of a service.
struct Informed {
    node: NodeId,
    commands: Commands,
    around: Around,
    update: ServiceUpdate,
    routes: Option<RoutesUpdate>,
    /// How often the loop had asked for the service when it was sent to it last.
    at: Cell<usize>,
}

impl Informed {
    /// Whether the loop had asked.
    fn inform(&self) -> bool {
        let asked = self.around.times_asked(&self.update.service);
        let has_asked = self.at.replace(asked) != asked;
        if has_asked {
            self.send();
        }
        has_asked
    }

    fn send(&self) {
        if let Some(routes) = &self.routes {
            self.commands.send(Command::Routes(vec![routes.clone()]));
        }
        self.commands.send(Command::Services(vec![self.update.clone()]));
    }
}

/// What is at an address.
#[derive(Clone)]
enum Listener {
    Node { id: NodeId, via: ListenerKind },
    Queue(Rc<RefCell<VecDeque<End>>>),
    Served(Rc<dyn Fn(Peer)>),
    Forward { target: SocketAddr, round_trip: Duration, taken: Rc<dyn Fn(Hold)> },
}

/// What a pass of a loop found.
enum Passed {
    Busy,
    Quiet,
    Ended,
}

trait Node {
    fn pass(&mut self, now: Instant, scratch: &mut Scratch) -> Passed;
    /// Takes a connection of a listener.
    fn take(&mut self, end: End, remote: SocketAddr, via: ListenerKind);
}

impl<C: Composition> Node for EventLoop<C> {
    fn pass(&mut self, now: Instant, scratch: &mut Scratch) -> Passed {
        let mut ready = Vec::new();
        let woken = self.conns.wait(Duration::ZERO, &mut ready).unwrap();
        let is_busy = woken
            || !ready.is_empty()
            || self.conns.reads() > 0
            || self.plane.is_due()
            || now >= self.next_sweep;
        if !is_busy {
            // The loop of a process would sleep now.
            return Passed::Quiet;
        }
        self.cx.now = now;
        match EventLoop::pass(self, woken, &ready, scratch) {
            ControlFlow::Break(()) => Passed::Ended,
            ControlFlow::Continue(()) => Passed::Busy,
        }
    }

    fn take(&mut self, end: End, remote: SocketAddr, via: ListenerKind) {
        end.accept();
        self.take_connection(Conn::accepted_in_memory(end), Some(remote), via);
    }
}

struct Simulation {
    began: Instant,
    began_wall: SystemTime,
    now: Cell<Instant>,
    nodes: RefCell<Vec<Option<Box<dyn Node>>>>,
    listeners: RefCell<HashMap<SocketAddr, Listener>>,
    network: Network,
    /// What is sent as there is room for it.
    unsent: RefCell<Vec<(Weak<Wire>, VecDeque<u8>)>>,
    informed: RefCell<Vec<Informed>>,
    /// In which foreign clients and servers run.
    runtime: tokio::runtime::Runtime,
    scratch: RefCell<Scratch>,
    next_port: Cell<u16>,
    revisions: Cell<u64>,
    boot_reads: Cell<u64>,
    /// Nothing runs: what follows is sent at once.
    is_held: Cell<bool>,
}

impl Simulation {
    fn new() -> Self {
        let began = Instant::now();
        Self {
            began,
            began_wall: SystemTime::UNIX_EPOCH + BEGAN,
            now: Cell::new(began),
            nodes: RefCell::default(),
            listeners: RefCell::default(),
            network: Network::default(),
            unsent: RefCell::default(),
            informed: RefCell::default(),
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
            scratch: RefCell::new(Scratch::new()),
            next_port: Cell::new(1024),
            revisions: Cell::new(1),
            boot_reads: Cell::new(0),
            is_held: Cell::new(false),
        }
    }

    fn open(&self, listener: Listener) -> SocketAddr {
        let address = unused_address();
        self.listeners.borrow_mut().insert(address, listener);
        address
    }

    /// Runs everything until nothing is left to do at this time.
    fn settle(&self) {
        if self.is_held.get() {
            return;
        }
        let mut quiet = 0;
        for _ in 0..ENDLESS {
            quiet = if self.round() { 0 } else { quiet + 1 };
            if quiet == 2 {
                return;
            }
        }
        panic!("two parts keep each other busy");
    }

    /// Whether there was something to do.
    fn round(&self) -> bool {
        let mut is_busy = false;
        let count = self.nodes.borrow().len();
        for at in 0..count {
            let Some(mut node) = self.nodes.borrow_mut()[at].take() else { continue };
            let passed = node.pass(self.now.get(), &mut self.scratch.borrow_mut());
            is_busy |= matches!(passed, Passed::Busy | Passed::Ended);
            if !matches!(passed, Passed::Ended) {
                self.nodes.borrow_mut()[at] = Some(node);
            }
        }
        is_busy |= self.send_unsent();
        self.informed.borrow().iter().for_each(|informed| is_busy |= informed.inform());
        self.runtime.block_on(async {
            for _ in 0..POLLS {
                tokio::task::yield_now().await;
            }
        });
        let dialled = std::mem::take(&mut *self.network.0.lock().unwrap());
        is_busy |= !dialled.is_empty();
        dialled.into_iter().for_each(|(address, end)| self.arrive(address, end));
        is_busy
    }

    fn arrive(&self, address: SocketAddr, end: End) {
        let listener = self.listeners.borrow().get(&address).cloned();
        match listener {
            Some(Listener::Node { id, via }) => {
                let remote = unused_address();
                let mut nodes = self.nodes.borrow_mut();
                match &mut nodes[id.0] {
                    Some(node) => node.take(end, remote, via),
                    None => end.refuse(),
                }
            }
            Some(Listener::Queue(queue)) => {
                end.accept();
                queue.borrow_mut().push_back(end);
            }
            Some(Listener::Served(serve)) => {
                end.accept();
                serve(Peer(end));
            }
            Some(Listener::Forward { target, round_trip, taken }) => {
                end.set_round_trip(round_trip);
                taken(end.to_hold());
                self.arrive(target, end);
            }
            None => end.refuse(),
        }
    }

    fn send_unsent(&self) -> bool {
        let mut has_sent = false;
        self.unsent.borrow_mut().retain_mut(|(wire, bytes)| {
            let Some(wire) = wire.upgrade() else { return false };
            while !bytes.is_empty() {
                match wire.send(bytes.make_contiguous()) {
                    Ok(count) => {
                        bytes.drain(..count);
                        has_sent = true;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                    Err(_) => return false,
                }
            }
            false
        });
        has_sent
    }
}

enum Wire {
    Memory(End),
    Local(UnixStream),
}

impl Wire {
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Memory(end) => end.write(bytes),
            Self::Local(stream) => (&*stream).write(bytes),
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Memory(end) => end.read(buffer),
            Self::Local(stream) => (&*stream).read(buffer),
        }
    }
}

/// A client's or a server's end of a connection. Reads and writes let time pass until they can go on.
#[derive(Clone)]
pub(super) struct Stream {
    wire: Rc<Wire>,
    /// What has arrived and is not read yet.
    arrived: Rc<RefCell<VecDeque<u8>>>,
}

impl Stream {
    fn new(wire: Wire) -> Self {
        Self { wire: Rc::new(wire), arrived: Rc::default() }
    }

    /// An end of a connection within the process.
    pub(super) fn local(stream: UnixStream) -> Self {
        stream.set_nonblocking(true).unwrap();
        Self::new(Wire::Local(stream))
    }

    /// Sends this as there is room for it, while the test does other things.
    pub(super) fn send_meanwhile(&self, bytes: impl Into<Vec<u8>>) {
        let unsent = (Rc::downgrade(&self.wire), VecDeque::from(bytes.into()));
        sim().unsent.borrow_mut().push(unsent);
        sim().settle();
    }

    /// Whether something is there to read, be it the end.
    pub(super) fn has_arrived(&self) -> bool {
        sim().settle();
        if !self.arrived.borrow().is_empty() {
            return true;
        }
        let mut buffer = [0; 1024];
        match self.wire.receive(&mut buffer) {
            Ok(0) => true,
            Ok(count) => {
                self.arrived.borrow_mut().extend(&buffer[..count]);
                true
            }
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Sends no more.
    pub(super) fn finish(&self) {
        match &*self.wire {
            Wire::Memory(end) => end.finish(),
            Wire::Local(stream) => stream.shutdown(Shutdown::Write).unwrap(),
        }
        sim().settle();
    }
}

/// Lets time pass until an attempt does not block.
fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let begun = now();
    sim().settle();
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if now() >= begun + PATIENCE {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                advance(SWEEP);
            }
            other => return other,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.arrived.borrow().is_empty() {
            return self.arrived.borrow_mut().read(buffer);
        }
        patiently(|| self.wire.receive(buffer))
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = patiently(|| self.wire.send(bytes));
        sim().settle();
        sent
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The end of a connection that foreign code has.
pub(super) struct Peer(End);

fn poll<T>(result: io::Result<T>) -> Poll<io::Result<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        other => Poll::Ready(other),
    }
}

impl AsyncRead for Peer {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.wake(context.waker());
        let read = self.0.read(buffer.initialize_unfilled());
        poll(read.map(|count| buffer.advance(count)))
    }
}

impl AsyncWrite for Peer {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.wake(context.waker());
        poll(self.0.write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.finish();
        Poll::Ready(Ok(()))
    }
}
