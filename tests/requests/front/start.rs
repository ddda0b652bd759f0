//! Errors that keep a front from starting, reported before it listens.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use tollway_testkit::binary;

use crate::front::world::Files;
use tollway_tests::pki::{Wanted, write};

/// The output and exit code of a front that ends at once.
fn said(arguments: &[&str]) -> (String, i32) {
    let mut command = Command::new(binary("tollway").unwrap());
    command.arg("front").args(arguments).env_remove("TOLLWAY_LOG");
    let output = command.output().unwrap();
    (String::from_utf8(output.stderr).unwrap(), output.status.code().unwrap())
}

/// With that certificate and key.
#[track_caller]
fn check(certificate: &str, key: &str, code: &str, what: &str, hint: &str) {
    let options = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--to", "http://a"];
    let (text, exit) = said(&[&options[..], &["--cert", certificate, "--key", key]].concat());
    assert_eq!(exit, 1, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("error: ") && lines[0].contains(what), "{text}");
    assert!(lines[0].ends_with(&format!("[{code}]")), "{text}");
    assert!(lines[1].starts_with("hint: ") && lines[1].contains(hint), "{text}");
}

#[test]
fn files_that_cannot_be_served_are_named_with_what_is_wrong() {
    let files = Files::new();
    let (certificate, key) = (files.path("a.pem"), files.path("a.key"));
    let other = files.authority.server(&["b.example"]).write(files.folder(), "b");
    let other_key = other.1.display().to_string();
    let what = format!("cannot serve {other_key}: the key is not that of the certificate");
    check(&certificate, &other_key, "ERR_CERTIFICATE_UNUSABLE", &what, "give the key");
    let expired = files.authority.sign(&Wanted::server(&["c.example"]).expired());
    let (late, late_key) = expired.write(files.folder(), "late");
    let (late, late_key) = (late.display().to_string(), late_key.display().to_string());
    let what = "the certificate has expired 5 s ago";
    check(&late, &late_key, "ERR_CERTIFICATE_EXPIRED", &what[..27], "renew it");
    let missing = files.path("missing.pem");
    let what = format!("cannot read {missing}: No such file");
    check(&missing, &key, "ERR_FILE_UNUSABLE", &what, "path");
    check(&key, &key, "ERR_CERTIFICATE_UNUSABLE", "there is no certificate in it", "PEM");
    check(&certificate, &certificate, "ERR_CERTIFICATE_UNUSABLE", "no private key in it", "PEM");
    let chain = format!("{}{}", files.authority.root, files.pair.certificate);
    let chain = write(files.folder(), "chain.pem", &chain).display().to_string();
    check(&chain, &key, "ERR_CERTIFICATE_UNUSABLE", "wrong order", "put that one first");
}

/// The harm: every account on the machine can serve under the front's name.
#[test]
fn a_key_that_others_can_read_is_not_served() {
    let files = Files::new();
    let (certificate, key) = (files.path("a.pem"), files.path("a.key"));
    for mode in [0o644, 0o640, 0o604] {
        std::fs::set_permissions(&key, PermissionsExt::from_mode(mode)).unwrap();
        let what = format!("cannot read {key}: others than its owner can use it (mode {mode:o})");
        check(&certificate, &key, "ERR_FILE_UNUSABLE", &what, "chmod 600");
    }
}

#[test]
fn authorities_of_clients_must_be_some() {
    let files = Files::new();
    let key = files.path("a.key");
    let (text, exit) = said(&[
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
        "--to",
        "http://127.0.0.1:1",
        "--cert",
        &files.path("a.pem"),
        "--key",
        &key,
        "--client-ca",
        &key,
    ]);
    assert_eq!(exit, 1, "{text}");
    assert!(text.contains(&format!("cannot demand certificates of {key}")), "{text}");
    assert!(text.contains("ERR_CERTIFICATE_UNUSABLE"), "{text}");
}

#[test]
fn options_that_cannot_be_meant_are_refused_as_usage() {
    let files = Files::new();
    let (certificate, key) = (files.path("a.pem"), files.path("a.key"));
    let listen = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let pair = ["--cert", &certificate, "--key", &key];
    let usage = |more: &[&str], part: &str| {
        let (text, exit) = said(&[&listen[..], &pair[..], more].concat());
        assert!(exit == 2 && text.contains(part), "{exit}: {text}");
    };
    usage(&[], "--to <URL>");
    usage(&["--to", "https://127.0.0.1:1"], "http:// for HTTP/1.1");
    usage(&["--to", "127.0.0.1:1"], "http://HOST:PORT");
    let twice = ["--to", "http://127.0.0.1:1", "--cert", &certificate];
    usage(&twice, "--cert is given 2 times and --key once");
}

#[test]
fn settings_may_come_from_a_file() {
    let files = Files::new();
    let text = format!(
        "listens: [127.0.0.1:0]\nadmin_listen: 127.0.0.1:0\ncerts: [{}]\nkeys: [{}]\n\
         to: http://127.0.0.1:1\n",
        files.path("a.pem"),
        files.path("a.key")
    );
    let path = write(files.folder(), "front.yaml", &text).display().to_string();
    let front = crate::front::world::tollway().args(["front", "--config", &path]).start_listening();
    assert!(front.unwrap().port("front").is_ok());
    let output = Command::new(binary("tollway").unwrap())
        .args(["front", "--config", &path, "--print-config"])
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("# Settings of `tollway front`."), "{printed}");
    assert!(printed.contains("to: http://127.0.0.1:1"), "{printed}");
}

/// What a check found, by name: level and what.
fn checked(options: &[&str]) -> Vec<(String, String, String)> {
    let mut command = Command::new(binary("tollway").unwrap());
    let output = command.args(["check", "front", "--json"]).args(options).output().unwrap();
    let page: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |check: &serde_json::Value, key: &str| check[key].as_str().unwrap().to_owned();
    let checks = page["checks"].as_array().unwrap().iter();
    checks.map(|c| (text(c, "name"), text(c, "level"), text(c, "what"))).collect()
}

#[test]
fn a_check_reports_what_a_start_would_meet() {
    let files = Files::new();
    let app = tollway_tests::scripted_app::App::start(tollway_tests::scripted_app::Script::new());
    let (certificate, key) = (files.path("a.pem"), files.path("a.key"));
    let to = format!("http://{}", app.address);
    let listen = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let hold = |options: &[&str], name: &str, level: &str, part: &str| {
        let found = checked(&[&listen[..], options].concat());
        let is_it = |(n, l, what): &(String, String, String)| {
            n == name && l == level && what.contains(part)
        };
        assert!(found.iter().any(is_it), "no {level} {name} with `{part}` in {found:#?}");
    };
    let well = ["--cert", &certificate, "--key", &key, "--to", &to];
    // It is good for an hour, which is little for a certificate.
    hold(&well, "certificate", "warn", "a.example, good for 59 min");
    hold(&well, "app", "ok", "takes connections");
    hold(&["--cert", &certificate, "--key", &certificate], "certificates", "fail", "private key");
    hold(&["--cert", &certificate], "certificates", "fail", "--key 0 times");
    hold(&["--to", "http://127.0.0.1:1"], "app", "warn", "takes none");
    hold(&[], "app", "fail", "none is named");
    let nowhere = checked(&[]);
    assert!(nowhere.iter().any(|(name, level, _)| name == "listens" && level == "fail"));
}
