//! Tokens between an app and its sidecar: who does not show the API's is answered nothing and goes
//! nowhere, and an app is shown its own by its sidecar alone.

use std::path::Path;
use std::process::Command;

use tollway_testkit::{TempDir, retry_until};
use tollway_tests::program;
use tollway_wire::dapr::proto::common::v1::InvokeRequest;
use tollway_wire::dapr::proto::runtime::v1::app_callback_client::AppCallbackClient;
use tollway_wire::dapr::proto::runtime::v1::{GetMetadataRequest, InvokeServiceRequest};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request};

use super::app::GrpcApp;
use super::{call, client, message};
use tollway_tests::mesh::http::runtime;
use tollway_tests::mesh::{AppProtocol, Mesh, PATIENCE, Sidecar, start_tollway};

/// The requests of the caller's sidecar.
pub(crate) const API: &str = "sesame-of-the-api";
/// What the callee's sidecar shows to its app.
pub(crate) const APP: &str = "sesame-of-the-app";
const FIELD: &str = "dapr-api-token";

/// A sidecar that makes calls for those who show the token.
pub(crate) fn guarded(mesh: &Mesh) -> Sidecar {
    mesh.west.sidecar_by(start_tollway("sidecar").env("DAPR_API_TOKEN", API), "caller", &[])
}

/// The sidecar of an app that is shown a token.
pub(crate) fn shown(mesh: &Mesh, app: &str, port: u16, protocol: &str) -> Sidecar {
    let options = ["--app-port", &port.to_string(), "--app-protocol", protocol];
    mesh.east.sidecar_by(start_tollway("sidecar").env("APP_API_TOKEN", APP), app, &options)
}

/// Waits until a call with the token reaches an app.
pub(crate) fn until_served(caller: &Sidecar, service: &str) {
    let path = format!("/v1.0/invoke/{service}/method/healthz");
    let runtime = runtime();
    let served = retry_until(PATIENCE, service, || {
        let answer = runtime.block_on(call(caller.http(), "GET", &path, &[(FIELD, API)], ""));
        (answer.0 == 200 || answer.1.contains_key("x-tollway-grpc-status")).then_some(())
    });
    served.unwrap();
}

/// What a caller of gRPC sends along.
fn metadata(fields: &[(&'static str, &str)]) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    for (name, value) in fields {
        metadata.insert(*name, value.parse().unwrap());
    }
    metadata
}

fn with<M>(fields: &[(&'static str, &str)], message: M) -> Request<M> {
    Request::from_parts(metadata(fields), tonic::Extensions::new(), message)
}

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    tollway_net::secret_file::write(&path, text.as_ref()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_http_api_answers_who_shows_its_token() {
    let mesh = Mesh::start();
    let files = TempDir::new().unwrap();
    let token = file(files.path(), "token", &format!("{APP}\n"));
    let app = mesh.east.app_with("echo", "a", AppProtocol::Http, &["--app-token-file", &token]);
    let mut caller = guarded(&mesh);
    until_served(&caller, "echo.default.east");
    let headers = "/v1.0/invoke/echo.default.east/method/headers";
    runtime().block_on(async {
        let api = caller.http();
        let (status, _, seen) = call(api, "GET", headers, &[(FIELD, API)], "").await;
        assert_eq!(status, 200, "{seen}");
        let tokens: Vec<&str> = seen.lines().filter(|line| line.contains("token")).collect();
        assert_eq!(tokens, [format!("{FIELD}: {APP}")], "what the app sees: {seen}");

        let by_field = ("dapr-app-id", "echo.default.east");
        let (wrong, other_case) = ((FIELD, APP), (FIELD, "SESAME-OF-THE-API"));
        for (method, path, fields) in [
            ("GET", headers, &[][..]),
            ("GET", headers, &[wrong]),
            ("GET", headers, &[other_case]),
            ("GET", headers, &[wrong, (FIELD, API)]),
            ("GET", "/headers", &[by_field]),
            // Health of the app, not of the sidecar.
            ("GET", "/v1.0/healthz", &[by_field]),
            ("GET", "/v1.0/metadata", &[]),
            ("PUT", "/v1.0/metadata/key", &[]),
            ("POST", "/v1.0/shutdown", &[wrong]),
            ("GET", "/nothing", &[]),
        ] {
            let (status, reported, body) = call(api, method, path, fields, "").await;
            assert_eq!((status.as_u16(), body.as_str()), (401, "invalid api token\n"), "{path}");
            assert!(
                reported["content-type"].to_str().unwrap().starts_with("text/plain"),
                "{reported:?}"
            );
            assert_eq!(reported["x-tollway-error"], "ERR_API_TOKEN");
        }
        for path in ["/v1.0/healthz", "/v1.0/healthz?appid=caller", "/v1.0/healthz/outbound"] {
            assert_eq!(call(api, "GET", path, &[], "").await.0, 204, "{path}");
        }
        let own = call(api, "GET", "/v1.0/metadata", &[(FIELD, API)], "").await;
        assert!(own.0 == 200 && !own.2.contains(API), "{}", own.2);
        // The outbound port is no part of the API.
        let by_host = call(caller.outbound(), "GET", "/headers", &[], "").await;
        assert_eq!(by_host.0, 400, "the host names no service: {}", by_host.2);
    });
    assert!(caller.process.is_running());
    for process in [&caller.process, &app.sidecar.process] {
        let log = process.log();
        assert!(!log.contains("sesame"), "{log}");
    }
}

#[test]
fn the_grpc_api_answers_who_shows_its_token() {
    let mesh = Mesh::start();
    let (runtime, app) = (runtime(), GrpcApp::default());
    let address = runtime.block_on(app.serve());
    let _sidecar = shown(&mesh, "greeter", address.port(), "grpc");
    let caller = guarded(&mesh);
    until_served(&caller, "greeter.default.east");
    let shown_to_app = || {
        let (metadata, _) = app.asked();
        let tokens: Vec<_> = metadata.get_all(FIELD).iter().cloned().collect();
        assert_eq!(tokens, [APP], "{metadata:?}");
    };
    runtime.block_on(async {
        let listener = caller.grpc();
        let mut api = client(listener).await;
        let reported = api.get_metadata(GetMetadataRequest {}).await.unwrap_err();
        assert_eq!(reported.code(), Code::Unauthenticated, "{reported}");
        assert_eq!(reported.metadata().get("x-tollway-error").unwrap(), "ERR_API_TOKEN");
        api.get_metadata(with(&[(FIELD, API)], GetMetadataRequest {})).await.unwrap();

        let asked = || InvokeServiceRequest {
            id: "greeter.default.east".to_owned(),
            message: Some(message("order", "hello")),
        };
        let reported = api.invoke_service(with(&[(FIELD, APP)], asked())).await.unwrap_err();
        assert_eq!(reported.code(), Code::Unauthenticated, "{reported}");
        api.invoke_service(with(&[(FIELD, API)], asked())).await.unwrap();
        shown_to_app();

        // A service of the app's own, proxied: it never leaves the data loop.
        let endpoint =
            tonic::transport::Endpoint::from_shared(format!("http://{listener}")).unwrap();
        let mut proxied = AppCallbackClient::new(endpoint.connect().await.unwrap());
        let to = ("dapr-app-id", "greeter.default.east");
        let asked = || InvokeRequest { method: "order".to_owned(), ..InvokeRequest::default() };
        for fields in [&[to][..], &[to, (FIELD, "guess")]] {
            let reported = proxied.on_invoke(with(fields, asked())).await.unwrap_err();
            assert_eq!(reported.code(), Code::Unauthenticated, "{reported}");
        }
        proxied.on_invoke(with(&[to, (FIELD, API)], asked())).await.unwrap();
        shown_to_app();

        // Over HTTP, in the words of `OnInvoke`.
        let path = "/v1.0/invoke/greeter.default.east/method/order";
        let answer = call(caller.http(), "POST", path, &[(FIELD, API)], "hello").await;
        assert_eq!(answer.0, 200, "{}", answer.2);
        shown_to_app();
    });
}

#[test]
fn a_token_is_printed_nowhere_and_checked_at_the_start() {
    let files = TempDir::new().unwrap();
    let token = file(files.path(), "token", API);
    let run = |token: &str, more: &[&str], variable: &str| {
        let mut command = Command::new(program());
        command.args(["sidecar", "--app-id", "web", "--api-token-file", token]).args(more);
        let output = command.env("APP_API_TOKEN", variable).output().unwrap();
        let reported = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(reported).unwrap())
    };
    let (code, reported) = run(&token, &["--print-config"], APP);
    assert_eq!(code, Some(0), "{reported}");
    assert!(reported.contains(&format!("api_token_file: {token}")), "{reported}");
    assert!(!reported.contains("sesame"), "{reported}");
    let (code, reported) = run("/nowhere/token", &[], APP);
    assert_eq!(code, Some(1), "{reported}");
    assert!(reported.contains("cannot read the token in /nowhere/token"), "{reported}");
    let (code, reported) = run(&token, &[], "sesame\u{1}");
    assert_eq!(code, Some(1), "{reported}");
    assert!(
        reported.contains("the token in APP_API_TOKEN cannot be used: it has a character"),
        "{reported}"
    );
    assert!(!reported.contains("sesame"), "{reported}");
}
