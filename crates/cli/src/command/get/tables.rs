//! Objects as tables. Pure.

use tollway_identity::span;
use tollway_model::traffic_policy::TrafficParts;
use tollway_model::{
    Egress, Failover, NetworkName, Object, ObjectKind, Policy, PolicyScope, Route, TrafficPolicy,
};

use crate::command::moment::Moment;
use crate::command::table::{Column, Side, table};

const POLICIES: [Column; 5] = [
    ("POLICY", Side::Left),
    ("PROTECTS", Side::Left),
    ("ALLOW", Side::Right),
    ("DENY", Side::Right),
    ("MODE", Side::Left),
];

const ROUTES: [Column; 5] = [
    ("ROUTE", Side::Left),
    ("SERVICE", Side::Left),
    ("CALLERS", Side::Left),
    ("RULES", Side::Right),
    ("AGE", Side::Right),
];

const TRAFFIC_POLICIES: [Column; 4] = [
    ("TRAFFIC POLICY", Side::Left),
    ("SERVICES", Side::Left),
    ("PARTS", Side::Left),
    ("MODE", Side::Left),
];

const EGRESS: [Column; 4] =
    [("EGRESS", Side::Left), ("APPS", Side::Left), ("HOSTS", Side::Right), ("MODE", Side::Left)];

const FAILOVERS: [Column; 5] = [
    ("FAILOVER", Side::Left),
    ("SERVICES", Side::Left),
    ("NETWORKS", Side::Left),
    ("THRESHOLD", Side::Right),
    ("SPILL", Side::Right),
];

/// The table of the objects of one kind, in `network`.
pub(super) fn of_objects(
    kind: ObjectKind,
    objects: &[Object],
    network: &NetworkName,
    now_unix_ms: u64,
) -> String {
    let row = |object: &Object| match object {
        Object::Policy(policy) => policy_row(policy),
        Object::Route(route) => route_row(route, network, now_unix_ms),
        Object::TrafficPolicy(policy) => traffic_row(policy),
        Object::Failover(failover) => failover_row(failover),
        Object::Egress(egress) => egress_row(egress),
    };
    let columns: &[Column] = match kind {
        ObjectKind::Policy => &POLICIES,
        ObjectKind::Route => &ROUTES,
        ObjectKind::TrafficPolicy => &TRAFFIC_POLICIES,
        ObjectKind::Failover => &FAILOVERS,
        ObjectKind::Egress => &EGRESS,
    };
    table(columns, objects.iter().map(row).collect())
}

/// What it protects, and how many rules it has; `-` where it has no such list.
fn policy_row(policy: &Policy) -> Vec<String> {
    let protects = services(policy.scope());
    let count = |count: usize| count.to_string();
    let allow = policy.allow.as_ref().map_or("-".to_owned(), |rules| count(rules.len()));
    let deny = if policy.deny.is_empty() { "-".to_owned() } else { count(policy.deny.len()) };
    vec![policy.name.to_string(), protects, allow, deny, policy.mode.to_string()]
}

/// The services of a scope, as a pattern.
fn services(scope: PolicyScope) -> String {
    match scope {
        PolicyScope::Network => "*.*".to_owned(),
        PolicyScope::Namespace(namespace) => format!("*.{namespace}"),
        PolicyScope::App(namespace, app) => format!("{app}.{namespace}"),
    }
}

/// Which services it is about, and which parts it has.
fn traffic_row(policy: &TrafficPolicy) -> Vec<String> {
    let TrafficParts {
        balancing,
        locality,
        slow_start,
        outlier,
        panic_percent,
        faults,
        rate,
        concurrency_per_caller,
        shedding,
        shadow: _,
    } = &policy.parts;
    let parts = [
        (balancing.is_some(), "balancing"),
        (locality.is_some(), "locality"),
        (slow_start.is_some(), "slowStart"),
        (outlier.is_some(), "outlier"),
        (panic_percent.is_some(), "panicPercent"),
        (!faults.is_empty(), "faults"),
        (rate.is_some(), "rate"),
        (concurrency_per_caller.is_some(), "concurrencyPerCaller"),
        (shedding.is_some(), "shedding"),
    ];
    let parts: Vec<&str> =
        parts.into_iter().filter_map(|(has, name)| has.then_some(name)).collect();
    let (name, services) = (policy.name.to_string(), services(policy.scope()));
    vec![name, services, parts.join(","), policy.mode.to_string()]
}

/// For which apps it is, and how many hosts it has.
fn egress_row(egress: &Egress) -> Vec<String> {
    let from: Vec<String> = egress.from.iter().map(ToString::to_string).collect();
    let apps = if from.is_empty() { services(egress.scope()) } else { from.join(",") };
    vec![egress.name.to_string(), apps, egress.hosts.len().to_string(), egress.mode.to_string()]
}

/// Which services it is about, and their networks: those of one priority with a comma between them, the
/// next priority behind `>`.
fn failover_row(failover: &Failover) -> Vec<String> {
    let mut networks: Vec<_> = failover.rules.networks.iter().collect();
    networks.sort_by_key(|of| of.priority);
    let levels = networks.chunk_by(|one, other| one.priority == other.priority).map(|level| {
        let is_weighted = level.iter().any(|of| of.weight != level[0].weight);
        let shown = level.iter().map(|of| match is_weighted {
            true => format!("{}:{}", of.network, of.weight),
            false => of.network.to_string(),
        });
        shown.collect::<Vec<_>>().join(",")
    });
    let networks = levels.collect::<Vec<_>>().join(" > ");
    let spill = failover.rules.spill_over.map_or("-".to_owned(), |each| each.to_string());
    let threshold = format!("{}%", failover.rules.threshold);
    let services = format!("{}.any", services(failover.scope()));
    vec![failover.name.to_string(), services, networks, threshold, spill]
}

/// Which calls it is for, and how many rules it has.
fn route_row(route: &Route, network: &NetworkName, now_unix_ms: u64) -> Vec<String> {
    let scope = route.scope(network);
    let mut service = format!("{}.{}", scope.service.app, scope.service.namespace);
    if scope.service.network != *network {
        service += &format!(".{}", scope.service.network);
    }
    let callers = scope.callers.map_or("*.*".to_owned(), |namespace| format!("*.{namespace}"));
    let age = match Moment::of(route.created_unix_ms, now_unix_ms) {
        Moment::Ago(age) => span(age),
        Moment::In(_) | Moment::Never => "-".to_owned(),
    };
    vec![route.name.to_string(), service, callers, route.rules.len().to_string(), age]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollway_config::manifest;
    use tollway_model::Label;

    use super::*;

    fn route(name: &str, service: &str, created_unix_ms: u64) -> Object {
        let text = format!(
            "{{apiVersion: tollway.dev/v1, kind: Route, metadata: {{name: {name}, namespace: shop}}, \
             spec: {{service: {service}, rules: [{{backends: [{{service: a}}]}}]}}}}"
        );
        match manifest::read(&text, "r.yaml").unwrap().remove(0) {
            Object::Route(route) => {
                Object::Route(Arc::new(Route { created_unix_ms, ..Route::clone(&route) }))
            }
            other @ (Object::Policy(_)
            | Object::TrafficPolicy(_)
            | Object::Failover(_)
            | Object::Egress(_)) => {
                panic!("{other:?}")
            }
        }
    }

    #[test]
    fn a_table_of_failover_has_networks_in_their_order() {
        let west = Label::new("west").unwrap();
        let objects = manifest::read(
            "{apiVersion: tollway.dev/v1, kind: Failover, metadata: {name: all, namespace: shop}, \
             spec: {service: \"*\", networks: [{network: west}]}}\n---\n\
             {apiVersion: tollway.dev/v1, kind: Failover, metadata: {name: stock, namespace: shop}, \
             spec: {service: stock, threshold: 50, spillOver: {requestsPerReplica: 9}, networks: \
             [{network: far, priority: 7}, {network: east, weight: 3}, {network: west}]}}\n",
            "f.yaml",
        )
        .unwrap();
        let shown = of_objects(ObjectKind::Failover, &objects, &west, 0);
        let expected = "\
FAILOVER    SERVICES        NETWORKS             THRESHOLD  SPILL
shop/all    *.shop.any      west                       70%      -
shop/stock  stock.shop.any  east:3,west:1 > far        50%      9
";
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_table_of_routes_has_their_services_and_callers() {
        let west = Label::new("west").unwrap();
        let routes = [
            route("a", "stock", 40_000),
            route("much-longer", "stock.warehouse", 100_000),
            route("far", "stock.shop.east", 0),
        ];
        let shown = of_objects(ObjectKind::Route, &routes, &west, 100_000);
        let expected = "\
ROUTE             SERVICE          CALLERS  RULES    AGE
shop/a            stock.shop       *.*          1  1 min
shop/much-longer  stock.warehouse  *.shop       1   0 ms
shop/far          stock.shop.east  *.shop       1      -
";
        assert_eq!(shown, expected);
        let none = of_objects(ObjectKind::Policy, &[], &west, 0);
        assert_eq!(none, "POLICY  PROTECTS  ALLOW  DENY  MODE\n");
    }
}
