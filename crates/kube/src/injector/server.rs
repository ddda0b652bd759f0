//! The port that the API server sends pods to: HTTPS, one route for each kind of question.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tollway_telemetry::Bounded;
use tracing::{debug, info, warn};

use super::admission::{self, Answer, Outcome};
use super::{Shared, Which};

/// Connections served at once; for one more the quietest ends. An API server has a few.
const WEBHOOK_CONNECTIONS: usize = 256;
/// Longest body of a review, in bytes: an object of a cluster has 1.5 MB at most, and a review up to two.
const REVIEW_BYTES: usize = 8 << 20;
/// Time for a TLS handshake, and for the head and the body of a request each.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// Longest life of one connection: the API server dials again.
const CONNECTION_LIFE: Duration = Duration::from_secs(600);
/// Pause after the kernel refused a connection (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The routes.
pub(crate) const ROUTES: [(&str, Which); 2] =
    [("/pods", Which::MarkedPod), ("/pods-of-marked-namespaces", Which::MarkedNamespace)];

/// Serves until it is dropped. Connections that come before there is a certificate are closed.
pub(crate) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut open = Bounded::new(WEBHOOK_CONNECTIONS, CONNECTION_LIFE);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = Arc::clone(&shared);
                open.serve(|note| serve_connection(stream, shared, note));
            }
            Err(error) => {
                warn!(%error, "the webhook's port cannot accept; it tries again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, shared: Arc<Shared>, note: impl Fn()) {
    let Some(config) = shared.tls.borrow().clone() else { return };
    let handshake = TlsAcceptor::from(config).accept(stream);
    let stream = match tokio::time::timeout(READ_WITHIN, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            return debug!(%error, "a TLS handshake with the webhook failed");
        }
        Err(_) => return debug!("a TLS handshake with the webhook takes too long"),
    };
    let service = service_fn(move |request| {
        note();
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(respond(request, &shared).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(READ_WITHIN)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        debug!(%error, "a connection to the webhook ended");
    }
}

type Reply = Response<Full<Bytes>>;

async fn respond(request: Request<Incoming>, shared: &Shared) -> Reply {
    let path = request.uri().path();
    let Some((_, which)) = ROUTES.iter().copied().find(|(route, _)| *route == path) else {
        return refuse(
            StatusCode::NOT_FOUND,
            "the webhook serves /pods and /pods-of-marked-namespaces",
        );
    };
    if request.method() != Method::POST {
        return refuse(
            StatusCode::METHOD_NOT_ALLOWED,
            "the webhook takes POST with an AdmissionReview",
        );
    }
    let body = Limited::new(request.into_body(), REVIEW_BYTES).collect();
    let body = match tokio::time::timeout(READ_WITHIN, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => {
            return refuse(StatusCode::BAD_REQUEST, &format!("the body cannot be read: {error}"));
        }
        Err(_) => return refuse(StatusCode::REQUEST_TIMEOUT, "the body does not come"),
    };
    let Some(settings) = shared.settings() else {
        let reason =
            "the root of the network is not known yet: the control plane has not written it";
        return refuse(StatusCode::SERVICE_UNAVAILABLE, reason);
    };
    let begun = Instant::now();
    match admission::answer(&body, which, &settings) {
        Ok(Answer { review, outcome, notes }) => {
            shared.count(outcome);
            if let Some(notes) = notes {
                shared.events.tell(notes);
            }
            let uid = review.pointer("/response/uid").and_then(serde_json::Value::as_str);
            match outcome {
                Outcome::Refused => {
                    let reason = review.pointer("/response/status/message");
                    let reason = reason.and_then(serde_json::Value::as_str).unwrap_or_default();
                    info!(uid, reason, "a pod is refused");
                }
                Outcome::Injected | Outcome::Left => {
                    debug!(uid, ?outcome, took = ?begun.elapsed(), "a pod is answered for");
                }
            }
            let mut reply = Response::new(Full::from(review.to_string()));
            let kind = HeaderValue::from_static("application/json");
            reply.headers_mut().insert(CONTENT_TYPE, kind);
            reply
        }
        Err(reason) => refuse(StatusCode::BAD_REQUEST, &reason),
    }
}

fn refuse(status: StatusCode, reason: &str) -> Reply {
    let mut reply = Response::new(Full::from(format!("{reason}\n")));
    *reply.status_mut() = status;
    reply
}
