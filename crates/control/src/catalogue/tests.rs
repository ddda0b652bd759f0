use tollway_model::{Object, ObjectKind, ObjectName, PolicyScope, RouteScope, ServiceState};
use tollway_wire::NetworkState;

use super::*;

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn name(text: &str) -> ServiceName {
    ServiceName::parse_in(text, &label("default"), &label("west")).unwrap()
}

fn home(remote_calls: RemoteCalls) -> Home {
    Home {
        network: label("west"),
        trust_domain: TrustDomain::new("west.tollway").unwrap(),
        root: b"west root".to_vec(),
        remote_calls,
        egress: EgressDefault::Open,
        listen: SocketAddr::from(([10, 0, 0, 1], 15010)),
        peer_addresses: Arc::from([]),
    }
}

/// The gateway of east.
const EAST: &str = "198.51.100.1:15443";

/// A catalogue with a script: each step is one revision.
struct Script {
    catalogue: Catalogue,
    revision: u64,
}

impl Script {
    fn new(remote_calls: RemoteCalls) -> Self {
        Self { catalogue: Catalogue::new(home(remote_calls), 0), revision: 0 }
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Vec<Subject> {
        self.revision += 1;
        let subjects = self.catalogue.put(key, value, self.revision).unwrap();
        self.catalogue.advance(self.revision);
        subjects
    }

    fn delete(&mut self, key: &Key) -> Vec<Subject> {
        self.revision += 1;
        let subjects = self.catalogue.delete(key, self.revision);
        self.catalogue.advance(self.revision);
        subjects
    }

    fn workload(&mut self, app: &str, instance: &str, port: u16, ready: bool) {
        self.workload_speaking(app, instance, port, ready, AppProtocol::Http);
    }

    fn workload_speaking(
        &mut self,
        app: &str,
        instance: &str,
        port: u16,
        ready: bool,
        protocol: impl Into<Option<AppProtocol>>,
    ) {
        let workload = Workload {
            service: name(app),
            instance: label(instance),
            address: SocketAddr::from(([10, 0, 0, 1], port)),
            protocol: protocol.into(),
            ready,
            locality: Locality::default(),
        };
        self.put(&workload_key(app, instance), &v1::Workload::from(&workload).encode_to_vec());
    }

    fn gateway(&mut self, instance: &str, port: u16) {
        let gateway = v1::Gateway {
            instance: instance.to_owned(),
            outside: vec![SocketAddr::from(([192, 0, 2, 1], port)).into()],
            inside: vec![SocketAddr::from(([10, 0, 0, 9], port)).into()],
            reaches: Vec::new(),
        };
        self.put(&Key::Gateway { instance: label(instance) }, &gateway.encode_to_vec());
    }

    /// A gateway that holds reverse connections of these networks.
    fn gateway_that_reaches(&mut self, instance: &str, port: u16, reaches: &[&str]) {
        let gateway = v1::Gateway {
            instance: instance.to_owned(),
            outside: Vec::new(),
            inside: vec![SocketAddr::from(([10, 0, 0, 9], port)).into()],
            reaches: reaches.iter().map(|network| (*network).to_owned()).collect(),
        };
        self.put(&Key::Gateway { instance: label(instance) }, &gateway.encode_to_vec());
    }

    fn join_east(&mut self) {
        let trust = PinnedTrust {
            network: label("east"),
            trust_domain: TrustDomain::new("east.tollway").unwrap(),
            roots: vec![b"east root".to_vec()],
            joined_at_unix_s: 0,
            pending: false,
            follow_gateways: false,
            bundle_gateways: vec![EAST.parse().unwrap()],
            is_accepted: false,
            revoked: Vec::new(),
        };
        self.put(&Key::PeerTrust { network: label("east") }, &trust.write());
        let gateways = v1::Gateways { addresses: vec![EAST.parse::<SocketAddr>().unwrap().into()] };
        self.put(&Key::PeerGateways { network: label("east") }, &gateways.encode_to_vec());
    }

    fn east_reachable(&mut self, reachable: bool) {
        let link = stored::PeerLink { reachable, ..Default::default() };
        self.put(&Key::PeerLink { network: label("east") }, &link.encode_to_vec());
    }

    fn east_service(&mut self, app: &str, ready_replicas: u32) {
        let aggregate = v1::Aggregate {
            app: app.to_owned(),
            namespace: "default".to_owned(),
            ready_replicas,
            protocol: v1::AppProtocol::Grpc.into(),
            ..v1::Aggregate::default()
        };
        self.put(&east_service_key(app), &aggregate.encode_to_vec());
    }

    #[track_caller]
    fn check(&self, service: &str, expected: &str) {
        assert_eq!(print(&self.catalogue.state(&name(service))), expected);
    }

    fn changed(&self, after: u64) -> Vec<String> {
        let print = |subject: &Subject| match subject {
            Subject::Service(name) => name.to_string(),
            Subject::Network(network) => format!("network {network}"),
            Subject::Gateways => "gateways".to_owned(),
            Subject::Trust => "trust".to_owned(),
            Subject::Objects(scope) => format!("{} for {scope}", scope.kind().plural()),
            Subject::ClusterService(_)
            | Subject::Address(_)
            | Subject::Ports(_)
            | Subject::Cluster => {
                unreachable!("there is no note of it")
            }
        };
        let mut changed: Vec<_> = self.catalogue.changes_after(after).map(print).collect();
        changed.sort();
        changed
    }
}

fn workload_key(app: &str, instance: &str) -> Key {
    let name = name(app);
    Key::Workload { namespace: name.namespace, app: name.app, instance: label(instance) }
}

fn east_service_key(app: &str) -> Key {
    Key::PeerService { network: label("east"), namespace: label("default"), app: label(app) }
}

fn print(state: &ServiceState) -> String {
    match state {
        ServiceState::Local { endpoints, unready: _, protocol, trust_domain } => {
            let endpoints: Vec<_> =
                endpoints.iter().map(|e| format!("{}={}", e.instance, e.address)).collect();
            format!("local {} {protocol} {trust_domain}", endpoints.join(","))
        }
        ServiceState::Remote { remote, protocol, trust_domain } => {
            let listed = |addresses: &[SocketAddr]| {
                addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
            };
            let beyond = match &*remote.beyond {
                [] => String::new(),
                beyond => format!(" then {}", listed(beyond)),
            };
            format!(
                "remote {}x{} via {}{beyond} {protocol} {trust_domain}",
                remote.network,
                remote.ready_replicas,
                listed(&remote.gateways)
            )
        }
        ServiceState::Failover { rules, registered } => {
            let networks = rules.networks.iter().zip(&**registered);
            let networks: Vec<_> =
                networks.map(|(of, count)| format!("{} x{count}", of.network)).collect();
            format!("any of {}", networks.join(","))
        }
        ServiceState::AddressOf(name) => format!("address of {name}"),
        ServiceState::Unavailable(reason) => format!("{reason:?}"),
    }
}

#[test]
fn only_ready_workloads_are_endpoints() {
    let mut script = Script::new(RemoteCalls::Direct);
    script.check("stock", "UnknownService");
    script.workload("stock", "a", 1, false);
    script.check("stock", "NoReadyEndpoint");
    script.workload("stock", "a", 1, true);
    script.workload("Stock", "b", 2, true);
    script.workload("stock", "c", 3, false);
    script.check("stock", "local a=10.0.0.1:1,b=10.0.0.1:2 http west.tollway");
    script.delete(&workload_key("stock", "a"));
    script.check("stock.default.WEST", "local b=10.0.0.1:2 http west.tollway");
    script.delete(&workload_key("stock", "b"));
    script.delete(&workload_key("stock", "c"));
    script.check("stock", "UnknownService");
}

/// A workload in a zone, which is not stated if it is empty.
fn put_at(script: &mut Script, instance: &str, port: u16, zone: &str, ready: bool) {
    let zone = (!zone.is_empty()).then(|| tollway_model::AreaName::new(zone).unwrap());
    let workload = Workload {
        service: name("stock"),
        instance: label(instance),
        address: SocketAddr::from(([10, 0, 0, 1], port)),
        protocol: Some(AppProtocol::Http),
        ready,
        locality: Locality { region: None, zone },
    };
    let stored = v1::Workload::from(&workload).encode_to_vec();
    script.put(&workload_key("stock", instance), &stored);
}

#[test]
fn callers_learn_where_replicas_are_and_how_many_are_not_ready_there() {
    let mut script = Script::new(RemoteCalls::Direct);
    let shown = |script: &Script| {
        let state = script.catalogue.state(&name("stock"));
        let ServiceState::Local { endpoints, unready, .. } = state else { panic!("{state:?}") };
        let zone = |of: &Locality| of.zone.as_ref().map_or("-".to_owned(), ToString::to_string);
        let ready: Vec<_> = endpoints.iter().map(|of| zone(&of.locality)).collect();
        let away: Vec<_> =
            unready.iter().map(|of| format!("{}x{}", zone(&of.locality), of.replicas)).collect();
        format!("{} unready {}", ready.join(","), away.join(","))
    };
    script.workload("stock", "a", 1, true);
    script.workload("stock", "b", 2, false);
    // Nothing is counted where no workload states where it is.
    assert_eq!(shown(&script), "- unready ");
    assert!(script.catalogue.localities(&name("stock")).is_empty());
    put_at(&mut script, "c", 3, "z1", true);
    put_at(&mut script, "d", 4, "z2", false);
    put_at(&mut script, "e", 5, "z2", false);
    put_at(&mut script, "f", 6, "z2", true);
    assert_eq!(shown(&script), "-,z1,z2 unready -x1,z2x2");
    let counts = script.catalogue.localities(&name("stock"));
    let counts: Vec<_> = counts.into_iter().map(|(_, ready, all)| (ready, all)).collect();
    assert_eq!(counts, [(1, 2), (1, 1), (1, 3)]);
}

#[test]
fn services_of_one_name_in_two_namespaces_are_two() {
    let mut script = Script::new(RemoteCalls::Direct);
    script.workload("stock", "a", 1, true);
    script.workload("stock.shop", "a", 2, true);
    script.check("stock", "local a=10.0.0.1:1 http west.tollway");
    script.check("stock.shop", "local a=10.0.0.1:2 http west.tollway");
}

#[test]
fn most_workloads_decide_the_protocol_and_ties_are_settled_alike() {
    let mut script = Script::new(RemoteCalls::Direct);
    script.workload_speaking("stock", "a", 1, true, AppProtocol::Grpc);
    script.workload_speaking("stock", "b", 2, true, AppProtocol::H2c);
    script.check("stock", "local a=10.0.0.1:1,b=10.0.0.1:2 h2c west.tollway");
    script.workload_speaking("stock", "c", 3, false, AppProtocol::Grpc);
    script.check("stock", "local a=10.0.0.1:1,b=10.0.0.1:2 grpc west.tollway");
}

/// The harm: calls by the name of an app go to a sidecar whose app has no port for them.
#[test]
fn a_workload_without_a_port_of_its_own_is_not_called_by_its_name() {
    let mut script = Script::new(RemoteCalls::Direct);
    script.workload_speaking("stock", "a", 1, true, None);
    script.check("stock", "UnknownService");
    assert!(script.catalogue.aggregate(&name("stock")).removed, "nor by other networks");
    script.workload_speaking("stock", "b", 2, false, None);
    script.workload_speaking("stock", "c", 3, false, AppProtocol::Grpc);
    script.check("stock", "NoReadyEndpoint");
    script.workload_speaking("stock", "c", 3, true, AppProtocol::Grpc);
    script.check("stock", "local c=10.0.0.1:3 grpc west.tollway");
    let aggregate = script.catalogue.aggregate(&name("stock"));
    assert_eq!((aggregate.ready_replicas, aggregate.registered_replicas), (1, 1));
}

#[test]
fn another_network_is_its_gateways_and_a_number() {
    let mut script = Script::new(RemoteCalls::Direct);
    script.check("stock.default.east", "UnknownNetwork");
    script.join_east();
    script.check("stock.default.east", "UnreachableNetwork");
    script.east_reachable(true);
    script.check("stock.default.east", "UnknownService");
    script.east_service("stock", 0);
    script.check("stock.default.east", "NoReadyEndpoint");
    script.east_service("stock", 3);
    script.check("stock.default.east", "remote eastx3 via 198.51.100.1:15443 grpc east.tollway");
    script.east_reachable(false);
    script.check("stock.default.east", "UnreachableNetwork");
    script.east_reachable(true);
    script.delete(&east_service_key("stock"));
    script.check("stock.default.east", "UnknownService");
    script.delete(&Key::PeerTrust { network: label("east") });
    script.check("stock.default.east", "UnknownNetwork");
}

#[test]
fn a_network_being_joined_is_not_served_yet() {
    let mut script = Script::new(RemoteCalls::Direct);
    script.join_east();
    script.east_reachable(true);
    script.east_service("stock", 1);
    let mut trust = script.catalogue.find_peer(&label("east")).unwrap().trust().unwrap().clone();
    trust.pending = true;
    script.put(&Key::PeerTrust { network: label("east") }, &trust.write());
    script.check("stock.default.east", "UnknownNetwork");
    assert_eq!(script.catalogue.trust().bundles.len(), 1);
    assert!(script.catalogue.joined_by_trust_domain(&trust.trust_domain).is_none());
    let reported = script.catalogue.network_update(&label("east"));
    assert!(matches!(reported.state, NetworkState::Joined { .. }), "gateways must know the way");
}

#[test]
fn a_network_that_only_dials_out_is_behind_the_own_gateways_that_it_has_reached() {
    for calls in [RemoteCalls::Direct, RemoteCalls::Gateway] {
        let mut script = Script::new(calls);
        script.join_east();
        let east = script.catalogue.find_peer(&label("east")).unwrap().trust().unwrap().clone();
        let dials_out = PinnedTrust { bundle_gateways: Vec::new(), ..east };
        script.put(&Key::PeerTrust { network: label("east") }, &dials_out.write());
        let none = v1::Gateways { addresses: Vec::new() };
        script.put(&Key::PeerGateways { network: label("east") }, &none.encode_to_vec());
        script.east_reachable(true);
        script.east_service("stock", 2);
        script.gateway("a", 1);
        script.check("stock.default.east", "UnreachableNetwork");
        let before = script.revision;
        script.gateway_that_reaches("b", 2, &["south", "East"]);
        script.gateway_that_reaches("c", 3, &["south"]);
        script.check("stock.default.east", "remote eastx2 via 10.0.0.9:2 grpc east.tollway");
        let stock = name("stock.default.east");
        assert!(script.catalogue.changed_after(&stock, None, before));
        assert_eq!(script.catalogue.outside_gateways().count(), 1);
        let update = script.catalogue.network_update(&label("east")).state;
        let NetworkState::Joined { dials_out, reverse_to, .. } = update else { panic!() };
        assert!(dials_out && reverse_to.is_empty());
        script.gateway_that_reaches("b", 2, &[]);
        script.check("stock.default.east", "UnreachableNetwork");
        // One that can be dialled is, whichever gateway claims to hold reverse connections of it.
        script.put(
            &Key::PeerTrust { network: label("east") },
            &PinnedTrust {
                bundle_gateways: vec![EAST.parse().unwrap()],
                ..script.catalogue.find_peer(&label("east")).unwrap().trust().unwrap().clone()
            }
            .write(),
        );
        let found = v1::Gateways { addresses: vec![EAST.parse::<SocketAddr>().unwrap().into()] };
        script.put(&Key::PeerGateways { network: label("east") }, &found.encode_to_vec());
        let update = script.catalogue.network_update(&label("east")).state;
        let NetworkState::Joined { dials_out, reverse_to, .. } = update else { panic!() };
        assert_eq!((dials_out, &*reverse_to), (false, &[EAST.parse().unwrap()][..]));
    }
}

#[test]
fn remote_calls_by_gateway_go_through_the_own_gateways() {
    let mut script = Script::new(RemoteCalls::Gateway);
    script.join_east();
    script.east_reachable(true);
    script.east_service("stock", 2);
    script.check("stock.default.east", "UnreachableNetwork");
    let before = script.revision;
    script.gateway("g", 15443);
    let both = "remote eastx2 via 10.0.0.9:15443 then 198.51.100.1:15443 grpc east.tollway";
    script.check("stock.default.east", both);
    assert!(script.catalogue.changed_after(&name("stock.default.east"), None, before));
    assert!(!script.catalogue.changed_after(&name("stock"), None, before));
    // A follower whose connections lead through a gateway that has gone is notified.
    let before = script.revision;
    let none = v1::Gateways { addresses: Vec::new() };
    script.put(&Key::PeerGateways { network: label("east") }, &none.encode_to_vec());
    script.check("stock.default.east", "remote eastx2 via 10.0.0.9:15443 grpc east.tollway");
    assert!(script.catalogue.changed_after(&name("stock.default.east"), None, before));
}

#[test]
fn a_change_of_a_network_changes_its_services() {
    let mut script = Script::new(RemoteCalls::Direct);
    script.workload("stock", "a", 1, true);
    script.join_east();
    script.east_service("stock", 2);
    let before = script.revision;
    script.east_reachable(true);
    assert!(script.catalogue.changed_after(&name("stock.default.east"), None, before));
    assert!(!script.catalogue.changed_after(&name("stock"), None, before));
    assert_eq!(script.changed(before), ["network east"]);
}

#[test]
fn what_was_removed_is_among_the_changes() {
    let mut script = Script::new(RemoteCalls::Direct);
    script.workload("stock", "a", 1, true);
    script.workload("orders", "a", 2, true);
    let before = script.revision;
    script.delete(&workload_key("stock", "a"));
    assert_eq!(script.changed(before), ["stock.default.west"]);
    assert!(script.catalogue.changed_after(&name("stock"), None, before));
    assert!(script.catalogue.aggregate(&name("stock")).removed);
    assert_eq!(script.delete(&workload_key("stock", "a")), [], "it is gone already");
}

#[test]
fn a_revision_from_another_store_cannot_be_resumed() {
    let mut script = Script::new(RemoteCalls::Direct);
    script.workload("stock", "a", 1, true);
    assert!(script.catalogue.reaches_back_to(0));
    assert!(script.catalogue.reaches_back_to(1));
    assert!(!script.catalogue.reaches_back_to(2));
    let after_restart = Catalogue::new(home(RemoteCalls::Direct), 7);
    assert!(!after_restart.reaches_back_to(6));
    assert!(after_restart.changed_after(&name("stock"), None, 6));
    assert!(after_restart.reaches_back_to(7));
}

#[test]
fn replacing_the_catalogue_reports_only_what_differs() {
    let mut script = Script::new(RemoteCalls::Direct);
    script.workload("stock", "a", 1, true);
    script.workload("orders", "a", 2, true);
    script.gateway("g", 15443);
    script.join_east();
    script.east_service("stock", 1);
    script.east_service("gone", 1);
    let mut newer = Script::new(RemoteCalls::Direct);
    newer.workload("stock", "a", 1, true);
    newer.workload("orders", "a", 3, true);
    newer.workload("new", "a", 4, true);
    newer.gateway("g", 15443);
    newer.join_east();
    newer.east_service("stock", 1);
    newer.catalogue.advance(100);
    let before = script.revision;
    let different = script.catalogue.replace(newer.catalogue);
    assert_eq!(different.len(), 3);
    assert_eq!(
        script.changed(before),
        ["gone.default.east", "new.default.west", "orders.default.west"]
    );
    assert_eq!(script.catalogue.revision(), Revision(100));
    script.check("orders", "local a=10.0.0.1:3 http west.tollway");
}

#[test]
fn aggregates_hold_numbers_and_no_addresses() {
    let mut script = Script::new(RemoteCalls::Direct);
    script.workload("stock", "a", 1, true);
    script.workload("stock", "b", 2, true);
    script.workload("stock", "c", 3, false);
    let aggregate = script.catalogue.aggregate(&name("stock"));
    assert_eq!((aggregate.ready_replicas, aggregate.removed), (2, false));
    assert_eq!((aggregate.app.as_str(), aggregate.namespace.as_str()), ("stock", "default"));
}

#[test]
fn trust_holds_the_own_network_and_the_joined_ones() {
    let mut script = Script::new(RemoteCalls::Direct);
    script.join_east();
    assert_eq!(script.put(&Key::Trust, b""), [Subject::Trust]);
    let trust = script.catalogue.trust();
    let domains: Vec<_> = trust.bundles.iter().map(|b| b.trust_domain.as_str()).collect();
    assert_eq!(domains, ["west.tollway", "east.tollway"]);
    assert_eq!(trust.revision, script.revision);
}

fn policy(target: v1::policy::Target) -> Vec<u8> {
    let policy = v1::Policy {
        namespace: "shop".into(),
        name: "p".into(),
        target: Some(target),
        has_allow: true,
        ..v1::Policy::default()
    };
    v1::Object { object: Some(v1::object::Object::Policy(policy)), ..v1::Object::default() }
        .encode_to_vec()
}

fn object_key(kind: ObjectKind, namespace: &str) -> Key {
    Key::Object(ObjectId { kind, name: ObjectName::new(namespace, "p").unwrap() })
}

fn policies_for(scope: PolicyScope) -> Subject {
    Subject::Objects(ObjectScope::Policy(scope))
}

#[test]
fn a_policy_protects_its_target_until_it_is_replaced_or_deleted() {
    let mut script = Script::new(RemoteCalls::Direct);
    let key = object_key(ObjectKind::Policy, "shop");
    let protects = |catalogue: &Catalogue, service: &str| {
        !catalogue.objects().policies_of(&name(service)).is_empty()
    };
    let stock = policy(v1::policy::Target::App("stock".into()));
    let for_stock = policies_for(PolicyScope::App(label("shop"), label("stock")));
    let for_shop = policies_for(PolicyScope::Namespace(label("shop")));
    assert_eq!(script.put(&key, &stock), std::slice::from_ref(&for_stock));
    assert!(protects(&script.catalogue, "stock.shop"));
    assert!(!protects(&script.catalogue, "orders.shop"));
    let all = policy(v1::policy::Target::WholeNamespace(v1::WholeNamespace {}));
    assert_eq!(script.put(&key, &all), [for_stock, for_shop.clone()]);
    assert!(protects(&script.catalogue, "orders.shop"));
    assert!(!protects(&script.catalogue, "stock.default"));
    let newer = Catalogue::new(home(RemoteCalls::Direct), 9);
    assert_eq!(script.catalogue.replace(newer), std::slice::from_ref(&for_shop));
    assert!(!protects(&script.catalogue, "orders.shop"));
    script.put(&key, &all);
    assert_eq!(script.delete(&key), [for_shop]);
    assert_eq!(script.delete(&key), []);
    assert!(!protects(&script.catalogue, "orders.shop"));
}

#[test]
fn a_policy_that_cannot_be_read_closes_its_namespace() {
    let mut catalogue = Catalogue::new(home(RemoteCalls::Direct), 0);
    let key = object_key(ObjectKind::Policy, "shop");
    assert!(catalogue.put(&key, b"\xff", 1).is_err());
    let Key::Object(id) = key else { unreachable!() };
    let for_shop = policies_for(PolicyScope::Namespace(label("shop")));
    assert_eq!(catalogue.put_unreadable(&id, 1), [for_shop]);
    let closed = catalogue.objects().policies_of(&name("orders.shop"));
    let Object::Policy(policy) = &closed[0].object else { unreachable!() };
    assert_eq!(policy.allow, Some(Vec::new()));
    assert!(catalogue.objects().policies_of(&name("orders.default")).is_empty());
    let name_of = ObjectName::new("tollway", "p").unwrap();
    catalogue.put_unreadable(&ObjectId { kind: ObjectKind::Policy, name: name_of }, 2);
    assert_eq!(catalogue.objects().policies_of(&name("orders.default")).len(), 1);
}

#[test]
fn a_route_that_cannot_be_read_has_no_effect_and_can_be_replaced() {
    let mut script = Script::new(RemoteCalls::Direct);
    let key = object_key(ObjectKind::Route, "shop");
    let Key::Object(id) = key.clone() else { unreachable!() };
    let redirect = v1::Redirect { status: 302, ..v1::Redirect::default() };
    let rule = v1::RouteRule {
        action: Some(v1::route_rule::Action::Redirect(redirect)),
        ..v1::RouteRule::default()
    };
    let route = v1::Route {
        namespace: "shop".into(),
        name: "p".into(),
        service: "stock".into(),
        rules: vec![rule],
        created_unix_ms: 0,
    };
    let stored =
        v1::Object { object: Some(v1::object::Object::Route(route)), ..v1::Object::default() }
            .encode_to_vec();
    let scope = RouteScope { service: name("stock.shop"), callers: None };
    let changed = [Subject::Objects(ObjectScope::Route(scope))];
    let routes = |catalogue: &Catalogue| {
        catalogue.objects().routes_of(&name("stock.shop"), &label("x")).len()
    };
    assert_eq!(script.put(&key, &stored), changed);
    assert_eq!(routes(&script.catalogue), 1);
    assert_eq!(script.catalogue.put_unreadable(&id, 2), changed);
    assert_eq!(routes(&script.catalogue), 0);
    assert_eq!(script.catalogue.objects().revision(&id), Some(2), "it is there still");
    assert_eq!(script.put(&key, &stored), changed);
    assert_eq!(script.catalogue.objects().revision(&id), Some(2));
    assert_eq!(routes(&script.catalogue), 1);
    assert_eq!(script.delete(&key), changed);
    assert_eq!(script.catalogue.objects().revision(&id), None);
}

#[test]
fn a_bad_record_changes_nothing() {
    let mut script = Script::new(RemoteCalls::Direct);
    let key = workload_key("stock", "a");
    assert!(script.catalogue.put(&key, b"\xff\xff", 1).is_err());
    assert!(script.catalogue.put(&key, b"", 1).is_err());
    script.check("stock", "UnknownService");
    assert_eq!(script.changed(0), [""; 0]);
}

fn failover(namespace: &str, networks: &[&str]) -> Vec<u8> {
    let network =
        |network: &&str| v1::FailoverNetwork { network: (*network).into(), priority: 0, weight: 1 };
    let rules = v1::FailoverRules {
        networks: networks.iter().map(network).collect(),
        threshold: 70,
        spill_over: None,
    };
    let failover = v1::Failover {
        namespace: namespace.into(),
        name: "p".into(),
        target: Some(v1::failover::Target::App("stock".into())),
        rules: Some(rules),
    };
    v1::Object { object: Some(v1::object::Object::Failover(failover)), ..v1::Object::default() }
        .encode_to_vec()
}

#[test]
fn a_joined_network_serves_in_any_only_where_it_is_named() {
    const ANY: &str = "stock.default.any";
    let mut script = Script::new(RemoteCalls::Direct);
    script.join_east();
    script.east_reachable(true);
    script.east_service("stock", 1000);
    script.workload("stock", "a", 1, true);
    script.check(ANY, "NoFailover");
    let key = object_key(ObjectKind::Failover, "default");
    script.put(&key, &failover("default", &["west"]));
    script.check(ANY, "any of west x1");
    script.check("orders.default.any", "NoFailover");
    script.check("stock.shop.any", "NoFailover");
    script.put(&key, &failover("default", &["west", "east"]));
    script.check(ANY, "any of west x1,east x1000");
    // Of a network that is not joined any more nothing counts.
    script.delete(&Key::PeerTrust { network: label("east") });
    script.check(ANY, "any of west x1,east x0");
    script.delete(&key);
    script.check(ANY, "NoFailover");
}

#[test]
fn who_resumes_gets_what_changed_of_a_service_in_any_network() {
    let any = name("stock.default.any");
    let mut script = Script::new(RemoteCalls::Direct);
    let key = object_key(ObjectKind::Failover, "default");
    script.put(&key, &failover("default", &["west", "east"]));
    let changed = |script: &Script, after: u64| {
        script.catalogue.changed_after(&any, Some(&label("default")), after)
    };
    assert!(changed(&script, 0) && !changed(&script, script.revision));
    let steps: [fn(&mut Script); 4] = [
        |script| script.workload("stock", "a", 1, true),
        Script::join_east,
        |script| script.east_service("stock", 3),
        |script| drop(script.delete(&object_key(ObjectKind::Failover, "default"))),
    ];
    for step in steps {
        let before = script.revision;
        step(&mut script);
        assert!(changed(&script, before));
    }
    let before = script.revision;
    script.workload("orders", "a", 1, true);
    script.east_service("orders", 3);
    assert!(!changed(&script, before));
}
