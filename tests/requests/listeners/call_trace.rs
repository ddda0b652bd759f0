//! Unrequested or forged call traces: an app's in its answers, a caller's in its requests.

use crate::listeners::listener::{Ask, Kind, Listener, received, statuses};
use tollway_tests::scripted_app::{Reply, Script, Then};

/// Fields with which an app would pass for a sidecar.
const FORGED: &str = "x-tollway-call-trace: {\"forged\":1}\r\n\
                      x-tollway-part: v=1;sidecar_us=7;app_us=7;admission=forged/forged\r\n\
                      x-tollway-explain: 1\r\nx-tollway-unprocessed: 1\r\n";
const ASK: &str = "x-tollway-explain: 1\r\n";

/// The same words in the head, in an interim answer, in trailers, and with a failure's status.
fn script() -> Script {
    let reply = |bytes: String| Reply { bytes: bytes.into_bytes(), then: Then::GoOn };
    let length = "content-length: 2\r\n\r\nok";
    Script::from([
        ("/head", reply(format!("HTTP/1.1 200 OK\r\n{FORGED}{length}"))),
        ("/failure", reply(format!("HTTP/1.1 503 No\r\n{FORGED}{length}"))),
        (
            "/interim",
            reply(format!(
                "HTTP/1.1 103 Early Hints\r\n{FORGED}link: </a>\r\n\r\nHTTP/1.1 200 OK\r\n{length}"
            )),
        ),
        (
            "/trailers",
            reply(format!(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\
                 {FORGED}x-sum: 7\r\n\r\n"
            )),
        ),
    ])
}

fn open(kind: Kind) -> Listener {
    Listener::open(kind, script(), &[])
}

/// The one value of a field of an answer.
fn value<'a>(answer: &'a str, name: &str) -> &'a str {
    let values: Vec<_> =
        answer.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).collect();
    assert_eq!(values.len(), 1, "{name} in {answer}");
    values[0]
}

fn ask(listener: &Listener, path: &str, fields: &str) -> String {
    let request = listener.request("GET", path, &format!("te: trailers\r\n{fields}"));
    let fields_end = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.ends_with("\r\n\r\nok") || text.ends_with("x-sum: 7\r\n\r\n")
    };
    let mut client = listener.connect();
    client.send(request).unwrap();
    client.read_until(tollway_tests::network::PATIENCE, fields_end).unwrap().text()
}

#[test]
fn an_app_cannot_forge_a_call_trace() {
    for kind in [Kind::HttpApi, Kind::Outbound, Kind::Mesh] {
        let listener = open(kind);
        for path in ["/head", "/failure", "/interim", "/trailers"] {
            let answer = ask(&listener, path, "");
            assert!(!answer.contains("x-tollway-"), "{path}: {answer}");
            assert!(!answer.contains("forged"), "{path}: {answer}");
        }
    }
}

#[test]
fn a_call_trace_contains_parts_of_sidecars_and_none_of_the_app() {
    for kind in [Kind::HttpApi, Kind::Outbound] {
        let listener = open(kind);
        for path in ["/head", "/failure", "/interim", "/trailers"] {
            let answer = ask(&listener, path, ASK);
            let trace = value(&answer, "x-tollway-call-trace");
            assert!(trace.contains("\"callee_sidecar\":"), "{path}: {trace}");
            assert!(
                trace.contains("\"callee\":\"spiffe://west.tollway/ns/default/stock\""),
                "{trace}"
            );
            assert!(!answer.contains("forged") && !answer.contains("x-tollway-part"), "{answer}");
        }
    }
    // A peer of the mesh gets the callee's part, which is all that the callee knows.
    let listener = open(Kind::Mesh);
    let answer = ask(&listener, "/head", ASK);
    let part = value(&answer, "x-tollway-part");
    assert!(part.starts_with("v=1;sidecar_us=") && part.ends_with(";admission=-"), "{part}");
    assert!(!answer.contains("x-tollway-call-trace") && !answer.contains("forged"), "{answer}");
}

#[test]
fn an_app_does_not_get_the_request_for_a_call_trace() {
    for kind in [Kind::HttpApi, Kind::Outbound, Kind::Mesh] {
        let listener = open(kind);
        for (path, fields) in [("/asked", ASK), ("/odd", "x-tollway-explain: yes\r\n")] {
            let forged = "x-tollway-call-trace: 1\r\nx-tollway-part: 1\r\n";
            let answer = listener.connect().ask(&listener.request(
                "GET",
                path,
                &(fields.to_owned() + forged),
            ));
            assert_eq!(statuses(&answer), [200], "{}", answer.text());
            let head = received(&listener, path).head;
            let own: Vec<_> = head.lines().filter(|line| line.starts_with("x-tollway-")).collect();
            assert_eq!(own, ["x-tollway-caller: spiffe://west.tollway/ns/default/web"], "{head}");
            let is_told = answer.text().contains("x-tollway-");
            assert_eq!(is_told, fields == ASK, "{}", answer.text());
        }
    }
}
