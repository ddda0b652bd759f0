//! What a caller's sidecar does about replicas that fail, and about faults on purpose, as traffic
//! policies have it.

use std::sync::atomic::AtomicU16;

use tollway_model::traffic_policy::{
    AbortFault, DelayFault, Fault, Outlier, SuccessRate, TrafficParts,
};

use super::app_unreachable::Fleet;
use super::*;

const SECOND: Duration = Duration::from_secs(1);
/// The chance of a fault that every request has.
const ALWAYS: u32 = 1_000_000;

/// An app that answers with the status that it is set to.
#[derive(Clone)]
struct Fickle {
    status: Arc<AtomicU16>,
    seen: Arc<AtomicUsize>,
}

impl Fickle {
    fn start() -> (Self, SocketAddr) {
        let fickle = Self { status: Arc::new(200.into()), seen: Arc::default() };
        let of_app = fickle.clone();
        let address = serve(move |request| of_app.clone().answer(request));
        (fickle, address)
    }

    /// A status below 100 is that of a call of gRPC, in its trailers.
    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
        self.seen.fetch_add(1, Ordering::SeqCst);
        request.into_body().collect().await?;
        let status = self.status.load(Ordering::SeqCst);
        let body = Bytes::from_static(b"hi");
        if status < 100 {
            let mut trailers = ::http::HeaderMap::new();
            trailers.insert("grpc-status", status.into());
            let frames = [Ok(Frame::data(body)), Ok(Frame::trailers(trailers))];
            let body = BodyExt::boxed(StreamBody::new(tokio_stream_iter(frames)));
            let builder = Response::builder().header("content-type", "application/grpc");
            return Ok(builder.body(body).unwrap());
        }
        let body = Full::new(body).map_err(|e| match e {}).boxed();
        Ok(Response::builder().status(status).header("retry-after", "5").body(body).unwrap())
    }

    fn set(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    /// Requests since this was asked last.
    fn take_seen(&self) -> usize {
        self.seen.swap(0, Ordering::SeqCst)
    }
}

/// web calls stock, which has some replicas.
struct Shop {
    fleet: Fleet,
    apps: Vec<Fickle>,
}

impl Shop {
    fn new(protocol: AppProtocol, count: usize, parts: TrafficParts) -> Self {
        let (apps, addresses): (Vec<_>, Vec<_>) = (0..count).map(|_| Fickle::start()).unzip();
        let fleet = Fleet::new(protocol, &addresses);
        fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
        let shop = Self { fleet, apps };
        shop.police(parts);
        shop
    }

    fn police(&self, parts: TrafficParts) {
        sim::keep_policed(&self.fleet.caller, &self.fleet.stock, parts);
    }

    /// The response to one request with these fields.
    fn ask(&self, fields: &str) -> String {
        let request = format!(
            "POST /v1.0/invoke/stock/method/a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\
             {fields}content-length: 2\r\n\r\nhi"
        );
        let mut stream = connect(self.fleet.caller.addresses[0]);
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Of `count` requests, those that are not answered with 200.
    fn failures(&self, count: usize) -> usize {
        (0..count).filter(|_| !self.ask("").starts_with("HTTP/1.1 200 ")).count()
    }

    /// Of `count` calls of gRPC, those that have not ended well.
    fn grpc_failures(&self, count: usize) -> usize {
        let fields = "content-type: application/grpc\r\nte: trailers\r\n";
        (0..count).filter(|_| !self.ask(fields).contains("grpc-status: 0\r\n")).count()
    }

    fn take_seen(&self) -> Vec<usize> {
        self.apps.iter().map(Fickle::take_seen).collect()
    }

    /// Ejections so far, for consecutive failures and by success rate.
    fn ejections(&self) -> [u64; 2] {
        let ejections = &self.fleet.caller.metrics.ejections;
        [ejections.consecutive.value(), ejections.success_rate.value()]
    }

    fn ejected(&self) -> u64 {
        advance(SWEEP);
        self.fleet.caller.metrics.ejected_replicas.value()
    }
}

fn with(outlier: Outlier) -> TrafficParts {
    TrafficParts { outlier: Some(outlier), ..TrafficParts::default() }
}

/// The second of three replicas fails and is mended; `failures` makes so many requests.
fn check_ejection_and_return(
    shop: &Shop,
    [good, bad]: [u16; 2],
    failures: impl Fn(&Shop, usize) -> usize,
) {
    shop.apps.iter().for_each(|app| app.set(good));
    assert_eq!(failures(shop, 60), 0);
    assert!(shop.take_seen().iter().all(|seen| *seen > 5));
    shop.apps[1].set(bad);
    assert_eq!(failures(shop, 60), 5, "as many as eject it");
    assert_eq!((shop.ejections(), shop.ejected()), ([1, 0], 1));
    shop.take_seen();
    assert_eq!(failures(shop, 100), 0);
    let seen = shop.take_seen();
    assert!(seen[0] > 30 && seen[1] == 0 && seen[2] > 30, "{seen:?}");
    // On trial the first failure ejects it again, for twice as long.
    advance(30 * SECOND);
    assert_eq!(shop.ejected(), 0);
    assert_eq!(failures(shop, 200), 1);
    assert_eq!((shop.ejections(), shop.ejected()), ([2, 0], 1));
    shop.apps[1].set(good);
    advance(60 * SECOND);
    shop.take_seen();
    assert_eq!(failures(shop, 400), 0);
    let seen = shop.take_seen();
    assert!(seen[1] > 80, "{seen:?}");
    assert_eq!((shop.ejections(), shop.ejected()), ([2, 0], 0));
}

#[test]
fn a_failing_replica_is_ejected_and_comes_back_when_it_is_mended() {
    let shop = Shop::new(AppProtocol::Http, 3, with(Outlier::DEFAULT));
    check_ejection_and_return(&shop, [200, 503], Shop::failures);
}

#[test]
fn a_failing_replica_is_ejected_where_each_connection_has_one_request() {
    let shop = Shop::new(AppProtocol::Http, 3, with(Outlier::DEFAULT));
    let bounds = (Limits::default(), patient());
    shop.fleet.caller.configure(MeshProtocol::Http1, bounds);
    check_ejection_and_return(&shop, [200, 500], Shop::failures);
}

#[test]
fn a_replica_whose_calls_of_grpc_fail_is_ejected() {
    let shop = Shop::new(AppProtocol::Grpc, 3, with(Outlier::DEFAULT));
    check_ejection_and_return(&shop, [0, 14], Shop::grpc_failures);
}

#[test]
fn without_a_policy_no_replica_is_ejected() {
    let shop = Shop::new(AppProtocol::Http, 3, TrafficParts::default());
    shop.apps[1].set(503);
    let failures = shop.failures(150);
    assert!((20..90).contains(&failures), "{failures}");
    assert_eq!((shop.ejections(), shop.ejected()), ([0, 0], 0));
}

#[test]
fn statuses_of_a_replica_that_works_eject_nothing() {
    let shop = Shop::new(AppProtocol::Http, 3, with(Outlier::DEFAULT));
    for status in [501, 404, 401] {
        shop.apps[1].set(status);
        assert!(shop.failures(60) > 5);
    }
    assert_eq!(shop.ejections(), [0, 0]);
    // Neither calls of gRPC that are at fault, nor answers that are not of gRPC.
    let shop = Shop::new(AppProtocol::Grpc, 3, with(Outlier::DEFAULT));
    shop.apps.iter().for_each(|app| app.set(0));
    for status in [3, 5, 404] {
        shop.apps[1].set(status);
        assert!(shop.grpc_failures(60) > 5);
    }
    assert_eq!(shop.ejections(), [0, 0]);
    // A call that ends without a status has failed.
    shop.apps[1].set(200);
    shop.grpc_failures(60);
    assert_eq!(shop.ejections(), [1, 0]);
}

#[test]
fn a_replica_that_takes_no_more_requests_gets_fewer_for_the_time_that_it_states() {
    let shop = Shop::new(AppProtocol::Http, 3, with(Outlier::DEFAULT));
    assert_eq!(shop.failures(30), 0);
    shop.apps[1].set(429);
    let refused = shop.failures(200);
    assert!((1..20).contains(&refused), "{refused}");
    assert_eq!((shop.ejections(), shop.ejected()), ([0, 0], 0));
    shop.apps[1].set(200);
    advance(6 * SECOND);
    shop.take_seen();
    assert_eq!(shop.failures(300), 0);
    let seen = shop.take_seen();
    assert!(seen[1] > 60, "{seen:?}");
}

#[test]
fn a_replica_that_fails_more_often_than_the_others_is_ejected() {
    let rate =
        SuccessRate { min_replicas: 3, min_requests: 20, deviations: 1000, ..SuccessRate::DEFAULT };
    let outlier = Outlier { consecutive_failures: 0, success_rate: Some(rate), ..Outlier::DEFAULT };
    let shop = Shop::new(AppProtocol::Http, 3, with(outlier));
    let mut failures = 0;
    for turn in 0..200 {
        // It fails every second time that it is asked.
        let seen = shop.apps[1].seen.load(Ordering::SeqCst);
        shop.apps[1].set(if seen.is_multiple_of(2) { 503 } else { 200 });
        failures += shop.failures(1);
        if turn % 10 == 0 {
            advance(SECOND / 2);
        }
    }
    assert!(failures > 5, "{failures}");
    advance(10 * SECOND);
    shop.failures(1);
    assert_eq!((shop.ejections(), shop.ejected()), ([0, 1], 1));
    shop.take_seen();
    assert_eq!(shop.failures(50), 0);
    assert_eq!(shop.take_seen()[1], 0);
}

#[test]
fn what_is_known_of_a_replica_stays_until_it_moves() {
    let shop = Shop::new(AppProtocol::Http, 3, with(Outlier::DEFAULT));
    let fleet = &shop.fleet;
    shop.apps[1].set(500);
    assert_eq!(shop.failures(60), 5);
    // Another replica leaves: it stays ejected.
    let [first, second, third] = fleet.addresses()[..] else { unreachable!("three") };
    fleet.caller.send_state(&fleet.stock, fleet.local(&[first, second]));
    shop.take_seen();
    assert_eq!(shop.failures(20), 0);
    assert_eq!(shop.take_seen(), [20, 0, 0]);
    // Other times of the policy, too.
    shop.police(with(Outlier { consecutive_failures: 3, ..Outlier::DEFAULT }));
    assert_eq!(shop.failures(20), 0);
    assert_eq!(shop.take_seen(), [20, 0, 0]);
    // At another address it is another replica.
    let moved = sim::forward(second, Duration::ZERO, |_| {});
    fleet.caller.send_state(&fleet.stock, fleet.local(&[first, moved, third]));
    assert_eq!(shop.ejected(), 0);
    assert_eq!(shop.failures(60), 3);
    assert_eq!(shop.ejections(), [2, 0]);
    // Without outliers all are used.
    shop.police(TrafficParts::default());
    assert!(shop.failures(60) > 5);
}

#[test]
fn if_all_fail_all_are_used_unless_a_policy_forbids_it() {
    let all = Outlier { max_ejected_percent: 100, ..Outlier::DEFAULT };
    let shop = Shop::new(AppProtocol::Http, 3, with(all));
    shop.apps.iter().for_each(|app| app.set(500));
    assert_eq!(shop.failures(60), 60);
    let panics = shop.fleet.caller.metrics.replica_panics.value();
    assert_eq!((shop.ejections(), panics), ([3, 0], 1));
    shop.apps.iter().for_each(|app| app.set(200));
    assert_eq!(shop.failures(60), 0);
    let never = TrafficParts { panic_percent: Some(0), ..with(all) };
    let shop = Shop::new(AppProtocol::Http, 3, never);
    shop.apps.iter().for_each(|app| app.set(500));
    shop.failures(60);
    let answer = shop.ask("");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("x-tollway-error: ERR_REPLICAS_EJECTED\r\n"), "{answer}");
    assert_eq!(shop.take_seen().iter().sum::<usize>(), 15);
    shop.apps.iter().for_each(|app| app.set(200));
    advance(31 * SECOND);
    assert_eq!(shop.failures(60), 0);
}

#[test]
fn a_replica_that_cannot_be_connected_to_is_ejected() {
    let fleet = Fleet::new(AppProtocol::Tcp, &[start_tcp_echo(); 2]);
    let mut addresses = fleet.addresses();
    addresses.push(unused_address());
    fleet.caller.send_state(&fleet.stock, fleet.local(&addresses));
    sim::keep_policed(&fleet.caller, &fleet.stock, with(Outlier::DEFAULT));
    let call = || {
        let mut stream = connect(fleet.caller.addresses[1]);
        stream.write_all(b"hi").unwrap();
        stream.finish();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "hi");
        // Until the address that failed may be dialled again.
        advance(2 * SECOND);
    };
    let metrics = &fleet.caller.metrics;
    for _ in 0..40 {
        call();
    }
    assert_eq!((metrics.ejections.consecutive.value(), metrics.dial_failures.value()), (2, 6));
}

#[test]
fn of_replicas_behind_a_gateway_none_is_ejected() {
    let shop = Shop::new(AppProtocol::Http, 2, with(Outlier::DEFAULT));
    let fleet = &shop.fleet;
    let gateway = fleet.start_gateway(None, &fleet.addresses());
    fleet.caller.send_state(&fleet.stock, fleet.remote(gateway.addresses[0]));
    assert_eq!(shop.failures(30), 0);
    shop.apps[1].set(500);
    assert!(shop.failures(60) > 10);
    assert_eq!((shop.ejections(), shop.ejected()), ([0, 0], 0));
    // Back in the own network, they are.
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    assert_eq!(shop.failures(60), 5);
    assert_eq!(shop.ejected(), 1);
}

fn faulty(from: &str, delay: Option<Duration>, aborts: bool) -> TrafficParts {
    let delay = delay.map(|time| DelayFault { time, share: ALWAYS });
    let abort = aborts.then_some(AbortFault { status: 418, grpc_status: 10, share: ALWAYS });
    let fault = Fault { from: vec![from.parse().unwrap()], delay, abort };
    TrafficParts { faults: vec![fault], ..TrafficParts::default() }
}

#[test]
fn a_request_is_held_back_and_answered_with_an_error_on_purpose() {
    let shop = Shop::new(AppProtocol::Http, 1, faulty("web", Some(3 * SECOND), false));
    let begun = now();
    assert_eq!(shop.failures(1), 0);
    assert!((3 * SECOND..3 * SECOND + 2 * SWEEP).contains(&(now() - begun)), "{:?}", now() - begun);
    shop.police(faulty("web", None, true));
    shop.take_seen();
    let answer = shop.ask("");
    assert!(answer.starts_with("HTTP/1.1 418 "), "{answer}");
    assert!(answer.contains("\"errorCode\":\"ERR_FAULT_INJECTED\""), "{answer}");
    assert!(answer.contains("on purpose"), "{answer}");
    let answer = shop.ask("content-type: application/grpc\r\n");
    assert!(answer.contains("grpc-status: 10\r\n"), "{answer}");
    assert_eq!(shop.take_seen(), [0]);
    let begun = now();
    shop.police(faulty("web", Some(SECOND), true));
    assert!(shop.ask("").starts_with("HTTP/1.1 418 "));
    assert!(now() - begun >= SECOND);
    let faults = &shop.fleet.caller.metrics.faults;
    assert_eq!((faults.delays.value(), faults.aborts.value()), (2, 3));
    shop.police(faulty("other", Some(SECOND), true));
    assert_eq!(shop.failures(10), 0);
    assert_eq!((faults.delays.value(), faults.aborts.value()), (2, 3));
}

#[test]
fn the_time_that_a_request_is_held_back_counts_for_its_deadline() {
    let shop = Shop::new(AppProtocol::Http, 1, faulty("web", Some(60 * SECOND), false));
    let begun = now();
    let answer = shop.ask("content-type: application/grpc\r\ngrpc-timeout: 2S\r\n");
    assert!(answer.contains("grpc-status: 4\r\n"), "{answer}");
    assert!((2 * SECOND..4 * SECOND).contains(&(now() - begun)), "{:?}", now() - begun);
    assert_eq!(shop.take_seen(), [0]);
}

#[test]
fn a_call_trace_names_what_a_traffic_policy_did() {
    let shop = Shop::new(AppProtocol::Http, 3, with(Outlier::DEFAULT));
    shop.apps[1].set(500);
    shop.failures(60);
    let answer = shop.ask("x-tollway-explain: 1\r\n");
    assert!(answer.contains("\"ready_replicas\":3,\"ejected_replicas\":1"), "{answer}");
    shop.police(faulty("web", Some(SECOND), true));
    let answer = shop.ask("x-tollway-explain: 1\r\n");
    assert!(answer.contains("\"fault\":{\"delay_us\":1000000,\"is_aborted\":true}"), "{answer}");
}
