//! Serves the connections that the data loop hands over.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tollway_proxy::{ApiKind, ApiStream, AsDaprd, RuntimeTask};
use tollway_telemetry::DaprMetrics;
use tonic::body::Body;

use crate::actors::Actors;
use crate::app::App;
use crate::body_collector::BodyCollector;
use crate::callback::AppCallback;
use crate::direct_invoke;
use crate::end_request::EndRequest;
use crate::error_counts::{self, Calls};
use crate::external_endpoints::ExternalCalls;
use crate::grpc::{Grpc, Services};
use crate::loopback::Loopback;
use crate::metadata::Metadata;
use crate::readiness::Readiness;
use crate::resiliency::AppCalls;
use crate::rest;
use crate::state::Stores;

/// Most requests under way on one connection of the data loop, which is as many as it sends.
const STREAMS: u32 = 1024;
/// Most requests that are cancelled before this side reads them: after a pause it reads everything
/// at once. The data loop lets fewer wait over all connections (`runtime_resets`), and those under
/// way may all be cancelled at once.
const GIVEN_UP: usize = 4 * STREAMS as usize;
/// Largest head in bytes, as HTTP/2 counts them. The data loop refuses heads above its own limit. A
/// head above this limit would end the connection for all requests on it.
const HEAD_BYTES: u32 = 16 << 20;
/// Most bytes that wait to be read on one connection. The server ends a connection with many small
/// frames: 256 bytes count for each, up to half of this limit. The data loop forwards frames as
/// they come, and a caller that sends single bytes must not end other calls.
const WAITING_BYTES: u32 = 64 << 20;

/// What the responses are made of.
pub(crate) struct Api {
    pub(crate) metadata: Metadata,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) loopback: Arc<dyn Loopback>,
    /// The same for calls that are translated for the app: a connection of its own, so that they do
    /// not wait for those that wait for them.
    pub(crate) app_loopback: Arc<dyn Loopback>,
    /// Makes calls under Resiliency rules, if there are any.
    pub(crate) app_calls: Option<AppCalls>,
    /// Makes calls of endpoints outside of the network, if they are allowed.
    pub(crate) external: ExternalCalls,
    /// Set in daprd's place: what is done as daprd does.
    pub(crate) as_daprd: Option<Arc<AsDaprd>>,
    /// Where errors of the API are counted by their codes, if they are.
    pub(crate) errors: Option<Arc<DaprMetrics>>,
    pub(crate) asked_to_end: Arc<EndRequest>,
    /// Largest message that is translated, in bytes.
    pub(crate) message_bytes: usize,
    /// The app, which calls of other services go to.
    pub(crate) app: Option<App>,
    pub(crate) stores: Stores,
    pub(crate) actors: Arc<Actors>,
    /// Reads bodies of the own app whole.
    pub(crate) bodies: BodyCollector,
    /// The same of those of other sidecars.
    pub(crate) inbound_bodies: BodyCollector,
}

/// Serves connections until the data plane has ended.
pub(crate) async fn serve(api: Api, mut streams: mpsc::Receiver<ApiStream>) {
    let api = Arc::new(api);
    let served = Arc::new(Served {
        services: Services::new(Grpc(Arc::clone(&api))),
        app: AppCallback::of(
            api.app.as_ref(),
            Arc::clone(&api.app_loopback),
            api.inbound_bodies.clone(),
        ),
        api,
    });
    while let Some(ApiStream { kind, stream }) = streams.recv().await {
        let Ok(stream) = UnixStream::from_std(stream) else { continue };
        tokio::spawn(serve_connection(TokioIo::new(stream), kind, Arc::clone(&served)));
    }
}

/// What serves the requests.
struct Served {
    api: Arc<Api>,
    services: Services,
    app: AppCallback,
}

impl Served {
    async fn answer(&self, kind: ApiKind, request: Request<Body>) -> Response<Body> {
        match kind {
            ApiKind::Callback => self.app.call(request).await,
            ApiKind::Actors => {
                self.api.actors.answer_inbound(&self.api.inbound_bodies, request).await
            }
            ApiKind::Own => self.answer_own(request).await,
        }
    }

    async fn answer_own(&self, mut request: Request<Body>) -> Response<Body> {
        let task = RuntimeTask::take(request.headers_mut());
        let is_grpc = is_grpc(&request);
        let counted = self.api.errors.as_ref().map(|metrics| {
            let calls = Calls::of(task.is_some(), is_grpc, request.uri().path());
            (metrics, calls)
        });
        let answer = self.answer_task(task, is_grpc, request).await;
        if let Some((metrics, calls)) = counted {
            error_counts::count(metrics, calls, &answer);
        }
        answer
    }

    async fn answer_task(
        &self,
        task: Option<RuntimeTask>,
        is_grpc: bool,
        request: Request<Body>,
    ) -> Response<Body> {
        let api = &self.api;
        match (task, &api.app_calls) {
            (Some(RuntimeTask::Proxied(url)), _) => {
                api.external.answer_proxied(&url, request).await
            }
            (Some(RuntimeTask::External(id)), _) => {
                let answer = api.external.answer(&id, request).await;
                if api.as_daprd.is_some() {
                    direct_invoke::answer(&id, answer).await
                } else {
                    answer
                }
            }
            (Some(RuntimeTask::UnderResiliencyRules(service)), Some(calls)) => {
                let answer = calls.answer(&service, request, is_grpc).await;
                if api.as_daprd.is_some() && !is_grpc {
                    let id = calls.short_name(&service);
                    return direct_invoke::answer(&id, answer).await;
                }
                answer
            }
            _ if is_grpc => self.services.answer(request).await,
            _ => rest::answer(api, request).await,
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
        // The data loop limits what callers cancel. A caller that cancels many requests at once
        // must not end other calls on this connection.
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
