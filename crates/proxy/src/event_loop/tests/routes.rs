//! Routes of a service, as the caller's sidecar applies them.

use tollway_model::route::{
    Affinity, Backend, HeaderEdits, Mirror, NamedMatch, PathEdit, PathMatch, Redirect, RetryBudget,
    Rewrite, RouteAction, RouteMatch, RouteRetry, RouteRule, RouteTimeouts, TextMatch,
};
use tollway_model::{Caller, ObjectName, Route, ServiceRef, SpiffeId};
use tollway_routing::RouteSet;

use super::*;
use crate::mesh::{RoutesUpdate, ServiceRoutes};

/// web calls stock; v1 and v2 are there to serve.
struct Shop {
    caller: Running,
    network: Network,
    callees: Vec<Running>,
}

/// What an app states of itself, besides what every app of these tests does.
async fn state(
    name: &'static str,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    let seen = request.headers().clone();
    let header = |field: &str| seen.get_all(field).iter().map(|v| v.to_str().unwrap()).collect();
    let [added, host, callee]: [Vec<&str>; 3] =
        [header("x-added"), header("x-forwarded-host"), header("dapr-callee-app-id")];
    let mut response = answer(request).await?;
    let fields = response.headers_mut();
    for (field, value) in [
        ("x-app", name.to_owned()),
        ("x-seen", added.join("|")),
        ("x-called", host.join("|")),
        ("x-callee", callee.join("|")),
    ] {
        fields.insert(::http::HeaderName::from_static(field), value.parse().unwrap());
    }
    Ok(response)
}

impl Shop {
    fn new() -> Self {
        let network = Network::new("west");
        let web = service("web");
        let caller = Running::start(
            web.clone(),
            network.credentials(&web, "w-1", &[]),
            &[ListenerKind::HttpApi, ListenerKind::Outbound],
            None,
            None,
        );
        let unknown = ServiceState::Unavailable(tollway_model::UnavailableReason::UnknownService);
        caller.send_state(&service("stock"), unknown.clone());
        caller.send_state(&service("nowhere"), unknown);
        let mut shop = Self { caller, network, callees: Vec::new() };
        for name in ["v1", "v2"] {
            shop.start(name);
        }
        shop
    }

    fn start(&mut self, name: &'static str) {
        self.start_with(name, serve(move |request| state(name, request)));
    }

    fn start_with(&mut self, name: &str, app: SocketAddr) {
        let own = service(name);
        let callee = Running::start(
            own.clone(),
            self.network.credentials(&own, "s-1", &[]),
            &[ListenerKind::Inbound],
            Some(AppTarget::at(app, AppProtocol::Http)),
            None,
        );
        let endpoint = Endpoint::new(label("s-1"), callee.addresses[0]);
        let state = ServiceState::Local {
            unready: [].into(),
            endpoints: [endpoint].into(),
            protocol: AppProtocol::Http,
            trust_domain: self.network.trust_domain.clone(),
        };
        self.caller.send_state(&own, state);
        self.callees.push(callee);
    }

    /// Starts a replica of the service many, whose app has the name of the replica.
    fn replica(&mut self, name: &'static str) -> Endpoint {
        let app = serve(move |request| state(name, request));
        self.replica_with(name, app)
    }

    fn replica_with(&mut self, name: &str, app: SocketAddr) -> Endpoint {
        let many = service("many");
        let callee = Running::start(
            many.clone(),
            self.network.credentials(&many, name, &[]),
            &[ListenerKind::Inbound],
            Some(AppTarget::at(app, AppProtocol::Http)),
            None,
        );
        let address = callee.addresses[0];
        self.callees.push(callee);
        Endpoint::new(label(name), address)
    }

    fn send_replicas(&self, endpoints: &[Endpoint]) {
        let state = ServiceState::Local {
            unready: [].into(),
            endpoints: endpoints.into(),
            protocol: AppProtocol::Http,
            trust_domain: self.network.trust_domain.clone(),
        };
        self.caller.send_state(&service("many"), state);
    }

    /// Requests for stock are decided by these rules from now on.
    fn route(&self, rules: Vec<RouteRule>) {
        let (home, stock) = (service("web"), service("stock"));
        let route = Route {
            name: ObjectName::new("default", "stock").unwrap(),
            service: ServiceRef::parse("stock").unwrap(),
            rules,
            created_unix_ms: 0,
        };
        route.check().unwrap();
        let spiffe = SpiffeId::parse("spiffe://west.tollway/ns/default/web").unwrap();
        let caller = Caller { spiffe: &spiffe, network: &home.network };
        let set = RouteSet::new(&stock, &[Arc::new(route)], caller, &home).unwrap();
        sim::keep_routed(
            &self.caller,
            RoutesUpdate::known(stock, set.map(|set| Arc::new(ServiceRoutes::new(set)))),
        );
    }

    /// The response to a request with these fields, which has no body.
    fn get(&self, target: &str, fields: &str) -> String {
        let mut stream = connect(self.caller.addresses[0]);
        let request = format!(
            "GET /v1.0/invoke/stock/method{target} HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n"
        );
        talk(&mut stream, request.as_bytes(), b"\r\n\r\n")
    }
}

fn to(service: &str, weight: u32) -> Backend {
    Backend {
        service: ServiceRef::parse(service).unwrap(),
        weight,
        request: HeaderEdits::default(),
        response: HeaderEdits::default(),
    }
}

fn only(service: &str) -> RouteRule {
    RouteRule::forward(vec![to(service, 1)])
}

fn by_header(service: &str) -> RouteRule {
    let canary =
        NamedMatch { name: "x-canary".to_owned(), value: TextMatch::Exact("1".to_owned()) };
    let of = RouteMatch { headers: vec![canary], ..RouteMatch::default() };
    RouteRule { matches: vec![of], ..only(service) }
}

#[track_caller]
fn assert_has(answer: &str, line: &str) {
    assert!(answer.contains(&format!("{line}\r\n")), "{line}: {answer}");
}

#[test]
fn a_rule_sends_requests_to_the_service_that_it_names() {
    let shop = Shop::new();
    shop.route(vec![only("v1"), by_header("v2")]);
    let answer = shop.get("/a?q=1", "");
    assert_has(&answer, "HTTP/1.1 200 OK");
    for line in ["x-app: v1", "x-path: /a?q=1", "x-callee: v1", "x-host: v1.default.west.mesh"] {
        assert_has(&answer, line);
    }
    assert_has(&shop.get("/a", "x-canary: 1\r\n"), "x-app: v2");
    // What is decided of a request that is under way stays; the next one follows the new rules.
    shop.route(vec![only("v2")]);
    assert_has(&shop.get("/a", ""), "x-app: v2");
}

#[test]
fn requests_are_shared_out_by_weight() {
    let shop = Shop::new();
    shop.route(vec![RouteRule::forward(vec![to("v1", 3), to("v2", 1)])]);
    let count = 400;
    let of_v2 = (0..count).filter(|_| shop.get("/", "").contains("x-app: v2")).count();
    assert!((70..130).contains(&of_v2), "{of_v2} of {count}");
}

#[test]
fn a_rule_changes_the_head_of_requests_and_responses() {
    let shop = Shop::new();
    let pairs = |list: &[(&str, &str)]| {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let mut rule = only("v1");
    let prefix = PathMatch::Prefix("/old".to_owned());
    rule.matches = vec![RouteMatch { path: Some(prefix), ..RouteMatch::default() }];
    rule.rewrite = Rewrite {
        host: Some("shop.example".to_owned()),
        path: Some(PathEdit::Prefix("/new".to_owned())),
    };
    rule.request = HeaderEdits {
        remove: vec!["X-Gone".to_owned()],
        set: pairs(&[("X-Added", "1")]),
        add: pairs(&[("x-added", "2")]),
    };
    rule.response = HeaderEdits {
        remove: vec!["X-Token".to_owned()],
        set: pairs(&[("x-path", "hidden")]),
        add: pairs(&[("x-new", "1")]),
    };
    shop.route(vec![rule]);
    let answer = shop.get("/old/a?q", "x-added: 0\r\nx-gone: 1\r\n");
    for line in ["x-path: hidden", "x-new: 1", "x-seen: 1|2", "x-called: shop.example"] {
        assert_has(&answer, line);
    }
    assert!(!answer.contains("x-token"), "{answer}");
}

#[test]
fn a_path_is_rewritten() {
    let shop = Shop::new();
    let mut rule = only("v1");
    rule.rewrite.path = Some(PathEdit::Full("/x".to_owned()));
    shop.route(vec![rule]);
    assert_has(&shop.get("/a/b?q=1", ""), "x-path: /x?q=1");
}

#[test]
fn a_redirect_is_answered_by_the_sidecar() {
    let shop = Shop::new();
    let mut rule = only("v1");
    rule.action = RouteAction::Redirect(Redirect {
        scheme: Some("https".to_owned()),
        host: Some("shop.example".to_owned()),
        port: None,
        path: None,
        status: 308,
    });
    shop.route(vec![rule]);
    let answer = shop.get("/a?q=1", "");
    assert_has(&answer, "HTTP/1.1 308 Permanent Redirect");
    assert_has(&answer, "location: https://shop.example/a?q=1");
}

#[test]
fn what_no_rule_is_for_and_what_no_backend_takes_is_refused() {
    let shop = Shop::new();
    shop.route(vec![by_header("v2")]);
    let answer = shop.get("/", "");
    assert_has(&answer, "HTTP/1.1 404 Not Found");
    assert_has(&answer, "x-tollway-error: ERR_NO_ROUTE");
    shop.route(vec![RouteRule::forward(vec![to("v1", 0)])]);
    let answer = shop.get("/", "");
    assert_has(&answer, "HTTP/1.1 500 Internal Server Error");
    assert_has(&answer, "x-tollway-error: ERR_NO_BACKEND");
    shop.route(vec![only("nowhere")]);
    let answer = shop.get("/", "");
    assert_has(&answer, "HTTP/1.1 500 Internal Server Error");
    assert_has(&answer, "x-tollway-error: ERR_NO_BACKEND");
}

#[test]
fn the_routes_of_a_backend_are_not_applied_to_what_a_route_sends_there() {
    let shop = Shop::new();
    // To itself, as a canary has it: the service is not known, whatever its routes are.
    shop.route(vec![only("stock")]);
    let answer = shop.get("/", "");
    assert_has(&answer, "x-tollway-error: ERR_UNKNOWN_SERVICE");
}

#[test]
fn a_request_has_the_time_that_its_rule_gives() {
    let shop = Shop::new();
    for timeouts in [
        RouteTimeouts { request: Some(Duration::from_millis(300)), ..RouteTimeouts::default() },
        RouteTimeouts { attempt: Some(Duration::from_millis(300)), ..RouteTimeouts::default() },
    ] {
        shop.route(vec![RouteRule { timeouts, ..only("v1") }]);
        assert_has(&shop.get("/", ""), "HTTP/1.1 200 OK");
        let begun = now();
        let answer = shop.get("/stuck", "");
        assert_has(&answer, "HTTP/1.1 504 Gateway Timeout");
        let waited = now() - begun;
        let limit = Duration::from_millis(300);
        assert!((limit..limit + 2 * SWEEP).contains(&waited), "{waited:?}");
    }
}

/// Times that are far away have no timer: the sweep notices that they come near.
#[test]
fn a_long_time_is_kept_as_exactly_as_a_short_one() {
    let shop = Shop::new();
    let limit = Duration::from_secs(7);
    let timeouts = RouteTimeouts { request: Some(limit), ..RouteTimeouts::default() };
    shop.route(vec![RouteRule { timeouts, ..only("v1") }]);
    let begun = now();
    assert_has(&shop.get("/stuck", ""), "HTTP/1.1 504 Gateway Timeout");
    let waited = now() - begun;
    assert!((limit..limit + 2 * SWEEP).contains(&waited), "{waited:?}");
}

/// An app that remembers the bodies that it gets, by the path of the request.
fn remember(bodies: &Arc<Mutex<Vec<String>>>) -> SocketAddr {
    let bodies = Arc::clone(bodies);
    serve(move |request| {
        let bodies = Arc::clone(&bodies);
        async move {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await?.to_bytes();
            let seen = format!("{path} {}", String::from_utf8_lossy(&body));
            bodies.lock().unwrap().push(seen);
            let large = Full::new(Bytes::from(vec![b'x'; 300_000])).map_err(|e| match e {});
            Ok(Response::builder().status(500).body(large.boxed()).unwrap())
        }
    })
}

#[test]
fn a_copy_of_a_request_goes_to_each_mirror_and_what_becomes_of_it_is_not_seen() {
    let mut shop = Shop::new();
    let bodies = Arc::default();
    shop.start_with("shadow", remember(&bodies));
    let mirror =
        |service| Mirror { service: ServiceRef::parse(service).unwrap(), share: 1_000_000 };
    shop.route(vec![RouteRule {
        mirrors: vec![mirror("shadow"), mirror("nowhere")],
        ..only("v1")
    }]);
    for length in [0, 5, 20_000] {
        let mut stream = connect(shop.caller.addresses[0]);
        let body = "b".repeat(length);
        let request = format!(
            "POST /v1.0/invoke/stock/method/count HTTP/1.1\r\nhost: localhost\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        let answer = talk(&mut stream, request.as_bytes(), length.to_string().as_bytes());
        assert_has(&answer, "HTTP/1.1 200 OK");
        until("the copy", || bodies.lock().unwrap().pop() == Some(format!("/count {body}")));
    }
    assert_eq!(shop.caller.metrics.mirrored_requests.value(), 6);
    until("copies to no service fail", || shop.caller.metrics.request_failures.value() == 3);
}

#[test]
fn a_request_larger_than_what_is_kept_for_a_retry_is_not_mirrored() {
    let mut shop = Shop::new();
    let bodies = Arc::default();
    shop.start_with("shadow", remember(&bodies));
    let mirrors = vec![Mirror { service: ServiceRef::parse("shadow").unwrap(), share: 1_000_000 }];
    shop.route(vec![RouteRule { mirrors, ..only("v1") }]);
    let mut stream = connect(shop.caller.addresses[0]);
    let length = Limits::default().replay_bytes + 1;
    let mut request = format!(
        "POST /v1.0/invoke/stock/method/count HTTP/1.1\r\nhost: localhost\r\n\
         content-length: {length}\r\n\r\n"
    );
    request.push_str(&"b".repeat(length));
    let answer = talk(&mut stream, request.as_bytes(), length.to_string().as_bytes());
    assert_has(&answer, "HTTP/1.1 200 OK");
    let metrics = &shop.caller.metrics;
    let counts = (metrics.mirrored_requests.value(), metrics.mirrors_skipped.value());
    assert_eq!(counts, (0, 1));
    assert!(bodies.lock().unwrap().is_empty());
}

/// An app that refuses this many requests with 503, and counts what it gets.
fn refuse(times: usize, seen: &Arc<AtomicUsize>) -> SocketAddr {
    let seen = Arc::clone(seen);
    serve(move |request| {
        let number = seen.fetch_add(1, Ordering::SeqCst);
        async move {
            let body = request.into_body().collect().await?.to_bytes();
            let status = if number < times { 503 } else { 200 };
            let echoed = Full::new(body).map_err(|e| match e {}).boxed();
            Ok(Response::builder().status(status).body(echoed).unwrap())
        }
    })
}

fn retrying(service: &str) -> RouteRule {
    let retry = RouteRetry {
        attempts: 2,
        statuses: vec![503],
        grpc_statuses: vec![14],
        backoff: Duration::from_millis(100),
        longest_backoff: Duration::from_secs(1),
        idempotent: false,
        budget: RetryBudget { percent: 20, min_per_second: 10 },
    };
    RouteRule { retry: Some(retry), ..only(service) }
}

#[test]
fn a_request_is_retried_at_the_statuses_that_its_rule_names() {
    let mut shop = Shop::new();
    let seen = Arc::default();
    shop.start_with("shy", refuse(2, &seen));
    shop.route(vec![retrying("shy")]);
    let begun = now();
    assert_has(&shop.get("/", ""), "HTTP/1.1 200 OK");
    assert_eq!(seen.load(Ordering::SeqCst), 3);
    // Of each pause up to a half is left out.
    assert!(now() - begun >= Duration::from_millis(150), "{:?}", now() - begun);
    assert_eq!(shop.caller.metrics.retries.value(), 2);
}

#[test]
fn a_retry_goes_to_a_replica_that_has_not_failed() {
    let mut shop = Shop::new();
    let counts: [Arc<AtomicUsize>; 3] = Default::default();
    let endpoints = [("r-0", usize::MAX), ("r-1", usize::MAX), ("r-2", 0)];
    let endpoints: Vec<Endpoint> = std::iter::zip(endpoints, &counts)
        .map(|((name, times), seen)| shop.replica_with(name, refuse(times, seen)))
        .collect();
    shop.send_replicas(&endpoints);
    let mut rule = retrying("many");
    rule.retry.as_mut().unwrap().budget = RetryBudget { percent: 100, min_per_second: 1000 };
    shop.route(vec![rule]);
    for _ in 0..60 {
        // Two retries are enough, if none goes where an attempt has failed.
        assert_has(&shop.get("/", ""), "HTTP/1.1 200 OK");
    }
    let seen = counts.map(|seen| seen.load(Ordering::SeqCst));
    assert!(seen[0] > 10 && seen[1] > 10 && seen[2] == 60, "{seen:?}");
}

#[test]
fn the_last_response_is_passed_on_when_there_are_no_more_retries() {
    let mut shop = Shop::new();
    let seen = Arc::default();
    shop.start_with("shy", refuse(usize::MAX, &seen));
    shop.route(vec![retrying("shy")]);
    assert_has(&shop.get("/", ""), "HTTP/1.1 503 Service Unavailable");
    assert_eq!(seen.load(Ordering::SeqCst), 3);
}

#[test]
fn what_may_have_been_carried_out_is_repeated_only_if_the_rule_declares_it_harmless() {
    for (idempotent, expected) in [(false, "503 Service Unavailable"), (true, "200 OK")] {
        let mut shop = Shop::new();
        let seen = Arc::default();
        shop.start_with("shy", refuse(1, &seen));
        let mut rule = retrying("shy");
        rule.retry.as_mut().unwrap().idempotent = idempotent;
        shop.route(vec![rule]);
        let mut stream = connect(shop.caller.addresses[0]);
        let request = b"POST /v1.0/invoke/stock/method/ HTTP/1.1\r\nhost: a\r\n\
                        content-length: 5\r\n\r\nhello";
        let answer = talk(&mut stream, request, b"hello");
        assert_has(&answer, &format!("HTTP/1.1 {expected}"));
        assert_eq!(seen.load(Ordering::SeqCst), 1 + usize::from(idempotent));
    }
}

#[test]
fn retries_of_a_service_that_always_fails_keep_to_their_budget() {
    let mut shop = Shop::new();
    let seen = Arc::default();
    shop.start_with("shy", refuse(usize::MAX, &seen));
    let mut rule = retrying("shy");
    let retry = rule.retry.as_mut().unwrap();
    retry.backoff = Duration::from_millis(1);
    retry.budget = RetryBudget { percent: 20, min_per_second: 0 };
    shop.route(vec![rule]);
    let count = 100;
    for _ in 0..count {
        assert_has(&shop.get("/", ""), "HTTP/1.1 503 Service Unavailable");
    }
    let seen = seen.load(Ordering::SeqCst);
    assert!((count + 15..=count + 20).contains(&seen), "{seen} for {count} requests");
}

#[test]
fn a_retry_that_would_come_too_late_is_not_waited_for() {
    let mut shop = Shop::new();
    let seen = Arc::default();
    shop.start_with("shy", refuse(usize::MAX, &seen));
    let mut rule = retrying("shy");
    rule.timeouts.request = Some(Duration::from_millis(40));
    shop.route(vec![rule]);
    assert_has(&shop.get("/", ""), "HTTP/1.1 503 Service Unavailable");
    assert_eq!(seen.load(Ordering::SeqCst), 1);
}

#[test]
fn an_attempt_that_takes_too_long_is_made_again() {
    let shop = Shop::new();
    let mut rule = retrying("v1");
    rule.timeouts.attempt = Some(Duration::from_millis(200));
    rule.timeouts.request = Some(Duration::from_secs(10));
    shop.route(vec![rule]);
    let begun = now();
    assert_has(&shop.get("/stuck", ""), "HTTP/1.1 504 Gateway Timeout");
    assert_eq!(shop.caller.metrics.retries.value(), 2);
    let waited = now() - begun;
    assert!((Duration::from_millis(750)..Duration::from_secs(2)).contains(&waited), "{waited:?}");
}

#[test]
fn requests_of_one_key_go_to_one_replica_while_it_is_there() {
    let mut shop = Shop::new();
    let names = ["a", "b", "c"];
    let mut endpoints: Vec<Endpoint> = names.iter().map(|name| shop.replica(name)).collect();
    shop.send_replicas(&endpoints);
    let by_header = Affinity::Header("X-User".to_owned());
    shop.route(vec![RouteRule { affinity: Some(by_header), ..only("many") }]);
    let replica_of = |shop: &Shop, user: usize| {
        let answer = shop.get("/", &format!("x-user: user-{user}\r\n"));
        assert_has(&answer, "HTTP/1.1 200 OK");
        let line = answer.lines().find(|line| line.starts_with("x-app: ")).unwrap();
        line.trim_start_matches("x-app: ").to_owned()
    };
    let before: Vec<String> = (0..30).map(|user| replica_of(&shop, user)).collect();
    assert!(names.iter().all(|name| before.iter().any(|of| of == name)), "{before:?}");
    let again: Vec<String> = (0..30).map(|user| replica_of(&shop, user)).collect();
    assert_eq!(again, before);
    endpoints.retain(|endpoint| endpoint.instance.as_str() != "b");
    shop.send_replicas(&endpoints);
    for (user, of) in before.iter().enumerate() {
        let now = replica_of(&shop, user);
        assert!(now == *of || of == "b", "user {user} moved from {of} to {now}");
    }
}

#[test]
fn a_client_without_the_cookie_of_a_rule_gets_it_and_keeps_its_replica() {
    let mut shop = Shop::new();
    let endpoints: Vec<Endpoint> = ["a", "b", "c"].map(|name| shop.replica(name)).into();
    shop.send_replicas(&endpoints);
    let ttl = Some(Duration::from_secs(60));
    let affinity = Some(Affinity::Cookie { name: "user".to_owned(), ttl });
    shop.route(vec![RouteRule { affinity, ..only("many") }]);
    for _ in 0..5 {
        let first = shop.get("/", "cookie: other=1\r\n");
        let set = first.lines().find(|line| line.starts_with("set-cookie: user=")).unwrap();
        assert!(set.ends_with("; Path=/; HttpOnly; SameSite=Lax; Max-Age=60"), "{set}");
        let value = set.split(['=', ';']).nth(1).unwrap();
        let app = first.lines().find(|line| line.starts_with("x-app: ")).unwrap();
        for _ in 0..3 {
            let next = shop.get("/", &format!("cookie: a=b; user={value}\r\n"));
            assert_has(&next, app);
            assert!(!next.contains("set-cookie"), "{next}");
        }
    }
}

#[test]
fn a_key_whose_replica_cannot_be_reached_is_served_by_another() {
    let mut shop = Shop::new();
    let gone = Endpoint::new(label("gone"), unused_address());
    let endpoints = [shop.replica("a"), gone];
    shop.send_replicas(&endpoints);
    let by_header = Affinity::Header("x-user".to_owned());
    shop.route(vec![RouteRule { affinity: Some(by_header), ..only("many") }]);
    for user in 0..10 {
        let answer = shop.get("/", &format!("x-user: user-{user}\r\n"));
        assert_has(&answer, "HTTP/1.1 200 OK");
    }
}
