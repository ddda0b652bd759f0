//! Apps that run their actors over a stream which they open: streams that are refused, and an app's
//! errors on a stream.

use std::net::SocketAddr;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tollway_wire::dapr::proto::runtime::v1::subscribe_actor_events_request_alpha1::RequestType as FromApp;
use tollway_wire::dapr::proto::runtime::v1::subscribe_actor_events_response_alpha1::ResponseType as ToApp;
use tollway_wire::dapr::proto::runtime::v1::{
    InvokeActorRequest, SubscribeActorEventsRequestAlpha1 as Said,
    SubscribeActorEventsRequestFailedAlpha1 as Failed,
    SubscribeActorEventsRequestInitialAlpha1 as Initial,
    SubscribeActorEventsRequestInvokeResponseAlpha1 as Answered,
    SubscribeActorEventsResponseAlpha1 as Asked,
};
use tonic::{Code, Status, Streaming};

use super::app::Log;
use super::refusals::client;
use super::{CONFIG, Replica, envelope, invoke, until_hosted};
use tollway_tests::mesh::Mesh;

/// What an app offers.
fn offer(entities: &[&str]) -> FromApp {
    let entities = entities.iter().map(|&name| name.to_owned()).collect();
    FromApp::InitialRequest(Initial { entities, ..Initial::default() })
}

fn said(what: FromApp) -> Said {
    Said { request_type: Some(what) }
}

/// The app's end of a stream.
struct Stream {
    says: mpsc::Sender<Said>,
    hears: Streaming<Asked>,
}

impl Stream {
    /// Opens one and sends this.
    async fn open(listener: SocketAddr, first: Said) -> Result<Self, Status> {
        let (says, spoken) = mpsc::channel(16);
        says.send(first).await.unwrap();
        let mut dapr = client(listener).await;
        let hears = dapr.subscribe_actor_events_alpha1(ReceiverStream::new(spoken)).await?;
        Ok(Self { says, hears: hears.into_inner() })
    }

    /// Answers each call with this name, `err` as an error of the actor, for as long as the stream is
    /// open.
    async fn serve_as(mut self, name: &str) {
        while let Ok(Some(Asked { response_type: Some(asked) })) = self.hears.message().await {
            let ToApp::InvokeRequest(call) = asked else { continue };
            let error = call.method == "err";
            let data = name.as_bytes().to_vec();
            let answer = Answered { id: call.id, data, error, ..Answered::default() };
            if self.says.send(said(FromApp::InvokeResponse(answer))).await.is_err() {
                return;
            }
        }
    }

    /// Answers calls for as long as the stream is open: `METHOD/CODE` fails with that code.
    async fn serve(mut self) {
        while let Ok(Some(Asked { response_type: Some(asked) })) = self.hears.message().await {
            let ToApp::InvokeRequest(call) = asked else { continue };
            let id = call.id;
            let answer = match call.method.split_once('/') {
                Some((method, code)) => FromApp::RequestFailed(Failed {
                    id,
                    code: code.parse().unwrap(),
                    message: format!("{method} is broken"),
                }),
                None => {
                    FromApp::InvokeResponse(Answered { id, data: call.data, ..Answered::default() })
                }
            };
            if self.says.send(said(answer)).await.is_err() {
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_not_for_an_app_that_is_called_over_http() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let host = Replica::start(&mesh.west, "cart", "one", CONFIG, &Log::default()).await;
    let refused = Stream::open(host.sidecar.grpc(), said(offer(&["Cart"]))).await.err().unwrap();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("--app-protocol grpc"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_begins_with_what_the_app_offers() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let app = tokio::task::block_in_place(|| mesh.west.sidecar("cart", &[]));
    let answer = FromApp::InvokeResponse(Answered::default());
    for (first, words) in [
        (said(answer), "the first message says what the app offers"),
        (Said { request_type: None }, "the first message says what the app offers"),
        (said(offer(&[""])), "actor type"),
        (said(offer(&[&"x".repeat(300)])), "actor type"),
    ] {
        let refused = Stream::open(app.grpc(), first).await.err().unwrap();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(words), "{refused}");
    }
    // And sends it once.
    let mut twice = Stream::open(app.grpc(), said(offer(&["Cart"]))).await.unwrap();
    let opened = twice.hears.message().await.unwrap().unwrap().response_type;
    assert!(matches!(opened, Some(ToApp::InitialResponse(_))), "{opened:?}");
    twice.says.send(said(offer(&["Cart"]))).await.unwrap();
    let ended = twice.hears.message().await.unwrap_err();
    assert_eq!(ended.code(), Code::InvalidArgument, "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_an_app_over_a_stream_reach_its_callers() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let (app, caller) =
        tokio::task::block_in_place(|| (mesh.west.sidecar("cart", &[]), mesh.west.caller(&[])));
    let stream = Stream::open(app.grpc(), said(offer(&["Cart"]))).await.unwrap();
    let serving = tokio::spawn(stream.serve());
    until_hosted(caller.http(), "Cart/1").await;
    assert_eq!(invoke(caller.http(), "Cart/1", "say", "x").await, (200, "x".to_owned()));
    for (method, words) in [
        ("add/13", "error from actor service: add is broken"),
        ("add/5", "actor method not found: add/5"),
    ] {
        let (status, text) = invoke(caller.http(), "Cart/1", method, "").await;
        let (word, message) = envelope(&text);
        assert_eq!((status, word.as_str()), (500, "ERR_ACTOR_INVOKE_METHOD"), "{text}");
        assert_eq!(message, format!("error invoke actor method: {words}"));
    }
    // With the stream the host is gone.
    serving.abort();
    let began = std::time::Instant::now();
    loop {
        let (status, text) = invoke(caller.http(), "Cart/1", "say", "").await;
        if status == 404 {
            break assert_eq!(envelope(&text).0, "ERR_ACTOR_NO_ADDRESS");
        }
        assert!(began.elapsed() < super::PATIENCE, "{status} {text}");
    }
}

/// Calls until this is the answer: a stream is opened and ended without a sign for others.
async fn until_answered(listener: SocketAddr, actor: &str, by: &str) {
    let began = std::time::Instant::now();
    loop {
        let (status, text) = invoke(listener, actor, "say", "").await;
        if (status, text.as_str()) == (200, by) {
            return;
        }
        assert!(began.elapsed() < super::PATIENCE, "{actor}: {status} {text}");
    }
}

/// The harm: an SDK's look whether there are such streams took the app's actors away for good.
#[tokio::test(flavor = "multi_thread")]
async fn a3_a_stream_without_types_takes_no_calls_and_one_with_types_takes_over() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let (app, caller) =
        tokio::task::block_in_place(|| (mesh.west.sidecar("cart", &[]), mesh.west.caller(&[])));
    let one = Stream::open(app.grpc(), said(offer(&["Cart"]))).await.unwrap();
    let one = tokio::spawn(one.serve_as("one"));
    until_hosted(caller.http(), "Cart/1").await;
    let mut probe = Stream::open(app.grpc(), said(offer(&[]))).await.unwrap();
    let opened = probe.hears.message().await.unwrap().unwrap().response_type;
    assert!(matches!(opened, Some(ToApp::InitialResponse(_))), "{opened:?}");
    for actor in ["Cart/1", "Cart/2"] {
        assert_eq!(invoke(caller.http(), actor, "say", "").await, (200, "one".to_owned()));
    }
    drop(probe);
    for id in 0..20 {
        let actor = format!("Cart/{id}");
        assert_eq!(invoke(caller.http(), &actor, "say", "").await, (200, "one".to_owned()));
    }
    let two = Stream::open(app.grpc(), said(offer(&["Cart"]))).await.unwrap();
    let two = tokio::spawn(two.serve_as("two"));
    until_answered(caller.http(), "Cart/1", "two").await;
    // Another with types of its own leaves the others theirs.
    let three = Stream::open(app.grpc(), said(offer(&["Shop"]))).await.unwrap();
    let _three = tokio::spawn(three.serve_as("three"));
    until_answered(caller.http(), "Shop/1", "three").await;
    until_answered(caller.http(), "Cart/1", "two").await;
    two.abort();
    until_answered(caller.http(), "Cart/1", "one").await;
    one.abort();
    until_answered(caller.http(), "Shop/2", "three").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a3_an_error_of_an_actor_is_its_answer() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let app = tokio::task::block_in_place(|| mesh.west.sidecar("cart", &[]));
    let stream = Stream::open(app.grpc(), said(offer(&["Cart"]))).await.unwrap();
    let _serving = tokio::spawn(stream.serve_as("not now"));
    until_hosted(app.http(), "Cart/1").await;
    let path = "/v1.0/actors/Cart/1/method/err";
    let (status, fields, text) = super::call(app.http(), "POST", path, &[], "").await;
    assert_eq!((status.as_u16(), text.as_str()), (200, "not now"));
    assert_eq!(fields["x-daprerrorresponseheader"], "true");
    let call = InvokeActorRequest {
        actor_type: "Cart".to_owned(),
        actor_id: "1".to_owned(),
        method: "err".to_owned(),
        ..InvokeActorRequest::default()
    };
    let answer = client(app.grpc()).await.invoke_actor(call).await.unwrap();
    assert_eq!(answer.into_inner().data, b"not now");
}
