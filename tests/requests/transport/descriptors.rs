//! Processes at their limit of descriptors: idle connections are evicted, those with requests
//! remain. If all have requests, nothing spins, what could not be accepted is counted, and waiting
//! clients are served as soon as there is room.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tollway_testkit::{Process, Start, retry_until};

use crate::transport::honest::EarlyCaller;
use crate::transport::line::{Aim, Line};
use crate::transport::weigh::usage;
use crate::transport::world::{ATTACKER, HONEST, Listener, World};
use tollway_tests::h2_frames::{PING, frame, hello};
use tollway_tests::network::{Network, PATIENCE, metric};

/// Descriptors that are left, and how many want one.
const LEFT: usize = 8;
const CROWD: usize = 64;
/// Those who are being served.
const SERVED: usize = 3;
/// A process that spins takes all of this time, one that rests a few milliseconds of it.
const WATCHED: Duration = Duration::from_secs(2);
const MOST_USED: Duration = Duration::from_millis(200);
/// After this time a listener closes a silent connection.
const GIVEN_UP: Duration = Duration::from_secs(10);
/// How long accepting rests when no descriptor is left.
const REST: Duration = Duration::from_millis(50);
const CODE: &str = "ERR_OUT_OF_DESCRIPTORS";
pub(crate) const REFUSED: &str = "tollway_connections_refused_total";
/// Holds a request for as long as it may take.
const UNANSWERED: &str = "/delay?ms=60000";

#[test]
fn a_sidecar_without_descriptors_rests_counts_and_goes_on() {
    exhaust(Listener::Api);
}

#[test]
fn a_gateway_without_descriptors_rests_counts_and_goes_on() {
    exhaust(Listener::Gateway);
}

#[test]
fn a_silent_crowd_keeps_no_client_out() {
    let world = World::start();
    for listener in [Listener::Mesh, Listener::Front] {
        let few = Few::leave(world.attacked(listener)[0], LEFT);
        check_silent_crowd(&world, listener, &few);
    }
}

/// Silent connections are evicted for later ones, as often as needed.
fn check_silent_crowd(world: &World, listener: Listener, few: &Few<'_>) {
    let began = Instant::now();
    let crowd = crowd(&world.attacker(listener));
    let reported = || few.process.log().contains(CODE).then_some(());
    retry_until(PATIENCE, "a word about descriptors", reported).unwrap();
    let (aim, ask) = (world.honest(listener), world.ask(listener));
    for _ in 0..3 {
        let seen = EarlyCaller::open(&aim, &ask).ask_for(Duration::ZERO);
        assert_eq!(seen.failed, 0, "{}: {:?}", listener.words(), seen.why);
    }
    assert!(began.elapsed() < GIVEN_UP, "{}: only when the crowd was given up", listener.words());
    // A reader of the metrics gets in as well.
    assert!(metric(few.process, REFUSED) > 0, "those who gave way are counted");
    drop(crowd);
}

fn exhaust(listener: Listener) {
    let world = World::start();
    let (aim, ask) = (world.honest(listener), world.ask(listener));
    let process = world.attacked(listener)[0];
    let mut kept = EarlyCaller::open(&aim, &ask);
    let few = Few::leave(process, LEFT);
    check_silent_crowd(&world, listener, &few);
    let before = metric(process, REFUSED);
    few.until_room(|room| room >= LEFT);
    let room = few.room();
    let served = serve(&world.attacker(listener), &world.head(listener, "GET", UNANSWERED, ""));
    few.until_room(|left| left + served.len() <= room);
    let few = Few::leave(process, 0);
    assert_eq!(kept.ask_for(Duration::ZERO).failed, 0);
    let began = Instant::now();
    let crowd = crowd(&world.attacker(listener));
    let late = thread::scope(|scope| {
        let late = scope.spawn(|| EarlyCaller::open(&aim, &ask).ask_for(Duration::ZERO));
        rests(process);
        few.until_none_is_left();
        let seen = kept.ask_for(Duration::ZERO);
        assert_eq!(seen.failed, 0, "who is in is served: {:?}", seen.why);
        drop((served, crowd));
        late.join().unwrap()
    });
    let refused = metric(process, REFUSED) - before;
    // Each of the crowd may have been accepted in the end, and evicted.
    let most = began.elapsed().as_millis() / (REST / 2).as_millis() + CROWD as u128;
    assert!(refused > 0, "nothing was counted");
    assert!(u128::from(refused) <= most, "{refused} attempts to accept: it does not rest");
    assert_eq!(late.failed, 0, "who waited is served once there is room: {:?}", late.why);
    let newcomer = EarlyCaller::open(&aim, &ask).ask_for(Duration::ZERO);
    assert_eq!(newcomer.failed, 0, "{:?}", newcomer.why);
}

#[test]
fn a_control_plane_without_descriptors_rests_counts_and_goes_on() {
    const GAVE_WAY: &str = "tollway_control_connections_refused_total{reason=\"descriptors\"}";
    let network = Network::start("west");
    let tls = network.client_of_control("web");
    let known = Aim { from: HONEST, to: network.control_address(), tls: Some(tls) };
    let stranger = known.bare().from(ATTACKER);
    let few = Few::leave(&network.control, LEFT);
    let strangers = crowd(&stranger);
    let reported = || network.control.log().contains(CODE).then_some(());
    retry_until(PATIENCE, "a word about descriptors", reported).unwrap();
    // A client that authenticates gets the permit of one that does not.
    let first = enter(&known);
    drop(strangers);
    let are_gone = || (few.room() > LEFT / 2).then_some(());
    retry_until(PATIENCE, "strangers being gone", are_gone).unwrap();
    let mut inside = [first, enter(&known)];
    let few = Few::leave(&network.control, 0);
    let waiting = crowd(&stranger);
    thread::scope(|scope| {
        let operator = scope.spawn(|| network.command(&["token", "create"], b""));
        rests(&network.control);
        few.until_none_is_left();
        ping(&mut inside[0]);
        drop((inside, waiting));
        let token = operator.join().unwrap();
        assert!(!token.is_empty(), "a command that waited is done once there is room");
    });
    ping(&mut enter(&known));
    assert!(metric(&network.control, GAVE_WAY) > 0, "nothing was counted");
}

#[test]
fn connections_of_one_certificate_leave_descriptors_to_others_and_to_the_operator() {
    const DESCRIPTORS: u64 = 256;
    const EVICTED: &str = "tollway_control_connections_refused_total{reason=\"share\"}";
    let script = format!("ulimit -n {DESCRIPTORS}; exec \"$0\" \"$@\"");
    let program = tollway_testkit::binary("tollway").unwrap();
    let few = Start::new("/bin/sh").args(["-c", &script]).arg(program);
    let network = Network::start_by(few.ready_within(PATIENCE), "west", &[]);
    assert!(network.control.log().contains("lowers the limits of connections"));
    let aim = |app: &str| {
        let tls = network.client_of_control(app);
        Aim { from: HONEST, to: network.control_address(), tls: Some(tls) }
    };
    let (evil, mut held) = (aim("evil"), Vec::new());
    for _ in 0..DESCRIPTORS + 50 {
        held.push(enter(&evil));
    }
    for app in ["web", "stock", "orders"] {
        ping(&mut enter(&aim(app)));
        assert!(!network.command(&["token", "create"], b"").is_empty());
    }
    let open = open(&network.control).len() as u64;
    assert!(open < DESCRIPTORS * 3 / 4, "{open} descriptors are in use");
    assert!(metric(&network.control, EVICTED) > 200, "its oldest did not give way");
    assert!(!network.control.log().contains(CODE), "some are always left");
}

/// Requests under way.
fn serve(aim: &Aim, head: &[u8]) -> [Line; SERVED] {
    [(); SERVED].map(|()| {
        let mut line = Line::open(aim).unwrap();
        line.send(head);
        line
    })
}

/// Silent connections.
fn crowd(aim: &Aim) -> Vec<TcpStream> {
    (0..CROWD).map(|_| aim.dial().unwrap()).collect()
}

/// A connection that the control plane has authenticated.
fn enter(aim: &Aim) -> Line {
    let mut line = Line::open(aim).unwrap();
    line.send(&hello());
    line
}

/// Connections that are open are answered.
fn ping(line: &mut Line) {
    const SAID: &[u8; 8] = b"who else";
    line.send(&frame(PING, 0, 0, SAID));
    let answered = || {
        line.look();
        line.heard.windows(SAID.len()).any(|heard| heard == SAID).then_some(())
    };
    retry_until(PATIENCE, "an answer to a ping", answered).unwrap();
}

#[track_caller]
fn rests(process: &Process) {
    let before = usage(&[process]);
    thread::sleep(WATCHED);
    let used = usage(&[process]) - before;
    eprintln!("of {WATCHED:?} without descriptors it worked for {used:?}");
    assert!(used < MOST_USED, "of {WATCHED:?} without descriptors it worked for {used:?}");
}

/// A process that may open few more files and sockets.
pub(crate) struct Few<'a> {
    process: &'a Process,
    limit: u64,
}

impl<'a> Few<'a> {
    pub(crate) fn leave(process: &'a Process, left: usize) -> Self {
        let open = open(process);
        // The kernel gives the lowest number that is free, and none from the limit on.
        let limit = (0..).filter(|number| !open.contains(number)).nth(left).unwrap();
        let pid = Pid::from_raw(process.pid().try_into().unwrap());
        let rlimit = Rlimit { current: Some(limit), maximum: Some(limit) };
        prlimit(pid, Resource::Nofile, rlimit).unwrap();
        Self { process, limit }
    }

    /// How many it may open now.
    fn room(&self) -> usize {
        let open = open(self.process);
        (0..self.limit).filter(|number| !open.contains(number)).count()
    }

    fn until_none_is_left(&self) {
        self.until_room(|room| room == 0);
    }

    fn until_room(&self, is_so: impl Fn(usize) -> bool) {
        let room = || is_so(self.room()).then_some(());
        retry_until(PATIENCE, "so many descriptors being left", room).unwrap();
    }
}

/// The descriptors that a process has.
fn open(process: &Process) -> BTreeSet<u64> {
    let folder = std::fs::read_dir(format!("/proc/{}/fd", process.pid())).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name());
    names.map(|name| name.to_str().unwrap().parse().unwrap()).collect()
}
