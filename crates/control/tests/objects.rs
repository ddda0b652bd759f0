//! Policies and routes in the control plane: stored, limited, sent to the sidecars that they concern,
//! waited for.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::time::{Duration, Instant};

use support::{Network, PATIENCE, Registration, Watch};
use tollway_wire::v1;
use tollway_wire::v1::object_change::Outcome;

/// An empty allow list for `app`, or for the whole namespace.
fn closed(name: &str, app: Option<&str>) -> v1::Policy {
    let target = match app {
        Some(app) => v1::policy::Target::App(app.to_owned()),
        None => v1::policy::Target::WholeNamespace(v1::WholeNamespace {}),
    };
    v1::Policy {
        namespace: "default".into(),
        name: name.into(),
        target: Some(target),
        has_allow: true,
        ..v1::Policy::default()
    }
}

/// A route `NAMESPACE/NAME` for `service` with one backend.
fn route(id: &str, service: &str, backend: &str) -> v1::Object {
    let (namespace, name) = id.split_once('/').unwrap();
    let backend = v1::Backend { service: backend.into(), weight: 1, ..v1::Backend::default() };
    let forward = v1::Forward { backends: vec![backend] };
    let rule = v1::RouteRule {
        action: Some(v1::route_rule::Action::Forward(forward)),
        ..v1::RouteRule::default()
    };
    let route = v1::Route {
        namespace: namespace.into(),
        name: name.into(),
        service: service.into(),
        rules: vec![rule],
        created_unix_ms: 0,
    };
    v1::Object { object: Some(v1::object::Object::Route(route)), ..v1::Object::default() }
}

fn objects(policies: Vec<v1::Policy>) -> Vec<v1::Object> {
    let object = |policy| v1::Object {
        object: Some(v1::object::Object::Policy(policy)),
        ..v1::Object::default()
    };
    policies.into_iter().map(object).collect()
}

fn put(policies: Vec<v1::Policy>, wait: Duration) -> v1::ApplyObjectsRequest {
    let wait_ms = u64::try_from(wait.as_millis()).unwrap();
    v1::ApplyObjectsRequest { objects: objects(policies), dry_run: false, wait_ms }
}

fn outcomes(response: &v1::ChangeObjectsResponse) -> Vec<Outcome> {
    response.changes.iter().map(v1::ObjectChange::outcome).collect()
}

async fn apply(network: &mut Network, policies: Vec<v1::Policy>) -> v1::ChangeObjectsResponse {
    network.admin.apply_objects(put(policies, Duration::ZERO)).await.unwrap()
}

async fn apply_objects(network: &mut Network, objects: Vec<v1::Object>) -> Vec<Outcome> {
    let request = v1::ApplyObjectsRequest { objects, ..Default::default() };
    outcomes(&network.admin.apply_objects(request).await.unwrap())
}

async fn delete_object(network: &mut Network, kind: v1::ObjectKind, id: &str) -> Vec<Outcome> {
    let (namespace, name) = id.split_once('/').unwrap();
    let id = v1::ObjectId { kind: kind.into(), namespace: namespace.into(), name: name.into() };
    let request = v1::DeleteObjectsRequest { ids: vec![id], ..Default::default() };
    outcomes(&network.admin.delete_objects(request).await.unwrap())
}

async fn delete(network: &mut Network, name: &str) -> Vec<Outcome> {
    delete_object(network, v1::ObjectKind::Policy, &format!("default/{name}")).await
}

async fn list(network: &mut Network, kind: v1::ObjectKind) -> Vec<v1::object::Object> {
    let request = v1::ListObjectsRequest { kind: kind.into(), ..Default::default() };
    let known = network.admin.objects(request).await.unwrap();
    assert_eq!(known.network, "west");
    known.objects.into_iter().filter_map(|object| object.object).collect()
}

async fn names(network: &mut Network) -> Vec<String> {
    let name = |object| match object {
        v1::object::Object::Policy(policy) => policy.name,
        other @ (v1::object::Object::Route(_)
        | v1::object::Object::TrafficPolicy(_)
        | v1::object::Object::Failover(_)
        | v1::object::Object::Egress(_)) => panic!("{other:?}"),
    };
    list(network, v1::ObjectKind::Policy).await.into_iter().map(name).collect()
}

/// Every route with the time of its creation.
async fn routes(network: &mut Network) -> Vec<(String, u64)> {
    let name = |object| match object {
        v1::object::Object::Route(route) => (route.name, route.created_unix_ms),
        other @ (v1::object::Object::Policy(_)
        | v1::object::Object::TrafficPolicy(_)
        | v1::object::Object::Failover(_)
        | v1::object::Object::Egress(_)) => panic!("{other:?}"),
    };
    list(network, v1::ObjectKind::Route).await.into_iter().map(name).collect()
}

/// Reads on until the stream has sent `service`, and gives its routes as `name > backend`.
async fn routes_sent(watch: &mut Watch, service: &str) -> Vec<String> {
    let backend = |route: &v1::Route| match &route.rules[0].action {
        Some(v1::route_rule::Action::Forward(forward)) => forward.backends[0].service.clone(),
        Some(v1::route_rule::Action::Redirect(_)) | None => panic!("{route:?}"),
    };
    let service = v1::ServiceName::from(&support::name(service));
    loop {
        let response = watch.next().await.unwrap();
        let update = response.services.iter().find(|u| u.service.as_ref() == Some(&service));
        if let Some(update) = update {
            let print = |route: &v1::Route| format!("{} > {}", route.name, backend(route));
            return update.routes.iter().map(print).collect();
        }
    }
}

/// Reads on until the stream has sent policies, and gives their names.
async fn policies_sent(watch: &mut Watch) -> Vec<String> {
    loop {
        if let Some(policies) = watch.next().await.unwrap().policies {
            return policies.policies.into_iter().map(|policy| policy.name).collect();
        }
    }
}

#[tokio::test]
async fn applied_policies_are_sent_and_survive_a_restart() {
    let mut west = Network::start("west").await;
    let first = apply(&mut west, vec![closed("a", Some("stock")), closed("b", None)]).await;
    assert_eq!(outcomes(&first), [Outcome::Created, Outcome::Created]);
    let again = apply(&mut west, vec![closed("a", Some("Stock")), closed("b", Some("x"))]).await;
    assert_eq!(outcomes(&again), [Outcome::Unchanged, Outcome::Changed]);
    assert!(again.revision > first.revision);
    let mut west = west.restart().await;
    assert_eq!(names(&mut west).await, ["a", "b"]);
    let same = apply(&mut west, vec![closed("a", Some("stock"))]).await;
    assert_eq!((outcomes(&same), same.revision), (vec![Outcome::Unchanged], first.revision));
    assert_eq!(delete(&mut west, "a").await, [Outcome::Deleted]);
    assert_eq!(delete(&mut west, "a").await, [Outcome::Absent]);
    assert_eq!(names(&mut west).await, ["b"]);
}

#[tokio::test]
async fn a_sidecar_gets_the_policies_of_its_service_and_no_others() {
    let mut west = Network::start("west").await;
    apply(&mut west, vec![closed("for-orders", Some("orders"))]).await;
    let stock = west.member("stock", "a").await;
    let mut watch = Watch::services(&stock, &[]).await;
    assert_eq!(policies_sent(&mut watch).await, [""; 0], "an empty set is sent too");
    watch.until_quiet().await;

    apply(&mut west, vec![closed("more-orders", Some("orders"))]).await;
    apply(&mut west, vec![closed("for-stock", Some("stock"))]).await;
    assert_eq!(policies_sent(&mut watch).await, ["for-stock"]);
    apply(&mut west, vec![closed("for-all", None)]).await;
    assert_eq!(policies_sent(&mut watch).await, ["for-all", "for-stock"]);
    // A policy that now protects another service has gone from here.
    apply(&mut west, vec![closed("for-stock", Some("orders"))]).await;
    assert_eq!(policies_sent(&mut watch).await, ["for-all"]);
    delete(&mut west, "for-all").await;
    assert_eq!(policies_sent(&mut watch).await, [""; 0]);
    drop(watch);

    // What changed while no sidecar was connected is sent at once.
    apply(&mut west, vec![closed("for-stock", Some("stock"))]).await;
    let west = west.restart().await;
    let mut watch = Watch::services(&stock, &[]).await;
    assert_eq!(policies_sent(&mut watch).await, ["for-stock"]);
    drop(west);
}

#[tokio::test]
async fn a_wait_ends_when_everybody_concerned_has_applied_it() {
    let mut west = Network::start("west").await;
    let (stock, slow) = (west.member("stock", "a").await, west.member("stock", "slow").await);
    let orders = west.member("orders", "a").await;
    let (mut ready, mut late) =
        (Watch::services(&stock, &[]).await, Watch::services(&slow, &[]).await);
    let _elsewhere = Watch::services(&orders, &[]).await;
    policies_sent(&mut ready).await;
    policies_sent(&mut late).await;

    // `Watch` acknowledges what it reads: `late` does not read.
    let mut admin = west.admin.clone();
    let request = put(vec![closed("a", Some("stock"))], Duration::from_millis(300));
    let applying = tokio::spawn(async move { admin.apply_objects(request).await.unwrap() });
    assert_eq!(policies_sent(&mut ready).await, ["a"]);
    let waited = applying.await.unwrap();
    assert_eq!((waited.sidecars, waited.lagging), (2, vec!["slow.stock.default".to_owned()]));

    let mut admin = west.admin.clone();
    let request = put(vec![closed("a", Some("stock"))], PATIENCE);
    let (began, applying) =
        (Instant::now(), tokio::spawn(async move { admin.apply_objects(request).await.unwrap() }));
    assert_eq!(policies_sent(&mut late).await, ["a"]);
    let waited = applying.await.unwrap();
    assert_eq!((waited.sidecars, waited.lagging.len()), (2, 0));
    assert!(began.elapsed() < PATIENCE);
}

#[tokio::test]
async fn a_registered_workload_that_is_away_lags_until_it_is_back_or_given_up() {
    let mut west = Network::start("west").await;
    let (stock, away) = (west.member("stock", "a").await, west.member("stock", "away").await);
    let mut ready = Watch::services(&stock, &[]).await;
    policies_sent(&mut ready).await;
    let _serving = Registration::workload(&stock, 1).await.keep_alive();
    // It is registered, and its stream of updates is broken.
    let registration = Registration::workload(&away, 2).await.keep_alive();
    let change = |west: &Network, name: &str, wait| {
        let (mut admin, request) = (west.admin.clone(), put(vec![closed(name, None)], wait));
        tokio::spawn(async move { admin.apply_objects(request).await.unwrap() })
    };
    let applying = change(&west, "a", Duration::from_millis(300));
    policies_sent(&mut ready).await;
    let waited = applying.await.unwrap();
    assert_eq!((waited.sidecars, waited.lagging), (2, vec!["away.stock.default".to_owned()]));

    // Back, with what it missed.
    let applying = change(&west, "b", PATIENCE);
    policies_sent(&mut ready).await;
    let mut back = Watch::services(&away, &[]).await;
    assert_eq!(policies_sent(&mut back).await, ["a", "b"]);
    back.until_quiet().await;
    let waited = applying.await.unwrap();
    assert_eq!((waited.sidecars, waited.lagging.len()), (2, 0));

    // Away again, for good.
    drop(back);
    let applying = change(&west, "c", PATIENCE);
    policies_sent(&mut ready).await;
    drop(registration);
    let waited = applying.await.unwrap();
    assert_eq!((waited.sidecars, waited.lagging.len()), (1, 0));
}

#[tokio::test]
async fn what_is_not_valid_or_too_much_is_refused_whole() {
    let mut west = Network::start("west").await;
    let refusal = |network: &mut Network, policies: Vec<v1::Policy>| {
        let mut admin = network.admin.clone();
        async move {
            let refused = admin.apply_objects(put(policies, Duration::ZERO)).await;
            refused.unwrap_err().to_string()
        }
    };
    let bad = v1::Policy { has_allow: false, ..closed("bad", Some("stock")) };
    let text = refusal(&mut west, vec![closed("good", Some("stock")), bad]).await;
    assert!(text.contains("policy default/bad is not valid: the policy has neither"), "{text}");
    let twice = vec![closed("a", Some("stock")), closed("A", Some("stock"))];
    assert!(refusal(&mut west, twice).await.contains("given twice"));

    let large = |name: &str| {
        let rule = v1::PolicyRule {
            paths: vec![format!("/{}", "x".repeat(1000)); 60],
            ..Default::default()
        };
        v1::Policy { allow: vec![rule], ..closed(name, Some("stock")) }
    };
    let eight: Vec<_> = (0..8).map(|n| large(&format!("p{n}"))).collect();
    apply(&mut west, eight).await;
    let text = refusal(&mut west, vec![large("one-more")]).await;
    assert!(text.contains("the policies for the service stock.default would have"), "{text}");
    assert_eq!(names(&mut west).await.len(), 8);
}

#[tokio::test]
async fn routes_are_stored_with_the_time_of_their_creation() {
    let mut west = Network::start("west").await;
    let (first, second) = (route("default/r", "stock", "v1"), route("default/r", "stock", "v2"));
    assert_eq!(apply_objects(&mut west, vec![first.clone()]).await, [Outcome::Created]);
    let created = routes(&mut west).await;
    assert!(created[0].0 == "r" && created[0].1 > 1_700_000_000_000, "{created:?}");
    assert_eq!(apply_objects(&mut west, vec![first]).await, [Outcome::Unchanged]);
    let mut west = west.restart().await;
    assert_eq!(apply_objects(&mut west, vec![second.clone()]).await, [Outcome::Changed]);
    assert_eq!(routes(&mut west).await, created);
    let both = [vec![second], objects(vec![closed("p", None)])].concat();
    assert_eq!(apply_objects(&mut west, both).await, [Outcome::Unchanged, Outcome::Created]);
    let kind = v1::ObjectKind::Route;
    assert_eq!(delete_object(&mut west, kind, "default/r").await, [Outcome::Deleted]);
    assert_eq!(delete_object(&mut west, kind, "default/p").await, [Outcome::Absent]);
    assert_eq!((routes(&mut west).await, names(&mut west).await), (vec![], vec!["p".to_owned()]));
}

#[tokio::test]
async fn a_sidecar_gets_the_routes_that_hold_for_its_namespace() {
    let mut west = Network::start("west").await;
    let near = west.member("web", "a").await;
    let foreign = west.member("report.audit", "a").await;
    let (mut near_watch, mut foreign_watch) =
        (Watch::services(&near, &["stock"]).await, Watch::services(&foreign, &["stock"]).await);
    assert_eq!(routes_sent(&mut near_watch, "stock").await, [""; 0]);
    assert_eq!(routes_sent(&mut foreign_watch, "stock").await, [""; 0]);

    apply_objects(&mut west, vec![route("default/r", "stock", "v1")]).await;
    assert_eq!(routes_sent(&mut near_watch, "stock").await, ["r > v1"]);
    assert_eq!(routes_sent(&mut foreign_watch, "stock").await, ["r > v1"]);
    // The routes of the callers' namespace replace those of the service's, for it alone.
    apply_objects(&mut west, vec![route("audit/mine", "stock.default", "v2")]).await;
    assert_eq!(routes_sent(&mut foreign_watch, "stock").await, ["mine > v2"]);
    near_watch.until_quiet().await;
    apply_objects(&mut west, vec![route("default/r", "stock", "v3")]).await;
    assert_eq!(routes_sent(&mut near_watch, "stock").await, ["r > v3"]);

    // A stream that resumes gets what changed meanwhile, a deleted route too.
    let known = foreign_watch.revision;
    drop(foreign_watch);
    delete_object(&mut west, v1::ObjectKind::Route, "audit/mine").await;
    let resumed = support::subscribed(known, &["stock"]);
    let mut foreign_watch = Watch::open(&foreign, resumed).await.unwrap();
    assert_eq!(routes_sent(&mut foreign_watch, "stock").await, ["r > v3"]);
    foreign_watch.until_quiet().await;
    let resumed = support::subscribed(foreign_watch.revision, &["stock"]);
    let mut again = Watch::open(&foreign, resumed).await.unwrap();
    again.until_quiet().await;
    assert!(again.known.is_empty(), "nothing changed: {:?}", again.log);

    let west = west.restart().await;
    let mut watch = Watch::services(&near, &["stock"]).await;
    assert_eq!(routes_sent(&mut watch, "stock").await, ["r > v3"]);
    drop(west);
}

#[tokio::test]
async fn a_wait_for_a_route_ends_when_those_that_call_its_service_have_applied_it() {
    let mut west = Network::start("west").await;
    let (web, slow) = (west.member("web", "a").await, west.member("web", "slow").await);
    let other = west.member("other", "a").await;
    let (mut ready, mut late) =
        (Watch::services(&web, &["stock"]).await, Watch::services(&slow, &["stock"]).await);
    let mut elsewhere = Watch::services(&other, &["orders"]).await;
    for (watch, service) in
        [(&mut ready, "stock"), (&mut late, "stock"), (&mut elsewhere, "orders")]
    {
        routes_sent(watch, service).await;
        watch.until_quiet().await;
    }
    let apply = |wait: Duration| {
        let objects = vec![route("default/r", "stock", "v1")];
        let wait_ms = u64::try_from(wait.as_millis()).unwrap();
        let request = v1::ApplyObjectsRequest { objects, wait_ms, dry_run: false };
        let mut admin = west.admin.clone();
        tokio::spawn(async move { admin.apply_objects(request).await.unwrap() })
    };
    let applying = apply(Duration::from_millis(300));
    assert_eq!(routes_sent(&mut ready, "stock").await, ["r > v1"]);
    let waited = applying.await.unwrap();
    assert_eq!((waited.sidecars, waited.lagging), (2, vec!["slow.web.default".to_owned()]));
    let applying = apply(PATIENCE);
    assert_eq!(routes_sent(&mut late, "stock").await, ["r > v1"]);
    let waited = applying.await.unwrap();
    assert_eq!((waited.sidecars, waited.lagging.len()), (2, 0));
}

#[tokio::test]
async fn a_regular_expression_that_cannot_be_used_is_refused() {
    let mut west = Network::start("west").await;
    let mut bad = route("default/r", "stock", "v1");
    let Some(v1::object::Object::Route(of)) = &mut bad.object else { unreachable!() };
    let path = Some(v1::path_match::Path::Regex("/a(".into()));
    let path = Some(v1::PathMatch { path });
    of.rules[0].matches = vec![v1::RouteMatch { path, ..v1::RouteMatch::default() }];
    let request = v1::ApplyObjectsRequest { objects: vec![bad], ..Default::default() };
    let refused = west.admin.apply_objects(request).await.unwrap_err().to_string();
    assert!(refused.starts_with("the route default/r: the regular expression `/a(`"), "{refused}");
    assert!(routes(&mut west).await.is_empty());
}

/// Failover `NAMESPACE/NAME` for `service`, of networks each with a priority.
fn failover(id: &str, service: &str, networks: &[(&str, u32)]) -> v1::Object {
    let (namespace, name) = id.split_once('/').unwrap();
    let target = match service {
        "*" => v1::failover::Target::AllApps(true),
        app => v1::failover::Target::App(app.into()),
    };
    let network = |(network, priority): &(&str, u32)| v1::FailoverNetwork {
        network: (*network).into(),
        priority: *priority,
        weight: 1,
    };
    let rules = v1::FailoverRules {
        networks: networks.iter().map(network).collect(),
        threshold: 70,
        spill_over: None,
    };
    let failover = v1::Failover {
        namespace: namespace.into(),
        name: name.into(),
        target: Some(target),
        rules: Some(rules),
    };
    v1::Object { object: Some(v1::object::Object::Failover(failover)), ..v1::Object::default() }
}

#[tokio::test]
async fn the_networks_of_a_service_in_any_network_are_those_that_its_callers_operator_names() {
    const ANY: &str = "stock.default.any";
    let mut west = Network::start("west").await;
    let web = west.member("web", "a").await;
    let stock = west.member("stock", "a").await;
    let mut watch = Watch::services(&web, &[ANY]).await;
    watch.until(ANY, "no failover").await;
    // That of another namespace is about the services there.
    apply_objects(&mut west, vec![failover("shop/f", "stock", &[("west", 0)])]).await;
    watch.until_quiet().await;
    assert_eq!(watch.log.len(), 1, "{:?}", watch.log);
    apply_objects(&mut west, vec![failover("default/all", "*", &[("east", 0)])]).await;
    watch.until(ANY, "0 east x0").await;
    let both = failover("default/f", "stock", &[("west", 0), ("east", 1)]);
    apply_objects(&mut west, vec![both.clone()]).await;
    watch.until(ANY, "0 west x0, 1 east x0").await;
    // Replicas count, ready or not.
    let mut registration = Registration::workload(&stock, 7).await;
    watch.until(ANY, "0 west x1, 1 east x0").await;
    registration.set_ready(&stock, 7, false).await;
    watch.until_quiet().await;
    assert_eq!(watch.known.values().next().unwrap(), "0 west x1, 1 east x0");

    // A stream that resumes gets what changed meanwhile.
    let known = watch.revision;
    drop(watch);
    let mut watch = Watch::open(&web, support::subscribed(known, &[ANY])).await.unwrap();
    watch.until_quiet().await;
    assert!(watch.known.is_empty(), "nothing changed: {:?}", watch.log);
    let known = watch.revision;
    drop(watch);
    registration.deregister().await;
    let mut watch = Watch::open(&web, support::subscribed(known, &[ANY])).await.unwrap();
    watch.until(ANY, "0 west x0, 1 east x0").await;
    let (known, kind) = (watch.revision, v1::ObjectKind::Failover);
    drop(watch);
    assert_eq!(delete_object(&mut west, kind, "default/f").await, [Outcome::Deleted]);
    let mut watch = Watch::open(&web, support::subscribed(known, &[ANY])).await.unwrap();
    watch.until(ANY, "0 east x0").await;

    // A wait counts those who call one of these services in any network.
    let request = v1::ApplyObjectsRequest { objects: vec![both], wait_ms: 60_000, dry_run: false };
    let mut admin = west.admin.clone();
    let applying = tokio::spawn(async move { admin.apply_objects(request).await.unwrap() });
    watch.until(ANY, "0 west x0, 1 east x0").await;
    let waited = applying.await.unwrap();
    assert_eq!((waited.sidecars, waited.lagging.len()), (1, 0));
}

#[tokio::test]
async fn no_network_is_called_any() {
    let directory = tollway_testkit::TempDir::new().unwrap();
    let any = tollway_model::Label::new("Any").unwrap();
    let options = tollway_control::Options::new(directory.path().to_owned(), any);
    let bound = tollway_control::ControlPlane::bind(options).await;
    let refused = bound.map(drop).unwrap_err();
    assert_eq!(refused.code(), Some(tollway_model::ErrorCode::BadName));
    let text = tollway_model::chain(&refused);
    assert!(text.contains("a network cannot be called `any`"), "{text}");
}
