//! `tollway lab serve` as browsers and other clients see it: list, filter, overlay, trend, keys;
//! and what it refuses.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod fixtures;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use serde_json::json;
use tollway_record::record::{Record, Topology};
use tollway_record::run::{RUN_SCHEMA, RunResult};
use tollway_record::traffic::SeriesPoint;
use tollway_record::{Histogram, fortio};
use tollway_report::serve::{ServeOptions, Server};
use tollway_testkit::{Browser, TempDir, need_tool};

#[test]
fn results_are_listed_filtered_chosen_and_laid_over_each_other_by_keys_alone() {
    let chromium = need_tool!("chromium");
    let (_folder, site) = served();
    let mut browser = Browser::start(&chromium).unwrap();
    browser.resize(1280, 900).unwrap();
    browser.open(&site.url("/")).unwrap();
    let titles = "[...document.querySelectorAll('#results > li:not([hidden]) .open')]
        .map((title) => title.textContent)";
    let all = browser.evaluate(titles).unwrap();
    let all: Vec<&str> = all.as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    let (whole, broken) = all.split_at(4);
    let newest_first =
        ["cross-network", "cross-network", "http://127.0.0.1:8080/", "before the change"];
    assert_eq!(whole, newest_first);
    assert_eq!(broken.len(), 3, "what cannot be read stands at the end: {broken:?}");
    let reason = "document.querySelector('#results').textContent.includes('a link that leads out')";
    browser.until(reason).unwrap();

    browser.press("/").unwrap();
    browser.type_in("http RUN").unwrap();
    browser.until("document.querySelector('#count').textContent === '2 of 7 results'").unwrap();
    browser.press("Enter").unwrap();
    browser.press(" ").unwrap();
    browser.press("ArrowDown").unwrap();
    browser.press(" ").unwrap();
    browser.until("document.querySelector('#overlay').textContent === 'Overlay 2'").unwrap();
    // The address keeps the state.
    let address = browser.evaluate("location.search").unwrap();
    assert_eq!(address, "?q=http+RUN&file=load.json&file=fortio.json");
    browser.open(&site.url(&format!("/{}", address.as_str().unwrap()))).unwrap();
    browser.until("document.querySelector('#overlay').textContent === 'Overlay 2'").unwrap();
    // Of what is not shown any more, the choice stays.
    browser.press("Escape").unwrap();
    browser.press("ArrowDown").unwrap();
    browser.press(" ").unwrap();
    browser.until("document.querySelector('#overlay').textContent === 'Overlay 3'").unwrap();
    browser.press("o").unwrap();

    browser.until("document.querySelectorAll('figure.live').length >= 2").unwrap();
    assert_eq!(
        browser.evaluate("document.querySelector('h1').textContent").unwrap(),
        "3 results over each other"
    );
    let keys = "[...document.querySelectorAll('#chart-0 .key')].map((key) => key.textContent)";
    assert_eq!(
        browser.evaluate(keys).unwrap(),
        json!([
            "cross-network · direct",
            "cross-network · tollway",
            "http://127.0.0.1:8080/",
            "before the change"
        ])
    );
    let figures = browser.evaluate("document.querySelector('main').innerText").unwrap();
    for figure in ["Median: ", "no verdict", "250 µs", "400 µs"] {
        assert!(figures.as_str().unwrap().contains(figure), "{figure} is missing: {figures}");
    }
    assert_eq!(browser.errors().unwrap(), Vec::<String>::new());
}

#[test]
fn rows_are_chosen_on_the_overlay_and_followed_through_time() {
    let chromium = need_tool!("chromium");
    let (_folder, site) = served();
    let mut browser = Browser::start(&chromium).unwrap();
    browser.open(&site.url("/overlay?file=first.json&file=second.json")).unwrap();
    let drawn = "document.querySelectorAll('#chart-0 .key').length";
    browser.until(&format!("{drawn} === 4")).unwrap();
    browser.click("input[value='other-region/http1/tollway']").unwrap();
    browser.until(&format!("{drawn} === 6")).unwrap();
    let rows = browser.evaluate("new URLSearchParams(location.search).getAll('row').length");
    assert_eq!(rows.unwrap(), 3);

    browser.open(&site.url("/trend?q=cross-network&row=same-network/http1/tollway")).unwrap();
    browser.until("document.querySelectorAll('figure.live').length === 2").unwrap();
    let reported = browser.evaluate("document.querySelector('.verdict').textContent").unwrap();
    assert!(
        reported.as_str().unwrap().starts_with("same-network/http1/tollway: 2 results, median")
    );
    let plot = "JSON.parse(document.querySelector('#chart-0 script.plot').textContent)";
    let days = browser.evaluate(&format!("{plot}.xs")).unwrap();
    assert_eq!(days, json!([1_767_323_045, 1_767_409_445]), "a day apart");
    let names = browser.evaluate(&format!("{plot}.lines.map((line) => line.name)")).unwrap();
    assert_eq!(names, json!(["p50", "p75", "p90", "p99", "mean"]), "there is no p99.9");
    assert_eq!(browser.errors().unwrap(), Vec::<String>::new());
}

#[test]
fn experiments_without_a_row_in_common_are_both_drawn() {
    let (folder, site) = served();
    let mut other = experiment("2026-01-04T03:04:05Z");
    other.scenario = "another".to_owned();
    other.comparisons.clear();
    for row in &mut other.rows {
        row.conditions.id = format!("elsewhere/{}", row.conditions.id);
    }
    std::fs::write(folder.path().join("other.json"), other.to_json()).unwrap();
    let page = site.get("/overlay?file=first.json&file=other.json");
    for name in ["cross-network · direct", "another · direct", "another · tollway"] {
        assert!(page.contains(&format!("<bdi>{name}</bdi>")), "{name} is not drawn");
    }
    let page = site.get("/overlay?file=first.json&file=second.json");
    assert_eq!(page.matches("name=\"row\" value=").count(), 8, "rows to choose from");
    assert_eq!(page.matches(" checked").count(), 2, "one group of both");
}

#[test]
fn every_page_fits_a_telephone_and_a_desk_in_both_themes() {
    let chromium = need_tool!("chromium");
    let (_folder, site) = served();
    let mut browser = Browser::start(&chromium).unwrap();
    for page in [
        "/",
        "/?q=nothing-like-this",
        "/view?file=first.json",
        "/view?file=load.json",
        "/view?file=fortio.json",
        "/overlay?file=load.json&file=fortio.json",
        "/trend?q=cross",
        "/view?file=cut.json",
        "/view?file=none.json",
        "/overlay",
        "/nowhere",
    ] {
        for (width, dark) in [(400, true), (1280, false)] {
            browser.resize(width, 900).unwrap();
            browser.prefer_dark(dark).unwrap();
            browser.open(&site.url(page)).unwrap();
            let needed = browser.evaluate("document.documentElement.scrollWidth").unwrap();
            assert_eq!(needed, json!(width), "{page} is wider than its window");
        }
        let complaints = browser.errors().unwrap();
        // A browser notes a refused page as an error of its own.
        let broken = complaints.iter().find(|one| !one.contains("Failed to load resource"));
        assert_eq!(broken, None, "{page}");
    }
}

#[test]
fn an_overlay_of_long_names_fits_a_window_of_1280_pixels() {
    let chromium = need_tool!("chromium");
    let (folder, site) = served();
    let load = std::fs::read_to_string(folder.path().join("load.json")).unwrap();
    let names = ["before-the-change-2026-11-22.json", "after-the-second-change-2026-11-22.json"];
    for name in names {
        std::fs::write(folder.path().join(name), &load).unwrap();
    }
    let mut browser = Browser::start(&chromium).unwrap();
    browser.resize(1280, 900).unwrap();
    let [before, after] = names;
    let query = format!("/overlay?file={before}&file={after}&file=load.json");
    browser.open(&site.url(&query)).unwrap();
    let widths = "[...document.querySelectorAll('.wide')].map((one) =>
        [one.querySelectorAll('th').length, one.scrollWidth - one.clientWidth])";
    let widths = browser.evaluate(widths).unwrap();
    let widths: Vec<(u64, u64)> = serde_json::from_value(widths).unwrap();
    assert!(widths[0].0 > 14, "heads of columns and of rows: {widths:?}");
    assert!(widths.iter().all(|(_, beyond)| *beyond == 0), "{widths:?}");
}

#[test]
fn pages_work_without_a_script() {
    let (_folder, site) = served();
    let list = site.get("/?q=fortio&file=load.json");
    assert!(list.starts_with("HTTP/1.1 200 "), "{list:.200}");
    assert_eq!(list.matches("<li data-words").count(), 7);
    assert_eq!(list.matches(" hidden>").count(), 3 + 1, "what does not match, and the tools");
    assert_eq!(list.matches(" hidden class=\"broken\"").count(), 3);
    assert!(list.contains(r#"value="load.json" checked"#));
    assert!(list.contains(r#"href="view?file=fortio.json""#));
    let overlay = site.get("/overlay?file=load.json&file=fortio.json");
    assert_eq!(overlay.matches("<svg class=\"still\"").count(), 4, "percentiles, spread, course");
    let trend = site.get("/trend");
    assert!(trend.contains("<svg class=\"still\""), "{trend:.500}");
}

#[test]
fn a_result_is_downloaded_as_it_is() {
    let (folder, site) = served();
    let answer = site.get("/raw?file=load.json");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, std::fs::read_to_string(folder.path().join("load.json")).unwrap());
    assert!(head.contains("content-disposition: attachment; filename=\"load.json\""), "{head}");
    assert!(head.contains("x-content-type-options: nosniff"), "{head}");
    let hostile = site.get("/raw?file=evil%E2%80%AE.json");
    assert!(hostile.contains("filename=\"evil-.json\""), "{hostile:.600}");
}

#[test]
fn nothing_outside_the_folder_is_served() {
    let (_folder, site) = served();
    for name in [
        "..%2Fsecret.json",
        "%2Fetc%2Fpasswd",
        "..",
        ".",
        "",
        "link.json",
        "%00.json",
        "....%2F%2Fsecret.json",
        "..%5Csecret.json",
        "secret.json",
    ] {
        for page in ["raw", "view"] {
            let answer = site.get(&format!("/{page}?file={name}"));
            assert!(!answer.contains("SECRET"), "{name}: {answer}");
            let refused =
                answer.starts_with("HTTP/1.1 404 ") || answer.starts_with("HTTP/1.1 422 ");
            assert!(refused, "{name}: {answer:.200}");
        }
    }
    for path in ["/../secret.json", "/%2e%2e/secret.json", "/secret.json", "/load.json"] {
        let answer = site.get(path);
        assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer:.200}");
    }
}

#[test]
fn only_reading_is_allowed_and_only_by_the_own_name() {
    let (_folder, site) = served();
    let ask = |head: &str| site.ask(&format!("{head}\r\nConnection: close\r\n\r\n"));
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        let answer = ask(&format!("{method} / HTTP/1.1\r\nHost: localhost"));
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer:.200}");
        assert!(answer.to_lowercase().contains("allow: get, head"), "{answer:.300}");
    }
    let head = ask("HEAD / HTTP/1.1\r\nHost: localhost");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head:.300}");
    for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", ""] {
        let answer = ask(&format!("GET / HTTP/1.1\r\nHost: {host}"));
        assert!(answer.starts_with("HTTP/1.1 421 "), "{host}: {answer:.200}");
        assert!(!answer.contains("cross-network"), "{host} got the results");
    }
    let named = ask("GET / HTTP/1.1\r\nHost: lab.example:80");
    assert!(named.starts_with("HTTP/1.1 200 "), "{named:.200}");
    let policy = "content-security-policy: default-src 'none'; ";
    assert!(named.contains(policy) && named.contains("frame-ancestors 'none'"), "{named:.900}");
}

#[test]
fn too_many_at_once_are_refused_with_the_limit() {
    let (_folder, site) = served();
    let files = "file=load.json&".repeat(13);
    let answer = site.get(&format!("/overlay?{files}"));
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("at most 12"), "{answer}");
    let long = "a".repeat(100_000);
    let answer = site.get(&format!("/?q={long}"));
    assert!(answer.starts_with("HTTP/1.1 414 "), "{answer:.200}");
}

#[test]
fn a_changed_file_is_read_again() {
    let (folder, site) = served();
    assert!(site.get("/").contains("before the change"));
    let path = folder.path().join("fortio.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("before the change", "after the change, longer")).unwrap();
    let list = site.get("/");
    assert!(list.contains("after the change, longer") && !list.contains("before the change"));
    std::fs::remove_file(&path).unwrap();
    assert!(!site.get("/").contains("after the change"));
}

/// A folder with two experiments, a run, a file of Fortio's, a broken and a hostile one; a secret
/// outside it, and a link to that.
fn served() -> (TempDir, Site) {
    let outer = TempDir::new().unwrap();
    let folder = TempDir::new().unwrap();
    std::fs::write(outer.path().join("secret.json"), "SECRET").unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("first.json", &experiment("2026-01-02T03:04:05Z").to_json());
    write("second.json", &experiment("2026-01-03T03:04:05Z").to_json());
    write("load.json", &run("2026-01-01T10:00:00Z", 250).to_json());
    let written = fortio::write(&run("2025-12-31T10:00:00Z", 400), "before the change").unwrap();
    write("fortio.json", &written);
    write("cut.json", r#"{"schema": "tollway.load/1", "started"#);
    write("evil\u{202e}.json", r#"{"schema": "</script><script>alert(1)</script>"}"#);
    write("notes.txt", "not a result");
    let secret = outer.path().join("secret.json");
    std::os::unix::fs::symlink(&secret, folder.path().join("link.json")).unwrap();
    let site = Site::of(folder.path());
    (folder, site)
}

/// The fabricated record, cut down to what the pages are tested with.
fn experiment(started_at: &str) -> Record {
    let mut record = fixtures::fabricated();
    record.started_at = started_at.to_owned();
    let near = |topology: Topology| topology != Topology::OtherNetwork;
    record.rows.retain(|row| near(row.conditions.topology));
    let ids: Vec<String> = record.rows.iter().map(|row| row.conditions.id.clone()).collect();
    record.comparisons.retain(|c| ids.contains(&c.row) && ids.contains(&c.baseline_row));
    record
}

/// A run whose answers took around `us`.
fn run(started_at: &str, us: u64) -> RunResult {
    let mut latencies = Histogram::new();
    for step in 0..20_000 {
        latencies.record((us - 50) * 1_000 + step * 5);
    }
    let mut run = RunResult {
        schema: RUN_SCHEMA.to_owned(),
        started_at: started_at.to_owned(),
        target: "http://127.0.0.1:8080/".to_owned(),
        connections: 8,
        ..RunResult::default()
    };
    run.traffic.requests = 20_000;
    run.traffic.duration_s = 20.0;
    run.traffic.achieved_rps = 1_000.0;
    run.traffic.set_latencies(&latencies);
    run.traffic.set_services(&latencies);
    let point = |t_s: f64| SeriesPoint {
        t_s,
        rps: 1_000.0,
        p50: Some(us as f64),
        ..SeriesPoint::default()
    };
    run.traffic.series = (1..=20).map(|second| point(second.into())).collect();
    run
}

struct Site {
    address: SocketAddr,
    _runtime: tokio::runtime::Runtime,
}

impl Site {
    fn of(folder: &Path) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let options = ServeOptions {
            folder: folder.to_owned(),
            listen: "127.0.0.1:0".parse().unwrap(),
            host_names: vec!["lab.example".to_owned()],
        };
        let server = runtime.block_on(Server::bind(options)).unwrap();
        let address = server.address();
        runtime.spawn(server.run());
        Self { address, _runtime: runtime }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn get(&self, path: &str) -> String {
        self.ask(&format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.address
        ))
    }

    /// Everything that comes back.
    fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        // The rest of a head that is too long is not read.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }
}
