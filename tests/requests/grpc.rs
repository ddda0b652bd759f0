//! gRPC from one network into another with tonic, which shares no code with the proxy.

use std::net::SocketAddr;

use tokio_stream::StreamExt;
use tollway_echo::{EchoMessage, StreamSummary, UNARY_PATH, payload};
use tollway_tests::mesh::http::runtime;
use tollway_tests::mesh::{AppProtocol, Mesh, PATIENCE};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

const SERVICE: &str = "greeter.default.east";
const SERVER_STREAM_PATH: &str = "/tollway.lab.v1.Echo/ServerStream";
const CLIENT_STREAM_PATH: &str = "/tollway.lab.v1.Echo/ClientStream";
const BIDI_STREAM_PATH: &str = "/tollway.lab.v1.Echo/BidiStream";

#[test]
fn all_kinds_of_calls_cross_by_metadata() {
    let mesh = Mesh::start();
    let _app = mesh.east.app("greeter", "east-1", AppProtocol::Grpc);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    runtime().block_on(all_kinds(&Caller { listener: caller.grpc(), host: None }));
}

#[test]
fn all_kinds_of_calls_cross_by_host_name() {
    let mesh = Mesh::start();
    let _app = mesh.east.app("greeter", "east-1", AppProtocol::Grpc);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    let host = format!("http://{SERVICE}.mesh");
    runtime().block_on(all_kinds(&Caller { listener: caller.outbound(), host: Some(host) }));
}

#[test]
fn a_hundred_megabytes_cross_both_ways_in_one_stream() {
    const MESSAGES: usize = 100;
    let mesh = Mesh::start();
    let app = mesh.east.app("greeter", "east-1", AppProtocol::Grpc);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    let memory = tollway_tests::mesh::memory::Watch::start(&mesh, &[&caller, &app.sidecar]);
    runtime().block_on(async {
        let caller = Caller { listener: caller.grpc(), host: None };
        let mut client = caller.client().await;
        let message = EchoMessage { payload: payload(1 << 20), repeat: 0 };
        let messages = tokio_stream::iter(std::iter::repeat_n(message.clone(), MESSAGES));
        let mut answers = client
            .streaming::<_, _, EchoMessage, _>(
                caller.request(messages),
                path(BIDI_STREAM_PATH),
                codec(),
            )
            .await
            .unwrap()
            .into_inner();
        let mut count = 0;
        while let Some(answer) = answers.next().await {
            assert!(answer.unwrap() == message, "message {count}");
            count += 1;
        }
        assert_eq!(count, MESSAGES);
    });
    memory.assert_bounded();
}

#[test]
fn statuses_and_refusals_reach_the_caller() {
    let mesh = Mesh::start();
    let _app = mesh.east.app("greeter", "east-1", AppProtocol::Grpc);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    runtime().block_on(async {
        let caller = Caller { listener: caller.grpc(), host: None };
        let status = caller.fail(caller.request(message(1)), "/no.Such/Method").await;
        assert_eq!(status.code(), Code::Unimplemented, "the app's own: {status}");

        let mut unknown = Request::new(message(1));
        unknown.metadata_mut().insert("dapr-app-id", "nobody.default.east".parse().unwrap());
        let status = caller.fail(unknown, UNARY_PATH).await;
        assert_eq!(status.code(), Code::Unimplemented, "{status}");
        assert!(status.message().contains("nobody.default.east"), "{status}");
        assert_eq!(status.metadata().get("x-tollway-error").unwrap(), "ERR_UNKNOWN_SERVICE");
        assert_eq!(status.metadata().get("x-tollway-hop").unwrap(), "sidecar caller.default.west");

        let status = caller.fail(Request::new(message(1)), UNARY_PATH).await;
        assert!(status.message().contains("dapr-app-id"), "{status}");
    });
}

/// One call of each of the four kinds, with small and large messages.
async fn all_kinds(caller: &Caller) {
    let mut client = caller.client().await;
    for size in [0, 1024, 3_000_000] {
        let sent = message(size);
        let answer: tonic::Response<EchoMessage> =
            client.unary(caller.request(sent.clone()), path(UNARY_PATH), codec()).await.unwrap();
        assert_eq!(answer.metadata().get("x-echo-name").unwrap(), "east-1");
        assert!(answer.into_inner() == sent, "unary of {size} bytes");
        client.ready().await.unwrap();
    }
    server_stream(caller).await;
    client_stream(caller).await;
    bidi_stream(caller).await;
}

async fn server_stream(caller: &Caller) {
    let sent = EchoMessage { payload: payload(20_000), repeat: 100 };
    let answers = caller
        .client()
        .await
        .server_streaming::<_, EchoMessage, _>(
            caller.request(sent.clone()),
            path(SERVER_STREAM_PATH),
            codec(),
        )
        .await
        .unwrap();
    let answers: Vec<_> = answers.into_inner().collect().await;
    assert_eq!(answers.len(), 100);
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().payload == sent.payload));
}

async fn client_stream(caller: &Caller) {
    let messages = tokio_stream::iter(std::iter::repeat_n(message(10_000), 200));
    let summary: StreamSummary = caller
        .client()
        .await
        .client_streaming(caller.request(messages), path(CLIENT_STREAM_PATH), codec())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(summary.messages, 200);
}

/// Each answer comes before the next message is sent, so nothing waits for more to pass it on.
async fn bidi_stream(caller: &Caller) {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let messages = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut client = caller.client().await;
    let answers = client.streaming(caller.request(messages), path(BIDI_STREAM_PATH), codec()).await;
    let mut answers = answers.unwrap().into_inner();
    for size in [1, 100_000, 0, 7] {
        sender.send(message(size)).await.unwrap();
        let answer: EchoMessage = answers.next().await.unwrap().unwrap();
        assert!(answer == message(size), "{size} bytes");
    }
    drop(sender);
    assert!(answers.next().await.is_none());
}

/// The address for tonic, and the host name if it differs.
struct Caller {
    listener: SocketAddr,
    host: Option<String>,
}

impl Caller {
    async fn client(&self) -> Grpc<Channel> {
        let mut endpoint = Endpoint::from_shared(format!("http://{}", self.listener)).unwrap();
        if let Some(host) = &self.host {
            endpoint = endpoint.origin(host.parse().unwrap());
        }
        let channel = endpoint.timeout(PATIENCE).connect().await.unwrap();
        let mut client = Grpc::new(channel).max_decoding_message_size(8 << 20);
        client.ready().await.unwrap();
        client
    }

    /// A request for the service: by metadata if the host does not name it.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if self.host.is_none() {
            request.metadata_mut().insert("dapr-app-id", SERVICE.parse().unwrap());
        }
        request
    }

    async fn fail(&self, request: Request<EchoMessage>, to: &'static str) -> Status {
        let answer: Result<tonic::Response<EchoMessage>, _> =
            self.client().await.unary(request, path(to), codec()).await;
        answer.unwrap_err()
    }
}

fn message(bytes: usize) -> EchoMessage {
    EchoMessage { payload: payload(bytes), repeat: 0 }
}

fn path(path: &'static str) -> PathAndQuery {
    PathAndQuery::from_static(path)
}

fn codec<T, U>() -> ProstCodec<T, U> {
    ProstCodec::default()
}
