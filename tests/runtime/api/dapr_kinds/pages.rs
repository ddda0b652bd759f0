//! A9: web pages of other sites. A18: sizes of bodies. A20: fields.

use std::collections::HashMap;

use tollway_testkit::{RawClient, need_tool, retry_until};
use tollway_tests::foreign_program::printed;
use tollway_tests::mesh::http::{call, runtime};
use tollway_tests::scripted_app::{App, Reply, Then};
use tollway_tests::user::{PATIENCE, User};

use super::ask;
use crate::api::daprd::Daprd;

const METADATA: &str = "/v1.0/metadata";

#[test]
fn a9_pages_of_allowed_origins_use_the_api_and_no_others() {
    let user = User::new();
    let listed = ["--allowed-origins", "https://example.com"];
    let daprd = Daprd::listening(&user, "web", &listed);
    let preflight = |daprd: &Daprd, origin: &str| {
        let fields = [("origin", origin), ("access-control-request-method", "GET")];
        let answer = ask(daprd.http(), "OPTIONS", METADATA, &fields);
        (answer.status, answer.field("access-control-allow-origin").to_owned())
    };
    let page = |daprd: &Daprd, origin: &str| {
        let answer = ask(daprd.http(), "GET", METADATA, &[("origin", origin)]);
        (answer.status, answer.field("access-control-allow-origin").to_owned())
    };
    let good = "https://example.com";
    assert_eq!(preflight(&daprd, good), (200, good.to_owned()));
    assert_eq!(page(&daprd, good), (200, good.to_owned()));
    assert_eq!(preflight(&daprd, "https://foobaz.com"), (200, String::new()));
    assert_eq!(page(&daprd, "https://foobaz.com").0, 403);
    let any = Daprd::listening(&user, "any", &["--allowed-origins", "*"]);
    assert_eq!(preflight(&any, "https://foobaz.com"), (200, "*".to_owned()));
    assert_eq!(page(&any, "https://foobaz.com"), (200, "*".to_owned()));
    let none = Daprd::listening(&user, "none", &[]);
    // As daprd: no page is served, whatever else it sends.
    assert_eq!(preflight(&none, good), (404, String::new()));
    assert_eq!(preflight(&none, "*"), (404, String::new()));
    assert_eq!(page(&none, good), (403, String::new()));
}

#[test]
fn a18_a_limit_of_bodies_below_the_default_holds() {
    let (user, app) = (User::new(), App::start(HashMap::new()));
    for limit in [["--max-body-size", "64Ki"], ["--max-body-size", "65536"]] {
        let port = app.port();
        let flags = [&limit[..], &["--app-port", &port]].concat();
        let daprd = Daprd::listening(&user, "web", &flags);
        daprd.until_served("web");
        let post = |path: &str, bytes: usize| {
            let body = "x".repeat(bytes);
            let (status, _, body) = runtime().block_on(call(daprd.http(), "POST", path, &[], body));
            (status.as_u16(), body)
        };
        app.forget();
        assert_eq!(post("/v1.0/invoke/web/method/small", 65_536).0, 200);
        let (status, body) = post("/v1.0/invoke/web/method/large", 65_537);
        assert!(status == 500 && body.contains("ERR_DIRECT_INVOKE"), "{body}");
        assert!(body.contains("stream too large"), "{body}");
        assert!(!app.was_sent("/large"));
        // So is a body whose length no head states.
        let chunked = |path: &str, bytes: usize| {
            let head =
                "HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
            let half = "y".repeat(bytes / 2);
            let rest = "z".repeat(bytes - bytes / 2);
            let request = format!(
                "POST /v1.0/invoke/web/method/{path} {head}{:x}\r\n{half}\r\n{:x}\r\n{rest}\r\n0\r\n\r\n",
                half.len(),
                rest.len(),
            );
            RawClient::exchange(daprd.http(), request, PATIENCE).unwrap().text()
        };
        let whole = chunked("streamed", 65_536);
        assert!(whole.starts_with("HTTP/1.1 200"), "{whole}");
        let refused = chunked("endless", 65_537);
        assert!(refused.starts_with("HTTP/1.1 500"), "{refused}");
        assert!(refused.contains("ERR_DIRECT_INVOKE"), "{refused}");
        assert!(refused.contains("stream too large"), "{refused}");
        assert!(app.requests("/endless").is_empty(), "it never has all of it");
    }
}

/// A20. Java's client and curl offer HTTP/2 with their first request.
#[test]
fn a20_http_2_is_taken_where_the_client_offers_it() {
    let curl = need_tool!("curl");
    let (user, app) = (User::new(), App::start(HashMap::new()));
    let daprd = Daprd::listening(&user, "web", &["--app-port", &app.port()]);
    daprd.until_served("web");
    let url = |path: &str| format!("http://{}{path}", daprd.http());
    let run = |words: &[&str]| {
        let mut command = std::process::Command::new(&curl);
        command.args(["-sS", "--http2", "-o", "/dev/null", "-w"]);
        command.arg("%{http_version} %{response_code} %{num_connects};");
        printed(command.args(words))
    };
    let (call, health) = (url("/v1.0/invoke/web/method/x?a=1"), url("/v1.0/healthz"));
    // One connection, of which the second request is the third stream.
    assert_eq!(run(&[&call, "-o", "/dev/null", &health]), "2 200 1;2 204 0;");
    assert_eq!(run(&["--head", &call]), "2 200 1;");
    // A request with a body is answered as it came, and so is one that could be of a page.
    assert_eq!(run(&["-d", "body", &call]), "1.1 200 1;");
    let foreign = ["-H", "Host: evil.example", &health];
    assert_eq!(run(&foreign), "1.1 403 1;");
    assert_eq!(run(&["-H", "Origin: http://evil.example", &health]), "2 403 1;");
    assert_eq!(app.requests("/x?a=1").len(), 3);
    // What does not go on as HTTP/2 is no request.
    let offer = "GET /v1.0/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, \
                 HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n";
    let behind = "GET /v1.0/invoke/web/method/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let answer = RawClient::exchange(daprd.http(), format!("{offer}{behind}"), PATIENCE).unwrap();
    assert!(answer.text().starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{}", answer.text());
    assert!(!app.was_sent("smuggled"));
    for unlisted in ["Connection: Upgrade\r\n", "Connection: Upgrade, HTTP2-Settings\r\nX: y\r\n"] {
        let settings = if unlisted.contains("X: y") { "" } else { "HTTP2-Settings: AAMAAABk\r\n" };
        let offer = format!(
            "GET /v1.0/healthz HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\n{unlisted}{settings}\r\n"
        );
        let mut client = RawClient::connect(daprd.http()).unwrap();
        client.send(offer).unwrap();
        let answer = client.read_until(PATIENCE, |bytes| bytes.ends_with(b"\r\n\r\n")).unwrap();
        assert!(answer.text().starts_with("HTTP/1.1 204"), "{unlisted}: {}", answer.text());
    }
}

#[test]
fn a20_fields_of_a_connection_do_not_come_from_the_app_and_the_app_is_named() {
    let user = User::new();
    let bytes =
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nte: trailers\r\nkeep-alive: timeout=5\r\n\
                  connection: keep-alive, x-hop\r\nx-hop: 1\r\nx-mine: 1\r\n\r\n";
    let reply = Reply { bytes: bytes.to_vec(), then: Then::GoOn };
    let app = App::start(HashMap::from([("/fields", reply)]));
    let daprd = Daprd::listening(&user, "web", &["--app-port", &app.port()]);
    daprd.until_served("web");
    let answer = ask(daprd.http(), "GET", "/v1.0/invoke/web/method/fields", &[]);
    assert_eq!((answer.status, answer.field("x-mine")), (200, "1"));
    for gone in ["te", "keep-alive", "x-hop"] {
        assert!(!answer.fields.contains_key(gone), "{gone}: {:?}", answer.fields);
    }
    let asked = retry_until(PATIENCE, "the question", || app.requests("/dapr/config").pop());
    assert_eq!(asked.unwrap().values("dapr-app-id"), ["web"]);
}
