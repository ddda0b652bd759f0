//! The load is spread over all replicas behind another network's gateway, and services behind one
//! gateway are never mixed up.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hyper::Request;
use tollway_tests::mesh::http::{Client, Version, empty, runtime};
use tollway_tests::mesh::{App, AppProtocol, Mesh, Sidecar};

/// How soon after a change every replica has its share: seconds, but one check of it takes as long
/// on a busy machine.
const SPREAD_WITHIN: Duration = Duration::from_secs(60);
/// How far from its share a replica may be, as a part of all requests.
const TOLERANCE: f64 = 0.05;
/// Requests for a check that the load is spread, and then that it stays so.
const GLANCE: usize = 600;
const LOOK: usize = 3000;
/// Requests under way under load.
const AT_ONCE: usize = 8;

const STOCK: &str = "stock.default.east";

#[test]
fn replicas_behind_a_gateway_share_the_load_after_join_kill_and_scale_up() {
    let mesh = Mesh::not_joined(&[]);
    let start = |replica| mesh.east.app("stock", replica, AppProtocol::Http);
    let mut replicas = vec![start("a"), start("b"), start("c")];
    let caller = mesh.west.caller(&[]);
    mesh.join();
    assert_shared(&caller, &replicas, "the join");

    replicas.remove(0).kill();
    assert_shared(&caller, &replicas, "a kill");

    replicas.push(start("d"));
    assert_shared(&caller, &replicas, "a replacement");

    replicas.push(start("e"));
    assert_shared(&caller, &replicas, "a scale-up");
}

#[test]
fn a_replica_whose_app_is_gone_gets_no_more_requests() {
    let mesh = Mesh::start();
    let start = |replica| mesh.east.app("stock", replica, AppProtocol::Http);
    let mut replicas = vec![start("a"), start("b")];
    let caller = mesh.west.caller(&[]);
    assert_shared(&caller, &replicas, "the start");
    // Its sidecar stays, with the connections that callers have to it.
    let mut gone = replicas.remove(0);
    gone.echo.kill().unwrap();
    assert_shared(&caller, &replicas, "the end of an app");
    assert!(gone.sidecar.process.is_running());
}

/// Waits until all `replicas`, and no others, answer in equal shares, and checks again for longer:
/// one request after the other, since of many at once a replica that is slower for a moment rightly
/// gets fewer.
fn assert_shared(caller: &Sidecar, replicas: &[App], after: &str) {
    let deadline = Instant::now() + SPREAD_WITHIN;
    loop {
        let answers = answers_of(caller, STOCK, GLANCE, 1);
        if are_shared(&answers, replicas) {
            break;
        }
        assert!(Instant::now() < deadline, "not within {SPREAD_WITHIN:?} of {after}: {answers:?}");
    }
    let answers = answers_of(caller, STOCK, LOOK, 1);
    assert!(are_shared(&answers, replicas), "later after {after}: {answers:?}");
    let answers = answers_of(caller, STOCK, LOOK, AT_ONCE);
    let least = LOOK / replicas.len() / 2;
    let none_starves = replicas.iter().all(|app| answers.get(&app.replica) >= Some(&least));
    assert!(none_starves && answers.len() == replicas.len(), "{AT_ONCE} at once: {answers:?}");
}

fn are_shared(answers: &BTreeMap<String, usize>, replicas: &[App]) -> bool {
    let all: usize = answers.values().sum();
    let fair = 1.0 / replicas.len() as f64;
    answers.len() == replicas.len()
        && replicas.iter().all(|app| {
            let share = *answers.get(&app.replica).unwrap_or(&0) as f64 / all as f64;
            (share - fair).abs() <= TOLERANCE
        })
}

#[test]
fn services_behind_one_gateway_are_never_mixed_up() {
    const SERVICES: [&str; 2] = ["stock", "orders"];
    let mesh = Mesh::start();
    let caller = mesh.west.caller(&[]);
    let mut stock = mesh.east.app("stock", "stock-1", AppProtocol::Http);
    let _others = [
        mesh.east.app("stock", "stock-2", AppProtocol::Http),
        mesh.east.app("orders", "orders-1", AppProtocol::Http),
        mesh.east.app("orders", "orders-2", AppProtocol::Http),
    ];
    SERVICES.iter().for_each(|service| caller.until_served(&format!("{service}.default.east")));
    let look = |requests: usize| {
        let answers = std::thread::scope(|scope| {
            let both = SERVICES.map(|service| {
                let caller = &caller;
                scope.spawn(move || {
                    answers_of(caller, &format!("{service}.default.east"), requests, AT_ONCE)
                })
            });
            both.map(|answers| answers.join().unwrap())
        });
        for (service, answers) in SERVICES.iter().zip(&answers) {
            let strangers = answers
                .keys()
                .filter(|name| !name.starts_with(service) && !name.starts_with(FAILED));
            assert_eq!(strangers.count(), 0, "{service} was answered by {answers:?}");
        }
        answers
    };
    for answers in look(2000) {
        assert!(!answers.keys().any(|name| name.starts_with(FAILED)), "{answers:?}");
        assert_eq!(answers.len(), 2, "{answers:?}");
    }

    // Orders takes stock's address: a caller that still dials that address must not be answered.
    let address = stock.sidecar.process.port("inbound").unwrap().to_string();
    stock.kill();
    let options = ["--inbound-listen", &address];
    let _successor = mesh.east.app_with("orders", "orders-3", AppProtocol::Http, &options);
    let deadline = Instant::now() + SPREAD_WITHIN;
    while !look(GLANCE)[1].contains_key("orders-3") {
        assert!(Instant::now() < deadline, "orders-3 takes no requests");
    }
    look(2000);
}

/// How requests that got no answer of the app are counted: this and the status.
const FAILED: &str = "status ";

/// Sends so many requests, so many of them at once, and counts who answered them.
fn answers_of(
    caller: &Sidecar,
    service: &str,
    requests: usize,
    at_once: usize,
) -> BTreeMap<String, usize> {
    let listener = caller.http();
    let uri = format!("http://sidecar/v1.0/invoke/{service}/method/status/200");
    runtime().block_on(async {
        let senders: Vec<_> = (0..at_once)
            .map(|_| {
                let uri = uri.clone();
                tokio::spawn(async move {
                    let mut client = Client::connect(Version::Http1, listener).await;
                    let mut names = Vec::new();
                    for _ in 0..requests / at_once {
                        let request = Request::get(&uri).body(empty()).unwrap();
                        let answer = client.exchange(request).await;
                        names.push(match answer.status {
                            200 => answer.replica,
                            status => format!("{FAILED}{status}"),
                        });
                    }
                    names
                })
            })
            .collect();
        let mut counts = BTreeMap::new();
        for sender in senders {
            for name in sender.await.unwrap() {
                *counts.entry(name).or_insert(0) += 1;
            }
        }
        counts
    })
}
