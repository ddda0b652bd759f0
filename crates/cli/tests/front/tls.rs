//! What is no TLS, or none that is spoken here.

use tollway_testkit::{RawClient, retry_until};

use crate::app::Script;
use crate::world::{PATIENCE, World, get};

#[test]
fn plain_http_is_no_request_here() {
    let world = World::start(Script::new(), &[]);
    let answer = RawClient::exchange(world.address(), get("/plain"), PATIENCE).unwrap();
    assert!(!answer.text().contains("HTTP/1.1 200"), "{}", answer.text());
    let is_told = || world.front.log().contains("does not speak TLS").then_some(());
    retry_until(PATIENCE, "the reason", is_told).unwrap();
    assert!(world.front.log().contains("ERR_TLS_FAILED"));
    assert!(world.app.requests("/plain").is_empty());
    assert_eq!(world.metric("tollway_handshakes_failed_total"), 1);
}

/// Nothing is waited for without end, and others are served meanwhile.
#[test]
fn a_handshake_that_never_ends_is_ended() {
    let world = World::start(Script::new(), &[]);
    let mut slow = RawClient::connect(world.address()).unwrap();
    slow.send([22, 3, 1, 2]).unwrap();
    let answer = world.ask(world.files.client(), &get("/meanwhile")).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let end = slow.read_to_end(PATIENCE).unwrap();
    assert_ne!(end.end, tollway_testkit::End::TimedOut);
}
