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
use crate::grpc::{Grpc, grpc_services};
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
    let services = grpc_services(Grpc(Arc::clone(&api)));
    let app = Arc::new(AppCallback::of(api.metadata.facts().app()));
    while let Some(ApiStream { kind, stream }) = streams.recv().await {
        let Ok(stream) = UnixStream::from_std(stream) else { continue };
        let (api, services, app) = (Arc::clone(&api), services.clone(), Arc::clone(&app));
        tokio::spawn(serve_connection(TokioIo::new(stream), move |request: Request<Incoming>| {
            let (api, services, app) = (Arc::clone(&api), services.clone(), Arc::clone(&app));
            async move {
                match kind {
                    ApiKind::Callback => app.call(request).await,
                    ApiKind::Own if is_grpc(&request) => {
                        let Ok(answer) = services.oneshot(request.map(Body::new)).await;
                        answer
                    }
                    ApiKind::Own => rest::answer(&api, request).await,
                }
            }
        }));
    }
}

async fn serve_connection<A>(
    io: TokioIo<UnixStream>,
    answer: impl Fn(Request<Incoming>) -> A + Send + Clone + 'static,
) where
    A: Future<Output = Response<Body>> + Send + 'static,
{
    let service = service_fn(move |request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .serve_connection(io, service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of the data loop ended");
    }
}

fn is_grpc(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(hyper::header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
