//! No local port is left for another connection to one address: others are dialled, and a request
//! that only that address can serve gets the reason.

use std::io;
use std::net::{SocketAddr, TcpStream};

use tollway_net::netns::NetNs;
use tollway_testkit::{need_right, retry_until};

use crate::transport::honest;
use crate::transport::line::Line;
use crate::transport::world::at_front;
use tollway_tests::network::{Network, PATIENCE, STOCK, front, metric, tollway};
use tollway_tests::tls_client::{call, dial};

/// Ports for connections from one address to one other.
const FIRST: u16 = 20_000;
const PORTS: u16 = 8;

/// Every listener has its port by then, and so have the callers of a test: the kernel does not give
/// such a port to any other connection.
fn leave_few_ports() {
    leave_ports(FIRST, PORTS);
}

fn leave_ports(first: u16, count: u16) {
    let range = format!("{first} {}", first + count - 1);
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).unwrap();
}

#[test]
fn who_cannot_be_dialled_for_want_of_ports_is_not_the_end_while_others_can() {
    // The setting with the range of ports.
    let namespace = need_right!(NetNs::create("ports"));
    let check = || {
        /// Fewer than ports: connections that have just ended may have theirs for a while.
        const CALLS: usize = 6;
        let network = Network::start("west");
        let app = tollway().args(["echo", "--http", "127.0.0.1:0"]).start_listening().unwrap();
        let port = app.port("http").unwrap().port().to_string();
        let replicas = [(), ()].map(|()| network.sidecar("stock", &["--app-port", &port]));
        let gateway = network.gateway();
        let (config, name) = network.client("web", "stock", b"http/1.1");
        let to = gateway.port("gateway").unwrap();
        let request = format!("GET /size?bytes=10 HTTP/1.1\r\nhost: {STOCK}\r\n\r\n");
        let ask = |socket| call(socket, &name, config.clone(), request.as_bytes());
        let are_known = || {
            ask(dial(to, PATIENCE)).ok()?;
            let served = |replica| metric(replica, "tollway_inbound_requests_total") > 0;
            replicas.iter().all(served).then_some(())
        };
        retry_until(PATIENCE, "both replicas being served through the gateway", are_known).unwrap();

        let callers: Vec<_> = (0..CALLS).map(|_| dial(to, PATIENCE)).collect();
        leave_few_ports();
        let first = replicas[0].port("inbound").unwrap();
        let taken = take_all_ports(first);
        let failed = || metric(&gateway, "tollway_dial_failures_total");
        let before = failed();
        for caller in callers {
            let answer = ask(caller).unwrap();
            assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        }
        assert!(failed() > before, "nobody tried where no port is left");
        drop(taken);
    };
    namespace.run(check).unwrap();
}

/// Connects to `address` until the kernel has no port for it.
fn take_all_ports(address: SocketAddr) -> Vec<TcpStream> {
    let mut taken = Vec::new();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => taken.push(stream),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable, "{error}");
                return taken;
            }
        }
        assert!(taken.len() <= usize::from(PORTS), "there are more ports than were left");
    }
}

#[test]
fn a_lack_of_ports_is_reported_and_calls_succeed_once_there_are_some() {
    // The setting with the range of ports.
    let namespace = need_right!(NetNs::create("ports"));
    let check = || {
        let app = tollway().args(["echo", "--http", "127.0.0.1:0"]).start_listening().unwrap();
        let to = format!("http://{}", app.port("http").unwrap());
        let (_files, front) = front(tollway(), &to, &[]);
        let (aim, ask) = at_front(&front);
        let failed = || metric(&front, "tollway_dial_failures_total");
        let before = failed();
        let hang = String::from_utf8(ask.bytes.clone()).unwrap();
        let hang = hang.replace("/size?bytes=10", "/delay?ms=60000");
        // One more than there are ports; no earlier request left a connection.
        let mut lines: Vec<Line> = (0..=PORTS).map(|_| Line::open(&aim).unwrap()).collect();
        leave_few_ports();
        lines.iter_mut().for_each(|line| line.send(hang.as_bytes()));
        let answered = || {
            lines.iter_mut().for_each(Line::look);
            lines.iter().find(|line| !line.heard.is_empty()).map(|line| line.heard.clone())
        };
        let answer = retry_until(PATIENCE, "an answer for want of ports", answered).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains("ERR_APP_UNREACHABLE"), "{answer}");
        assert!(answer.contains("no local port is left"), "{answer}");
        assert!(answer.contains("ip_local_port_range"), "{answer}");
        assert_eq!(lines.iter().filter(|line| line.heard.is_empty()).count(), usize::from(PORTS));
        assert!(failed() > before);
        drop(lines);
        // Ports that were just used are held for a minute.
        leave_ports(FIRST + PORTS, 1000);
        let served = || {
            let mut kept = honest::EarlyCaller::open(&aim, &ask);
            (kept.ask_for(std::time::Duration::ZERO).failed == 0).then_some(())
        };
        retry_until(PATIENCE, "ports being there again", served).unwrap();
    };
    namespace.run(check).unwrap();
}
