//! Near replicas first: two zones, through real processes.

use std::time::Duration;

use serde_json::Value;
use tollway_testkit::retry_until;
use tollway_tests::fickle_app::FickleApp;
use tollway_tests::load_command;
use tollway_tests::mesh::http::get;
use tollway_tests::mesh::{Network, PATIENCE, Sidecar, counter};

/// An app with its sidecar in a zone.
struct Replica {
    app: FickleApp,
    sidecar: Sidecar,
}

/// A service with two replicas in each of the zones `eu-a` and `eu-b`, and a caller in `eu-a`.
struct Shop {
    network: Network,
    near: Vec<Replica>,
    far: Vec<Replica>,
    caller: Sidecar,
}

fn replica(network: &Network, zone: &str) -> Replica {
    let app = FickleApp::start();
    let port = app.port.to_string();
    let options = ["--app-port", &port, "--zone", zone, "--region", "eu"];
    Replica { sidecar: network.sidecar("stock", &options), app }
}

fn seen(replicas: &[Replica]) -> Vec<usize> {
    replicas.iter().map(|replica| replica.app.seen()).collect()
}

impl Shop {
    fn start() -> Self {
        let network = Network::start("east", "127.0.1.2", &[]);
        let of = |zone| (0..2).map(|_| replica(&network, zone)).collect();
        let (near, far) = (of("eu-a"), of("eu-b"));
        let caller = network.caller(&["--zone", "eu-a", "--region", "eu"]);
        let shop = Self { network, near, far, caller };
        let all = || {
            shop.ask();
            let seen = [seen(&shop.near), seen(&shop.far)].concat();
            seen.iter().all(|seen| *seen > 0).then_some(())
        };
        // No policy prefers any: setting zones alone changes nothing.
        retry_until(PATIENCE, "calls of all replicas", all).unwrap();
        shop
    }

    fn police(&self, parts: &str) {
        let file = format!(
            "apiVersion: tollway.dev/v1\nkind: TrafficPolicy\nmetadata: {{name: stock}}\n\
             spec: {{target: {{app: stock}}, {parts}}}\n"
        );
        self.network.apply(&file);
    }

    fn ask(&self) -> bool {
        get(self.caller.http(), "/v1.0/invoke/stock/method/a").starts_with("HTTP/1.1 200 ")
    }

    /// Of `count` calls, those that went to the caller's zone and those that went elsewhere; all have to
    /// go well.
    fn shares(&self, count: usize) -> [usize; 2] {
        let sums = || [&self.near, &self.far].map(|of| seen(of).iter().sum::<usize>());
        let before = sums();
        for _ in 0..count {
            assert!(self.ask());
        }
        let after = sums();
        [after[0] - before[0], after[1] - before[1]]
    }

    fn count(&self, level: &str, reason: &str) -> u64 {
        let name = "tollway_locality_requests_total";
        let metric = format!("{name}{{level=\"{level}\",reason=\"{reason}\"}}");
        counter(&self.caller.process, &metric)
    }

    fn explained(&self) -> String {
        let sidecar = format!("http://{}", self.caller.http());
        let output =
            load_command::tollway(&["call", "stock/a", "--explain", "--sidecar", &sidecar]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        // On one line.
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// What callers in each zone have served by their own zone, in percent, as the control plane shows it.
    fn zone_percents(&self) -> Vec<(String, u64)> {
        let printed = self.network.done(&["get", "localities", "-o", "json"], "");
        let shown: Value = serde_json::from_str(&printed).unwrap();
        let of = |place: &Value| {
            assert_eq!(
                (&place["service"], &place["region"]),
                (&"stock.default.east".into(), &"eu".into())
            );
            let percent = place["percent_by_level"]["zone"].as_u64();
            (place["zone"].as_str().unwrap().to_owned(), percent.unwrap())
        };
        shown["localities"].as_array().unwrap().iter().map(of).collect()
    }
}

#[test]
fn near_replicas_are_called_until_they_fail_and_again_when_they_are_back() {
    let mut shop = Shop::start();
    shop.police("locality: {}, outlier: {ejection: 60s}");
    assert_eq!(shop.shares(200), [200, 0]);
    assert!(shop.count("zone", "nearest") >= 200);
    let text = shop.explained();
    assert!(text.contains("zone 100%, 2 of 2 healthy;"), "{text}");
    assert!(text.contains("in the caller's zone"), "{text}");
    let percents = [("eu-a".to_owned(), 100), ("eu-b".to_owned(), 100)];
    assert_eq!(shop.zone_percents(), percents);

    // One of two near replicas is ejected: 5 of 7 requests stay.
    shop.near[0].app.fail(500, 1);
    let ejected = || {
        shop.ask();
        (counter(&shop.caller.process, "tollway_ejections_total{reason=\"consecutive\"}") == 1)
            .then_some(())
    };
    retry_until(PATIENCE, "the ejection", ejected).unwrap();
    let [near, far] = shop.shares(700);
    assert!((440..=560).contains(&near), "{near} of 700 stay, {far} do not");
    assert!(shop.count("region", "health") >= far as u64);
    let text = shop.explained();
    assert!(text.contains("zone 71%, 1 of 2 healthy;"), "{text}");

    // Both machines of the zone lose their power.
    for replica in &mut shop.near {
        replica.sidecar.process.kill().unwrap();
    }
    let gone = || shop.network.done(&["get", "localities", "-o", "json"], "").contains("eu-a");
    retry_until(PATIENCE, "the near replicas being withdrawn", || (!gone()).then_some(())).unwrap();
    assert_eq!(shop.shares(100), [0, 100]);

    // They come back as others.
    shop.near = (0..2).map(|_| replica(&shop.network, "eu-a")).collect();
    let is_back = || {
        shop.ask();
        seen(&shop.near).iter().all(|seen| *seen > 0).then_some(())
    };
    retry_until(PATIENCE, "near replicas being called again", is_back).unwrap();
    assert_eq!(shop.shares(200), [200, 0]);
}

#[test]
fn a_near_replica_that_has_too_much_under_way_leaves_the_rest_to_others() {
    let mut shop = Shop::start();
    shop.near.truncate(1);
    let one_is_left = || {
        let printed = shop.network.done(&["get", "localities"], "");
        printed.lines().any(|line| line.contains("eu-a") && line.contains(" 1/1 ")).then_some(())
    };
    retry_until(PATIENCE, "one near replica", one_is_left).unwrap();
    shop.police("locality: {spillOver: {requestsPerReplica: 5}}");
    assert_eq!(shop.shares(50), [50, 0], "one after the other");
    // 60 requests would be under way at the near replica.
    shop.near[0].app.answer_after(Duration::from_millis(200));
    let before = [seen(&shop.near), seen(&shop.far)].concat();
    let url = format!("http://{}/v1.0/invoke/stock/method/a", shop.caller.http());
    let load = ["http", &url, "--rate", "300", "--connections", "80", "--duration", "5s"];
    let traffic = load_command::run(&[&load[..], &["--warm-up", "0s"]].concat()).traffic;
    assert_eq!(traffic.errors, 0, "{traffic:?}");
    let after = [seen(&shop.near), seen(&shop.far)].concat();
    let near = after[0] - before[0];
    let far = after[1] + after[2] - before[1] - before[2];
    // It has about 5 under way, each for 0.2 s: some 25 of 300 in a second.
    assert!(near < (near + far) / 4, "{near} of {}", near + far);
    assert!(near > 50, "{near}: what it can do is asked of it");
    assert!(shop.count("region", "load") > 500);
}

#[test]
fn a_policy_for_one_service_turns_the_preference_off() {
    let shop = Shop::start();
    let general = "apiVersion: tollway.dev/v1\nkind: TrafficPolicy\nmetadata: {name: all}\n\
                   spec: {target: {app: \"*\"}, locality: {}}\n";
    shop.network.apply(general);
    assert_eq!(shop.shares(100), [100, 0]);
    shop.police("locality: {prefer: network}");
    let [near, far] = shop.shares(200);
    assert!(near.min(far) > 60, "{near} and {far}");
    // Zones of one region are equally near.
    shop.police("locality: {prefer: region}");
    let [near, far] = shop.shares(200);
    assert!(near.min(far) > 60, "{near} and {far}");
}

#[test]
fn a_zone_that_is_no_name_is_refused_with_what_is_wrong() {
    for (zone, what) in [
        ("", "the name of a zone or a region is empty"),
        ("eu west", "holds the character ' '"),
        (&*"z".repeat(64), "is 64 characters long"),
    ] {
        let output = load_command::tollway(&["sidecar", "--app-id", "a", "--zone", zone]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(what), "{text}");
    }
}
