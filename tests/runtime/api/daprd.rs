//! daprd's place taken, by its name and by its flags: apps of one user find each other, and call
//! each other with Dapr's SDK.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustix::process::Signal;
use tollway_net::netns::NetNs;
use tollway_testkit::{Process, Start, binary, free_port, metric_in, retry_until, skip};
use tollway_wire::dapr::proto::common::v1::http_extension::Verb;
use tollway_wire::dapr::proto::runtime::v1::GetMetadataRequest;
use tonic::Code;

use super::app::GrpcApp;
use super::sdk;
use super::{call, client, invoke, message};
use crate::actors::access::ask_rpc;
use tollway_tests::foreign_program::printed;
use tollway_tests::mesh::http::{get, runtime};
use tollway_tests::names::Hosts;
use tollway_tests::user::{PATIENCE, User};

/// What `dapr init` leaves in a home.
const CONFIGURATION: &str = "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  name: \
    daprConfig\nspec:\n  tracing:\n    samplingRate: \"1\"\n    zipkin:\n      endpointAddress: \
    http://localhost:9411/api/v2/spans\n";
const STORE: &str = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: pubsub\nspec:\n  \
    type: pubsub.redis\n  version: v1\n  metadata:\n  - name: redisHost\n    value: localhost:6379\n";

/// A sidecar under daprd's name, with the flags that the Dapr CLI gives it.
pub(crate) struct Daprd {
    process: Process,
    http: u16,
    pub(crate) grpc: u16,
    metrics: u16,
}

/// The program under daprd's name.
pub(crate) fn program(user: &User) -> PathBuf {
    let link = user.path("daprd");
    if !link.exists() {
        std::os::unix::fs::symlink(binary("tollway").unwrap(), &link).unwrap();
    }
    link
}

fn started(program: Start, user: &User, words: &[&str]) -> Process {
    let home = user.directory().parent().unwrap().to_owned();
    program.args(words).env("XDG_RUNTIME_DIR", home).start().unwrap()
}

pub(crate) fn file(user: &User, name: &str, text: &str) -> String {
    let path = user.path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

impl Daprd {
    /// Beside an app at a port, if it has one.
    pub(crate) fn start(user: &User, id: &str, app: &[&str]) -> Self {
        Self::start_by(Start::new(program(user)), user, id, app)
    }

    /// Where names have the addresses of `hosts`.
    pub(crate) fn start_among(hosts: &Hosts, user: &User, id: &str, app: &[&str]) -> Self {
        Self::start_by(hosts.start_program(&program(user)), user, id, app)
    }

    fn start_by(program: Start, user: &User, id: &str, app: &[&str]) -> Self {
        let [http, grpc, metrics] = [(); 3].map(|()| free_port().unwrap());
        let config = file(user, "config.yaml", CONFIGURATION);
        let store = file(user, "components/pubsub.yaml", STORE);
        let folder = Path::new(&store).parent().unwrap().to_str().unwrap();
        let [http_flag, grpc_flag, metrics_flag] = [http, grpc, metrics].map(|p| p.to_string());
        let words = [
            ["--app-id", id],
            ["--dapr-http-port", &http_flag],
            ["--dapr-grpc-port", &grpc_flag],
            ["-metrics-port", &metrics_flag],
            ["--placement-host-address", "localhost:50005"],
            ["--scheduler-host-address", "localhost:50006"],
            ["--resources-path", folder],
            ["--config", &config],
            ["--log-level", "info"],
            ["--max-body-size", "4Mi"],
            ["--app-max-concurrency", "-1"],
            ["--dapr-internal-grpc-port", "0"],
        ];
        let mut words = words.concat();
        words.extend(app);
        Self { process: started(program, user, &words), http, grpc, metrics }
    }

    /// Started, with its ports bound, so that no process that starts after it gets one of them.
    pub(crate) fn listening(user: &User, id: &str, app: &[&str]) -> Self {
        let daprd = Self::start(user, id, app);
        let is_there = || listens(daprd.http()).then_some(());
        let waited = retry_until(PATIENCE, id, is_there);
        waited.map_err(|error| error.context(daprd.process.log())).unwrap();
        daprd
    }

    pub(crate) fn http(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.http))
    }

    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    pub(crate) fn grpc_address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.grpc))
    }

    pub(crate) fn metrics(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.metrics))
    }

    /// Waits until a call to an app is answered by it.
    pub(crate) fn until_served(&self, id: &str) {
        let path = format!("/v1.0/invoke/{id}/method/healthz");
        let served = retry_until(PATIENCE, id, || {
            let answer = listens(self.http()).then(|| get(self.http(), &path))?;
            let is_there =
                answer.starts_with("HTTP/1.1 200") || answer.contains("x-tollway-grpc-status");
            is_there.then_some(())
        });
        served.map_err(|error| error.context(self.process.log())).unwrap();
    }

    fn end(mut self) {
        let status = self.process.terminate(PATIENCE).unwrap();
        assert!(status.success(), "{status}: {}", self.process.log());
    }
}

pub(crate) fn listens(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_ok()
}

/// Runs daprd to its end: its status, and what it wrote on standard output and error.
pub(crate) fn ended(user: &User, words: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } =
        user.plain_command(&program(user)).args(words).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn two_daprds_and_pythons_sdk_need_no_configuration() {
    let python = match sdk::python() {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    let user = User::new();
    let port = free_port().unwrap().to_string();
    let _greeter: Process =
        Start::new(&python).arg(sdk::script("greeter.py")).arg(&port).start().unwrap();
    let echo = Start::new(binary("tollway").unwrap())
        .args(["echo", "--http", "127.0.0.1:0"])
        .start_listening()
        .unwrap();
    let echo_port = echo.port("http").unwrap().port().to_string();
    let greeter = Daprd::start(&user, "greeter", &["--app-port", &port, "--app-protocol", "grpc"]);
    let caller = Daprd::start(&user, "caller", &["-app-port", &echo_port, "-enable-mtls"]);
    let (code, _, reported) =
        ended(&user, &["--wait", "--dapr-http-port", &caller.http.to_string()]);
    assert_eq!(code, Some(0), "{reported}");
    caller.until_served("greeter");
    for protocol in ["http", "grpc"] {
        let mut client = Command::new(&python);
        client.arg(sdk::script("client.py")).arg("greeter");
        client.env("DAPR_HTTP_PORT", caller.http.to_string());
        client.env("DAPR_GRPC_PORT", caller.grpc.to_string());
        client.env("DAPR_API_METHOD_INVOCATION_PROTOCOL", protocol);
        let reported = printed(&mut client);
        assert_eq!(reported, "text/plain; charset=UTF-8: order 7 of caller: {\"id\": 1}\n");
    }
    // The reverse, to an app with HTTP.
    greeter.until_served("caller.default");
    let log = caller.process.log();
    assert!(log.contains("Component `pubsub` of type pubsub.redis is not served"), "{log}");
    greeter.end();
    caller.end();
}

#[test]
fn a_public_port_serves_health_and_metadata_and_sighup_starts_again() {
    let user = User::new();
    let public = free_port().unwrap();
    let flags = ["--dapr-public-port", &public.to_string(), "--enable-metrics=false"];
    let daprd = Daprd::start(&user, "lonely", &flags);
    let public = SocketAddr::from(([127, 0, 0, 1], public));
    let until_ready = || {
        let ready = retry_until(PATIENCE, "health at the public port", || {
            let answer = listens(public).then(|| get(public, "/v1.0/healthz"))?;
            answer.starts_with("HTTP/1.1 204").then_some(())
        });
        ready.map_err(|error| error.context(daprd.process.log())).unwrap();
    };
    until_ready();
    assert!(get(public, "/v1.0/metadata").starts_with("HTTP/1.1 200"));
    for path in ["/v1.0/invoke/lonely/method/x", "/v1.0/shutdown", "/x"] {
        let answer = get(public, path);
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
        assert!(answer.contains("ERR_NOT_SERVED"), "{path}: {answer}");
    }
    daprd.process.signal(Signal::HUP).unwrap();
    let again = retry_until(PATIENCE, "another start", || {
        daprd.process.log().contains("starting again").then_some(())
    });
    again.map_err(|error| error.context(daprd.process.log())).unwrap();
    until_ready();
    daprd.end();
}

/// Clients that take `localhost` for IPv6 alone, as Node 17 does, reach a daprd that listens
/// everywhere.
#[test]
fn a_client_that_takes_localhost_for_ipv6_is_answered() {
    if TcpListener::bind("[::1]:0").is_err() {
        skip!("there is no IPv6 on loopback");
    }
    let user = User::new();
    let daprd = Daprd::listening(&user, "both", &[]);
    for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        assert!(listens(SocketAddr::new(ip, daprd.grpc)), "{ip}");
        let answer = get(SocketAddr::new(ip, daprd.http), "/v1.0/metadata");
        assert!(answer.starts_with("HTTP/1.1 200"), "{ip}: {answer}");
    }
    daprd.end();
}

#[test]
fn a_daprd_needs_no_ipv6() {
    let Ok(namespace) = NetNs::create("daprd-no-ipv6") else {
        skip!("network namespaces are not permitted here");
    };
    let body = || {
        // Its loopback device has the address until it is taken away.
        std::fs::write("/proc/sys/net/ipv6/conf/lo/disable_ipv6", "1").unwrap();
        assert!(TcpListener::bind("[::1]:0").is_err(), "there is IPv6 here");
        let user = User::new();
        Daprd::listening(&user, "one", &[]).end();
    };
    namespace.run(body).unwrap();
}

#[test]
fn a_signal_ends_what_waits_for_an_app_that_never_listens() {
    let user = User::new();
    for signal in [Signal::TERM, Signal::INT] {
        let none = free_port().unwrap().to_string();
        let health = ["--enable-app-health-check", "--app-port", &none];
        let mut daprd = Daprd::listening(&user, "early", &health);
        daprd.process.signal(signal).unwrap();
        let status = daprd.process.wait(PATIENCE).unwrap();
        assert!(status.success(), "{signal:?}, {status}: {}", daprd.process.log());
    }
}

/// Takes what is posted, as a collector of OpenTelemetry would over HTTP: path and body.
async fn collector() -> (SocketAddr, Arc<Mutex<Vec<(String, Bytes)>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let taken = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&taken);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let kept = Arc::clone(&kept);
            let service = service_fn(move |request: Request<Incoming>| {
                let kept = Arc::clone(&kept);
                async move {
                    let path = request.uri().path().to_owned();
                    let body = request.into_body().collect().await?.to_bytes();
                    kept.lock().unwrap().push((path, body));
                    Ok::<_, hyper::Error>(Response::new(Full::<Bytes>::default()))
                }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    });
    (address, taken)
}

#[test]
fn spans_go_to_the_configured_collector() {
    let user = User::new();
    let runtime = runtime();
    let (collector, taken) = runtime.block_on(collector());
    let otel = format!(
        "kind: Configuration\nspec:\n  tracing:\n    samplingRate: \"1\"\n    otel:\n      \
         endpointAddress: {collector}\n      protocol: http\n      isSecure: false\n"
    );
    let otel = file(&user, "otel.yaml", &otel);
    let daprd = Daprd::start(&user, "observed-web", &["--config", &otel]);
    let reported = retry_until(PATIENCE, "spans", || {
        let path = "/v1.0/invoke/nobody/method/x";
        listens(daprd.http()).then(|| get(daprd.http(), path))?;
        // Another test checks their content; this one checks their owner.
        let taken = taken.lock().unwrap();
        let is_ours = |body: &Bytes| body.windows(12).any(|part| part == b"observed-web");
        taken.iter().any(|(path, body)| path == "/v1/traces" && is_ours(body)).then_some(())
    });
    reported.map_err(|error| error.context(daprd.process.log())).unwrap();
    daprd.end();
}

#[test]
fn a_configuration_limits_the_parts_of_the_api() {
    let user = User::new();
    let rules = "kind: Configuration\nspec:\n  api:\n    allowed:\n    - {name: metadata, version: \
                 v1.0, protocol: http}\n    denied:\n    - {name: invoke, version: v1, protocol: grpc}\n";
    let rules = file(&user, "rules.yaml", rules);
    let daprd = Daprd::start(&user, "bounded", &["--config", &rules]);
    let ready = retry_until(PATIENCE, "a sidecar", || {
        let health = listens(daprd.http()).then(|| get(daprd.http(), "/v1.0/healthz"))?;
        health.starts_with("HTTP/1.1 204").then_some(())
    });
    ready.map_err(|error| error.context(daprd.process.log())).unwrap();
    assert!(get(daprd.http(), "/v1.0/metadata").starts_with("HTTP/1.1 200"));
    for path in ["/v1.0/invoke/nobody/method/x", "/v1.0/shutdown", "/x"] {
        let reported = get(daprd.http(), path);
        assert!(
            reported.starts_with("HTTP/1.1 404") && reported.contains("ERR_NOT_SERVED"),
            "{reported}"
        );
    }
    runtime().block_on(async {
        let entrance = SocketAddr::from(([127, 0, 0, 1], daprd.grpc));
        let reported = invoke(entrance, "nobody", message("x", "")).await.unwrap_err();
        assert_eq!(reported.code(), Code::Unimplemented, "{reported}");
        client(entrance).await.get_metadata(GetMetadataRequest {}).await.unwrap();
        // A query is none of a method's name.
        for (method, status) in [("InvokeService?a", "12"), ("GetMetadata?a", "0")] {
            let rpc = format!("dapr.proto.runtime.v1.Dapr/{method}");
            let stream = tokio::net::TcpStream::connect(entrance).await.unwrap();
            let answer = ask_rpc(stream, "", &rpc).await.unwrap();
            assert_eq!(answer["grpc-status"], status, "{method}: {answer:?}");
        }
    });
    daprd.end();
}

#[test]
fn a_configuration_limits_what_each_caller_may_request() {
    let user = User::new();
    let echo = Start::new(binary("tollway").unwrap())
        .args(["echo", "--http", "127.0.0.1:0"])
        .start_listening()
        .unwrap();
    let port = echo.port("http").unwrap().port().to_string();
    let access = "kind: Configuration\nspec:\n  accessControl:\n    defaultAction: deny\n    \
                  trustDomain: public\n    policies:\n    - appId: caller\n      namespace: default\n      \
                  trustDomain: public\n      defaultAction: allow\n      operations:\n      - {name: \
                  /orders/**, httpVerb: [GET], action: deny}\n      - {name: /orders/mine, httpVerb: \
                  ['*'], action: allow}\n";
    let access = file(&user, "access.yaml", access);
    let flags = ["--app-port", &port, "--config", &access, "--enable-app-health-check"];
    let guarded = Daprd::listening(&user, "guarded", &flags);
    let caller = Daprd::listening(&user, "caller", &[]);
    let stranger = Daprd::listening(&user, "stranger", &[]);
    caller.until_served("guarded");
    let asked = |from: &Daprd, path: &str| get(from.http(), &format!("/v1.0/invoke/guarded{path}"));
    for path in
        ["/method/a", "/method/orders/mine", "/method/orders/MINE", "/method/orders/a/../mine"]
    {
        let reported = asked(&caller, path);
        assert!(!reported.contains("x-tollway-error"), "{path}: {reported}");
    }
    for path in [
        "/method/orders/a",
        "/method/Orders/a/b",
        "/method/a/../orders/a",
        "/method/orders/mine/../a",
    ] {
        let reported = asked(&caller, path);
        assert!(
            reported.starts_with("HTTP/1.1 403") && reported.contains("ERR_POLICY_DENIED"),
            "{reported}"
        );
        assert!(!reported.contains("accessControl"), "{reported}");
    }
    let known = retry_until(PATIENCE, "the app being known", || {
        let reported = asked(&stranger, "/method/a");
        reported.contains("ERR_POLICY_DENIED").then_some(reported)
    });
    assert!(!known.unwrap().contains("accessControl"));
    runtime().block_on(async {
        let entrance = SocketAddr::from(([127, 0, 0, 1], caller.grpc));
        let reported = invoke(entrance, "guarded", message("echo", "")).await;
        assert!(reported.is_ok(), "{reported:?}");
        let mut asked = message("orders/a", "");
        asked.http_extension.as_mut().unwrap().set_verb(Verb::Get);
        let reported = invoke(entrance, "guarded", asked).await.unwrap_err();
        assert_eq!(reported.code(), Code::Internal, "{reported}");
    });
    let page = get(guarded.metrics(), "/metrics");
    let counted = |which: &str, caller: &str| {
        let labels =
            format!(r#"app_id="{caller}",namespace="default",trustDomain="local.tollway""#);
        let name = format!("dapr_runtime_acl_{which}_total{{{labels}}}");
        metric_in::<f64>(&page, &name).unwrap_or(0.0)
    };
    assert!(counted("app_policy_action_allowed", "caller") >= 5.0, "{page}");
    assert_eq!(counted("app_policy_action_blocked", "caller"), 5.0, "{page}");
    assert!(counted("global_policy_action_blocked", "stranger") >= 1.0, "{page}");
    assert_eq!(counted("global_policy_action_allowed", "stranger"), 0.0, "{page}");
    let probes = "dapr_http_healthprobes_completed_count{app_id=\"guarded\",status=\"200\"}";
    assert!(metric_in::<f64>(&page, probes).unwrap() >= 1.0, "{page}");
    for daprd in [guarded, caller, stranger] {
        daprd.end();
    }
}

#[test]
fn a_larger_message_is_translated_where_it_is_asked_for() {
    let user = User::new();
    let (runtime, app) = (runtime(), GrpcApp::default());
    let port = runtime.block_on(app.serve()).port().to_string();
    let beside = ["--app-port", &port, "--app-protocol", "grpc", "--max-body-size", "8Mi"];
    let greeter = Daprd::start(&user, "greeter", &beside);
    let caller = Daprd::start(&user, "caller", &[]);
    caller.until_served("greeter");
    let path = "/v1.0/invoke/greeter/method/order";
    let sent = |size: usize| {
        let body = "x".repeat(size << 20);
        let (status, _, reported) = runtime.block_on(call(caller.http(), "POST", path, &[], body));
        (status.as_u16(), reported.len() >> 20)
    };
    assert_eq!(sent(6), (200, 6));
    assert_eq!(sent(9), (500, 0));
    greeter.end();
    caller.end();
}

#[test]
fn what_daprd_would_refuse_is_refused_in_its_way() {
    let user = User::new();
    let web = ["--app-id", "web"];
    for (words, message) in [
        (&["--no-such-flag", "x"][..], "unknown flag: --no-such-flag"),
        (&["--app-id"], "flag needs an argument: --app-id"),
        (&["-x"], "unknown shorthand flag: 'x' in -x"),
    ] {
        let (code, out, reported) = ended(&user, words);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{reported}");
        assert!(reported.starts_with(&format!("{message}\nUsage of daprd:\n")), "{reported}");
        assert!(reported.ends_with(&format!("{message}\n")), "{reported}");
    }
    let denied = "kind: Configuration\nspec: {accessControl: {defaultAction: 'no'}}\n";
    let denied = file(&user, "denied.yaml", denied);
    for (words, part) in [
        (&[][..], "app-id parameter cannot be empty"),
        (&["--app-id", "a b"], "app-id: "),
        (&["--app-id", "web", "--dapr-http-port", "http"], "error parsing dapr-http-port flag"),
        (&["--app-id", "web", "--app-port", "3500"], "conflicts with 'app-port'"),
        (&["--app-id", "web", "--app-protocol", "tcp"], "invalid value for 'app-protocol': tcp"),
        (&["--app-id", "web", "--mode", "kubernetes"], "--mode=kubernetes"),
        (&["--app-id", "web", "--unix-domain-socket", "/tmp"], "--unix-domain-socket"),
        (
            &["--app-id", "web", "--enable-app-health-check", "--app-health-probe-timeout", "6000"],
            "'health-probe-timeout' must be smaller",
        ),
        (&["--app-id", "web", "--log-level", "loud"], "undefined log level: loud"),
        (&["--app-id", "web", "--read-buffer-size", "1Gi"], "--read-buffer-size"),
        (
            &["--app-id", "web", "--config", &denied],
            "accessControl.defaultAction has the action `no`",
        ),
        (&["--app-id", "web", "--config", "/nowhere"], "cannot read /nowhere"),
    ] {
        let (code, _, reported) = ended(&user, words);
        assert_eq!(code, Some(1), "{words:?}: {reported}");
        assert!(reported.contains(part) && reported.contains("error: "), "{words:?}: {reported}");
    }
    // The options that a hint names are those that were typed.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, _, reported) = ended(&user, &[&web[..], &["--dapr-http-port", &port]].concat());
    assert_eq!(code, Some(1), "{reported}");
    assert!(reported.contains("choose another port with --dapr-http-port"), "{reported}");
    let (code, out, _) = ended(&user, &["--version"]);
    assert_eq!((code, out), (Some(0), format!("{}\n", env!("CARGO_PKG_VERSION"))));
    let (code, _, reported) = ended(&user, &[&web[..], &["--help"]].concat());
    assert!(code == Some(0) && reported.starts_with("Usage of daprd:\n"), "{reported}");
    let reported = user.tollway(&["sidecar", "--dapr", "--bogus"]);
    assert_eq!(reported.code, Some(2), "{}", reported.stderr);
    assert!(reported.stderr.starts_with("unknown flag: --bogus\n"), "{}", reported.stderr);
    // A join token that is for another control plane than the local one.
    let mut elsewhere = user.plain_command(&program(&user));
    let reported = elsewhere.args(web).env("TOLLWAY_TOKEN", "tollway1.x").output().unwrap();
    let reported = String::from_utf8(reported.stderr).unwrap();
    assert!(reported.contains("--control-plane-address HOST:PORT"), "{reported}");
}
