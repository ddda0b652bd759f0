//! `tollway load timers`: timers and reminders that wake actors, as the app sees them.

use std::process::Command;

use serde_json::Value;
use tollway_testkit::retry_until;
use tollway_tests::program;

use tollway_tests::mesh::http::get;
use tollway_tests::mesh::{AppProtocol, Mesh, PATIENCE, Sidecar, start_tollway};

/// Fires timers of so many actors, each twice a second, for a second; returns the result, or the
/// error.
fn load(sidecar: &Sidecar, actors: &str, options: &[&str]) -> Result<Value, String> {
    let mut command = Command::new(program());
    command.args(["load", "timers", &format!("http://{}", sidecar.http())]);
    command.args(["--app", "cart.default.west", "--actors", actors, "--every", "500ms"]);
    command.args(["--duration", "1s", "--warm-up", "0s", "--quiet", "--json", "-"]);
    let output = command.args(options).output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8(output.stderr).unwrap());
    }
    Ok(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn every_firing_that_was_due_is_counted() {
    let mesh = Mesh::start();
    let echo = start_tollway("echo")
        .args(["--http", "127.0.0.1:0", "--actors"])
        .start_listening()
        .unwrap();
    let port = echo.port("http").unwrap().port();
    let sidecar = mesh.west.sidecar_of("cart", port, AppProtocol::Http);
    let hosted = retry_until(PATIENCE, "actors", || {
        let reported = get(sidecar.http(), "/v1.0/metadata");
        reported.contains(r#""hostReady":true"#).then_some(())
    });
    hosted.map_err(|error| error.context(get(sidecar.http(), "/v1.0/metadata"))).unwrap();
    for options in [&["--kind", "timer"][..], &["--kind", "reminder"], &["--state"]] {
        let reported = load(&sidecar, "40", options).unwrap();
        let count = |name: &str| reported[name].as_u64().unwrap();
        assert_eq!(count("requests") + count("errors"), 80, "{options:?}: {reported}");
        assert!(count("requests") > 0, "{options:?}: {reported}");
        let kinds = reported["errors_by_kind"].as_object();
        assert!(kinds.is_none_or(|kinds| kinds.keys().all(|kind| kind == "missed")), "{reported}");
        assert!(reported["latency_us"]["max"].as_f64().unwrap() > 0.0, "{reported}");
        let state = get(sidecar.http(), "/v1.0/actors/Echo/7/state/fired");
        let is_written = state.starts_with("HTTP/1.1 200");
        assert_eq!(is_written, options == ["--state"], "{options:?}: {state}");
    }
    drop(echo);
    let refused = load(&sidecar, "1", &[]).unwrap_err();
    assert!(refused.contains("PUT /v1.0/actors/Echo/0/method/echo was answered with"), "{refused}");
}
