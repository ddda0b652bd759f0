//! An app that runs actors over HTTP, as Dapr calls one, and remembers every turn.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::http::HeaderMap;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::sync::watch;

use super::call;

/// A turn, or the end of an actor.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    /// The replica that ran it.
    pub(crate) replica: String,
    /// `Type/id`.
    pub(crate) actor: String,
    /// The method; `timer/NAME`, `remind/NAME`; empty where the actor is let go.
    pub(crate) what: String,
    pub(crate) body: String,
    pub(crate) fields: HeaderMap,
    /// What it answered.
    pub(crate) answer: String,
    pub(crate) began: Instant,
    pub(crate) ended: Option<Instant>,
}

impl Turn {
    /// Whether the actor was let go.
    fn is_end(&self) -> bool {
        self.what.is_empty()
    }
}

/// What several replicas have done, in the order in which it began.
pub(crate) type Log = Arc<Mutex<Vec<Turn>>>;

/// One replica.
pub(crate) struct ActorApp {
    pub(crate) address: SocketAddr,
    inner: Arc<Inner>,
}

struct Inner {
    replica: String,
    config: String,
    log: Log,
    /// The HTTP API of its sidecar.
    sidecar: OnceLock<SocketAddr>,
    /// Its answer to health probes.
    is_ill: AtomicBool,
    /// How often its configuration was read.
    asked: AtomicUsize,
    /// How long it takes to answer with its configuration, in milliseconds.
    config_takes: AtomicU64,
    /// Whether turns of the method `held` may end.
    is_let_go: watch::Sender<bool>,
}

impl ActorApp {
    /// Serves on a loopback port, as long as the runtime lives; `config` is its configuration of
    /// actors.
    pub(crate) async fn serve(replica: &str, config: &str, log: &Log) -> Self {
        Self::serve_at(0, replica, config, log).await
    }

    /// The same at this port.
    pub(crate) async fn serve_at(port: u16, replica: &str, config: &str, log: &Log) -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Arc::new(Inner {
            replica: replica.to_owned(),
            config: config.to_owned(),
            log: Arc::clone(log),
            sidecar: OnceLock::new(),
            is_ill: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            config_takes: AtomicU64::new(0),
            is_let_go: watch::Sender::new(false),
        });
        let served = Arc::clone(&inner);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let inner = Arc::clone(&served);
                let service = service_fn(move |request| {
                    let inner = Arc::clone(&inner);
                    async move {
                        // What has begun goes on, as in most apps, when its caller has gone.
                        let answering = tokio::spawn(async move { inner.answer(request).await });
                        Ok::<_, Infallible>(answering.await.unwrap())
                    }
                });
                // How a connection ended shows in its requests.
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, inner }
    }

    /// Where its actors find the API.
    pub(crate) fn beside(&self, sidecar: SocketAddr) {
        self.inner.sidecar.set(sidecar).unwrap();
    }

    /// Its answer to health probes from now on.
    pub(crate) fn be_ill(&self, is_ill: bool) {
        self.inner.is_ill.store(is_ill, Ordering::Relaxed);
    }

    /// Answers with its configuration so much later from now on.
    pub(crate) fn delay_config(&self, time: Duration) {
        self.inner.config_takes.store(time.as_millis() as u64, Ordering::Relaxed);
    }

    /// How often its configuration was read.
    pub(crate) fn times_asked(&self) -> usize {
        self.inner.asked.load(Ordering::Relaxed)
    }

    /// Lets the turns of the method `held` end.
    pub(crate) fn let_go(&self) {
        self.inner.is_let_go.send_replace(true);
    }
}

/// What is in a log.
pub(crate) fn turns(log: &Log) -> MutexGuard<'_, Vec<Turn>> {
    log.lock().unwrap()
}

/// Those of one actor that the app was called for with this method.
pub(crate) fn turns_of(log: &Log, actor: &str, what: &str) -> Vec<Turn> {
    let all = turns(log);
    all.iter().filter(|turn| turn.actor == actor && turn.what == what).cloned().collect()
}

/// No two turns of an actor overlap, on whichever replica.
#[track_caller]
pub(crate) fn check_one_at_a_time(log: &Log) {
    check_sequence(turns(log).iter());
}

/// The same where a replica loses its lease: it then has its app let go of actors that are elsewhere
/// already. And none of them goes on there, later, with what it knew before.
#[track_caller]
pub(crate) fn check_around_a_lost_lease(log: &Log, replica: &str) {
    let turns = turns(log);
    let is_its = |turn: &&Turn| turn.replica == replica;
    check_sequence(turns.iter().filter(|turn| !(is_its(turn) && turn.is_end())));
    check_sequence(turns.iter().filter(is_its));
    let (mut knows, mut last) = (HashSet::new(), HashMap::new());
    for turn in turns.iter() {
        let place = (&turn.actor, &turn.replica);
        if turn.is_end() {
            knows.remove(&place);
            continue;
        }
        let before = last.insert(&turn.actor, &turn.replica);
        let has_moved = before.is_some_and(|before| *before != turn.replica);
        assert!(
            !has_moved || !knows.contains(&place),
            "{} goes on at {} with what it knew before it was at {before:?}",
            turn.actor,
            turn.replica
        );
        knows.insert(place);
    }
}

#[track_caller]
fn check_sequence<'a>(turns: impl Iterator<Item = &'a Turn>) {
    let mut last: HashMap<String, Turn> = HashMap::new();
    for turn in turns {
        if let Some(before) = last.insert(turn.actor.clone(), turn.clone()) {
            let ended = before.ended.is_some_and(|ended| ended <= turn.began);
            let late = before.ended.map(|ended| ended.saturating_duration_since(turn.began));
            let took = before.ended.map(|ended| ended.saturating_duration_since(before.began));
            assert!(
                ended,
                "{} `{}` began at {} while `{}` was under way at {}, which took {took:?} and went on for {late:?}",
                turn.actor, turn.what, turn.replica, before.what, before.replica,
            );
        }
    }
}

impl Inner {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let Ok(body) = body.collect().await else { return said(400, "") };
        let body = body.to_bytes();
        let path = head.uri.path().to_owned();
        if path == "/dapr/config" {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let takes = self.config_takes.load(Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(takes)).await;
        }
        match path.as_str() {
            "/dapr/config" if self.config.is_empty() => said(404, ""),
            "/dapr/config" => said(200, &self.config),
            "/healthz" if self.is_ill.load(Ordering::Relaxed) => said(503, ""),
            "/healthz" => said(200, ""),
            _ => {
                let parts: Vec<&str> = path.splitn(5, '/').collect();
                let ["", "actors", kind, rest @ ..] = &parts[..] else { return said(404, "") };
                let (id, what) = match (head.method.as_str(), rest) {
                    ("DELETE", [id]) => (*id, ""),
                    ("PUT", [id, what]) => (*id, what.strip_prefix("method/").unwrap_or("?")),
                    (method, _) => return said(405, &format!("{method} {path}")),
                };
                self.turn(kind, id, what, &head.headers, &body).await
            }
        }
    }

    async fn turn(
        &self,
        kind: &str,
        id: &str,
        what: &str,
        fields: &HeaderMap,
        body: &Bytes,
    ) -> Response<Full<Bytes>> {
        let text = String::from_utf8_lossy(body).into_owned();
        let place = {
            let mut turns = turns(&self.log);
            turns.push(Turn {
                replica: self.replica.clone(),
                actor: format!("{kind}/{id}"),
                what: what.to_owned(),
                body: text.clone(),
                fields: fields.clone(),
                answer: String::new(),
                began: Instant::now(),
                ended: None,
            });
            turns.len() - 1
        };
        let (status, reported) = self.act(kind, id, what, fields, &text).await;
        let mut answer = said(status, &reported);
        if what == "soft" {
            answer.headers_mut().insert("x-daprerrorresponseheader", "true".parse().unwrap());
        }
        if what == "remind/enough" {
            answer.headers_mut().insert("x-daprremindercancel", "true".parse().unwrap());
        }
        if let Some(turn) = turns(&self.log).get_mut(place) {
            (turn.ended, turn.answer) = (Some(Instant::now()), reported);
        }
        answer
    }

    /// A request of an actor to its sidecar; what it is answered.
    async fn ask(&self, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> String {
        let sidecar = *self.sidecar.get().unwrap();
        let (status, _, text) = call(sidecar, method, path, fields, body.to_owned()).await;
        format!("{status} {text}")
    }

    async fn act(
        &self,
        kind: &str,
        id: &str,
        what: &str,
        fields: &HeaderMap,
        text: &str,
    ) -> (u16, String) {
        let own = format!("/v1.0/actors/{kind}/{id}");
        match what {
            "slow" => {
                tokio::time::sleep(Duration::from_millis(text.parse().unwrap())).await;
                (200, self.replica.clone())
            }
            "held" => {
                self.is_let_go.subscribe().wait_for(|is_let_go| *is_let_go).await.unwrap();
                (200, self.replica.clone())
            }
            // Sleeps, then writes: milliseconds and a value.
            "late" => {
                let (pause, value) = text.split_once(' ').unwrap();
                tokio::time::sleep(Duration::from_millis(pause.parse().unwrap())).await;
                let save = format!(
                    r#"[{{"operation":"upsert","request":{{"key":"value","value":{value}}}}}]"#
                );
                (200, self.ask("POST", &format!("{own}/state"), &[], &save).await)
            }
            // Sleeps, then makes a timer.
            "timer-later" => {
                tokio::time::sleep(Duration::from_millis(text.parse().unwrap())).await;
                (200, self.ask("POST", &format!("{own}/timers/t"), &[], "{}").await)
            }
            "fail" | "remind/fail" | "timer/fail" => (500, "broken".to_owned()),
            "missing" => (404, "no such method".to_owned()),
            "soft" => (200, "not now".to_owned()),
            "large" => (200, "x".repeat(8192)),
            // A request to the API in the same turn: method, path below the own actor, body.
            "api" => {
                let parts: Vec<&str> = text.splitn(3, ' ').collect();
                let [method, path, body] = parts[..] else { return (400, text.to_owned()) };
                let path = if path.starts_with("/v1.0") { path.into() } else { own + path };
                let chain = fields.get("dapr-reentrancy-id").map(|id| id.to_str().unwrap());
                let chain: Vec<_> =
                    chain.map(|id| ("dapr-reentrancy-id", id)).into_iter().collect();
                (200, self.ask(method, &path, &chain, body).await)
            }
            _ => (200, format!("{}: {text}", self.replica)),
        }
    }
}

fn said(status: u16, text: &str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(text.to_owned()));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    answer
}
