//! A host's conversation with a control plane that runs in the test, by a clock of its own.

use std::sync::Mutex;

use tokio::task::JoinHandle;
use tokio::time::sleep;
use tollway_wire::v1::placement_server::{Placement, PlacementServer};
use tonic::service::Routes;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::super::testing::{LEASE, TestHost, actor, all_shards, give_back, grant, types};
use super::*;
use crate::testing::channel_to;

/// One conversation, as the control plane has it.
struct Conversation {
    requests: Streaming<v1::HostRequest>,
    responses: mpsc::Sender<Result<v1::HostResponse, Status>>,
}

impl Conversation {
    /// The next request; `None` when the host has ended the conversation.
    async fn next(&mut self) -> Option<Step> {
        self.requests.message().await.ok().flatten().map(|message| message.request.unwrap())
    }

    async fn send(&self, response: Answer) {
        self.send_message(v1::HostResponse { response: Some(response) }).await;
    }

    async fn send_message(&self, message: v1::HostResponse) {
        self.responses.send(Ok(message)).await.unwrap();
    }

    /// Reads the first request and gives a lease.
    async fn enter(&mut self) -> v1::Enter {
        let Some(Step::Enter(enter)) = self.next().await else { panic!("a host enters first") };
        let lease_ms = u32::try_from(LEASE.as_millis()).unwrap();
        self.send(Answer::Entered(v1::Entered { lease_ms, refused: Vec::new() })).await;
        enter
    }
}

/// The service, which passes each conversation to the test.
struct Service(mpsc::UnboundedSender<Conversation>);

#[tonic::async_trait]
impl Placement for Service {
    type HostStream = ReceiverStream<Result<v1::HostResponse, Status>>;
    type WatchOwnersStream = ReceiverStream<Result<v1::Owners, Status>>;

    async fn host(
        &self,
        request: Request<Streaming<v1::HostRequest>>,
    ) -> Result<Response<Self::HostStream>, Status> {
        let (responses, outgoing) = mpsc::channel(64);
        let conversation = Conversation { requests: request.into_inner(), responses };
        self.0.send(conversation).map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }

    async fn watch_owners(
        &self,
        _: Request<Streaming<v1::WatchOwnersRequest>>,
    ) -> Result<Response<Self::WatchOwnersStream>, Status> {
        Err(Status::unimplemented("not in these tests"))
    }
}

/// A control plane in memory.
struct Control {
    conversations: mpsc::UnboundedSender<Conversation>,
    /// A connection cannot be opened for as long as this is set.
    refuses: Mutex<Option<String>>,
}

#[tonic::async_trait]
impl ControlLink for Control {
    async fn connect(&self) -> Result<Channel, String> {
        if let Some(reason) = self.refuses.lock().unwrap().clone() {
            return Err(reason);
        }
        let service = PlacementServer::new(Service(self.conversations.clone()));
        channel_to(Routes::new(service)).await
    }

    async fn registered(&self) {}
}

struct World {
    test: TestHost,
    control: Arc<Control>,
    conversations: mpsc::UnboundedReceiver<Conversation>,
    retire: watch::Sender<bool>,
    connected: watch::Receiver<bool>,
    session: JoinHandle<()>,
}

impl World {
    fn start() -> Self {
        let mut test = TestHost::idle(types(None));
        let (conversations, receiver) = mpsc::unbounded_channel();
        let control = Arc::new(Control { conversations, refuses: Mutex::default() });
        let (retire, retired) = watch::channel(false);
        let (connected, is_connected) = watch::channel(false);
        let (_, empty) = mpsc::unbounded_channel();
        let session = Session {
            control: Arc::clone(&control) as Arc<dyn ControlLink>,
            host: Arc::clone(&test.host),
            life: 77,
            attempt: 0,
            shares_types: false,
            given_back: std::mem::replace(&mut test.given_back, empty),
            retire: retired,
            connected,
        };
        let session = tokio::spawn(session.run());
        Self { test, control, conversations: receiver, retire, connected: is_connected, session }
    }

    async fn conversation(&mut self) -> Conversation {
        self.conversations.recv().await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_enters_with_its_types_and_obeys_orders() {
    let mut world = World::start();
    let mut talk = world.conversation().await;
    assert!(!*world.connected.borrow());
    let enter = talk.enter().await;
    assert_eq!((enter.life, enter.attempt), (77, 1));
    let types: Vec<_> = enter.types.iter().map(|held| held.actor_type.as_str()).collect();
    assert_eq!(types, ["Cart"]);
    assert!(enter.types[0].grants.is_empty());
    talk.send_message((&grant(5)).into()).await;
    sleep(Duration::from_millis(1)).await;
    assert!(*world.connected.borrow());
    assert_eq!(world.test.host.epoch(&actor("7")), Some(Epoch(5)));
}

#[tokio::test(start_paused = true)]
async fn a_type_of_another_app_is_not_hosted_until_a_later_answer_allows_it() {
    let mut world = World::start();
    let mut talk = world.conversation().await;
    let Some(Step::Enter(_)) = talk.next().await else { panic!("a host enters first") };
    let refused = |actor_type: &str, code: &str| v1::RefusedType {
        actor_type: actor_type.into(),
        code: code.into(),
        message: "it belongs to another app; ask the operator".into(),
    };
    let refused =
        vec![refused("Cart", "ERR_ACTOR_TYPE_TAKEN"), refused("Other", "ERR_ACTOR_TYPES_EXCEEDED")];
    talk.send(Answer::Entered(v1::Entered { lease_ms: 3_000, refused })).await;
    sleep(Duration::from_millis(1)).await;
    let host = Arc::clone(&world.test.host);
    assert!(*world.connected.borrow() && !host.hosts("Cart"));
    let refusal = host.refusal("Cart").unwrap();
    assert_eq!(refusal.code, tollway_model::ErrorCode::ActorTypeTaken);
    assert_eq!(host.refused().len(), 1, "only of what the app offers");
    drop(talk);
    world.conversation().await.enter().await;
    sleep(Duration::from_millis(1)).await;
    assert!(host.hosts("Cart") && host.refused().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_well_before_it_ends() {
    let mut world = World::start();
    let mut talk = world.conversation().await;
    talk.enter().await;
    talk.send_message((&grant(5)).into()).await;
    let began = tokio::time::Instant::now();
    for _ in 0..5 {
        assert!(matches!(talk.next().await, Some(Step::KeepLease(_))));
        talk.send(Answer::LeaseKept(v1::LeaseKept {})).await;
        sleep(Duration::from_millis(1)).await;
        assert!(world.test.host.epoch(&actor("7")).is_some());
    }
    let each = began.elapsed() / 5;
    assert!(each > LEASE / 4 && each < LEASE / 2, "{each:?}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_answers_is_given_up_before_the_lease_ends() {
    let mut world = World::start();
    let mut silent = world.conversation().await;
    silent.enter().await;
    silent.send_message((&grant(5)).into()).await;
    let began = tokio::time::Instant::now();
    let mut asked = 0;
    while let Some(step) = silent.next().await {
        assert!(matches!(step, Step::KeepLease(_)));
        asked += 1;
    }
    assert_eq!(asked, UNANSWERED);
    let mut talk = world.conversation().await;
    assert!(began.elapsed() < LEASE, "{:?}", began.elapsed());
    let enter = talk.enter().await;
    assert_eq!(enter.attempt, 2);
    let held = tollway_wire::read_grant(&enter.types[0].grants[0]).unwrap();
    assert_eq!(held, (Epoch(5), all_shards()), "what is held is said again");
    sleep(Duration::from_millis(1)).await;
    assert!(world.test.host.epoch(&actor("7")).is_some(), "nothing is lost");
}

#[tokio::test(start_paused = true)]
async fn a_host_tries_again_until_the_control_plane_is_there() {
    let mut world = World::start();
    *world.control.refuses.lock().unwrap() = Some("not yet".to_owned());
    // The first connection may have been opened by then.
    let first = world.conversations.try_recv();
    assert!(first.is_err());
    sleep(Duration::from_secs(10)).await;
    assert!(world.conversations.try_recv().is_err());
    *world.control.refuses.lock().unwrap() = None;
    let began = tokio::time::Instant::now();
    let enter = world.conversation().await.enter().await;
    assert!(began.elapsed() <= Duration::from_millis(500), "{:?}", began.elapsed());
    assert!(enter.attempt > 20, "{}", enter.attempt);
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_back_is_given_back_by_epoch() {
    let mut world = World::start();
    let mut talk = world.conversation().await;
    talk.enter().await;
    talk.send_message((&grant(5)).into()).await;
    talk.send_message((&give_back()).into()).await;
    let Some(Step::GivenBack(back)) = talk.next().await else { panic!("shards are given back") };
    assert_eq!(back.actor_type, "Cart");
    let grants: Vec<_> = back.grants.iter().map(tollway_wire::read_grant).collect();
    assert_eq!(grants, [Ok((Epoch(5), all_shards()))]);
    assert!(world.test.host.holds_nothing());
}

#[tokio::test(start_paused = true)]
async fn a_host_that_retires_leaves_when_all_is_given_back() {
    let mut world = World::start();
    let mut talk = world.conversation().await;
    talk.enter().await;
    talk.send_message((&grant(5)).into()).await;
    sleep(Duration::from_millis(1)).await;
    world.retire.send_replace(true);
    assert!(matches!(talk.next().await, Some(Step::Retire(_))));
    talk.send_message((&give_back()).into()).await;
    assert!(matches!(talk.next().await, Some(Step::GivenBack(_))));
    assert!(matches!(talk.next().await, Some(Step::Leave(_))));
    assert!(!world.session.is_finished());
    talk.send(Answer::Left(v1::Left {})).await;
    world.session.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_host_that_holds_nothing_leaves_at_once() {
    let mut world = World::start();
    let mut talk = world.conversation().await;
    talk.enter().await;
    sleep(Duration::from_millis(1)).await;
    world.retire.send_replace(true);
    assert!(matches!(talk.next().await, Some(Step::Retire(_))));
    assert!(matches!(talk.next().await, Some(Step::Leave(_))));
}

#[tokio::test(start_paused = true)]
async fn a_host_does_not_wait_for_ever_to_leave() {
    let mut world = World::start();
    let mut talk = world.conversation().await;
    talk.enter().await;
    talk.send_message((&grant(5)).into()).await;
    sleep(Duration::from_millis(1)).await;
    let began = tokio::time::Instant::now();
    world.retire.send_replace(true);
    let answering = tokio::spawn(async move {
        while let Some(step) = talk.next().await {
            if matches!(step, Step::KeepLease(_)) {
                talk.send(Answer::LeaseKept(v1::LeaseKept {})).await;
            }
        }
    });
    world.session.await.unwrap();
    let drain = Duration::from_secs(2);
    let took = began.elapsed();
    assert!(took >= drain + LEAVE && took < drain + LEAVE + Duration::from_millis(50), "{took:?}");
    answering.abort();
}

#[tokio::test(start_paused = true)]
async fn a_malformed_order_ends_the_connection_and_not_the_host() {
    let mut world = World::start();
    let mut talk = world.conversation().await;
    talk.enter().await;
    let malformed = v1::Granted { actor_type: "Cart".to_owned(), grant: None };
    talk.send(Answer::Granted(malformed)).await;
    assert!(talk.next().await.is_none());
    let enter = world.conversation().await.enter().await;
    assert_eq!(enter.attempt, 2);
    assert!(!world.session.is_finished());
}
