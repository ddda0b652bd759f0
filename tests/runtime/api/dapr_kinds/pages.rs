//! A9: web pages of other sites. A18: sizes of bodies. A20: fields.

use std::collections::HashMap;

use tollway_testkit::retry_until;
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
    assert_ne!(preflight(&none, good).0, 200);
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
