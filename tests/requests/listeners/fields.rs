//! The fields of a request at the app: those that were sent arrive unchanged, in their order, and
//! only documented ones are added.

use crate::listeners::listener::{Ask, Kind, Listener, received, statuses};
use tollway_tests::scripted_app::{Request, Script};

/// Odd in spelling, repeated, empty, long, and such as a proxy might take for its own.
fn sent() -> Vec<(String, String)> {
    let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let mut fields: Vec<_> = [
        ("x-a", "b"),
        ("accept", "text/html"),
        ("X-A", "c"),
        ("x-empty", ""),
        ("x-a", "b, d"),
        ("cookie", "one=1; two=2"),
        ("authorization", "Basic eDp5"),
        ("accept-encoding", "gzip, br"),
        ("user-agent", "a (b; c) d/1.0"),
        ("via", "1.1 somebody"),
        ("x-forwarded-for", "192.0.2.1"),
        ("x-request-id", "7"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("x-underscore_name", "kept"),
        ("content_length", "0"),
        ("x-!#$%&'*+.^`|~9", "all kinds of byte"),
        ("x-colons", "a: b: c"),
        ("x-quotes", "\"a\\\"b\", 'c'"),
        ("x-eighth-bit", "\u{fc}"),
        ("x-inner", "a \t b"),
        ("if-none-match", "\"tag\""),
        ("range", "bytes=0-1"),
        ("date", "Sat, 21 Nov 2026 00:00:00 GMT"),
        ("content-type", "text/plain; charset=utf-8"),
    ]
    .map(pair)
    .into();
    fields.push(("x-long".to_owned(), "l".repeat(6000)));
    fields.extend((0..40).map(|nth| (format!("x-many-{nth}"), nth.to_string())));
    fields
}

/// Values that a hop may add to a field of the request.
fn documented(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::HttpApi | Kind::GrpcApi | Kind::Outbound | Kind::Tunnel => &[
            "host",
            "content-length",
            "forwarded",
            "x-forwarded-host",
            "dapr-caller-app-id",
            "dapr-caller-namespace",
            "dapr-callee-app-id",
            "x-tollway-caller",
        ],
        Kind::Mesh => &[
            "host",
            "content-length",
            "dapr-caller-app-id",
            "dapr-caller-namespace",
            "dapr-callee-app-id",
            "x-tollway-caller",
        ],
        Kind::Front => {
            &["host", "content-length", "forwarded", "x-forwarded-host", "x-forwarded-proto"]
        }
    }
}

#[test]
fn fields_arrive_as_they_were_sent_and_no_others() {
    for kind in Kind::ALL {
        let listener = Listener::open(kind, Script::new(), &[]);
        let lines: String =
            sent().iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        // These are of this hop alone, and those that `connection` names with them.
        let hop = "connection: x-hop, keep-alive\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\n\
                   proxy-connection: keep-alive\r\ncontent-length: 5\r\n";
        let request = listener.request("POST", "/fields", &(lines + hop)) + "hello";
        let answer = listener.connect().ask(&request);
        assert_eq!(statuses(&answer), [200], "{}", answer.text());
        check(kind, &received(&listener, "/fields"));
    }
}

fn check(kind: Kind, request: &Request) {
    let sent = sent();
    let is_sent = |name: &str| sent.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
    for (name, _) in &sent {
        let mut values: Vec<&str> = sent
            .iter()
            .filter(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect();
        if name == "x-forwarded-for" && kind != Kind::Mesh {
            values = vec!["192.0.2.1, 127.0.0.1"];
        }
        assert_eq!(request.values(name), values, "{name}");
    }
    let others: Vec<&str> = request
        .head
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name)
        .filter(|name| !is_sent(name))
        .collect();
    let mut expected = documented(kind).to_vec();
    let mut found = others;
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected);
}
