//! Names with several addresses, of which a program listens at one: whatever dials such a name reaches
//! it, as curl does.

use std::net::{SocketAddr, TcpListener};

use tollway_testkit::{Process, Start, TlsRelay, need_tool, retry_until, skip};
use tollway_tests::names::Hosts;
use tollway_tests::network::{FRONT, PATIENCE, front, tollway, until_status};
use tollway_tests::program;
use tollway_tests::tls_client::trusting;

/// `localhost` as most machines have it, and the other way round; a program listens at the second.
const ORDERS: [[&str; 2]; 2] = [["::1", "127.0.0.1"], ["127.0.0.1", "::1"]];

fn hosts(addresses: &[&str]) -> Option<Hosts> {
    Hosts::of_localhost(&tollway_testkit::tool("unshare")?, addresses)
}

/// A port of one address at which nothing listens at the other.
fn at(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), 0)
}

fn echo(address: SocketAddr) -> Process {
    let echo = Start::new(program()).args(["echo", "--http", &address.to_string()]);
    echo.start_listening().unwrap()
}

fn has_ipv6() -> bool {
    TcpListener::bind("[::1]:0").is_ok()
}

#[test]
fn a_front_reaches_an_app_that_listens_at_one_address_of_its_name() {
    let unshare = need_tool!("unshare");
    for order in ORDERS {
        if order[1] == "::1" && !has_ipv6() {
            continue;
        }
        let Some(hosts) = Hosts::of_localhost(&unshare, &order) else {
            skip!("mount namespaces are not permitted here");
        };
        let app = echo(at(order[1]));
        let port = app.port("http").unwrap().port();
        let (_files, front) = front(hosts.start(), &format!("http://localhost:{port}"), &[]);
        let address = front.port("front").unwrap();
        let relay = TlsRelay::start(address, FRONT, trusting(None, b"http/1.1")).unwrap();
        // The first request, too.
        until_status(relay.address(), "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n", 200);
    }
}

/// The app moves from one address of its name to the other while the front runs.
#[test]
fn a_front_follows_an_app_to_another_address_of_its_name() {
    let Some(hosts) = hosts(&ORDERS[0]) else { skip!("mount namespaces are not permitted here") };
    if !has_ipv6() {
        skip!("there is no IPv6 here");
    }
    let app = echo(at("::1"));
    let port = app.port("http").unwrap().port();
    let (_files, front) = front(hosts.start(), &format!("http://localhost:{port}"), &[]);
    let address = front.port("front").unwrap();
    let relay = TlsRelay::start(address, FRONT, trusting(None, b"http/1.1")).unwrap();
    let request = "GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    until_status(relay.address(), request, 200);
    drop(app);
    let moved = SocketAddr::new("127.0.0.1".parse().unwrap(), port);
    let _app = echo(moved);
    until_status(relay.address(), request, 200);
}

#[test]
fn load_reaches_a_target_that_listens_at_one_address_of_its_name() {
    let unshare = need_tool!("unshare");
    let Some(hosts) = Hosts::of_localhost(&unshare, &ORDERS[0]) else {
        skip!("mount namespaces are not permitted here");
    };
    let app = echo(at("127.0.0.1"));
    let url = format!("http://localhost:{}/healthz", app.port("http").unwrap().port());
    let mut load = hosts.command();
    load.args(["load", "http", "-n", "3", "-c", "1", "--warm-up", "0s", &url]);
    let output = load.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_sidecar_reaches_a_control_plane_that_listens_at_one_address_of_its_name() {
    let unshare = need_tool!("unshare");
    let Some(hosts) = Hosts::of_localhost(&unshare, &ORDERS[0]) else {
        skip!("mount namespaces are not permitted here");
    };
    let _ = tollway();
    let checked = retry_until(PATIENCE, "the control plane's address", || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let control = format!("localhost:{}", listener.local_addr().unwrap().port());
        let output = hosts.command().args(["check", "sidecar", "--control", &control]).output();
        let report = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
        report.contains("something listens at").then_some(())
    });
    checked.unwrap();
}
