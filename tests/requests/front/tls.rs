//! What is no TLS, or none that is spoken here.

use tollway_testkit::{End, RawClient, begun_hello, peak_resident_bytes, retry_until};

use crate::front::world::{PATIENCE, World, get};
use tollway_tests::scripted_app::Script;

#[test]
fn plain_http_is_no_request_here() {
    let world = World::start(Script::new(), &[]);
    let answer = RawClient::exchange(world.address(), get("/plain"), PATIENCE).unwrap();
    assert!(!answer.text().contains("HTTP/1.1 200"), "{}", answer.text());
    let is_told = || world.front.log().contains("does not speak TLS").then_some(());
    retry_until(PATIENCE, "the reason", is_told).unwrap();
    assert!(world.front.log().contains("ERR_TLS_FAILED"));
    assert!(world.app.requests("/plain").is_empty());
    assert_eq!(world.metric("tollway_tls_handshake_failures_total"), 1);
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
    assert_ne!(end.end, End::TimedOut);
}

/// Bytes held for an unauthenticated client are bounded in size and in time.
#[test]
fn long_hellos_that_stop_short_take_little_more_than_their_bytes_and_end() {
    const CROWD: usize = 200;
    const KEPT_BYTES_MAX: usize = 64 * 1024 - 1;
    // The session and the connection apart from their held bytes, and what the process needs once.
    const EACH: usize = 16 * 1024;
    const ONCE: usize = 4 << 20;
    let world = World::start(Script::new(), &["--limit", "handshake_ms=5000"]);
    let memory = || peak_resident_bytes(world.front.pid()).unwrap();
    let before = memory();
    let hello = begun_hello(KEPT_BYTES_MAX);
    let begin = || {
        let mut client = RawClient::connect(world.address()).unwrap();
        client.send(&hello).unwrap();
        client
    };
    let crowd: Vec<RawClient> = std::iter::repeat_with(begin).take(CROWD).collect();
    let answer = world.ask(world.files.client(), &get("/meanwhile")).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    for mut client in crowd {
        assert_ne!(client.read_to_end(PATIENCE).unwrap().end, End::TimedOut);
    }
    assert_eq!(world.metric("tollway_tls_handshake_failures_total"), CROWD as u64);
    assert!(world.front.log().contains("did not end within 5 s"), "{}", world.front.log());
    let (grown, most) = (memory() - before, CROWD * (KEPT_BYTES_MAX + EACH) + ONCE);
    assert!(grown <= most as u64, "{grown} bytes for {CROWD} hellos, more than {most}");
}
