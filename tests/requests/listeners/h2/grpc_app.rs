//! An app for gRPC calls on hyper, which shares no code with the proxy: it records what it
//! receives, answers in frames that a test has chosen, and reports when a call is cancelled.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use tollway_tests::mesh::http::{Body, full};

/// What came of one call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) path: String,
    pub(crate) fields: HeaderMap,
    /// The whole body; `None` if it was broken off, or has not ended.
    pub(crate) body: Option<Bytes>,
}

/// Ends with the test program.
pub(crate) struct GrpcApp {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    calls: Vec<Call>,
    /// Paths of calls that were not answered before they were called off.
    called_off: Vec<String>,
}

impl GrpcApp {
    /// Answers each call with its own body, but those of which the path ends in `stuck`.
    pub(crate) fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let shared = Arc::clone(&seen);
        std::thread::spawn(move || {
            tollway_tests::mesh::http::runtime().block_on(serve(listener, shared));
        });
        Self { address, seen }
    }

    /// The calls of that path, in order.
    pub(crate) fn calls(&self, path: &str) -> Vec<Call> {
        let seen = self.seen.lock().unwrap();
        seen.calls.iter().filter(|call| call.path == path).cloned().collect()
    }

    pub(crate) fn was_called_off(&self, path: &str) -> bool {
        self.seen.lock().unwrap().called_off.iter().any(|other| other == path)
    }
}

async fn serve(listener: std::net::TcpListener, seen: Arc<Mutex<Seen>>) {
    let listener = TcpListener::from_std(listener).unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let seen = Arc::clone(&seen);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, Arc::clone(&seen)));
            // How a connection ended shows in its calls.
            let _ = http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// Records a call that is dropped before it is answered.
struct Unanswered {
    path: String,
    seen: Arc<Mutex<Seen>>,
    is_answered: bool,
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if !self.is_answered {
            self.seen.lock().unwrap().called_off.push(self.path.clone());
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    seen: Arc<Mutex<Seen>>,
) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let mut open = Unanswered { path: path.clone(), seen: Arc::clone(&seen), is_answered: false };
    let (head, body) = request.into_parts();
    let nth = {
        let mut seen = seen.lock().unwrap();
        seen.calls.push(Call { path: path.clone(), fields: head.headers, body: None });
        seen.calls.len() - 1
    };
    let body = body.collect().await.ok().map(http_body_util::Collected::to_bytes);
    seen.lock().unwrap().calls[nth].body.clone_from(&body);
    if path.ends_with("stuck") {
        std::future::pending::<()>().await;
    }
    open.is_answered = true;
    let head = Response::builder().header("content-type", "application/grpc");
    Ok(head.header("grpc-status", "0").body(full(body.unwrap_or_default())).unwrap())
}
