//! An app that fails when a test has it fail, and works again.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::mesh::http::{Body, full, runtime};

/// It speaks HTTP/1.1 and HTTP/2, and ends with this value.
pub struct FickleApp {
    pub port: u16,
    state: Arc<State>,
    _runtime: Runtime,
}

#[derive(Default)]
struct State {
    status: AtomicU16,
    /// Of so many requests one has that status, the others 200.
    every: AtomicUsize,
    /// The milliseconds until it answers.
    delay: AtomicU64,
    seen: AtomicUsize,
}

impl FickleApp {
    pub fn start() -> Self {
        let (runtime, state) = (runtime(), Arc::new(State::default()));
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        let app = Self { port, state: Arc::clone(&state), _runtime: runtime };
        app.work();
        app._runtime.spawn(serve(listener, state));
        app
    }

    /// From now on one of `every` requests is answered with a status of HTTP, or a call of gRPC with
    /// one below 100.
    pub fn fail(&self, status: u16, every: usize) {
        self.state.status.store(status, Ordering::SeqCst);
        self.state.every.store(every, Ordering::SeqCst);
    }

    pub fn work(&self) {
        self.fail(200, 1);
    }

    /// From now on it answers after so long.
    pub fn answer_after(&self, delay: Duration) {
        let millis = u64::try_from(delay.as_millis()).unwrap();
        self.state.delay.store(millis, Ordering::SeqCst);
    }

    /// Requests that have come, without those of its sidecar.
    pub fn seen(&self) -> usize {
        self.state.seen.load(Ordering::SeqCst)
    }
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let state = Arc::clone(&state);
        let service = service_fn(move |request| answer(Arc::clone(&state), request));
        tokio::spawn(async move {
            // A connection that breaks ends alone.
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    if request.uri().path().starts_with("/dapr/") {
        // It has no actors.
        return Ok(Response::builder().status(404).body(full("")).unwrap());
    }
    let kind = request.headers().get("content-type");
    let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    // What is not whole is answered all the same.
    let _ = request.into_body().collect().await;
    tokio::time::sleep(Duration::from_millis(state.delay.load(Ordering::SeqCst))).await;
    let number = state.seen.fetch_add(1, Ordering::SeqCst);
    let is_meant = number.is_multiple_of(state.every.load(Ordering::SeqCst));
    let status = if is_meant { state.status.load(Ordering::SeqCst) } else { 200 };
    if !is_grpc {
        return Ok(Response::builder().status(status).body(full("hi")).unwrap());
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", if status < 100 { status.into() } else { 0.into() });
    let body = Full::new(Bytes::from_static(b"\0\0\0\0\0"));
    let body = body.with_trailers(async { Some(Ok(trailers)) }).boxed();
    Ok(Response::builder().header("content-type", "application/grpc").body(body).unwrap())
}
