//! Foreign clients: curl, openssl, h2load, h2spec.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use tollway_testkit::need_tool;

use crate::front::world::{Echo, HOST};

#[track_caller]
fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = String::from_utf8_lossy(&stdout).into_owned();
    assert!(status.success(), "{command:?}: {text}\n{}", String::from_utf8_lossy(&stderr));
    text
}

#[test]
fn curl_gets_its_answer_over_each_version_of_tls_and_http() {
    let curl = need_tool!("curl");
    let echo = Echo::start("http");
    let port = echo.port();
    for (tls, http, reported) in [
        ("1.2", "--http1.1", "200 1.1 0 hello"),
        ("1.2", "--http2", "200 2 0 hello"),
        ("1.3", "--http1.1", "200 1.1 0 hello"),
        ("1.3", "--http2", "200 2 0 hello"),
    ] {
        let mut command = Command::new(&curl);
        command
            .args(["-sS", http, "--tls-max", tls, "--tlsv1.2", "--cacert"])
            .arg(echo.files.ca())
            .args(["--resolve", &format!("{HOST}:{port}:127.0.0.1"), "-d", "hello"])
            .args(["-w", "%{stderr}%{http_code} %{http_version} %{ssl_verify_result} "])
            .arg(format!("https://{HOST}:{port}/echo"));
        let output = command.output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, reported, "TLS {tls} {http}");
    }
    let old = Command::new(&curl)
        .args(["-sS", "--tls-max", "1.1", "--tlsv1.0", "-k", "--ciphers", "ALL:@SECLEVEL=0"])
        .arg(format!("https://127.0.0.1:{port}/"))
        .output()
        .unwrap();
    assert!(!old.status.success(), "TLS 1.1 is spoken");
}

#[test]
fn openssl_resumes_its_sessions_in_both_versions() {
    let openssl = need_tool!("openssl");
    let echo = Echo::start("http");
    for (version, name) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let session = echo.files.path(version);
        let first = s_client(&openssl, &echo, &[version, "-sess_out", &session]);
        assert!(first.contains(&format!("New, {name}")), "{first}");
        assert!(first.contains("Verification: OK"), "{first}");
        let second = s_client(&openssl, &echo, &[version, "-sess_in", &session]);
        assert!(second.contains(&format!("Reused, {name}")), "{second}");
        assert!(second.contains("HTTP/1.1 200"), "{second}");
    }
}

/// One request on a connection; its answer after openssl's report on the connection.
fn s_client(openssl: &Path, echo: &Echo, options: &[&str]) -> String {
    use std::io::Write;
    let mut child = Command::new(openssl)
        .args(["s_client", "-servername", HOST, "-ign_eof", "-connect"])
        .arg(format!("127.0.0.1:{}", echo.port()))
        .arg("-CAfile")
        .arg(echo.files.ca())
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let request =
        format!("GET /size?bytes=10 HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n");
    child.stdin.take().unwrap().write_all(request.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn h2load_gets_every_answer() {
    let h2load = need_tool!("h2load");
    for scheme in ["http", "h2c"] {
        let echo = Echo::start(scheme);
        let url = format!("https://127.0.0.1:{}/size?bytes=4096", echo.port());
        for options in [&["-c8", "-m10"][..], &["--h1", "-c8"]] {
            let report = run(Command::new(&h2load).args(["-n", "4000"]).args(options).arg(&url));
            let all = "4000 total, 4000 started, 4000 done, 4000 succeeded, 0 failed, 0 errored";
            assert!(report.contains(all), "{scheme} {options:?}: {report}");
        }
    }
}

/// Every case, strictly.
#[test]
fn h2spec_finds_no_fault() {
    let h2spec = need_tool!("h2spec");
    let echo = Echo::start("http");
    let output = Command::new(h2spec)
        .args(["--strict", "--timeout", "2", "--tls", "--insecure"])
        .args(["--path", "/size?bytes=1000", "--host", "127.0.0.1"])
        .args(["--port", &echo.port().to_string()])
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(report.contains("146 tests, 146 passed, 0 skipped, 0 failed"), "{report}");
}
