//! What sidecars of callers do about replicas that fail, and about faults on purpose, through real
//! processes.

use std::time::{Duration, Instant};

use hyper::Request;
use tollway_testkit::retry_until;
use tollway_tests::fickle_app::FickleApp;
use tollway_tests::load_command;
use tollway_tests::mesh::http::{Client, Version, full, get, runtime};
use tollway_tests::mesh::{AppProtocol, Network, PATIENCE, Sidecar, counter};

const CONSECUTIVE: &str = "tollway_ejections_total{reason=\"consecutive\"}";
const SUCCESS_RATE: &str = "tollway_ejections_total{reason=\"success_rate\"}";
/// From the first failure of a replica to the last one before it is ejected.
const EJECTED_WITHIN: Duration = Duration::from_secs(2);

/// A service with three replicas and its caller.
struct Shop {
    network: Network,
    apps: [FickleApp; 3],
    _sidecars: [Sidecar; 3],
    caller: Sidecar,
    protocol: AppProtocol,
}

impl Shop {
    fn start(protocol: AppProtocol) -> Self {
        let network = Network::start("east", "127.0.1.2", &[]);
        let apps = [(); 3].map(|()| FickleApp::start());
        let sidecars = apps.each_ref().map(|app| network.sidecar_of("stock", app.port, protocol));
        let caller = network.caller(&[]);
        let shop = Self { network, apps, _sidecars: sidecars, caller, protocol };
        let all = || {
            shop.ask();
            shop.apps.iter().all(|app| app.seen() > 0).then_some(())
        };
        retry_until(PATIENCE, "calls of all replicas", all).unwrap();
        shop
    }

    fn police(&self, parts: &str) {
        let file = format!(
            "apiVersion: tollway.dev/v1\nkind: TrafficPolicy\nmetadata: {{name: stock}}\n\
             spec: {{target: {{app: stock}}, {parts}}}\n"
        );
        let printed = self.network.apply(&file);
        assert!(!printed.contains("no effect"), "{printed}");
    }

    /// One call. Returns whether it has gone well.
    fn ask(&self) -> bool {
        if self.protocol == AppProtocol::Grpc {
            return runtime().block_on(self.ask_grpc());
        }
        get(self.caller.http(), "/v1.0/invoke/stock/method/a").starts_with("HTTP/1.1 200 ")
    }

    async fn ask_grpc(&self) -> bool {
        let mut client = Client::connect(Version::Http2, self.caller.grpc()).await;
        let request = Request::post(format!("http://{}/shop.Stock/Get", self.caller.grpc()))
            .header("dapr-app-id", "stock")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", "60S")
            .body(full(&b"\0\0\0\0\0"[..]))
            .unwrap();
        let response = client.send(request).await;
        let in_head = response.headers().get("grpc-status").cloned();
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap();
        let in_trailers = body.trailers().and_then(|fields| fields.get("grpc-status"));
        in_head.as_ref().or(in_trailers).is_some_and(|status| status == "0")
    }

    fn count(&self, metric: &str) -> u64 {
        counter(&self.caller.process, metric)
    }

    /// The middle replica fails all that it gets, is ejected, and is mended.
    fn check_ejection_and_return(&self, status: u16) {
        const EJECTION: Duration = Duration::from_secs(5);
        self.police(&format!("outlier: {{ejection: {}s}}", EJECTION.as_secs()));
        self.apps[1].fail(status, 1);
        let (mut first, mut failures) = (None, 0);
        let ejected = || {
            if !self.ask() {
                first.get_or_insert_with(Instant::now);
                failures += 1;
            }
            (self.count(CONSECUTIVE) == 1).then_some(())
        };
        retry_until(PATIENCE, "the ejection", ejected).unwrap();
        let ejected_at = Instant::now();
        let took = ejected_at - first.unwrap();
        assert!(took < EJECTED_WITHIN, "{took:?}");
        assert_eq!(failures, 5, "no more than eject it");
        let seen = self.apps[1].seen();
        while ejected_at.elapsed() < EJECTION / 2 {
            assert!(self.ask(), "only the others are asked");
        }
        assert_eq!(self.apps[1].seen(), seen);
        let trial = || {
            self.ask();
            (self.count(CONSECUTIVE) == 2).then_some(())
        };
        retry_until(PATIENCE, "a trial that fails", trial).unwrap();
        assert_eq!(self.apps[1].seen(), seen + 1);
        self.apps[1].work();
        let has_returned = || {
            assert!(self.ask(), "all replicas work");
            (self.apps[1].seen() > seen + 20).then_some(())
        };
        retry_until(PATIENCE, "the return of the replica", has_returned).unwrap();
        let before = self.apps.each_ref().map(FickleApp::seen);
        for _ in 0..150 {
            assert!(self.ask());
        }
        let shares = [0, 1, 2].map(|index| self.apps[index].seen() - before[index]);
        assert!(shares.iter().all(|share| *share > 20), "{shares:?}");
        assert_eq!(self.count(CONSECUTIVE), 2);
    }
}

#[test]
fn one_failing_replica_of_three_is_ejected_within_two_seconds_and_comes_back() {
    Shop::start(AppProtocol::Http).check_ejection_and_return(503);
}

#[test]
fn a_replica_whose_calls_of_grpc_fail_is_ejected_and_comes_back() {
    Shop::start(AppProtocol::Grpc).check_ejection_and_return(14);
}

#[test]
fn a_replica_that_fails_more_often_than_the_others_is_ejected() {
    let shop = Shop::start(AppProtocol::Http);
    shop.police(
        "outlier: {consecutiveFailures: 0, successRate: \
         {deviations: 1, interval: 3s, minRequests: 10, minReplicas: 3}}",
    );
    shop.apps[1].fail(500, 2);
    let ejected = || {
        // As many as an interval needs, however slow the machine is.
        (0..100).for_each(|_| _ = shop.ask());
        (shop.count(SUCCESS_RATE) == 1).then_some(())
    };
    retry_until(PATIENCE, "the ejection", ejected).unwrap();
    let seen = shop.apps[1].seen();
    for _ in 0..100 {
        assert!(shop.ask());
    }
    assert_eq!((shop.apps[1].seen(), shop.count(CONSECUTIVE)), (seen, 0));
}

#[test]
fn a_replica_that_takes_no_more_requests_gets_fewer_and_is_not_ejected() {
    let shop = Shop::start(AppProtocol::Http);
    shop.police("outlier: {consecutiveFailures: 1, ejection: 1h, longestEjection: 1h}");
    shop.apps[1].fail(429, 1);
    let refused = (0..300).filter(|_| !shop.ask()).count();
    assert!((1..60).contains(&refused), "{refused} of 300");
    assert_eq!(shop.count(CONSECUTIVE), 0);
    shop.apps[1].work();
    let seen = shop.apps[1].seen();
    let has_its_share = || {
        assert!(shop.ask());
        (shop.apps[1].seen() > seen + 50).then_some(())
    };
    retry_until(PATIENCE, "requests for the replica", has_its_share).unwrap();
}

#[test]
fn a_retry_goes_to_a_replica_that_has_not_failed() {
    let shop = Shop::start(AppProtocol::Http);
    shop.network.apply(
        "apiVersion: tollway.dev/v1\nkind: Route\nmetadata: {name: stock}\n\
         spec: {service: stock, rules: [{backends: [{service: stock}], retry: \
         {attempts: 2, statuses: [503], backoff: 1ms, longestBackoff: 1ms, \
         budget: {percent: 100, minPerSecond: 100000}}}]}\n",
    );
    [0, 1].iter().for_each(|index| shop.apps[*index].fail(503, 1));
    let served = || shop.ask().then_some(());
    retry_until(PATIENCE, "the route being applied", served).unwrap();
    let before = shop.apps.each_ref().map(FickleApp::seen);
    for _ in 0..100 {
        assert!(shop.ask(), "two retries reach the third replica");
    }
    let seen = [0, 1, 2].map(|index| shop.apps[index].seen() - before[index]);
    assert!(seen[0] > 10 && seen[1] > 10 && seen[2] == 100, "{seen:?}");
}

#[test]
fn if_all_replicas_fail_all_are_used_unless_a_policy_forbids_it() {
    let shop = Shop::start(AppProtocol::Http);
    let all = "outlier: {maxEjectedPercent: 100, ejection: 1h, longestEjection: 1h}";
    shop.police(all);
    shop.apps.iter().for_each(|app| app.fail(500, 1));
    let ejected = || {
        (0..10).for_each(|_| _ = shop.ask());
        (shop.count(CONSECUTIVE) == 3).then_some(())
    };
    retry_until(PATIENCE, "the ejection of all", ejected).unwrap();
    assert_eq!(shop.count("tollway_replica_panics_total"), 1);
    shop.apps.iter().for_each(FickleApp::work);
    for _ in 0..50 {
        assert!(shop.ask());
    }
    shop.police(&format!("{all}, panicPercent: 0"));
    let answer = get(shop.caller.http(), "/v1.0/invoke/stock/method/a");
    assert!(answer.contains("x-tollway-error: ERR_REPLICAS_EJECTED"), "{answer}");
}

#[test]
fn a_replica_that_takes_longer_gets_fewer_requests_where_the_time_counts() {
    let shop = Shop::start(AppProtocol::Http);
    shop.apps[1].answer_after(Duration::from_millis(100));
    let share = || {
        let before = shop.apps.each_ref().map(FickleApp::seen);
        (0..150).for_each(|_| assert!(shop.ask()));
        shop.apps[1].seen() - before[1]
    };
    let even = share();
    assert!(even > 25, "{even} by the requests under way");
    shop.police("balancing: {peakEwma: {decay: 60s}}");
    share();
    let less = share();
    assert!(less < 15, "{less} by the expected time, {even} before");
}

#[test]
fn a_replica_that_joins_gets_a_share_that_rises() {
    let shop = Shop::start(AppProtocol::Http);
    shop.police("slowStart: 5m");
    let joined = FickleApp::start();
    let _sidecar = shop.network.sidecar_of("stock", joined.port, shop.protocol);
    let first = || {
        (0..20).for_each(|_| _ = shop.ask());
        (joined.seen() > 0).then_some(())
    };
    retry_until(PATIENCE, "a request for the new replica", first).unwrap();
    let share = || {
        let before = joined.seen();
        (0..200).for_each(|_| assert!(shop.ask()));
        joined.seen() - before
    };
    let little = share();
    assert!(little < 25, "{little} of 200");
    shop.police("slowStart: 1ms");
    let whole = share();
    assert!(whole > 25, "{whole} of 200");
}

#[test]
fn faults_on_purpose_are_named_as_such() {
    let shop = Shop::start(AppProtocol::Http);
    let seen = || shop.apps.iter().map(FickleApp::seen).sum::<usize>();
    let before = seen();
    shop.police("faults: [{from: [caller], delay: {time: 300ms}, abort: {status: 451}}]");
    let begun = Instant::now();
    let refused = || {
        let answer = get(shop.caller.http(), "/v1.0/invoke/stock/method/a");
        answer.starts_with("HTTP/1.1 451 ").then_some(answer)
    };
    let answer = retry_until(PATIENCE, "the fault", refused).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert!(answer.contains("ERR_FAULT_INJECTED") && answer.contains("on purpose"), "{answer}");
    let sidecar = format!("http://{}", shop.caller.http());
    let output = load_command::tollway(&["call", "stock/a", "--explain", "--sidecar", &sidecar]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("fault     delayed by 300 ms, not sent, on purpose"), "{text}");
    assert_eq!(seen(), before);
    assert_eq!(shop.count("tollway_faults_total{kind=\"abort\"}"), 2);
    shop.police("faults: [{from: [other], abort: {status: 451}}]");
    let served = || shop.ask().then_some(());
    retry_until(PATIENCE, "calls without faults", served).unwrap();
}
