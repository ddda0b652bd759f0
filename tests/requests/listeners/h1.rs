//! Valid HTTP/1.1 that must not be misread: odd spellings, pipelines without end, bodies that never
//! come, trailers and `connection` that would change the head's meaning.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use tollway_testkit::{End, peak_resident_bytes, reset_peak, resident_bytes};

use crate::listeners::listener::{
    Ask, GROWTH_BYTES, Kind, Listener, for_each_listener, received, statuses,
};
use tollway_tests::network::{PATIENCE, STOCK};
use tollway_tests::scripted_app::{Reply, Script, Then, answers};

/// Odd forms with one meaning pass unchanged.
#[test]
fn odd_requests_with_one_meaning_arrive_unchanged() {
    for_each_listener(&Script::new(), |listener, _| {
        let mut client = listener.connect();
        let spaced = listener.request("POST", "/spaced", "content-length: \t 5 \r\n") + "hello";
        assert_eq!(statuses(&client.ask(&spaced)), [200]);
        assert_eq!(received(listener, "/spaced").body, b"hello");
        for path in ["/a%00b", "/a%0d%0aset-cookie:%20x", "/a%2fb", "/%2e%2e/a", "/a/../b", "/a\"b"]
        {
            let answer = client.ask(&listener.get(path));
            assert_eq!(statuses(&answer), [200], "{path}: {}", answer.text());
            assert_eq!(received(listener, path).target(), path);
        }
    });
}

/// The service `stock` in other spellings of its host.
const SPELLINGS: [&str; 8] = [
    "stock.mesh",
    "stock.mesh.",
    "STOCK.Default.West.MESH",
    "Stock.DEFAULT.west.Mesh.",
    "stock.default.west.mesh:80",
    "stock.default.west.mesh.:80",
    "Stock.mesh:1",
    "STOCK.MESH.:65535",
];

/// Hosts that are no service, though some reader might take them for `stock`; with the status at the
/// API, which takes no names that the public DNS delegates.
const NO_SERVICE: [(&str, u16); 8] = [
    ("example.org", 403),
    ("mesh", 404),
    ("mesh.", 404),
    (".mesh", 404),
    ("a.b.c.d.mesh", 404),
    ("stock..mesh", 404),
    ("stock.mesh..", 403),
    ("stock.default.west.mesh.evil", 403),
];

/// A service has one name, in any spelling of the host, and the app gets that one.
#[test]
fn a_host_is_compared_without_case_port_and_last_dot() {
    for kind in [Kind::HttpApi, Kind::Outbound] {
        let listener = Listener::open(kind, Script::new(), &[]);
        for host in SPELLINGS {
            for target in ["/h".to_owned(), format!("http://{host}/h")] {
                let answer = listener.connect().ask(&to_host(&target, host));
                assert_eq!(statuses(&answer), [200], "{host}: {}", answer.text());
                let request = received(&listener, "/h");
                assert_eq!((request.target(), request.values("host")), ("/h", vec![STOCK]));
                assert_eq!(request.values("x-forwarded-host"), [host]);
                listener.app.forget();
            }
        }
        for (host, at_api) in NO_SERVICE {
            // The API has more than calls of services: what it does not know is not there.
            let refused = if kind == Kind::HttpApi { at_api } else { 400 };
            let answer = listener.connect().ask(&to_host("/h", host));
            assert_eq!(statuses(&answer), [refused], "{host}: {}", answer.text());
        }
        check_two_hosts(&listener);
        assert!(listener.app.requests("/h").is_empty());
    }
}

fn to_host(target: &str, host: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n")
}

/// The host of the target counts, and the `host` field beside it does not (RFC 9112, section 3.2.2).
#[track_caller]
fn check_two_hosts(listener: &Listener) {
    for host in ["STOCK.mesh:80", "stock.mesh.", "stock.mesh:81", "other.mesh", "shop.example"] {
        let answer = listener.connect().ask(&to_host("http://stock.mesh/two", host));
        assert_eq!(statuses(&answer), [200], "{host}: {}", answer.text());
        assert_eq!(received(listener, "/two").values("host"), [STOCK], "{host}");
        listener.app.forget();
    }
    for (target, _) in NO_SERVICE {
        let answer = listener.connect().ask(&to_host(&format!("http://{target}/two"), STOCK));
        assert_ne!(statuses(&answer), [200], "{target}: {}", answer.text());
    }
    assert!(listener.app.requests("/two").is_empty());
}

#[test]
fn a_tunnel_opens_to_a_host_in_any_spelling() {
    let listener = Listener::open(Kind::Outbound, Script::new(), &[]);
    let connect = |host: &str| {
        let host = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
        format!("CONNECT {host} HTTP/1.1\r\nhost: {host}\r\n\r\n")
    };
    for host in SPELLINGS {
        let mut client = listener.connect();
        client.send(connect(host)).unwrap();
        let answer = client.read_until(PATIENCE, |bytes| bytes.ends_with(b"\r\n\r\n")).unwrap();
        assert_eq!(statuses(&answer), [200], "{host}: {}", answer.text());
        assert_eq!(statuses(&client.ask(&to_host("/inside", STOCK))), [200], "{host}");
    }
    assert_eq!(listener.app.requests("/inside").len(), SPELLINGS.len());
    for (host, _) in NO_SERVICE {
        let answer = listener.exchange(connect(host));
        assert_eq!(statuses(&answer), [400], "{host}: {}", answer.text());
        assert_ne!(answer.end, End::TimedOut, "{host}");
    }
}

/// If another field names the service, no spelling of a host leads to another one.
#[test]
fn a_host_does_not_route_where_another_field_names_the_service() {
    for kind in [Kind::GrpcApi, Kind::Tunnel, Kind::Mesh, Kind::Front] {
        let listener = Listener::open(kind, Script::new(), &[]);
        let lines = listener.addressed.map(|(name, value)| format!("{name}: {value}\r\n"));
        let lines = lines.unwrap_or_default();
        for host in SPELLINGS.into_iter().chain(["other.mesh", "other.mesh.:80"]) {
            let request = format!("GET /any HTTP/1.1\r\nhost: {host}\r\n{lines}\r\n");
            let answer = listener.connect().ask(&request);
            assert!(answer.text().ends_with("own /any"), "{host}: {}", answer.text());
            assert_eq!(received(&listener, "/any").target(), "/any", "{host}");
            listener.app.forget();
        }
    }
}

/// Far more than may be held: of 47 MB of requests, and of answers of the app 1.6 GB.
const PIPELINED: usize = 100_000;
const LARGE_BYTES: usize = 16 * 1024;
/// Answered while their caller reads, each of them.
const IN_ORDER: usize = 500;

#[test]
fn pipelined_requests_are_answered_in_order_and_bounded() {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE_BYTES}\r\n\r\n");
    let bytes = [head.into_bytes(), vec![b'x'; LARGE_BYTES]].concat();
    let script = Script::from([("/large", Reply { bytes, then: Then::GoOn })]);
    for_each_listener(&script, |listener, kind| {
        let pid = listener.reader.pid();
        reset_peak(pid).unwrap();
        let resident = resident_bytes(pid).unwrap();
        let one = pipelined(listener, kind);
        let mut client = listener.connect();
        // A client that sends and does not read: it is not read either.
        let sent = send_until_stuck(listener.address, &one.repeat(PIPELINED));
        assert!(sent < one.len() * PIPELINED, "all was taken though nothing was read");
        assert_eq!(statuses(&client.ask(&listener.get("/between"))), [200]);
        check_order(listener);
        let grown = peak_resident_bytes(pid).unwrap().saturating_sub(resident);
        assert!(grown < GROWTH_BYTES, "grew by {grown} bytes");
    });
}

/// If a request can be refused by name alone, this one is, so that this process must hold itself
/// back. Otherwise the app answers, more than is requested.
fn pipelined(listener: &Listener, kind: Kind) -> String {
    let padding = format!("x-padding: {}\r\n", "x".repeat(400));
    match kind {
        Kind::HttpApi | Kind::GrpcApi | Kind::Outbound => {
            format!("GET / HTTP/1.1\r\nhost: a.b.c.d.mesh\r\n{padding}\r\n")
        }
        Kind::Tunnel | Kind::Mesh | Kind::Front => listener.request("GET", "/large", &padding),
    }
}

/// What is pipelined and read is answered whole, each request with its own answer.
#[track_caller]
fn check_order(listener: &Listener) {
    let mut client = listener.connect();
    let requests: String = (0..IN_ORDER).map(|nth| listener.get(&format!("/n-{nth}"))).collect();
    client.send(requests).unwrap();
    let answer = client.read_until(PATIENCE, |bytes| answers(bytes) == IN_ORDER).unwrap();
    let text = answer.text();
    let number = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect::<String>();
    let order: Vec<_> = text.split("own /n-").skip(1).map(number).collect();
    assert_eq!(order, (0..IN_ORDER).map(|nth| nth.to_string()).collect::<Vec<_>>());
}

/// How much of `bytes` a peer takes that gets no answer read, until it takes no more for a while.
fn send_until_stuck(address: SocketAddr, bytes: &str) -> usize {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut sent = 0;
    while let Some(rest) = bytes.as_bytes().get(sent..).filter(|rest| !rest.is_empty()) {
        match stream.write(&rest[..rest.len().min(64 * 1024)]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("after {sent} bytes: {error}"),
        }
    }
    sent
}

#[test]
fn a_body_that_never_comes_is_not_waited_for_without_end() {
    let script = Script::from([(
        "/early-no",
        Reply {
            bytes: b"HTTP/1.1 417 Expectation Failed\r\ncontent-length: 2\r\n\r\nno".to_vec(),
            then: Then::GoOn,
        },
    )]);
    const EXPECTS: &str = "expect: 100-continue\r\ncontent-length: 5\r\n";
    for kind in Kind::ALL {
        let listener = Listener::open(kind, script.clone(), &["--idle-timeout-ms", "1500"]);
        // The app refuses: the caller gets the refusal, and its connection ends as its body may
        // follow.
        let mut client = listener.connect();
        client.send(listener.request("POST", "/early-no", EXPECTS)).unwrap();
        let answer = client.read_to_end(PATIENCE).unwrap();
        assert_eq!(statuses(&answer), [417], "{}", answer.text());
        assert!(answer.text().ends_with("\r\n\r\nno"), "{}", answer.text());
        assert_eq!(answer.end, End::Closed);
        // The app waits as well: without `continue` nothing is sent.
        let mut client = listener.connect();
        client.send(listener.request("POST", "/silent", EXPECTS)).unwrap();
        let answer = client.read_to_end(PATIENCE).unwrap();
        assert_eq!(statuses(&answer), [408], "{}", answer.text());
        assert!(answer.text().contains("ERR_BODY_TIMED_OUT"), "{}", answer.text());
        assert_ne!(answer.end, End::TimedOut);
        assert!(listener.app.requests("/silent").is_empty());
        listener.check_honest("/after");
    }
}

/// Forbidden trailers are dropped, others arrive as trailers.
#[test]
fn fields_of_a_head_are_dropped_from_trailers() {
    for_each_listener(&Script::new(), |listener, _| {
        let fields = "transfer-encoding: chunked\r\ntrailer: x-sum\r\n";
        let chunks = "5\r\nhello\r\n0\r\ncontent-length: 99\r\ntransfer-encoding: gzip\r\n\
                      host: evil\r\nauthorization: evil\r\nconnection: x-sum\r\nx-sum: 7\r\n\r\n";
        let answer =
            listener.connect().ask(&(listener.request("POST", "/trailers", fields) + chunks));
        assert_eq!(statuses(&answer), [200], "{}", answer.text());
        let request = received(listener, "/trailers");
        let body = String::from_utf8(request.body.clone()).unwrap();
        assert_eq!(body, "5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n");
        assert!(!request.head.contains("x-sum:") && !request.head.contains("evil"));
        listener.check_honest("/after");
    });
}

/// `connection` cannot strip a field that a sidecar adds, nor can a caller forge it.
#[test]
fn vouched_fields_survive_and_forged_ones_do_not() {
    for_each_listener(&Script::new(), |listener, kind| {
        let fields = "connection: x-forwarded-identity, x-tollway-caller, x-forwarded-for, \
                      dapr-caller-app-id, forwarded, keep-alive\r\n\
                      x-forwarded-identity: me\r\nx-tollway-caller: spiffe://evil/ns/a/b\r\n\
                      dapr-caller-app-id: evil\r\ndapr-caller-namespace: evil\r\n\
                      keep-alive: timeout=5\r\nproxy-authorization: Basic x\r\nte: gzip\r\n\
                      x-kept: yes\r\n";
        let answer = listener.connect().ask(&listener.request("GET", "/own", fields));
        assert_eq!(statuses(&answer), [200], "{}", answer.text());
        let request = received(listener, "/own");
        assert_eq!(request.values("x-kept"), ["yes"]);
        if kind == Kind::Front {
            // It adds no workload's identity, and ignores the fields of sidecars.
            assert_eq!(request.values("x-tollway-caller"), [""; 0]);
            assert_eq!(request.values("dapr-caller-namespace"), ["evil"]);
        } else {
            let caller = "spiffe://west.tollway/ns/default/web";
            assert_eq!(request.values("x-tollway-caller"), [caller]);
            assert_eq!(request.values("dapr-caller-app-id"), ["web"]);
            assert_eq!(request.values("dapr-caller-namespace"), ["default"]);
            assert!(!request.head.contains("evil"), "{}", request.head);
        }
        if kind != Kind::Mesh {
            assert_eq!(request.values("x-forwarded-for"), ["127.0.0.1"]);
        }
        for name in ["x-forwarded-identity", "keep-alive", "proxy-authorization", "te"] {
            assert_eq!(request.values(name), [""; 0], "{name}");
        }
    });
}

/// The end of an empty body is as much part of a request as its head, also where both wait for a
/// connection to the app.
#[test]
fn a_body_of_no_chunks_ends_at_an_app_that_must_be_dialled_first() {
    // It announces its close: without that the next request could meet the closing connection.
    let bytes = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok".to_vec();
    let script = Script::from([("/last", Reply { bytes, then: Then::Close })]);
    for_each_listener(&script, |listener, _| {
        assert_eq!(statuses(&listener.connect().ask(&listener.get("/last"))), [200]);
        let fields = "transfer-encoding: chunked\r\n";
        let answer =
            listener.connect().ask(&(listener.request("POST", "/none", fields) + "0\r\n\r\n"));
        assert_eq!(statuses(&answer), [200], "{}", answer.text());
        // Over HTTP/2 between sidecars it is known before the head goes on that nothing follows.
        let request = received(listener, "/none");
        let body = String::from_utf8(request.body).unwrap();
        assert!(body == "0\r\n\r\n" || body.is_empty(), "{body}");
    });
}
