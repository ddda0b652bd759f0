//! A sidecar's duties on the app's side: the number of requests at a time, health, and TLS for apps
//! that require it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tollway_testkit::{Process, Start, TempDir, free_port, retry_until, skip};
use tollway_wire::dapr::proto::common::v1::InvokeRequest;
use tollway_wire::dapr::proto::runtime::v1::app_callback_client::AppCallbackClient;

use super::app::GrpcApp;
use super::{call, invoke, message, sdk, text_of};
use tollway_tests::mesh::http::{Client, Version, full, get, runtime};
use tollway_tests::mesh::{Mesh, PATIENCE, Sidecar, counter};

/// An app whose answers wait until the test lets them go.
#[derive(Clone, Default)]
struct Busy(Arc<BusyState>);

#[derive(Default)]
struct BusyState {
    now: AtomicUsize,
    most: AtomicUsize,
    seen: AtomicUsize,
    go: Notify,
    is_open: AtomicBool,
    is_ill: AtomicBool,
}

/// A body whose end the test decides.
struct Held(mpsc::Receiver<Bytes>);

impl Body for Held {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|data| data.map(|data| Ok(Frame::data(data))))
    }
}

impl Busy {
    /// Serves HTTP/1.1 and HTTP/2 on a port of loopback, as long as the runtime lives.
    async fn serve(&self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let app = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let app = app.clone();
                let service = service_fn(move |request| {
                    let app = app.clone();
                    async move { Ok::<_, std::convert::Infallible>(app.answer(&request)) }
                });
                tokio::spawn(async move {
                    let builder = Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        port
    }

    /// The head at once, the body's end when the test sends it.
    fn answer(&self, request: &Request<Incoming>) -> Response<Held> {
        let (sender, body) = mpsc::channel(1);
        let mut answer = Response::new(Held(body));
        if request.uri().path() == "/healthz" {
            if self.0.is_ill.load(Ordering::Relaxed) {
                *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            return answer;
        }
        if request.uri().path() == "/dapr/config" {
            *answer.status_mut() = StatusCode::NOT_FOUND;
            return answer;
        }
        let state = Arc::clone(&self.0);
        let now = state.now.fetch_add(1, Ordering::Relaxed) + 1;
        state.most.fetch_max(now, Ordering::Relaxed);
        state.seen.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let _ = sender.send(Bytes::from_static(b"beginning ")).await;
            while !state.is_open.load(Ordering::Relaxed) {
                tokio::select! {
                    () = state.go.notified() => {}
                    () = tokio::time::sleep(Duration::from_millis(10)) => {}
                }
            }
            state.now.fetch_sub(1, Ordering::Relaxed);
            let _ = sender.send(Bytes::from_static(b"end")).await;
        });
        answer
    }

    fn seen(&self) -> usize {
        self.0.seen.load(Ordering::Relaxed)
    }
}

fn beside(mesh: &Mesh, port: u16, protocol: &str, options: &[&str]) -> Sidecar {
    let app = ["--app-port", &port.to_string(), "--app-protocol", protocol];
    mesh.east.sidecar("busy", &[&app, options].concat())
}

/// A call of the busy app, under way.
struct Waiting {
    /// The head of its answer is there.
    has_begun: Arc<AtomicBool>,
    /// Status and body.
    answer: JoinHandle<(u16, String)>,
}

impl Waiting {
    fn at(entrance: SocketAddr) -> Self {
        let has_begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&has_begun);
        let answer = tokio::spawn(async move {
            let path = format!("http://{entrance}/v1.0/invoke/busy.default.east/method/work");
            let mut client = Client::connect(Version::Http1, entrance).await;
            let request = Request::get(path).body(full("")).unwrap();
            let (head, body) = client.send(request).await.into_parts();
            begins.store(true, Ordering::Relaxed);
            let body = body.collect().await.unwrap().to_bytes();
            (head.status.as_u16(), String::from_utf8(body.to_vec()).unwrap())
        });
        Self { has_begun, answer }
    }
}

#[test]
fn an_app_has_as_many_requests_at_a_time_as_it_may() {
    let mesh = Mesh::start();
    for protocol in ["http", "h2c"] {
        let (runtime, app) = (runtime(), Busy::default());
        let port = runtime.block_on(app.serve());
        let options = ["--app-max-concurrency", "2", "--limit", "waiting_per_service=4"];
        let sidecar = beside(&mesh, port, protocol, &options);
        let caller = mesh.west.caller(&[]);
        caller.until_served("busy.default.east");
        let entrance = caller.http();
        runtime.block_on(async {
            let mut calls: Vec<_> = (0..9).map(|_| Waiting::at(entrance)).collect();
            // Two have begun their answers and not ended them, four wait, and no more may.
            let mut refused = 0;
            while refused < 3 {
                tokio::time::sleep(Duration::from_millis(10)).await;
                let over = calls.iter().position(|call| call.answer.is_finished());
                let Some(over) = over else { continue };
                let (status, reported) = calls.remove(over).answer.await.unwrap();
                assert_eq!(status, 503, "{reported}");
                assert!(
                    reported.contains("ERR_OVERLOADED") && reported.contains("(4)"),
                    "{reported}"
                );
                refused += 1;
            }
            let has_begun = |call: &Waiting| call.has_begun.load(Ordering::Relaxed);
            while calls.iter().filter(|call| has_begun(call)).count() < 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert_eq!((app.seen(), calls.len()), (2, 6), "{protocol}");
            // A caller that gives up while it waits is forgotten, and the app never sees its
            // request.
            let cancelled = || counter(&sidecar.process, "tollway_requests_cancelled_total");
            let before = cancelled();
            let waits = calls.iter().position(|call| !has_begun(call)).unwrap();
            calls.remove(waits).answer.abort();
            let began = std::time::Instant::now();
            while cancelled() == before {
                assert!(began.elapsed() < PATIENCE, "{protocol}: nobody notices");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            app.0.is_open.store(true, Ordering::Relaxed);
            app.0.go.notify_waiters();
            for call in calls {
                let answer = call.answer.await.unwrap();
                assert_eq!(answer, (200, "beginning end".to_owned()), "{protocol}");
            }
            assert_eq!(app.seen(), 5, "{protocol}");
        });
        assert_eq!(app.0.most.load(Ordering::Relaxed), 2, "{protocol}");
    }
}

#[test]
fn calls_that_are_translated_count_too() {
    let mesh = Mesh::start();
    let (runtime, app) = (runtime(), GrpcApp::default());
    let address = runtime.block_on(app.serve());
    let _sidecar = beside(&mesh, address.port(), "grpc", &["--app-max-concurrency", "1"]);
    let caller = mesh.west.caller(&[]);
    caller.until_served("busy.default.east");
    runtime.block_on(async {
        let entrance = caller.grpc();
        let calls: Vec<_> = (0..8)
            .map(|_| tokio::spawn(invoke(entrance, "busy.default.east", message("slow", "x"))))
            .collect();
        for call in calls {
            assert_eq!(text_of(&call.await.unwrap().unwrap().into_inner()), "x");
        }
    });
    assert_eq!(app.most_at_once(), 1);
}

#[test]
fn an_ill_app_gets_no_calls_until_it_is_well() {
    let mesh = Mesh::start();
    let (runtime, app) = (runtime(), Busy::default());
    app.0.is_open.store(true, Ordering::Relaxed);
    let port = runtime.block_on(app.serve());
    let checked = [
        "--enable-app-health-check",
        "--app-health-probe-interval-ms",
        "50",
        "--app-health-threshold",
        "2",
    ];
    let sidecar = beside(&mesh, port, "http", &checked);
    let caller = mesh.west.caller(&[]);
    let until = |what: &str, is_well: bool| {
        app.0.is_ill.store(!is_well, Ordering::Relaxed);
        let health = if is_well { "HTTP/1.1 204" } else { "HTTP/1.1 500" };
        let answered = if is_well { "HTTP/1.1 200" } else { "HTTP/1.1 503" };
        let done = retry_until(PATIENCE, what, || {
            let reported = get(sidecar.http(), "/v1.0/healthz");
            let called = get(caller.http(), "/v1.0/invoke/busy.default.east/method/work");
            (reported.starts_with(health) && called.starts_with(answered))
                .then_some((reported, called))
        });
        done.map_err(|error| error.context(sidecar.process.log())).unwrap()
    };
    until("a well app", true);
    let (reported, called) = until("an ill app", false);
    assert!(reported.contains("dapr is not ready: [app]"), "{reported}");
    assert!(called.contains("ERR_NO_READY_ENDPOINT"), "{called}");
    until("an app that is well again", true);
    let shown = get(sidecar.http(), "/v1.0/metadata");
    assert!(shown.contains("\"healthCheckPath\":\"/healthz\""), "{shown}");
    assert!(shown.contains("\"healthProbeInterval\":\"50ms\""), "{shown}");
}

#[test]
fn an_app_of_grpc_is_asked_in_its_own_way() {
    let mesh = Mesh::start();
    let (runtime, app) = (runtime(), GrpcApp::default());
    let address = runtime.block_on(app.serve());
    let checked = ["--enable-app-health-check", "--app-health-probe-interval-ms", "50"];
    let sidecar = beside(&mesh, address.port(), "grpc", &checked);
    let until = |status: &str| {
        let reported = retry_until(PATIENCE, status, || {
            get(sidecar.http(), "/v1.0/healthz").starts_with(status).then_some(())
        });
        reported.map_err(|error| error.context(sidecar.process.log())).unwrap();
    };
    until("HTTP/1.1 204");
    app.be_ill(true);
    until("HTTP/1.1 500");
    app.be_ill(false);
    until("HTTP/1.1 204");
}

/// An app with a self-signed certificate.
fn tls_app(files: &TempDir, protocol: &str) -> Result<(Process, u16), String> {
    let python: PathBuf = sdk::python()?;
    let port = free_port().unwrap();
    let made = rcgen::generate_simple_self_signed(["nobody.example".to_owned()]).unwrap();
    let (certificate, key) = (files.path().join("cert.pem"), files.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let app = Start::new(python)
        .arg(sdk::script("tls_app.py"))
        .args([protocol, &port.to_string()])
        .args([certificate, key])
        .start()
        .unwrap();
    Ok((app, port))
}

#[test]
fn an_app_may_speak_tls_with_any_certificate() {
    for protocol in ["https", "grpcs"] {
        let files = TempDir::new().unwrap();
        let (app, port) = match tls_app(&files, protocol) {
            Ok(started) => started,
            Err(reason) => skip!("{reason}"),
        };
        let mesh = Mesh::start();
        let sidecar = beside(&mesh, port, protocol, &["--enable-app-health-check"]);
        let caller = mesh.west.caller(&[]);
        let ready = retry_until(PATIENCE, "an app over TLS", || {
            get(sidecar.http(), "/v1.0/healthz").starts_with("HTTP/1.1 204").then_some(())
        });
        ready.map_err(|error| error.context(sidecar.process.log()).context(app.log())).unwrap();
        caller.until_served("busy.default.east");
        runtime().block_on(async {
            let path = "/v1.0/invoke/busy.default.east/method/order";
            let (status, _, reported) = call(caller.http(), "POST", path, &[], "one").await;
            assert_eq!((status.as_u16(), reported.as_str()), (200, "order one"), "{protocol}");
            let asked = invoke(caller.grpc(), "busy.default.east", message("order", "two")).await;
            assert_eq!(text_of(&asked.unwrap().into_inner()), "order two", "{protocol}");
            if protocol == "grpcs" {
                let entrance = format!("http://{}", caller.grpc());
                let endpoint = tonic::transport::Endpoint::from_shared(entrance).unwrap();
                let mut proxied = AppCallbackClient::new(endpoint.connect().await.unwrap());
                let asked = InvokeRequest { method: "order".to_owned(), ..Default::default() };
                let mut request = tonic::Request::new(asked);
                request.metadata_mut().insert("dapr-app-id", "busy.default.east".parse().unwrap());
                let reported = proxied.on_invoke(request).await.unwrap().into_inner();
                assert_eq!(text_of(&reported), "order ");
            }
        });
        let shown = get(sidecar.http(), "/v1.0/metadata");
        assert!(shown.contains(&format!("\"protocol\":\"{protocol}\"")), "{shown}");
    }
}
