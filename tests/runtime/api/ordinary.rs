//! Dapr's files with an ordinary sidecar, and under `tollway run`: their effect in daprd's place.

use std::net::SocketAddr;
use std::path::Path;

use tollway_testkit::{RawClient, free_port, retry_until};

use super::call;
use super::daprd::{Daprd, file};
use super::resilience::{Flaky, RULES};
use tollway_tests::mesh::http::{get, runtime};
use tollway_tests::mesh::{AppProtocol, Mesh};
use tollway_tests::user::{PATIENCE, User};

const CONFIGURATION: &str = "
apiVersion: dapr.io/v1alpha1
kind: Configuration
metadata: {name: appconfig}
spec:
  api:
    denied: [{name: metadata, version: v1.0, protocol: http}]
  features: [{name: something}]
  accessControl:
    defaultAction: allow
    policies:
    - {appId: caller, namespace: default, trustDomain: public, defaultAction: allow, operations: [{name: /closed, action: deny}]}
";

/// A folder with the rules, and a Configuration.
fn files(user: &User) -> (String, String) {
    let rules = file(user, "rules/rules.yaml", RULES);
    let folder = Path::new(&rules).parent().unwrap().to_str().unwrap();
    (folder.to_owned(), file(user, "config.yaml", CONFIGURATION))
}

fn post(listener: SocketAddr, path: &str) -> (u16, String) {
    let (status, _, text) = runtime().block_on(call(listener, "POST", path, &[], "hello"));
    (status.as_u16(), text)
}

#[test]
fn a_sidecar_keeps_to_the_files_that_it_is_given() {
    let (user, runtime, app, mesh) = (User::new(), runtime(), Flaky::default(), Mesh::start());
    let port = runtime.block_on(app.serve());
    let (folder, config) = files(&user);
    let port = port.to_string();
    let beside = ["--app-port", &port, "--configuration", &config];
    let _callee = mesh.west.sidecar("flaky", &beside);
    let _picky = mesh.west.sidecar_of("picky", port.parse().unwrap(), AppProtocol::Http);
    let caller = mesh.west.caller(&["--resources-path", &folder, "--configuration", &config]);
    for name in ["flaky", "picky"] {
        caller.until_served(name);
    }
    let (status, reported) = post(caller.http(), "/v1.0/invoke/flaky/method/fails/2/a");
    assert!(status == 200 && reported.starts_with("hello of caller"), "{reported}");
    assert_eq!(app.seen("a"), 3);
    assert_eq!(post(caller.http(), "/v1.0/invoke/picky/method/fails/2/b").0, 503);
    assert_eq!(app.seen("b"), 1);
    // The listener that daprd does not have.
    let asked = "POST /fails/2/c HTTP/1.1\r\nhost: flaky.mesh\r\nconnection: close\r\n\
                 content-length: 2\r\n\r\nhi";
    let reported = RawClient::exchange(caller.outbound(), asked, PATIENCE).unwrap().text();
    assert!(
        reported.starts_with("HTTP/1.1 200") && reported.contains("hi of caller"),
        "{reported}"
    );
    assert_eq!(app.seen("c"), 3);
    let noted = format!("{config}: `features` of the Configuration is left out");
    let log = caller.process.log();
    assert!(log.contains(&noted), "{log}");
    let reported = get(caller.http(), "/v1.0/metadata");
    assert!(
        reported.starts_with("HTTP/1.1 404") && reported.contains("ERR_NOT_SERVED"),
        "{reported}"
    );
    let (status, reported) = post(caller.http(), "/v1.0/invoke/flaky/method/closed");
    assert!(status == 403 && reported.contains("ERR_POLICY_DENIED"), "{reported}");
    assert_eq!(post(caller.http(), "/v1.0/invoke/picky/method/closed").0, 200);
}

#[test]
fn an_app_that_is_run_is_under_the_files_too() {
    let (user, runtime, app) = (User::new(), runtime(), Flaky::default());
    let port = runtime.block_on(app.serve()).to_string();
    let _callee = Daprd::listening(&user, "flaky", &["--app-port", &port]);
    let (folder, config) = files(&user);
    let listener = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    let listen = listener.to_string();
    let options = ["--app-id", "caller", "--http-listen", &listen];
    let given = ["--resources-path", &folder, "--configuration", &config];
    let run = user.run(&[options, given].concat(), "sleep 1000");
    let served = retry_until(PATIENCE, "the callee", || {
        let reported = get(listener, "/v1.0/invoke/flaky/method/healthz");
        reported.starts_with("HTTP/1.1 200").then_some(())
    });
    served.map_err(|error| error.context(run.log())).unwrap();
    let (status, reported) = post(listener, "/v1.0/invoke/flaky/method/fails/2/a");
    assert!(status == 200 && reported.starts_with("hello of caller"), "{reported}");
    assert_eq!(app.seen("a"), 3);
    let reported = get(listener, "/v1.0/metadata");
    assert!(
        reported.starts_with("HTTP/1.1 404") && reported.contains("ERR_NOT_SERVED"),
        "{reported}"
    );
}

#[test]
fn a_rule_that_is_not_understood_ends_the_start_and_what_is_not_served_is_noted() {
    let user = User::new();
    let runs = |options: &[&str], code: i32, part: &str| {
        let mut run = user.run(&[&["--app-id", "web"], options].concat(), "echo it runs");
        assert_eq!(run.wait(PATIENCE).unwrap().code(), Some(code), "{}", run.log());
        let log = run.log();
        assert!(log.contains(part) && log.contains("it runs") == (code == 0), "{log}");
    };
    let rules = "kind: Configuration\nspec: {accessControl: {defaultAktion: deny}}\n";
    let rules = file(&user, "rules.yaml", rules);
    runs(&["--configuration", &rules], 1, "the field `defaultAktion` is not known");
    let denied =
        "kind: Configuration\nspec: {api: {denied: [{name: stat, version: v1, protocol: http}]}}\n";
    let denied = file(&user, "denied.yaml", denied);
    runs(&["--configuration", &denied], 1, "no part of the API is `stat`");
    let resiliency =
        "kind: Resiliency\nmetadata: {name: r}\nspec: {targets: {apps: {b: {retry: c}}}}\n";
    let head = "apiVersion: dapr.io/v1alpha1\n";
    let subscription = format!("{head}kind: Subscription\nmetadata: {{name: s}}\n");
    for (kind, text, part) in [
        ("resiliency", resiliency, "targets.apps.b.retry is `c`"),
        ("subscription", &subscription, "Subscription `s` is left out"),
    ] {
        let written = file(&user, &format!("{kind}/a.yaml"), text);
        let folder = Path::new(&written).parent().unwrap().to_str().unwrap();
        runs(&["--resources-path", folder], 0, part);
    }
}

#[test]
fn a_folder_with_other_files_and_what_go_writes_hinders_no_start() {
    let user = User::new();
    let component = |name: &str, of_type: &str| {
        format!(
            "apiVersion: dapr.io/v1alpha1\nauth:\n  secretStore: \"\"\nkind: Component\nmetadata:\n  \
             creationTimestamp: null\n  name: {name}\nspec:\n  initTimeout: \"\"\n  metadata:\n  - \
             name: redisMaxRetries\n    secretKeyRef: {{name: \"\", key: \"\"}}\n    value: 3\n  type: \
             {of_type}\n"
        )
    };
    let production =
        component("far", "state.in-memory").replace("far", "far\n  namespace: production");
    let mut folder = String::new();
    for (name, text) in [
        ("docker-compose.yml", "services:\n  web: {image: web}\n"),
        ("chart.yaml", "{{- if .Values.on }}\nkind: Component\n{{- end }}\n"),
        ("near.yaml", &component("near", "state.in-memory")),
        ("far.yaml", &production),
        ("mongo.yaml", &component("mongo", "state.mongodb")),
    ] {
        let written = file(&user, &format!("mixed/{name}"), text);
        folder = Path::new(&written).parent().unwrap().display().to_string();
    }
    let daprd = Daprd::listening(&user, "web", &["--resources-path", &folder]);
    for store in ["near", "far"] {
        let reported = get(daprd.http(), &format!("/v1.0/state/{store}/k"));
        assert!(reported.starts_with("HTTP/1.1 204"), "{reported}");
    }
    let reported = get(daprd.http(), "/v1.0/state/mongo/k");
    assert!(reported.starts_with("HTTP/1.1 400"), "{reported}");
    assert!(reported.contains("unknown type `state.mongodb`"), "{reported}");
    let log = daprd.log();
    assert!(log.contains("chart.yaml:1:"), "{log}");
}
