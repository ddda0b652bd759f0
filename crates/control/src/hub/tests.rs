use std::net::SocketAddr;

use std::time::Duration;

use prost::Message as _;
use tollway_model::{
    AppProtocol, ObjectId, ObjectKind, ObjectName, ServiceState, TrustDomain, Workload,
};
use tollway_wire::v1;

use super::*;
use crate::catalogue::Home;
use crate::key::Key;
use crate::options::RemoteCalls;
use crate::stored;

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn name(text: &str) -> ServiceName {
    ServiceName::parse_in(text, &label("default"), &label("west")).unwrap()
}

fn hub() -> Arc<Hub> {
    Hub::new(Catalogue::new(
        Home {
            network: label("west"),
            trust_domain: TrustDomain::new("west.tollway").unwrap(),
            root: Vec::new(),
            remote_calls: RemoteCalls::Direct,
            egress: tollway_model::EgressDefault::Open,
            listen: SocketAddr::from(([10, 0, 0, 1], 15010)),
            peer_addresses: Arc::from([]),
        },
        0,
    ))
}

fn put(hub: &Hub, key: &Key, value: &[u8], revision: u64) {
    hub.change(|catalogue| {
        let subjects = catalogue.put(key, value, revision).unwrap();
        catalogue.advance(revision);
        subjects
    });
}

fn put_workload(hub: &Hub, app: &str, port: u16, revision: u64) {
    let service = name(app);
    let workload = Workload {
        service: service.clone(),
        instance: label("a"),
        address: ([10, 0, 0, 1], port).into(),
        protocol: Some(AppProtocol::Http),
        ready: true,
        locality: tollway_model::Locality::default(),
    };
    let key =
        Key::Workload { namespace: service.namespace, app: service.app, instance: label("a") };
    put(hub, &key, &v1::Workload::from(&workload).encode_to_vec(), revision);
}

fn taken(watcher: &Watcher) -> Vec<String> {
    let updates = watcher.take(100);
    let mut names: Vec<_> = updates.services.iter().map(|u| u.service.to_string()).collect();
    names.sort();
    names
}

async fn wakes(watcher: &Watcher) -> bool {
    tokio::time::timeout(Duration::from_millis(50), watcher.changed()).await.is_ok()
}

#[tokio::test]
async fn a_watcher_wakes_for_its_subscriptions_only() {
    let hub = hub();
    let watcher = hub.watch_subscribed();
    watcher.subscribe(vec![name("stock")]).unwrap();
    assert!(wakes(&watcher).await);
    assert_eq!(taken(&watcher), ["stock.default.west"]);
    put_workload(&hub, "orders", 1, 1);
    assert!(!wakes(&watcher).await);
    put_workload(&hub, "stock", 1, 2);
    assert!(wakes(&watcher).await);
    assert_eq!(taken(&watcher), ["stock.default.west"]);
    assert_eq!(taken(&watcher), [""; 0]);
    watcher.unsubscribe(&[name("stock")]);
    put_workload(&hub, "stock", 2, 3);
    assert!(!wakes(&watcher).await);
    assert_eq!(taken(&watcher), [""; 0]);
}

#[tokio::test]
async fn many_changes_of_one_service_are_one_update() {
    let hub = hub();
    let watcher = hub.watch_subscribed();
    watcher.subscribe(vec![name("stock")]).unwrap();
    for port in 1..=1_000 {
        put_workload(&hub, "stock", port, port.into());
    }
    let updates = watcher.take(100);
    assert_eq!(updates.revision, Revision(1_000));
    assert_eq!(updates.services.len(), 1);
}

#[tokio::test]
async fn a_change_of_a_network_concerns_those_who_call_its_services() {
    let hub = hub();
    let (east, north) = (hub.watch_subscribed(), hub.watch_subscribed());
    east.subscribe(vec![name("stock.default.east"), name("stock")]).unwrap();
    north.subscribe(vec![name("stock.default.north")]).unwrap();
    taken(&east);
    taken(&north);
    assert!(wakes(&east).await && wakes(&north).await);
    let link = stored::PeerLink { reachable: true, ..Default::default() };
    put(&hub, &Key::PeerLink { network: label("east") }, &link.encode_to_vec(), 1);
    assert!(wakes(&east).await);
    assert!(!wakes(&north).await);
    assert_eq!(taken(&east), ["stock.default.east"]);
}

#[tokio::test]
async fn what_is_taken_in_pieces_is_whole() {
    let hub = hub();
    let watcher = hub.watch_subscribed();
    let names: Vec<_> = (0..25).map(|n| name(&format!("app-{n}"))).collect();
    watcher.subscribe(names).unwrap();
    let mut sizes = Vec::new();
    loop {
        let updates = watcher.take(10);
        sizes.push(updates.services.len());
        if !updates.more {
            break;
        }
    }
    assert_eq!(sizes, [10, 10, 5]);
}

#[test]
fn subscriptions_are_limited_and_those_held_stay() {
    let hub = hub();
    let watcher = hub.watch_subscribed();
    let names = |count: usize| (0..count).map(|n| name(&format!("app-{n}"))).collect::<Vec<_>>();
    watcher.subscribe(names(SUBSCRIPTIONS_PER_STREAM_LIMIT)).unwrap();
    assert_eq!(watcher.subscribe(vec![name("more")]), Err(NotFollowed::TooMany));
    assert_eq!(watcher.subscribe(names(1)), Ok(()));
    watcher.unsubscribe(&names(1));
    assert_eq!(watcher.subscribe(vec![name("more")]), Ok(()));
}

#[test]
fn a_watcher_that_leaves_leaves_nothing_behind() {
    let hub = hub();
    let watcher = hub.watch_subscribed();
    watcher.subscribe(vec![name("stock")]).unwrap();
    watcher.acknowledge(Revision(7));
    watcher.acknowledge(Revision(3));
    assert_eq!(hub.applied_everywhere(), Some(Revision(7)));
    drop(watcher);
    assert_eq!(hub.applied_everywhere(), None);
    let inner = hub.lock();
    assert!(inner.interest.is_empty() && inner.watchers.is_empty());
}

fn route_id(id: &str) -> ObjectId {
    let (namespace, name) = id.split_once('/').unwrap();
    ObjectId { kind: ObjectKind::Route, name: ObjectName::new(namespace, name).unwrap() }
}

/// Stores the route `namespace/name` for a service.
fn put_route(hub: &Hub, id: &str, service: &str, revision: u64) {
    let id = route_id(id);
    let redirect = v1::Redirect { status: 302, ..v1::Redirect::default() };
    let rule = v1::RouteRule {
        action: Some(v1::route_rule::Action::Redirect(redirect)),
        ..v1::RouteRule::default()
    };
    let route = v1::Route {
        namespace: id.name.namespace.to_string(),
        name: id.name.name.to_string(),
        service: service.into(),
        rules: vec![rule],
        created_unix_ms: revision,
    };
    let object =
        v1::Object { object: Some(v1::object::Object::Route(route)), ..v1::Object::default() };
    put(hub, &Key::Object(id), &object.encode_to_vec(), revision);
}

fn delete_route(hub: &Hub, id: &str, revision: u64) {
    hub.change(|catalogue| {
        let subjects = catalogue.delete(&Key::Object(route_id(id)), revision);
        catalogue.advance(revision);
        subjects
    });
}

/// The routes in every update that the watcher has not read, as `service: names`.
fn routes(watcher: &Watcher) -> Vec<String> {
    let print = |update: &ServiceUpdate| {
        let names: Vec<_> = update.routes.iter().map(|route| route.name.to_string()).collect();
        format!("{}: {}", update.service, names.join(" "))
    };
    let mut updates: Vec<_> = watcher.take(100).services.iter().map(print).collect();
    updates.sort();
    updates
}

/// Sidecars in the namespaces `shop` and `audit` that follow `stock.shop`.
fn followers(hub: &Arc<Hub>) -> [Watcher; 2] {
    ["web.shop", "web.audit"].map(|of| {
        let watcher = hub.watch_of(name(of), label("a"));
        watcher.subscribe(vec![name("stock.shop"), name("other.shop")]).unwrap();
        routes(&watcher);
        watcher
    })
}

#[tokio::test]
async fn a_route_wakes_those_that_follow_its_service_and_for_which_it_holds() {
    let hub = hub();
    let [own, foreign] = followers(&hub);
    assert!(wakes(&own).await && wakes(&foreign).await);
    put_route(&hub, "shop/r", "stock", 1);
    assert!(wakes(&own).await && wakes(&foreign).await);
    assert_eq!(routes(&own), ["stock.shop.west: shop/r"]);
    assert_eq!(routes(&foreign), ["stock.shop.west: shop/r"]);
    put_route(&hub, "shop/unrelated", "nobody-follows", 2);
    assert!(!wakes(&own).await);

    // Routes of the callers' namespace hold in place of those of the service.
    put_route(&hub, "audit/mine", "stock.shop", 3);
    assert!(wakes(&foreign).await);
    assert_eq!(routes(&foreign), ["stock.shop.west: audit/mine"]);
    assert!(!wakes(&own).await);
    put_route(&hub, "shop/second", "stock", 4);
    assert!(wakes(&own).await);
    assert_eq!(routes(&own), ["stock.shop.west: shop/r shop/second"]);
    assert!(!wakes(&foreign).await);
    delete_route(&hub, "audit/mine", 5);
    assert!(wakes(&foreign).await);
    assert_eq!(routes(&foreign), ["stock.shop.west: shop/r shop/second"]);
}

#[tokio::test]
async fn a_route_that_is_now_for_another_service_has_left_the_first() {
    let hub = hub();
    let [own, _] = followers(&hub);
    put_route(&hub, "shop/r", "stock", 1);
    routes(&own);
    put_route(&hub, "shop/r", "other", 2);
    assert_eq!(routes(&own), ["other.shop.west: shop/r", "stock.shop.west: "]);
}

#[tokio::test]
async fn routes_are_for_services_of_other_networks_and_without_workloads_too() {
    let hub = hub();
    let watcher = hub.watch_of(name("web.shop"), label("a"));
    watcher.subscribe(vec![name("stock.shop.east")]).unwrap();
    assert_eq!(routes(&watcher), ["stock.shop.east: "]);
    put_route(&hub, "shop/r", "stock.shop.east", 1);
    assert_eq!(routes(&watcher), ["stock.shop.east: shop/r"]);
    // It is a route of the caller's operator: callers of other namespaces have none.
    let other = hub.watch_of(name("web.audit"), label("a"));
    other.subscribe(vec![name("stock.shop.east")]).unwrap();
    assert_eq!(routes(&other), ["stock.shop.east: "]);
    // A watcher without callers has no routes.
    let gateway = hub.watch_subscribed();
    gateway.subscribe(vec![name("stock.shop.east")]).unwrap();
    assert_eq!(routes(&gateway), ["stock.shop.east: "]);
}

#[test]
fn a_watcher_that_resumes_gets_routes_that_changed_meanwhile() {
    let hub = hub();
    put_route(&hub, "shop/r", "stock", 1);
    put_route(&hub, "audit/mine", "stock.shop", 2);
    let resumed = |of: &str, known| {
        let watcher = hub.watch_of(name(of), label("a"));
        watcher.resume(vec![name("stock.shop")], Revision(known)).unwrap();
        routes(&watcher)
    };
    assert_eq!(resumed("web.shop", 0), ["stock.shop.west: shop/r"]);
    assert_eq!(resumed("web.shop", 1), [""; 0]);
    assert_eq!(resumed("web.audit", 1), ["stock.shop.west: audit/mine"]);
    assert_eq!(resumed("web.audit", 2), [""; 0]);
    delete_route(&hub, "audit/mine", 3);
    delete_route(&hub, "shop/r", 4);
    assert_eq!(resumed("web.shop", 3), ["stock.shop.west: "]);
    assert_eq!(resumed("web.audit", 2), ["stock.shop.west: "]);
    assert_eq!(resumed("web.audit", 4), [""; 0]);
}

#[tokio::test]
async fn a_wait_for_routes_counts_those_for_which_they_hold() {
    let hub = hub();
    let [own, foreign] = followers(&hub);
    let stranger = hub.watch_of(name("orders.shop"), label("b"));
    put_route(&hub, "shop/r", "stock", 1);
    let applied = async |callers: Option<&str>, revision| {
        let callers = callers.map(label);
        let scope = RouteScope { service: name("stock.shop"), callers };
        let scopes = BTreeSet::from([ObjectScope::Route(scope)]);
        hub.applied(&scopes, revision, Duration::ZERO).await
    };
    let lagging = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(applied(None, 1).await, (2, lagging(&["a.web.audit", "a.web.shop"])));
    own.acknowledge(Revision(1));
    assert_eq!(applied(None, 1).await, (2, lagging(&["a.web.audit"])));
    foreign.acknowledge(Revision(1));
    assert_eq!(applied(None, 1).await, (2, lagging(&[])));
    put_route(&hub, "audit/mine", "stock.shop", 2);
    assert_eq!(applied(Some("audit"), 2).await, (1, lagging(&["a.web.audit"])));
    assert_eq!(applied(None, 1).await, (1, lagging(&[])), "audit has routes of its own");
    drop(stranger);
}

fn traffic_id(name: &str) -> ObjectId {
    ObjectId { kind: ObjectKind::TrafficPolicy, name: ObjectName::new("shop", name).unwrap() }
}

/// Stores a traffic policy of the namespace `shop` with a part that holds at callers and one that
/// holds at replicas.
fn put_traffic(hub: &Hub, id: &str, app: Option<&str>, number: u32, revision: u64) {
    let target = match app {
        Some(app) => v1::traffic_policy::Target::App(app.into()),
        None => v1::traffic_policy::Target::AllApps(true),
    };
    let parts = v1::TrafficParts {
        panic_percent: Some(number),
        concurrency_per_caller: Some(number),
        ..v1::TrafficParts::default()
    };
    let policy = v1::TrafficPolicy {
        namespace: "shop".into(),
        name: id.into(),
        target: Some(target),
        parts: Some(parts),
        shadow: false,
    };
    let object = v1::Object {
        object: Some(v1::object::Object::TrafficPolicy(policy)),
        ..v1::Object::default()
    };
    put(hub, &Key::Object(traffic_id(id)), &object.encode_to_vec(), revision);
}

fn delete_traffic(hub: &Hub, id: &str, revision: u64) {
    hub.change(|catalogue| {
        let subjects = catalogue.delete(&Key::Object(traffic_id(id)), revision);
        catalogue.advance(revision);
        subjects
    });
}

/// The parts at callers in every update that the watcher has not read, as `service: number`, and the
/// part at its own replica if it is news.
fn traffic(watcher: &Watcher) -> (Vec<String>, Option<Option<u32>>) {
    let updates = watcher.take(100);
    let print = |update: &ServiceUpdate| {
        assert_eq!(update.traffic.concurrency_per_caller, None, "it holds at replicas alone");
        format!("{}: {}", update.service, update.traffic.panic_percent.unwrap_or_default())
    };
    let mut services: Vec<_> = updates.services.iter().map(print).collect();
    services.sort();
    let own = updates.traffic.map(|own| {
        assert_eq!(own.panic_percent, None, "it holds at callers alone");
        own.concurrency_per_caller
    });
    (services, own)
}

#[tokio::test]
async fn a_traffic_policy_reaches_the_callers_of_its_services_and_their_replicas() {
    let hub = hub();
    let replica = hub.watch_of(name("stock.shop"), label("a"));
    let caller = hub.watch_of(name("web.audit"), label("a"));
    caller.subscribe(vec![name("stock.shop"), name("stock.shop.east")]).unwrap();
    assert_eq!(traffic(&replica), (vec![], Some(None)), "it is sent that there is none");
    traffic(&caller);
    assert!(wakes(&caller).await && !wakes(&replica).await);
    put_traffic(&hub, "general", None, 1, 1);
    assert!(wakes(&replica).await && wakes(&caller).await);
    assert_eq!(traffic(&replica), (vec![], Some(Some(1))));
    // A service of another network is not of this namespace.
    assert_eq!(traffic(&caller), (vec!["stock.shop.west: 1".into()], None));
    put_traffic(&hub, "own", Some("stock"), 2, 2);
    assert_eq!(traffic(&replica), (vec![], Some(Some(2))));
    assert_eq!(traffic(&caller), (vec!["stock.shop.west: 2".into()], None));
    put_traffic(&hub, "other", Some("other"), 3, 3);
    assert_eq!((traffic(&replica), traffic(&caller)), ((vec![], None), (vec![], None)));
    delete_traffic(&hub, "own", 4);
    assert_eq!(traffic(&replica), (vec![], Some(Some(1))));
    assert_eq!(traffic(&caller), (vec!["stock.shop.west: 1".into()], None));
    delete_traffic(&hub, "general", 5);
    assert_eq!(traffic(&replica), (vec![], Some(None)));
    assert_eq!(traffic(&caller), (vec!["stock.shop.west: 0".into()], None));
}

#[test]
fn a_watcher_that_resumes_gets_traffic_policies_that_changed_meanwhile() {
    let hub = hub();
    put_traffic(&hub, "general", None, 1, 1);
    put_traffic(&hub, "own", Some("stock"), 2, 2);
    let resumed = |known| {
        let watcher = hub.watch_of(name("web.audit"), label("a"));
        watcher.resume(vec![name("stock.shop")], Revision(known)).unwrap();
        traffic(&watcher).0
    };
    assert_eq!(resumed(1), ["stock.shop.west: 2"]);
    assert_eq!(resumed(2), [""; 0]);
    delete_traffic(&hub, "own", 3);
    assert_eq!(resumed(2), ["stock.shop.west: 1"]);
    assert_eq!(resumed(3), [""; 0]);
}

#[tokio::test]
async fn a_wait_for_a_traffic_policy_counts_callers_and_replicas() {
    let hub = hub();
    let [caller, _other] = followers(&hub);
    let _replica = hub.watch_of(name("stock.shop"), label("r"));
    put_traffic(&hub, "own", Some("stock"), 1, 1);
    let scope = PolicyScope::App(label("shop"), label("stock"));
    let scopes = BTreeSet::from([ObjectScope::TrafficPolicy(scope)]);
    caller.acknowledge(Revision(1));
    let (count, lagging) = hub.applied(&scopes, 1, Duration::ZERO).await;
    assert_eq!((count, lagging), (3, vec!["a.web.audit".to_owned(), "r.stock.shop".to_owned()]));
}

/// A Service of the cluster with this address, and a pod at 10.0.0.1 that takes calls at port 8080.
fn put_service(hub: &Hub, name: &str, address: [u8; 4], revision: u64) {
    let pod = crate::services::ServedPod {
        address: [10, 0, 0, 1].into(),
        instances: vec![label("a")],
        is_ready: true,
        ports: crate::services::PodPorts::Own(8080),
        zone: None,
    };
    let service = crate::services::ClusterService {
        namespace: label("default"),
        name: label(name),
        addresses: vec![address.into()],
        ports: vec![80],
        groups: vec![crate::services::PodGroup {
            targets: vec![crate::services::PortTarget {
                port: 80,
                target: 8080,
                protocol: AppProtocol::Tcp,
            }],
            pods: vec![pod],
        }],
    };
    let key = Key::ClusterService { namespace: label("default"), name: label(name) };
    put(hub, &key, &service.write(), revision);
}

#[tokio::test]
async fn who_follows_an_address_or_a_port_of_the_cluster_gets_its_changes() {
    let hub = hub();
    let home = name("web");
    let address = ServiceName::of_address("10.96.0.7:80".parse().unwrap(), &home);
    let port = ServiceName::of_port(&label("stock"), 80, &home.namespace, &home.network);
    let by_address = hub.watch_subscribed();
    by_address.subscribe(vec![address.clone()]).unwrap();
    let by_port = hub.watch_subscribed();
    by_port.subscribe(vec![port.clone()]).unwrap();
    taken(&by_address);
    taken(&by_port);
    assert!(wakes(&by_address).await && wakes(&by_port).await);
    put_service(&hub, "stock", [10, 96, 0, 7], 1);
    assert!(wakes(&by_address).await && wakes(&by_port).await);
    assert_eq!(taken(&by_address), ["10.96.0.7:80.default.west"]);
    assert_eq!(taken(&by_port), ["stock:80.default.west"]);
    // A pod of it: what serves the port changes, what the address stands for does not.
    put_workload(&hub, "stock-v2", 50_002, 2);
    assert!(!wakes(&by_address).await && wakes(&by_port).await);
    let updates = by_port.take(10);
    let ServiceState::Local { endpoints, .. } = &updates.services[0].state else { panic!() };
    assert_eq!(endpoints[0].app, Some(label("stock-v2")));
    put_service(&hub, "other", [10, 96, 0, 8], 3);
    assert!(!wakes(&by_address).await);
    // Its address is another Service's.
    put_service(&hub, "stock", [10, 96, 0, 9], 4);
    assert!(wakes(&by_address).await);
    assert_eq!(hub.lock().in_cluster.len(), 2);
    drop(by_address);
    assert_eq!(hub.lock().in_cluster.len(), 1);
    // One that resumes is sent it again: there is no note of when it changed.
    let resumed = hub.watch_subscribed();
    resumed.resume(vec![address, port], Revision(4)).unwrap();
    assert_eq!(taken(&resumed).len(), 2);
}

#[tokio::test]
async fn a_route_of_a_service_reaches_those_that_follow_its_ports() {
    let hub = hub();
    put_service(&hub, "stock", [10, 96, 0, 7], 1);
    put_workload(&hub, "stock", 50_002, 2);
    let home = name("web");
    let watcher = hub.watch_of(home.clone(), label("a"));
    let port = ServiceName::of_port(&label("stock"), 80, &home.namespace, &home.network);
    watcher.subscribe(vec![port]).unwrap();
    routes(&watcher);
    assert!(wakes(&watcher).await);
    put_route(&hub, "default/split", "stock", 3);
    assert!(wakes(&watcher).await);
    assert_eq!(routes(&watcher), ["stock:80.default.west: default/split"]);
    let scope = RouteScope { service: name("stock"), callers: None };
    let scopes = BTreeSet::from([ObjectScope::Route(scope)]);
    let lagging = hub.applied(&scopes, 3, Duration::ZERO).await;
    assert_eq!(lagging.0, 1, "it is waited for");
    watcher.acknowledge(Revision(3));
    assert_eq!(hub.applied(&scopes, 3, Duration::ZERO).await, (1, Vec::new()));
    // One for the port alone takes its place there.
    put_route(&hub, "default/port", "stock:80", 4);
    assert!(wakes(&watcher).await);
    assert_eq!(routes(&watcher), ["stock:80.default.west: default/port"]);
    put_route(&hub, "default/other", "stock:90", 5);
    assert!(!wakes(&watcher).await);
    delete_route(&hub, "default/port", 6);
    assert!(wakes(&watcher).await);
    assert_eq!(routes(&watcher), ["stock:80.default.west: default/split"]);
}
