//! An event stream of an app (server-sent events): each event is at the caller when the app has
//! sent it, through both sidecars and with every combination of HTTP versions.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::sync::{Mutex, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use tollway_tests::mesh::http::{Body, Client, Version, empty, full, runtime};
use tollway_tests::mesh::{AppProtocol, Mesh, PATIENCE};

const APP: &str = "news.default.east";
const KIND: &str = "text/event-stream";

/// What the app sends next, by the test's hand.
type Events = Arc<Mutex<Option<mpsc::Receiver<Bytes>>>>;

/// Serves HTTP/1.1 and HTTP/2 on a port of loopback, as long as the runtime lives.
async fn serve(events: Events) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let events = Arc::clone(&events);
            let service = service_fn(move |request| {
                let events = Arc::clone(&events);
                async move { Ok::<_, Infallible>(answer(&request, &events).await) }
            });
            tokio::spawn(async move {
                let builder = Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

async fn answer(request: &Request<Incoming>, events: &Events) -> Response<Body> {
    if request.uri().path() != "/events" {
        return Response::new(empty());
    }
    assert_eq!(request.headers()["accept"], KIND);
    let events = events.lock().await.take().unwrap();
    let frames = ReceiverStream::new(events).map(|event| Ok(Frame::data(event)));
    let mut answer = Response::new(StreamBody::new(frames).boxed());
    answer.headers_mut().insert("content-type", KIND.parse().unwrap());
    answer.headers_mut().insert("cache-control", "no-cache".parse().unwrap());
    answer
}

#[test]
fn each_event_is_at_the_caller_before_the_next_is_sent() {
    for protocol in [AppProtocol::Http, AppProtocol::H2c] {
        let (mesh, runtime, events) = (Mesh::start(), runtime(), Events::default());
        let app = runtime.block_on(serve(Arc::clone(&events)));
        let _sidecar = mesh.east.sidecar_of("news", app.port(), protocol);
        let caller = mesh.west.caller(&[]);
        caller.until_served(APP);
        for version in [Version::Http1, Version::Http2] {
            let (sender, receiver) = mpsc::channel(1);
            let follow = async {
                *events.lock().await = Some(receiver);
                let mut client = Client::connect(version, caller.http()).await;
                let uri = format!("http://{}/v1.0/invoke/{APP}/method/events", caller.http());
                let request = Request::get(uri).header("accept", KIND).body(full("")).unwrap();
                let answer = client.send(request).await;
                assert_eq!(answer.status(), 200);
                assert_eq!(answer.headers()["content-type"], KIND);
                assert_eq!(answer.headers()["cache-control"], "no-cache");
                let mut body = answer.into_body();
                for number in 0..5 {
                    let event = Bytes::from(format!("id: {number}\ndata: news\n\n"));
                    sender.send(event.clone()).await.unwrap();
                    let mut seen = Vec::new();
                    while seen.len() < event.len() {
                        let frame = body.frame().await.unwrap().unwrap();
                        seen.extend_from_slice(&frame.into_data().unwrap());
                    }
                    assert_eq!(seen, event);
                }
                drop(sender);
                let rest = body.collect().await.unwrap().to_bytes();
                assert_eq!(rest, "", "with the app's stream the answer ends");
            };
            let followed = async { tokio::time::timeout(PATIENCE, follow).await };
            let reported = runtime.block_on(followed);
            reported.unwrap_or_else(|_| panic!("{protocol:?} {version:?}: an event does not come"));
        }
    }
}
