//! `tollway run` records requests too, and its settings file may change the destination.

use std::path::Path;

use serde_json::Value;
use tollway_testkit::{need_tool, retry_until};

use crate::tracing::collector::Collector;
use tollway_tests::mesh::PATIENCE;
use tollway_tests::user::User;

/// An app that listens at a given address.
const APP: &str = "exec \"$TOLLWAY\" echo --http 127.0.0.1:$APP_PORT --name a";

#[test]
fn an_app_that_is_run_is_traced_and_logged_and_both_can_move_while_it_runs() {
    let otelcol = need_tool!("otelcol");
    let (first, second) = (Collector::anywhere(&otelcol), Collector::anywhere(&otelcol));
    let user = User::new();
    let settings = user.path("run.yaml");
    let (here, there) = (user.path("here.jsonl"), user.path("there.jsonl"));
    let write = |collector: &Collector, log: &Path, more: &str| {
        let text = format!(
            "trace_endpoint: http://{}\ntrace_ratio: 1\naccess_log: {}\n{more}",
            collector.grpc,
            log.display()
        );
        let new = user.path("new.yaml");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, &settings).unwrap();
    };
    write(&first, &here, "");
    let options = ["--app-id", "stock", "--app-port", "0", "--config"];
    let mut run = user.run(&[&options[..], &[settings.to_str().unwrap()]].concat(), APP);
    user.until_called("stock/healthz");
    assert_eq!(user.call(&["stock/echo", "-d", "one"]).stdout, "one");
    assert_eq!(line(&here, "/echo")["request_bytes"], 3);
    let span = first.until(2).pop().unwrap();
    assert_eq!(span.resource["service.name"], "stock", "{span:#?}");

    write(&second, &there, "");
    let until_said = |text: &str| {
        let said = retry_until(PATIENCE, text, || run.log().contains(text).then_some(()));
        assert!(said.is_ok(), "{}", run.log());
    };
    until_said("settings applied");
    let before = first.spans().len();
    assert_eq!(user.call(&["stock/echo", "-d", "four"]).stdout, "four");
    assert_eq!(line(&there, "/echo")["request_bytes"], 4);
    let moved = second.until(1).pop().unwrap();
    assert_eq!(moved.attributes["url.path"], "/echo", "{moved:#?}");
    assert_eq!(first.spans().len(), before, "the first collector hears no more");
    assert!(!std::fs::read_to_string(&here).unwrap().contains("\"request_bytes\":4"));

    // What cannot be had changes nothing, and off is off.
    write(&first, Path::new("/nowhere/log"), "");
    until_said("cannot open the access log /nowhere/log");
    assert_eq!(user.call(&["stock/echo", "-d", "kept!"]).stdout, "kept!");
    let kept = || lines(&there).into_iter().find(|line| line["request_bytes"] == 5);
    retry_until(PATIENCE, "a line where it was written before", kept).unwrap();
    std::fs::write(&settings, "upstreams: []\n").unwrap();
    let off = || run.log().matches("settings applied").count() == 2;
    retry_until(PATIENCE, "telemetry being off", || off().then_some(())).unwrap();
    let lines_before = lines(&there).len();
    assert_eq!(user.call(&["stock/echo", "-d", "x"]).stdout, "x");
    assert!(run.terminate(PATIENCE).unwrap().success(), "{}", run.log());
    assert_eq!(lines(&there).len(), lines_before);
}

/// The first line of a request for `path`, once it is there.
fn line(log: &Path, path: &str) -> Value {
    let found = || lines(log).into_iter().find(|line| line["path"] == path);
    retry_until(PATIENCE, "a line of the access log", found).unwrap()
}

fn lines(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
