//! Joining the mesh: tokens, control planes that are away or another's, clocks, join bundles.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tollway_testkit::{ClosedPort, Process, TempDir, need_tool, retry_until};
use tollway_tests::program;

use crate::failures::terminal::{Failure, failure_of, tollway};
use tollway_tests::mesh::{PATIENCE, start_tollway};

/// One control plane of the network `local`.
struct Network {
    control: Process,
    files: TempDir,
}

impl Network {
    fn start() -> Self {
        let files = TempDir::new().unwrap();
        let control = start_tollway("control")
            .args(["--listen", "127.0.0.1:0", "--store"])
            .arg(files.path().join("store"))
            .start_listening()
            .unwrap();
        Self { control, files }
    }

    fn address(&self) -> String {
        self.control.port("control").unwrap().to_string()
    }

    fn store(&self) -> String {
        self.files.path().join("store").to_str().unwrap().to_owned()
    }

    fn token(&self, options: &[&str]) -> String {
        let store = self.store();
        let mut command = Command::new(program());
        let output = command.args(["token", "create", "--store", &store]).args(options).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }
}

/// A sidecar that cannot enter the mesh.
fn sidecar(control: &str, token: &str) -> Command {
    let files = TempDir::new().unwrap();
    let file = files.path().join("token");
    tollway_net::secret_file::write(&file, token.as_ref()).unwrap();
    // It lives as long as the test program, for the command to read.
    std::mem::forget(files);
    sidecar_with(control, &file)
}

fn sidecar_with(control: &str, token_file: &Path) -> Command {
    let mut command = Command::new(program());
    let any = "127.0.0.1:0";
    command.args(["sidecar", "--app-id", "web", "--control", control]);
    command.args(["--http-listen", any, "--grpc-listen", any, "--outbound-listen", any]);
    command.args(["--inbound-listen", any, "--admin-listen", any, "--token-file"]);
    command.arg(token_file);
    command
}

fn refused(control: &str, token: &str) -> Failure {
    failure_of(sidecar(control, token))
}

#[test]
fn missing_damaged_foreign_and_old_tokens_have_their_own_errors() {
    let network = Network::start();
    let address = network.address();
    let missing = sidecar_with(&address, Path::new("/nowhere/token"));
    failure_of(missing).check("ERR_TOKEN_MISSING", &["/nowhere/token", "tollway token create"]);
    refused(&address, "nonsense").check("ERR_TOKEN_MALFORMED", &["tollway1.", "copy it whole"]);
    let other_app = network.token(&["--app", "other"]);
    let parts = ["web.default.local", "tollway token create"];
    refused(&address, &other_app).check("ERR_TOKEN_REFUSED", &parts);
    let short = network.token(&["--ttl-ms", "1"]);
    let expired = retry_until(PATIENCE, "the token's end", || {
        let reported = refused(&address, &short);
        reported.exit.is_some().then_some(reported)
    });
    expired.unwrap().check("ERR_TOKEN_EXPIRED", &["expired", "ago", "tollway token create"]);
}

/// The harm: any account on the machine joins with a token that lies about.
#[test]
fn a_token_that_others_can_read_is_refused_with_what_to_type() {
    let network = Network::start();
    let files = TempDir::new().unwrap();
    let file = files.path().join("token");
    std::fs::write(&file, network.token(&["--app", "other"])).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let shown = file.to_str().unwrap();
    let chmod = format!("chmod 600 {shown}");
    let open = || sidecar_with(&network.address(), &file);
    failure_of(open()).check("ERR_FILE_UNUSABLE", &[shown, "mode 644", &chmod]);
    let mut checked = Command::new(program());
    checked.args([
        "check",
        "--json",
        "sidecar",
        "--token-file",
        shown,
        "--control",
        &network.address(),
    ]);
    let checked = String::from_utf8(checked.output().unwrap().stdout).unwrap();
    assert!(checked.contains(&chmod), "{checked}");
    // It is read, and is another app's, where that is accepted, and once the file is closed.
    let mut accepted = open();
    accepted.arg("--allow-open-files");
    failure_of(accepted).check("ERR_TOKEN_REFUSED", &["web.default.local"]);
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    failure_of(open()).check("ERR_TOKEN_REFUSED", &["web.default.local"]);
}

#[test]
fn secrets_are_written_for_their_owner_alone_and_not_through_a_link() {
    let network = Network::start();
    let files = TempDir::new().unwrap();
    let store = network.store();
    let token = files.path().join("token");
    // An open file that is there is replaced.
    std::fs::write(&token, "before").unwrap();
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o666)).unwrap();
    let create = |file: &Path| {
        let options = ["token", "create", "--store", &store, "-o", file.to_str().unwrap()];
        Command::new(program()).args(options).output().unwrap()
    };
    let done = create(&token);
    assert!(done.status.success() && done.stdout.is_empty(), "{done:?}");
    assert_eq!(token.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_ne!(std::fs::read(&token).unwrap(), b"before");
    let (link, theirs) = (files.path().join("link"), files.path().join("theirs"));
    std::os::unix::fs::symlink(&theirs, &link).unwrap();
    assert!(!create(&link).status.success());
    assert!(!theirs.exists(), "nothing is written through the link");
    // A bundle that others could have changed is not accepted.
    let bundle = files.path().join("bundle");
    std::fs::write(&bundle, "{}").unwrap();
    std::fs::set_permissions(&bundle, PermissionsExt::from_mode(0o664)).unwrap();
    let accept = ["join", "accept", "--store", &store, bundle.to_str().unwrap()];
    tollway(accept).check("ERR_FILE_UNUSABLE", &["chmod 600"]);
}

#[test]
fn a_control_plane_of_another_mesh_gets_no_token() {
    let (ours, other) = (Network::start(), Network::start());
    let reported = refused(&other.address(), &ours.token(&[]));
    reported.check("ERR_CONTROL_FOREIGN", &[&other.address(), "another root"]);
}

#[test]
fn a_control_plane_that_is_away_is_named() {
    let network = Network::start();
    let token = network.token(&[]);
    let nobody = ClosedPort::on(Ipv4Addr::LOCALHOST).unwrap();
    let nobody = nobody.address().to_string();
    let mut command = sidecar(&nobody, &token);
    command.args(["--start-timeout-ms", "500"]);
    failure_of(command)
        .check("ERR_CONTROL_UNREACHABLE", &[&nobody, "Connection refused", "--control"]);
}

#[test]
fn commands_report_that_no_control_plane_runs_over_a_store() {
    let files = TempDir::new().unwrap();
    let store = files.path().to_str().unwrap();
    for command in [["get", "services"], ["token", "create"], ["join", "export"]] {
        let reported = tollway([&command[..], &["--store", store]].concat());
        reported.check("ERR_NO_CONTROL_PLANE", &[store, "tollway control --store"]);
    }
}

#[test]
fn a_clock_that_is_far_off_is_reported_with_the_distance() {
    let faketime = need_tool!("faketime");
    let network = Network::start();
    let token = network.token(&[]);
    let shifted = |by: &str| {
        let plain = sidecar(&network.address(), &token);
        let mut command = Command::new(&faketime);
        command.args(["--exclude-monotonic", "-f", by, program()]).args(plain.get_args());
        failure_of(command)
    };
    shifted("-3d").check("ERR_CLOCK_OFF", &["clocks", "NTP", "2 d 23 h"]);
    shifted("+30d").check("ERR_CLOCK_OFF", &["clocks", "NTP", "29 d"]);
}

#[test]
fn a_bundle_that_cannot_be_accepted_is_refused_with_its_reason() {
    let network = Network::start();
    let file = network.files.path().join("bundle");
    tollway_net::secret_file::write(&file, b"{}").unwrap();
    let file = file.to_str().unwrap();
    let reported = tollway(["join", "accept", "--store", &network.store(), file]);
    reported.check("ERR_JOIN_REFUSED", &["bundle"]);
}

#[test]
fn a_refusal_of_the_control_plane_is_reported_with_its_text() {
    let network = Network::start();
    let (store, forever) = (network.store(), u64::MAX.to_string());
    let reported = tollway(["token", "create", "--store", &store, "--ttl-ms", &forever]);
    reported.check("ERR_ADMIN_REFUSED", &["the longest life is 366 days"]);
    let reported = tollway(["join", "remove", "--store", &store, "east"]);
    reported.check("ERR_ADMIN_REFUSED", &["east", "tollway join list"]);
}

#[test]
fn a_token_without_its_control_plane_is_not_taken_for_the_local_one() {
    let runtime = TempDir::new().unwrap();
    for words in [&["call", "files/"][..], &["run", "--app-id", "a", "--", "true"]] {
        let mut command = Command::new("env");
        // Behind the name, since tests take the variable out.
        command.arg("TOLLWAY_TOKEN=tollway1.x").arg(program()).args(words);
        command.env("XDG_RUNTIME_DIR", runtime.path());
        failure_of(command)
            .check("ERR_BAD_CONFIGURATION", &["TOLLWAY_TOKEN", "--control", "unset"]);
    }
}
