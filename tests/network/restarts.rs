//! Restarts, long absences and clocks that jump: nothing needs a new token or a hand.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollway_testkit::{Process, Start, TempDir, need_tool, retry_until};
use tollway_tests::mesh::http::get;
use tollway_tests::mesh::{AppProtocol, Mesh, Network, PATIENCE, Sidecar, counter, start_tollway};
use tollway_tests::{new_options, program};

use crate::failures::terminal::{Failure, failure_of};

/// The shortest life of a certificate, in seconds.
const LIFE_S: u64 = 10;
const SHORT: [&str; 2] = ["--certificate-ttl-s", "10"];
pub(crate) const ANY: &str = "127.0.0.1:0";

/// The harm: after a control plane was away for longer than certificates last, each workload needs a new
/// token by hand.
#[test]
fn control_planes_that_were_away_for_longer_than_certificates_last_are_joined_again() {
    let mut mesh = Mesh::with(&[&SHORT[..], &["--admin-listen", ANY]].concat());
    let app = mesh.east.app("echo", "a", AppProtocol::Http);
    let caller = mesh.west.caller(&[]);
    caller.until_served("echo.default.east");
    for network in [&mut mesh.east, &mut mesh.west] {
        network.remove_tokens();
        network.control.kill().unwrap();
    }
    let processes = [&caller.process, &app.sidecar.process, &mesh.east.gateway, &mesh.west.gateway];
    until_all_ended(&processes);
    let answer = call(&caller);
    assert!(!answer.starts_with("HTTP/1.1 200"), "certificates have ended: {answer}");
    mesh.east.restart_control();
    mesh.west.restart_control();
    caller.until_served("echo.default.east");
    for process in [&mesh.east.gateway, &mesh.west.gateway] {
        let registered = retry_until(PATIENCE, "the gateway's registration", || {
            (process.metric("tollway_control_registered").ok() == Some(1)).then_some(())
        });
        registered.unwrap();
    }
    for network in [&mesh.east, &mesh.west] {
        // Its gateway, and its sidecar.
        assert!(counter(&network.control, "tollway_renewals_late_total") >= 2);
    }
}

fn call(caller: &Sidecar) -> String {
    get(caller.http(), "/v1.0/invoke/echo.default.east/method/healthz")
}

/// Waits until the certificate of each process has ended.
fn until_all_ended(processes: &[&Process]) {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let ended = retry_until(PATIENCE, "the end of all certificates", || {
        let ends = processes.iter().map(|process| counter(process, CERTIFICATE_ENDS));
        ends.max().filter(|end| now() > *end)
    });
    ended.unwrap();
}

const CERTIFICATE_ENDS: &str = "tollway_certificate_expiry_timestamp_seconds";

/// A clock that a test sets, of the processes that are started with it.
pub(crate) struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// Of `libfaketime`, which is beside its program.
    pub(crate) fn beside(faketime: &Path, files: &TempDir) -> Option<Self> {
        let prefix = faketime.parent()?.parent()?;
        let library = std::fs::read_dir(prefix.join("lib")).ok()?.flatten().find_map(|entry| {
            let library = entry.path().join("faketime/libfaketimeMT.so.1");
            library.exists().then_some(library)
        })?;
        let clock = Self { library, file: files.path().join("clock") };
        clock.set("+0");
        Some(clock)
    }

    /// By how much it is ahead.
    pub(crate) fn set(&self, ahead: &str) {
        let next = self.file.with_extension("next");
        std::fs::write(&next, ahead).unwrap();
        std::fs::rename(next, &self.file).unwrap();
    }

    pub(crate) fn on(&self, start: Start) -> Start {
        start
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("FAKETIME_DONT_RESET", "1")
    }
}

/// The harm: a machine that slept, or whose clock was put right, renews nothing, and no call succeeds
/// until its processes are started again.
#[test]
fn a_clock_that_jumps_over_the_end_of_all_certificates_stops_calls_for_seconds_only() {
    let faketime = need_tool!("faketime");
    let files = TempDir::new().unwrap();
    let clock = Clock::beside(&faketime, &files).expect("the library of faketime");
    let control = clock
        .on(start_tollway("control"))
        .args(["--network", "east", "--listen", ANY, "--admin-listen", ANY, "--store"])
        .arg(files.path().join("store"))
        .start_listening()
        .unwrap();
    let address = control.port("control").unwrap();
    let token = token(&files);
    let echo =
        start_tollway("echo").args(["--http", ANY, "--name", "a"]).start_listening().unwrap();
    let port = echo.port("http").unwrap().port().to_string();
    let sidecar = |app: &str, options: &[&str]| {
        let start = clock.on(start_tollway("sidecar"));
        Sidecar {
            process: listening(start, app, address)
                .arg("--token-file")
                .arg(&token)
                .args(options)
                .start_listening()
                .unwrap(),
        }
    };
    let callee = sidecar("echo", &["--app-port", &port]);
    let caller = sidecar("caller", &[]);
    caller.until_served("echo.default.east");
    std::fs::remove_file(&token).unwrap();
    clock.set("+90000");
    caller.until_served("echo.default.east");
    // All of them, and a newcomer finds a control plane whose certificate is valid.
    for process in [&callee.process, &caller.process] {
        let renewed = retry_until(PATIENCE, "a renewal", || {
            let ahead = Duration::from_secs(90_000) + UNIX_EPOCH.elapsed().unwrap();
            (counter(process, CERTIFICATE_ENDS) > ahead.as_secs()).then_some(())
        });
        renewed.unwrap();
        assert!(!process.log().contains("ERR_CLOCK_OFF"), "{}", process.log());
    }
    caller.until_served("echo.default.east");
}

/// A token for any app.
pub(crate) fn token(files: &TempDir) -> PathBuf {
    let store = files.path().join("store");
    let made = Command::new(program())
        .args(["token", "create", "--store"])
        .arg(store)
        .args(new_options(&["--uses", "any"]))
        .output();
    let path = files.path().join("any.token");
    tollway_net::secret_file::write(&path, &made.unwrap().stdout).unwrap();
    path
}

pub(crate) fn listening(start: Start, app: &str, control: SocketAddr) -> Start {
    start
        .args(["--app-id", app, "--control", &control.to_string(), "--admin-listen", ANY])
        .args(["--http-listen", ANY, "--grpc-listen", ANY, "--outbound-listen", ANY])
        .args(["--inbound-listen", ANY])
}

/// An app's sidecar whose identity is in a folder, without any token.
fn returning(network: &Network, folder: &Path, options: &[&str]) -> Sidecar {
    let start = listening(start_tollway("sidecar"), "web", network.control_address);
    let start = start.arg("--state-dir").arg(folder).args(options);
    Sidecar { process: start.start_listening().unwrap() }
}

/// The same, which fails to start.
fn refused(network: &Network, folder: &Path, options: &[&str]) -> Failure {
    let mut command = Command::new(program());
    command.args(["sidecar", "--app-id", "web", "--control", &network.control_address.to_string()]);
    command.args(["--admin-listen", ANY, "--http-listen", ANY, "--grpc-listen", ANY]);
    command.args(["--outbound-listen", ANY, "--inbound-listen", ANY, "--start-timeout-ms", "3000"]);
    command.arg("--state-dir").arg(folder).args(options);
    failure_of(command)
}

fn until_registered(process: &Process) {
    let connected = retry_until(PATIENCE, "the connection to the control plane", || {
        (process.metric("tollway_control_connected").ok() == Some(1)).then_some(())
    });
    connected.unwrap();
}

/// The harm: a workload that is started again needs its token, which is spent or has expired.
#[test]
fn an_instance_returns_after_a_kill_and_after_a_reboot_without_a_token() {
    let mut network = Network::start("west", "127.0.1.1", &SHORT);
    let folder = network.file("state");
    let kept = ["--state-dir", folder.to_str().unwrap()];
    let mut sidecar = network.sidecar("web", &[&kept[..], &["--instance", "web-1"]].concat());
    let gateway_folder = network.file("gateway-state");
    let gateway_kept = ["--state-dir", gateway_folder.to_str().unwrap()];
    let mut gateway = network.another_gateway(&gateway_kept);
    network.remove_tokens();
    // Killed, and at once again.
    sidecar.process.kill().unwrap();
    let mut sidecar = returning(&network, &folder, &["--instance", "web-1"]);
    until_registered(&sidecar.process);
    // A reboot that takes longer than its certificate lasts. The name is in the folder, too.
    sidecar.process.kill().unwrap();
    gateway.kill().unwrap();
    network.control.kill().unwrap();
    std::thread::sleep(Duration::from_secs(LIFE_S + 1));
    network.restart_control();
    let sidecar = returning(&network, &folder, &[]);
    until_registered(&sidecar.process);
    let log = network.control.log();
    assert!(log.contains("issued a certificate service=web.default.west instance=web-1"), "{log}");
    let control = network.control_address.to_string();
    let gateway = start_tollway("gateway")
        .args(["--control", &control, "--listen", ANY, "--admin-listen", ANY])
        .args(gateway_kept)
        .start_listening()
        .unwrap();
    until_registered(&gateway);
}

/// An app of `tollway run` and one of daprd, whose tokens are good for one use.
#[test]
fn apps_of_run_and_of_daprd_return_after_a_kill_without_a_token() {
    let network = Network::start("west", "127.0.1.1", &[]);
    let control = network.control_address.to_string();
    let store = network.file("store");
    let token = |app: &str| {
        let made = Command::new(program())
            .args(["token", "create", "--app", app, "--store"])
            .arg(&store)
            .output();
        String::from_utf8(made.unwrap().stdout).unwrap().trim().to_owned()
    };
    let folder = network.file("state");
    let path = folder.to_str().unwrap();
    let run = |token: Option<String>| {
        let start = start_tollway("run")
            .args(["--app-id", "job", "--control", &control, "--state-dir", path])
            .args(["--", "sh", "-c", "env | grep TOLLWAY; exec sleep 60"]);
        started(start, token, "TOLLWAY_OUTBOUND_PORT=")
    };
    let daprd_folder = network.file("daprd-state");
    let daprd = |token: Option<String>| {
        let start = start_tollway("sidecar")
            .args(["--dapr", "--app-id", "web", "--control-plane-address", &control])
            .args(["--dapr-http-port", "0", "--dapr-grpc-port", "0", "--metrics-port", "0"])
            .args(["--dapr-internal-grpc-port", "0", "--dapr-listen-addresses", "127.0.0.1"])
            .env("DAPR_HOST_IP", "127.0.0.1")
            .env("TOLLWAY_STATE_DIR", &daprd_folder);
        started(start, token, "listener open")
    };
    let [mut job, mut web] = [run(Some(token("job"))), daprd(Some(token("web")))];
    assert!(!job.log().contains("TOLLWAY_STATE_DIR"), "{}", job.log());
    job.kill().unwrap();
    web.kill().unwrap();
    drop((run(None), daprd(None)));
}

/// A process that prints `ready` once it has its identity.
fn started(start: Start, token: Option<String>, ready: &str) -> Process {
    let start = token.into_iter().fold(start, |start, token| start.env("TOLLWAY_TOKEN", token));
    let process = start.start().unwrap();
    let is_ready =
        retry_until(PATIENCE, "the start", || process.log().contains(ready).then_some(()));
    is_ready.unwrap_or_else(|error| panic!("{error}: {}", process.log()));
    process
}

#[test]
fn state_folders_that_are_not_this_instances_are_refused() {
    let network = Network::start("west", "127.0.1.1", &[]);
    let folder = network.file("state");
    let path = folder.to_str().unwrap();
    let mut sidecar = network.sidecar("web", &["--state-dir", path, "--instance", "web-1"]);
    refused(&network, &folder, &[]).check("ERR_STATE_FOLDER", &[path, "another process"]);
    sidecar.process.kill().unwrap();
    let other = refused(&network, &folder, &["--instance", "web-2"]);
    other.check("ERR_STATE_FOLDER", &["web.default.west (instance web-1)", "instance web-2"]);
    let other = refused(&network, &folder, &["--namespace", "shop"]);
    other.check("ERR_STATE_FOLDER", &["web.default.west", "web.shop.west"]);
    let identity = folder.join("identity");
    let text = std::fs::read_to_string(&identity).unwrap();
    std::fs::write(&identity, &text[..text.len() - 40]).unwrap();
    let damaged = refused(&network, &folder, &[]);
    damaged.check("ERR_STATE_FOLDER", &[identity.to_str().unwrap(), "damaged", "new token"]);
    let opened = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&folder, opened).unwrap();
    refused(&network, &folder, &[]).check("ERR_STATE_FOLDER", &["chmod 700"]);
}

/// The harm: a copied state folder is good for ever.
#[test]
fn a_copy_of_a_state_folder_is_refused_once_its_owner_has_renewed() {
    let network = Network::start("west", "127.0.1.1", &SHORT);
    let (folder, copy) = (network.file("state"), network.file("copy"));
    let identity = folder.join("identity");
    let sidecar = network.sidecar("web", &["--state-dir", folder.to_str().unwrap()]);
    network.remove_tokens();
    let stolen = std::fs::read(&identity).unwrap();
    std::fs::create_dir(&copy).unwrap();
    let modes = [(copy.clone(), 0o700), (copy.join("identity"), 0o600)];
    std::fs::write(&modes[1].0, &stolen).unwrap();
    for (path, mode) in modes {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, mode).unwrap();
    }
    // The copy ends; its owner renews meanwhile.
    std::thread::sleep(Duration::from_secs(LIFE_S + 1));
    assert_ne!(std::fs::read(&identity).unwrap(), stolen, "{}", sidecar.process.log());
    until_registered(&sidecar.process);
    refused(&network, &copy, &[]).check("ERR_KEY_REFUSED", &["enrol"]);
}
