//! An app over a stream: what it gets for a turn, and what its messages mean.

use tokio_stream::StreamExt as _;
use tollway_wire::dapr::proto::runtime::v1::{
    ActorEntityConfig, SubscribeActorEventsRequestDeactivateResponseAlpha1 as Deactivated,
    SubscribeActorEventsRequestFailedAlpha1 as Failed,
    SubscribeActorEventsRequestInvokeResponseAlpha1 as InvokeAnswer,
    SubscribeActorEventsRequestReminderResponseAlpha1 as FireAnswer,
};

use super::super::testing::{actor, fields, method};
use super::*;
use crate::actors::app::Data;

struct World {
    app: Arc<StreamApp>,
    sent: ToAppStream,
}

impl World {
    fn new() -> Self {
        let (messages, receiver) = mpsc::channel(MESSAGES);
        let waiting = Arc::new(PendingAnswers::default());
        let clock = Clock::tokio();
        let sent = ToAppStream { messages: receiver, waiting: Arc::clone(&waiting), clock };
        Self { app: Arc::new(StreamApp { messages, waiting, last: AtomicU64::new(1) }), sent }
    }

    fn run(
        &self,
        what: TurnKind,
        within: Duration,
    ) -> tokio::task::JoinHandle<Result<Answer, Unanswered>> {
        let turn = Turn {
            actor: actor("7"),
            what,
            fields: fields(&[("x-mine", "1")]),
            body: bytes::Bytes::from_static(b"body"),
        };
        let app = Arc::clone(&self.app);
        let lease = TurnLease { number: 1, until: Clock::tokio().now() + within };
        tokio::spawn(async move { app.run(turn, lease).await })
    }

    async fn next(&mut self) -> ToApp {
        self.sent.next().await.unwrap().unwrap().response_type.unwrap()
    }
}

const LONG: Duration = Duration::from_secs(600);

fn fire(id: String, cancel: bool) -> FromApp {
    FromApp::ReminderResponse(FireAnswer { id, cancel })
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_waits_too_long_for_the_app_is_left_out() {
    let mut world = World::new();
    let late = world.run(method("late"), Duration::from_millis(20));
    tokio::time::sleep(Duration::from_millis(30)).await;
    let in_time = world.run(method("in-time"), LONG);
    let ToApp::InvokeRequest(sent) = world.next().await else { panic!("a call") };
    assert_eq!(sent.method, "in-time");
    assert_eq!(late.await.unwrap().unwrap_err(), Unanswered::TooLate);
    let answer = InvokeAnswer { id: sent.id, ..InvokeAnswer::default() };
    world.app.receive(Some(FromApp::InvokeResponse(answer))).unwrap();
    assert!(in_time.await.unwrap().is_ok());
    assert!(world.app.waiting.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_method_is_a_message_with_metadata_and_its_answer_has_fields() {
    let mut world = World::new();
    let turn = world.run(method("add"), LONG);
    let ToApp::InvokeRequest(sent) = world.next().await else { panic!("a call") };
    assert_eq!((&*sent.actor_type, &*sent.actor_id, &*sent.method), ("Cart", "7", "add"));
    assert_eq!((&sent.data[..], &*sent.metadata["x-mine"]), (&b"body"[..], "1"));
    let metadata = [("x-own", "2"), ("not a name", "3")];
    let metadata = metadata.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let data = b"done".to_vec();
    let answer = InvokeAnswer { id: sent.id, data, metadata: metadata.into(), error: false };
    world.app.receive(Some(FromApp::InvokeResponse(answer))).unwrap();
    let answer = turn.await.unwrap().unwrap();
    assert_eq!((&answer.body[..], answer.fields.len()), (&b"done"[..], 1));
    assert_eq!(answer.fields["x-own"], "2");
}

#[tokio::test(start_paused = true)]
async fn timers_and_reminders_are_messages_and_their_answers_can_cancel() {
    let mut world = World::new();
    let event = || Event {
        due_time: "1s".to_owned(),
        period: "2s".to_owned(),
        callback: "tick".to_owned(),
        data: Some(Data::of_bytes(b"hello")),
    };
    let timer = world.run(TurnKind::Timer { name: "t".to_owned(), event: event() }, LONG);
    let ToApp::TimerRequest(sent) = world.next().await else { panic!("a timer") };
    assert_eq!((&*sent.name, &*sent.due_time, &*sent.period), ("t", "1s", "2s"));
    assert_eq!((&*sent.callback, sent.data), ("tick", event().data.map(|data| data.any())));
    world.app.receive(Some(fire(sent.id, true))).unwrap();
    assert!(timer.await.unwrap().unwrap().cancels);
    let reminder = world.run(TurnKind::Reminder { name: "r".to_owned(), event: event() }, LONG);
    let ToApp::ReminderRequest(sent) = world.next().await else { panic!("a reminder") };
    world.app.receive(Some(fire(sent.id, false))).unwrap();
    assert!(!reminder.await.unwrap().unwrap().cancels);
}

#[tokio::test(start_paused = true)]
async fn answers_may_come_in_another_order() {
    let mut world = World::new();
    let (first, second) = (world.run(method("a"), LONG), world.run(method("b"), LONG));
    let mut ids = Vec::new();
    for _ in 0..2 {
        let ToApp::InvokeRequest(sent) = world.next().await else { panic!("a call") };
        ids.push((sent.id, sent.method));
    }
    for (id, method) in ids.into_iter().rev() {
        let answer = InvokeAnswer { id, data: method.into(), ..InvokeAnswer::default() };
        world.app.receive(Some(FromApp::InvokeResponse(answer))).unwrap();
    }
    let answers = (first.await.unwrap().unwrap().body, second.await.unwrap().unwrap().body);
    assert_eq!((&answers.0[..], &answers.1[..]), (&b"a"[..], &b"b"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_turn_fails_when_the_stream_ends() {
    let mut world = World::new();
    let turn = world.run(method("a"), LONG);
    world.next().await;
    world.app.waiting.lock().clear();
    let Unanswered::Failed(problem) = turn.await.unwrap().unwrap_err() else { panic!("it failed") };
    assert!(problem.text.contains("stream of actor events has ended"), "{}", problem.text);
    let World { app, sent } = world;
    drop(sent);
    let turn = Turn {
        actor: actor("7"),
        what: method("b"),
        fields: HeaderMap::new(),
        body: bytes::Bytes::new(),
    };
    assert!(app.run(turn, TurnLease::default()).await.is_err());
    assert!(app.waiting.lock().is_empty(), "nothing waits for an answer that cannot come");
}

#[tokio::test(start_paused = true)]
async fn messages_out_of_place_end_the_stream() {
    let world = World::new();
    assert_eq!(world.app.receive(None).unwrap_err().code(), tonic::Code::InvalidArgument);
    let again = world.app.receive(Some(FromApp::InitialRequest(Initial::default())));
    assert_eq!(again.unwrap_err().code(), tonic::Code::InvalidArgument);
    let unknown = Deactivated { id: "99".to_owned() };
    assert!(world.app.receive(Some(FromApp::DeactivateResponse(unknown))).is_ok());
}

#[test]
fn failures_of_the_app_are_errors_in_daprs_words() {
    let failed = |code, message: &str| {
        let failed = Failed { id: "1".to_owned(), code, message: message.to_owned() };
        answer(FromApp::RequestFailed(failed), Some("add")).unwrap_err().text
    };
    assert!(failed(NOT_FOUND, "x").ends_with(": actor method not found: add"));
    assert!(failed(13, "x").ends_with(": error from actor service: x"));
    let of_timer = Failed { id: "1".to_owned(), code: NOT_FOUND, message: "x".to_owned() };
    let text = answer(FromApp::RequestFailed(of_timer), None).unwrap_err().text;
    assert!(text.ends_with(": error from actor service: x"), "{text}");
}

#[test]
fn a3_an_answer_that_is_an_error_of_the_actor_is_handed_on() {
    let error = InvokeAnswer { error: true, data: b"no".to_vec(), ..InvokeAnswer::default() };
    let answer = answer(FromApp::InvokeResponse(error), Some("add")).unwrap();
    assert_eq!(
        (&answer.body[..], &answer.fields["x-daprerrorresponseheader"]),
        (&b"no"[..], &HeaderValue::from_static("true"))
    );
}

#[test]
fn a3_the_chain_of_calls_is_in_the_metadata_as_dapr_names_it() {
    let read = metadata(&fields(&[("dapr-reentrancy-id", "r"), ("x-mine", "1")]));
    assert_eq!((&*read["Dapr-Reentrancy-Id"], &*read["x-mine"], read.len()), ("r", "1", 2));
}

/// The types of a stream with these names.
fn of_types(names: &[&str]) -> Types {
    let entities = names.iter().map(|&name| name.to_owned()).collect();
    offered(Initial { entities, ..Initial::default() }).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a3_a_turn_goes_to_the_newest_stream_that_offers_its_type() {
    let streams = Streams::new();
    let (mut one, mut two) = (World::new(), World::new());
    let first = streams.enter(of_types(&["Cart", "Shop"]), Arc::clone(&one.app)).unwrap();
    assert!(first.is_to_be_hosted);
    let offered = streams.offered();
    // One without types, as an SDK opens it to find out whether there are such streams.
    let probe = streams.enter(Types::new(), World::new().app).unwrap();
    assert!(!probe.is_to_be_hosted && !offered.has_changed().unwrap());
    let lease = || TurnLease { number: 1, until: Clock::tokio().now() + LONG };
    let turn = |kind: &str| Turn {
        actor: Actor { actor_type: kind.into(), id: "7".into() },
        what: method("m"),
        fields: HeaderMap::new(),
        body: bytes::Bytes::new(),
    };
    let begin = |kind: &str| {
        let (streams, turn) = (Arc::clone(&streams), turn(kind));
        tokio::spawn(async move { streams.run(turn, lease()).await })
    };
    begin("Cart");
    assert!(matches!(one.next().await, ToApp::InvokeRequest(_)));
    streams.leave(probe.number);
    assert!(!offered.has_changed().unwrap());
    // A second one with types takes over; what it does not offer stays with the first.
    let second = streams.enter(of_types(&["Cart"]), Arc::clone(&two.app)).unwrap();
    assert!(!second.is_to_be_hosted && !offered.has_changed().unwrap());
    begin("Cart");
    assert!(matches!(two.next().await, ToApp::InvokeRequest(_)));
    begin("Shop");
    assert!(matches!(one.next().await, ToApp::InvokeRequest(_)));
    // Each may end before the other.
    streams.leave(second.number);
    begin("Cart");
    assert!(matches!(one.next().await, ToApp::InvokeRequest(_)));
    assert!(!streams.end_hosting(), "types are offered");
    streams.leave(first.number);
    assert!(offered.borrow().is_empty() && streams.end_hosting());
    assert!(streams.run(turn("Cart"), lease()).await.is_err());
    assert!(streams.enter(of_types(&["Cart"]), Arc::clone(&one.app)).unwrap().is_to_be_hosted);
    for _ in 1..ACTOR_STREAMS {
        assert!(streams.enter(Types::new(), Arc::clone(&one.app)).is_some());
    }
    assert!(streams.enter(Types::new(), one.app).is_none());
}

#[test]
fn an_app_offers_types_by_its_first_message() {
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let special = ActorEntityConfig {
        entities: vec!["Meter".to_owned(), "Missing".to_owned()],
        actor_idle_timeout: seconds(5),
        drain_rebalanced_actors: Some(false),
        reentrancy: Some(ActorReentrancyConfig { enabled: true, max_stack_depth: Some(-1) }),
        ..ActorEntityConfig::default()
    };
    let initial = Initial {
        entities: vec!["Cart".to_owned(), "Meter".to_owned()],
        actor_idle_timeout: seconds(60),
        drain_ongoing_call_timeout: seconds(0),
        entities_config: vec![special],
        ..Initial::default()
    };
    let types = offered(initial).unwrap();
    assert_eq!(types.len(), 2);
    let (cart, meter) = (&types["Cart"], &types["Meter"]);
    assert_eq!((cart.idle.as_secs(), cart.drain.as_secs(), cart.reentrancy), (60, 2, None));
    assert_eq!((meter.idle.as_secs(), meter.drain.as_secs()), (5, 0));
    assert_eq!(meter.reentrancy, Some(32), "a depth that is none is the default");
    let nameless = Initial { entities: vec![String::new()], ..Initial::default() };
    assert!(offered(nameless).unwrap_err().contains("actor type"));
}
