use super::*;

fn backend(service: &str) -> Backend {
    Backend {
        service: ServiceRef::parse(service).unwrap(),
        weight: 1,
        request: HeaderEdits::default(),
        response: HeaderEdits::default(),
    }
}

fn rule() -> RouteRule {
    RouteRule::forward(vec![backend("stock-v2")])
}

fn route(rules: Vec<RouteRule>) -> Route {
    Route {
        name: ObjectName::new("shop", "stock").unwrap(),
        service: ServiceRef::parse("stock").unwrap(),
        rules,
        created_unix_ms: 0,
    }
}

#[track_caller]
fn check(change: impl FnOnce(&mut RouteRule), expected: &str) {
    let mut rule = rule();
    change(&mut rule);
    let refused = route(vec![rule]).check().map_err(|error| error.to_string());
    assert_eq!(refused, Err(expected.to_owned()));
}

fn prefix(path: &str) -> RouteMatch {
    RouteMatch { path: Some(PathMatch::Prefix(path.to_owned())), ..RouteMatch::default() }
}

fn set(name: &str, value: &str) -> HeaderEdits {
    HeaderEdits { set: vec![(name.to_owned(), value.to_owned())], ..HeaderEdits::default() }
}

fn redirect() -> Redirect {
    Redirect { scheme: None, host: None, port: None, path: None, status: 302 }
}

fn retry() -> RouteRetry {
    RouteRetry {
        attempts: 2,
        statuses: vec![503],
        grpc_statuses: vec![14],
        backoff: Duration::from_millis(25),
        longest_backoff: Duration::from_secs(1),
        idempotent: false,
        budget: RetryBudget::DEFAULT,
    }
}

#[test]
fn a_route_with_all_its_parts_is_taken() {
    let mut full = rule();
    full.name = Some(Label::new("all").unwrap());
    full.matches = vec![RouteMatch {
        headers: vec![NamedMatch {
            name: "X-User".to_owned(),
            value: TextMatch::Regex("a.*".to_owned()),
        }],
        query: vec![NamedMatch { name: "q".to_owned(), value: TextMatch::Exact(String::new()) }],
        method: Some(MethodName::new("GET").unwrap()),
        from: vec!["web".parse().unwrap()],
        ..prefix("/items")
    }];
    full.rewrite = Rewrite {
        host: Some("stock.example".to_owned()),
        path: Some(PathEdit::Prefix("/v2".to_owned())),
    };
    full.request = set("x-version", "2");
    full.response = set("x-by", "mesh");
    full.mirrors = vec![Mirror { service: ServiceRef::parse("shadow").unwrap(), share: 1 }];
    full.timeouts = RouteTimeouts {
        request: Some(Duration::from_secs(2)),
        attempt: Some(Duration::from_secs(1)),
        idle: None,
    };
    full.retry = Some(retry());
    full.affinity = Some(Affinity::Cookie { name: "user".to_owned(), ttl: None });
    assert_eq!(route(vec![full, rule()]).check(), Ok(()));
    let mut away = rule();
    away.action = RouteAction::Redirect(redirect());
    assert_eq!(route(vec![away]).check(), Ok(()));
}

#[test]
fn the_parts_of_a_rule_fit_together() {
    let refused = route(Vec::new()).check().unwrap_err();
    assert_eq!(refused, RouteError::NoRules);
    check(
        |rule| rule.action = RouteAction::Forward(Vec::new()),
        "a rule has neither `backends` nor `redirect`, so its requests go nowhere",
    );
    check(
        |rule| rule.rewrite.path = Some(PathEdit::Prefix("/a".to_owned())),
        "`rewrite.path` replaces the prefix of a path, so every match of the rule needs a path with a prefix",
    );
    check(
        |rule| {
            rule.matches = vec![prefix("/a"), RouteMatch::default()];
            rule.rewrite.path = Some(PathEdit::Prefix("/b".to_owned()));
        },
        "`rewrite.path` replaces the prefix of a path, so every match of the rule needs a path with a prefix",
    );
    check(
        |rule| {
            rule.action = RouteAction::Redirect(redirect());
            rule.retry = Some(retry());
        },
        "a rule with `redirect` has `retry`, which only requests that are sent on can have",
    );
    let named = |name: &str| RouteRule { name: Some(Label::new(name).unwrap()), ..rule() };
    let refused = route(vec![named("a"), named("A")]).check().unwrap_err();
    assert_eq!(refused.to_string(), "two rules have the name `A`");
}

#[test]
fn matches_are_ones_that_a_request_can_have() {
    let of = |of: RouteMatch| move |rule: &mut RouteRule| rule.matches = vec![of];
    check(of(prefix("a")), "the path `a` does not begin with `/`");
    check(
        of(prefix("/a?b")),
        "the path `/a?b` has a query or a fragment; match parameters with `query`",
    );
    let header =
        |name: &str| NamedMatch { name: name.to_owned(), value: TextMatch::Exact("1".to_owned()) };
    let headers = |headers| RouteMatch { headers, ..RouteMatch::default() };
    check(of(headers(vec![header("a b")])), "`a b` is not the name of a header field");
    check(of(headers(vec![header("a"), header("A")])), "`A` is named twice in `headers`");
    check(
        of(headers((0..17).map(|n| header(&format!("x-{n}"))).collect())),
        "`headers` has 17 entries; at most 16 are accepted",
    );
    let query = RouteMatch { query: vec![header("")], ..RouteMatch::default() };
    check(of(query), "a parameter without a name");
    let grpc = |service: Option<&str>| {
        let service = service.map(|text| TextMatch::Exact(text.to_owned()));
        Some(GrpcMatch { service, method: None })
    };
    let by_grpc = |service| RouteMatch { grpc: grpc(service), ..RouteMatch::default() };
    check(of(by_grpc(None)), "a match by gRPC names neither a service nor a method");
    check(of(by_grpc(Some("a/b"))), "`a/b` is not the name of a gRPC service or method");
    check(
        of(RouteMatch { grpc: grpc(Some("a.B")), ..prefix("/") }),
        "a match has `grpc` beside `path` or `method`; a gRPC call is matched by `grpc` alone",
    );
    let long = RouteMatch {
        path: Some(PathMatch::Regex("a".repeat(REGEX_BYTES_LIMIT + 1))),
        ..RouteMatch::default()
    };
    check(of(long), "`path.regex` has 1025 bytes; at most 1024 are accepted");
}

#[test]
fn edits_leave_alone_what_frames_a_message_and_what_the_mesh_sets() {
    for name in ["Content-Length", "transfer-encoding", "HOST", "X-Tollway-Caller", "dapr-app-id"] {
        let reserved = format!(
            "`{name}` is set by Tollway or carries the connection; a route does not change it"
        );
        check(|rule| rule.request = set(name, "1"), &reserved);
        check(
            |rule| {
                rule.action = RouteAction::Forward(vec![Backend {
                    response: HeaderEdits {
                        remove: vec![name.to_owned()],
                        ..HeaderEdits::default()
                    },
                    ..backend("a")
                }]);
            },
            &reserved,
        );
    }
    check(
        |rule| rule.request = set("a", "b\r\nc: d"),
        "the value of the header field `a` has a control character",
    );
    check(|rule| rule.request = set("a:", "b"), "`a:` is not the name of a header field");
}

#[test]
fn numbers_and_times_have_bounds() {
    check(
        |rule| {
            rule.action = RouteAction::Forward(vec![Backend { weight: 1_000_001, ..backend("a") }]);
        },
        "the weight 1000001 is larger than 1000000",
    );
    check(
        |rule| {
            rule.mirrors =
                vec![Mirror { service: ServiceRef::parse("a").unwrap(), share: 1_000_001 }];
        },
        "a share of 1000001 millionths is larger than the whole",
    );
    let second = Duration::from_secs(1);
    check(
        |rule| rule.timeouts.idle = Some(ROUTE_TIME_LIMIT + second),
        "`timeouts.idle` is longer than a day",
    );
    check(
        |rule| {
            rule.timeouts.request = Some(second);
            rule.timeouts.attempt = Some(second * 2);
        },
        "`timeouts.attempt` is longer than `timeouts.request`",
    );
    let of = |retry| move |rule: &mut RouteRule| rule.retry = Some(retry);
    check(
        of(RouteRetry { attempts: 101, ..retry() }),
        "`retry.attempts` is 101; at most 100 are accepted",
    );
    check(
        of(RouteRetry { statuses: vec![200], ..retry() }),
        "`200` is not a status of a failed response: 400 to 599",
    );
    check(
        of(RouteRetry { grpc_statuses: vec![0], ..retry() }),
        "`0` is not the number of a gRPC status that reports a failure: 1 to 16",
    );
    check(
        of(RouteRetry { backoff: second * 2, ..retry() }),
        "`retry.backoff` is longer than `retry.longestBackoff`",
    );
    let budget = RetryBudget { percent: 101, min_per_second: 0 };
    check(
        of(RouteRetry { budget, ..retry() }),
        "`retry.budget.percent` is 101; at most 100 are accepted",
    );
    let away = |redirect| move |rule: &mut RouteRule| rule.action = RouteAction::Redirect(redirect);
    check(
        away(Redirect { status: 304, ..redirect() }),
        "the status 304 is not one of 301, 302, 303, 307 and 308",
    );
    check(
        away(Redirect { host: Some("a b".to_owned()), ..redirect() }),
        "`a b` is not a host name",
    );
    check(
        away(Redirect { scheme: Some("ftp".to_owned()), ..redirect() }),
        "the scheme `ftp` is neither http nor https",
    );
}

#[test]
fn a_route_of_another_namespace_is_for_the_callers_there() {
    let network = Label::new("west").unwrap();
    let of = |namespace: &str, service: &str| {
        let route = Route {
            name: ObjectName::new(namespace, "r").unwrap(),
            service: ServiceRef::parse(service).unwrap(),
            ..route(vec![rule()])
        };
        route.scope(&network).to_string()
    };
    assert_eq!(of("shop", "stock"), "every caller of stock.shop.west");
    assert_eq!(of("shop", "stock.SHOP.west"), "every caller of stock.SHOP.west");
    assert_eq!(of("web", "stock.shop"), "the callers of stock.shop.west in the namespace web");
    assert_eq!(
        of("shop", "stock.shop.east"),
        "the callers of stock.shop.east in the namespace shop"
    );
}
