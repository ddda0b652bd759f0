//! Callers of one identity share the connections to an app: one of them whose requests hang does
//! not take what the others need.

use tollway_testkit::{RawClient, retry_until};

use crate::listeners::listener::{Kind, Listener};
use tollway_tests::h2_frames::{END_HEADERS, END_STREAM, HEADERS, block, frame, hello};
use tollway_tests::network::PATIENCE;
use tollway_tests::scripted_app::{Reply, Script, Then};

const LIMIT: &str = "app_connections=64";
/// Requests on each of the attacker's connections, and how many of them get to the app: each leaves
/// as many connections as it takes.
const EACH: u32 = 400;
const TAKEN: [usize; 3] = [32, 32 + 16, 32 + 16 + 8];

#[test]
fn hanging_requests_leave_other_callers_connections_to_the_app() {
    for kind in [Kind::Mesh, Kind::Front] {
        let script = Script::from([("/hang", Reply { bytes: Vec::new(), then: Then::Hang })]);
        let listener = Listener::open_over(b"h2", kind, script, &["--limit", LIMIT]);
        let hanging = || listener.app.requests("/hang").len();
        let attackers = TAKEN.map(|taken| {
            let attacker = hang(&listener);
            let is_there = || (hanging() == taken).then_some(());
            retry_until(PATIENCE, "as many as the share at the app", is_there).unwrap();
            attacker
        });
        for _ in 0..5 {
            listener.check_honest_over_http2("/x");
        }
        assert_eq!(hanging(), TAKEN[2]);
        drop(attackers);
        let later = hang(&listener);
        let has_its_share = || (hanging() >= TAKEN[2] + 32).then_some(());
        retry_until(PATIENCE, "what was called off coming free", has_its_share).unwrap();
        drop(later);
    }
}

fn hang(listener: &Listener) -> RawClient {
    let lines = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/hang"),
        (":authority", listener.host),
    ];
    let head = block(&lines);
    let requests = (0..EACH).map(|n| frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, &head));
    let mut client = RawClient::connect(listener.address).unwrap();
    client.send(hello().into_iter().chain(requests.flatten()).collect::<Vec<u8>>()).unwrap();
    client
}
