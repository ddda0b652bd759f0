use tollway_model::{Label, ObjectName};

use super::*;

fn edits_of(value: &str) -> HeaderEdits {
    let field = |name: &str| (name.to_owned(), value.to_owned());
    HeaderEdits {
        remove: vec!["x-old".to_owned()],
        set: vec![field("x-set"), field("x-other")],
        add: vec![field("x-add"), field("x-add")],
    }
}

fn service_ref(text: &str) -> ServiceRef {
    ServiceRef::parse(text).unwrap()
}

fn exact(text: &str) -> TextMatch {
    TextMatch::Exact(text.to_owned())
}

fn regex(text: &str) -> TextMatch {
    TextMatch::Regex(text.to_owned())
}

fn named_match(name: &str, value: TextMatch) -> NamedMatch {
    NamedMatch { name: name.to_owned(), value }
}

/// A rule in which every part has a value of its own.
fn full_rule() -> RouteRule {
    RouteRule {
        name: Some(Label::new("canary").unwrap()),
        matches: vec![RouteMatch {
            path: Some(PathMatch::Prefix("/items".to_owned())),
            method: Some(MethodName::new("GET").unwrap()),
            grpc: None,
            headers: vec![named_match("x-a", exact("")), named_match("x-b", regex("b+"))],
            query: vec![named_match("v", exact("2")), named_match("w", regex("w"))],
            from: vec!["web".parse().unwrap(), "*.reports.east".parse().unwrap()],
        }],
        action: RouteAction::Forward(vec![
            Backend {
                service: service_ref("stock-v2"),
                weight: 9,
                request: edits_of("1"),
                response: edits_of("2"),
            },
            Backend {
                service: service_ref("Stock.shop.east"),
                weight: 0,
                request: HeaderEdits::default(),
                response: HeaderEdits::default(),
            },
        ]),
        rewrite: Rewrite {
            host: Some("stock.example".to_owned()),
            path: Some(PathEdit::Prefix("/v2".to_owned())),
        },
        request: edits_of("3"),
        response: edits_of("4"),
        mirrors: vec![Mirror { service: service_ref("shadow.x"), share: 123_456 }],
        timeouts: RouteTimeouts {
            request: Some(Duration::from_nanos(5_000_000_001)),
            attempt: Some(Duration::from_millis(1)),
            idle: Some(Duration::ZERO),
        },
        retry: Some(RouteRetry {
            attempts: 3,
            statuses: vec![429, 503],
            grpc_statuses: vec![8, 14],
            backoff: Duration::from_millis(25),
            longest_backoff: Duration::from_secs(1),
            idempotent: true,
            budget: RetryBudget { percent: 0, min_per_second: 7 },
        }),
        affinity: Some(Affinity::Cookie {
            name: "user".to_owned(),
            ttl: Some(Duration::from_secs(3600)),
        }),
    }
}

fn sample(rules: Vec<RouteRule>) -> Route {
    Route {
        name: ObjectName::new("shop", "Canary").unwrap(),
        service: service_ref("stock.shop"),
        rules,
        created_unix_ms: 1_700_000_000_000,
    }
}

/// Rules that differ from the full one in the alternatives which it does not have.
fn other_rules() -> Vec<RouteRule> {
    let with = |change: &dyn Fn(&mut RouteRule)| {
        let mut rule = full_rule();
        rule.name = None;
        change(&mut rule);
        rule
    };
    let matching = |of: RouteMatch| {
        with(&|rule| {
            rule.matches = vec![of.clone()];
            rule.rewrite.path = None;
        })
    };
    let path = |path: PathMatch| RouteMatch { path: Some(path), ..RouteMatch::default() };
    let grpc = |service, method| RouteMatch {
        grpc: Some(GrpcMatch { service, method }),
        ..RouteMatch::default()
    };
    let redirect = |redirect: Redirect| {
        with(&|rule| {
            *rule = RouteRule {
                action: RouteAction::Redirect(redirect.clone()),
                response: edits_of("5"),
                ..RouteRule::forward(Vec::new())
            };
        })
    };
    vec![
        RouteRule::forward(vec![Backend {
            service: service_ref("stock"),
            weight: 1,
            request: HeaderEdits::default(),
            response: HeaderEdits::default(),
        }]),
        matching(path(PathMatch::Exact("/a".to_owned()))),
        matching(path(PathMatch::Regex("/a/[0-9]+".to_owned()))),
        matching(grpc(Some(exact("shop.v1.Stock")), Some(regex("Get.*")))),
        matching(grpc(None, Some(exact("Get")))),
        matching(RouteMatch::default()),
        with(&|rule| rule.rewrite.path = Some(PathEdit::Full("/x".to_owned()))),
        with(&|rule| rule.rewrite.host = None),
        with(&|rule| rule.affinity = Some(Affinity::Header("x-user".to_owned()))),
        with(&|rule| rule.affinity = Some(Affinity::Cookie { name: "u".to_owned(), ttl: None })),
        with(&|rule| rule.timeouts.request = None),
        redirect(Redirect { scheme: None, host: None, port: None, path: None, status: 302 }),
        redirect(Redirect {
            scheme: Some("https".to_owned()),
            host: Some("other.example".to_owned()),
            port: Some(8443),
            path: Some(PathEdit::Full("/moved".to_owned())),
            status: 308,
        }),
    ]
}

#[test]
fn every_part_of_a_route_survives_the_wire() {
    let mut rules = vec![full_rule()];
    rules.extend(other_rules());
    for rule in &rules {
        let sent = sample(vec![rule.clone()]);
        assert_eq!(route(&v1::Route::from(&sent)), Ok(sent));
    }
    let all = sample(rules);
    assert_eq!(route(&v1::Route::from(&all)), Ok(all));
}

#[track_caller]
fn check_refused(break_it: impl FnOnce(&mut v1::Route), expected: &str) {
    let mut sent = v1::Route::from(&sample(vec![full_rule()]));
    break_it(&mut sent);
    let refused = route(&sent).unwrap_err();
    assert_eq!(tollway_model::chain(&refused), expected);
}

#[test]
fn what_is_not_valid_is_refused_with_the_name_of_the_route() {
    check_refused(
        |route| route.name = "a b".into(),
        "`shop/a b` is not the name of an object, NAMESPACE/NAME: `a b` holds the character ' '; \
         a label has letters, digits, `-` and `_`",
    );
    check_refused(
        |route| route.rules.clear(),
        "the route shop/Canary is not valid: the route has no rules; without a route requests go \
         to the service as they are",
    );
    check_refused(
        |route| route.rules[0].action = None,
        "the route shop/Canary cannot be read: the field `action` is missing",
    );
    check_refused(
        |route| route.rules[0].matches[0].path = Some(v1::PathMatch { path: None }),
        "the route shop/Canary cannot be read: the field `match.path` is missing",
    );
    check_refused(
        |route| route.rules[0].matches[0].method = "G T".into(),
        "the route shop/Canary cannot be read: a match is not valid: `G T` is not a method; \
         methods are words such as GET",
    );
    check_refused(
        |route| route.rules[0].retry.as_mut().unwrap().statuses.push(70_000),
        "the route shop/Canary cannot be read: the field `retry.statuses` holds 70000, which is \
         too large",
    );
    check_refused(
        |route| {
            let redirect = v1::Redirect { port: Some(0), status: 302, ..v1::Redirect::default() };
            route.rules[0].action = Some(v1::route_rule::Action::Redirect(redirect));
        },
        "the route shop/Canary cannot be read: the field `redirect.port` holds the port 0; it \
         must be 1 to 65535",
    );
    check_refused(
        |route| {
            let edits = v1::HeaderEdits {
                set: vec![v1::HeaderValue { name: "x-a".into(), value: "v".repeat(4096) }; 16],
                ..v1::HeaderEdits::default()
            };
            route.rules[0].request = Some(edits.clone());
            route.rules[0].response = Some(edits);
        },
        "the route shop/Canary has 131814 bytes; at most 65536 are accepted: split it",
    );
}
