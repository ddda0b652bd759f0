//! The port that the API server sends pods to: HTTPS, one route for each kind of question.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body as _, Incoming};
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

/// All that is asked.
const QUESTIONS: [Which; 3] = [Which::MarkedPod, Which::MarkedNamespace, Which::CapturedNamespace];

/// The route of a question, behind the part of the path that the API server alone knows.
pub(super) fn route_of(which: Which) -> &'static str {
    match which {
        Which::MarkedPod => "/pods",
        Which::MarkedNamespace => "/pods-of-marked-namespaces",
        Which::CapturedNamespace => "/pods-of-captured-namespaces",
    }
}

/// What a path asks for; `None` where it has not the part that the API server knows.
fn asked_by(path: &str, secret: &str) -> Option<Which> {
    let (stated, route) = path.strip_prefix('/')?.split_at_checked(secret.len())?;
    let is_known = verify_slices_are_equal(stated.as_bytes(), secret.as_bytes()).is_ok();
    QUESTIONS.into_iter().find(|which| is_known && route_of(*which) == route)
}

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
    let secret = shared.path_secret.borrow().clone();
    let Some(which) = secret.and_then(|secret| asked_by(path, &secret)) else {
        let reason = "the webhook answers the API server alone, which knows its paths";
        return refuse(StatusCode::NOT_FOUND, reason);
    };
    if request.method() != Method::POST {
        return refuse(
            StatusCode::METHOD_NOT_ALLOWED,
            "the webhook takes POST with an AdmissionReview",
        );
    }
    // A stated length is believed at once.
    if request.body().size_hint().lower() > REVIEW_BYTES as u64 {
        let reason = format!("a review has at most {REVIEW_BYTES} bytes");
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, &reason);
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
    let asked = match admission::read(&body) {
        Ok(asked) => asked,
        Err(reason) => return refuse(StatusCode::BAD_REQUEST, &reason),
    };
    let dapr = match asked.namespace_of_dapr() {
        Some(namespace) => shared.dapr.objects(namespace).await,
        None => Ok(None),
    };
    let answered = match dapr {
        Ok(objects) => asked.answer(which, &settings, objects),
        Err(why) => Ok(asked.refuse_for_now(&why)),
    };
    match answered {
        Ok(Answer { review, outcome, notes }) => {
            shared.count(outcome);
            if let Some(notes) = notes {
                shared.events.add(notes);
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::SystemTime;

    use k8s_openapi::api::core::v1::ConfigMap;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::{mpsc, watch};
    use tokio_rustls::TlsConnector;
    use tollway_inject::Settings;
    use tollway_telemetry::AdminFacts;

    use super::super::dapr::DaprReader;
    use super::super::reconcile::server_config;
    use super::*;
    use crate::events::Events;
    use crate::follow::Seen;
    use crate::own_certificate::{OwnCertificate, Plan, Purpose, carry_out};

    const NAME: &str = "tollway-injector.tollway.svc";

    struct World {
        shared: Arc<Shared>,
        address: SocketAddr,
        credentials: OwnCertificate,
    }

    impl World {
        /// With a certificate, and the root of the network.
        async fn start() -> Self {
            let world = Self::empty().await;
            world.certify();
            let pin = format!("tollway1-root.west.{}", "A".repeat(43));
            let data = Some([(crate::ROOT_PIN_KEY.to_owned(), pin)].into());
            world.shared.root.send_replace(Seen::There(ConfigMap { data, ..ConfigMap::default() }));
            world
        }

        async fn empty() -> Self {
            let shared = Arc::new(Shared {
                settings: Settings::new("tollway:1", "control:15010"),
                needs_root: true,
                root: watch::Sender::default(),
                tls: watch::Sender::default(),
                certificate_ends: Default::default(),
                events: Events::into(mpsc::channel(1).0),
                dapr: DaprReader::of(None),
                path_secret: watch::Sender::new(Some("0123".to_owned())),
                reviews: Default::default(),
            });
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(serve(listener, Arc::clone(&shared)));
            let names = vec![NAME.to_owned()];
            let purpose = Purpose { holder: "tollway-injector", names, is_of_clients: false };
            let made = carry_out(&Plan::Begin, None, &purpose, SystemTime::now());
            let credentials = made.unwrap().unwrap();
            Self { shared, address, credentials }
        }

        fn certify(&self) {
            let config = server_config(&self.credentials).unwrap();
            self.shared.tls.send_replace(Some(Arc::new(config)));
        }

        /// Sends bytes as the API server would, and returns the answer; none if the handshake fails.
        async fn send(&self, request: &[u8]) -> Option<String> {
            self.send_as(false, request).await
        }

        /// The same, with a certificate of the caller's or without one.
        async fn send_as(&self, is_shown: bool, request: &[u8]) -> Option<String> {
            let mut roots = rustls::RootCertStore::empty();
            let authority = CertificateDer::from_pem_slice(self.credentials.authorities.as_bytes());
            roots.add(authority.unwrap()).unwrap();
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let config = rustls::ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots);
            let config = if is_shown {
                let chain = CertificateDer::from_pem_slice(self.credentials.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(self.credentials.key.as_bytes());
                config.with_client_auth_cert(vec![chain.unwrap()], key.unwrap()).unwrap()
            } else {
                config.with_no_client_auth()
            };
            let stream = TcpStream::connect(self.address).await.unwrap();
            let name = ServerName::try_from(NAME).unwrap();
            let mut stream =
                TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()?;
            let _ = stream.write_all(request).await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            Some(String::from_utf8_lossy(&answer).into_owned())
        }

        async fn post(&self, path: &str, body: &str) -> String {
            self.post_as(false, path, body).await
        }

        async fn post_as(&self, is_shown: bool, path: &str, body: &str) -> String {
            let length = body.len();
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: {NAME}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
            );
            self.send_as(is_shown, (head + body).as_bytes()).await.unwrap()
        }
    }

    fn review() -> String {
        let pod = serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
            "spec": {"containers": [{"name": "app", "image": "app:1"}]},
        });
        serde_json::json!({"request": {"uid": "u", "namespace": "shop", "object": pod}}).to_string()
    }

    #[tokio::test]
    async fn a_pod_is_answered_for_by_the_route_of_its_namespace() {
        let world = World::start().await;
        let answer = world.post("/0123/pods-of-marked-namespaces", &review()).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("JSONPatch"), "{answer}");
        let answer = world.post("/0123/pods", &review()).await;
        assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains("patch"), "{answer}");
        let counts = world
            .shared
            .reviews
            .each_ref()
            .map(|count| count.load(std::sync::atomic::Ordering::Relaxed));
        assert_eq!(counts, [1, 1, 0]);
    }

    /// The harm: who reaches the port learns what is added to pods, and the objects of their namespaces.
    #[tokio::test]
    async fn no_caller_is_answered_who_does_not_know_the_path_whatever_it_shows() {
        let world = World::start().await;
        let page = include_str!("../../../../docs/security.md");
        let row = page.lines().find(|line| line.starts_with("| webhook (")).expect("it has a row");
        for route in QUESTIONS.map(route_of) {
            assert!(
                row.contains(&format!("`/…{route}`")),
                "docs/security.md does not name {route}"
            );
            let guess = |secret: &str| format!("/{secret}{route}");
            let guesses =
                ["", "0124", "012", "01234", "/0123", "0123/", "0123/..", "%30123", "0123%2f"];
            for is_shown in [false, true] {
                for path in guesses.map(guess) {
                    let answer = world.post_as(is_shown, &path, &review()).await;
                    assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
                    assert!(!answer.contains("response") && !answer.contains("0123"), "{answer}");
                }
                let answer = world.post_as(is_shown, &guess("0123"), &review()).await;
                assert!(answer.starts_with("HTTP/1.1 200"), "{route}: {answer}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_question_about_a_pod_is_refused_with_what_is_wrong() {
        let world = World::start().await;
        for (path, body, status) in [
            ("/0123/other", "{}", "404"),
            ("/pods", "{}", "404"),
            ("/0124/pods", "{}", "404"),
            ("/0123/pods", "{", "400"),
            ("/0123/pods", "{}", "400"),
        ] {
            let answer = world.post(path, body).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
        }
        let get = format!("GET /0123/pods HTTP/1.1\r\nhost: {NAME}\r\nconnection: close\r\n\r\n");
        assert!(world.send(get.as_bytes()).await.unwrap().starts_with("HTTP/1.1 405"));
        let large = format!(
            "POST /0123/pods HTTP/1.1\r\nhost: {NAME}\r\ncontent-length: {}\r\n\r\n{{",
            REVIEW_BYTES + 1
        );
        assert!(world.send(large.as_bytes()).await.unwrap().starts_with("HTTP/1.1 413"));
        assert_eq!(world.send(b"nonsense\r\n\r\n").await.unwrap().get(..12), Some("HTTP/1.1 400"));
    }

    #[tokio::test]
    async fn it_is_not_ready_without_a_certificate_or_a_root() {
        let world = World::empty().await;
        assert_eq!(world.send(b"GET / HTTP/1.1\r\n\r\n").await, None);
        assert!(AdminFacts::ready(&*world.shared).unwrap_err().contains("certificate"));
        world.certify();
        assert!(AdminFacts::ready(&*world.shared).unwrap_err().contains("root"));
        let answer = world.post("/0123/pods-of-marked-namespaces", &review()).await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("root"), "{answer}");
    }
}
