use std::net::SocketAddr;

use tollway_model::{Label, ObjectName, TrustDomain};
use tonic::Code;

use super::*;
use crate::catalogue::{Catalogue, Home};
use crate::options::RemoteCalls;

fn catalogue() -> Catalogue {
    let home = Home {
        network: Label::new("west").unwrap(),
        trust_domain: TrustDomain::new("west.tollway").unwrap(),
        root: Vec::new(),
        remote_calls: RemoteCalls::Direct,
        egress: tollway_model::EgressDefault::Open,
        listen: SocketAddr::from(([10, 0, 0, 1], 15010)),
        peer_addresses: Arc::from([]),
    };
    Catalogue::new(home, 0)
}

/// The route `shop/NAME` for a service, which redirects; `filler` makes it large.
fn route(name: &str, service: &str, created_unix_ms: u64, filler: usize) -> Object {
    let value = v1::HeaderValue { name: "x-filler".into(), value: "x".repeat(4000) };
    let edits = v1::HeaderEdits { add: vec![value; filler], ..v1::HeaderEdits::default() };
    let redirect = v1::Redirect { status: 302, ..v1::Redirect::default() };
    let rule = v1::RouteRule {
        action: Some(v1::route_rule::Action::Redirect(redirect)),
        response: Some(edits),
        ..v1::RouteRule::default()
    };
    let route = v1::Route {
        namespace: "shop".into(),
        name: name.into(),
        service: service.into(),
        rules: vec![rule],
        created_unix_ms,
    };
    tollway_wire::object(&v1::Object {
        object: Some(v1::object::Object::Route(route)),
        ..v1::Object::default()
    })
    .unwrap()
}

fn policy(name: &str) -> Object {
    let policy = v1::Policy {
        namespace: "shop".into(),
        name: name.into(),
        target: Some(v1::policy::Target::WholeNamespace(v1::WholeNamespace {})),
        has_allow: true,
        ..v1::Policy::default()
    };
    tollway_wire::object(&v1::Object {
        object: Some(v1::object::Object::Policy(policy)),
        ..v1::Object::default()
    })
    .unwrap()
}

fn store(catalogue: &mut Catalogue, object: &Object, revision: u64) {
    let value = v1::Object::from(object).encode_to_vec();
    catalogue.put(&Key::Object(object.id()), &value, revision).unwrap();
}

fn put(object: Object) -> (ObjectId, Wish) {
    (object.id(), Wish::Put(object))
}

fn delete(kind: ObjectKind, name: &str) -> (ObjectId, Wish) {
    (ObjectId { kind, name: ObjectName::new("shop", name).unwrap() }, Wish::Delete)
}

fn planned(catalogue: &Catalogue, wishes: &[(ObjectId, Wish)]) -> Result<Plan, Status> {
    plan(catalogue.objects(), &catalogue.home().network, wishes, ObjectOrigin::Unspecified)
}

fn outcomes(plan: &Plan) -> Vec<String> {
    plan.outcomes.iter().map(|(id, outcome)| format!("{id} {outcome:?}")).collect()
}

/// What the plan writes, read back.
fn written(plan: &Plan) -> Vec<Object> {
    let mut catalogue = catalogue();
    for op in &plan.transaction.ops {
        if let tollway_store::Op::Put { key, value, .. } = op {
            catalogue.put(&Key::parse(key).unwrap(), value, 1).unwrap();
        }
    }
    let of = |kind| catalogue.objects().of_kind(kind).map(|s| s.object.clone()).collect::<Vec<_>>();
    ObjectKind::ALL.into_iter().flat_map(of).collect()
}

#[test]
fn objects_of_several_kinds_change_together() {
    let mut present = catalogue();
    store(&mut present, &policy("old"), 3);
    store(&mut present, &route("same", "stock", 5, 0), 4);
    let wishes = [
        put(route("new", "stock", 9, 0)),
        put(policy("new")),
        put(route("same", "stock", 9, 0)),
        delete(ObjectKind::Policy, "old"),
        delete(ObjectKind::Route, "old"),
    ];
    let plan = planned(&present, &wishes).unwrap();
    assert_eq!(
        outcomes(&plan),
        [
            "route shop/new Created",
            "policy shop/new Created",
            "route shop/same Unchanged",
            "policy shop/old Deleted",
            "route shop/old Absent",
        ]
    );
    assert_eq!(plan.revision, 4);
    assert_eq!(written(&plan), [policy("new"), route("new", "stock", 9, 0)]);
    let scopes: Vec<_> = plan.scopes.iter().map(ToString::to_string).collect();
    assert_eq!(scopes, ["every service of the namespace shop", "every caller of stock.shop.west"]);
    let twice = [put(policy("a")), delete(ObjectKind::Policy, "A")];
    let refused = planned(&present, &twice).unwrap_err();
    assert_eq!(refused.message(), "the policy shop/A is given twice");
}

#[test]
fn a_changed_route_is_as_old_as_before() {
    let mut present = catalogue();
    store(&mut present, &route("r", "stock", 5, 0), 1);
    let plan = planned(&present, &[put(route("r", "orders", 9, 0))]).unwrap();
    assert_eq!(outcomes(&plan), ["route shop/r Changed"]);
    assert_eq!(written(&plan), [route("r", "orders", 5, 0)]);
    assert_eq!(plan.scopes.len(), 2, "callers of both services are concerned");
}

#[test]
fn what_cannot_be_read_is_replaced_or_removed() {
    let mut present = catalogue();
    let new = route("r", "stock", 9, 0);
    present.put_unreadable(&new.id(), 7);
    let plan = planned(&present, &[put(new.clone())]).unwrap();
    assert_eq!((outcomes(&plan), written(&plan)), (vec!["route shop/r Changed".into()], vec![new]));
    let plan = planned(&present, &[delete(ObjectKind::Route, "r")]).unwrap();
    assert_eq!(
        (outcomes(&plan), plan.transaction.ops.len()),
        (vec!["route shop/r Deleted".into()], 1)
    );
}

#[test]
fn the_objects_of_one_scope_have_a_limit() {
    let mut present = catalogue();
    let large = |n: usize| route(&format!("r{n}"), "stock", 1, 15);
    let fitting = OBJECT_BYTES_PER_SCOPE_LIMIT / v1::Object::from(&large(0)).encoded_len();
    for n in 0..fitting {
        store(&mut present, &large(n), 1);
    }
    let refused = planned(&present, &[put(large(fitting))]).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let start = "the routes for every caller of stock.shop.west would have ";
    assert!(refused.message().starts_with(start), "{}", refused.message());
    // What goes in the same change makes space, and so does what is for another service.
    let swapped = [put(large(fitting)), delete(ObjectKind::Route, "r0")];
    assert!(planned(&present, &swapped).is_ok());
    let moved = [put(large(fitting)), put(route("r0", "orders", 1, 15))];
    assert!(planned(&present, &moved).is_ok());
    assert!(planned(&present, &[put(route("x", "orders", 1, 15))]).is_ok());
    assert!(planned(&present, &[put(policy("p"))]).is_ok());
}

#[test]
fn custom_resources_of_one_namespace_have_a_share() {
    let mut present = catalogue();
    let of_cluster = |object: &Object| v1::Object {
        origin: ObjectOrigin::Cluster.into(),
        ..v1::Object::from(object)
    };
    for n in 0..RESOURCES_PER_NAMESPACE_LIMIT {
        let object = policy(&format!("p{n}"));
        let value = of_cluster(&object).encode_to_vec();
        present.put(&Key::Object(object.id()), &value, 1).unwrap();
    }
    let put_by = |origin, name: &str| {
        let home = &present.home().network;
        plan(present.objects(), home, &[put(policy(name))], origin)
    };
    let refused = put_by(ObjectOrigin::Cluster, "one-more").unwrap_err();
    assert_eq!(refused.message(), "a namespace has at most 1000 policies as custom resources");
    assert!(put_by(ObjectOrigin::Cluster, "p1").is_ok(), "one that is there may change");
    assert!(
        put_by(ObjectOrigin::Unspecified, "one-more").is_ok(),
        "the operator is not bound by it"
    );
    let elsewhere = v1::Policy {
        namespace: "bank".into(),
        name: "p".into(),
        target: Some(v1::policy::Target::WholeNamespace(v1::WholeNamespace {})),
        has_allow: true,
        ..v1::Policy::default()
    };
    let elsewhere =
        v1::Object { object: Some(v1::object::Object::Policy(elsewhere)), ..v1::Object::default() };
    let elsewhere = put(tollway_wire::object(&elsewhere).unwrap());
    let home = &present.home().network;
    assert!(plan(present.objects(), home, &[elsewhere], ObjectOrigin::Cluster).is_ok());
}
