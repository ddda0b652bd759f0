//! Callers of actors that begin bodies and do not end them.

use std::net::SocketAddr;

use tollway_testkit::{RawClient, TlsRelay};
use tollway_tests::network::Network;

use super::app::{ActorApp, Log};
use super::{CONFIG, call, until_hosted};

/// What the runtime takes as one body.
const BODY: usize = 4 * 1024 * 1024;

/// A call of an actor with all of its body but the last byte.
fn begin(relay: SocketAddr, actor: usize) -> RawClient {
    let mut client = RawClient::connect(relay).unwrap();
    let head = format!(
        "PUT /v1.0/actors/Cart/h{actor}/method/hello HTTP/1.1\r\nhost: cart.default.west.mesh\r\n\
         x-tollway-actor: host\r\ncontent-length: {BODY}\r\n\r\n"
    );
    client.send(head).unwrap();
    // It may be refused meanwhile.
    let _ = client.send(vec![b'a'; BODY - 1]);
    client
}

/// The harm: a caller takes the state API of another app away, and its actors from all other callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unfinished_bodies_of_a_caller_keep_no_other_from_an_app() {
    let network = tokio::task::block_in_place(|| Network::start("west"));
    let app = ActorApp::serve("one", CONFIG, &Log::default()).await;
    let port = app.address.port().to_string();
    let cart = tokio::task::block_in_place(|| network.sidecar("cart", &["--app-port", &port]));
    let (api, inbound) = (cart.port("http").unwrap(), cart.port("inbound").unwrap());
    until_hosted(api, "Cart/1").await;
    let relay = |caller: &str| -> TlsRelay {
        tokio::task::block_in_place(|| network.relay(inbound, caller, "cart", b"http/1.1"))
    };
    let (evil, worse, web) = (relay("evil"), relay("worse"), relay("web"));
    let mut begun = Vec::new();
    for relay in [&evil, &worse] {
        let address = relay.address();
        let held = (0..17).map(|actor| tokio::task::spawn_blocking(move || begin(address, actor)));
        for client in held.collect::<Vec<_>>() {
            begun.push(client.await.unwrap());
        }
    }

    for _ in 0..3 {
        let body = r#"[{"key":"k","value":"v"}]"#;
        let (status, _, text) = call(api, "POST", "/v1.0/state/statestore", &[], body).await;
        assert_eq!(status, 204, "{text}");
        let (status, _, text) =
            call(api, "POST", "/v1.0/actors/Cart/2/method/hello", &[], "x").await;
        assert_eq!(status, 200, "{text}");
        let whole = "b".repeat(BODY / 2);
        let path = "/v1.0/actors/Cart/3/method/hello";
        let fields = [("x-tollway-actor", "host")];
        let (status, _, text) = call(web.address(), "PUT", path, &fields, whole).await;
        assert_eq!(status, 200, "{text}");
    }
    drop(begun);
}
