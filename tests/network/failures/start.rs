//! What keeps a process from starting: ports, addresses, rights, files, settings.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use tollway_testkit::{TempDir, need_tool, skip};
use tollway_tests::program;

use crate::failures::terminal::{failure_of, tollway};

fn control(store: &Path, listen: &str) -> Vec<String> {
    let store = store.to_str().unwrap();
    ["control", "--store", store, "--listen", listen].map(str::to_owned).to_vec()
}

#[test]
fn a_taken_port_names_its_holder_and_the_option() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    let files = TempDir::new().unwrap();
    let own_pid = format!("(pid {})", std::process::id());
    let parts = [taken.as_str(), &own_pid, "port 0"];
    let reported = tollway(control(&files.path().join("store"), &taken));
    reported.check("ERR_PORT_TAKEN", &[&parts[..], &["--listen"]].concat());
    let reported = tollway(["sidecar", "--app-id", "web", "--http-listen", &taken]);
    reported.check("ERR_PORT_TAKEN", &[&parts[..], &["--http-listen"]].concat());
    let reported = tollway(["gateway", "--listen", &taken]);
    reported.check("ERR_PORT_TAKEN", &[&parts[..], &["--listen"]].concat());
}

#[test]
fn an_address_of_another_machine_is_no_place_to_listen() {
    let files = TempDir::new().unwrap();
    // Reserved for documentation (RFC 5737): unused.
    let reported = tollway(control(&files.path().join("store"), "192.0.2.1:0"));
    reported.check("ERR_ADDRESS_NOT_HERE", &["192.0.2.1:0", "ip address"]);
}

#[test]
fn a_port_below_1024_needs_a_right() {
    let unshare = need_tool!("unshare");
    let setpriv = need_tool!("setpriv");
    // A fresh network namespace has the kernel's own idea of which ports are privileged.
    let confined = |program: &str| {
        let mut command = Command::new(&unshare);
        command.args(["--user", "--map-current-user", "--net"]).arg(&setpriv);
        command.args(["--bounding-set", "-net_bind_service"]);
        command.args(["--inh-caps", "-net_bind_service", "--ambient-caps", "-net_bind_service"]);
        command.arg(program);
        command
    };
    if !confined("true").status().is_ok_and(|status| status.success()) {
        skip!("network namespaces are not permitted here");
    }
    let files = TempDir::new().unwrap();
    let mut command = confined(program());
    command.args(control(&files.path().join("store"), "0.0.0.0:443"));
    failure_of(command).check("ERR_MISSING_PRIVILEGE", &["0.0.0.0:443", "above 1023"]);
}

#[test]
fn a_file_that_cannot_be_used_is_named() {
    let files = TempDir::new().unwrap();
    let missing = files.path().join("nothing");
    let missing = missing.to_str().unwrap();
    let reported = tollway(["join", "accept", "--store", missing, missing]);
    reported.check("ERR_FILE_UNUSABLE", &[missing, "No such file"]);
    let mut arguments = control(&files.path().join("store"), "127.0.0.1:0");
    arguments.extend(["--ports-file".to_owned(), format!("{missing}/ports")]);
    tollway(arguments).check("ERR_FILE_UNUSABLE", &[missing]);
}

#[test]
fn a_setting_that_cannot_be_meant_is_refused() {
    let any = "127.0.0.1:0";
    let listeners = ["--http-listen", any, "--grpc-listen", any, "--outbound-listen", any];
    let sidecar = |options: &[&str]| {
        tollway([&["sidecar", "--app-id", "web"][..], &listeners[..], options].concat())
    };
    let reported = sidecar(&["--inbound-listen", "0.0.0.0:0"]);
    reported.check("ERR_BAD_CONFIGURATION", &["0.0.0.0", "--advertise"]);
}

#[test]
fn an_unknown_option_and_a_bad_name_are_errors_of_usage() {
    let reported = tollway(["sidecar", "--app-id", "a b"]);
    assert_eq!(reported.exit, Some(2), "{}", reported.text);
    assert!(reported.text.contains("the character ' '"), "{}", reported.text);
    assert_eq!(tollway(["sidecar", "--nonsense"]).exit, Some(2));
    assert_eq!(tollway(["nonsense"]).exit, Some(2));
}

#[test]
fn errors_are_json_where_the_output_is() {
    let reported = tollway(["get", "services", "--json", "--store", "/nowhere"]);
    let error: serde_json::Value = serde_json::from_str(&reported.text).unwrap();
    assert_eq!(error["errorCode"], "ERR_NO_CONTROL_PLANE");
    assert!(error["message"].as_str().unwrap().contains("/nowhere"), "{error}");
    assert!(error["hint"].is_string(), "{error}");
}
