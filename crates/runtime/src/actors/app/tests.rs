//! What an app over HTTP gets for a turn, and what its responses mean.

use super::super::testing::{actor, fields, method};
use super::*;
use crate::testing::{Received, ScriptedLoopback, response};

fn app(
    respond: impl Fn(&Received) -> hyper::Response<Body> + Send + Sync + 'static,
) -> (HttpApp, Arc<ScriptedLoopback>) {
    let loopback = Arc::new(ScriptedLoopback::new(move |received| Ok(respond(received))));
    let used: Arc<dyn Loopback> = Arc::clone(&loopback) as Arc<dyn Loopback>;
    (HttpApp { loopback: used, clock: Clock::tokio(), message_bytes: 100 }, loopback)
}

fn lease() -> TurnLease {
    TurnLease { number: 9, until: Clock::tokio().now() + std::time::Duration::from_secs(1) }
}

fn turn(what: TurnKind) -> Turn {
    let fields = fields(&[("x-mine", "1")]);
    Turn { actor: actor("a b"), what, fields, body: Bytes::from_static(b"body") }
}

fn event(data: Option<&'static str>) -> Event {
    Event {
        due_time: "1s".to_owned(),
        period: "2s".to_owned(),
        callback: "tick".to_owned(),
        data: data.map(|text| Data(Bytes::from_static(text.as_bytes()))),
    }
}

fn failure(unanswered: Unanswered) -> String {
    match unanswered {
        Unanswered::Failed(problem) => {
            assert_eq!(problem.code, ErrorCode::ActorInvoke);
            problem.text.trim_start_matches("error invoke actor method: ").to_owned()
        }
        Unanswered::TooLate => "too late".to_owned(),
    }
}

#[test]
fn names_stand_in_paths_as_one_part_each() {
    let actor = Actor { actor_type: "Cart|x".into(), id: "a b/ü@%".into() };
    assert_eq!(path_of(&actor), "/actors/Cart%7Cx/a%20b%2F%C3%BC%40%25");
    let path = method_path(&actor, "add/one more", Some("n=1"));
    assert!(path.ends_with("/method/add/one%20more?n=1"), "{path}");
    assert!(event_path(&actor, "timer", "a/b").ends_with("/method/timer/a%2Fb"));
}

#[tokio::test(start_paused = true)]
async fn a_method_goes_to_the_app_with_fields_body_and_lease() {
    let (app, loopback) = app(|_| response(200, &[("x-own", "2")], "done"));
    let answer = app.run(turn(method("add")), lease()).await.unwrap();
    assert_eq!((&answer.body[..], &answer.fields["x-own"]), (&b"done"[..], &HeaderValue::from(2)));
    assert!(!answer.cancels);
    let [received] = &loopback.received()[..] else { panic!("one request") };
    assert_eq!(received.method, Method::PUT);
    assert_eq!(received.path, "/actors/Cart/a%20b/method/add");
    assert_eq!((received.field("x-mine"), &received.body[..]), ("1", &b"body"[..]));
    assert_eq!((received.field("x-tollway-to"), received.field("x-tollway-lease")), ("app", "9"));
    let by: u64 = received.field("x-tollway-begin-by").parse().unwrap();
    assert_eq!(u128::from(by), lease().until.as_nanos());
}

#[tokio::test(start_paused = true)]
async fn a19_timers_and_reminders_are_documents_of_their_routes() {
    let (app, loopback) = app(|_| response(200, &[], ""));
    let timer = TurnKind::Timer { name: "a/b".to_owned(), event: event(Some(r#"{"n": 1.0}"#)) };
    let reminder = TurnKind::Reminder { name: "r".to_owned(), event: event(None) };
    app.run(turn(timer), lease()).await.unwrap();
    app.run(turn(reminder), lease()).await.unwrap();
    let [timer, reminder] = &loopback.received()[..] else { panic!("two requests") };
    assert_eq!(timer.path, "/actors/Cart/a%20b/method/timer/a%2Fb");
    assert_eq!(timer.field("content-type"), "application/json");
    let document = r#"{"data":{"n":1.0},"callback":"tick","dueTime":"1s","period":"2s"}"#;
    assert_eq!(timer.body, document);
    assert_eq!(reminder.path, "/actors/Cart/a%20b/method/remind/r");
    assert_eq!(reminder.body, r#"{"dueTime":"1s","period":"2s"}"#);
}

#[tokio::test(start_paused = true)]
async fn only_the_answer_to_a_fire_can_cancel() {
    for (value, cancels) in [("true", true), ("false", false), ("", false)] {
        let (app, _) = app(move |_| response(200, &[("x-daprremindercancel", value)], ""));
        let fires = [
            TurnKind::Timer { name: "t".to_owned(), event: event(None) },
            TurnKind::Reminder { name: "r".to_owned(), event: event(None) },
        ];
        for fire in fires {
            assert_eq!(app.run(turn(fire), lease()).await.unwrap().cancels, cancels, "{value}");
        }
        assert!(!app.run(turn(method("m")), lease()).await.unwrap().cancels);
    }
}

#[tokio::test(start_paused = true)]
async fn a13_statuses_of_the_app_are_errors_in_daprs_words() {
    for (status, words) in [
        (404, "actor method not found: actors/Cart/a b/method/m"),
        (500, "error from actor service: (500) sorry"),
        (302, "error from actor service: (302) sorry"),
    ] {
        let (app, _) = app(move |_| response(status, &[], "sorry"));
        let unanswered = app.run(turn(method("m")), lease()).await.unwrap_err();
        assert_eq!(failure(unanswered), words);
    }
    let (app, _) = app(|_| response(204, &[], ""));
    assert!(app.run(turn(method("m")), lease()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_data_loop_has_its_message() {
    let envelope = r#"{"errorCode":"ERR_APP_UNREACHABLE","message":"no app"}"#;
    let (app, _) = app(move |_| response(502, &[(ERROR_FIELD, "ERR_APP_UNREACHABLE")], envelope));
    assert_eq!(failure(app.run(turn(method("m")), lease()).await.unwrap_err()), "no app");
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_was_not_sent_is_too_late_only_when_the_lease_is_over() {
    let unsent = |_: &Received| {
        let fields = [(ERROR_FIELD, "ERR_SILENT"), (UNPROCESSED_FIELD, "1")];
        response(504, &fields, r#"{"message":"not sent"}"#)
    };
    let (app, _) = app(unsent);
    assert_eq!(failure(app.run(turn(method("m")), lease()).await.unwrap_err()), "not sent");
    let over = TurnLease { until: Clock::tokio().now(), ..lease() };
    assert_eq!(failure(app.run(turn(method("m")), over).await.unwrap_err()), "too late");
    let (sent, _) = self::app(|_| response(504, &[(ERROR_FIELD, "ERR_SILENT")], "{}"));
    assert_eq!(failure(sent.run(turn(method("m")), over).await.unwrap_err()), "{}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_larger_than_a_message_is_an_error() {
    let (app, _) = app(|_| response(200, &[], &"x".repeat(101)));
    let unanswered = app.run(turn(method("m")), lease()).await.unwrap_err();
    assert!(failure(unanswered).contains("length limit"));
}

#[tokio::test(start_paused = true)]
async fn an_actor_is_deactivated_by_delete_on_its_path() {
    let (app, loopback) = app(|_| response(500, &[], ""));
    app.deactivate(&actor("a b")).await;
    let [received] = &loopback.received()[..] else { panic!("one request") };
    assert_eq!((&received.method, &*received.path), (&Method::DELETE, "/actors/Cart/a%20b"));
}

#[test]
fn bytes_over_grpc_are_a_text_of_base64_in_documents() {
    let data = Data::of_bytes(&[0, 255]);
    assert_eq!(data.0, "\"AP8=\"");
    let any = data.any();
    assert_eq!(any.type_url, BYTES_TYPE);
    assert_eq!(Vec::<u8>::decode(&any.value[..]).unwrap(), b"\"AP8=\"");
}
