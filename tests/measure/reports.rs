//! `tollway lab report` and `tollway lab serve`: the commands around the pages.

use std::path::Path;
use std::process::{Command, Output};

use tollway_record::{Histogram, RunResult};
use tollway_testkit::{Process, RawClient, Start, TempDir};
use tollway_tests::program;

#[test]
fn a_report_is_written_beside_its_record() {
    let dir = with_run();
    let reported = tollway(dir.path(), &["lab", "report", "run.json"]);
    assert!(reported.status.success(), "{reported:?}");
    assert_eq!(String::from_utf8_lossy(&reported.stdout), "Report: run.html\n");
    let page = std::fs::read_to_string(dir.path().join("run.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("svg class=\"still\""));
}

#[test]
fn a_report_is_written_where_the_option_names() {
    let dir = with_run();
    let reported = tollway(dir.path(), &["lab", "report", "run.json", "-o", "-"]);
    assert!(
        String::from_utf8_lossy(&reported.stdout).starts_with("<!DOCTYPE html>"),
        "{reported:?}"
    );
    assert!(!dir.path().join("run.html").exists());
    let reported = tollway(dir.path(), &["lab", "report", "run.json", "--output", "other.html"]);
    assert!(reported.status.success() && dir.path().join("other.html").exists(), "{reported:?}");
}

#[test]
fn a_report_as_text_fits_a_terminal() {
    let dir = with_run();
    let reported = tollway(dir.path(), &["lab", "report", "run.json", "--text"]);
    let text = String::from_utf8_lossy(&reported.stdout);
    assert!(text.contains("Times, µs") && text.contains("response"), "{text}");
    assert!(!text.contains('\x1b'), "colours in a file");
    assert!(!dir.path().join("run.html").exists());
}

#[test]
fn a_result_that_powershell_saved_is_read() {
    let dir = with_run();
    let text = std::fs::read_to_string(dir.path().join("run.json")).unwrap();
    let report = |file: &str| {
        let reported = tollway(dir.path(), &["lab", "report", file, "--text"]);
        assert!(reported.status.success(), "{file}: {reported:?}");
        reported.stdout
    };
    let plain = report("run.json");
    let marked = format!("\u{feff}{text}").replace('\n', "\r\n");
    std::fs::write(dir.path().join("marked.json"), &marked).unwrap();
    let wide: Vec<u8> = marked.encode_utf16().flat_map(u16::to_le_bytes).collect();
    std::fs::write(dir.path().join("wide.json"), wide).unwrap();
    for file in ["marked.json", "wide.json"] {
        assert_eq!(report(file), plain, "{file}");
    }
    std::fs::write(dir.path().join("latin.json"), b"{\"label\": \"Zo\xEB\"}").unwrap();
    let refused = tollway(dir.path(), &["lab", "report", "latin.json"]);
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("no text in UTF-8 or UTF-16"), "{refused}");
}

#[test]
fn a_file_that_is_no_result_is_refused_with_the_reason() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("other.json"), "{\"schema\": \"x/1\"}").unwrap();
    let check = |file: &str, parts: &[&str]| {
        let reported = tollway(dir.path(), &["lab", "report", file]);
        assert_eq!(reported.status.code(), Some(1), "{reported:?}");
        let text = String::from_utf8_lossy(&reported.stderr);
        assert!(text.starts_with("error: ") && text.contains("\nhint: "), "{text}");
        for part in parts {
            assert!(text.contains(part), "{part} is missing: {text}");
        }
    };
    check("other.json", &["other.json is no result", "\"x/1\"", "tollway.lab/1"]);
    check("none.json", &["cannot read none.json", "No such file", "ERR_FILE_UNUSABLE"]);
}

#[test]
fn a_folder_is_served_until_a_signal() {
    let dir = with_run();
    let mut server = serving(dir.path());
    let address = server.port("http").unwrap();
    assert!(server.log().contains(&format!("http://{address}/")), "{}", server.log());
    let mut client = RawClient::connect(address).unwrap();
    let ask = format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    client.send(ask).unwrap();
    let answer = client.read_to_end(std::time::Duration::from_secs(20)).unwrap().text();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("run.json"), "{answer}");
    server.signal(rustix::process::Signal::TERM).unwrap();
    assert!(server.wait(std::time::Duration::from_secs(10)).unwrap().success());
}

#[test]
fn a_folder_that_is_not_there_and_a_port_that_is_taken_are_reported() {
    let dir = with_run();
    let reported = tollway(dir.path(), &["lab", "serve", "nowhere"]);
    let text = String::from_utf8_lossy(&reported.stderr);
    assert!(text.contains("nowhere") && text.contains("ERR_FILE_UNUSABLE"), "{text}");
    let server = serving(dir.path());
    let address = server.port("http").unwrap().to_string();
    let reported = tollway(dir.path(), &["lab", "serve", ".", "--listen", &address]);
    let text = String::from_utf8_lossy(&reported.stderr);
    assert!(text.contains("ERR_PORT_TAKEN") && text.contains("--listen"), "{text}");
}

fn with_run() -> TempDir {
    let dir = TempDir::new().unwrap();
    let mut latencies = Histogram::new();
    (1..=10_000).for_each(|step| latencies.record(step * 100));
    let mut run =
        RunResult { started_at: "2026-01-02T03:04:05Z".to_owned(), ..RunResult::default() };
    run.traffic.requests = latencies.n();
    run.traffic.set_latencies(&latencies);
    run.traffic.set_services(&latencies);
    std::fs::write(dir.path().join("run.json"), run.to_json()).unwrap();
    dir
}

fn serving(folder: &Path) -> Process {
    Start::new(program()).args(["lab", "serve"]).arg(folder).start_listening().unwrap()
}

fn tollway(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(program()).args(arguments).current_dir(folder).output().unwrap()
}
