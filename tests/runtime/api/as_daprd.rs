//! What an app sees of a sidecar in daprd's place, and its clients of its API: as daprd has it.

use std::net::SocketAddr;

use tollway_testkit::{RawClient, free_port, need_tool, retry_until, skip, slow};
use tollway_tests::mesh::http::get;
use tollway_tests::names::Hosts;
use tollway_tests::scripted_app::{App, Reply, Script, Then};
use tollway_tests::user::{PATIENCE, User};

use super::daprd::{Daprd, file};

/// A call of the app `web` by a request line and fields.
fn call(daprd: &Daprd, method: &str, path: &str, fields: &str) -> String {
    let address = daprd.http();
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n{fields}Connection: close\r\n\r\n");
    RawClient::exchange(address, request, PATIENCE).unwrap().text()
}

/// The harm: apps that let in their own address alone refuse every call. Django, Rails and the servers
/// of Vite and webpack do.
#[test]
fn an_app_that_knows_its_own_address_alone_is_called_by_it() {
    let (user, app) = (User::new(), App::start(Script::new()));
    let health = ["--enable-app-health-check", "--app-health-check-path", "/well"];
    let port = app.port();
    let daprd = Daprd::start(&user, "web", &[&["--app-port", &port], &health[..]].concat());
    daprd.until_served("web");
    let answer = call(&daprd, "GET", "/v1.0/invoke/web/method/x", "");
    assert!(answer.ends_with("own /x"), "{answer}");
    let own = format!("127.0.0.1:{port}");
    for path in ["/x", "/dapr/config", "/well"] {
        let requests = app.requests(path);
        assert!(!requests.is_empty(), "{path}");
        for request in requests {
            assert_eq!(request.values("host"), [&own], "{}", request.head);
        }
    }
    let called = &app.requests("/x")[0];
    assert_eq!(called.values("x-forwarded-host"), [daprd.http().to_string()], "{}", called.head);
    assert_eq!(app.requests("/dapr/config")[0].values("dapr-app-id"), ["web"]);
}

/// The harm: servers such as IIS and lighttpd answer a POST without a length with 411.
#[test]
fn an_empty_post_has_a_length_at_the_app() {
    let (user, app) = (User::new(), App::start(Script::new()));
    let port = app.port();
    let daprd = Daprd::start(&user, "web", &["--app-port", &port]);
    daprd.until_served("web");
    let length = "Content-Length: 0\r\n";
    for (method, name, fields, expected) in [
        ("POST", "post", length, Some("0")),
        ("POST", "post-without", "", Some("0")),
        ("PUT", "put", length, Some("0")),
        ("PATCH", "patch", length, Some("0")),
        ("DELETE", "delete", length, Some("0")),
        ("DELETE", "delete-without", "", None),
        ("GET", "get", "", None),
        ("POST", "chunks", "Transfer-Encoding: chunked\r\n", None),
    ] {
        let path = format!("/v1.0/invoke/web/method/{name}");
        let body = if name == "chunks" { "0\r\n\r\n" } else { "" };
        let address = daprd.http();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n{fields}\r\n{body}");
        let mut client = RawClient::connect(address).unwrap();
        client.send(request).unwrap();
        let answered = client.read_until(PATIENCE, |bytes| bytes.ends_with(name.as_bytes()));
        assert!(answered.unwrap().text().starts_with("HTTP/1.1 200"), "{name}");
        let seen = &app.requests(&format!("/{name}"))[0];
        if name == "chunks" {
            let framed =
                seen.values("transfer-encoding").len() + seen.values("content-length").len();
            assert_eq!(framed, 1, "{}", seen.head);
        } else {
            assert_eq!(seen.values("content-length").first().copied(), expected, "{}", seen.head);
        }
    }
}

/// A8. Clients whose base URL ends in a slash write two.
#[test]
fn several_slashes_in_a_path_of_the_api_are_one() {
    let (user, app) = (User::new(), App::start(Script::new()));
    let daprd = Daprd::start(&user, "web", &["--app-port", &app.port()]);
    daprd.until_served("web");
    for path in ["//v1.0/healthz", "/v1.0//healthz", "///v1.0/healthz/"] {
        assert!(get(daprd.http(), path).starts_with("HTTP/1.1 204"), "{path}");
    }
    for path in [
        "/v1.0/state//none/k",
        "//v1.0//state//none//k",
        "/v1.0/actors//T/1/state/k",
        "/v1.0/actors//T//1//state//k",
    ] {
        let answer = get(daprd.http(), path);
        assert!(!answer.contains("ERR_NOT_SERVED"), "{path}: {answer}");
    }
    for path in ["//v1.0/invoke/web/method/x", "/v1.0//invoke//web//method//x"] {
        assert!(get(daprd.http(), path).ends_with("own /x"), "{path}");
    }
}

/// A20. `TE` is a field of one connection.
#[test]
fn an_apps_te_field_goes_no_further() {
    let bytes = b"HTTP/1.1 200 OK\r\nTE: trailers\r\nKeep-Alive: timeout=5\r\ncontent-length: 6\r\n\r\nown /t";
    let reply = Reply { bytes: bytes.to_vec(), then: Then::GoOn };
    let (user, app) = (User::new(), App::start(Script::from([("/t", reply)])));
    let daprd = Daprd::start(&user, "web", &["--app-port", &app.port()]);
    daprd.until_served("web");
    let answer = get(daprd.http(), "/v1.0/invoke/web/method/t").to_lowercase();
    assert!(answer.ends_with("own /t") && !answer.contains("\r\nte:"), "{answer}");
    assert!(!answer.contains("keep-alive: timeout"), "{answer}");
}

/// The harm: `localhost` is `::1` first, and the app listens at one of the two.
#[test]
fn an_app_at_one_address_of_its_name_is_called() {
    let unshare = need_tool!("unshare");
    let order = ["::1", "127.0.0.1"];
    let Some(hosts) = Hosts::of_localhost(&unshare, &order) else {
        skip!("mount namespaces are not permitted here");
    };
    for ip in order {
        let address = SocketAddr::new(ip.parse().unwrap(), 0);
        if std::net::TcpListener::bind(address).is_err() {
            continue;
        }
        let echo = tollway_testkit::Start::new(tollway_tests::program());
        let echo = echo.args(["echo", "--http", &address.to_string()]).start_listening().unwrap();
        let port = echo.port("http").unwrap().port().to_string();
        let user = User::new();
        let flags = ["--app-port", &port, "--app-channel-address", "localhost"];
        let daprd = Daprd::start_among(&hosts, &user, "web", &flags);
        daprd.until_served("web");
    }
}

/// The harm: a call of more than a minute ends with 504, whatever Resiliency files say. It takes
/// longer than that.
#[test]
fn a_call_may_take_longer_than_a_minute() {
    slow!();
    let script = Script::from([("/slow", Reply { bytes: Vec::new(), then: Then::GoOn })]);
    let (user, app) = (User::new(), App::start(script));
    let rules = "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata: {name: r}\nspec:\n  \
        policies:\n    timeouts: {long: 120s}\n  targets:\n    apps:\n      web: {timeout: long}\n";
    let rules = file(&user, "rules/rules.yaml", rules);
    let folder = std::path::Path::new(&rules).parent().unwrap().to_str().unwrap();
    let callee = Daprd::start(&user, "web", &["--app-port", &app.port()]);
    let plain = Daprd::start(&user, "plain", &["--app-port", &free_port().unwrap().to_string()]);
    let ruled = Daprd::start(&user, "ruled", &["--resources-path", folder]);
    callee.until_served("web");
    let callers = [&plain, &ruled];
    for caller in callers {
        caller.until_served("web");
    }
    let mut clients = callers.map(|caller| {
        let mut client = RawClient::connect(caller.http()).unwrap();
        let path = "/v1.0/invoke/web/method/slow";
        client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
        client
    });
    let asked = || (app.requests("/slow").len() == 2).then_some(());
    retry_until(PATIENCE, "both calls", asked).unwrap();
    // What is waited for is that nothing comes, for the time of the harm; for the second call it is
    // over then, too.
    for (client, wait_s) in clients.iter_mut().zip([66, 1]) {
        let wait = std::time::Duration::from_secs(wait_s);
        let silent = client.read_until(wait, |bytes| !bytes.is_empty());
        assert!(silent.is_err() || silent.unwrap().bytes.is_empty(), "answered before the app did");
    }
    for request in app.requests("/slow") {
        request.send_more("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    }
    for client in &mut clients {
        let answer = client.read_until(PATIENCE, |bytes| bytes.ends_with(b"ok")).unwrap().text();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}
