//! Parts of a mesh, pods and machines that are killed under load: calls fail only where a hop was gone.
//!
//! One round each; `cargo xtask proof kubernetes` runs thirty and records them.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{
    Calls, Namespace, SOON, calls_during, deployment, east, join, kill_control, kill_server,
    need_rig, server, west,
};

/// How many rounds, and the file that receives a line of JSON for each.
const ROUNDS: &str = "TOLLWAY_CLUSTER_ROUNDS";
const RECORD: &str = "TOLLWAY_CLUSTER_RECORD";

/// Seconds of calls in a round.
const SECONDS: u32 = 12;

pub(crate) fn rounds() -> u32 {
    std::env::var(ROUNDS).map_or(1, |rounds| rounds.parse().unwrap())
}

/// Writes down what a round cost, and how long the part was away or a pod took.
pub(crate) fn record(part: &str, calls: &Calls, took: Option<Duration>) {
    let Calls { answered, failed, kinds } = calls;
    let seconds = took.map(|took| took.as_secs_f64());
    let row = json!({
        "part": part, "answered": answered, "failed": failed, "kinds": kinds, "seconds": seconds,
    });
    println!("{row}");
    if let Some(file) = std::env::var_os(RECORD) {
        let mut file = OpenOptions::new().create(true).append(true).open(file).unwrap();
        writeln!(file, "{row}").unwrap();
    }
}

/// Calls of `service` by a Job of the namespace; `trouble` begins when they flow.
fn under_calls(shop: &Namespace<'_>, service: &str, trouble: impl FnOnce()) -> Calls {
    calls_during(shop, |object| shop.apply(object), service, SECONDS, trouble)
}

/// `stock` with these replicas, on machines of their own as far as there are any.
fn stock(shop: &Namespace<'_>, replicas: u32) {
    let mut stock = deployment("stock", json!({"tollway.dev/port": "8080"}), server());
    stock["spec"]["replicas"] = json!(replicas);
    let spec = &mut stock["spec"]["template"]["spec"];
    spec["terminationGracePeriodSeconds"] = json!(20);
    spec["topologySpreadConstraints"] = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "stock"}},
    }]);
    shop.apply(&stock);
    shop.wait_rolled_out("stock");
}

fn one_pod(namespace: &Namespace<'_>, selector: &str) -> String {
    let name = "--output=jsonpath={.items[0].metadata.name}";
    let running = "--field-selector=status.phase=Running";
    namespace.kubectl(&["get", "pods", selector, running, name])
}

#[test]
fn a_control_plane_that_is_killed_costs_no_call() {
    let rig = need_rig!();
    let cluster = west(&rig);
    let shop = Namespace::restricted(cluster, "no-control");
    stock(&shop, 2);
    for _ in 0..rounds() {
        let calls = under_calls(&shop, "stock", kill_control);
        record("control plane", &calls, None);
        assert_eq!(calls.failed, 0, "{calls:?}");
        let ready = "--output=jsonpath={.status.containerStatuses[0].ready}";
        let pod = ["--namespace=tollway", "get", "pod/tollway-control-0", ready];
        cluster.wait_for(SOON, &pod, |ready| ready == "true").unwrap();
    }
}

/// One of two; pods that are made meanwhile get their sidecars.
#[test]
fn an_injector_that_is_killed_keeps_no_pod_waiting() {
    let rig = need_rig!();
    let cluster = west(&rig);
    let shop = Namespace::restricted(cluster, "no-injector");
    stock(&shop, 2);
    let injectors = "--selector=app.kubernetes.io/component=injector";
    let name = "--output=jsonpath={.items[0].metadata.name}";
    for _ in 0..rounds() {
        let mut took = None;
        let calls = under_calls(&shop, "stock", || {
            let pod = ["--namespace=tollway", "get", "pods", injectors, name];
            let pod = format!("pod/{}", cluster.kubectl(&pod).unwrap());
            let at_once = ["--force", "--grace-period=0"];
            let delete = ["--namespace=tollway", "delete", pod.as_str()];
            cluster.kubectl(&[&delete[..], &at_once].concat()).unwrap();
            let begun = Instant::now();
            shop.kubectl(&["scale", "deployment/stock", "--replicas=3"]);
            shop.wait_rolled_out("stock");
            took = Some(begun.elapsed());
        });
        record("injector", &calls, took);
        assert_eq!(calls.failed, 0, "{calls:?}");
        let names = "--output=jsonpath={.items[*].spec.initContainers[*].name}";
        let names = shop.kubectl(&["get", "pods", "--selector=app=stock", names]);
        assert_eq!(names, "tollway tollway tollway");
        shop.kubectl(&["scale", "deployment/stock", "--replicas=2"]);
        let ready = "--output=jsonpath={.status.readyReplicas}";
        let ready = ["--namespace=tollway", "get", "deployment/tollway-injector", ready];
        cluster.wait_for(SOON, &ready, |ready| ready == "2").unwrap();
    }
}

/// The only one of the other cluster: calls there fail until another one is there, and then no more.
#[test]
fn a_gateway_that_is_killed_costs_the_calls_while_there_is_none() {
    let rig = need_rig!();
    let (west, east) = (west(&rig), east(&rig));
    join(west, east);
    let here = Namespace::restricted(west, "no-gateway");
    let there = Namespace::restricted(east, "no-gateway");
    stock(&there, 1);
    for _ in 0..rounds() {
        let mut gone = None;
        let calls = under_calls(&here, "stock.no-gateway.east", || {
            let gateways = "--selector=app.kubernetes.io/component=gateway";
            let begun = Instant::now();
            let delete = ["--namespace=tollway", "delete", "pods", gateways];
            east.kubectl(&[&delete[..], &["--force", "--grace-period=0"]].concat()).unwrap();
            let ready = "--output=jsonpath={.status.readyReplicas}";
            let ready = ["--namespace=tollway", "get", "deployment/tollway-gateway", ready];
            east.wait_for(SOON, &ready, |ready| ready == "1").unwrap();
            gone = Some(begun.elapsed());
        });
        record("gateway", &calls, gone);
        // It is gone for a second or two, and callers are back within two more.
        let away = gone.unwrap_or_default() + Duration::from_secs(2);
        assert!(calls.failed <= 100 * away.as_secs() + 100, "{away:?}: {calls:?}");
        let after =
            calls_during(&here, |object| here.apply(object), "stock.no-gateway.east", 3, || {});
        assert_eq!(after.failed, 0, "{after:?}");
    }
}

/// Its power fails: a replica there is not called any more, and the other one takes all calls.
#[test]
fn a_machine_that_is_killed_costs_the_calls_that_it_had() {
    let rig = need_rig!();
    let cluster = west(&rig);
    let shop = Namespace::restricted(cluster, "no-machine");
    for _ in 0..rounds() {
        stock(&shop, 2);
        let machines = "--output=jsonpath={.items[*].spec.nodeName}";
        let machines = shop.kubectl(&["get", "pods", "--selector=app=stock", machines]);
        let mut machines: Vec<&str> = machines.split_whitespace().collect();
        machines.sort_unstable();
        assert_eq!(machines, ["a1", "a2"]);
        let calls = under_calls(&shop, "stock", || {
            rig.kill_machine("a2").unwrap();
        });
        record("machine", &calls, None);
        rig.start_machine("a2").unwrap();
        let status = "--output=jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        cluster.wait_for(SOON, &["get", "node/a2", status], |it| it == "True").unwrap();
        shop.kubectl(&["delete", "deployment/stock"]);
        assert!(calls.failed < 100, "{calls:?}");
    }
}

/// As for want of memory: the container starts again, and meanwhile the other replica has all calls.
#[test]
fn an_app_that_is_killed_costs_the_calls_that_it_had() {
    let rig = need_rig!();
    let shop = Namespace::restricted(west(&rig), "no-app");
    stock(&shop, 2);
    for _ in 0..rounds() {
        let calls = under_calls(&shop, "stock", kill_server);
        record("app", &calls, None);
        assert!(calls.failed <= 8, "as many as there are connections: {calls:?}");
        shop.wait_rolled_out("stock");
    }
}

/// Graceful ends cost nothing; what is killed in the middle of a call costs that call.
#[test]
fn pods_that_are_deleted_and_evicted_cost_no_call() {
    let rig = need_rig!();
    let cluster = west(&rig);
    let shop = Namespace::restricted(cluster, "pods-end");
    stock(&shop, 3);
    let eviction = |pod: &str| {
        let path = format!("/api/v1/namespaces/pods-end/pods/{pod}/eviction");
        let object = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod},
        });
        cluster.kubectl_with(&["create", "--raw", &path, "-f", "-"], &object.to_string()).unwrap();
    };
    for _ in 0..rounds() {
        let calls = under_calls(&shop, "stock", || {
            let pod = format!("pod/{}", one_pod(&shop, "--selector=app=stock"));
            shop.kubectl(&["delete", &pod]);
            shop.wait_rolled_out("stock");
            eviction(&one_pod(&shop, "--selector=app=stock"));
            shop.wait_rolled_out("stock");
        });
        record("pods that end", &calls, None);
        assert_eq!(calls.failed, 0, "{calls:?}");
    }
}
