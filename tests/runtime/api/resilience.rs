//! Resiliency files: calls of apps and actors that are tried again, end in time, or are not made.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tollway_testkit::{RawClient, retry_until};
use tollway_wire::dapr::proto::common::v1::InvokeRequest;
use tollway_wire::dapr::proto::runtime::v1::app_callback_client::AppCallbackClient;
use tonic::Code;
use tonic::transport::Endpoint;

use super::app::GrpcApp;
use super::daprd::{Daprd, file};
use super::{call, invoke, message, text_of};
use tollway_tests::mesh::http::{Client, Version, get, runtime};
use tollway_tests::user::{PATIENCE, User};

pub(crate) const RULES: &str = "
apiVersion: dapr.io/v1alpha1
kind: Resiliency
metadata: {name: rules}
scopes: [caller]
spec:
  policies:
    timeouts: {short: 400ms}
    retries:
      often: {policy: constant, duration: 20ms, maxRetries: 3}
      picky: {policy: exponential, maxInterval: 50ms, maxRetries: 3, matching: {httpStatusCodes: '500-502', gRPCStatusCodes: '14'}}
    circuitBreakers:
      soon: {maxRequests: 1, timeout: 5s, trip: consecutiveFailures >= 3}
  targets:
    apps:
      flaky: {timeout: short, retry: often}
      picky.default: {retry: picky}
      broken: {circuitBreaker: soon}
    actors:
      Cart: {retry: often}
      Slow: {timeout: short}
      ById: {circuitBreaker: soon, circuitBreakerScope: id}
      ByType: {circuitBreaker: soon, circuitBreakerScope: type}
      ByBoth: {circuitBreaker: soon, circuitBreakerScope: both}
";

/// An app that fails for a while: `/…/fails/N/KEY` so many times, `/…/slow/N/KEY` by taking too long.
#[derive(Clone, Default)]
pub(crate) struct Flaky(Arc<Mutex<HashMap<String, usize>>>);

impl Flaky {
    pub(crate) async fn serve(&self) -> u16 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let app = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let app = app.clone();
                let service = service_fn(move |request| {
                    let app = app.clone();
                    async move { Ok::<_, Infallible>(app.answer(request).await) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        port
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        if path == "/dapr/config" {
            return said(
                StatusCode::OK,
                r#"{"entities":["Cart","Slow","ById","ByType","ByBoth"]}"#,
            );
        }
        let reported = |name: &str| {
            let values = request.headers().get_all(name).iter();
            values.map(|value| value.to_str().unwrap()).collect::<Vec<_>>().join("|")
        };
        let who = format!(
            "{} {} {}",
            reported("dapr-caller-app-id"),
            reported("x-forwarded-for"),
            reported("dapr-app-id")
        );
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let body = format!("{} of {who}", String::from_utf8_lossy(&body));
        let parts: Vec<&str> = path.rsplitn(4, '/').collect();
        let [key, count, how, ..] = parts[..] else { return said(StatusCode::OK, &body) };
        let seen = {
            let mut seen = self.0.lock().unwrap();
            let seen = seen.entry(key.to_owned()).or_default();
            *seen += 1;
            *seen
        };
        let is_bad = seen <= count.parse().unwrap_or(0);
        match how {
            "fails" if is_bad => said(StatusCode::SERVICE_UNAVAILABLE, "not yet"),
            "slow" if is_bad => {
                tokio::time::sleep(Duration::from_secs(20)).await;
                said(StatusCode::OK, "late")
            }
            _ => said(StatusCode::OK, &body),
        }
    }

    /// How often a key was requested.
    pub(crate) fn seen(&self, key: &str) -> usize {
        self.0.lock().unwrap().get(key).copied().unwrap_or_default()
    }
}

fn said(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(text.to_owned()));
    *answer.status_mut() = status;
    answer
}

/// The names of the app.
const NAMES: [&str; 3] = ["flaky", "picky", "broken"];

/// Three names for one app, and who calls it under the rules.
pub(crate) struct Ruled {
    pub(crate) caller: Daprd,
    callees: Vec<Daprd>,
    pub(crate) app: Flaky,
    runtime: tokio::runtime::Runtime,
    _user: User,
}

impl Ruled {
    pub(crate) fn start() -> Self {
        let (user, runtime, app) = (User::new(), runtime(), Flaky::default());
        let port = runtime.block_on(app.serve()).to_string();
        let names = NAMES;
        let callees = names.map(|name| Daprd::listening(&user, name, &["--app-port", &port]));
        let rules = file(&user, "rules/rules.yaml", RULES);
        let folder = std::path::Path::new(&rules).parent().unwrap().to_str().unwrap();
        let caller = Daprd::listening(&user, "caller", &["--resources-path", folder]);
        for name in names {
            caller.until_served(name);
        }
        Self { caller, callees: callees.into(), app, runtime, _user: user }
    }

    pub(crate) fn call(&self, path: &str, body: &str) -> (u16, String) {
        self.call_from(&self.caller, path, body)
    }

    /// The same from the sidecar whose app runs the actors: the first one that offered their type.
    pub(crate) fn call_host(&self, path: &str, body: &str) -> (u16, String) {
        let mut answers = self.callees.iter().map(|callee| self.call_from(callee, path, body));
        answers.find(|(_, text)| !text.contains("ERR_ACTOR_TYPE_TAKEN")).unwrap()
    }

    fn call_from(&self, from: &Daprd, path: &str, body: &str) -> (u16, String) {
        let path = format!("/v1.0/{path}");
        let answer = call(from.http(), "POST", &path, &[], body.to_owned());
        let (status, _, text) = self.runtime.block_on(answer);
        (status.as_u16(), text)
    }

    /// The sidecar of a name.
    pub(crate) fn callee(&self, name: &str) -> &Daprd {
        let at = NAMES.iter().position(|known| *known == name).unwrap();
        &self.callees[at]
    }

    fn entrance(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.caller.grpc))
    }
}

#[test]
fn calls_that_fail_are_retried_by_the_rules_of_the_file() {
    let ruled = Ruled::start();
    let well = |text: &str| (200, format!("{text} of caller 127.0.0.1 "));
    assert_eq!(ruled.call("invoke/flaky/method/fails/2/a", "hello"), well("hello"));
    assert_eq!(ruled.app.seen("a"), 3);
    // What is left after the last attempt is the app's own answer.
    assert_eq!(ruled.call("invoke/flaky/method/fails/9/b", ""), (503, "not yet".to_owned()));
    assert_eq!(ruled.app.seen("b"), 4);
    // Each attempt has its time.
    assert_eq!(ruled.call("invoke/flaky/method/slow/2/c", "hello"), well("hello"));
    assert_eq!(ruled.app.seen("c"), 3);
    let (status, reported) = ruled.call("invoke/flaky/method/slow/9/d", "");
    assert!(
        status == 500 && reported.contains("ERR_DIRECT_INVOKE") && reported.contains("400ms"),
        "{reported}"
    );
    assert_eq!(ruled.app.seen("d"), 4);
    // A status that is not among those that are named is no reason.
    assert_eq!(ruled.call("invoke/picky/method/fails/2/e", "").0, 503);
    assert_eq!(ruled.app.seen("e"), 1);
    // A body without a length streams, once.
    let chunked = "POST /v1.0/invoke/flaky/method/fails/1/f HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \
                   chunked\r\nconnection: close\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
    let reported = RawClient::exchange(ruled.caller.http(), chunked, PATIENCE).unwrap().text();
    assert!(reported.starts_with("HTTP/1.1 503") && ruled.app.seen("f") == 1, "{reported}");
    let reported = RawClient::exchange(ruled.caller.http(), chunked, PATIENCE).unwrap().text();
    assert!(
        reported.starts_with("HTTP/1.1 200") && reported.contains("hi of caller"),
        "{reported}"
    );
    // A call by message.
    let asked = message("fails/2/g", "hello");
    let answer = ruled.runtime.block_on(invoke(ruled.entrance(), "flaky", asked)).unwrap();
    assert!(text_of(answer.get_ref()).starts_with("hello of caller"), "{answer:?}");
    assert_eq!(ruled.app.seen("g"), 3);
    // By a host's name and by the header it is the same app.
    let by_header =
        call(ruled.caller.http(), "GET", "/fails/2/h", &[("dapr-app-id", "flaky.default")], "");
    assert_eq!(ruled.runtime.block_on(by_header).0, 200);
}

#[test]
fn a_breaker_makes_no_calls_until_its_rest_is_over() {
    let ruled = Ruled::start();
    let path = "invoke/broken/method/fails/3/a";
    for _ in 0..3 {
        assert_eq!(ruled.call(path, "").0, 503);
    }
    for _ in 0..5 {
        let (status, reported) = ruled.call(path, "");
        assert!(status == 500 && reported.contains("ERR_DIRECT_INVOKE"), "{reported}");
        assert!(reported.contains("broken.default.local /fails/3/a"), "{reported}");
    }
    assert_eq!(ruled.app.seen("a"), 3);
    let refused = get(ruled.caller.http(), &format!("/v1.0/{path}"));
    assert!(refused.contains("x-tollway-error: ERR_CIRCUIT_OPEN"), "{refused}");
    let asked = invoke(ruled.entrance(), "broken", message("fails/3/a", ""));
    let reported = ruled.runtime.block_on(asked).unwrap_err();
    assert_eq!(reported.code(), Code::Internal, "{reported}");
    assert!(
        reported.message().starts_with("failed to invoke, id: broken, err: too many"),
        "{reported}"
    );
    // Another method has another breaker.
    assert_eq!(ruled.call("invoke/broken/method/fails/0/b", "").0, 200);
    let again = retry_until(PATIENCE, "calls being made again", || {
        (ruled.call(path, "").0 == 200).then_some(())
    });
    again.unwrap();
    assert_eq!(ruled.app.seen("a"), 4);
    assert_eq!(ruled.call(path, "").0, 200);
}

#[test]
fn proxied_calls_of_grpc_are_under_rules_too() {
    let (user, runtime, app) = (User::new(), runtime(), GrpcApp::default());
    let port = runtime.block_on(app.serve()).port().to_string();
    let beside = ["--app-port", &port, "--app-protocol", "grpc"];
    let _callee = Daprd::listening(&user, "picky", &beside);
    let rules = file(&user, "rules/rules.yaml", RULES);
    let folder = std::path::Path::new(&rules).parent().unwrap().to_str().unwrap();
    let caller = Daprd::listening(&user, "caller", &["--resources-path", folder]);
    caller.until_served("picky");
    runtime.block_on(async {
        let entrance = format!("http://127.0.0.1:{}", caller.grpc);
        let endpoint = Endpoint::from_shared(entrance).unwrap();
        let mut proxied = AppCallbackClient::new(endpoint.connect().await.unwrap());
        for (method, stream, code, calls) in [
            ("order", None, Code::Ok, 1),
            ("fail/14", None, Code::Unavailable, 4),
            ("fail/14", Some("false"), Code::Unavailable, 4),
            ("fail/5", None, Code::NotFound, 1),
            // A request marked as a stream is sent once.
            ("order", Some("true"), Code::Ok, 1),
            ("fail/14", Some("true"), Code::Unavailable, 1),
        ] {
            let asked = InvokeRequest { method: method.to_owned(), ..Default::default() };
            let mut request = tonic::Request::new(asked);
            request.metadata_mut().insert("dapr-app-id", "picky".parse().unwrap());
            if let Some(stream) = stream {
                request.metadata_mut().insert("dapr-stream", stream.parse().unwrap());
            }
            let reported = proxied.on_invoke(request).await;
            let got = reported.as_ref().map_or_else(tonic::Status::code, |_| Code::Ok);
            assert_eq!(
                (got, app.all_asked().len()),
                (code, calls),
                "{method} {stream:?}: {reported:?}"
            );
        }
    });
    assert!(get(caller.http(), "/v1.0/healthz").starts_with("HTTP/1.1 204"));
}

#[test]
fn calls_under_rules_that_go_in_a_circle_end() {
    let ruled = Ruled::start();
    let ask = |hops: usize| {
        let list = vec!["10.0.0.1"; hops].join(", ");
        let path = "/v1.0/invoke/flaky/method/a";
        let fields = [("x-forwarded-for", list.as_str())];
        let asked = call(ruled.caller.http(), "GET", path, &fields, "");
        let (status, fields, _) = ruled.runtime.block_on(asked);
        (
            status.as_u16(),
            fields.get("x-tollway-error").map(|code| code.to_str().unwrap().to_owned()),
        )
    };
    assert_eq!(ask(31), (200, None));
    assert_eq!(ask(32), (500, Some("ERR_LOOP".to_owned())));
}

/// Begins a call of gRPC of `picky` with a message of which `mib` are sent, and more never.
fn begin(caller: &Daprd, mib: usize) -> (mpsc::Sender<Bytes>, impl Future<Output = String>) {
    let entrance = SocketAddr::from(([127, 0, 0, 1], caller.grpc));
    let (sender, chunks) = mpsc::channel(1);
    let body = StreamBody::new(ReceiverStream::new(chunks).map(|chunk| Ok(Frame::data(chunk))));
    let path = "/dapr.proto.runtime.v1.AppCallback/OnInvoke";
    let request = Request::builder()
        .method("POST")
        .uri(format!("http://{entrance}{path}"))
        .header("content-type", "application/grpc")
        .header("dapr-app-id", "picky")
        .body(BodyExt::boxed(body))
        .unwrap();
    let filling = sender.clone();
    let asked = async move {
        let mut client = Client::connect(Version::Http2, entrance).await;
        let fill = async {
            let announced = [&[0][..], &(64_u32 << 20).to_be_bytes()].concat();
            let chunks = (0..mib).map(|_| Bytes::from(vec![0; 1 << 20]));
            for chunk in std::iter::once(announced.into()).chain(chunks) {
                // A caller that is refused is read no further.
                if filling.send(chunk).await.is_err() {
                    break;
                }
            }
            std::future::pending::<String>().await
        };
        tokio::select! {
            answer = client.send(request) => {
                let code = answer.headers().get("x-tollway-error");
                code.map_or_else(String::new, |code| code.to_str().unwrap().to_owned())
            }
            never = fill => never,
        }
    };
    (sender, asked)
}

#[test]
fn what_is_read_of_calls_of_grpc_to_be_repeated_is_bounded_over_all() {
    let (user, runtime, app) = (User::new(), runtime(), GrpcApp::default());
    let port = runtime.block_on(app.serve()).port().to_string();
    let beside = ["--app-port", &port, "--app-protocol", "grpc"];
    let _callee = Daprd::listening(&user, "picky", &beside);
    let rules = file(&user, "rules/rules.yaml", RULES);
    let folder = std::path::Path::new(&rules).parent().unwrap().to_str().unwrap();
    let flags = ["--resources-path", folder, "--max-body-size", "64Mi"];
    let caller = Daprd::listening(&user, "caller", &flags);
    caller.until_served("picky");
    runtime.block_on(async {
        let ((_first, one), (_second, other)) = (begin(&caller, 40), begin(&caller, 40));
        let refused = async {
            tokio::select! { code = one => code, code = other => code }
        };
        let code = tokio::time::timeout(PATIENCE, refused).await.expect("one of them is refused");
        assert_eq!(code, "ERR_OVERLOADED");
    });
    // Both have gone, and what they held.
    let served = retry_until(PATIENCE, "room again", || {
        let reported = runtime.block_on(async {
            let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", caller.grpc));
            let channel = endpoint.unwrap().connect().await.unwrap();
            let mut proxied = AppCallbackClient::new(channel);
            let value = vec![7; 3 << 20];
            let data = Some(prost_types::Any { type_url: String::new(), value });
            let asked = InvokeRequest { method: "order".to_owned(), data, ..Default::default() };
            let mut request = tonic::Request::new(asked);
            request.metadata_mut().insert("dapr-app-id", "picky".parse().unwrap());
            proxied.on_invoke(request).await.map(drop)
        });
        reported.ok()
    });
    served.unwrap();
}
