//! Callers of a sidecar and of its ports on the machine: bodies without end, connections without
//! requests, pages of other sites.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tollway_testkit::RawClient;
use tollway_tests::mesh::http::{call, get, runtime};

use super::actors::{actor_fields, outcome, relay};
use super::control::list;
use super::world::World;
use super::{Attack, Extent, Found};

pub(crate) const ATTACKS: [Attack; 3] = [
    Attack::new("bodies that do not end", "workload", bodies).on_actors(),
    Attack::new("idle connections at the admin port", "process that reaches it", admin),
    Attack::new("a page of another site", "web page", page),
];

/// What the runtime takes as one body.
const BODY: usize = 4 * 1024 * 1024;

/// A call of an actor with all of its body but the last byte; of a type that is hosted there or not.
fn begin(relay: SocketAddr, actor: usize) -> RawClient {
    let mut client = RawClient::connect(relay).unwrap();
    let [_, [(name, value), ..]] = actor_fields() else { panic!("it has fields") };
    let kind = if actor.is_multiple_of(2) { "Echo" } else { "Cart" };
    let head = format!(
        "PUT /v1.0/actors/{kind}/h{actor}/method/say HTTP/1.1\r\nhost: stock.default.west.mesh\r\n\
         {name}: {value}\r\ncontent-length: {BODY}\r\n\r\n"
    );
    client.send(head).unwrap();
    // It may be refused meanwhile.
    let _ = client.send(vec![b'a'; BODY - 1]);
    client
}

fn bodies(world: &mut World, extent: &Extent) -> Found {
    let (began, inbound) = (Instant::now(), world.stock.process.port("inbound").unwrap());
    let relays = ["evil", "worse"].map(|caller| relay(world, caller, "stock", inbound));
    // One after the other: what is refused frees nothing of what the others hold.
    let addresses = relays.iter().flat_map(|relay| std::iter::repeat_n(relay.address(), 17));
    let bodies: Vec<_> = addresses.enumerate().map(|(nth, at)| begin(at, nth)).collect();
    let (mut outcomes, runtime) = (BTreeMap::<String, usize>::new(), runtime());
    while outcomes.is_empty() || began.elapsed() < extent.time {
        let body = r#"[{"key":"k","value":"v"}]"#;
        let path = "/v1.0/state/statestore";
        let (status, head, text) =
            runtime.block_on(call(world.stock.http(), "POST", path, &[], body));
        *outcomes.entry(outcome(status.as_u16(), &head, &text)).or_default() += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    let refused = outcomes.iter().filter(|(code, _)| *code != "204").count();
    let sent = format!("{} bodies of 4 MiB without their last byte, of two callers", bodies.len());
    let mut found = Found::new(sent, format!("the app's own writes of state: {}", list(&outcomes)))
        .promise(refused == 0, "the app's own state is refused")
        .holding((bodies, relays));
    // Both sides of a body: what peers may hold, and what is on its way.
    found.growth = 160 << 20;
    found
}

fn admin(world: &mut World, extent: &Extent) -> Found {
    const IDLE: usize = 64;
    let began = Instant::now();
    let targets = [&world.stock.process, &world.west.gateway, &world.west.control];
    let targets = targets.map(|process| process.port("admin").unwrap());
    let (mut held, mut probes, mut lost, mut longest) = (Vec::new(), 0, 0, Duration::ZERO);
    for at in targets {
        for _ in 0..IDLE {
            let mut client = RawClient::connect(at).unwrap();
            client.send("GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
            held.push(client);
        }
    }
    while probes == 0 || began.elapsed() < extent.time {
        for at in targets {
            let asked = Instant::now();
            let request = "GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
            let answer = RawClient::exchange(at, request, Duration::from_secs(1));
            let is_answered = answer.is_ok_and(|answer| answer.statuses() == [200]);
            probes += 1;
            lost += usize::from(!is_answered);
            longest = longest.max(asked.elapsed());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let got = format!(
        "{lost} of {probes} health probes unanswered within 1 s, the longest {} ms",
        longest.as_millis()
    );
    let sent = format!("{IDLE} connections with one request each at three admin ports");
    Found::new(sent, got)
        .promise(lost == 0, format!("{lost} health probes are not answered"))
        .holding(held)
}

fn page(world: &mut World, extent: &Extent) -> Found {
    let at = world.web.http();
    let state = r#"[{"key":"stolen","value":"v"}]"#;
    let rebound = "host: rebind.evil.example:3500\r\n";
    let cross =
        "host: localhost:3500\r\norigin: https://evil.example\r\nsec-fetch-site: cross-site\r\n";
    let plain = "host: localhost:3500\r\norigin: https://evil.example\r\n";
    let cases = [
        ("POST", "/v1.0/state/statestore", cross),
        ("POST", "/v1.0/state/statestore", plain),
        ("POST", "/v1.0/invoke/stock.default/method/echo", cross),
        ("GET", "/v1.0/state/statestore/stolen", rebound),
        ("POST", "/v1.0/invoke/stock.default/method/echo", rebound),
    ];
    let (mut outcomes, mut sent, mut served) = (BTreeMap::<String, usize>::new(), 0, 0);
    let began = Instant::now();
    while sent == 0 || began.elapsed() < extent.time {
        for (method, path, fields) in cases {
            let body = if method == "GET" { "" } else { state };
            let request = format!(
                "{method} {path} HTTP/1.1\r\n{fields}content-type: text/plain\r\ncontent-length: \
                 {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            let answer = RawClient::exchange(at, request, Duration::from_secs(5)).unwrap().text();
            let code = answer.lines().find_map(|line| line.strip_prefix("x-tollway-error: "));
            let status = answer.get(9..12).unwrap_or_default();
            served += usize::from(status.starts_with('2'));
            *outcomes.entry(code.unwrap_or(status).to_owned()).or_default() += 1;
            sent += 1;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let stored = get(at, "/v1.0/state/statestore/stolen").starts_with("HTTP/1.1 200");
    let got = format!(
        "{}; {}",
        list(&outcomes),
        if stored { "state is written" } else { "nothing is stored" }
    );
    Found::new(format!("{sent} requests of a page, and by a rebound name"), got)
        .promise(served == 0, format!("{served} requests of a page are served"))
        .promise(!stored, "a page writes state")
}
