mod generate;
mod schema;

use proptest::prelude::*;

use super::*;

const POLICY: &str = r#"
apiVersion: tollway.dev/v1
kind: Policy
metadata:
  name: stock-readers
  namespace: shop
spec:
  target:
    app: stock
  allow:
    - from: [web, "*.reports", "*.*.east", spiffe://old.example/ns/shop/web]
      methods: [GET, HEAD]
      paths: [/items/**, "/users/{id}/orders"]
  deny:
    - paths: [/items/secret/**]
"#;

const ROUTE: &str = r#"
apiVersion: tollway.dev/v1
kind: Route
metadata: {name: stock, namespace: shop}
spec:
  service: stock
  rules:
    - name: canary
      matches:
        - path: {prefix: /items}
          method: GET
          headers: [{name: x-canary, value: "1"}, {name: x-user, regex: "a.*"}]
          query: [{name: v, value: 2}]
          from: [web, "*.reports"]
      backends:
        - {service: stock-v2, weight: 9, requestHeaders: {set: {x-v: "2"}}}
        - service: stock.shop.east
      rewrite: {host: stock.example, path: {prefix: /v2}}
      requestHeaders: {remove: [a], set: {b: "1"}, add: {c: ["2", "3"], d: "4"}}
      responseHeaders: {add: {x-by: mesh}}
      mirrors: [{service: shadow, percent: 0.5}, {service: copy}]
      timeouts: {request: 5s, attempt: 1s500ms, idle: 30s}
      retry: {attempts: 3, statuses: [503], grpcStatuses: [UNAVAILABLE], backoff: 50ms, longestBackoff: 2s, idempotent: true, budget: {percent: 30}}
      affinity: {cookie: {name: user, ttl: 1h}}
    - matches:
        - grpc: {service: shop.v1.Stock, method: {regex: "Get.*"}}
        - path: {regex: "/a/[0-9]+"}
      backends: [{service: stock}]
      retry: {}
      affinity: {header: x-user}
    - redirect: {scheme: https, host: new.example, port: 8443, path: {full: /x}}
"#;

fn parse(text: &str) -> Result<Vec<Object>, String> {
    read(text, "p.yaml").map_err(|error| error.to_string())
}

fn route_of(text: &str) -> tollway_model::Route {
    match &parse(text).unwrap()[..] {
        [Object::Route(route)] => tollway_model::Route::clone(route),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_printed_can_be_read_again() {
    let mut text = format!("{POLICY}---{ROUTE}");
    for (namespace, spec) in [
        ("shop", "{target: {app: \"*\"}, allow: []}"),
        ("tollway", "{target: {app: \"*\", namespace: \"*\"}, deny: [{from: [\"*.*.*\"]}]}"),
        ("default", "{target: {app: \"7\"}, allow: [{}], deny: [{methods: [\"NO\"]}]}"),
        ("shop", "{target: {app: \"*\"}, mode: shadow, allow: []}"),
    ] {
        text += &format!(
            "---\napiVersion: tollway.dev/v1\nkind: Policy\n\
             metadata: {{name: \"123\", namespace: {namespace}}}\nspec: {spec}\n"
        );
    }
    let objects = parse(&text).unwrap();
    assert_eq!(objects.len(), 6);
    let printed = to_yaml(&objects).unwrap();
    assert_eq!(parse(&printed).unwrap(), objects, "{printed}");
    for object in &objects {
        let json = serde_json::to_string(&Manifest::from(object)).unwrap();
        assert_eq!(parse(&json).unwrap(), std::slice::from_ref(object), "JSON is YAML");
    }
}

const FAILOVER: &str = "
apiVersion: tollway.dev/v1
kind: Failover
metadata: {name: stock, namespace: shop}
spec:
  service: stock
  networks:
    - {network: west}
    - {network: east, priority: 1, weight: 3}
  threshold: 60
  spillOver: {requestsPerReplica: 50}
";

#[test]
fn failover_is_read_with_what_is_left_out() {
    use tollway_model::failover::*;
    let read = |text: &str| match &parse(text).unwrap()[..] {
        [Object::Failover(failover)] => (**failover).clone(),
        other => panic!("{other:?}"),
    };
    let network = |name: &str, priority, weight| FailoverNetwork {
        network: Label::new(name).unwrap(),
        priority,
        weight,
    };
    let whole = read(FAILOVER);
    assert_eq!(whole.target, FailoverTarget::App(Label::new("stock").unwrap()));
    let expected = FailoverRules {
        networks: vec![network("west", 0, 1), network("east", 1, 3)],
        threshold: 60,
        spill_over: Some(50),
    };
    assert_eq!(whole.rules, expected);
    let short = FAILOVER
        .replace("  threshold: 60\n", "")
        .replace("  spillOver: {requestsPerReplica: 50}\n", "")
        .replace("service: stock", "service: \"*\"");
    let short = read(&short);
    assert_eq!(short.target, FailoverTarget::Namespace);
    assert_eq!((short.rules.threshold, short.rules.spill_over), (70, None));
    for object in [whole, short] {
        let object = Object::Failover(Arc::new(object));
        let printed = to_yaml([&object]).unwrap();
        assert_eq!(parse(&printed), Ok(vec![object]), "{printed}");
    }
}

#[test]
fn mistakes_of_failover_are_reported_with_their_position() {
    let check = |before, after, message| check_refused(FAILOVER, before, after, message);
    check("network: west", "network: any", "p.yaml:4:11: failover shop/stock: `any` stands for");
    check("network: east", "network: west", "the network `west` is named twice");
    check("service: stock", "service: a.b", "failover shop/stock: `service`: ");
    check("threshold: 60", "threshold: 0", "`threshold` is 0");
    check("weight: 3", "weight: 0", "leave the network out");
    check("spillOver", "spillover", "did you mean `spillOver`?");
    check("requestsPerReplica: 50", "requestsPerReplica: 0", "`spillOver.requestsPerReplica` is 0");
    check("kind: Failover", "kind: Failovr", "did you mean `Failover`?");
}

proptest! {
    #[test]
    fn every_traffic_policy_is_printed_so_that_it_can_be_read_again(
        policy in generate::traffic_policy(),
    ) {
        let object = Object::TrafficPolicy(Arc::new(policy));
        let printed = to_yaml([&object]).unwrap();
        prop_assert_eq!(parse(&printed), Ok(vec![object.clone()]), "{}", printed);
        let json = serde_json::to_string(&Manifest::from(&object)).unwrap();
        schema::check_taken(&json);
        prop_assert_eq!(parse(&json), Ok(vec![object]), "{}", json);
    }

    #[test]
    fn every_egress_is_printed_so_that_it_can_be_read_again(egress in generate::egress()) {
        let object = Object::Egress(Arc::new(egress));
        let printed = to_yaml([&object]).unwrap();
        prop_assert_eq!(parse(&printed), Ok(vec![object.clone()]), "{}", printed);
        let json = serde_json::to_string(&Manifest::from(&object)).unwrap();
        schema::check_taken(&json);
        prop_assert_eq!(parse(&json), Ok(vec![object]), "{}", json);
    }

    #[test]
    fn every_route_is_printed_so_that_it_can_be_read_again(route in generate::route()) {
        let object = Object::Route(Arc::new(route));
        let printed = to_yaml([&object]).unwrap();
        prop_assert_eq!(parse(&printed), Ok(vec![object.clone()]), "{}", printed);
        let json = serde_json::to_string(&Manifest::from(&object)).unwrap();
        schema::check_taken(&json);
        prop_assert_eq!(parse(&json), Ok(vec![object]), "{}", json);
    }
}

const EGRESS: &str = r#"
apiVersion: tollway.dev/v1
kind: Egress
metadata: {name: payments, namespace: shop}
spec:
  from: [web]
  hosts:
    - {host: api.example, tls: begin}
    - {host: "*.example.org", port: 443}
    - {host: 10.1.0.0/16, port: 5432}
    - {host: b.example, port: 8443, tls: begin, plainPort: 8443}
"#;

#[test]
fn an_egress_is_read_with_what_is_left_out() {
    use tollway_model::egress::{BeginTls, EgressHost};
    let objects = parse(EGRESS).unwrap();
    let [Object::Egress(egress)] = &objects[..] else { panic!("{objects:?}") };
    assert_eq!((egress.mode, egress.from.len()), (tollway_model::Mode::Enforce, 1));
    let host = |text: &str, port, plain_port: Option<u16>| EgressHost {
        host: text.parse().unwrap(),
        port,
        tls: plain_port.map(|plain_port| BeginTls { plain_port, authorities: None }),
    };
    let expected = [
        host("api.example", None, Some(80)),
        host("*.example.org", Some(443), None),
        host("10.1.0.0/16", Some(5432), None),
        host("b.example", Some(8443), Some(8443)),
    ];
    assert_eq!(egress.hosts, expected);
    let shadow = parse(&EGRESS.replace("  from:", "  mode: shadow\n  from:")).unwrap();
    let [Object::Egress(egress)] = &shadow[..] else { panic!("{shadow:?}") };
    assert_eq!(egress.mode, tollway_model::Mode::Shadow);
}

#[test]
fn mistakes_of_an_egress_are_reported_with_their_position() {
    let check = |before, after, message| check_refused(EGRESS, before, after, message);
    check("api.example", "stock.mesh", "p.yaml:8:14: `stock.mesh` is a name of the mesh");
    check(
        "port: 443",
        "port: 0",
        "p.yaml:4:11: egress shop/payments: `*.example.org` has a port 0",
    );
    check("tls: begin}", "tls: verify}", "unknown value `verify`");
    check("port: 5432", "plainPort: 5432", "`plainPort` without `tls: begin`");
    check("port: 5432", "tls: begin", "TLS cannot be begun for the addresses `10.1.0.0/16`");
    check("[web]", "[web.other]", "an egress is for the apps of its own namespace `shop`");
    check("[web]", "[]", "an empty list matches nothing");
    check("from:", "form:", "p.yaml:6:3: unknown field `form`; did you mean `from`?");
    check("10.1.0.0/16", "10.1.0.0/8", "`10.1.0.0/8` is not a range");
}

fn traffic_text(spec: &str) -> String {
    format!(
        "apiVersion: tollway.dev/v1\nkind: TrafficPolicy\nmetadata: {{name: t, namespace: shop}}\n\
         spec: {{target: {{app: stock}}, {spec}}}\n"
    )
}

fn traffic(spec: &str) -> Result<tollway_model::traffic_policy::TrafficParts, String> {
    match &parse(&traffic_text(spec))?[..] {
        [Object::TrafficPolicy(policy)] => Ok(policy.parts.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_traffic_policy_is_read_with_what_is_left_out() {
    use tollway_model::traffic_policy::*;
    let second = std::time::Duration::from_secs(1);
    let parts = traffic(
        "balancing: {peakEwma: {}}, locality: {}, slowStart: 30s, outlier: {successRate: {deviations: 2.5}}, \
         faults: [{delay: {time: 1s, percent: 0.5}, abort: {}}], shedding: {}, \
         rate: {service: {requests: 1000}, callers: [{from: [web], requests: 7, per: 1m}]}",
    )
    .unwrap();
    let expected = TrafficParts {
        balancing: Some(Balancing::PeakEwma { decay: Balancing::DECAY }),
        locality: Some(LocalityRules::DEFAULT),
        slow_start: Some(30 * second),
        outlier: Some(Outlier {
            success_rate: Some(SuccessRate { deviations: 2500, ..SuccessRate::DEFAULT }),
            ..Outlier::DEFAULT
        }),
        faults: vec![Fault {
            from: Vec::new(),
            delay: Some(DelayFault { time: second, share: 5_000 }),
            abort: Some(AbortFault { status: 503, grpc_status: 14, share: 1_000_000 }),
        }],
        rate: Some(Rate {
            service: Some(RateLimit { requests: 1000, per: second, burst: 100 }),
            caller: None,
            callers: vec![CallerRate {
                from: vec!["web".parse().unwrap()],
                limit: RateLimit { requests: 7, per: 60 * second, burst: 1 },
            }],
        }),
        shedding: Some(Shedding::DEFAULT),
        ..TrafficParts::default()
    };
    assert_eq!(parts, expected);
    let balancing = traffic("balancing: leastRequests").unwrap().balancing;
    assert_eq!(balancing, Some(Balancing::LeastRequests));
    let locality = "locality: {prefer: region, spillOver: {requestsPerReplica: 3}}";
    let expected = LocalityRules {
        prefer: tollway_model::Level::Region,
        spill_over: 3,
        ..LocalityRules::DEFAULT
    };
    assert_eq!(traffic(locality).unwrap().locality, Some(expected));
    let long = traffic("outlier: {ejection: 10m}").unwrap().outlier.unwrap();
    assert_eq!(long.longest_ejection, long.ejection);
}

#[test]
fn a_traffic_policy_that_cannot_hold_is_refused_with_its_name() {
    for (spec, expected) in [
        (
            "panicPercent: 101",
            "traffic-policy shop/t: `panicPercent` is 101; at most 100 are accepted",
        ),
        ("locality: {prefer: rack}", "unknown value `rack`; expected one of zone, region, network"),
        ("locality: {threshold: 0}", "`locality.threshold` is 0; 1 to 100 are accepted"),
        (
            "outlier: {successRate: {deviations: 1.9999}}",
            "1.9999 is not a number from 0 on with at most three decimals",
        ),
        ("faults: [{from: []}]", "an empty list matches nothing; leave it out to match any"),
        ("rate: {callers: [{requests: 1}]}", "from"),
        ("outliers: {}", "outliers"),
        ("mode: shadow, panicPercent: 1", "in shadow mode a policy has no other parts than"),
    ] {
        let refused = traffic(spec).unwrap_err();
        assert!(refused.starts_with("p.yaml:") && refused.contains(expected), "{refused}");
        schema::check_refused(&traffic_text(spec), expected);
    }
}

#[test]
fn the_namespace_is_default_unless_given() {
    let text = POLICY.replace("  namespace: shop\n", "");
    assert_eq!(parse(&text).unwrap()[0].name().to_string(), "default/stock-readers");
}

#[test]
fn a_route_is_read_with_what_is_left_out() {
    use tollway_model::route::*;
    let route = route_of(ROUTE);
    let [first, second, third] = &route.rules[..] else { panic!("{route:?}") };
    let RouteAction::Forward(backends) = &first.action else { panic!("{first:?}") };
    assert_eq!((backends[0].weight, backends[1].weight), (9, 1));
    assert_eq!(backends[1].service.to_string(), "stock.shop.east");
    assert_eq!(first.matches[0].query[0].value, TextMatch::Exact("2".to_owned()));
    assert_eq!((first.mirrors[0].share, first.mirrors[1].share), (5_000, WHOLE_SHARE));
    assert_eq!(first.request.add.len(), 3);
    assert_eq!(first.timeouts.attempt, Some(std::time::Duration::from_millis(1500)));
    let retry = second.retry.as_ref().unwrap();
    assert_eq!((retry.attempts, &retry.statuses[..]), (2, &[502, 503, 504][..]));
    assert_eq!((&retry.grpc_statuses[..], retry.idempotent), (&[14][..], false));
    assert_eq!((retry.backoff.as_millis(), retry.longest_backoff.as_millis()), (25, 1000));
    assert_eq!(retry.budget, RetryBudget::DEFAULT);
    let budget = first.retry.as_ref().unwrap().budget;
    assert_eq!((budget.percent, budget.min_per_second), (30, 1));
    let RouteAction::Redirect(redirect) = &third.action else { panic!("{third:?}") };
    assert_eq!(redirect.status, 302);

    // With one list of statuses the other is empty, and a long first pause needs no longest one.
    let text = ROUTE.replace("retry: {}", "retry: {statuses: [500], backoff: 3s}");
    let retry = route_of(&text).rules[1].retry.clone().unwrap();
    assert_eq!((retry.statuses, retry.grpc_statuses), (vec![500], vec![]));
    assert_eq!(retry.longest_backoff.as_secs(), 3);
}

#[track_caller]
fn check_refused(example: &str, before: &str, after: &str, message: &str) {
    assert!(example.contains(before), "{before}");
    let changed = example.replacen(before, after, 1);
    let text = parse(&changed).unwrap_err();
    assert!(text.contains(message), "{text}");
    schema::check_refused(&changed, message);
}

#[test]
fn mistakes_of_a_policy_are_reported_with_their_position() {
    let check = |before, after, message| check_refused(POLICY, before, after, message);
    check("    app: stock", "    apps: stock", "p.yaml:9:5: unknown field `apps`");
    check("tollway.dev/v1", "tollway.dev/v2", "p.yaml:2:13: unknown value `tollway.dev/v2`");
    check(
        "kind: Policy",
        "kind: Polcy",
        "p.yaml:3:7: unknown value `Polcy`; did you mean `Policy`?",
    );
    check("[GET, HEAD]", "[GET, \"A B\"]", "p.yaml:12:22: `A B` is not a method");
    check("/items/**", "/it*ems", "p.yaml:13:15: the path `/it*ems`");
    check("[GET, HEAD]", "[]", "an empty list matches nothing");
    check("\"*.reports\"", "\"*\"", "leave `from` out");
    check("name: stock-readers", "name: a b", "holds the character ' '");
    check("app: stock", "app: sto/ck", "p.yaml:5:3: policy shop/stock-readers: `target.app`");
    check("spec:", "specs:", "p.yaml:7:1: unknown field `specs`; did you mean `spec`?");
    check("kind: Policy\n", "", "`kind` is missing before `spec`");
    check("metadata:\n  name: stock-readers\n  namespace: shop\n", "", "`metadata` is missing");
}

#[test]
fn mistakes_of_a_route_are_reported_with_their_position() {
    let check = |before, after, message| check_refused(ROUTE, before, after, message);
    check("kind: Route", "kind: Rout", "p.yaml:3:7: unknown value `Rout`; did you mean `Route`?");
    check(
        "method: GET",
        "methods: GET",
        "p.yaml:11:11: unknown field `methods`; did you mean `method`?",
    );
    check("prefix: /items", "prefx: /items", "unknown value `prefx`; did you mean `prefix`?");
    check(
        "prefix: /items",
        "prefix: items",
        "p.yaml:8:7: route shop/stock: the path `items` does not begin with `/`",
    );
    check(
        "prefix: /items",
        "prefix: /items, exact: /x",
        "a further field here excludes the one before; keep one",
    );
    check(
        "value: \"1\"",
        "value: \"1\", regex: x",
        "`x-canary` has both `value` and `regex`; keep one",
    );
    check(", value: \"1\"", "", "`x-canary` needs `value` or `regex`");
    check(
        "[0-9]+",
        "[0-9",
        "p.yaml:25:7: route shop/stock: the regular expression `/a/[0-9` is not valid",
    );
    check("[UNAVAILABLE]", "[UNAVALABLE]", "did you mean `UNAVAILABLE`?");
    check("percent: 0.5", "percent: 101", "101 is not a percentage from 0 to 100");
    check("percent: 0.5", "percent: 0.00001", "has more than four decimals");
    check("request: 5s", "request: 5", "`5` is not a time; write for example 250ms, 5s or 1m30s");
    check("port: 8443", "port: 0", "p.yaml:31:");
    check("weight: 9", "weight: 1000001", "p.yaml:8:7: route shop/stock: the weight 1000001");
    check("set: {b: \"1\"}", "set: {host: \"1\"}", "`host` is set by Tollway");
    check(
        "    - redirect:",
        "    - backends: [{service: a}]\n      redirect:",
        "p.yaml:31:7: route shop/stock: a rule has `backends` and `redirect`",
    );
    check(
        "backends: [{service: stock}]\n",
        "\n",
        "p.yaml:25:7: route shop/stock: a rule has neither",
    );
    check("d: \"4\"", "d: []", "an empty list of values");
    check("d: \"4\"", "d: {x: y}", "a text or a list of texts");
    check("service: stock\n  rules", "service: a.b.c.d\n  rules", "has 4 parts");
}

#[test]
fn a_policy_protects_its_own_namespace() {
    let check = |after, message| check_refused(POLICY, "app: stock", after, message);
    check("app: stock\n    namespace: other", "protects its own");
    check("app: stock\n    namespace: \"*\"", "any namespace");
    check("app: \"*\"\n    namespace: \"*\"", "belongs to the namespace `tollway`");
    let same = POLICY.replace("app: stock", "app: stock\n    namespace: shop");
    assert!(parse(&same).is_ok());
}
