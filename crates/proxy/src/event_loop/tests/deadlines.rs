//! How long a caller waits passes on from hop to hop, and grows shorter.

use super::*;

const FIELD: &str = "x-tollway-timeout-ms";

fn get(world: &World, path: &str, time: &str) -> Stream {
    let mut stream = connect(world.http());
    let request =
        format!("GET {INVOKE}{path} HTTP/1.1\r\nhost: localhost\r\n{FIELD}: {time}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn answer_to(stream: &mut Stream) -> String {
    talk(stream, b"", b"\r\n\r\n")
}

/// What the app sees of the time.
fn left(answer: &str) -> Option<u64> {
    let line = answer.lines().find_map(|line| line.strip_prefix("x-time-left: "))?;
    line.parse().ok()
}

#[test]
fn the_app_sees_what_is_left_of_the_time_of_its_caller() {
    let world = World::new(AppProtocol::Http);
    let answer = answer_to(&mut get(&world, "/", "60000"));
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let first = left(&answer).unwrap();
    assert!((1..=60_000).contains(&first), "{first}");
    // Without a time there is none.
    let request = format!("GET {INVOKE}/ HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let answer = talk(&mut connect(world.http()), request.as_bytes(), b"\r\n\r\n");
    assert!(answer.contains("x-time-left: \r\n"), "{answer}");
}

#[test]
fn the_time_that_a_request_waits_for_the_app_is_taken_off() {
    let world = World::new(AppProtocol::Http);
    world.limit_app(1);
    assert!(answer_to(&mut get(&world, "/", "60000")).starts_with("HTTP/1.1 200 "));
    let stuck = get(&world, "/stuck", "600000");
    advance(SWEEP);
    let mut waiting = get(&world, "/", "60000");
    advance(Duration::from_secs(20));
    drop(stuck);
    let answer = answer_to(&mut waiting);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let left = left(&answer).unwrap();
    assert!((30_000..=40_000).contains(&left), "{left}");
}

#[test]
fn a_caller_gets_an_answer_when_its_time_is_over_and_the_app_is_no_longer_kept_busy() {
    let world = World::new(AppProtocol::Http);
    let begun = now();
    let mut stuck = get(&world, "/stuck", "250");
    let answer = answer_to(&mut stuck);
    let waited = now() - begun;
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(answer.contains("x-tollway-error: ERR_TIMED_OUT\r\n"), "{answer}");
    let time = Duration::from_millis(250);
    assert!((time..time + 3 * SWEEP).contains(&waited), "{waited:?}");
    advance(SWEEP);
    assert!(answer_to(&mut get(&world, "/", "250")).starts_with("HTTP/1.1 200 "));
}

#[test]
fn what_has_no_time_left_does_not_reach_the_app() {
    let world = World::new(AppProtocol::Http);
    let answer = answer_to(&mut get(&world, "/", "0"));
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(!answer.contains("x-path: "), "{answer}");
}

#[test]
fn a_time_that_is_none_is_refused() {
    let world = World::new(AppProtocol::Http);
    for time in ["", "soon", "-1", "+1", "1.5", "1s", "99999999999999999999"] {
        let answer = answer_to(&mut get(&world, "/", time));
        assert!(answer.starts_with("HTTP/1.1 400 "), "`{time}`: {answer}");
    }
    // It has no end that a clock could show.
    let answer = answer_to(&mut get(&world, "/", "18446744073709551615"));
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
