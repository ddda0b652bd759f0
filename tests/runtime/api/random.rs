//! Requests made of odd parts at random: none of them breaks a sidecar or the control plane.

use std::time::Duration;

use tollway_testkit::{Process, RawClient};
use tollway_tests::mesh::http::{get, runtime};
use tollway_tests::network::Network;
use tollway_tests::scripted_app::{App, Script};
use tollway_wire::dapr::proto::common::v1::{Etag, StateItem};
use tollway_wire::dapr::proto::runtime::v1::{
    GetBulkStateRequest, GetStateRequest, InvokeActorRequest, SaveStateRequest,
};

use super::{client, message};

/// Requests of each kind.
const MANY: usize = 400;
const WITHIN: Duration = Duration::from_secs(2);
const ODD: [&str; 26] = [
    "",
    "a",
    "||",
    "a||b",
    "../x",
    "%00",
    "%0d%0ax:%20y",
    "\u{e9}",
    "%E2%80%A8",
    "a/b",
    "a?b",
    "a#b",
    "@",
    "a@b",
    "Cart@web.default.west",
    "http://127.0.0.1:1",
    "....",
    "a.b.c.d",
    "-",
    "_",
    "STATESTORE",
    "statestore",
    "Cart",
    "anna",
    "{}",
    "999999999999999999999999999999",
];

/// The same numbers each time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    fn of<'a>(&mut self, these: &[&'a str]) -> &'a str {
        these[self.below(these.len())]
    }

    fn odd(&mut self) -> String {
        match self.below(20) {
            0 => "x".repeat(600),
            _ => self.of(&ODD).to_owned(),
        }
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most)).map(|_| u8::try_from(self.below(256)).unwrap()).collect()
    }
}

/// A request of HTTP/1.1, its body among those that the API reads and those that it does not.
fn request(random: &mut Random, host: &str, fields: &str) -> Vec<u8> {
    let (one, two, three) = (random.odd(), random.odd(), random.odd());
    let path = match random.below(9) {
        0 => format!("/v1.0/state/statestore/{one}"),
        1 => format!("/v1.0/actors/{one}/{two}/method/{three}"),
        2 => format!("/v1.0/actors/Cart/{one}/state"),
        3 => format!("/v1.0/actors/{one}/{two}/reminders/{three}"),
        4 => format!("/v1.0/actor-reminders/{one}{two}"),
        5 => format!("/v1.0/invoke/{one}/method/{two}"),
        6 => format!("/v1.0/metadata/{one}"),
        7 => format!("/v1.0-alpha1/state/{one}/query"),
        _ => format!("/{one}/{two}{three}"),
    };
    let deep = format!("[{{\"key\":\"a\",\"value\":{}{}}}]", "[".repeat(5_000), "]".repeat(5_000));
    let body = match random.below(4) {
        0 => deep.into_bytes(),
        1 => random.bytes(60),
        _ => {
            let bodies = [
                "",
                "{",
                "null",
                "{\"dueTime\":\"0s\"}",
                "{\"dueTime\":\"1e400s\",\"period\":\"R0/PT1S\"}",
                "[{\"key\":\"a\",\"value\":1,\"etag\":\"x\",\"options\":{\"concurrency\":\"q\"}}]",
                "{\"operations\":[{\"operation\":\"upsert\",\"request\":{\"key\":\"a\"}}]}",
                "[{\"key\":\"a\",\"metadata\":{\"ttlInSeconds\":\"99999999999999999999999\"}}]",
            ];
            random.of(&bodies).as_bytes().to_vec()
        }
    };
    let method = random.of(&["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]);
    let more = random.of(&[
        "",
        "content-type: application/grpc\r\n",
        "grpc-timeout: -1S\r\n",
        "dapr-reentrancy-id: a\r\n",
        "if-match: \"x\"\r\n",
        "grpc-timeout: 99999999H\r\n",
    ]);
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\n{fields}{more}content-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body].concat()
}

/// The harm: one request among thousands ends a sidecar, or the control plane, for all.
#[test]
fn no_request_of_odd_parts_breaks_a_process() {
    let network = Network::start("west");
    let app = App::start(Script::new());
    let sidecar = network.sidecar("web", &["--app-port", &app.port()]);
    let (api, inbound) = (sidecar.port("http").unwrap(), sidecar.port("inbound").unwrap());
    let mut random = Random(7);
    let relay = network.relay(inbound, "evil", "web", b"http/1.1");
    for _ in 0..MANY {
        let asked = request(&mut random, "localhost", "");
        exchange(api, &asked);
        let lookup = random.of(&["host", "lookup", "1", "\u{e9}"]);
        let fields = format!("x-tollway-actor: {lookup}\r\n");
        let asked = request(&mut random, "web.default.west.mesh", &fields);
        exchange(relay.address(), &asked);
    }
    runtime().block_on(messages(&sidecar, &mut random));
    let healthy = get(api, "/v1.0/healthz");
    assert!(healthy.starts_with("HTTP/1.1 204"), "{healthy}");
    for process in [&sidecar, &network.control] {
        let log = process.log();
        assert!(!log.contains("panicked"), "{log}");
    }
    let _joined = network.sidecar("late", &[]);
}

fn exchange(at: std::net::SocketAddr, bytes: &[u8]) {
    // Whatever it is answered, or that it is not.
    let _ = RawClient::exchange(at, bytes, WITHIN);
}

/// Messages of the gRPC API with the same parts.
async fn messages(sidecar: &Process, random: &mut Random) {
    let listener = sidecar.port("grpc").unwrap();
    let mut client = client(listener).await;
    for _ in 0..MANY / 4 {
        let (one, two, three) = (random.odd(), random.odd(), random.odd());
        let called = super::invoke(listener, &one, message(&two, &three));
        let _ = tokio::time::timeout(WITHIN, called).await;
        let item = StateItem {
            key: random.odd(),
            value: random.bytes(9),
            etag: Some(Etag { value: random.odd() }),
            metadata: [("ttlInSeconds".to_owned(), random.odd())].into(),
            ..StateItem::default()
        };
        let store_name = random.of(&["statestore", "", "a||b"]).to_owned();
        let save = SaveStateRequest { store_name: store_name.clone(), states: vec![item] };
        let _ = client.save_state(save).await;
        let key = random.odd();
        let get = GetStateRequest { store_name, key, ..GetStateRequest::default() };
        let _ = client.get_state(get).await;
        let parallelism = [0, -1, i32::MAX][random.below(3)];
        let keys = (0..5).map(|_| random.odd()).collect();
        let store_name = "statestore".to_owned();
        let bulk = GetBulkStateRequest { store_name, keys, parallelism, ..Default::default() };
        let _ = client.get_bulk_state(bulk).await;
        let call = InvokeActorRequest {
            actor_type: random.odd(),
            actor_id: random.odd(),
            method: random.odd(),
            data: random.bytes(20),
            ..InvokeActorRequest::default()
        };
        let _ = tokio::time::timeout(WITHIN, client.invoke_actor(call)).await;
    }
}
