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

use crate::actors::Actors;
use crate::app::App;
use crate::body_collector::BodyCollector;
use crate::callback::AppCallback;
use crate::external_endpoints::ExternalCalls;
use crate::grpc::{Grpc, Services};
use crate::loopback::Loopback;
use crate::metadata::Metadata;
use crate::resiliency::AppCalls;
use crate::rest;
use crate::state::Stores;

/// Requests that one connection of the data loop may have under way: as many as it sends.
const STREAMS: u32 = 1024;
/// Requests that may have been given up before this side has looked at them: it reads what came
/// while it did not run in one go. The data loop has fewer wait at all its connections together
/// (`runtime_resets`), and those under way may be called off at once.
const GIVEN_UP: usize = 4 * STREAMS as usize;
/// Largest head, as HTTP/2 counts them. The data loop has refused what is larger than its limit
/// says; a head that is too large for this side ends the connection for all who are on it.
const HEAD_BYTES: u32 = 16 << 20;
/// What may wait to be read here on one connection. The server takes a peer for an attacker who
/// has many small pieces waiting: half of this, 256 bytes for each. The data loop passes pieces on
/// as they come, and one caller of it who sends single bytes must not end the calls of others.
const WAITING_BYTES: u32 = 64 << 20;

/// What the answers are made of.
pub(crate) struct Api {
    pub(crate) metadata: Metadata,
    pub(crate) loopback: Arc<dyn Loopback>,
    /// Makes calls under rules, where there are any.
    pub(crate) app_calls: Option<AppCalls>,
    /// Makes calls out of the mesh, where there may be any.
    pub(crate) external: Option<ExternalCalls>,
    pub(crate) asked_to_end: Arc<Notify>,
    /// Largest message that is translated, in bytes.
    pub(crate) message_bytes: usize,
    /// Where calls of others go.
    pub(crate) app: Option<App>,
    pub(crate) stores: Stores,
    pub(crate) actors: Arc<Actors>,
    /// Reads bodies whole.
    pub(crate) bodies: BodyCollector,
}

/// Serves connections until the data plane has ended.
pub(crate) async fn serve(api: Api, mut streams: mpsc::Receiver<ApiStream>) {
    let api = Arc::new(api);
    let served = Arc::new(Served {
        services: Services::new(Grpc(Arc::clone(&api))),
        app: AppCallback::of(api.app.as_ref(), api.bodies.clone()),
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
    async fn answer(&self, kind: ApiKind, request: Request<Body>) -> Response<Body> {
        match kind {
            ApiKind::Callback => self.app.call(request).await,
            ApiKind::Actors => self.api.actors.answer_inbound(&self.api.bodies, request).await,
            ApiKind::Own => self.answer_own(request).await,
        }
    }

    async fn answer_own(&self, request: Request<Body>) -> Response<Body> {
        if let Some(external) =
            self.api.external.as_ref().filter(|_| ExternalCalls::is_one(&request))
        {
            return external.answer(request).await;
        }
        let is_grpc = is_grpc(&request);
        match &self.api.app_calls {
            Some(calls) if AppCalls::is_one(&request) => calls.answer(request, is_grpc).await,
            Some(_) | None if is_grpc => self.services.answer(request).await,
            Some(_) | None => rest::answer(&self.api, request).await,
        }
    }
}

async fn serve_connection(io: TokioIo<UnixStream>, kind: ApiKind, served: Arc<Served>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let served = Arc::clone(&served);
        async move { Ok::<_, Infallible>(served.answer(kind, request.map(Body::new)).await) }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        // Callers are held to what they may give up before they get here, and one who gives up
        // much at once must not end the calls of others on this connection.
        .max_pending_accept_reset_streams(Some(GIVEN_UP))
        .max_local_error_reset_streams(None)
        .max_header_list_size(HEAD_BYTES)
        .initial_connection_window_size(WAITING_BYTES)
        .serve_connection(io, service);
    if let Err(error) = connection.await {
        tracing::warn!(%error, "a connection of the data loop ended");
    }
}

fn is_grpc(request: &Request<Body>) -> bool {
    let kind = request.headers().get(hyper::header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
