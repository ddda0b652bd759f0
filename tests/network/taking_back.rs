//! Identities and tokens that an operator takes back while the mesh runs: what the thief of a key or
//! of a token keeps, and for how long.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;
use tollway_testkit::retry_until;
use tollway_tests::mesh::http::get;
use tollway_tests::mesh::{AppProtocol, Mesh, Network, PATIENCE, Sidecar};

/// Two seconds are promised; a machine that is busy is given more.
const IN_FORCE: Duration = Duration::from_secs(10);

fn read(network: &Network, arguments: &[&str]) -> Value {
    serde_json::from_str(&network.done(arguments, "")).unwrap()
}

/// Whether a call through a sidecar is answered by the app.
fn is_answered(caller: &Sidecar, service: &str) -> bool {
    let answer = get(caller.http(), &format!("/v1.0/invoke/{service}/method/healthz"));
    answer.starts_with("HTTP/1.1 200")
}

/// How long it takes until `is_so`.
#[track_caller]
fn time_until(what: &str, begun: Instant, is_so: impl Fn() -> bool) {
    let done = retry_until(PATIENCE, what, || is_so().then_some(()));
    let took = begun.elapsed();
    println!("{what}: after {} ms", took.as_millis());
    assert!(done.is_ok() && took < IN_FORCE, "{what}: after {took:?}");
}

#[test]
fn a_revoked_identity_calls_nothing_and_is_called_by_nothing_within_seconds() {
    let mesh = Mesh::start();
    let _stock = mesh.west.app("stock", "s", AppProtocol::Http);
    let _remote = mesh.east.app("far", "f", AppProtocol::Http);
    let lines = mesh.west.app("lines", "l", AppProtocol::Tcp);
    let thief =
        mesh.west.app_with("thief", "t", AppProtocol::Http, &["--upstream", "0=lines.default"]);
    let honest = mesh.west.caller(&[]);
    let abroad = mesh.east.caller(&[]);
    for service in ["stock.default", "far.default.east"] {
        thief.sidecar.until_served(service);
        honest.until_served(service);
    }
    honest.until_served("thief.default");
    abroad.until_served("thief.default.west");
    let mut standing = TcpStream::connect(thief.sidecar.upstream("lines.default")).unwrap();
    standing.set_read_timeout(Some(PATIENCE)).unwrap();
    standing.write_all(b"x").unwrap();
    assert_eq!(standing.read(&mut [0; 1]).unwrap(), 1, "the line stands");

    let listed = read(&mesh.west, &["identity", "list", "--json"]);
    let of_thief = |listed: &Value| {
        let mut all = listed.as_array().unwrap().iter();
        all.find(|one| one["app"] == "thief").expect("it is listed").clone()
    };
    let one = of_thief(&listed);
    assert_eq!((&one["kind"], &one["revoked"]), (&"workload".into(), &false.into()));
    let begun = Instant::now();
    let done = read(&mesh.west, &["identity", "revoke", "thief", "--json"]);
    assert_eq!(done["usable_tokens"][0], one["token"], "its token is named");
    time_until("the thief calls nothing in its network", begun, || {
        !is_answered(&thief.sidecar, "stock.default")
    });
    time_until("nor in a joined one", begun, || !is_answered(&thief.sidecar, "far.default.east"));
    time_until("its network does not call it", begun, || !is_answered(&honest, "thief.default"));
    time_until("nor does a joined one", begun, || !is_answered(&abroad, "thief.default.west"));
    let ended = standing.read(&mut [0; 1]);
    println!("its line ended: after {} ms", begun.elapsed().as_millis());
    assert!(matches!(ended, Ok(0) | Err(_)), "its line stands: {ended:?}");
    assert!(lines.sidecar.process.log().contains("its identity was revoked"));
    for service in ["stock.default", "far.default.east"] {
        assert!(is_answered(&honest, service), "others go on: {service}");
    }
    // The thief learns why; the control plane's log has who was revoked.
    let told = retry_until(PATIENCE, "the thief's log", || {
        thief.sidecar.process.log().contains("this side's identity was revoked").then_some(())
    });
    assert!(told.is_ok(), "{}", thief.sidecar.process.log());
    assert!(mesh.west.control.log().contains("an identity was revoked"));
    let revoked = read(&mesh.west, &["identity", "list", "--revoked", "--json"]);
    assert_eq!(revoked[0]["identity"], "thief.default");
    let abroad_too = read(&mesh.east, &["identity", "list", "--revoked", "--json"]);
    assert_eq!(abroad_too[0]["network"], "west");

    let said = mesh.west.done(&["identity", "restore", "thief"], "");
    assert_eq!(said, "thief.default is no longer revoked\n");
    thief.sidecar.until_served("stock.default");
    honest.until_served("thief.default");
}

#[test]
fn one_instance_is_revoked_and_its_replicas_serve_on() {
    let mesh = Mesh::start();
    let [_one, two] = ["one", "two"].map(|name| mesh.west.app("stock", name, AppProtocol::Http));
    let caller = mesh.west.caller(&[]);
    caller.until_served("stock.default");
    let listed = read(&mesh.west, &["identity", "list", "--json"]);
    let mut instances: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["app"] == "stock")
        .map(|one| one["instance"].as_str().unwrap())
        .collect();
    instances.sort_unstable();
    let [first, second] = instances[..] else { panic!("two are listed: {listed}") };
    let own = two.sidecar.process.log();
    let (gone, stays) = if own.contains(second) { (first, "two") } else { (second, "one") };
    mesh.west.done(&["identity", "revoke", &format!("stock/{gone}")], "");
    let only_one = retry_until(PATIENCE, "one replica alone", || {
        let answers = (0..10).map(|_| get(caller.http(), "/v1.0/invoke/stock/method/echo"));
        let answers: Vec<String> = answers.collect();
        let all = answers.iter().all(|a| a.starts_with("HTTP/1.1 200") && !a.contains(gone));
        all.then_some(())
    });
    assert!(only_one.is_ok(), "calls are lost, or the revoked one is called; {stays} stays");
}

#[test]
fn a_spent_and_a_revoked_token_are_reported_with_who_used_them() {
    let mesh = Mesh::not_joined(&[]);
    let made = read(&mesh.west, &["token", "create", "--app", "web", "--json"]);
    let (token, id) = (made["token"].as_str().unwrap(), made["id"].as_str().unwrap());
    assert_eq!(made["uses"], 1);
    let call = || {
        std::process::Command::new(tollway_tests::program())
            .args(["call", "nothing/x", "--app-id", "web", "--control"])
            .arg(mesh.west.control_address.to_string())
            .env("TOLLWAY_TOKEN", token)
            .output()
            .unwrap()
    };
    let first = String::from_utf8_lossy(&call().stderr).into_owned();
    assert!(!first.contains("ERR_TOKEN"), "{first}");
    let second = String::from_utf8_lossy(&call().stderr).into_owned();
    assert!(second.contains("ERR_TOKEN_SPENT") && second.contains("web.default"), "{second}");
    let listed = read(&mesh.west, &["token", "list", "--json"]);
    let mut all = listed.as_array().unwrap().iter();
    let shown = all.find(|one| one["id"] == id).unwrap();
    assert_eq!((&shown["uses_left"], &shown["used"]), (&0.into(), &1.into()));
    assert!(shown["last_use"]["by"].as_str().unwrap().starts_with("web.default/"), "{shown}");
    let secret = token.split('.').nth(3).unwrap();
    assert!(!listed.to_string().contains(secret), "a list has no secrets");
    let table = mesh.west.done(&["token", "list"], "");
    assert!(table.contains(id) && !table.contains(secret), "{table}");
    mesh.west.done(&["token", "revoke", id], "");
    let third = String::from_utf8_lossy(&call().stderr).into_owned();
    assert!(third.contains("ERR_TOKEN_REVOKED"), "{third}");
    let unknown = mesh.west.command(&["token", "revoke", "none"], "");
    assert!(!unknown.status.success());
}
