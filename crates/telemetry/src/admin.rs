//! The admin port that every long-running part has: metrics, whether it lives, whether it is
//! ready. Plain HTTP, for this machine or a network that may see it: it changes nothing.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, TRANSFER_ENCODING,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tollway_model::RunningConfig;

use crate::metrics::{Page, names};

/// Connections served at once; more wait to be accepted.
const ADMIN_CONNECTIONS: usize = 64;
/// Longest head that is read, in bytes.
const ADMIN_HEAD_BYTES: usize = 16 * 1024;
/// Pause after the kernel refused a connection (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest life of one connection: a scraper dials again.
const CONNECTION_LIFE: Duration = Duration::from_secs(300);

/// What a part shows.
pub trait AdminFacts: Send + Sync + 'static {
    /// Puts every metric of the part on the page.
    fn add_metrics(&self, page: &mut Page);

    /// The settings that run.
    fn config(&self) -> RunningConfig;

    /// Whether the part can do its work.
    ///
    /// # Errors
    /// What is missing, in words.
    fn ready(&self) -> Result<(), String>;
}

/// Serves `/metrics`, `/config`, `/healthz` and `/readyz` until it is dropped.
pub async fn serve_admin(facts: Arc<dyn AdminFacts>, listener: TcpListener) {
    let room = Arc::new(Semaphore::new(ADMIN_CONNECTIONS));
    loop {
        // The semaphore is never closed, so there is a permit in the end.
        let permit = Arc::clone(&room).acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let facts = Arc::clone(&facts);
                tokio::spawn(async move {
                    let served = serve_connection(stream, facts);
                    let _ = tokio::time::timeout(CONNECTION_LIFE, served).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the admin port cannot accept; it tries again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, facts: Arc<dyn AdminFacts>) {
    let service = service_fn(move |request| {
        let answer = answer(facts.as_ref(), &request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .max_buf_size(ADMIN_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the admin port ended");
    }
}

type Answer = Response<Full<Bytes>>;

fn answer<B>(facts: &dyn AdminFacts, request: &Request<B>) -> Answer {
    if let Some(reason) = why_malformed(request) {
        let mut answer = refuse(StatusCode::BAD_REQUEST, reason);
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return answer;
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "the admin port takes GET and HEAD only");
    }
    match request.uri().path() {
        "/metrics" => {
            let mut page = Page::default();
            facts.add_metrics(&mut page);
            let config = facts.config();
            page.single(&names::CONFIG_REVISION, config.revision);
            page.single(&names::CONFIG_CHANGES_REFUSED, config.refused);
            text(page.into_text())
        }
        "/config" => text(config_page(&facts.config())),
        "/healthz" => text("alive\n".to_owned()),
        "/readyz" => match facts.ready() {
            Ok(()) => text("ready\n".to_owned()),
            Err(missing) => refuse(StatusCode::SERVICE_UNAVAILABLE, &missing),
        },
        _ => refuse(
            StatusCode::NOT_FOUND,
            "the admin port serves /metrics, /config, /healthz and /readyz",
        ),
    }
}

/// What the parser accepts and this port refuses: requests with a body. A body's end can be
/// declared in two ways and none has a meaning here, so nothing after one is read as a request.
fn why_malformed<B>(request: &Request<B>) -> Option<&'static str> {
    let fields = request.headers();
    let has_length = fields.get_all(CONTENT_LENGTH).iter().any(|length| length != "0");
    if has_length || fields.contains_key(TRANSFER_ENCODING) {
        return Some("the admin port takes no bodies; send the request without one");
    }
    let hosts = fields.get_all(HOST).iter().count();
    let is_named = hosts == 1 || (hosts == 0 && request.version() < Version::HTTP_11);
    (!is_named).then_some("a request says once what host it is for; send one `host` field")
}

/// The settings in effect as a file that can be used again, with remarks at the top.
fn config_page(config: &RunningConfig) -> String {
    let mut page = format!("# revision: {}\n", config.revision);
    for setting in &config.needs_restart {
        page += &format!("# waits for a restart: {setting}\n");
    }
    for line in config.last_refusal.iter().flat_map(|refusal| refusal.lines()) {
        page += &format!("# refused: {line}\n");
    }
    page + &config.text
}

fn text(text: String) -> Answer {
    let mut answer = Response::new(Full::from(text));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

fn refuse(status: StatusCode, reason: &str) -> Answer {
    let mut answer = text(format!("{reason}\n"));
    *answer.status_mut() = status;
    answer
}
