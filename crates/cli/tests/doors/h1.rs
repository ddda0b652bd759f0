//! What valid HTTP/1.1 must not be bent to do: odd spellings, upgrades, pipelines without end,
//! bodies that never come, trailers and `connection` that would change what the head says.

use std::net::SocketAddr;
use std::time::Duration;

use tollway_testkit::{End, peak_resident_bytes, reset_peak, resident_bytes, retry_until};

use crate::app::{Reply, Script, Then, answers};
use crate::door::{Ask, Door, GROWTH_BYTES, Kind, for_each_door, received, statuses};
use crate::network::PATIENCE;

/// What looks odd and has one meaning goes through as it is.
#[test]
fn odd_requests_with_one_meaning_arrive_unchanged() {
    for_each_door(&Script::new(), |door, _| {
        let mut client = door.connect();
        let spaced = door.request("POST", "/spaced", "content-length: \t 5 \r\n") + "hello";
        assert_eq!(statuses(&client.ask(&spaced)), [200]);
        assert_eq!(received(door, "/spaced").body, b"hello");
        for path in ["/a%00b", "/a%0d%0aset-cookie:%20x", "/a%2fb", "/%2e%2e/a", "/a/../b", "/a\"b"]
        {
            let answer = client.ask(&door.get(path));
            assert_eq!(statuses(&answer), [200], "{path}: {}", answer.text());
            assert_eq!(received(door, path).target(), path);
        }
    });
}

/// A service has one name, however a host is spelt.
#[test]
fn host_is_compared_without_case_and_port() {
    let door = Door::open(Kind::Outbound, Script::new(), &[]);
    for host in
        ["STOCK.Default.West.MESH", "stock.mesh", "stock.default.west.mesh:80", "Stock.mesh:1"]
    {
        let request = format!("GET /h HTTP/1.1\r\nhost: {host}\r\n\r\n");
        assert_eq!(statuses(&door.connect().ask(&request)), [200], "{host}");
        let request = format!("GET http://{host}/h HTTP/1.1\r\nhost: {host}\r\n\r\n");
        assert_eq!(statuses(&door.connect().ask(&request)), [200], "{host}");
    }
    for host in ["example.org", "mesh", ".mesh", "a.b.c.d.mesh", "stock.default.west.mesh.evil"] {
        let request = format!("GET /h HTTP/1.1\r\nhost: {host}\r\n\r\n");
        let answer = door.connect().ask(&request);
        assert_eq!(statuses(&answer), [400], "{host}: {}", answer.text());
    }
}

#[test]
fn bytes_behind_an_upgrade_wait_for_the_answer() {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: raw\r\n\r\n";
    let script = Script::from([(
        "/taken",
        Reply { bytes: format!("{switch}welcome").into(), then: Then::Hang },
    )]);
    const UPGRADE: &str = "connection: upgrade\r\nupgrade: raw\r\n";
    for_each_door(&script, |door, _| {
        // Declined: what follows is the next request.
        let mut client = door.connect();
        let declined = door.request("GET", "/declined", UPGRADE) + &door.get("/next");
        client.send(declined).unwrap();
        let answer = client.read_until(PATIENCE, |bytes| answers(bytes) == 2).unwrap();
        assert_eq!(statuses(&answer), [200, 200], "{}", answer.text());
        assert_eq!(received(door, "/declined").values("upgrade"), ["raw"]);
        assert_eq!(received(door, "/next").values("upgrade"), [""; 0]);
        // Declined with a body: the body belongs to it.
        let fields = format!("{UPGRADE}content-length: 5\r\n");
        let declined = door.request("POST", "/with-body", &fields) + "hello" + &door.get("/third");
        client.send(declined).unwrap();
        let answer = client.read_until(PATIENCE, |bytes| answers(bytes) == 2).unwrap();
        assert_eq!(statuses(&answer), [200, 200], "{}", answer.text());
        assert_eq!(received(door, "/with-body").body, b"hello");
        // Taken: what follows is no request, and goes to whoever took it.
        let mut client = door.connect();
        let early = "GET /early HTTP/1.1\r\nhost: x\r\n\r\n";
        client.send(door.request("GET", "/taken", UPGRADE) + early).unwrap();
        let answer =
            client.read_until(PATIENCE, |bytes| bytes.ends_with(b"\r\n\r\nwelcome")).unwrap();
        assert_eq!(answer.end, End::Complete, "{}", answer.text());
        assert_eq!(statuses(&answer), [101]);
        retry_until(PATIENCE, "the early bytes at the app", || {
            door.app.was_sent(early).then_some(())
        })
        .unwrap();
        assert!(door.app.requests("/early").is_empty());
    });
}

#[test]
fn pipelined_requests_are_answered_in_order_and_bounded() {
    const COUNT: usize = 100_000;
    for kind in [Kind::HttpApi, Kind::Outbound] {
        let door = Door::open(kind, Script::new(), &[]);
        let pid = door.reader.pid();
        reset_peak(pid).unwrap();
        let resident = resident_bytes(pid).unwrap();
        // Refused by name alone, so that it is this process that must hold itself back.
        let one = format!(
            "GET / HTTP/1.1\r\nhost: a.b.c.d.mesh\r\nx-padding: {}\r\n\r\n",
            "x".repeat(400)
        );
        let mut client = door.connect();
        // A client that sends and does not read: it is not read either.
        let sent = send_until_stuck(door.address, &one.repeat(COUNT));
        assert!(sent < one.len() * COUNT, "all was taken though nothing was read");
        let answer = client.ask(&door.get("/between"));
        assert_eq!(statuses(&answer), [200]);
        let grown = peak_resident_bytes(pid).unwrap() - resident;
        assert!(grown < GROWTH_BYTES, "grew by {grown} bytes");
        let few: String = (0..500).map(|n| door.get(&format!("/n-{n}"))).collect();
        client.send(few).unwrap();
        let answer = client.read_until(PATIENCE, |bytes| answers(bytes) == 500).unwrap();
        let text = answer.text();
        let order: Vec<&str> = text.split("own /n-").skip(1).collect();
        assert_eq!(order.len(), 500);
        for (n, rest) in order.iter().enumerate() {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            assert_eq!(digits, n.to_string());
        }
    }
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
            Err(_) => break,
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
        let door = Door::open(kind, script.clone(), &["--idle-timeout-ms", "1500"]);
        // The app says no: the caller is told, and its connection ends as its body may follow.
        let mut client = door.connect();
        client.send(door.request("POST", "/early-no", EXPECTS)).unwrap();
        let answer = client.read_to_end(PATIENCE).unwrap();
        assert_eq!(statuses(&answer), [417], "{}", answer.text());
        assert!(answer.text().ends_with("\r\n\r\nno"), "{}", answer.text());
        assert_eq!(answer.end, End::Closed);
        // The app waits as well: nobody says `continue`, nobody sends.
        let mut client = door.connect();
        client.send(door.request("POST", "/silent", EXPECTS)).unwrap();
        let answer = client.read_to_end(PATIENCE).unwrap();
        assert_eq!(statuses(&answer), [408], "{}", answer.text());
        assert!(answer.text().contains("ERR_BODY_TIMED_OUT"), "{}", answer.text());
        assert_ne!(answer.end, End::TimedOut);
        assert!(door.app.requests("/silent").is_empty());
        door.check_honest("/after");
    }
}

/// Forbidden trailers are dropped, others arrive as trailers.
#[test]
fn trailers_cannot_say_what_only_a_head_may() {
    for_each_door(&Script::new(), |door, _| {
        let fields = "transfer-encoding: chunked\r\ntrailer: x-sum\r\n";
        let chunks = "5\r\nhello\r\n0\r\ncontent-length: 99\r\ntransfer-encoding: gzip\r\n\
                      host: evil\r\nauthorization: evil\r\nconnection: x-sum\r\nx-sum: 7\r\n\r\n";
        let answer = door.connect().ask(&(door.request("POST", "/trailers", fields) + chunks));
        assert_eq!(statuses(&answer), [200], "{}", answer.text());
        let request = received(door, "/trailers");
        let body = String::from_utf8(request.body.clone()).unwrap();
        assert_eq!(body, "5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n");
        assert!(!request.head.contains("x-sum:") && !request.head.contains("evil"));
        door.check_honest("/after");
    });
}

/// `connection` cannot strip what a sidecar vouches for, nor can a caller say it.
#[test]
fn vouched_fields_survive_and_forged_ones_do_not() {
    for_each_door(&Script::new(), |door, kind| {
        let fields = "connection: x-forwarded-identity, x-tollway-caller, x-forwarded-for, \
                      dapr-caller-app-id, forwarded, keep-alive\r\n\
                      x-forwarded-identity: me\r\nx-tollway-caller: spiffe://evil/ns/a/b\r\n\
                      dapr-caller-app-id: evil\r\ndapr-caller-namespace: evil\r\n\
                      keep-alive: timeout=5\r\nproxy-authorization: Basic x\r\nte: gzip\r\n\
                      x-kept: yes\r\n";
        let answer = door.connect().ask(&door.request("GET", "/own", fields));
        assert_eq!(statuses(&answer), [200], "{}", answer.text());
        let request = received(door, "/own");
        assert_eq!(request.values("x-kept"), ["yes"]);
        if kind == Kind::Front {
            // It vouches for no workload, and knows nothing of what sidecars say.
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
    // It says that it closes: without that the next request could meet the closing connection.
    let bytes = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok".to_vec();
    let script = Script::from([("/last", Reply { bytes, then: Then::Close })]);
    for_each_door(&script, |door, _| {
        assert_eq!(statuses(&door.connect().ask(&door.get("/last"))), [200]);
        let fields = "transfer-encoding: chunked\r\n";
        let answer = door.connect().ask(&(door.request("POST", "/none", fields) + "0\r\n\r\n"));
        assert_eq!(statuses(&answer), [200], "{}", answer.text());
        // Over HTTP/2 between sidecars it is known before the head goes on that nothing follows.
        let request = received(door, "/none");
        let body = String::from_utf8(request.body).unwrap();
        assert!(body == "0\r\n\r\n" || body.is_empty(), "{body}");
    });
}
