//! A sidecar that ends its connections to others in the middle, as one does that shuts down: what
//! it has not processed is sent again, and the rest only if it is idempotent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http_body_util::BodyExt;
use hyper::Request;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::sign::SingleCertAndKey;
use rustls::{ServerConfig, version};
use tollway_testkit::{Process, RawClient};

use super::app::{FrameApp, Said, answer, goes_away_at_first, honest};
use crate::listeners::forged::Forge;
use crate::listeners::listener::{Ask, statuses};
use crate::listeners::tls_listener::H2;
use tollway_tests::h2_frames::{Frame, HEADERS, NO_ERROR, goaway};
use tollway_tests::mesh::http::{Client, Version, full, runtime};
use tollway_tests::network::{Network, PATIENCE, STOCK, until_status};
use tollway_tests::scripted_app::{App, Script};

/// A caller's sidecar, and in place of its callee's a peer that a test plays.
struct Between {
    peer: FrameApp,
    web: Process,
    _stock: Process,
    _app: App,
    _network: Network,
}

impl Between {
    fn open() -> Self {
        let network = Network::start("west");
        let peer = FrameApp::start_with_tls(as_sidecar(&network));
        let app = App::start(Script::new());
        // It keeps the registration.
        let place = peer.address.to_string();
        let stock = network.sidecar("stock", &["--app-port", &app.port(), "--advertise", &place]);
        let web = network.sidecar("web", &[]);
        let between = Self { peer, web, _stock: stock, _app: app, _network: network };
        until_status(between.web.port("outbound").unwrap(), &get("/warm"), 200);
        between
    }

    fn connect(&self) -> RawClient {
        RawClient::connect(self.web.port("outbound").unwrap()).unwrap()
    }

    /// The connections on which requests came to the peer since its behaviour was set, in order.
    fn asked_on(&self) -> Vec<usize> {
        let heads = self.peer.heard().into_iter().filter(|(_, frame)| frame.kind == HEADERS);
        heads.map(|(connection, _)| connection).collect()
    }
}

/// What the sidecar of `stock` shows.
fn as_sidecar(network: &Network) -> Arc<ServerConfig> {
    let shown = Forge::workload("stock", "west").sign(&network.authority());
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(shown)));
    config.alpn_protocols = vec![H2.to_vec()];
    Arc::new(config)
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {STOCK}\r\n\r\n")
}

fn post(path: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: {STOCK}\r\ncontent-length: 2\r\n\r\nhi")
}

#[test]
fn streams_that_a_peers_goaway_leaves_out_are_asked_for_again() {
    const STREAMS: usize = 4;
    let between = Between::open();
    for method in ["GET", "POST"] {
        between.peer.set_behaviour(goes_away_at_first(STREAMS));
        runtime().block_on(async {
            let address = between.web.port("outbound").unwrap();
            let Client::Http2(sender) = Client::connect(Version::Http2, address).await else {
                unreachable!()
            };
            let calls = (0..STREAMS).map(|nth| {
                let uri = format!("http://{STOCK}/{nth}");
                let request = Request::builder().method(method).uri(uri).body(full("body"));
                let mut sender = sender.clone();
                tokio::spawn(async move {
                    sender.ready().await.unwrap();
                    sender.send_request(request.unwrap()).await
                })
            });
            for call in calls.collect::<Vec<_>>() {
                let answer = tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap().unwrap();
                assert_eq!(answer.status(), 200, "{method}");
                assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
            }
        });
        // Each was answered once; those above the first were sent twice.
        let asked_on = between.asked_on();
        let first = asked_on[0];
        let on_first = asked_on.iter().filter(|connection| **connection == first).count();
        assert_eq!((asked_on.len(), on_first), (2 * STREAMS - 1, STREAMS), "{method}");
    }
}

/// A stream that GOAWAY includes and that is not answered may have been processed.
#[test]
fn streams_that_a_peers_goaway_takes_in_are_asked_for_again_only_where_it_is_harmless() {
    let between = Between::open();
    for (request, status, asked) in [(post("/once"), 502, 1), (get("/again"), 200, 2)] {
        // The first on a connection may be what ended it.
        between.peer.set_behaviour(|_, frame| Said::Frames(honest(frame)));
        assert_eq!(statuses(&between.connect().ask(&get("/before"))), [200]);
        let was_asked = AtomicBool::new(false);
        between.peer.set_behaviour(move |_, frame| {
            if frame.ends_stream() && !was_asked.swap(true, Ordering::Relaxed) {
                return Said::Last(goaway(frame.stream, NO_ERROR));
            }
            Said::Frames(honest(frame))
        });
        let answer = between.connect().ask(&request);
        assert_eq!(statuses(&answer), [status], "{request}{}", answer.text());
        let is_told = answer.text().contains("ERR_CLOSED_EARLY");
        assert_eq!(is_told, status == 502, "{request}{}", answer.text());
        assert_eq!(between.asked_on().len(), asked, "{request}");
    }
}

/// Requests under way end on their connection; later ones go elsewhere.
#[test]
fn requests_under_way_outlive_a_peers_goaway() {
    let between = Between::open();
    between.peer.set_behaviour(|_, frame: &Frame| match frame.kind {
        // Of a request whose body is still to come.
        HEADERS if !frame.ends_stream() => Said::Frames(goaway(frame.stream, NO_ERROR)),
        _ if frame.ends_stream() => Said::Frames(answer(frame.stream)),
        _ => Said::Frames(Vec::new()),
    });
    let mut long = between.connect();
    let head = format!("POST /long HTTP/1.1\r\nhost: {STOCK}\r\n");
    long.send(head + "transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n").unwrap();
    between.peer.until_heard("its beginning", |frame| frame.kind == HEADERS);
    let other = between.connect().ask(&get("/other"));
    assert_eq!(statuses(&other), [200], "{}", other.text());
    long.send("3\r\nllo\r\n0\r\n\r\n").unwrap();
    let answer = long.read_until(PATIENCE, |bytes| bytes.ends_with(b"ok")).unwrap();
    assert_eq!(statuses(&answer), [200], "{}", answer.text());
    let asked_on = between.asked_on();
    assert_eq!(asked_on.len(), 2, "asked for again: {asked_on:?}");
    assert_ne!(asked_on[0], asked_on[1], "where no more was to come");
    let ends = between.peer.heard().into_iter().filter(|(_, frame)| frame.ends_stream());
    let ended_on: Vec<_> = ends.map(|(connection, _)| connection).collect();
    assert_eq!(ended_on, [asked_on[1], asked_on[0]], "{asked_on:?}");
}
