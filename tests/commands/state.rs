//! `tollway state`: the operator sees what apps keep, and removes it.

use tollway_testkit::{Process, RawClient};
use tollway_tests::network::{Network, PATIENCE};

/// What a sidecar answers to a request about the state of its app.
fn ask(sidecar: &Process, method: &str, path: &str, body: &str) -> String {
    let mut client = RawClient::connect(sidecar.port("http").unwrap()).unwrap();
    let length = body.len();
    let path = format!("/v1.0/state/statestore{path}");
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    client.send(&request).unwrap();
    client
        .read_until(PATIENCE, |bytes| bytes.windows(4).any(|end| end == b"\r\n\r\n"))
        .unwrap()
        .text()
}

fn save(sidecar: &Process, key: &str) {
    let saved = ask(sidecar, "POST", "", &format!(r#"[{{"key":"{key}","value":"mine"}}]"#));
    assert!(saved.starts_with("HTTP/1.1 204"), "{saved}");
}

#[track_caller]
fn check_kept(sidecar: &Process, key: &str, is_kept: bool) {
    let answer = ask(sidecar, "GET", &format!("/{key}"), "");
    let status = if is_kept { "HTTP/1.1 200" } else { "HTTP/1.1 204" };
    assert!(answer.starts_with(status), "{key}: {answer}");
}

#[test]
fn an_operator_lists_what_apps_keep_and_removes_it() {
    let west = Network::start("west");
    let (cart, web) = (west.sidecar("cart", &[]), west.sidecar("web", &[]));
    ["order", "total"].iter().for_each(|key| save(&cart, key));
    save(&web, "order");
    let text = |arguments: &[&str]| String::from_utf8(west.command(arguments, b"")).unwrap();
    let entries = |listed: &str, name: &str| {
        let mut lines = listed.lines().filter_map(|line| line.strip_prefix(name));
        let words = lines.next().unwrap_or_else(|| panic!("no line of {name}: {listed}"));
        words.split_whitespace().next().unwrap().to_owned()
    };
    let listed = text(&["state", "list"]);
    for (name, count) in [("cart.default ", "2"), ("web.default ", "1"), ("all of default ", "3")] {
        assert_eq!(entries(&listed, name), count, "{name}: {listed}");
    }
    let listed = text(&["state", "list", "cart"]);
    assert!(
        listed.contains("order") && listed.contains("total") && !listed.contains("web"),
        "{listed}"
    );
    let listed: serde_json::Value =
        serde_json::from_slice(&west.command(&["state", "list", "cart", "--json"], b"")).unwrap();
    assert_eq!(
        (&listed["apps"][0]["app"], &listed["apps"][0]["entries"]),
        (&"cart".into(), &2.into())
    );
    let keys =
        listed["keys"].as_array().unwrap().iter().map(|entry| entry["key"].as_str().unwrap());
    assert_eq!(keys.collect::<Vec<_>>(), ["cart||order", "cart||total"]);
    let asked = west.failing_command(&["state", "rm", "cart", "--all"], b"");
    assert!(
        asked.contains("this removes 2 entries of cart.default") && asked.contains("--yes"),
        "{asked}"
    );
    check_kept(&cart, "order", true);
    let removed = text(&["state", "rm", "cart", "--key", "cart||order", "--yes"]);
    assert!(removed.starts_with("removed 1 entries of cart.default"), "{removed}");
    check_kept(&cart, "order", false);
    check_kept(&cart, "total", true);
    check_kept(&web, "order", true);
    let removed = text(&["state", "rm", "cart.default", "--all", "--yes"]);
    assert!(removed.starts_with("removed 1 entries of cart.default"), "{removed}");
    check_kept(&cart, "total", false);
    check_kept(&web, "order", true);
}
