//! Resiliency files and actors: methods that are called again, end in time, or are not called, each by
//! the scope that their type has.

use tollway_testkit::retry_until;

use super::resilience::Ruled;
use tollway_tests::user::PATIENCE;

fn until_hosted(ruled: &Ruled, actor_type: &str) {
    let path = format!("actors/{actor_type}/0/method/hello");
    let hosted = retry_until(PATIENCE, "a host of actors", || {
        (ruled.call(&path, "").0 == 200).then_some(())
    });
    hosted.unwrap();
}

/// Has methods of actors of a type fail three times, so that breakers open.
fn fail_thrice(ruled: &Ruled, actor_type: &str, ids: [u8; 3]) {
    for id in ids {
        let (status, reported) =
            ruled.call(&format!("actors/{actor_type}/{id}/method/fails/9/x"), "");
        assert!(status == 500 && reported.contains("ERR_ACTOR_INVOKE_METHOD"), "{reported}");
    }
}

/// Nothing is called, since this breaker is open.
#[track_caller]
fn check_open(ruled: &Ruled, actor: &str, breaker: &str) {
    let key = actor.replace('/', "-");
    let (status, reported) = ruled.call(&format!("actors/{actor}/method/fails/0/{key}"), "");
    assert!(status == 503 && reported.contains("ERR_CIRCUIT_OPEN"), "{reported}");
    assert!(reported.contains(breaker), "{reported}");
    assert_eq!(ruled.app.seen(&key), 0, "{actor}");
}

#[track_caller]
fn check_called(ruled: &Ruled, actor: &str) {
    let (status, reported) = ruled.call(&format!("actors/{actor}/method/fails/0/y"), "hello");
    assert!(status == 200 && reported.starts_with("hello of caller"), "{reported}");
}

#[test]
fn a_method_that_fails_is_retried_by_the_rules_of_the_file() {
    let ruled = Ruled::start();
    until_hosted(&ruled, "Cart");
    let (status, reported) = ruled.call("actors/Cart/1/method/fails/2/a", "hello");
    assert!(status == 200 && reported.starts_with("hello of caller"), "{reported}");
    assert_eq!(ruled.app.seen("a"), 3);
    let (status, reported) = ruled.call("actors/Cart/1/method/fails/9/b", "");
    assert!(status == 500 && reported.contains("ERR_ACTOR_INVOKE_METHOD"), "{reported}");
    assert_eq!(ruled.app.seen("b"), 4);
    // Others are not.
    let (status, reported) = ruled.call("actors/Other/1/method/fails/2/c", "");
    assert!(status == 500 && reported.contains("did not find address for actor"), "{reported}");
}

#[test]
fn a_method_that_takes_too_long_ends_for_its_caller() {
    let ruled = Ruled::start();
    until_hosted(&ruled, "Slow");
    let (status, reported) = ruled.call("actors/Slow/1/method/slow/1/a", "");
    assert!(
        status == 504 && reported.contains("ERR_TIMED_OUT") && reported.contains("400ms"),
        "{reported}"
    );
    assert_eq!(ruled.app.seen("a"), 1);
    // The turn continues: the next one waits for it, and others for none.
    let (status, reported) = ruled.call("actors/Slow/1/method/slow/0/b", "");
    assert!(status == 504 && reported.contains("ERR_TIMED_OUT"), "{reported}");
    assert_eq!(ruled.app.seen("b"), 0);
    check_called(&ruled, "Slow/2");
}

#[test]
fn a_breaker_of_actors_covers_its_scope() {
    let ruled = Ruled::start();
    for actor_type in ["ById", "ByType", "ByBoth"] {
        until_hosted(&ruled, actor_type);
    }
    let of_id = |actor_type: &str| format!("actor `{actor_type}||1`");
    let of_type = |actor_type: &str| format!("actors of type `{actor_type}`");
    fail_thrice(&ruled, "ById", [1, 1, 1]);
    check_open(&ruled, "ById/1", &of_id("ById"));
    check_called(&ruled, "ById/2");
    fail_thrice(&ruled, "ByType", [1, 2, 3]);
    check_open(&ruled, "ByType/1", &of_type("ByType"));
    check_open(&ruled, "ByType/4", &of_type("ByType"));
    fail_thrice(&ruled, "ByBoth", [1, 2, 3]);
    check_open(&ruled, "ByBoth/4", &of_type("ByBoth"));
    let again = retry_until(PATIENCE, "calls being made again", || {
        (ruled.call("actors/ById/1/method/fails/0/z", "").0 == 200).then_some(())
    });
    again.unwrap();
}
