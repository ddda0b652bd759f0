//! Control planes that keep what they know in a real etcd: one serves, another goes on where it was,
//! whatever becomes of the first.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use tollway_testkit::{
    EtcdServer, Process, TOOL_MISSING, TempDir, free_address, retry_until, tool,
};
use tollway_tests::mesh::http::get;
use tollway_tests::mesh::load::Load;
use tollway_tests::mesh::{PATIENCE, Sidecar, start_tollway, until_counted};
use tollway_tests::program;

/// A network whose control planes, at most two of them, have one address and one etcd.
struct Replicated {
    etcd: EtcdServer,
    files: TempDir,
    address: SocketAddr,
    /// The addresses that members are given.
    members_use: Vec<SocketAddr>,
}

impl Replicated {
    fn new(etcd: EtcdServer) -> Self {
        let address = free_address().unwrap();
        Self { etcd, files: TempDir::new().unwrap(), address, members_use: vec![address] }
    }

    fn admin_dir(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn url(&self) -> String {
        format!("etcd://{}/tollway/west", self.etcd.address())
    }

    fn control(&self, name: &str, options: &[&str]) -> Process {
        self.control_with_lease(name, "2", options)
    }

    fn control_with_lease(&self, name: &str, lease_s: &str, options: &[&str]) -> Process {
        start_tollway("control")
            .args(["--store", &self.url(), "--network", "west", "--etcd-lease-s", lease_s])
            .args(["--listen", &self.address.to_string(), "--admin-dir"])
            .arg(self.admin_dir(name))
            .args(options)
            .start()
            .unwrap()
    }

    /// Runs a command on the admin socket of a control plane.
    fn command(&self, name: &str, arguments: &[&str]) -> Output {
        let store = self.admin_dir(name);
        Command::new(program()).args(arguments).arg("--store").arg(store).output().unwrap()
    }

    /// As [`Self::command`], once that succeeds.
    fn done(&self, name: &str, arguments: &[&str]) -> String {
        let reported = retry_until(PATIENCE, &format!("{arguments:?} at {name}"), || {
            let output = self.command(name, arguments);
            output.status.success().then_some(output.stdout)
        });
        String::from_utf8(reported.unwrap()).unwrap()
    }

    fn members(&self) -> Vec<String> {
        self.members_use.iter().map(SocketAddr::to_string).collect()
    }

    fn sidecar(&self, control: &str, app: &str, port: u16) -> Sidecar {
        let token = self.files.path().join(app);
        let made = self.done(control, &["token", "create", "--app", app]);
        tollway_net::secret_file::write(&token, made.as_ref()).unwrap();
        let process = start_tollway("sidecar")
            .args(["--app-id", app, "--app-port", &port.to_string()])
            .args(["--control", &self.members().join(","), "--token-file"])
            .arg(token)
            .args(["--http-listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"])
            .args(["--outbound-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
            .args(["--inbound-listen", "127.0.0.1:0"])
            .start_listening()
            .unwrap();
        Sidecar { process }
    }
}

/// Waits for a line of a process.
#[track_caller]
fn until_said(process: &Process, words: &str) {
    let said = || process.log().contains(words).then_some(());
    let waited = retry_until(PATIENCE, words, said);
    assert!(waited.is_ok(), "{words}: not in\n{}", process.log());
}

macro_rules! etcd {
    () => {{
        if tool("etcd").is_none() || tool("etcdctl").is_none() {
            tollway_testkit::skip!("{TOOL_MISSING}etcd, etcdctl");
        }
        EtcdServer::start(&[]).unwrap()
    }};
}

#[test]
fn another_control_plane_goes_on_where_one_was_killed() {
    let west = Replicated::new(etcd!());
    let mut first = west.control("first", &[]);
    until_said(&first, "serving");
    let admin = free_address().unwrap();
    let admin_listen = ["--admin-listen", &admin.to_string()];
    let mut second = west.control_with_lease("second", "60", &admin_listen);
    until_said(&second, "standing by");
    // It is ready to take over, and says that it does not serve.
    assert!(get(admin, "/readyz").starts_with("HTTP/1.1 200 "));
    assert!(get(admin, "/metrics").contains("\ntollway_control_serves 0\n"));
    let echo = start_tollway("echo").args(["--http", "127.0.0.1:0"]).start_listening().unwrap();
    let port = echo.port("http").unwrap().port();
    let (caller, _app) =
        (west.sidecar("first", "caller", port), west.sidecar("first", "echo", port));
    caller.until_served("echo");
    let neighbour = ["--vni", "7", "--ip", "10.0.0.1", "--mac", "02:00:00:00:00:01"];
    let host = ["--host-ip", "192.0.2.1", "--host-mac", "02:00:00:00:00:09", "-g", "racks"];
    west.done("first", &[&["neighbours", "apply"][..], &neighbour, &host].concat());

    first.kill().unwrap();
    until_said(&second, "serving");
    assert!(get(admin, "/metrics").contains("\ntollway_control_serves 1\n"));
    // It still has its former peers, by the same authority; new ones are served too.
    caller.until_served("echo");
    let found =
        west.done("second", &["neighbours", "get", "-g", "racks", "--vni", "7", "10.0.0.1"]);
    assert!(found.contains("192.0.2.1"), "{found}");
    let newcomer = west.sidecar("second", "newcomer", port);
    newcomer.until_served("echo");
    caller.until_served("newcomer");

    // One that ends in order leaves at once: the next need not wait for a lease to end.
    let third = west.control("first", &[]);
    until_said(&third, "standing by");
    assert!(second.terminate(PATIENCE).unwrap().success());
    until_said(&third, "serving");
    caller.until_served("newcomer");
}

#[test]
fn members_go_on_with_another_control_plane_at_once_and_no_request_fails() {
    let west = Replicated::new(etcd!());
    let second_address = free_address().unwrap();
    let west = Replicated { members_use: vec![west.address, second_address], ..west };
    let first = west.control("first", &[]);
    until_said(&first, "serving");
    let mut controls = vec![first];
    let elsewhere = |name: &str, address: SocketAddr| {
        let (url, dir) = (west.url(), west.admin_dir(name));
        let control = start_tollway("control")
            .args(["--store", &url, "--network", "west", "--etcd-lease-s", "2", "--admin-dir"])
            .arg(dir)
            .args(["--listen", &address.to_string()])
            .start()
            .unwrap();
        until_said(&control, "standing by");
        control
    };
    let echo = start_tollway("echo").args(["--http", "127.0.0.1:0"]).start_listening().unwrap();
    let port = echo.port("http").unwrap().port();
    let (caller, app) =
        (west.sidecar("first", "caller", port), west.sidecar("first", "echo", port));
    caller.until_served("echo");
    let url = format!("http://{}/v1.0/invoke/echo/method/echo", caller.http());
    for (name, address) in [("second", second_address), ("third", west.address)] {
        let mut last = controls.pop().unwrap();
        let next = elsewhere(name, address);
        let load = Load::http(&url, 100, Duration::from_secs(8));
        until_counted(&caller.process, "tollway_outbound_requests_total", 100);
        last.kill().unwrap();
        until_said(&next, "serving");
        for sidecar in [&caller, &app] {
            let back = || {
                let connected = sidecar.process.metric("tollway_control_connected").ok()?;
                let registered = sidecar.process.metric("tollway_control_registered").ok()?;
                (connected + registered == 2).then_some(())
            };
            let back = retry_until(PATIENCE, "a control plane", back);
            assert!(back.is_ok(), "{name}: {}", sidecar.process.log());
        }
        load.assert_no_errors();
        // What only a control plane can do is done by the one that serves now.
        let newcomer = west.sidecar(name, &format!("{name}-newcomer"), port);
        newcomer.until_served("echo");
        caller.until_served(&format!("{name}-newcomer"));
        controls.push(next);
    }
}

#[test]
fn a_control_plane_that_stood_still_ends_when_another_has_taken_over() {
    let west = Replicated::new(etcd!());
    let mut first = west.control("first", &[]);
    until_said(&first, "serving");
    // At an address of its own, since the first one, though suspended, still has the other.
    let elsewhere = Replicated { address: free_address().unwrap(), ..west };
    let second = elsewhere.control("second", &[]);
    until_said(&second, "standing by");
    first.signal(Signal::STOP).unwrap();
    until_said(&second, "serving");
    let token = elsewhere.done("second", &["token", "create", "--app", "late"]);
    first.signal(Signal::CONT).unwrap();
    let ended = first.wait(PATIENCE).unwrap();
    assert_eq!(ended.code(), Some(1), "{}", first.log());
    assert!(first.log().contains("is no master of its etcd any more"), "{}", first.log());
    assert!(!token.is_empty() && !second.log().contains("is no master"), "{}", second.log());
}

#[test]
fn one_that_stands_by_can_be_terminated() {
    let west = Replicated::new(etcd!());
    let first = west.control("first", &[]);
    until_said(&first, "serving");
    let mut second = west.control("second", &[]);
    until_said(&second, "standing by");
    assert!(second.terminate(PATIENCE).unwrap().success(), "{}", second.log());
}

#[test]
fn etcd_that_is_not_there_is_named() {
    let closed = tollway_testkit::ClosedPort::on(std::net::Ipv4Addr::LOCALHOST).unwrap();
    let dir = TempDir::new().unwrap();
    let output = Command::new(program())
        .args(["control", "--listen", "127.0.0.1:0", "--store"])
        .arg(format!("etcd://{}/tollway", closed.address()))
        .arg("--admin-dir")
        .arg(dir.path())
        .output()
        .unwrap();
    let reported = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{reported}");
    assert!(reported.contains(&closed.address().to_string()), "{reported}");
}

#[test]
fn mistakes_in_the_options_of_the_store_are_reported() {
    for (arguments, said) in [
        (&["--store", "etcd://a:1/x"][..], "--admin-dir"),
        (&["--store", "dir", "--admin-dir", "d"], "--admin-dir is for a store in etcd"),
        (&["--store", "dir", "--etcd-ca", "f"], "--etcd-ca is for a store in etcd"),
        (&["--store", "etcd://a/x", "--admin-dir", "d"], "`a` is no member of etcd"),
        (&["--store", "etcd://a:1/x", "--admin-dir", "d", "--etcd-ca", "/no"], "cannot read /no"),
    ] {
        let output = Command::new(program()).arg("control").args(arguments).output().unwrap();
        let reported = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && reported.contains(said), "{arguments:?}: {reported}");
    }
}

#[test]
fn etcd_is_spoken_to_over_tls() {
    if tool("etcd").is_none() || tool("etcdctl").is_none() {
        tollway_testkit::skip!("{TOOL_MISSING}etcd, etcdctl");
    }
    let files = TempDir::new().unwrap();
    let path = |name: &str| files.path().join(name).to_str().unwrap().to_owned();
    let write = |name: &str, text: String| {
        tollway_net::secret_file::write(path(name).as_ref(), text.as_bytes()).unwrap();
    };
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::new(vec![]).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    write("ca", ca.self_signed(&ca_key).unwrap().pem());
    let issuer = rcgen::Issuer::new(ca, ca_key);
    for name in ["server", "client"] {
        let key = rcgen::KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let certificate = rcgen::CertificateParams::new(names).unwrap();
        write(name, certificate.signed_by(&key, &issuer).unwrap().pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
    let etcd = EtcdServer::start_with_tls(&[
        "--cert-file",
        &path("server"),
        "--key-file",
        &path("server.key"),
        "--trusted-ca-file",
        &path("ca"),
        "--client-cert-auth",
    ])
    .unwrap();
    let west = Replicated::new(etcd);
    let (ca, certificate, key) = (path("ca"), path("client"), path("client.key"));
    let with_ca = ["--etcd-ca", &ca];
    let whole = [&with_ca[..], &["--etcd-cert", &certificate, "--etcd-key", &key]].concat();
    let control = west.control("first", &whole);
    until_said(&control, "serving");
    west.done("first", &["token", "create", "--app", "a"]);
    drop(control);
    // Without a certificate it is refused, with the name of the refusing hop.
    let mut refused = west.control("second", &with_ca);
    assert_eq!(refused.wait(PATIENCE).unwrap().code(), Some(1));
    assert!(refused.log().contains(&west.etcd.address().to_string()), "{}", refused.log());
}
