//! What routes and deadlines do with requests, through real processes: with curl and Python's gRPC as
//! clients and with Python's servers as apps.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tollway_testkit::{Process, Start, need_tool, retry_until, skip};
use tollway_tests::grpcio;
use tollway_tests::mesh::{AppProtocol, Network, PATIENCE, Sidecar, counter};

/// An app on Python's HTTP server, its sidecar, and what it has got.
struct App {
    _process: Process,
    sidecar: Sidecar,
    log: PathBuf,
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("requests").join(name)
}

/// The port that a script has written to a file.
fn port_in(ports: &Path) -> u16 {
    let read = || {
        let text = std::fs::read_to_string(ports).ok()?;
        let ports: Value = serde_json::from_str(&text).ok()?;
        ports["app"].as_str()?.rsplit(':').next()?.parse().ok()
    };
    retry_until(PATIENCE, "the app's port", read).unwrap()
}

impl App {
    fn start(python: &Path, network: &Network, service: &str, name: &str) -> Self {
        let (ports, log) =
            (network.file(&format!("{name}.ports")), network.file(&format!("{name}.log")));
        let start = Start::new(python).arg(script("recorder.py")).arg(&ports).arg(&log).arg(name);
        let process = start.start().unwrap();
        let sidecar = network.sidecar_of(service, port_in(&ports), AppProtocol::Http);
        Self { _process: process, sidecar, log }
    }

    /// What it has got so far.
    fn got(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// An answer as curl prints it.
struct Answer {
    status: String,
    head: String,
    body: String,
    took: Duration,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}\n{}", self.head, self.body))
    }

    /// The value of a field, `None` where it has no line or several.
    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| {
            let (of, value) = line.split_once(": ")?;
            of.eq_ignore_ascii_case(name).then_some(value)
        });
        lines.next().filter(|_| lines.next().is_none())
    }
}

/// A network with the services `stock` (two replicas), `other` and `copies`, and a caller.
struct World {
    curl: PathBuf,
    network: Network,
    stock: [App; 2],
    _other: App,
    copies: App,
    caller: Sidecar,
}

impl World {
    fn start(python: &Path, curl: PathBuf) -> Self {
        let network = Network::start("east", "127.0.1.2", &[]);
        let stock = ["s1", "s2"].map(|name| App::start(python, &network, "stock", name));
        let other = App::start(python, &network, "other", "o");
        let copies = App::start(python, &network, "copies", "c");
        let caller = network.caller(&[]);
        let world = Self { curl, network, stock, _other: other, copies, caller };
        ["stock", "other", "copies"].iter().for_each(|of| {
            world.caller.until_served(&format!("{of}.default.east"));
        });
        let both = || {
            world.call("/", &[]);
            world.stock.iter().all(|app| !app.got().is_empty()).then_some(())
        };
        retry_until(PATIENCE, "calls of both replicas", both).unwrap();
        world
    }

    fn route(&self, rules: &str) {
        let file = format!(
            "apiVersion: tollway.dev/v1\nkind: Route\nmetadata: {{name: stock}}\n\
             spec: {{service: stock, rules: {rules}}}\n"
        );
        self.network.apply(&file);
    }

    fn call(&self, path: &str, options: &[&str]) -> Answer {
        let url = format!("http://{}/v1.0/invoke/stock/method{path}", self.caller.http());
        let began = Instant::now();
        let output = Command::new(&self.curl)
            .args(["--silent", "--include", "--max-time", "20"])
            .args(options)
            .arg(url)
            .output()
            .unwrap();
        let took = began.elapsed();
        let printed = String::from_utf8(output.stdout).unwrap();
        let (head, body) = printed.split_once("\r\n\r\n").unwrap_or((&printed, ""));
        let status = head.split_whitespace().nth(1).unwrap_or_default().to_owned();
        Answer { status, head: head.to_owned(), body: body.to_owned(), took }
    }
}

macro_rules! world {
    () => {
        World::start(&need_tool!("python3"), need_tool!("curl"))
    };
}

#[test]
fn each_mirror_gets_a_copy_whose_answer_is_not_seen() {
    let world = world!();
    world.route("[{backends: [{service: stock}], mirrors: [{service: copies}]}]");
    let before = world.copies.got().len();
    let options = ["--data", "seven of them", "-H", "x-user: anna"];
    let answer = world.call("/items/7?a=b", &options);
    assert_eq!(
        (&*answer.status, answer.field("x-of-app")),
        ("200", Some(answer.json()["name"].as_str().unwrap()))
    );
    assert!(answer.json()["name"].as_str().unwrap().starts_with('s'), "{}", answer.body);
    let copied = || world.copies.got().get(before).cloned();
    let copy = retry_until(PATIENCE, "the copy", copied).unwrap();
    let sent = answer.json();
    for part in ["method", "path", "body"] {
        assert_eq!(copy[part], sent[part]);
    }
    assert_eq!(copy["fields"]["x-user"], sent["fields"]["x-user"]);
    assert_eq!((&copy["path"], &copy["body"]), (&"/items/7?a=b".into(), &"seven of them".into()));
    // A mirror that fails or is slow changes nothing for the caller.
    for field in ["x-answer: 200", "x-sleep: 0"] {
        assert_eq!(world.call("/", &["-H", field]).status, "200");
    }
    world.route("[{backends: [{service: stock}], mirrors: [{service: gone}]}]");
    assert_eq!(world.call("/", &["--data", "x"]).status, "200");
    // A part of the requests.
    world.route("[{backends: [{service: stock}], mirrors: [{service: copies, percent: 25}]}]");
    let count = || counter(&world.caller.process, "tollway_mirrored_requests_total");
    let before = count();
    for _ in 0..200 {
        assert_eq!(world.call("/", &[]).status, "200");
    }
    let copies = count() - before;
    assert!((25..=80).contains(&copies), "{copies} of 200");
}

#[test]
fn redirects_rewrites_and_changes_of_heads_are_as_the_rule_has_them() {
    let world = world!();
    world.route(
        "[{matches: [{path: {prefix: /old}}], \
           redirect: {scheme: https, host: new.example, path: {prefix: /new}, status: 308}}, \
          {matches: [{path: {prefix: /shop}}], backends: [{service: other, requestHeaders: {add: {x-backend: '1'}}}], \
           rewrite: {path: {prefix: /v2}, host: stock.example}, \
           requestHeaders: {set: {x-set: new}, add: {x-add: more}, remove: [x-gone]}, \
           responseHeaders: {set: {x-of-app: hidden}, add: {x-answered: 'yes'}}}, \
          {backends: [{service: stock}]}]",
    );
    let answer = world.call("/old/items?a=b", &[]);
    assert_eq!(answer.status, "308");
    assert_eq!(answer.field("location"), Some("https://new.example/new/items?a=b"));
    assert!(answer.body.is_empty());

    let fields = ["-H", "x-set: old", "-H", "x-add: one", "-H", "x-gone: 1"];
    let answer = world.call("/shop/items?a=b", &fields);
    let got = answer.json();
    assert_eq!((&got["name"], &got["path"]), (&"o".into(), &"/v2/items?a=b".into()));
    let got_of = |name: &str| got["fields"][name].clone();
    assert_eq!(got_of("x-set"), serde_json::json!(["new"]));
    assert_eq!(got_of("x-add"), serde_json::json!(["one", "more"]));
    assert_eq!(got_of("x-backend"), serde_json::json!(["1"]));
    assert_eq!(got_of("x-gone"), Value::Null);
    assert!(got["fields"].to_string().contains("stock.example"), "{got}");
    assert_eq!(answer.field("x-of-app"), Some("hidden"));
    assert_eq!(answer.field("x-answered"), Some("yes"));

    let other = world.call("/else", &fields).json();
    assert_eq!(
        (&other["path"], &other["fields"]["x-gone"]),
        (&"/else".into(), &serde_json::json!(["1"]))
    );
}

#[test]
fn requests_and_attempts_have_the_times_that_their_rule_gives() {
    let world = world!();
    let backend = "backends: [{service: stock}]";
    let slow = ["-H", "x-sleep: 5"];
    let check = |answer: &Answer, least: u64, most: u64| {
        assert_eq!(answer.status, "504", "{}", answer.body);
        assert!(answer.body.contains("ERR_TIMED_OUT"), "{}", answer.body);
        let (least, most) = (Duration::from_millis(least), Duration::from_millis(most));
        assert!((least..most).contains(&answer.took), "{:?}", answer.took);
    };
    world.route(&format!("[{{{backend}, timeouts: {{request: 400ms}}}}]"));
    check(&world.call("/", &slow), 400, 4000);
    assert_eq!(world.call("/", &["-H", "x-sleep: 0.1"]).status, "200");
    world.route(&format!("[{{{backend}, timeouts: {{idle: 400ms}}}}]"));
    check(&world.call("/", &slow), 400, 4500);
    // An attempt that takes too long is made again at the other replica.
    let times = "timeouts: {request: 4s, attempt: 500ms}, retry: {attempts: 3, backoff: 1ms}";
    world.route(&format!("[{{{backend}, {times}}}]"));
    let before = world.stock.each_ref().map(|app| app.got().len());
    check(&world.call("/", &slow), 1500, 4500);
    let after = world.stock.each_ref().map(|app| app.got().len());
    assert!(after[0] > before[0] && after[1] > before[1], "{before:?} {after:?}");
    assert_eq!(after[0] + after[1] - before[0] - before[1], 4, "one attempt and three more");
}

#[test]
fn requests_of_one_key_go_to_one_replica_and_move_when_it_is_gone() {
    let mut world = world!();
    world.route("[{backends: [{service: stock}], affinity: {header: x-user}}]");
    let owner = |world: &World, user: usize| {
        let answer = world.call("/", &["-H", &format!("x-user: {user}")]);
        assert_eq!(answer.status, "200", "{}", answer.body);
        answer.json()["name"].as_str().unwrap().to_owned()
    };
    let owners: Vec<String> = (0..12).map(|user| owner(&world, user)).collect();
    for _ in 0..3 {
        assert_eq!((0..12).map(|user| owner(&world, user)).collect::<Vec<_>>(), owners);
    }
    assert!(owners.iter().any(|of| of == "s1") && owners.iter().any(|of| of == "s2"), "{owners:?}");
    // Another sidecar decides alike.
    let second = world.network.sidecar("second", &[]);
    second.until_served("stock.default.east");
    let first = std::mem::replace(&mut world.caller, second);
    assert_eq!((0..12).map(|user| owner(&world, user)).collect::<Vec<_>>(), owners);
    world.caller = first;

    world.route("[{backends: [{service: stock}], affinity: {cookie: {name: user, ttl: 1h}}}]");
    let jar = world.network.file("cookies");
    let jar = jar.to_str().unwrap();
    let first = world.call("/", &["--cookie-jar", jar]);
    let set = first.field("set-cookie").unwrap();
    assert!(set.starts_with("user=") && set.contains("Max-Age=3600"), "{set}");
    for _ in 0..10 {
        let next = world.call("/", &["--cookie", jar]);
        assert_eq!(next.json()["name"], first.json()["name"]);
        assert_eq!(next.field("set-cookie"), None);
    }

    world.route("[{backends: [{service: stock}], affinity: {header: x-user}}]");
    world.stock[0].sidecar.process.kill().unwrap();
    for (user, before) in owners.iter().enumerate() {
        let after = owner(&world, user);
        assert!(after == "s2" && (before == "s1" || *before == after), "{user}: {before} {after}");
    }
}

#[test]
fn a_deadline_reaches_the_app_and_grows_shorter_on_the_way() {
    let world = world!();
    let answer = world.call("/", &["-H", "x-tollway-timeout-ms: 5000"]);
    let left = answer.json()["fields"]["x-tollway-timeout-ms"][0].as_str().unwrap().to_owned();
    let left: u64 = left.parse().unwrap();
    assert!((1..=5000).contains(&left), "{left} ms");
    let late = world.call("/", &["-H", "x-tollway-timeout-ms: 300", "-H", "x-sleep: 5"]);
    assert_eq!(late.status, "504", "{}", late.body);
    assert!(late.took < Duration::from_secs(4), "{:?}", late.took);
    assert_eq!(world.call("/", &["-H", "x-tollway-timeout-ms: soon"]).status, "400");
}

#[test]
fn a_deadline_of_grpc_reaches_the_app_and_ends_the_call() {
    let python = match grpcio::python() {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    let network = Network::start("east", "127.0.1.2", &[]);
    let ports = network.file("grpc.ports");
    let serve = Start::new(&python).arg(script("deadline_grpcio.py")).arg("serve").arg(&ports);
    let _app = serve.start().unwrap();
    let _sidecar = network.sidecar_of("stock", port_in(&ports), AppProtocol::Grpc);
    let caller = network.caller(&[]);
    caller.until_served("stock.default.east");
    let call = |timeout: &str, sleep: &str| {
        let output = Command::new(&python)
            .arg(script("deadline_grpcio.py"))
            .args(["call", &caller.grpc().to_string(), "stock", timeout, sleep])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let printed = call("10", "0");
    let left: f64 =
        printed.strip_prefix("OK ").unwrap_or_else(|| panic!("{printed}")).parse().unwrap();
    assert!(left > 0.0 && left <= 10.0, "{left} s");
    assert_eq!(call("0.5", "5"), "DEADLINE_EXCEEDED");
}
