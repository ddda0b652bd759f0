//! Serves the connections that the data loop hands over.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc};
use tollway_proxy::{ApiKind, ApiStream};
use tonic::body::Body;
use tower::ServiceExt;

use crate::callback::AppCallback;
use crate::grpc::{Grpc, Services, grpc_services};
use crate::inside::Caller;
use crate::metadata::Metadata;
use crate::rest;

/// Requests that one connection of the data loop may have under way: as many as it sends.
const STREAMS: u32 = 1024;

/// What the answers are made of.
pub(crate) struct Api {
    pub(crate) metadata: Metadata,
    pub(crate) caller: Caller,
    pub(crate) asked_to_end: Arc<Notify>,
}

/// Serves connections until the data plane has ended.
pub(crate) async fn serve(api: Api, mut streams: mpsc::Receiver<ApiStream>) {
    let api = Arc::new(api);
    let served = Arc::new(Served {
        services: grpc_services(Grpc(Arc::clone(&api))),
        app: AppCallback::of(api.metadata.facts().app()),
        api,
    });
    while let Some(ApiStream { kind, stream }) = streams.recv().await {
        let Ok(stream) = UnixStream::from_std(stream) else { continue };
        tokio::spawn(serve_connection(TokioIo::new(stream), kind, Arc::clone(&served)));
    }
}

/// Who answers.
struct Served {
    api: Arc<Api>,
    services: Services,
    app: AppCallback,
}

impl Served {
    async fn answer(&self, kind: ApiKind, request: Request<Incoming>) -> Response<Body> {
        match kind {
            ApiKind::Callback => self.app.call(request).await,
            ApiKind::Own if is_grpc(&request) => {
                let Ok(answer) = self.services.clone().oneshot(request.map(Body::new)).await;
                answer
            }
            ApiKind::Own => rest::answer(&self.api, request).await,
        }
    }
}

async fn serve_connection(io: TokioIo<UnixStream>, kind: ApiKind, served: Arc<Served>) {
    let service = service_fn(move |request| {
        let served = Arc::clone(&served);
        async move { Ok::<_, Infallible>(served.answer(kind, request).await) }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .serve_connection(io, service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection of the data loop ended");
    }
}

fn is_grpc(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(hyper::header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
