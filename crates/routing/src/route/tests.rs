mod gateway_api;

use std::borrow::Cow;

use tollway_model::route::{
    Backend, GrpcMatch, HeaderEdits, Mirror, NamedMatch, PathEdit, Redirect, Rewrite, RouteAction,
    RouteRule, WHOLE_SHARE,
};
use tollway_model::{Label, MethodName, ServiceRef, SpiffeId, TrustDomain};

use super::*;

struct Lines<'a>(&'a [(&'a str, &'a str)]);

impl RequestFields for Lines<'_> {
    fn value(&self, name: &[u8]) -> Option<Cow<'_, [u8]>> {
        let own = self.0.iter().filter(|(own, _)| own.as_bytes() == name);
        let values: Vec<&[u8]> = own.map(|(_, value)| value.as_bytes()).collect();
        (!values.is_empty()).then(|| Cow::Owned(values.join(&b',')))
    }
}

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn service(text: &str) -> ServiceName {
    ServiceName::parse_in(text, &label("shop"), &label("west")).unwrap()
}

fn to(service: &str, weight: u32) -> Backend {
    Backend {
        service: ServiceRef::parse(service).unwrap(),
        weight,
        request: HeaderEdits::default(),
        response: HeaderEdits::default(),
    }
}

fn rule(name: &str, matches: Vec<RouteMatch>) -> RouteRule {
    RouteRule { name: Some(label(name)), matches, ..RouteRule::forward(vec![to("stock", 1)]) }
}

fn route(name: &str, rules: Vec<RouteRule>) -> Arc<Route> {
    let (namespace, name) = name.split_once('/').unwrap();
    let route = Route {
        name: ObjectName::new(namespace, name).unwrap(),
        service: ServiceRef::parse("stock.shop").unwrap(),
        rules,
        created_unix_ms: 0,
    };
    route.check().unwrap();
    Arc::new(route)
}

fn set_for(home: &str, routes: &[Arc<Route>]) -> Option<RouteSet> {
    let home = service(home);
    let spiffe = SpiffeId {
        trust_domain: TrustDomain::default_for(&home.network),
        namespace: home.namespace.clone(),
        app: home.app.clone(),
    };
    let caller = Caller { spiffe: &spiffe, network: &home.network };
    RouteSet::new(&service("stock"), routes, caller, &home).unwrap()
}

fn only(rules: Vec<RouteRule>) -> RouteSet {
    set_for("web", &[route("shop/r", rules)]).unwrap()
}

fn request<'a>(method: &'a str, target: &'a str, fields: &'a Lines<'a>) -> RoutedRequest<'a> {
    let (method, target) = (method.as_bytes(), target.as_bytes());
    RoutedRequest { method, target, is_grpc: false, fields }
}

/// The name of the rule that holds; `-` if none does.
fn decided(set: &RouteSet, line: &str, fields: &[(&str, &str)]) -> String {
    let (method, target) = line.split_once(' ').unwrap();
    let fields = Lines(fields);
    let routed = set.decide(request(method, target, &fields));
    routed.map_or_else(|| "-".to_owned(), |routed| routed.rule.name().rule.to_string())
}

fn by_path(path: PathMatch) -> RouteMatch {
    RouteMatch { path: Some(path), ..RouteMatch::default() }
}

fn exact(path: &str) -> RouteMatch {
    by_path(PathMatch::Exact(path.to_owned()))
}

fn prefix(path: &str) -> RouteMatch {
    by_path(PathMatch::Prefix(path.to_owned()))
}

fn regex(path: &str) -> RouteMatch {
    by_path(PathMatch::Regex(path.to_owned()))
}

fn named(name: &str, value: &str) -> NamedMatch {
    NamedMatch { name: name.to_owned(), value: TextMatch::Exact(value.to_owned()) }
}

#[test]
fn the_most_specific_match_decides_however_the_rules_are_ordered() {
    let get = || Some(MethodName::new("GET").unwrap());
    let header = |name| vec![named(name, "1")];
    let mut rules = vec![
        rule("any", Vec::new()),
        rule("items", vec![prefix("/items")]),
        rule("items-below", vec![prefix("/items/7/")]),
        rule("regex", vec![regex("/items/[0-9]+/x")]),
        rule("exact", vec![exact("/items/9/x")]),
        rule("get", vec![RouteMatch { method: get(), ..prefix("/items") }]),
        rule("header", vec![RouteMatch { headers: header("a"), ..prefix("/items") }]),
        rule("query", vec![RouteMatch { query: header("q"), ..prefix("/items") }]),
    ];
    for _ in 0..2 {
        let set = only(rules.clone());
        for (line, fields, expected) in [
            ("POST /", &[][..], "any"),
            ("POST /item", &[], "any"),
            ("POST /itemsx", &[], "any"),
            ("POST /items", &[], "items"),
            ("POST /items/", &[], "items"),
            ("POST /items/7", &[], "items-below"),
            ("POST /items/7/a", &[], "items-below"),
            ("POST /items/70", &[], "items"),
            ("POST /items/8/x", &[], "regex"),
            ("POST /items/8/xy", &[], "items"),
            ("GET /items/9/x?a", &[], "exact"),
            ("GET /items/1", &[], "get"),
            ("get /items/1", &[], "items"),
            ("POST /items/1", &[("a", "1")], "header"),
            ("POST /items/1", &[("a", "1"), ("a", "1")], "items"),
            ("GET /items/1?q=1", &[("a", "1")], "get"),
            ("POST /items/1?q=1", &[], "query"),
            ("POST /items/1?q=1", &[("a", "1")], "header"),
            ("POST /items/1?x=%31&q=%31&q=2", &[], "query"),
            ("POST /items/1?q=2&q=1", &[], "items"),
            ("POST /x/../items/9/./x", &[], "exact"),
            ("POST //items", &[], "items"),
        ] {
            assert_eq!(decided(&set, line, fields), expected, "{line} {fields:?}");
        }
        rules.reverse();
    }
}

#[test]
fn what_no_rule_is_for_is_refused() {
    let set = only(vec![rule("items", vec![prefix("/items"), exact("/x")])]);
    assert_eq!(decided(&set, "GET /x", &[]), "items");
    assert_eq!(decided(&set, "GET /x/", &[]), "-");
    assert_eq!(decided(&set, "GET /", &[]), "-");
}

#[test]
fn of_equal_matches_the_older_route_decides_then_its_name_then_the_order() {
    let named = |name: &str, rules: &[&str], created| {
        let rules = rules.iter().map(|name| rule(name, vec![prefix("/a")])).collect();
        let mut route = Arc::unwrap_or_clone(route(name, rules));
        route.created_unix_ms = created;
        Arc::new(route)
    };
    let routes = [named("shop/b", &["b1", "b2"], 1), named("shop/a", &["a"], 2)];
    assert_eq!(decided(&set_for("web", &routes).unwrap(), "GET /a", &[]), "b1");
    let routes = [named("shop/b", &["b1"], 2), named("shop/a", &["a"], 2)];
    assert_eq!(decided(&set_for("web", &routes).unwrap(), "GET /a", &[]), "a");
}

#[test]
fn routes_of_the_callers_namespace_replace_those_of_the_service() {
    let routes = [
        route("shop/own", vec![rule("producer", Vec::new())]),
        route("office/own", vec![rule("consumer", vec![prefix("/a")])]),
    ];
    assert_eq!(decided(&set_for("web", &routes).unwrap(), "GET /b", &[]), "producer");
    assert_eq!(decided(&set_for("web.office", &routes).unwrap(), "GET /a", &[]), "consumer");
    assert_eq!(decided(&set_for("web.office", &routes).unwrap(), "GET /b", &[]), "-");
    assert!(set_for("web.other", &routes[1..]).is_none());
    assert!(set_for("web", &[]).is_none());
}

#[test]
fn a_match_may_be_for_some_callers_alone() {
    let from = |pattern: &str| RouteMatch {
        from: vec![pattern.parse().unwrap()],
        ..RouteMatch::default()
    };
    let routes = [route(
        "shop/r",
        vec![rule("any", Vec::new()), rule("web", vec![from("web")]), rule("b", vec![from("*.b")])],
    )];
    assert_eq!(decided(&set_for("web", &routes).unwrap(), "GET /", &[]), "web");
    assert_eq!(decided(&set_for("web.b", &routes).unwrap(), "GET /", &[]), "b");
    assert_eq!(decided(&set_for("web.c", &routes).unwrap(), "GET /", &[]), "any");
}

#[test]
fn calls_of_grpc_are_matched_by_service_and_method() {
    let of = |service: Option<&str>, method: Option<&str>| {
        let text = |text: Option<&str>| text.map(|text| TextMatch::Exact(text.to_owned()));
        let grpc = GrpcMatch { service: text(service), method: text(method) };
        RouteMatch { grpc: Some(grpc), ..RouteMatch::default() }
    };
    let set = only(vec![
        rule("any", Vec::new()),
        rule("method", vec![of(None, Some("Get"))]),
        rule("service", vec![of(Some("shop.Stock"), None)]),
        rule("both", vec![of(Some("shop.Stock"), Some("Get"))]),
    ]);
    let no_fields = Lines(&[]);
    let decide = |target, is_grpc| {
        let request = RoutedRequest { is_grpc, ..request("POST", target, &no_fields) };
        set.decide(request).unwrap().rule.name().rule.to_string()
    };
    assert_eq!(decide("/shop.Stock/Get", true), "both");
    assert_eq!(decide("/shop.Stock/Put", true), "service");
    assert_eq!(decide("/shop.Other/Get", true), "method");
    assert_eq!(decide("/shop.Other/Put", true), "any");
    assert_eq!(decide("/shop.Stock/Get/x", true), "any");
    assert_eq!(decide("/shop.Stock/Get", false), "any");
}

#[test]
fn a_match_of_a_grpc_service_counts_before_one_of_a_method() {
    let exact = |text: &str| Some(TextMatch::Exact(text.to_owned()));
    let regex = |text: &str| Some(TextMatch::Regex(text.to_owned()));
    let of = |service, method| {
        let grpc = Some(GrpcMatch { service, method });
        RouteMatch { grpc, ..RouteMatch::default() }
    };
    let with_header = RouteMatch { headers: vec![named("a", "1")], ..RouteMatch::default() };
    // In the order of precedence.
    let matches = [
        of(exact("shop.Stock"), exact("Get")),
        of(exact("shop.Stock"), regex("G.*")),
        of(exact("shop.Stock"), None),
        of(regex("shop[.].*"), exact("Get")),
        of(regex("shop[.].*"), None),
        of(None, exact("Get")),
        with_header,
        RouteMatch::default(),
    ];
    let fields = Lines(&[("a", "1")]);
    for (first, one) in matches.iter().enumerate() {
        for other in &matches[first + 1..] {
            let rules = [("other", other), ("one", one)];
            let rules = rules.map(|(name, of)| rule(name, vec![of.clone()]));
            let set = only(rules.to_vec());
            let call =
                RoutedRequest { is_grpc: true, ..request("POST", "/shop.Stock/Get", &fields) };
            let decided = set.decide(call).unwrap().rule.name().rule.to_string();
            assert_eq!(decided, "one", "{one:?} before {other:?}");
        }
    }
}

#[test]
fn shares_are_those_of_the_weights() {
    let weights = [("a", 1), ("b", 9), ("c", 0), ("d", 90)];
    let backends = weights.iter().map(|(name, weight)| to(name, *weight)).collect();
    let set = only(vec![RouteRule::forward(backends)]);
    let fields = Lines(&[]);
    let rule = set.decide(request("GET", "/", &fields)).unwrap().rule;
    let mut counts = [0_u32; 4];
    let mut random = 0_u64;
    for _ in 0..100_000 {
        // A sequence that fills the range evenly.
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        counts[rule.choose(random).unwrap()] += 1;
    }
    for (count, (name, weight)) in counts.iter().zip(weights) {
        let expected = weight * 1000;
        assert!(count.abs_diff(expected) < 100, "{name}: {count}");
    }
    let none = only(vec![RouteRule::forward(vec![to("a", 0)])]);
    assert_eq!(none.decide(request("GET", "/", &fields)).unwrap().rule.choose(7), None);
}

#[test]
fn a_share_of_requests_is_mirrored() {
    let mirror = |service, share| Mirror { service: ServiceRef::parse(service).unwrap(), share };
    let mut mirrored = RouteRule::forward(vec![to("a", 1)]);
    mirrored.mirrors =
        vec![mirror("all", WHOLE_SHARE), mirror("none", 0), mirror("half", WHOLE_SHARE / 2)];
    let set = only(vec![mirrored]);
    let fields = Lines(&[]);
    let rule = set.decide(request("GET", "/", &fields)).unwrap().rule;
    let names = |random| {
        rule.mirrored(|| random).map(|service| service.app.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(0), ["all", "half"]);
    assert_eq!(names(u64::MAX / 2 + 1), ["all"]);
    assert_eq!(names(u64::MAX), ["all"]);
}

#[track_caller]
fn check_rewrite(of: RouteMatch, edit: PathEdit, target: &str, expected: &str) {
    let mut rewriting = rule("r", vec![of]);
    rewriting.rewrite = Rewrite { host: None, path: Some(edit) };
    let set = only(vec![rewriting]);
    let fields = Lines(&[]);
    let routed = set.decide(request("GET", target, &fields)).unwrap();
    let rewritten = routed.rewritten(target.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(rewritten).unwrap(), expected, "{target}");
}

#[test]
fn a_prefix_is_replaced_by_whole_segments() {
    for (target, named, other, expected) in [
        ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
        ("/foo", "/foo", "/xyz", "/xyz"),
        ("/foo/", "/foo", "/xyz", "/xyz/"),
        ("/foo/bar", "/foo", "", "/bar"),
        ("/foo/", "/foo", "", "/"),
        ("/foo", "/foo", "", "/"),
        ("/foo/", "/foo", "/", "/"),
        ("/foo", "/foo", "/", "/"),
        ("/a?b=/foo", "/", "/x", "/x/a?b=/foo"),
        ("/foo/../foo/a?q", "/foo", "/x", "/x/a?q"),
    ] {
        check_rewrite(prefix(named), PathEdit::Prefix(other.to_owned()), target, expected);
    }
    check_rewrite(exact("/a"), PathEdit::Full("/b/c".to_owned()), "/a?q=1", "/b/c?q=1");
}

#[track_caller]
fn check_location(redirect: Redirect, expected: &str) {
    let mut away = rule("r", vec![prefix("/a")]);
    away.action = RouteAction::Redirect(redirect);
    let set = only(vec![away]);
    let fields = Lines(&[]);
    let routed = set.decide(request("GET", "/a/b?q", &fields)).unwrap();
    let (status, url) = routed.location(b"stock.shop.west.mesh", b"/a/b?q").unwrap();
    assert_eq!(format!("{status} {}", String::from_utf8(url).unwrap()), expected);
}

#[test]
fn a_redirect_keeps_what_it_does_not_name() {
    let plain = Redirect { scheme: None, host: None, port: None, path: None, status: 302 };
    check_location(plain.clone(), "302 http://stock.shop.west.mesh/a/b?q");
    let https = Redirect { scheme: Some("https".to_owned()), ..plain.clone() };
    check_location(https.clone(), "302 https://stock.shop.west.mesh/a/b?q");
    check_location(
        Redirect { port: Some(443), status: 308, ..https.clone() },
        "308 https://stock.shop.west.mesh/a/b?q",
    );
    check_location(
        Redirect { port: Some(80), host: Some("x.example".to_owned()), ..https },
        "302 https://x.example:80/a/b?q",
    );
    check_location(
        Redirect { path: Some(PathEdit::Prefix("/z".to_owned())), ..plain.clone() },
        "302 http://stock.shop.west.mesh/z/b?q",
    );
    check_location(
        Redirect { path: Some(PathEdit::Full("/z".to_owned())), port: Some(8080), ..plain },
        "302 http://stock.shop.west.mesh:8080/z?q",
    );
}

#[test]
fn edits_of_requests_begin_with_those_of_the_rule_and_of_responses_with_those_of_the_backend() {
    let set = |value: &str| HeaderEdits {
        set: vec![("X-By".to_owned(), value.to_owned())],
        ..HeaderEdits::default()
    };
    let backend = Backend { request: set("backend"), response: set("backend"), ..to("a", 1) };
    let mut edited = RouteRule::forward(vec![backend]);
    (edited.request, edited.response) = (set("rule"), set("rule"));
    let routes = only(vec![edited]);
    let fields = Lines(&[]);
    let rule = routes.decide(request("GET", "/", &fields)).unwrap().rule;
    let backend = rule.backend(0).unwrap();
    let shown = |edits: &[FieldEdit]| -> Vec<String> {
        let show = |edit: &FieldEdit| match edit {
            FieldEdit::Set(name, value) => {
                format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
            }
            FieldEdit::Remove(_) | FieldEdit::Add(_, _) => panic!("only one kind was stated"),
        };
        edits.iter().map(show).collect()
    };
    assert_eq!(shown(&backend.request), ["x-by=rule", "x-by=backend"]);
    assert_eq!(shown(&backend.response), ["x-by=backend", "x-by=rule"]);
}

#[test]
fn a_regular_expression_that_cannot_be_used_is_refused_with_its_reason() {
    let checked = |text: &str| {
        let route = route("shop/r", vec![rule("r", vec![regex(text)])]);
        check_regexes(&route).map_err(|error| error.to_string())
    };
    assert_eq!(checked("/a|/b"), Ok(()));
    for unbalanced in ["/a)|(?:/b", ")("] {
        let refused = checked(unbalanced).unwrap_err();
        assert!(refused.ends_with("unopened group"), "{refused}");
    }
    assert_eq!(
        checked("/a("),
        Err("the regular expression `/a(` is not valid: unclosed group".to_owned())
    );
    assert_eq!(
        checked("(?:a{1000}){1000}"),
        Err("the regular expression `(?:a{1000}){1000}` takes more than 256 KiB of memory; write a simpler one"
            .to_owned())
    );
    let set = only(vec![rule("r", vec![regex("/a|/b")])]);
    assert_eq!(decided(&set, "GET /b", &[]), "r");
    assert_eq!(decided(&set, "GET /bc", &[]), "-");
    assert_eq!(decided(&set, "GET /x/b", &[]), "-");
}

proptest::proptest! {
    #[test]
    fn whatever_is_asked_gets_a_decision_and_an_absolute_path(
        target in "/[!-~]{0,40}",
        named in "(/[a-z]{0,3}){1,3}/?",
        other in "(/[a-z]{0,3}){0,2}",
    ) {
        let mut rewriting = rule("r", vec![prefix(&named)]);
        rewriting.rewrite.path = Some(PathEdit::Prefix(other));
        let set = only(vec![rewriting]);
        let fields = Lines(&[]);
        if let Some(routed) = set.decide(request("GET", &target, &fields)) {
            let rewritten = routed.rewritten(target.as_bytes()).unwrap();
            proptest::prop_assert!(rewritten.starts_with(b"/"));
        }
    }
}
