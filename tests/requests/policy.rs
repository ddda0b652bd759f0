//! Policies from `tollway apply` to the app that is protected, through real processes: two
//! networks, callers in both, and every protocol.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use hyper::Request;
use rustix::process::Signal;
use tollway_echo::{EchoMessage, UNARY_PATH, payload};
use tollway_testkit::{RawClient, retry_until};
use tollway_tests::mesh::chat::{self, UPGRADE};
use tollway_tests::mesh::http::{Client, Version, empty, runtime};
use tollway_tests::mesh::{AppProtocol, Mesh, PATIENCE, Sidecar, counter};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

const SERVICE: &str = "echo.default.east";

/// A policy for one app of east's default namespace.
fn policy(name: &str, app: &str, spec: &str) -> String {
    format!(
        "apiVersion: tollway.dev/v1\nkind: Policy\nmetadata:\n  name: {name}\nspec:\n  \
         target: {{app: {app}}}\n{spec}\n"
    )
}

/// What a raw request line is answered with: status and the whole answer.
fn ask(sidecar: &Sidecar, method: &str, target: &str) -> (u16, String) {
    let address = sidecar.http();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: {address}\r\ndapr-app-id: {SERVICE}\r\n\
         x-tollway-caller: spiffe://west.tollway/ns/default/caller\r\n\
         dapr-caller-app-id: caller\r\nConnection: close\r\n\r\n"
    );
    let answer = RawClient::exchange(address, request, PATIENCE).unwrap();
    (answer.statuses()[0], answer.text())
}

#[track_caller]
fn check(sidecar: &Sidecar, request: &str, expected: u16) {
    let (method, target) = request.split_once(' ').unwrap();
    let (status, text) = ask(sidecar, method, target);
    assert_eq!(status, expected, "{request}: {text}");
}

#[test]
fn requests_are_let_in_by_caller_method_and_path() {
    let mesh = Mesh::start();
    let app = mesh.east.app("echo", "east-1", AppProtocol::Http);
    let (caller, other) =
        (mesh.west.caller(&[]), mesh.west.sidecar_of("other", 1, AppProtocol::Http));
    let near = mesh.east.sidecar_of("near", 1, AppProtocol::Http);
    for sidecar in [&caller, &other, &near] {
        sidecar.until_served(SERVICE);
    }

    let readers = policy(
        "readers",
        "echo",
        "  allow:\n    - from: [caller.default.west]\n      methods: [GET]\n      \
         paths: [\"/status/{code}\", /headers/**]\n  deny:\n    - paths: [/headers/secret/**]",
    );
    let reported = mesh.east.apply(&readers);
    assert_eq!(reported, "policy default/readers created\napplied by 1 of 1 sidecars\n");
    check(&caller, "GET /status/201", 201);
    check(&caller, "GET /headers?a=b", 200);
    check(&caller, "POST /status/201", 403);
    check(&caller, "GET /healthz", 403);
    check(&caller, "GET /headers/secret", 403);
    // The caller is proven by its certificate: `ask` claims in its head to be the caller that is
    // allowed.
    check(&other, "GET /status/201", 403);
    check(&near, "GET /status/201", 403);
    a_refusal_names_the_caller_and_the_policy_in_the_own_log_alone(&other, &app.sidecar);
    spellings_do_not_get_around(&caller);
    assert!(counter(&app.sidecar.process, "tollway_policy_denials_total") > 5);

    changes_hold_for_open_connections(&mesh, &caller, &readers);
}

fn a_refusal_names_the_caller_and_the_policy_in_the_own_log_alone(other: &Sidecar, own: &Sidecar) {
    let (_, text) = ask(other, "GET", "/status/201");
    for part in ["\"errorCode\":\"ERR_POLICY_DENIED\"", "sidecar echo.default.east: ", "; "] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let log = own.process.log();
    for part in ["default/readers", "spiffe://west.tollway/ns/default/other"] {
        assert!(!text.contains(part), "{part} is in {text}");
        assert!(log.contains(part), "{part} is missing in {log}");
    }
}

fn spellings_do_not_get_around(caller: &Sidecar) {
    for (request, expected) in [
        ("GET //headers/secret", 403),
        ("GET /headers/./secret", 403),
        ("GET /status/../headers/secret", 403),
        ("GET /headers/%73ecret", 403),
        ("GET /headers/SECRET", 403),
        ("GET /headers/secret;a=b", 403),
        ("GET /headers/secret%2Fa", 403),
        ("GET /status/201/../../healthz", 403),
        ("GET /headers/secret\\a", 403),
        ("GET /headers\\secret", 403),
        ("GET /headers/secret/\u{e9}", 403),
        ("GET /headers/x\\..\\secret", 400),
        ("GET /status/201?a=\\..\\secret", 201),
        ("GET /headers/..%2fhealthz", 400),
        ("GET /headers/..;/healthz", 400),
        ("GET /headers/%252e%252e/healthz", 400),
        ("GET /headers/a%00", 400),
        ("GET /../headers", 400),
    ] {
        check(caller, request, expected);
    }
    // The app gets the path that was judged.
    let (status, text) = ask(caller, "GET", "//status/..//headers?a=//");
    assert_eq!(status, 200, "{text}");
    assert!(text.contains(":path: /headers?a=//\n"), "{text}");
}

fn changes_hold_for_open_connections(mesh: &Mesh, caller: &Sidecar, readers: &str) {
    assert!(mesh.east.apply(readers).starts_with("policy default/readers unchanged\n"));
    let printed = mesh.east.done(&["get", "policy", "readers", "-o", "yaml"], "");
    assert!(mesh.east.apply(&printed).contains(" unchanged\n"), "{printed}");
    runtime().block_on(async {
        for version in [Version::Http1, Version::Http2] {
            let mut client = Client::connect(version, caller.http()).await;
            let request = || {
                let request = Request::get("http://sidecar/status/204");
                request.header("dapr-app-id", SERVICE).body(empty()).unwrap()
            };
            assert_eq!(client.exchange(request()).await.status, 204, "{version:?}");
            let closed = policy("readers", "echo", "  allow: []");
            assert!(mesh.east.apply(&closed).contains(" changed\n"));
            assert_eq!(client.exchange(request()).await.status, 403, "{version:?}");
            mesh.east.apply(readers);
            assert_eq!(client.exchange(request()).await.status, 204, "{version:?}");
        }
    });
    let reported = mesh.east.done(&["delete", "policy", "readers", "--wait"], "");
    assert_eq!(reported, "policy default/readers deleted\napplied by 1 of 1 sidecars\n");
    check(caller, "GET /healthz", 200);
    let again = mesh.east.command(&["delete", "policy", "readers"], "");
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("no policy default/readers"));
}

#[test]
fn grpc_calls_are_refused_with_permission_denied() {
    let mesh = Mesh::start();
    let _app = mesh.east.app("echo", "east-1", AppProtocol::Grpc);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    let spec = format!("  allow:\n    - paths: [{UNARY_PATH}]\n      methods: [POST]");
    mesh.east.apply(&policy("unary", "echo", &spec));
    runtime().block_on(async {
        assert!(call(&caller, UNARY_PATH).await.is_ok());
        let refused = call(&caller, "/tollway.lab.v1.Echo/ServerStream").await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        assert!(!refused.message().contains("default/unary"), "{refused}");
    });
}

async fn call(caller: &Sidecar, path: &'static str) -> Result<EchoMessage, Status> {
    let endpoint = Endpoint::from_shared(format!("http://{}", caller.grpc())).unwrap();
    let mut client = Grpc::new(endpoint.timeout(PATIENCE).connect().await.unwrap());
    client.ready().await.unwrap();
    let mut request = tonic::Request::new(EchoMessage { payload: payload(10), repeat: 0 });
    request.metadata_mut().insert("dapr-app-id", SERVICE.parse().unwrap());
    let codec = ProstCodec::<EchoMessage, EchoMessage>::default();
    let answer = client.unary(request, PathAndQuery::from_static(path), codec).await;
    answer.map(tonic::Response::into_inner)
}

#[test]
fn tcp_connections_are_judged_by_caller_and_ended_by_a_change() {
    let mesh = Mesh::start();
    let app = mesh.east.app("db", "east-1", AppProtocol::Tcp);
    let caller = mesh.west.caller(&["--upstream", "0=db.default.east"]);
    let port = caller.upstream("db.default.east");
    let mut open = retry_until(PATIENCE, "TCP across", || echoing(port)).unwrap();

    // It remains open while a policy admits it, and ends when one does not.
    mesh.east.apply(&policy("db", "db", "  allow:\n    - from: [\"*.*.west\"]"));
    open.write_all(b"pong").unwrap();
    let mut heard = [0; 4];
    open.read_exact(&mut heard).unwrap();
    mesh.east.apply(&policy("db", "db", "  deny:\n    - from: [caller.default.west]"));
    assert!(matches!(open.read(&mut heard), Ok(0) | Err(_)), "the connection still stands");
    assert!(echoing(port).is_none(), "a new connection is let in");
    assert_eq!(counter(&app.sidecar.process, "tollway_policy_closed_connections_total"), 1);
    assert!(counter(&app.sidecar.process, "tollway_policy_denials_total") >= 1);
    mesh.east.done(&["delete", "policy", "db", "--wait"], "");
    assert!(echoing(port).is_some());
}

/// A connection over which four bytes came back.
fn echoing(address: SocketAddr) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(b"ping").ok()?;
    let mut echo = [0; 4];
    stream.read_exact(&mut echo).ok()?;
    (&echo == b"ping").then_some(stream)
}

#[test]
fn an_upgraded_connection_ends_when_its_request_is_no_longer_allowed() {
    let port = chat::start("");
    let mesh = Mesh::start();
    let _app = mesh.east.sidecar_of("echo", port, AppProtocol::Http);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    let upgrade =
        format!("GET /chat HTTP/1.1\r\nHost: sidecar\r\ndapr-app-id: {SERVICE}\r\n{UPGRADE}\r\n");
    let mut client = RawClient::connect(caller.http()).unwrap();
    client.send(&upgrade).unwrap();
    let head = client.read_until(PATIENCE, |bytes| bytes.ends_with(b"\r\n\r\n")).unwrap();
    assert_eq!(head.statuses(), [101], "{}", head.text());

    mesh.east.apply(&policy("chat", "echo", "  allow:\n    - paths: [/chat]"));
    client.send("still here").unwrap();
    let heard = client.read_until(PATIENCE, |bytes| bytes.len() >= 10).unwrap();
    assert_eq!(heard.bytes, b"still here");
    mesh.east.apply(&policy("chat", "echo", "  allow:\n    - paths: [/other]"));
    let rest = client.read_to_end(PATIENCE).unwrap();
    assert_eq!(rest.text(), "", "the connection ended without a word of the app");
    check(&caller, "GET /chat", 403);
}

#[test]
fn a_closed_network_stays_closed_through_restarts_and_without_its_control_plane() {
    const CLOSED: &str = "apiVersion: tollway.dev/v1\nkind: Policy\n\
        metadata: {name: closed, namespace: tollway}\n\
        spec: {target: {app: \"*\", namespace: \"*\"}, allow: []}\n";
    let mut mesh = Mesh::start();
    let _first = mesh.east.app("echo", "east-1", AppProtocol::Http);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    mesh.east.apply(CLOSED);
    check(&caller, "GET /healthz", 403);

    mesh.east.control.kill().unwrap();
    check(&caller, "GET /healthz", 403);
    mesh.east.restart_control();
    let table = mesh.east.done(&["get", "policies"], "");
    assert!(table.contains("tollway/closed "), "{table}");
    check(&caller, "GET /healthz", 403);
    // One that starts now has admitted no caller before.
    let second = mesh.east.app("late", "east-2", AppProtocol::Http);
    let near = mesh.east.sidecar_of("near", 1, AppProtocol::Http);
    let refused = retry_until(PATIENCE, "a refusal by the late sidecar", || {
        let answer =
            tollway_tests::mesh::http::get(near.http(), "/v1.0/invoke/late/method/healthz");
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer.contains("ERR_POLICY_DENIED").then_some(())
    });
    assert!(refused.is_ok(), "{}", second.sidecar.process.log());

    // A service reopens itself by a policy of its own. Its sidecar may not have reached the new
    // control plane yet, so no step waited for it.
    mesh.east.apply(&policy("open", "echo", "  allow: [{from: [\"*.*.*\"]}]"));
    caller.until_served(SERVICE);
}

#[test]
fn a_sidecar_that_has_not_applied_a_policy_is_named() {
    let mesh = Mesh::start();
    let app = mesh.east.app_with("echo", "e", AppProtocol::Http, &["--instance", "replica-7"]);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    app.sidecar.process.signal(Signal::STOP).unwrap();
    let open = policy("open", "echo", "  allow: [{}]");
    let late = mesh.east.command(&["apply", "-f", "-", "--wait", "--timeout-s", "1"], &open);
    let reported = String::from_utf8_lossy(&late.stderr).into_owned();
    app.sidecar.process.signal(Signal::CONT).unwrap();
    assert!(!late.status.success());
    assert!(reported.contains("replica-7.echo.default"), "{reported}");
    assert_eq!(
        String::from_utf8_lossy(&late.stdout),
        "policy default/open created\napplied by 0 of 1 sidecars\n"
    );
    assert!(mesh.east.apply(&open).ends_with("applied by 1 of 1 sidecars\n"));
}

#[test]
fn mistakes_in_a_file_change_nothing() {
    let mesh = Mesh::not_joined(&[]);
    let good = policy("good", "echo", "  allow: []");
    let bad = policy("bad", "echo", "  alow: []");
    let refused = mesh.east.command(&["apply", "-f", "-"], &format!("{good}---\n{bad}"));
    let reported = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(reported.contains("standard input:15:3: unknown field `alow`"), "{reported}");
    assert!(reported.contains("did you mean `allow`?"), "{reported}");
    let dry = mesh.east.done(&["apply", "-f", "-", "--dry-run"], &good);
    assert_eq!(dry, "policy default/good created (dry run)\n");
    assert_eq!(mesh.east.done(&["get", "policies", "-o", "json"], ""), "[]\n");

    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.yaml"), &good).unwrap();
    std::fs::write(folder.path().join("b.yml"), good.replace("good", "other")).unwrap();
    std::fs::write(folder.path().join("notes.txt"), "not a policy").unwrap();
    let files = folder.path().to_str().unwrap();
    let reported = mesh.east.done(&["apply", "-f", files, "--json"], "");
    let reported: serde_json::Value = serde_json::from_str(&reported).unwrap();
    assert_eq!(reported["objects"][1]["name"], "default/other");
    assert_eq!(reported["objects"][1]["outcome"], "created");
    let reported = mesh.east.done(&["delete", "-f", files], "");
    assert_eq!(reported, "policy default/good deleted\npolicy default/other deleted\n");
}
