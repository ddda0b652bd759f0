use serde_json::json;
use tollway_control::RefusalReason;

use super::*;
use crate::resources::SPECIFICATION_BYTES;

const SHOP: &str = "shop";

struct Cluster {
    attached: Attached,
}

fn route(name: &str, generation: i64, spec: Value) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {
            "name": name, "namespace": SHOP, "uid": format!("u-{name}"), "generation": generation,
            "resourceVersion": "7", "creationTimestamp": "2026-01-02T03:04:05Z",
        },
        "spec": spec,
    }))
    .unwrap()
}

fn service(namespace: &str, name: &str, ports: &[(&str, i32)]) -> Service {
    let ports: Vec<_> =
        ports.iter().map(|(name, port)| json!({"name": name, "port": port})).collect();
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": namespace}, "spec": {"ports": ports},
    }))
    .unwrap()
}

fn parent(name: &str) -> Value {
    json!({"group": "", "kind": "Service", "name": name})
}

/// To port 80 of a Service.
fn to(name: &str) -> Value {
    json!({"backendRefs": [{"name": name, "port": 80}]})
}

impl Cluster {
    /// With the Services `stock` (80 and 90), `stock-v1` and `stock-v2`, and no routes yet.
    fn new() -> Self {
        let mut cluster = Self { attached: Attached::default() };
        let attached = &mut cluster.attached;
        assert!(attached.note_service(Event::Init).is_empty());
        for (name, ports) in [
            ("stock", &[("http", 80), ("admin", 90)][..]),
            ("stock-v1", &[("http", 80)]),
            ("stock-v2", &[("http", 80)]),
        ] {
            attached.note_service(Event::InitApply(service(SHOP, name, ports)));
        }
        attached.note_service(Event::InitApply(service("bank", "vault", &[("http", 80)])));
        attached.note_service(Event::InitDone);
        cluster
    }

    /// Everything has been listed.
    fn begin(&mut self, routes: Vec<DynamicObject>) -> Vec<String> {
        let attached = &mut self.attached;
        let mut events = Vec::new();
        for kind in [RouteKind::Http, RouteKind::Grpc] {
            events.extend(attached.note_route(kind, Event::Init));
            for route in routes.iter().filter(|_| kind == RouteKind::Http) {
                events.extend(attached.note_route(kind, Event::InitApply(route.clone())));
            }
            events.extend(attached.note_route(kind, Event::InitDone));
        }
        shown(&events)
    }

    fn begun() -> Self {
        let mut cluster = Self::new();
        cluster.begin(Vec::new());
        cluster
    }

    fn put(&mut self, route: DynamicObject) -> Vec<String> {
        shown(&self.attached.note_route(RouteKind::Http, Event::Apply(route)))
    }

    fn accept(&mut self, name: &str, generation: i64) {
        let verdict = Verdict::Accepted { revision: 3, sidecars: 2, lagging: Some(Vec::new()) };
        self.judge(name, generation, verdict);
    }

    fn judge(&mut self, name: &str, generation: i64, verdict: Verdict) {
        let kind = ResourceKind::HttpRoute;
        let name = ResourceName { kind, namespace: SHOP.into(), name: name.into() };
        self.attached.note_verdict(&ResourceStatus { name, generation, verdict });
    }

    /// The conditions that are to be written, each as `parent: type status reason`.
    fn written(&mut self) -> Vec<String> {
        let mut written = Vec::new();
        while let Some((_, due)) = self.attached.next_due(Timestamp::UNIX_EPOCH) {
            for entry in due.parents {
                for of in entry["conditions"].as_array().unwrap() {
                    let word = |name: &str| of[name].as_str().unwrap().to_owned();
                    written.push(format!(
                        "{}: {} {} {}",
                        entry["parentRef"]["name"].as_str().unwrap(),
                        word("type"),
                        word("status"),
                        word("reason")
                    ));
                }
            }
        }
        written
    }
}

/// Each as `name: service -> backends by rule`.
fn shown(events: &[ResourceEvent]) -> Vec<String> {
    let backends = |rule: &RouteRule| match &rule.action {
        RouteAction::Forward(backends) => {
            let all = backends.iter().map(|of| format!("{}*{}", of.service, of.weight));
            all.collect::<Vec<_>>().join("+")
        }
        RouteAction::Redirect(redirect) => format!("redirect {}", redirect.status),
    };
    let resource = |of: &Resource| match &of.object {
        Ok(Object::Route(route)) => {
            route.check().unwrap();
            let rules: Vec<_> = route.rules.iter().map(backends).collect();
            format!("{}: {} -> {}", of.name.name, route.service, rules.join(" | "))
        }
        Ok(other) => panic!("{other:?}"),
        Err(why) => format!("{}: {why}", of.name.name),
    };
    let word = |event: &ResourceEvent| match event {
        ResourceEvent::ListBegins(kind) => format!("{} begins", kind.as_str()),
        ResourceEvent::ListEnds(kind) => format!("{} ends", kind.as_str()),
        ResourceEvent::Listed(of) => format!("listed {}", resource(of)),
        ResourceEvent::Changed(of) => resource(of),
        ResourceEvent::Deleted(name) => format!("deleted {}", name.name),
    };
    events.iter().map(word).collect()
}

#[test]
fn a_route_is_for_each_port_of_its_service_once_all_is_known() {
    let mut cluster = Cluster::new();
    let split =
        route("split", 1, json!({"parentRefs": [parent("stock")], "rules": [to("stock-v1")]}));
    assert_eq!(
        cluster.begin(vec![split.clone()]),
        [
            "httproute begins",
            "grpcroute begins",
            "listed http_split_stock_80: stock:80.shop -> stock-v1:80*1",
            "listed http_split_stock_90: stock:90.shop -> stock-v1:80*1",
            "httproute ends",
            "grpcroute ends",
        ]
    );
    assert_eq!(cluster.put(split), [""; 0], "it is as it was");
    // The Service has another port, and loses one.
    let event = Event::Apply(service(SHOP, "stock", &[("http", 80), ("grpc", 70)]));
    assert_eq!(
        shown(&cluster.attached.note_service(event)),
        [
            "deleted http_split_stock_90",
            "http_split_stock_70: stock:70.shop -> stock-v1:80*1",
            "http_split_stock_80: stock:80.shop -> stock-v1:80*1"
        ]
    );
    let other = Event::Apply(service(SHOP, "orders", &[("http", 80)]));
    assert_eq!(shown(&cluster.attached.note_service(other)), [""; 0], "no route names it");
    let gone = route("split", 1, json!({}));
    assert_eq!(
        shown(&cluster.attached.note_route(RouteKind::Http, Event::Delete(gone))),
        ["deleted http_split_stock_70", "deleted http_split_stock_80"]
    );
    assert!(cluster.attached.owners.is_empty() && cluster.attached.named_by.is_empty());
    assert!(cluster.attached.held.is_empty() && cluster.attached.outcomes.is_empty());
}

#[test]
fn a_parent_may_name_a_port_by_its_number_and_by_its_name() {
    let mut cluster = Cluster::begun();
    let with = |more: Value| {
        let mut parent = parent("stock");
        parent.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        route("r", 1, json!({"parentRefs": [parent], "rules": [to("stock-v1")]}))
    };
    let expected = ["http_r_stock_90: stock:90.shop -> stock-v1:80*1"];
    assert_eq!(cluster.put(with(json!({"port": 90}))), expected);
    cluster.attached.note_route(RouteKind::Http, Event::Delete(with(json!({}))));
    assert_eq!(cluster.put(with(json!({"sectionName": "admin"}))), expected);
    cluster.attached.note_route(RouteKind::Http, Event::Delete(with(json!({}))));
    assert_eq!(cluster.put(with(json!({"sectionName": "admin", "port": 80}))), [""; 0]);
    assert_eq!(
        cluster.written(),
        [
            "stock: Accepted False NoMatchingParent",
            "stock: ResolvedRefs True ResolvedRefs",
            "stock: tollway.dev/Applied False NotAccepted",
        ]
    );
}

#[test]
fn a_status_is_written_once_all_ports_are_judged_and_again_only_if_it_differs() {
    let mut cluster = Cluster::begun();
    let spec = json!({"parentRefs": [parent("stock"), parent("gone")], "rules": [to("stock-v1")]});
    cluster.put(route("r", 1, spec.clone()));
    assert_eq!(cluster.written(), [""; 0], "nothing is known of its ports");
    cluster.accept("http_r_stock_80", 1);
    assert_eq!(cluster.written(), [""; 0]);
    cluster.accept("http_r_stock_90", 0);
    assert_eq!(cluster.written(), [""; 0], "that was about another generation");
    cluster.accept("http_r_stock_90", 1);
    let (id, due) = cluster.attached.next_due(Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!((id.name.as_str(), due.version.as_str()), ("r", "7"));
    assert_eq!(due.complaints, ["there is no Service shop/gone"]);
    cluster.attached.put_back(id);
    assert_eq!(
        cluster.written(),
        [
            "stock: Accepted True Accepted",
            "stock: ResolvedRefs True ResolvedRefs",
            "stock: tollway.dev/Applied True Everywhere",
            "gone: Accepted False NoMatchingParent",
            "gone: ResolvedRefs True ResolvedRefs",
            "gone: tollway.dev/Applied False NotAccepted",
        ]
    );
    // The status comes back, with what another controller reports.
    let mut object = route("r", 1, spec);
    let foreign = json!({"controllerName": "example.com/mesh", "parentRef": parent("stock"), "conditions": []});
    let mut parents = vec![foreign.clone()];
    parents.extend(due.parents);
    object.data["status"] = json!({"parents": parents});
    assert_eq!(cluster.put(object.clone()), [""; 0]);
    assert_eq!(cluster.written(), [""; 0]);
    // A verdict differs: the other one's entry stays.
    let why = "odd".to_owned();
    cluster.judge("http_r_stock_80", 1, Verdict::Refused { reason: RefusalReason::Invalid, why });
    let (_, due) = cluster.attached.next_due(Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!(due.parents[0], foreign);
    assert_eq!(due.parents[1]["conditions"][0]["reason"], "UnsupportedValue");
    assert_eq!(due.complaints, ["odd", "there is no Service shop/gone"]);
    // A route that is attached to nothing of ours any more reports nothing.
    object.data["spec"] = json!({"parentRefs": [{"name": "edge"}]});
    cluster.put(object);
    let (_, due) = cluster.attached.next_due(Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!(due.parents, [foreign]);
}

#[test]
fn what_leads_nowhere_is_said_and_takes_its_share_of_requests() {
    let mut cluster = Cluster::begun();
    let rules = json!([
        {"backendRefs": [
            {"name": "gone", "port": 80, "weight": 3}, {"name": "stock-v1", "port": 81},
            {"name": "vault", "namespace": "bank", "port": 80},
            {"name": "vault", "port": 80},
            {"group": "example.com", "kind": "Lambda", "name": "f"},
        ]},
        {},
    ]);
    let spec = json!({"parentRefs": [{"group": "", "kind": "Service", "name": "stock", "port": 80}], "rules": rules});
    assert_eq!(
        cluster.put(route("r", 1, spec)),
        [
            "http_r_stock_80: stock:80.shop -> gone:80*3+stock-v1:81*1+vault:80.bank*1+vault:80*1+no_backend:1*1 | no_backend:1*1"
        ]
    );
    cluster.accept("http_r_stock_80", 1);
    let resolved = cluster.written().swap_remove(1);
    assert_eq!(resolved, "stock: ResolvedRefs False BackendNotFound");
}

#[test]
fn a_route_for_callers_of_its_own_namespace_names_a_service_of_another() {
    let mut cluster = Cluster::begun();
    let parent = json!({"group": "", "kind": "Service", "name": "vault", "namespace": "bank"});
    // Where it would go without the route it may go with it.
    let vault = json!({"backendRefs": [{"name": "vault", "namespace": "bank", "port": 80}]});
    let spec = json!({"parentRefs": [parent], "rules": [to("stock-v1"), vault]});
    assert_eq!(
        cluster.put(route("r", 1, spec)),
        ["http_r_vault_80_bank: vault:80.bank -> stock-v1:80*1 | vault:80.bank*1"]
    );
}

/// The harm: a rule that is not understood is left out, and its requests go where they should not.
#[test]
fn a_route_that_is_not_understood_is_refused_whole() {
    let mut cluster = Cluster::begun();
    for (rule, why) in [
        (json!({"filters": [{"type": "CORS", "cors": {}}]}), "unknown variant `CORS`"),
        (json!({"sessionPersistence": {}}), "unknown field `sessionPersistence`"),
        (
            json!({"backendRefs": [{"name": "a", "port": 1, "filters": [
                {"type": "URLRewrite", "urlRewrite": {}}]}]}),
            "the filter URLRewrite",
        ),
        (json!({"timeouts": {"request": "soon"}}), "`soon` is not a time"),
        (json!({"matches": [{"method": "GET /"}]}), "GET /"),
        (
            json!({"filters": [{"type": "RequestMirror", "requestMirror": {
                "backendRef": {"name": "a", "port": 1}, "fraction": {"numerator": 3, "denominator": 2}}}]}),
            "3/2",
        ),
    ] {
        let parent = json!({"group": "", "kind": "Service", "name": "stock", "port": 80});
        let spec = json!({"parentRefs": [parent], "rules": [to("stock-v1"), rule]});
        let reported = cluster.put(route("r", 1, spec));
        assert!(reported[0].starts_with("http_r_stock_80: rules[1]: "), "{reported:?}");
        assert!(reported[0].contains(why), "{reported:?}");
    }
}

/// The harm: who may write routes in one namespace fills the memory of the control plane.
#[test]
fn so_much_of_the_routes_of_a_namespace_is_held() {
    let mut cluster = Cluster::begun();
    let large = |name: &str| {
        let parent = json!({"group": "", "kind": "Service", "name": "stock", "port": 80});
        let field = json!({"name": "x-large", "value": "v".repeat(200 << 10)});
        let headers = json!([{"headers": [field]}]);
        route(name, 1, json!({"parentRefs": [parent], "rules": [{"matches": headers}]}))
    };
    let mut refused = 0;
    for number in 0..30 {
        let object = large(&format!("r{number}"));
        let events = cluster.attached.note_route(RouteKind::Http, Event::Apply(object));
        let ResourceEvent::Changed(of) = &events[0] else { panic!("{events:?}") };
        refused += usize::from(of.object.is_err());
    }
    assert_eq!(refused, 10);
    assert!(cluster.attached.held[SHOP] <= ROUTE_BYTES_PER_NAMESPACE);
    let over = "v".repeat(SPECIFICATION_BYTES);
    let spec = json!({"parentRefs": [parent("stock")], "rules": [{"name": over}]});
    let reported = cluster.put(route("over", 1, spec));
    assert!(reported[0].contains("at most 262144 are read"), "{}", reported[0]);
    for number in 0..30 {
        let object = large(&format!("r{number}"));
        cluster.attached.note_route(RouteKind::Http, Event::Delete(object));
    }
    assert_eq!(cluster.attached.held.get(SHOP), None);
}

#[test]
fn a_route_is_attached_to_so_many_ports() {
    let mut cluster = Cluster::begun();
    let ports: Vec<_> = (1..=65).map(|port| ("", port)).collect();
    let many = service(SHOP, "many", &ports);
    cluster.attached.note_service(Event::Apply(many));
    let spec = json!({"parentRefs": [parent("many")], "rules": [to("stock-v1")]});
    assert_eq!(cluster.put(route("r", 1, spec)), [""; 0]);
    assert_eq!(cluster.written()[0], "many: Accepted False UnsupportedValue");
    cluster.attached.note_service(Event::Apply(service(SHOP, "many", &ports[..64])));
    assert_eq!(cluster.attached.outcomes.values().next().unwrap().resources.len(), 64);
}

#[test]
fn names_that_are_long_or_have_dots_stay_apart() {
    let id =
        |name: &str| RouteId { kind: RouteKind::Http, namespace: SHOP.into(), name: name.into() };
    let stock = (SHOP.to_owned(), "stock".to_owned());
    let named = |name: &str| resource_name(ResourceKind::HttpRoute, &id(name), &stock, 80);
    let long = "r".repeat(200);
    let all = [named("a-b"), named("a.b"), named(&long), named(&format!("{long}r"))];
    assert_eq!(all[0], "http_a-b_stock_80");
    for (index, name) in all.iter().enumerate() {
        Label::new(name).unwrap();
        assert!(all[..index].iter().all(|other| other != name), "{name}");
    }
}

#[test]
fn the_fields_of_a_rule_have_the_meaning_of_the_api() {
    use std::time::Duration;
    use tollway_model::route::{GrpcMatch, PathEdit, PathMatch, TextMatch};

    let read = |kind, rule: Value| {
        let mut rules = spec::rules(kind, &json!({"rules": [rule]})).unwrap();
        rules.swap_remove(0)
    };
    let http = |rule: Value| read(RouteKind::Http, rule);
    let of = http(json!({
        "name": "main",
        "matches": [{
            "path": {"type": "Exact", "value": "/a"}, "method": "GET",
            "headers": [
                {"name": "Version", "value": "1"}, {"name": "version", "value": "2"},
                {"type": "RegularExpression", "name": "x", "value": "a+"},
            ],
            "queryParams": [{"name": "q", "value": "1"}, {"name": "Q", "value": "2"}],
        }, {}],
        "filters": [
            {"type": "RequestHeaderModifier", "requestHeaderModifier": {
                "set": [{"name": "a", "value": "1"}], "add": [{"name": "b", "value": "2"}],
                "remove": ["c"]}},
            {"type": "URLRewrite", "urlRewrite": {"hostname": "h.example",
                "path": {"type": "ReplaceFullPath", "replaceFullPath": "/full"}}},
            {"type": "RequestMirror", "requestMirror": {
                "backendRef": {"name": "m", "port": 8}, "percent": 25}},
        ],
        "backendRefs": [{"name": "b", "port": 9, "weight": 0}, {"name": "c", "port": 9}],
        "timeouts": {"request": "1m", "backendRequest": "500ms"},
        "retry": {"codes": [503], "attempts": 3, "backoff": "5s"},
    }));
    let rule = &of.rule;
    assert_eq!(rule.name.as_ref().unwrap().as_str(), "main");
    let first = &rule.matches[0];
    assert_eq!(first.path, Some(PathMatch::Exact("/a".into())));
    let named: Vec<_> = first.headers.iter().map(|of| (of.name.as_str(), &of.value)).collect();
    let (one, regex) = (TextMatch::Exact("1".into()), TextMatch::Regex("a+".into()));
    assert_eq!(named, [("Version", &one), ("x", &regex)], "the first of a name counts");
    assert_eq!(first.query.len(), 2, "parameters differ by case");
    assert_eq!(rule.request.remove, ["c"]);
    assert_eq!(rule.rewrite.path, Some(PathEdit::Full("/full".into())));
    assert_eq!(of.mirrors[0].1, 250_000);
    assert_eq!(of.backends.iter().map(|of| of.weight).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(rule.timeouts.request, Some(Duration::from_secs(60)));
    assert_eq!(rule.timeouts.attempt, Some(Duration::from_millis(500)));
    let retry = rule.retry.as_ref().unwrap();
    assert_eq!((retry.attempts, retry.longest_backoff), (3, Duration::from_secs(5)));
    // Without a match the prefix that is replaced is the whole path.
    let of = http(json!({"filters": [{"type": "RequestRedirect", "requestRedirect": {
        "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"}}}]}));
    assert_eq!(of.rule.matches[0].path, Some(PathMatch::Prefix("/".into())));
    let RouteAction::Redirect(redirect) = of.rule.action else { panic!() };
    assert_eq!((redirect.status, redirect.path), (302, Some(PathEdit::Prefix("/new".into()))));
    let grpc = |method: Value| {
        let rule = read(RouteKind::Grpc, json!({"matches": [{"method": method}]})).rule;
        rule.matches[0].grpc.clone()
    };
    let text = |text: &str| Some(TextMatch::Exact(text.into()));
    assert_eq!(
        grpc(json!({"service": "shop.Stock", "method": "Get"})),
        Some(GrpcMatch { service: text("shop.Stock"), method: text("Get") })
    );
    assert_eq!(grpc(json!({"type": "Exact"})), None, "every method");
    let regex = grpc(json!({"type": "RegularExpression", "method": "G.*"})).unwrap();
    assert_eq!(regex.method, Some(TextMatch::Regex("G.*".into())));
}
