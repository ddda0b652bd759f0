//! `tollway call --explain`: the hops of a call, between networks and within one, and where it
//! ended.

use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tollway_testkit::retry_until;
use tollway_tests::mesh::http::{Client, Version, empty, runtime};
use tollway_tests::mesh::{AppProtocol, Mesh, Network, PATIENCE, Sidecar};
use tollway_tests::program;
use tollway_tests::user::User;

const SERVICE: &str = "echo.default.east";
/// The longest line that a narrow terminal shows whole.
const COLUMNS: usize = 60;

/// What an explained call prints.
struct Explained {
    code: Option<i32>,
    output: String,
    errors: String,
}

impl Explained {
    /// A call through a sidecar that runs.
    fn by(sidecar: &Sidecar, arguments: &[&str]) -> Self {
        let url = format!("http://{}", sidecar.http());
        let output = Command::new(program())
            .args(["call", "--explain", "--sidecar", &url])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        Self {
            code: output.status.code(),
            output: String::from_utf8(output.stdout).unwrap(),
            errors: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn json(&self) -> Value {
        let explained = serde_json::from_str(&self.output);
        explained.unwrap_or_else(|error| panic!("{error}: {}\n{}", self.output, self.errors))
    }

    /// The text of a hop, lines joined.
    fn hop(&self, label: &str) -> Option<String> {
        let mut lines = self.errors.lines().skip_while(|line| {
            line.strip_prefix("  ").and_then(|line| line.split_whitespace().next()) != Some(label)
        });
        let first = lines.next()?.trim_start().strip_prefix(label)?.trim().to_owned();
        let rest = lines.take_while(|line| line.starts_with("            "));
        Some(rest.fold(first, |said, line| said + " " + line.trim()))
    }

    #[track_caller]
    fn check_hops(&self, hops: &[(&str, &str)]) {
        for (label, said) in hops {
            let hop = self.hop(label);
            assert_eq!(hop.as_deref(), Some(*said), "{label} in:\n{}", self.errors);
        }
    }

    #[track_caller]
    fn check_columns(&self) {
        for line in self.errors.lines().take_while(|line| !line.starts_with("error: ")) {
            assert!(line.chars().count() <= COLUMNS, "`{line}` in:\n{}", self.errors);
        }
    }
}

/// A call as JSON.
fn explain_json(sidecar: &Sidecar, arguments: &[&str]) -> Value {
    Explained::by(sidecar, &[arguments, &["--json"]].concat()).json()
}

#[test]
fn a_call_to_another_network_is_explained_hop_by_hop() {
    let mesh = Mesh::start();
    let app = mesh.east.app_with("echo", "e", AppProtocol::Http, &["--instance", "echo-1"]);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);

    let explained = Explained::by(&caller, &["echo.default.east/echo", "-d", "hello"]);
    assert_eq!(
        (explained.code, explained.output.as_str()),
        (Some(0), "hello"),
        "{}",
        explained.errors
    );
    explained.check_columns();
    let gateway = mesh.east.gateway.port("gateway").unwrap();
    assert!(explained.errors.starts_with("POST echo.default.east/echo\n"), "{}", explained.errors);
    explained.check_hops(&[
        ("name", SERVICE),
        ("service", "http, 1 replica ready, joined network"),
        ("gateway", &format!("{gateway} of network east")),
        ("replica", "echo-1"),
        ("caller", "spiffe://west.tollway/ns/default/caller"),
        ("callee", "spiffe://east.tollway/ns/default/echo"),
        ("link", "reused, TLS 1.3, TLS13_AES_128_GCM_SHA256"),
        ("policy", "none protects the service"),
        ("answer", "200 OK, 5 bytes"),
    ]);

    let explained = explain_json(&caller, &["echo.default.east/delay?ms=40"]);
    let trace = &explained["call_trace"];
    assert_eq!(trace["service"]["state"], "joined_network", "{explained}");
    assert_eq!(
        trace["service"]["gateways"],
        serde_json::json!([gateway.to_string()]),
        "{explained}"
    );
    assert_eq!(trace["connection"]["address"], gateway.to_string(), "{explained}");
    assert_eq!(trace["connection"]["is_new"], false, "{explained}");
    assert_eq!((&explained["status"], &trace["attempts"]), (&200.into(), &1.into()), "{explained}");
    check_times(&explained, 40_000);
    // Nothing of the far network but what its gateway and the replica's certificate show.
    let inside = app.sidecar.process.port("inbound").unwrap().to_string();
    assert!(!explained.to_string().contains(&inside), "{explained}");
}

/// Each hop's time is within that of the one before it, and the app's is what the app took.
#[track_caller]
fn check_times(explained: &Value, app_us: u64) {
    let times = &explained["call_trace"]["times_us"];
    let of = |name: &str| times[name].as_u64().unwrap_or_else(|| panic!("{name} in {explained}"));
    assert!(of("app") >= app_us, "{explained}");
    let beyond = of("network") + of("callee_sidecar") + of("app");
    assert_eq!(beyond, of("round_trip"), "{explained}");
    assert!(of("round_trip") + of("caller_sidecar") <= of("total"), "{explained}");
    assert!(of("total") <= explained["answered_us"].as_u64().unwrap(), "{explained}");
}

#[test]
fn a_call_within_a_network_is_explained_by_its_own_sidecar() {
    const ECHO: &str = "exec \"$TOLLWAY\" echo --http 127.0.0.1:$APP_PORT --name $APP_ID";
    let user = User::new();
    let _run = user.run(&["--app-id", "files", "--app-port", "0"], ECHO);
    user.until_called("files/healthz");

    let body = user.path("body");
    let called =
        user.call(&["files/echo", "-d", "hi", "-o", body.to_str().unwrap(), "--explain", "--json"]);
    assert_eq!(called.code, Some(0), "{}", called.stderr);
    assert_eq!(std::fs::read_to_string(&body).unwrap(), "hi");
    let explained: Value = serde_json::from_str(&called.stdout).unwrap();
    let trace = &explained["call_trace"];
    assert_eq!(trace["service"]["state"], "own_network", "{explained}");
    assert_eq!(trace["name"], "files.default.local", "{explained}");
    assert_eq!(trace["caller"], "spiffe://local.tollway/ns/default/call", "{explained}");
    assert_eq!(
        trace["connection"]["callee"], "spiffe://local.tollway/ns/default/files",
        "{explained}"
    );
    assert_eq!(trace["connection"]["through_gateway"], false, "{explained}");
    assert_eq!(trace["connection"]["is_new"], true, "{explained}");
    assert_eq!(
        (&explained["method"], &explained["body_bytes"]),
        (&"POST".into(), &2.into()),
        "{explained}"
    );
    for name in ["discovery", "connection", "connect", "handshake", "app"] {
        assert!(trace["times_us"][name].is_u64(), "{name} in {explained}");
    }
    assert!(explained["start_us"].as_u64().unwrap() > 0, "{explained}");
    check_times(&explained, 0);

    // A response has no trace unless the caller asks for one.
    let plain = user.call(&["files/headers", "-i"]);
    assert!(!plain.stdout.contains("x-tollway-call-trace"), "{}", plain.stdout);
    let asked = user.call(&["files/headers", "-i", "--explain"]);
    // The command removes the trace from the response's head; the app sees neither field.
    for word in ["x-tollway-call-trace", "x-tollway-explain", "x-tollway-part"] {
        assert!(!asked.stdout.contains(word), "{word} in {}", asked.stdout);
    }
    let late = user.call(&["files/delay?ms=20000", "--explain", "--timeout-ms", "2000"]);
    assert_eq!(late.code, Some(1), "{}", late.stderr);
    assert!(
        late.stderr.contains("\n  ended     at the replica: ERR_TIMED_OUT, "),
        "{}",
        late.stderr
    );
    assert!(late.stderr.contains("did not answer within 2 s [ERR_TIMED_OUT]"), "{}", late.stderr);
    let usage = user.call(&["files/", "--json"]);
    assert_eq!(usage.code, Some(2), "{}", usage.stderr);
}

#[test]
fn a_failed_call_is_explained_up_to_where_it_ended() {
    let mesh = Mesh::start();
    // Less than the network's withdrawal takes.
    let caller = mesh.west.caller(&["--connect-timeout-ms", "2000"]);
    let app = mesh.east.app("echo", "e", AppProtocol::Http);
    let _unready = mesh.east.sidecar_of("later", 1, AppProtocol::Http);
    caller.until_served(SERVICE);
    let is_known = || {
        let explained = Explained::by(&caller, &["later.default.east/"]);
        (!explained.errors.contains("ERR_UNKNOWN_SERVICE")).then_some(())
    };
    retry_until(PATIENCE, "the service that is not ready", is_known).unwrap();

    let check = |target: &str, code: &str, at: &str, hops: &[(&str, &str)]| {
        let explained = Explained::by(&caller, &[target]);
        assert_eq!(
            (explained.code, explained.output.as_str()),
            (Some(1), ""),
            "{}",
            explained.errors
        );
        assert!(explained.errors.contains(&format!("[{code}]\nhint: ")), "{}", explained.errors);
        let ended = explained.hop("ended").unwrap_or_default();
        assert!(ended.starts_with(&format!("at {at}: {code}, by ")), "{}", explained.errors);
        explained.check_hops(hops);
        explained.check_columns();
        let json = explain_json(&caller, &[target]);
        assert_eq!(json["error"]["errorCode"], code, "{json}");
        assert_eq!(json["call_trace"]["failure"]["code"], code, "{json}");
        ended
    };
    check("nobody/", "ERR_UNKNOWN_SERVICE", "the service", &[("service", "not known")]);
    let unready = [("service", "no replica is ready"), ("name", "later.default.east")];
    check("later.default.east/", "ERR_NO_READY_ENDPOINT", "the service", &unready);
    let unjoined = [("service", "its network is not joined")];
    check("echo.default.south/", "ERR_UNKNOWN_NETWORK", "the network", &unjoined);

    let replica = [("policy", "none protects the service"), ("callee", EAST)];
    let ended = check("echo.default.east/close", "ERR_CLOSED_EARLY", "the app", &replica);
    assert!(ended.ends_with(&format!("by sidecar {SERVICE}")), "{ended}");

    deny_all(&mesh.east);
    let ended = check("echo.default.east/", "ERR_POLICY_DENIED", "the policy", &[("callee", EAST)]);
    assert!(ended.ends_with(&format!("by sidecar {SERVICE}")), "{ended}");
    // The callee's sidecar reports its times only for requests that it admits.
    let denied = explain_json(&caller, &["echo.default.east/"]);
    assert!(denied["call_trace"]["times_us"]["round_trip"].is_u64(), "{denied}");
    for name in ["network", "callee_sidecar", "app"] {
        assert!(denied["call_trace"]["times_us"].get(name).is_none(), "{name} in {denied}");
    }
    assert!(denied["call_trace"].get("admission").is_none(), "{denied}");

    // While the control plane of west stands still, it withdraws nothing.
    mesh.west.control.signal(Signal::STOP).unwrap();
    mesh.east.gateway.signal(Signal::KILL).unwrap();
    app.sidecar.process.signal(Signal::KILL).unwrap();
    let until_failed_at = |at: &str| {
        let lost = retry_until(PATIENCE, at, || {
            let explained = explain_json(&caller, &["echo.default.east/"]);
            (explained["call_trace"]["failure"]["at"] == at).then_some(explained)
        });
        lost.unwrap()
    };
    let lost = until_failed_at("gateway");
    let gateway = mesh.east.gateway.port("gateway").unwrap().to_string();
    let failed = lost["call_trace"]["failed_attempts"].as_array().unwrap();
    assert!((1..=8).contains(&failed.len()), "{lost}");
    assert_eq!(failed[0]["code"], "ERR_GATEWAY_UNREACHABLE", "{lost}");
    assert_eq!(failed[0]["address"], gateway.as_str(), "{lost}");
    mesh.west.control.signal(Signal::CONT).unwrap();
    let withdrawn = until_failed_at("network");
    assert_eq!(withdrawn["error"]["errorCode"], "ERR_UNREACHABLE_NETWORK", "{withdrawn}");
}

const EAST: &str = "spiffe://east.tollway/ns/default/echo";

fn deny_all(network: &Network) {
    apply(network, "closed", "allow: []");
}

/// Puts a policy for the app `echo` in force.
fn apply(network: &Network, name: &str, spec: &str) {
    network.apply(&format!(
        "apiVersion: tollway.dev/v1\nkind: Policy\nmetadata: {{name: {name}}}\n\
         spec: {{target: {{app: echo}}, {spec}}}\n"
    ));
}

#[test]
fn an_app_that_is_down_and_a_policy_that_allows_are_explained() {
    let mesh = Mesh::start();
    let caller = mesh.west.caller(&[]);
    let app = mesh.east.app("echo", "e", AppProtocol::Http);
    caller.until_served(SERVICE);
    let near = mesh.east.caller(&[]);
    near.until_served(SERVICE);
    apply(&mesh.east, "readers", "allow: [{from: [caller.default.west], methods: [GET]}]");
    let explained = Explained::by(&caller, &["echo.default.east/healthz"]);
    explained.check_hops(&[("policy", "none refuses it")]);
    // A caller of the callee's own namespace sees which policy it is.
    let refused = Explained::by(&near, &["echo.default.east/healthz"]);
    refused.check_hops(&[("policy", "refused by default/readers")]);
    apply(&mesh.east, "readers", "allow: [{methods: [GET]}]");
    let explained = Explained::by(&near, &["echo.default.east/healthz"]);
    explained.check_hops(&[("policy", "allowed by default/readers")]);
    apply(&mesh.east, "readers", "deny: [{methods: [DELETE]}]");
    let explained = Explained::by(&caller, &["echo.default.east/healthz"]);
    explained.check_hops(&[("policy", "none refuses it")]);

    app.echo.signal(Signal::KILL).unwrap();
    // The control plane may withdraw the replica before a call reaches it: that passes too.
    let explained = retry_until(PATIENCE, "the app's end", || {
        let explained = explain_json(&caller, &["echo.default.east/"]);
        let at = explained["call_trace"]["failure"]["at"].as_str()?.to_owned();
        Some((explained, at))
    });
    let (explained, at) = explained.unwrap();
    match at.as_str() {
        "app" => {
            assert_eq!(
                explained["call_trace"]["failure"]["reported_by"],
                format!("sidecar {SERVICE}"),
                "{explained}"
            );
            assert!(explained["call_trace"]["times_us"]["callee_sidecar"].is_u64(), "{explained}");
        }
        at => assert_eq!(at, "service", "{explained}"),
    }
}

#[test]
fn calls_over_http2_and_grpc_have_their_trace_in_the_head() {
    let mesh = Mesh::start();
    let _app = mesh.east.app("echo", "e", AppProtocol::Grpc);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    let explained = |listener, service: &'static str, kind: &'static str| {
        runtime().block_on(async {
            let mut client = Client::connect(Version::Http2, listener).await;
            let request = hyper::Request::get(format!("http://{listener}/healthz"))
                .header("dapr-app-id", service)
                .header("content-type", kind)
                .header("x-tollway-explain", "1");
            let answer = client.send(request.body(empty()).unwrap()).await;
            let trace = answer.headers()["x-tollway-call-trace"].as_bytes();
            serde_json::from_slice::<Value>(trace).unwrap()
        })
    };
    for listener in [caller.http(), caller.grpc()] {
        let trace = explained(listener, SERVICE, "text/plain");
        assert_eq!(trace["service"]["protocol"], "grpc", "{trace}");
        assert!(trace["times_us"]["app"].is_u64(), "{trace}");
        let trace = explained(listener, "nobody.default.east", "application/grpc");
        assert_eq!(trace["failure"]["code"], "ERR_UNKNOWN_SERVICE", "{trace}");
        let trace = explained(listener, "a.b.c.d", "application/grpc");
        assert_eq!((&trace["failure"]["at"], trace.get("name")), (&"name".into(), None), "{trace}");
    }
}

#[test]
fn a_network_that_calls_out_through_its_own_gateway_shows_both() {
    let mesh = Mesh::with(&["--remote-calls", "gateway"]);
    let _app = mesh.east.app("echo", "e", AppProtocol::Http);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    let gateway = |network: &Network, port| network.gateway.port(port).unwrap();
    let explained = Explained::by(&caller, &["echo.default.east/healthz"]);
    explained.check_hops(&[
        ("gateway", &format!("{} of the own network", gateway(&mesh.west, "inside"))),
        ("remote", &format!("{} of network east", gateway(&mesh.east, "gateway"))),
    ]);
    explained.check_columns();
}
