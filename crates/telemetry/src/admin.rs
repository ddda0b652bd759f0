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
use tollway_model::RunningConfig;

use crate::bounded::Bounded;
use crate::metrics::{Page, names};

/// Connections served at once; for one more the quietest ends.
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

/// What is at a path.
#[derive(Clone, Copy)]
enum Shown {
    Metrics,
    Config,
    Alive,
    Ready,
}

/// The routes.
const ROUTES: [(&str, Shown); 4] = [
    ("/metrics", Shown::Metrics),
    ("/config", Shown::Config),
    ("/healthz", Shown::Alive),
    ("/readyz", Shown::Ready),
];

/// Serves `/metrics`, `/config`, `/healthz` and `/readyz` until it is dropped.
pub async fn serve_admin(facts: Arc<dyn AdminFacts>, listener: TcpListener) {
    let mut open = Bounded::new(ADMIN_CONNECTIONS, CONNECTION_LIFE);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let facts = Arc::clone(&facts);
                open.serve(|note| serve_connection(stream, facts, note));
            }
            Err(error) => {
                tracing::warn!(%error, "the admin port cannot accept; it tries again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one connection; `note` is called for each request.
async fn serve_connection(stream: TcpStream, facts: Arc<dyn AdminFacts>, note: impl Fn()) {
    let service = service_fn(move |request| {
        note();
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
    let path = request.uri().path();
    let Some((_, shown)) = ROUTES.iter().find(|(route, _)| *route == path) else {
        return refuse(
            StatusCode::NOT_FOUND,
            "the admin port serves /metrics, /config, /healthz and /readyz",
        );
    };
    match shown {
        Shown::Metrics => {
            let mut page = Page::default();
            facts.add_metrics(&mut page);
            let config = facts.config();
            page.single(&names::CONFIG_REVISION, config.revision);
            page.single(&names::CONFIG_CHANGES_REFUSED, config.refused);
            text(page.into_text())
        }
        Shown::Config => text(config_page(&facts.config())),
        Shown::Alive => text("alive\n".to_owned()),
        Shown::Ready => match facts.ready() {
            Ok(()) => text("ready\n".to_owned()),
            Err(missing) => refuse(StatusCode::SERVICE_UNAVAILABLE, &missing),
        },
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    struct Alive;

    impl AdminFacts for Alive {
        fn add_metrics(&self, _: &mut Page) {}
        fn config(&self) -> RunningConfig {
            RunningConfig::default()
        }
        fn ready(&self) -> Result<(), String> {
            Ok(())
        }
    }

    async fn start() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve_admin(Arc::new(Alive), listener));
        address
    }

    /// One request on a connection that stays open; whether it is answered.
    async fn ask(stream: &mut TcpStream) -> bool {
        let request = b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";
        if stream.write_all(request).await.is_err() {
            return false;
        }
        let mut answer = [0; 1024];
        let count = stream.read(&mut answer).await.unwrap_or(0);
        answer[..count].starts_with(b"HTTP/1.1 200") && answer[..count].ends_with(b"alive\n")
    }

    /// The harm: connections that do nothing keep probes and scrapers out, so that a supervisor kills the
    /// process.
    #[tokio::test]
    async fn connections_that_do_nothing_do_not_hold_the_port() {
        let address = start().await;
        let mut scraper = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut scraper).await);
        let mut crowd = Vec::new();
        for nth in 0..3 * ADMIN_CONNECTIONS {
            let mut silent = TcpStream::connect(address).await.unwrap();
            // Some ask once and stay.
            if nth % 3 == 0 {
                assert!(ask(&mut silent).await);
            }
            crowd.push(silent);
            assert!(ask(&mut scraper).await, "it asks now and then: others are quieter");
            let mut probe = TcpStream::connect(address).await.unwrap();
            assert!(ask(&mut probe).await);
        }
        assert!(!ask(&mut crowd[0]).await, "it gave way");
    }

    #[test]
    fn the_page_of_security_names_every_route() {
        let page = include_str!("../../../docs/security.md");
        let row = page.lines().find(|line| line.starts_with("| admin (")).expect("it has a row");
        for (path, _) in ROUTES {
            assert!(row.contains(path), "docs/security.md does not name {path}");
            let own = format!("| `GET {path}` | no | yes |");
            assert!(page.contains(&own), "docs/security.md has no row `{own}`");
        }
    }
}
