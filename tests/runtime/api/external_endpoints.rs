//! HTTPEndpoint resources and absolute URLs as what is called: real servers outside of any mesh.

use std::net::SocketAddr;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use serde_json::{Value, json};
use tollway_testkit::{Process, RawClient, Start, free_port, need_tool, retry_until};

use super::daprd::{Daprd, file};
use super::sdk::script;
use super::{call, invoke, message, text_of};
use tollway_tests::mesh::http::{get, runtime};
use tollway_tests::user::{PATIENCE, User};

/// A server, and where it is.
fn server(python: &Path, files: &[&str]) -> (Process, u16) {
    let port = free_port().unwrap();
    let start = Start::new(python).arg(script("outside_server.py")).arg(port.to_string());
    let server = start.args(files).start().unwrap();
    let listens = retry_until(PATIENCE, "a server", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok().then_some(())
    });
    listens.map_err(|error| error.context(server.log())).unwrap();
    (server, port)
}

/// An authority's certificate, and a certificate of it with its key, in PEM, for each name.
fn pki(names: [&str; 2]) -> (String, [(String, String); 2]) {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "an authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let root = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let pairs = names.map(|name| {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    });
    (root, pairs)
}

fn endpoint(name: &str, url: &str, more: &Value) -> String {
    let mut spec = serde_json::json!({ "baseUrl": url });
    let more = more.as_object().cloned().unwrap_or_default();
    spec.as_object_mut().unwrap().extend(more);
    let metadata = serde_json::json!({ "name": name });
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: HTTPEndpoint\nmetadata: {metadata}\nspec: {spec}\n"
    )
}

fn listening(user: &User, resources: &str) -> Daprd {
    listening_with(user, resources, &[])
}

fn listening_with(user: &User, resources: &str, flags: &[&str]) -> Daprd {
    let written = file(user, "endpoints/all.yaml", resources);
    let folder = Path::new(&written).parent().unwrap().to_str().unwrap();
    let flags = [&["--resources-path", folder], flags].concat();
    let daprd = Daprd::listening(user, "caller", &flags);
    let ready = retry_until(PATIENCE, "a sidecar", || {
        get(daprd.http(), "/v1.0/healthz").starts_with("HTTP/1.1 204").then_some(())
    });
    ready.unwrap();
    daprd
}

/// Status, code of a failure, and the server's request.
fn ask(daprd: &Daprd, path: &str, fields: &[(&str, &str)], body: &str) -> (u16, String, Value) {
    let method = if body.is_empty() { "GET" } else { "POST" };
    let answer = runtime().block_on(call(daprd.http(), method, path, fields, body.to_owned()));
    let (status, fields, text) = answer;
    let code = fields.get("x-tollway-error").map(|code| code.to_str().unwrap().to_owned());
    let asked = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
    (status.as_u16(), code.unwrap_or_default(), asked)
}

fn fields(asked: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let fields = asked["fields"].as_array().unwrap();
    fields.iter().map(|field| (text(&field[0]), text(&field[1]))).collect()
}

#[test]
fn endpoints_and_urls_are_called_by_their_own_names() {
    let python = need_tool!("python3");
    let (user, (_server, port)) = (User::new(), server(&python, &[]));
    let url = format!("http://127.0.0.1:{port}");
    let headers =
        serde_json::json!({ "headers": [{ "name": "x-key", "value": "the endpoint's" }] });
    let resources = endpoint("plain", &url, &headers)
        + "---\n"
        + &endpoint("below", &format!("{url}/v1/"), &Value::Null);
    let caller = listening(&user, &resources);
    let sent = [("x-key", "the app's"), ("x-own", "1"), ("connection", "x-own, keep-alive")];
    let (status, code, asked) = ask(&caller, "/v1.0/invoke/plain/method/a/b?c=%2Fd", &sent, "");
    assert_eq!((status, code.as_str()), (200, ""), "{asked}");
    assert_eq!(
        (asked["method"].as_str(), asked["path"].as_str()),
        (Some("GET"), Some("/a/b?c=%2Fd"))
    );
    let seen = fields(&asked);
    let of = |name: &str| {
        let values = seen.iter().filter(|(known, _)| known == name);
        values.map(|(_, value)| value.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(of("x-key"), ["the endpoint's"]);
    assert_eq!(of("host"), [format!("127.0.0.1:{port}")]);
    // Nothing of the mesh, and nothing that was for one connection.
    let is_own = |(name, _): &&(String, String)| {
        name.starts_with("dapr-") || name.starts_with("x-tollway") || name == "x-own"
    };
    assert_eq!(seen.iter().find(is_own), None, "{asked}");
    let hello = ask(&caller, "/v1.0/invoke/below/method/order", &[], "hello").2;
    assert_eq!(
        (hello["path"].as_str(), hello["body"].as_str()),
        (Some("/v1/order"), Some("hello"))
    );
    assert_eq!(ask(&caller, "/v1.0/invoke/plain/method/missing", &[], "").0, 404);
    // By URL, as it is or encoded, in the path or the header.
    let encoded = url.replace(':', "%3A").replace('/', "%2F");
    for path in [format!("/v1.0/invoke/{url}/method/x"), format!("/v1.0/invoke/{encoded}/method/x")]
    {
        let (status, _, asked) = ask(&caller, &path, &[], "");
        assert_eq!((status, asked["path"].as_str()), (200, Some("/x")), "{path}: {asked}");
        assert!(!fields(&asked).iter().any(|(name, _)| name == "x-key"), "{asked}");
    }
    let (_, _, asked) = ask(&caller, "/y/z", &[("dapr-app-id", &url)], "");
    assert_eq!(asked["path"].as_str(), Some("/y/z"), "{asked}");
    // A body without a length.
    let chunked = "POST /v1.0/invoke/plain/method/c HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \
                   chunked\r\nconnection: close\r\n\r\n2\r\nhi\r\n3\r\n you\r\n0\r\n\r\n";
    let chunked = chunked.replace("3\r\n you", "4\r\n you");
    let reported = RawClient::exchange(caller.http(), chunked, PATIENCE).unwrap().text();
    assert!(reported.contains("\"body\": \"hi you\""), "{reported}");
    // By message.
    let listener = SocketAddr::from(([127, 0, 0, 1], caller.grpc));
    let reported =
        runtime().block_on(invoke(listener, "plain", message("m", "by message"))).unwrap();
    let asked: Value = serde_json::from_str(&text_of(reported.get_ref())).unwrap();
    assert_eq!((asked["path"].as_str(), asked["body"].as_str()), (Some("/m"), Some("by message")));
    let metadata = get(caller.http(), "/v1.0/metadata");
    assert!(
        metadata.contains(r#""httpEndpoints":[{"name":"below"},{"name":"plain"}]"#),
        "{metadata}"
    );
}

/// The line of the access log about the request with that path.
fn line_of(daprd: &Daprd, path: &str) -> Value {
    let found = || {
        let log = daprd.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.into_iter().find(|line| line["path"] == path)
    };
    let found = retry_until(PATIENCE, path, found);
    found.map_err(|error| error.context(daprd.log())).unwrap()
}

#[test]
fn calls_of_endpoints_and_urls_have_lines_in_the_access_log() {
    let python = need_tool!("python3");
    let (user, (_server, port)) = (User::new(), server(&python, &[]));
    let url = format!("http://127.0.0.1:{port}");
    let closed = tollway_testkit::ClosedPort::on(std::net::Ipv4Addr::LOCALHOST).unwrap();
    let away = format!("http://{}", closed.address());
    let resources =
        endpoint("plain", &url, &Value::Null) + "---\n" + &endpoint("away", &away, &Value::Null);
    let caller = listening_with(&user, &resources, &["--enable-api-logging"]);
    let target = "/v1.0/invoke/plain/method/order?key=secret";
    let (_, _, text) = runtime().block_on(call(caller.http(), "POST", target, &[], "hello"));
    assert_eq!(ask(&caller, &format!("/v1.0/invoke/{url}/method/by-url"), &[], "").0, 200);
    assert_eq!(ask(&caller, "/v1.0/invoke/plain/method/missing", &[], "").0, 404);
    assert_eq!(ask(&caller, "/v1.0/invoke/away/method/nowhere", &[], "").0, 500);
    let listener = SocketAddr::from(([127, 0, 0, 1], caller.grpc));
    runtime().block_on(invoke(listener, "plain", message("by-message", "hello"))).unwrap();

    let sizes = |line: &Value| (line["request_bytes"].as_u64(), line["response_bytes"].as_u64());
    for (path, method, status, code) in [
        ("/order", "POST", 200, None),
        ("/by-url", "GET", 200, None),
        ("/missing", "GET", 404, None),
        ("/nowhere", "GET", 500, Some("ERR_UNREACHABLE")),
        ("/by-message", "POST", 200, None),
    ] {
        let line = line_of(&caller, path);
        let outcome = if code.is_some() { "failed" } else { "answered" };
        assert_eq!(line["kind"], "request", "{line}");
        assert_eq!(line["direction"], "outbound", "{line}");
        assert_eq!((&line["method"], &line["status"]), (&json!(method), &json!(status)), "{line}");
        assert_eq!((&line["outcome"], &line["error_code"]), (&json!(outcome), &json!(code)));
        assert_eq!((&line["service"], &line["callee"]), (&Value::Null, &Value::Null), "{line}");
        assert_eq!(line["attempts"], 1, "{line}");
    }
    let length = u64::try_from(text.len()).unwrap();
    assert_eq!(sizes(&line_of(&caller, "/order")), (Some(5), Some(length)));
    let count = caller.log().lines().filter(|line| line.starts_with("{\"time\"")).count();
    assert_eq!(count, 5, "one line for each call: {}", caller.log());
    assert!(!caller.log().contains("secret"), "queries are in no line");
}

#[test]
fn endpoints_over_tls_prove_who_they_are_and_are_shown_a_certificate() {
    let python = need_tool!("python3");
    let user = User::new();
    let (root, [(certificate, key), (shown, shown_key)]) = pki(["localhost", "caller.example"]);
    let paths = [("c.pem", &certificate), ("k.pem", &key), ("r.pem", &root)];
    let paths = paths.map(|(name, text)| file(&user, name, text));
    let (_server, port) = server(&python, &[&paths[0], &paths[1], &paths[2]]);
    let url = format!("https://localhost:{port}");
    let tls = |own: bool| {
        let mut tls = serde_json::json!({ "rootCA": { "value": root } });
        if own {
            tls["certificate"] = serde_json::json!({ "value": shown });
            tls["privateKey"] = serde_json::json!({ "value": shown_key });
        }
        serde_json::json!({ "clientTLS": tls })
    };
    let resources = [
        endpoint("shop", &url, &tls(true)),
        endpoint("bare", &url, &tls(false)),
        endpoint("other-name", &url.replace("localhost", "127.0.0.1"), &tls(true)),
    ];
    let caller = listening(&user, &resources.join("---\n"));
    let (status, _, asked) = ask(&caller, "/v1.0/invoke/shop/method/a", &[], "hello");
    assert_eq!((status, asked["body"].as_str()), (200, Some("hello")), "{asked}");
    assert_eq!(asked["client"].as_str(), Some("caller.example"), "{asked}");
    // Without a certificate, under a name that the server's has not, of an unknown authority.
    for (target, codes, part) in [
        ("bare", &["ERR_UNREACHABLE", "ERR_CLOSED_EARLY"][..], "failed to invoke, id: bare, err: "),
        ("other-name", &["ERR_UNREACHABLE"], "certificate"),
        (&url, &["ERR_UNREACHABLE"], "failed to invoke, id: https://localhost"),
    ] {
        let (status, code, reported) =
            ask(&caller, &format!("/v1.0/invoke/{target}/method/a"), &[], "");
        assert!(status == 500 && codes.contains(&code.as_str()), "{target}: {reported}");
        assert_eq!(reported["errorCode"].as_str(), Some("ERR_DIRECT_INVOKE"), "{reported}");
        assert!(reported["message"].as_str().unwrap().contains(part), "{target}: {reported}");
    }
}

#[test]
fn an_endpoint_that_fails_is_under_rules_by_its_name() {
    let python = need_tool!("python3");
    let (user, (_server, port)) = (User::new(), server(&python, &[]));
    let url = format!("http://127.0.0.1:{port}");
    let nobody = format!("http://127.0.0.1:{}", free_port().unwrap());
    let rules = "kind: Resiliency\nmetadata: {name: rules}\nspec:\n  policies:\n    retries:\n      often: \
                 {policy: constant, duration: 10ms, maxRetries: 3}\n  targets:\n    apps:\n      flaky: \
                 {retry: often}\n";
    let resources = [
        endpoint("flaky", &url, &Value::Null),
        endpoint("steady", &url, &Value::Null),
        endpoint("away", &nobody, &Value::Null),
    ];
    let caller = listening(&user, &(resources.join("---\n") + "---\n" + rules));
    let path = |name: &str, key: &str| format!("/v1.0/invoke/{name}/method/fails/2/{key}");
    let (status, code, asked) = ask(&caller, &path("flaky", "a"), &[], "hello");
    assert_eq!(
        (status, code.as_str(), asked["body"].as_str()),
        (200, "", Some("hello")),
        "{asked}"
    );
    assert_eq!(ask(&caller, &path("steady", "b"), &[], "").0, 503);
    let (status, code, reported) = ask(&caller, "/v1.0/invoke/away/method/x", &[], "");
    assert_eq!((status, code.as_str()), (500, "ERR_UNREACHABLE"), "{reported}");
    let text = reported["message"].as_str().unwrap();
    assert!(text.starts_with("failed to invoke, id: away, err: "), "{text}");
    // An invalid URL is refused, and reaches no server.
    for (target, part) in
        [("http://", "no URL"), ("http://me:word@127.0.0.1", "a name or a password")]
    {
        let encoded = target.replace(':', "%3A").replace('/', "%2F");
        let (status, code, reported) =
            ask(&caller, &format!("/v1.0/invoke/{encoded}/method/x"), &[], "");
        assert_eq!((status, code.as_str()), (500, "ERR_BAD_NAME"), "{reported}");
        assert!(reported["message"].as_str().unwrap().contains(part), "{reported}");
    }
}

#[test]
fn only_in_daprds_place_does_anything_leave_the_mesh() {
    let mesh = tollway_tests::mesh::Mesh::start();
    let caller = mesh.west.caller(&[]);
    let reported = get(caller.http(), "/v1.0/invoke/http://127.0.0.1:1/method/x");
    assert!(
        reported.starts_with("HTTP/1.1 404") && reported.contains("ERR_DIRECT_INVOKE"),
        "{reported}"
    );
}
