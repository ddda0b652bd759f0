//! Routes and traffic policies from `tollway apply` to sidecars, through real processes.

use tollway_testkit::retry_until;
use tollway_tests::mesh::http::get;
use tollway_tests::mesh::{AppProtocol, Network, PATIENCE, Sidecar, start_tollway};

const SERVICE: &str = "echo.default.east";

/// A route that sends callers of the echo app to another host.
fn route(id: &str, host: &str) -> String {
    let (namespace, name) = id.split_once('/').unwrap();
    format!(
        "apiVersion: tollway.dev/v1\nkind: Route\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec:\n  service: echo.default\n  rules:\n    - redirect: {{host: {host}}}\n"
    )
}

/// The host to which a call of the echo app is redirected; `None` where the app answers.
fn redirected(caller: &Sidecar) -> Option<String> {
    let answer = get(caller.http(), &format!("/v1.0/invoke/{SERVICE}/method/healthz"));
    let status = answer.split_whitespace().nth(1).unwrap_or_default();
    if status == "200" {
        return None;
    }
    assert_eq!(status, "302", "{answer}");
    let location = answer.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("location").then(|| value.trim().to_owned())
    });
    let location = location.unwrap_or_else(|| panic!("no location: {answer}"));
    let host = location.split("//").nth(1).unwrap_or(&location);
    host.split(['/', ':']).next().map(str::to_owned)
}

/// A sidecar without an app in the namespace `audit`.
fn caller_of_audit(network: &Network) -> Sidecar {
    let token = network.file("audit.token").display().to_string();
    network.done(&["token", "create", "--namespace", "audit", "--output", &token], "");
    let process = start_tollway("sidecar")
        .args(["--app-id", "report", "--namespace", "audit", "--token-file", &token])
        .args(["--control", &network.control_address.to_string()])
        .args(["--http-listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"])
        .args(["--outbound-listen", "127.0.0.1:0", "--inbound-listen", "127.0.1.2:0"]);
    Sidecar { process: process.start_listening().unwrap() }
}

#[track_caller]
fn check_diff(network: &Network, input: &str, code: i32, shown: &str) {
    let output = network.command(&["diff", "-f", "-"], input);
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(shown), "{shown} is not in {text}");
}

#[test]
fn routes_go_from_files_to_the_sidecars_of_callers_and_survive_a_restart() {
    let mut east = Network::start("east", "127.0.1.2", &[]);
    let _app = east.app("echo", "east-1", AppProtocol::Http);
    let (near, foreign) = (east.caller(&[]), caller_of_audit(&east));
    near.until_served(SERVICE);
    foreign.until_served(SERVICE);

    let own = route("default/echo", "one.example");
    check_diff(&east, &own, 1, "+++ applied/route/default/echo\n@@ -0,0 +1,");
    assert_eq!(
        east.done(&["apply", "-f", "-", "--dry-run"], &own),
        "route default/echo created (dry run)\n"
    );
    assert_eq!((redirected(&near), redirected(&foreign)), (None, None));
    assert_eq!(east.apply(&own), "route default/echo created\napplied by 2 of 2 sidecars\n");
    let both = Some("one.example".to_owned());
    assert_eq!((redirected(&near), redirected(&foreign)), (both.clone(), both.clone()));

    // A route of the callers' namespace holds in place of the service's, for it alone.
    let mine = route("audit/mine", "two.example");
    assert_eq!(east.apply(&mine), "route audit/mine created\napplied by 1 of 1 sidecars\n");
    assert_eq!(
        (redirected(&near), redirected(&foreign)),
        (both.clone(), Some("two.example".into()))
    );

    check_diff(&east, &format!("{own}---\n{mine}"), 0, "");
    let changed = mine.replace("two.example", "three.example");
    check_diff(&east, &changed, 1, "-      host: two.example\n+      host: three.example\n");
    check_diff(
        &east,
        &own.replace("redirect:", "redirct:"),
        2,
        "standard input:7:7: unknown field",
    );
    let table = east.done(&["get", "routes"], "");
    let cells: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().take(4).collect()).collect();
    assert_eq!(
        cells,
        [
            ["ROUTE", "SERVICE", "CALLERS", "RULES"],
            ["audit/mine", "echo.default", "*.audit", "1"],
            ["default/echo", "echo.default", "*.*", "1"],
        ]
    );
    let printed = east.done(&["get", "routes", "-o", "yaml"], "");
    let again = east.done(&["apply", "-f", "-"], &printed);
    assert_eq!(again, "route audit/mine unchanged\nroute default/echo unchanged\n");

    // Sidecars of before and after find the routes of before.
    east.control.kill().unwrap();
    east.restart_control();
    assert_eq!(redirected(&near), both);
    let later = east.sidecar("later", &[]);
    assert_eq!(redirected(&later), both);
    let deleted = east.done(&["delete", "route", "audit/mine"], "");
    assert_eq!(deleted, "route audit/mine deleted\n");
    let follows = || (redirected(&foreign) == both).then_some(());
    retry_until(PATIENCE, "the other namespace having the service's route", follows).unwrap();
    assert_eq!(east.done(&["delete", "-f", "-"], &own), "route default/echo deleted\n");
    let is_served = || redirected(&later).is_none().then_some(());
    retry_until(PATIENCE, "the app answering", is_served).unwrap();
    let missing = east.command(&["delete", "route", "echo"], "");
    assert!(!missing.status.success());
    let text = String::from_utf8_lossy(&missing.stderr);
    assert!(text.contains("there is no route default/echo"), "{text}");
}

#[test]
fn traffic_policies_go_from_files_to_replicas_and_callers() {
    let east = Network::start("east", "127.0.1.3", &[]);
    let _app = east.app("echo", "east-1", AppProtocol::Http);
    let near = east.caller(&[]);
    near.until_served(SERVICE);
    let policy = |target: &str, name: &str, parts: &str| {
        format!(
            "apiVersion: tollway.dev/v1\nkind: TrafficPolicy\n\
             metadata: {{name: {name}, namespace: default}}\n\
             spec:\n  target: {{app: {target}}}\n  {parts}\n"
        )
    };
    let own = policy("echo", "own", "outlier: {ejection: 10s}\n  rate: {caller: {requests: 5}}");
    let created = "traffic-policy default/own created\napplied by 2 of 2 sidecars\n";
    assert_eq!(east.apply(&own), created, "the replica and its caller");
    let unrelated = policy("other", "other", "panicPercent: 0");
    let created = "traffic-policy default/other created\napplied by 0 of 0 sidecars\n";
    assert_eq!(east.apply(&unrelated), created);
    let general = policy("\"*\"", "general", "shedding: {}");
    check_diff(&east, &general, 1, "+++ applied/traffic-policy/default/general\n@@ -0,0 +1,");
    assert!(
        east.apply(&general).starts_with("traffic-policy default/general created\napplied by ")
    );
    let expected = "\
TRAFFIC POLICY   SERVICES       PARTS         MODE
default/general  *.default      shedding      enforce
default/other    other.default  panicPercent  enforce
default/own      echo.default   outlier,rate  enforce
";
    assert_eq!(east.done(&["get", "traffic-policies"], ""), expected);
    let printed = east.done(&["get", "traffic-policy", "default/own", "-o", "yaml"], "");
    assert!(printed.contains("longestEjection: 5m"), "{printed}");
    let again = east.done(&["apply", "-f", "-"], &printed);
    assert_eq!(again, "traffic-policy default/own unchanged\n");
    check_diff(
        &east,
        &own.replace("outlier: {ejection: 10s}", "outlier: {ejection: 10m, longestEjection: 1m}"),
        2,
        "traffic-policy default/own: `outlier.ejection` is longer than `outlier.longestEjection`",
    );
    let deleted = east.done(&["delete", "traffic-policy", "own", "other"], "");
    let expected = "traffic-policy default/own deleted\ntraffic-policy default/other deleted\n";
    assert_eq!(deleted, expected);
    assert!(redirected(&near).is_none(), "calls go on");
}
