//! Both sides of gRPC and the HTTP client against tonic and hyper, which share no code with us.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod support;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, DATE};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{Echo, grpc, http, open_loop};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::StreamExt as _;
use tollway_echo::{EchoMessage, StreamSummary, UNARY_PATH, payload};
use tollway_load::{GrpcRequest, HttpRequest, Target};
use tonic::Code;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

const SERVER_STREAM_PATH: &str = "/tollway.lab.v1.Echo/ServerStream";
const CLIENT_STREAM_PATH: &str = "/tollway.lab.v1.Echo/ClientStream";
const BIDI_STREAM_PATH: &str = "/tollway.lab.v1.Echo/BidiStream";

#[test]
fn tonic_calls_unary() {
    let echo = Echo::start();
    runtime().block_on(async {
        let mut client = client(&echo).await;
        for size in [0, 1024, 3_000_000] {
            let sent = message(size);
            let answer: tonic::Response<EchoMessage> = client
                .unary(tonic::Request::new(sent.clone()), path(UNARY_PATH), codec())
                .await
                .unwrap();
            assert!(answer.into_inner() == sent, "{size} bytes");
            client.ready().await.unwrap();
        }
    });
}

#[test]
fn tonic_reads_a_server_stream() {
    let echo = Echo::start();
    runtime().block_on(async {
        let mut client = client(&echo).await;
        let request = EchoMessage { payload: payload(50_000), repeat: 100 };
        let answers = client
            .server_streaming::<_, EchoMessage, _>(
                tonic::Request::new(request.clone()),
                path(SERVER_STREAM_PATH),
                codec(),
            )
            .await
            .unwrap();
        let answers: Vec<_> = answers.into_inner().collect().await;
        assert_eq!(answers.len(), 100);
        assert!(answers.iter().all(|answer| answer.as_ref().unwrap().payload == request.payload));
    });
}

#[test]
fn tonic_sends_a_client_stream() {
    let echo = Echo::start();
    runtime().block_on(async {
        let mut client = client(&echo).await;
        let requests = tokio_stream::iter(std::iter::repeat_n(message(10_000), 200));
        let summary: StreamSummary = client
            .client_streaming(tonic::Request::new(requests), path(CLIENT_STREAM_PATH), codec())
            .await
            .unwrap()
            .into_inner();
        let encoded = prost::Message::encoded_len(&message(10_000)) as u64;
        assert_eq!(summary, StreamSummary { messages: 200, message_bytes: 200 * encoded });
    });
}

#[test]
fn tonic_talks_both_ways() {
    let echo = Echo::start();
    runtime().block_on(async {
        let mut client = client(&echo).await;
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let requests = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let mut answers = client
            .streaming(tonic::Request::new(requests), path(BIDI_STREAM_PATH), codec())
            .await
            .unwrap()
            .into_inner();
        // Each answer comes before the next request is sent.
        for size in [1, 100_000, 0, 7] {
            sender.send(message(size)).await.unwrap();
            let answer: EchoMessage = answers.next().await.unwrap().unwrap();
            assert!(answer == message(size), "{size} bytes");
        }
        drop(sender);
        assert!(answers.next().await.is_none());
    });
}

#[test]
fn an_unknown_method_is_unimplemented() {
    let echo = Echo::start();
    runtime().block_on(async {
        let mut client = client(&echo).await;
        let status = client
            .unary::<_, EchoMessage, _>(
                tonic::Request::new(message(10)),
                path("/no.Such/Method"),
                codec(),
            )
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{status}");
    });
}

#[test]
fn many_tonic_calls_at_once_do_not_mix_up() {
    let echo = Echo::start();
    runtime().block_on(async {
        let client = client(&echo).await;
        let calls: Vec<_> = (0..200_u32)
            .map(|number| {
                let mut client = client.clone();
                tokio::spawn(async move {
                    client.ready().await.unwrap();
                    let sent = EchoMessage { payload: payload(20_000), repeat: number };
                    let answer: tonic::Response<EchoMessage> = client
                        .unary(tonic::Request::new(sent.clone()), path(UNARY_PATH), codec())
                        .await
                        .unwrap();
                    assert!(answer.into_inner() == sent, "call {number}");
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
    });
}

#[test]
fn http_load_agrees_with_a_hyper_server() {
    let server = HyperServer::start();
    let options = open_loop(&format!("http://{}/", server.address), 500.0, 1.0);
    let request = HttpRequest {
        method: "POST".into(),
        body: payload(2048),
        verify_echo: true,
        ..HttpRequest::default()
    };
    let result = http(&options, &request);
    assert_eq!(result.traffic.requests, 500, "{:?}", result.traffic);
    let reconnects = result.traffic.phases_us["connecting"].n;
    assert!(reconnects > 16, "every 50th answer closes its connection: {reconnects} connections");
    assert!(server.requests.load(Ordering::Relaxed) >= 500);
}

#[test]
fn grpc_load_agrees_with_a_hyper_server() {
    let server = HyperServer::start();
    let mut options = open_loop("127.0.0.1:1", 500.0, 1.0);
    options.target = Target::grpc(&format!("{}/a.B/C", server.address)).unwrap();
    options.connections = 2;
    let request = GrpcRequest { verify_echo: true, ..GrpcRequest::echo(100_000) };
    let result = grpc(&options, &request);
    assert_eq!(result.traffic.requests, 500, "{:?}", result.traffic);
    assert_eq!(result.payload_bytes, 100_000);
}

/// Echoes bodies; over HTTP/2 as gRPC, over HTTP/1.1 chunked and closing now and then.
struct HyperServer {
    address: SocketAddr,
    requests: Arc<AtomicU32>,
    _runtime: Runtime,
}

impl HyperServer {
    fn start() -> Self {
        let runtime = runtime();
        let requests = Arc::new(AtomicU32::new(0));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let counted = Arc::clone(&requests);
        runtime.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let requests = Arc::clone(&counted);
                let service = service_fn(move |request| answer(request, Arc::clone(&requests)));
                tokio::spawn(async move {
                    let builder =
                        hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    // A connection that fails shows in the client's counts.
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, requests, _runtime: runtime }
    }
}

async fn answer(
    request: Request<Incoming>,
    requests: Arc<AtomicU32>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, hyper::Error> {
    let number = requests.fetch_add(1, Ordering::Relaxed) + 1;
    let is_grpc = request.headers().contains_key(CONTENT_TYPE);
    let mut response = Response::builder().status(StatusCode::OK);
    let body = request.into_body().collect().await?.to_bytes();
    let pieces: Vec<_> = body.chunks(1000).map(Bytes::copy_from_slice).map(Frame::data).collect();
    if is_grpc {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        let frames = pieces.into_iter().chain([Frame::trailers(trailers)]).map(Ok);
        let body = StreamBody::new(tokio_stream::iter(frames)).boxed();
        return Ok(response.header(CONTENT_TYPE, "application/grpc").body(body).unwrap());
    }
    // No two heads in a row are the same.
    response = response.header(DATE, format!("request {number}"));
    if number.is_multiple_of(50) {
        return Ok(response.header(CONNECTION, "close").body(Full::new(body).boxed()).unwrap());
    }
    let frames = pieces.into_iter().map(Ok);
    Ok(response.body(StreamBody::new(tokio_stream::iter(frames)).boxed()).unwrap())
}

async fn client(echo: &Echo) -> Grpc<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", echo.ports.grpc)).unwrap();
    let channel = endpoint.timeout(Duration::from_secs(20)).connect().await.unwrap();
    let mut client = Grpc::new(channel).max_decoding_message_size(8 << 20);
    client.ready().await.unwrap();
    client
}

fn message(bytes: usize) -> EchoMessage {
    EchoMessage { payload: payload(bytes), repeat: 0 }
}

fn path(path: &'static str) -> http::uri::PathAndQuery {
    http::uri::PathAndQuery::from_static(path)
}

fn codec<T, U>() -> ProstCodec<T, U> {
    ProstCodec::default()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}
