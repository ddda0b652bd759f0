//! What the process answers itself: the sidecar's own API (`/v1.0/healthz`, `/v1.0/metadata`),
//! and what its admin port shows.

use std::convert::Infallible;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tollway_identity::Credentials;
use tollway_model::{AppProtocol, ErrorCode, RunningConfig, ServiceName};
use tollway_telemetry::metrics::{Part, add_build, add_process, add_told, names};
use tollway_telemetry::trace::SpanMetrics;
use tollway_telemetry::{AdminFacts, DataPlaneMetrics, LineMetrics, Page};

use crate::mesh::MeshStatus;

/// Largest value of one entry of the extended metadata, in bytes.
const METADATA_VALUE_BYTES: usize = 64 * 1024;
/// Most entries of the extended metadata.
const METADATA_ENTRIES: usize = 128;

/// What the answers are made of.
pub(crate) struct Facts {
    pub(crate) part: Part,
    pub(crate) service: ServiceName,
    pub(crate) app: Option<(std::net::SocketAddr, AppProtocol)>,
    pub(crate) mesh: watch::Receiver<MeshStatus>,
    pub(crate) credentials: watch::Receiver<Arc<Credentials>>,
    /// Whether the app takes connections; true without an app.
    pub(crate) app_ready: watch::Receiver<bool>,
    pub(crate) metrics: Vec<Arc<DataPlaneMetrics>>,
    pub(crate) spans: Arc<SpanMetrics>,
    pub(crate) lines: Arc<LineMetrics>,
    pub(crate) extended: Mutex<Vec<(String, String)>>,
    /// The settings that run.
    pub(crate) config: watch::Receiver<RunningConfig>,
}

/// Serves connections handed over by the data loop.
pub(crate) async fn serve_api(facts: Arc<Facts>, mut streams: mpsc::Receiver<UnixStream>) {
    while let Some(stream) = streams.recv().await {
        let Ok(stream) = tokio::net::UnixStream::from_std(stream) else { continue };
        tokio::spawn(serve_connection(TokioIo::new(stream), Arc::clone(&facts)));
    }
}

type Answer = Response<Full<Bytes>>;

async fn serve_connection(io: TokioIo<tokio::net::UnixStream>, facts: Arc<Facts>) {
    let service = service_fn(move |request| {
        let facts = Arc::clone(&facts);
        async move { Ok::<_, Infallible>(answer_api(facts, request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .max_buf_size(64 * 1024)
        .serve_connection(io, service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection to the sidecar's own API ended");
    }
}

async fn answer_api(facts: Arc<Facts>, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    match (request.method(), path.as_str()) {
        (&Method::GET, "/v1.0/healthz") => health(&facts, request.uri().query()),
        (&Method::GET, "/v1.0/healthz/outbound") => {
            if facts.mesh.borrow().connected {
                empty(StatusCode::NO_CONTENT)
            } else {
                problem(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    ErrorCode::OutboundHealthNotReady,
                    "dapr outbound is not ready: the control plane has not answered yet",
                )
            }
        }
        (&Method::GET, "/v1.0/metadata") => metadata(&facts),
        (&Method::PUT, path) if path.starts_with("/v1.0/metadata/") => {
            set_metadata(&facts, request).await
        }
        _ => problem(
            StatusCode::NOT_FOUND,
            ErrorCode::NotServed,
            &format!("{} {path} is not part of the API served here", request.method()),
        ),
    }
}

fn health(facts: &Facts, query: Option<&str>) -> Answer {
    let own = facts.service.app.as_str();
    let asked = query.and_then(|q| q.split('&').find_map(|pair| pair.strip_prefix("appid=")));
    if asked.is_some_and(|asked| !asked.eq_ignore_ascii_case(own)) {
        return problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            ErrorCode::HealthAppIdMismatch,
            "dapr app-id does not match",
        );
    }
    let mut missing = Vec::new();
    if !facts.mesh.borrow().connected {
        missing.push("control plane");
    }
    if !*facts.app_ready.borrow() {
        missing.push("app");
    }
    if missing.is_empty() {
        return empty(StatusCode::NO_CONTENT);
    }
    problem(
        StatusCode::INTERNAL_SERVER_ERROR,
        ErrorCode::HealthNotReady,
        &format!("dapr is not ready: [{}]", missing.join(" ")),
    )
}

fn metadata(facts: &Facts) -> Answer {
    let extended: serde_json::Map<String, Value> = facts
        .extended
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
        .map(|(key, value)| (key.clone(), Value::String(value.clone())))
        .collect();
    let app = facts.app.map(|(address, protocol)| {
        json!({
            "port": address.port(),
            "protocol": protocol.as_str(),
            "channelAddress": address.ip().to_string(),
        })
    });
    let mut answer = json!({
        "id": facts.service.app.as_str(),
        "namespace": facts.service.namespace.as_str(),
        "network": facts.service.network.as_str(),
        "runtimeVersion": env!("CARGO_PKG_VERSION"),
        "enabledFeatures": [],
        "actors": [],
        "components": [],
        "subscriptions": [],
        "httpEndpoints": [],
        "extended": extended,
        "actorRuntime": { "runtimeStatus": "DISABLED", "hostReady": false, "activeActors": [] },
    });
    if let (Some(app), Some(fields)) = (app, answer.as_object_mut()) {
        fields.insert("appConnectionProperties".to_owned(), app);
    }
    json_answer(StatusCode::OK, &answer)
}

async fn set_metadata(facts: &Facts, request: Request<Incoming>) -> Answer {
    let key = request.uri().path().trim_start_matches("/v1.0/metadata/").to_owned();
    let body = Limited::new(request.into_body(), METADATA_VALUE_BYTES).collect().await;
    let text = match body.map(|body| String::from_utf8(body.to_bytes().to_vec())) {
        Ok(Ok(text)) if !key.is_empty() => text,
        _ => {
            return problem(
                StatusCode::BAD_REQUEST,
                ErrorCode::MalformedRequest,
                "send a key in the path and a text of at most 64 KiB as the body",
            );
        }
    };
    let mut extended = facts.extended.lock().unwrap_or_else(PoisonError::into_inner);
    extended.retain(|(known, _)| *known != key);
    if extended.len() >= METADATA_ENTRIES {
        return problem(
            StatusCode::INSUFFICIENT_STORAGE,
            ErrorCode::Overloaded,
            "the metadata has 128 entries already",
        );
    }
    extended.push((key, text));
    empty(StatusCode::NO_CONTENT)
}

impl AdminFacts for Facts {
    fn add_metrics(&self, page: &mut Page) {
        let threads: Vec<_> = self.metrics.iter().map(AsRef::as_ref).collect();
        DataPlaneMetrics::add_to(page, &threads);
        add_told(page, &threads, &self.spans, &self.lines);
        page.single(&names::APP_READY, u8::from(*self.app_ready.borrow()));
        let status = self.mesh.borrow().clone();
        page.single(&names::CONTROL_CONNECTED, u8::from(status.connected));
        page.single(&names::CONTROL_REGISTERED, u8::from(status.registered));
        page.single(&names::CONTROL_REVISION, status.revision);
        let credentials = self.credentials.borrow().clone();
        let expiry = credentials.not_after().duration_since(UNIX_EPOCH).unwrap_or_default();
        page.single(&names::CERTIFICATE_EXPIRY, expiry.as_secs());
        page.single(&names::TRUST_REVISION, credentials.bundles().revision());
        add_build(page, self.part);
        add_process(page);
    }

    fn config(&self) -> RunningConfig {
        self.config.borrow().clone()
    }

    fn ready(&self) -> Result<(), String> {
        let status = self.mesh.borrow().clone();
        if !status.connected {
            let reason = status.last_error.unwrap_or_else(|| "it has not answered yet".to_owned());
            return Err(format!("no control plane: {reason}"));
        }
        if !*self.app_ready.borrow() {
            return Err("the app takes no connections".to_owned());
        }
        Ok(())
    }
}

fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}

fn problem(status: StatusCode, code: ErrorCode, message: &str) -> Answer {
    let word = code.word();
    let mut answer = json_answer(status, &json!({ "errorCode": word, "message": message }));
    let value = hyper::header::HeaderValue::from_static(word);
    answer.headers_mut().insert("x-tollway-error", value);
    answer
}

fn json_answer(status: StatusCode, value: &Value) -> Answer {
    let mut answer = Response::new(Full::from(value.to_string()));
    *answer.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static("application/json");
    answer.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    answer
}
