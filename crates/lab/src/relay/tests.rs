use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clap::Parser;
use tollway_testkit::ClosedPort;

use super::*;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    relay: RelayArgs,
}

#[test]
fn arguments_survive_the_command_line() {
    let address = "127.0.0.1:9".parse().unwrap();
    let in_file = Target::InFile { path: "/tmp/a b/p.json".into(), name: "http".into() };
    let args = RelayArgs {
        forwards: [Target::Address(address), in_file]
            .map(|target| Forward {
                name: "x".into(),
                listen: "127.0.0.1:0".parse().unwrap(),
                target,
            })
            .to_vec(),
        delay_us: 400,
        ordinary_priority: false,
        ports_file: "/tmp/p".into(),
    };
    let words = std::iter::once("relay".to_owned()).chain(args.to_args());
    assert_eq!(Cli::try_parse_from(words).unwrap().relay, args);
    for wrong in ["", "x", "x=127.0.0.1:0", "x=y,127.0.0.1:1", "x=127.0.0.1:0,nowhere"] {
        assert!(wrong.parse::<Forward>().is_err(), "{wrong}");
    }
}

#[test]
fn a_round_trip_takes_twice_the_delay() {
    const DELAY: Duration = Duration::from_millis(20);
    let server = echo_server();
    let relay = Running::start(Target::Address(server), 20_000);
    let mut stream = TcpStream::connect(relay.address).unwrap();
    // A busy or suspended machine makes some of them longer; all of them have a third delay only if
    // the relay adds it. The lab's direct rows show the relay's precision.
    let mut short = 0;
    for round in 0..100u8 {
        let start = Instant::now();
        stream.write_all(&[round]).unwrap();
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [round]);
        assert!(start.elapsed() >= 2 * DELAY, "{:?}", start.elapsed());
        short += u32::from(start.elapsed() < 3 * DELAY);
        if short == 5 {
            return;
        }
    }
    panic!("{short} of 100 round trips took less than three delays");
}

#[test]
fn the_end_of_one_direction_leaves_the_other_open() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = Running::start(Target::Address(server.local_addr().unwrap()), 5_000);
    let mut client = TcpStream::connect(relay.address).unwrap();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let sent = Instant::now();
    let (mut served, _) = server.accept().unwrap();
    let mut question = String::new();
    served.read_to_string(&mut question).unwrap();
    assert!(sent.elapsed() >= Duration::from_millis(4), "the end is delayed like the bytes");
    assert_eq!(question, "question");
    served.write_all(b"answer after the end").unwrap();
    drop(served);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer after the end");
}

#[test]
fn many_bytes_arrive_whole_through_a_slow_reader_and_are_bounded_on_the_way() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = Running::start(Target::Address(server.local_addr().unwrap()), 1_000);
    let mut client = TcpStream::connect(relay.address).unwrap();
    client.set_nonblocking(true).unwrap();
    let (mut served, _) = server.accept().unwrap();
    // Without a reader the relay and the sockets take a finite amount.
    let pattern: Vec<u8> = (0..=250).cycle().take(8_192).collect();
    let mut sent = 0;
    let mut stalled_since = Instant::now();
    while stalled_since.elapsed() < Duration::from_millis(300) {
        match client.write(&pattern[sent % 251..][..4_096]) {
            Ok(count) => {
                sent += count;
                stalled_since = Instant::now();
            }
            Err(_) => thread::sleep(Duration::from_millis(2)),
        }
        assert!(sent < 64 << 20, "the relay holds without bound");
    }
    assert!(sent >= stream::HELD_LIMIT_BYTES, "{sent}");
    client.shutdown(Shutdown::Write).unwrap();
    let mut received = Vec::new();
    served.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), sent);
    assert!(received.chunks(251).all(|chunk| *chunk == pattern[..chunk.len()]));
}

#[test]
fn a_target_named_in_a_file_may_come_later() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ports.json");
    let target = Target::InFile { path: path.clone(), name: "http".into() };
    let relay = Running::start(target, 0);
    let mut early = TcpStream::connect(relay.address).unwrap();
    let mut none = Vec::new();
    assert_eq!(early.read_to_end(&mut none).unwrap_or(0), 0, "refused while the file is missing");
    ports::write(&path, &Ports::from([("http".to_owned(), echo_server())])).unwrap();
    let mut stream = TcpStream::connect(relay.address).unwrap();
    stream.write_all(b"x").unwrap();
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"x");
}

#[test]
fn a_target_that_is_gone_closes_the_stream() {
    let gone = ClosedPort::on(Ipv4Addr::LOCALHOST).unwrap();
    let relay = Running::start(Target::Address(gone.address()), 0);
    let mut stream = TcpStream::connect(relay.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut bytes = Vec::new();
    assert!(!matches!(stream.read_to_end(&mut bytes), Ok(1..)));
}

/// Echoes the first connection.
fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut bytes = [0; 4_096];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            stream.write_all(&bytes[..count]).unwrap();
        }
    });
    address
}

/// A relay on a thread, until dropped.
struct Running {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Running {
    fn start(target: Target, delay_us: u64) -> Self {
        let listen = "127.0.0.1:0".parse().unwrap();
        let forward = Forward { name: "only".into(), listen, target };
        let ports_file = PathBuf::new();
        let args =
            RelayArgs { forwards: vec![forward], delay_us, ordinary_priority: true, ports_file };
        let stop = Arc::<AtomicBool>::default();
        let flag = Arc::clone(&stop);
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let mut relay = Relay::bind(&args).unwrap();
            sender.send(relay.ports["only"]).unwrap();
            while !flag.load(Ordering::Relaxed) {
                relay.pass().unwrap();
            }
        });
        Self { address: receiver.recv().unwrap(), stop, thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking());
    }
}
