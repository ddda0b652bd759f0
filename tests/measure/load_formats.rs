//! The result of `tollway load` in other tools' formats, read by those tools.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tollway_record::{RunResult, fortio};
use tollway_testkit::{Start, TempDir, need_tool, node_with, python_with, retry_until, skip};
use tollway_tests::load_command::{Echo, run};

const SOON: Duration = Duration::from_secs(20);

#[test]
fn fortios_report_server_lists_opens_and_overlays_our_files() {
    let fortio = need_tool!("fortio");
    let chromium = need_tool!("chromium");
    let files = TempDir::new().unwrap();
    for name in ["near", "far"] {
        load(&[
            "--label",
            name,
            "--out",
            &format!("fortio={}/{name}.json", files.path().display()),
        ]);
    }
    let server = Start::new(fortio)
        .args(["server", "-http-port", "127.0.0.1:0", "-grpc-port", "disabled"])
        .args(["-tcp-port", "disabled", "-udp-port", "disabled", "-redirect-port", "disabled"])
        .arg("-data-dir")
        .arg(files.path())
        .start()
        .unwrap();
    let page = retry_until(SOON, "Fortio's page", || address_in(&server.log())).unwrap();
    let list = page_of(&chromium, &format!("{page}browse"));
    for name in ["near.json", "far.json"] {
        assert!(
            list.contains(&format!("<option value=\"{name}\"")),
            "{name} is not listed: {list}"
        );
    }
    let opened = page_of(&chromium, &format!("{page}browse?url=near.json"));
    assert!(opened.contains("chartjs-render-monitor"), "no chart was drawn: {opened}");
    let overlaid = page_of(&chromium, &format!("{page}browse?sel=near&sel=far"));
    assert_eq!(overlaid.matches("selected=\"\"").count(), 2, "{overlaid}");
    assert!(overlaid.contains("chartjs-render-monitor"), "no chart was drawn: {overlaid}");
}

#[test]
fn fortios_own_result_is_read_as_it_was_measured() {
    let fortio = need_tool!("fortio");
    let echo = Echo::start(&[]);
    let files = TempDir::new().unwrap();
    let path = files.path().join("fortio.json");
    let output = Command::new(fortio)
        .args(["load", "-quiet", "-allow-initial-errors", "-qps", "200", "-t", "1s", "-c", "2"])
        .args(["-labels", "its own", "-json"])
        .arg(&path)
        .arg(echo.url("/status/503"))
        .output()
        .unwrap();
    let text = std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("{output:?}"));
    let read = fortio::read(&text).unwrap();
    assert_eq!(read.labels, "its own");
    let traffic = &read.run.traffic;
    assert_eq!((traffic.requests, traffic.requested_rps), (0, Some(200.0)));
    assert_eq!(traffic.errors_by_kind["status-503"], traffic.errors);
    assert!(traffic.errors > 0 && read.from_send);
}

#[test]
fn k6s_own_types_take_our_summary() {
    let reader = need_tool!("k6summary");
    let files = TempDir::new().unwrap();
    let path = files.path().join("k6.json");
    let result = load(&["--out", &format!("k6-summary={}", path.display())]);
    let output = Command::new(reader).stdin(std::fs::File::open(&path).unwrap()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let read = String::from_utf8(output.stdout).unwrap();
    let requests = format!("http_reqs counter default {{\"count\":{}}}", result.traffic.requests);
    assert!(read.contains(&requests), "{read}");
    for trend in ["http_req_duration", "http_req_waiting", "tollway_response_time"] {
        assert!(read.contains(&format!("{trend} trend time {{\"avg\":")), "{trend}: {read}");
    }
}

/// A converter of what `handleSummary` is given, of which k6's own is read alike.
#[test]
fn a_foreign_reader_of_k6_shows_our_figures() {
    const READ: &str = "require('k6-html-reporter').generateSummaryReport({\
        jsonFile: process.argv[1], output: process.argv[2] })";
    let mut node = match node_with(&["k6-html-reporter@1.0.5"]) {
        Ok(node) => node,
        Err(reason) => skip!("{reason}"),
    };
    let files = TempDir::new().unwrap();
    let path = files.path().join("k6.json");
    let out = format!("k6-data={}", path.display());
    let conditions = ["--fail-if", "service_p99>60s", "--fail-if", "rps<1"];
    let result = load(&[&["--out", &out][..], &conditions].concat());
    let output = node.args(["-e", READ]).arg(&path).arg(files.path()).output().unwrap();
    let page = std::fs::read_to_string(files.path().join("report.html"))
        .unwrap_or_else(|_| panic!("{output:?}"));
    let text = words(&page);
    assert!(text.contains("passes: 2 fails: 0"), "{text}");
    let traffic = &result.traffic;
    let services = traffic.services().unwrap();
    let ms = |ns: u64| format!("{:.2} ms", ns as f64 / 1e6);
    let (mean, max) = (services.mean_ns().unwrap() as u64, services.max_ns().unwrap());
    assert!(text.contains(&format!("http_reqs {} ", traffic.requests)), "{text}");
    assert!(text.contains(&format!("data_sent {} ", traffic.bytes.sent)), "{text}");
    assert!(text.contains(&format!("http_req_duration {} {} ", ms(mean), ms(max))), "{text}");
    for phase in ["blocked", "connecting", "tls_handshaking", "sending", "waiting", "receiving"] {
        assert!(text.contains(&format!("http_req_{phase} ")), "{phase}: {text}");
    }
}

/// The package that Home Assistant reads iperf3's results with; it came as source.
#[test]
fn a_foreign_reader_of_iperf3_finds_our_throughput() {
    const READ: &str = "import sys, iperf3\n\
        r = iperf3.TestResult(sys.stdin.read())\n\
        print(r.error, r.protocol, r.num_streams, r.reverse, r.sent_bytes, r.received_bytes)\n\
        print(r.sent_bps, r.received_bps, r.retransmits, r.local_cpu_total)\n";
    let python = match python_with(&["iperf3==0.1.11"]) {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    let echo = Echo::start(&[]);
    let files = TempDir::new().unwrap();
    let theirs = files.path().join("iperf3.json");
    for (flags, streams, reverse) in [(&["-P", "3"][..], 3, false), (&["-R"], 1, true)] {
        let (target, out) = (echo.tcp(), format!("iperf3={}", theirs.display()));
        let load = ["tcp", "-z", "1s", "--warm-up", "0s", "--out", &out, &target];
        let throughput = run(&[&load[..], flags].concat()).throughput.unwrap();
        let flow = throughput.sent.or(throughput.received).unwrap();
        let read = Command::new(&python)
            .args(["-c", READ])
            .stdin(std::fs::File::open(&theirs).unwrap())
            .output()
            .unwrap();
        assert!(read.status.success(), "{read:?}");
        let read = String::from_utf8(read.stdout).unwrap();
        let (facts, rates) = read.trim().split_once('\n').unwrap();
        let reported = format!("None TCP {streams} {}", if reverse { "True" } else { "False" });
        assert!(facts.starts_with(&reported), "{facts}");
        let bytes: Vec<u64> = facts.split(' ').skip(4).map(|n| n.parse().unwrap()).collect();
        assert!(bytes.contains(&flow.bytes), "{facts}: {flow:?}");
        let rates: Vec<f64> = rates.split(' ').take(2).map(|n| n.parse().unwrap()).collect();
        let near = |rate: &f64| (rate / flow.bits_per_s - 1.0).abs() < 1e-6;
        assert!(rates.iter().any(near), "{rates:?}: {flow:?}");
    }
}

#[test]
fn every_format_contains_the_same_run() {
    let files = TempDir::new().unwrap();
    let path = |name: &str| files.path().join(name);
    let formats = ["fortio", "k6", "k6-data", "k6-summary", "hdr"];
    let out: Vec<_> = formats.iter().map(|f| format!("{f}={}", path(f).display())).collect();
    let result = load(&["--out", &out.join(",")]);
    let requests = result.traffic.requests;
    let read = |name| std::fs::read_to_string(path(name)).unwrap();
    let json = |name| serde_json::from_str::<serde_json::Value>(&read(name)).unwrap();
    assert_eq!(json("fortio")["DurationHistogram"]["Count"], requests);
    assert_eq!(fortio::read(&read("fortio")).unwrap().run.traffic.requests, requests);
    assert_eq!(json("k6")["metrics"]["http_reqs"]["count"], requests);
    assert_eq!(json("k6-data")["metrics"]["http_reqs"]["values"]["count"], requests);
    assert!(json("k6-summary")["results"]["metrics"].as_array().unwrap().len() > 8);
    let lines = read("hdr").lines().filter(|line| line.contains("HISTF")).count();
    assert!(lines >= 1, "a line for each second");
}

/// A second of requests, reported by `arguments`.
fn load(arguments: &[&str]) -> RunResult {
    let echo = Echo::start(&[]);
    let url = echo.url("/");
    let load = ["http", &url, "--rate", "200", "-z", "1s", "--warm-up", "100ms"];
    run(&[&load[..], arguments].concat())
}

/// The words of a page, one space between them.
fn words(page: &str) -> String {
    let text = page.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text));
    let words: Vec<_> = text.flat_map(str::split_whitespace).collect();
    words.join(" ")
}

/// The address of Fortio's page, from its log.
fn address_in(log: &str) -> Option<String> {
    let url = log.lines().map(str::trim).find(|line| line.ends_with("/fortio/"))?;
    url.starts_with("http://").then(|| url.to_owned())
}

/// A page after its scripts have run; none of them may fail.
fn page_of(chromium: &Path, url: &str) -> String {
    let profile = TempDir::new().unwrap();
    let output = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"])
        .args(["--virtual-time-budget=10000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(url)
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    let failed = log.lines().find(|line| line.contains("CONSOLE") && line.contains("Uncaught"));
    assert_eq!(failed, None, "{url}");
    String::from_utf8(output.stdout).unwrap()
}
