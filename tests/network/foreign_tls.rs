//! Certificates as OpenSSL makes them at first use, at our own servers and at foreign ones.

use std::path::Path;
use std::process::Command;

use tollway_testkit::{Process, Start, TempDir, TlsRelay, free_address, need_tool, retry_until};
use tollway_tests::network::{FRONT, PATIENCE, until_status};
use tollway_tests::program;
use tollway_tests::scripted_app::{App, Script};
use tollway_tests::tls_client::trusting;

/// Runs OpenSSL in a folder.
fn openssl(openssl: &Path, folder: &TempDir, words: &str) {
    let mut command = Command::new(openssl);
    let output = command.args(words.split(' ')).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A certificate of X.509 version 1, as it is made without a file of extensions.
fn version_1(program: &Path, folder: &TempDir) {
    let key = "-newkey rsa:2048 -nodes -keyout key.pem";
    openssl(program, folder, &format!("req -new {key} -subj /CN=localhost -out request.pem"));
    openssl(program, folder, "x509 -req -in request.pem -signkey key.pem -days 5 -out cert.pem");
}

/// OpenSSL's own server with the certificate in a folder.
fn server(program: &Path, folder: &TempDir, options: &[&str]) -> (Process, String) {
    let address = free_address().unwrap();
    let file = |name: &str| folder.path().join(name);
    let server = Start::new(program)
        .args(["s_server", "-accept", &address.to_string(), "-www", "-quiet"])
        .arg("-cert")
        .arg(file("cert.pem"))
        .arg("-key")
        .arg(file("key.pem"))
        .args(options)
        .start()
        .unwrap();
    let accepts = || std::net::TcpStream::connect(address).ok();
    retry_until(PATIENCE, "OpenSSL's server", accepts).unwrap();
    (server, format!("https://{address}/"))
}

#[track_caller]
fn check_load(url: &str) {
    let mut load = Command::new(program());
    let output = load.args(["load", "http", "-k", "-n", "2", "-c", "1", "--warm-up", "0s", url]);
    let output = output.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The harm: a pair that nginx serves is refused as one of two keys.
#[test]
fn a_front_serves_a_certificate_of_version_1() {
    let tool = need_tool!("openssl");
    let (folder, app) = (TempDir::new().unwrap(), App::start(Script::new()));
    version_1(&tool, &folder);
    let front = Start::new(program())
        .args(["front", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--cert"])
        .arg(folder.path().join("cert.pem"))
        .arg("--key")
        .arg(folder.path().join("key.pem"))
        .args(["--to", &format!("http://{}", app.address)])
        .start_listening()
        .unwrap();
    let tls = trusting(None, b"http/1.1");
    let relay = TlsRelay::start(front.port("front").unwrap(), FRONT, tls).unwrap();
    until_status(relay.address(), "GET /x HTTP/1.1\r\nhost: a\r\n\r\n", 200);
}

/// The harm: `-k` is to check nothing, and refuses what `curl -k` takes.
#[test]
fn load_that_checks_no_certificate_takes_one_of_version_1() {
    let tool = need_tool!("openssl");
    let folder = TempDir::new().unwrap();
    version_1(&tool, &folder);
    for version in ["-tls1_2", "-tls1_3"] {
        let (_server, url) = server(&tool, &folder, &[version]);
        check_load(&url);
    }
}

/// A server of TLS 1.2 shows a key of P-521 to clients that offer this curve.
#[test]
fn load_reaches_a_server_with_a_p521_certificate() {
    let tool = need_tool!("openssl");
    let folder = TempDir::new().unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:secp521r1 -nodes -keyout key.pem";
    openssl(&tool, &folder, &format!("req -x509 {key} -out cert.pem -days 5 -subj /CN=localhost"));
    for options in [&["-tls1_2"][..], &["-tls1_3"], &["-tls1_3", "-groups", "secp521r1"]] {
        let (_server, url) = server(&tool, &folder, options);
        check_load(&url);
    }
}
