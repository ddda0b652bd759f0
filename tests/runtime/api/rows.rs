//! Rows of Dapr's tables of invocation, one by one: forms of an app's name, verbs, statuses, bad
//! names.

use std::convert::Infallible;
use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tollway_wire::dapr::proto::common::v1::InvokeRequest;
use tollway_wire::dapr::proto::common::v1::http_extension::Verb;
use tollway_wire::dapr::proto::runtime::v1::app_callback_client::AppCallbackClient;
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::{call, invoke, message, text_of};
use tollway_tests::mesh::http::runtime;
use tollway_tests::mesh::{AppProtocol, Mesh, Sidecar};

const APP: &str = "teller.default.east";

/// An app that returns the request, with the status that the path names.
async fn serve() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service =
                service_fn(|request| async { Ok::<_, Infallible>(describe(request).await) });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

async fn describe(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let field = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap());
    let reported = json!({
        "method": head.method.as_str(),
        "target": head.uri.to_string(),
        "body": String::from_utf8_lossy(&body),
        "app_id": field("dapr-app-id"),
        "authorization": field("authorization"),
    });
    let status = head.uri.path().rsplit('/').next().and_then(|last| last.parse().ok());
    let mut answer = Response::new(Full::from(reported.to_string()));
    *answer.status_mut() = status.unwrap_or(StatusCode::OK);
    answer.headers_mut().insert("x-method", head.method.as_str().parse().unwrap());
    answer
}

/// A caller in one network, the app in the other.
struct Far {
    // Fields are dropped in order: who uses something ends before it does.
    caller: Sidecar,
    sidecar: Sidecar,
    runtime: tokio::runtime::Runtime,
    _mesh: Mesh,
}

impl Far {
    fn start() -> Self {
        let (mesh, runtime) = (Mesh::start(), runtime());
        let address = runtime.block_on(serve());
        let sidecar = mesh.east.sidecar_of("teller", address.port(), AppProtocol::Http);
        let caller = mesh.west.caller(&[]);
        caller.until_served(APP);
        Self { caller, sidecar, runtime, _mesh: mesh }
    }
}

#[test]
fn an_app_is_named_by_header_then_by_credentials_then_by_the_path() {
    let far = Far::start();
    // The password of `dapr-app-id` is the app: a known one first, then an unknown one.
    let to_app = "Basic ZGFwci1hcHAtaWQ6dGVsbGVyLmRlZmF1bHQuZWFzdA==";
    let to_nobody = "Basic ZGFwci1hcHAtaWQ6bm9ib2R5LmRlZmF1bHQuZWFzdA==";
    let foreign = "Basic dXNlcjpwYXNzd29yZA==";
    let (id, authorization) = ("dapr-app-id", "authorization");
    let in_path = |path: &str| format!("/v1.0/invoke/{APP}/method{path}");
    let nobody = "/v1.0/invoke/nobody.default.east/method/x";
    let cases = [
        (in_path("/a/b?c=%2F&d"), vec![], "/a/b?c=%2F&d"),
        (in_path("/a/method/b"), vec![], "/a/method/b"),
        (in_path("/a%20b"), vec![], "/a%20b"),
        (in_path(""), vec![], "/"),
        (in_path("?a=b"), vec![], "/?a=b"),
        ("/v1.0//invoke//teller.default.east//method//a".into(), vec![], "/a"),
        ("/v1.0/invoke/tell%65r.default.east/method/a".into(), vec![], "/a"),
        ("/v1.0/invoke/TELLER.Default.EAST/method/a".into(), vec![], "/a"),
        ("/a?b".into(), vec![(id, APP)], "/a?b"),
        ("/".into(), vec![(id, APP)], "/"),
        (nobody.into(), vec![(id, APP)], nobody),
        ("/a".into(), vec![(id, APP), (authorization, to_nobody)], "/a"),
        ("/a?b".into(), vec![(authorization, to_app)], "/a?b"),
        (nobody.into(), vec![(authorization, to_app)], nobody),
        (in_path("/a"), vec![(authorization, foreign)], "/a"),
    ];
    far.runtime.block_on(async {
        for (path, fields, target) in cases {
            let (status, _, reported) = call(far.caller.http(), "GET", &path, &fields, "").await;
            assert_eq!(status, 200, "{path}: {reported}");
            let reported: Value = serde_json::from_str(&reported).unwrap();
            assert_eq!(reported["target"], target, "{path}");
            assert_eq!(reported["app_id"], Value::Null, "{path}");
            // Credentials by which the app was found are not its business; others are.
            let shown = fields.iter().find(|field| field.0 == authorization && field.1 != to_app);
            assert_eq!(reported["authorization"], json!(shown.map(|field| field.1)), "{path}");
        }
        // Within a network and a namespace the rest of the name may be left out.
        for short in ["teller", "teller.default", APP] {
            let path = format!("/v1.0/invoke/{short}/method/a");
            let (status, _, reported) = call(far.sidecar.http(), "GET", &path, &[], "").await;
            assert_eq!(status, 200, "{short}: {reported}");
        }
    });
}

#[test]
fn each_verb_arrives_as_it_is() {
    let far = Far::start();
    let path = format!("/v1.0/invoke/{APP}/method/verb");
    far.runtime.block_on(async {
        for verb in ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "REPORT"]
        {
            let body = if matches!(verb, "HEAD" | "TRACE") { "" } else { "hello" };
            let (status, fields, reported) = call(far.caller.http(), verb, &path, &[], body).await;
            assert_eq!((status.as_u16(), fields["x-method"].to_str().unwrap()), (200, verb));
            if verb != "HEAD" {
                let reported: Value = serde_json::from_str(&reported).unwrap();
                assert_eq!((&reported["method"], &reported["body"]), (&json!(verb), &json!(body)));
            }
        }
        for (verb, method) in [
            (Verb::None, "POST"),
            (Verb::Get, "GET"),
            (Verb::Head, "HEAD"),
            (Verb::Post, "POST"),
            (Verb::Put, "PUT"),
            (Verb::Delete, "DELETE"),
            (Verb::Options, "OPTIONS"),
            (Verb::Trace, "TRACE"),
            (Verb::Patch, "PATCH"),
        ] {
            let mut asked = message("verb", "");
            asked.http_extension.as_mut().unwrap().set_verb(verb);
            let answer = invoke(far.caller.grpc(), APP, asked).await.unwrap();
            assert_eq!(answer.metadata().get("x-method").unwrap(), method);
        }
    });
}

/// The whole table of codes is in the runtime's `codes.rs`; here is one status of each class.
#[test]
fn a_status_of_an_app_is_its_callers() {
    let far = Far::start();
    let statuses = [
        (200, Code::Ok),
        (206, Code::Ok),
        (301, Code::Unknown),
        (404, Code::NotFound),
        (503, Code::Unavailable),
        (599, Code::Unknown),
    ];
    far.runtime.block_on(async {
        for (status, code) in statuses {
            let path = format!("/v1.0/invoke/{APP}/method/status/{status}");
            let (got, fields, reported) =
                call(far.caller.http(), "POST", &path, &[], "hello").await;
            assert_eq!(got.as_u16(), status, "{reported}");
            assert!(reported.contains("\"body\":\"hello\""), "{status}: {reported}");
            assert!(!fields.contains_key("x-tollway-error"), "{status}: {fields:?}");

            let method = format!("status/{status}");
            let answer = invoke(far.caller.grpc(), APP, message(&method, "hello")).await;
            let metadata = match &answer {
                Ok(answer) => answer.metadata(),
                Err(refused) => refused.metadata(),
            };
            assert_eq!(metadata.get("dapr-http-status").unwrap(), &status.to_string());
            let refused = match answer {
                Ok(answer) => {
                    assert_eq!(code, Code::Ok, "{status}");
                    assert!(text_of(answer.get_ref()).contains("\"body\":\"hello\""));
                    continue;
                }
                Err(refused) => refused,
            };
            assert_eq!(refused.code(), code, "{status}: {refused}");
            let info = refused.get_details_error_info().unwrap();
            assert_eq!(info.domain, "dapr.io");
            assert_eq!(info.metadata["http.code"], status.to_string());
            // As much of the body as Dapr returns.
            let reported = &info.metadata["http.error_message"];
            assert!(reported.len() <= 63 && reported.starts_with("{\"app_id\""), "{reported}");
        }
    });
}

/// What a proxied call of gRPC is refused with.
async fn proxied(entrance: SocketAddr, id: Option<&str>) -> Status {
    let endpoint = Endpoint::from_shared(format!("http://{entrance}")).unwrap();
    let mut app = AppCallbackClient::new(endpoint.connect().await.unwrap());
    let mut request = tonic::Request::new(InvokeRequest::default());
    if let Some(id) = id {
        request.metadata_mut().insert("dapr-app-id", id.parse().unwrap());
    }
    app.on_invoke(request).await.unwrap_err()
}

#[test]
fn names_that_lead_nowhere_are_refused_alike_on_every_way() {
    let mesh = Mesh::start();
    let caller = mesh.west.caller(&[]);
    let long = "a".repeat(64);
    let (bad, unknown) = ("ERR_BAD_NAME", "ERR_UNKNOWN_SERVICE");
    let (http, grpc) = (caller.http(), caller.grpc());
    runtime().block_on(async {
        for (id, code, status) in [
            ("a.b.c.d", bad, 400),
            ("a..b", bad, 400),
            (".a", bad, 400),
            ("a.", bad, 400),
            ("a b", bad, 400),
            ("a/../b", bad, 400),
            ("a:80", bad, 400),
            (long.as_str(), bad, 400),
            ("nobody", unknown, 404),
            ("nobody.other", unknown, 404),
            ("nobody.default.east", unknown, 404),
            ("teller.default.south", "ERR_UNKNOWN_NETWORK", 404),
        ] {
            let escaped = id.replace('/', "%2F").replace(' ', "%20");
            let path = format!("/v1.0/invoke/{escaped}/method/x");
            for (path, fields) in [(path.as_str(), vec![]), ("/x", vec![("dapr-app-id", id)])] {
                let (got, _, reported) = call(http, "GET", path, &fields, "").await;
                assert_eq!(got.as_u16(), status, "{path} {id}: {reported}");
                assert!(
                    reported.contains(&format!("\"errorCode\":\"{code}\"")),
                    "{id}: {reported}"
                );
            }
            let refused = proxied(grpc, Some(id)).await;
            let number = if status == 400 { Code::InvalidArgument } else { Code::Unimplemented };
            assert_eq!(refused.code(), number, "{id}: {refused}");
            assert_eq!(refused.metadata().get("x-tollway-error").unwrap(), code, "{id}");
            let refused = invoke(grpc, id, message("x", "")).await.unwrap_err();
            let number = if status == 400 { Code::InvalidArgument } else { Code::NotFound };
            assert_eq!(refused.code(), number, "{id}: {refused}");
            assert!(refused.message().starts_with(&format!("failed to invoke, id: {id}, err: ")));
        }
        let refused = proxied(grpc, None).await;
        assert_eq!(refused.metadata().get("x-tollway-error").unwrap(), "ERR_DIRECT_INVOKE");
        assert!(refused.message().contains("dapr-app-id"), "{refused}");
    });
}
