//! The four combinations of caller and app: each may use HTTP or gRPC.

use tollway_wire::dapr::proto::common::v1::http_extension::Verb;
use tonic::Code;
use tonic_types::StatusExt;

use super::app::{DETAILS, GrpcApp};
use super::{call, client, invoke, message, text_of};
use tollway_tests::mesh::http::runtime;
use tollway_tests::mesh::{AppProtocol, Mesh, Sidecar};

const HTTP_APP: &str = "echo.default.east";
const GRPC_APP: &str = "greeter.default.east";

/// A caller in one network, an app of gRPC in the other.
struct Far {
    // Fields are dropped in order: who uses something ends before it does.
    caller: Sidecar,
    _sidecar: Sidecar,
    app: GrpcApp,
    runtime: tokio::runtime::Runtime,
    _mesh: Mesh,
}

impl Far {
    fn start() -> Self {
        let mesh = Mesh::start();
        let (runtime, app) = (runtime(), GrpcApp::default());
        let address = runtime.block_on(app.serve());
        let sidecar = mesh.east.sidecar_of("greeter", address.port(), AppProtocol::Grpc);
        let caller = mesh.west.caller(&[]);
        caller.until_served(GRPC_APP);
        Self { caller, _sidecar: sidecar, app, runtime, _mesh: mesh }
    }
}

#[test]
fn a_message_calls_an_app_that_speaks_http() {
    let mesh = Mesh::start();
    let _app = mesh.east.app("echo", "east-1", AppProtocol::Http);
    let caller = mesh.west.caller(&[]);
    caller.until_served(HTTP_APP);
    runtime().block_on(async {
        let listener = caller.grpc();
        let answer = invoke(listener, HTTP_APP, message("echo", "hello")).await.unwrap();
        assert_eq!(answer.metadata().get("dapr-http-status").unwrap(), "200");
        assert_eq!(answer.metadata().get("x-echo-name").unwrap(), "east-1");
        let answer = answer.into_inner();
        assert_eq!(
            (text_of(&answer).as_str(), answer.content_type.as_str()),
            ("hello", "text/plain")
        );

        let mut asked = message("echo", "");
        "status=404".clone_into(&mut asked.http_extension.as_mut().unwrap().querystring);
        let missing = invoke(listener, HTTP_APP, asked).await.unwrap_err();
        assert_eq!(missing.code(), Code::NotFound, "{missing}");
        assert_eq!(missing.message(), "Not Found");
        let info = missing.get_details_error_info().unwrap();
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("Not Found", "dapr.io"));
        assert_eq!(info.metadata["http.code"], "404");

        let large = "x".repeat(3_000_000);
        let answer = invoke(listener, HTTP_APP, message("echo", &large)).await.unwrap();
        assert!(text_of(&answer.into_inner()) == large);
        let too_large = "x".repeat(4_200_000);
        let refused = invoke(listener, HTTP_APP, message("echo", &too_large)).await.unwrap_err();
        assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    });
}

#[test]
fn the_content_of_a_message_arrives_unchanged() {
    let far = Far::start();
    far.runtime.block_on(async {
        let mut sent = message("orders/new", "\u{0}\u{1}");
        sent.content_type = "application/x-protobuf".to_owned();
        let type_url = "type.googleapis.com/orders.v1.Order";
        type_url.clone_into(&mut sent.data.as_mut().unwrap().type_url);
        let extension = sent.http_extension.as_mut().unwrap();
        extension.set_verb(Verb::Put);
        extension.querystring = "a=b c&d=%20".to_owned();
        let mut request =
            tonic::Request::new(tollway_wire::dapr::proto::runtime::v1::InvokeServiceRequest {
                id: GRPC_APP.to_owned(),
                message: Some(sent.clone()),
            });
        request.metadata_mut().insert("x-order", "7".parse().unwrap());
        request.metadata_mut().insert("dapr-app-id", "somebody-else".parse().unwrap());
        request.metadata_mut().insert("x-tollway-caller", "forged".parse().unwrap());
        let answer = client(far.caller.grpc()).await.invoke_service(request).await.unwrap();

        let (metadata, asked) = far.app.asked();
        assert_eq!(metadata.get("x-order").unwrap(), "7");
        let caller = metadata.get_all("x-tollway-caller").iter().collect::<Vec<_>>();
        assert_eq!(caller, ["spiffe://west.tollway/ns/default/caller"]);
        assert_eq!(asked, sent);

        assert_eq!(answer.metadata().get("x-answer").unwrap(), "yes");
        assert!(!answer.metadata().contains_key("dapr-http-status"), "{answer:?}");
        assert!(!answer.metadata().contains_key("x-tollway-caller"), "{answer:?}");
        let answer = answer.into_inner();
        assert_eq!(answer.content_type, "text/answer");
        assert_eq!(answer.data, sent.data);
    });
}

#[test]
fn the_status_of_an_app_that_speaks_grpc_reaches_either_caller() {
    let far = Far::start();
    far.runtime.block_on(async {
        let codes = [
            (1, 408),
            (2, 500),
            (3, 400),
            (4, 504),
            (5, 404),
            (6, 409),
            (7, 403),
            (8, 429),
            (9, 400),
            (10, 409),
            (11, 400),
            (12, 501),
            (13, 500),
            (14, 503),
            (15, 500),
            (16, 401),
        ];
        for (code, status) in codes {
            let method = format!("fail/{code}");
            let reported =
                invoke(far.caller.grpc(), GRPC_APP, message(&method, "")).await.unwrap_err();
            assert_eq!((i32::from(reported.code()), reported.message()), (code, "it fails"));
            assert_eq!(reported.details(), DETAILS);
            assert_eq!(reported.metadata().get("x-why").unwrap(), "asked for");
            far.app.asked();

            let path = format!("/v1.0/invoke/{GRPC_APP}/method/{method}");
            let (got, _, body) = call(far.caller.http(), "GET", &path, &[], "").await;
            assert_eq!(got.as_u16(), status, "{code}");
            let reported: serde_json::Value = serde_json::from_str(&body).unwrap();
            assert_eq!(reported, serde_json::json!({ "code": code, "message": "it fails" }));
            far.app.asked();
        }
    });
}

#[test]
fn a_call_over_http_reaches_an_app_that_speaks_grpc() {
    let far = Far::start();
    far.runtime.block_on(async {
        let listener = far.caller.http();
        let path = format!("/v1.0/invoke/{GRPC_APP}/method/a/b?c=d");
        let fields = [("content-type", "text/plain"), ("x-many", "1"), ("x-many", "2")];
        let (status, fields, body) = call(listener, "PATCH", &path, &fields, "hello").await;
        assert_eq!((status.as_u16(), body.as_str()), (200, "hello"));
        assert_eq!(fields["content-type"], "text/answer");
        assert_eq!(fields["x-answer"], "yes");
        assert!(!fields.contains_key("x-tollway-caller"), "{fields:?}");

        let (metadata, asked) = far.app.asked();
        assert_eq!(asked.method, "a/b");
        assert_eq!(asked.content_type, "text/plain");
        let extension = asked.http_extension.unwrap();
        assert_eq!((extension.verb(), extension.querystring.as_str()), (Verb::Patch, "c=d"));
        assert_eq!(metadata.get_all("x-many").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(metadata.get("dapr-content-type").unwrap(), "text/plain");

        let too_large = "x".repeat(4_200_000);
        let (status, _, body) = call(listener, "POST", &path, &[], too_large).await;
        assert_eq!(status.as_u16(), 413, "{body}");
    });
}

#[test]
fn failures_of_the_mesh_have_their_grpc_codes() {
    let mesh = Mesh::start();
    let port = tollway_testkit::free_port().unwrap();
    let _nobody = mesh.east.sidecar_of("gone", port, AppProtocol::Grpc);
    let caller = mesh.west.caller(&[]);
    runtime().block_on(async {
        for (id, code, said) in [
            ("nobody.default.east", Code::NotFound, "nobody.default.east is not known"),
            ("no such name", Code::InvalidArgument, "no such name"),
            ("a.b.c.d", Code::InvalidArgument, "a.b.c.d"),
            ("gone.default.east", Code::Unavailable, "gone.default.east"),
        ] {
            let reported = invoke(caller.grpc(), id, message("echo", "")).await.unwrap_err();
            assert_eq!(reported.code(), code, "{id}: {reported}");
            assert!(reported.message().starts_with(&format!("failed to invoke, id: {id}, err: ")));
            assert!(reported.message().contains(said), "{reported}");
        }
        let mut connect = message("echo", "");
        connect.http_extension.as_mut().unwrap().set_verb(Verb::Connect);
        let reported = invoke(caller.grpc(), HTTP_APP, connect).await.unwrap_err();
        assert_eq!(reported.code(), Code::InvalidArgument, "{reported}");
    });
}
