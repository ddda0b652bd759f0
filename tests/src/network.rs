//! One network as processes: control plane, sidecars, gateway; and its authority, as an attacker
//! with the stolen store has it.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prost::Message;
use rustls::ClientConfig;
use tollway_identity::{
    Authority, AuthorityPem, Credentials, Expected, IssueError, IssueRequest, IssuedChain, KeyPair,
    SystemRequest, TrustBundle, TrustBundles, client_config,
};
use tollway_model::{Instance, Label, ServiceName, TrustDomain};
use tollway_store::{Limits, Store};
use tollway_testkit::{Process, RawClient, Start, TempDir, TlsRelay, binary, retry_until};

use crate::pki;

/// Far more than anything here takes; a test that waits for it has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The life of a certificate that a test issues.
const HOUR: Duration = Duration::from_secs(3600);

/// Server names in the network `west`, and that of a [`front`].
pub const STOCK: &str = "stock.default.west.mesh";
pub const CONTROL: &str = "control.west.mesh";
pub const FRONT: &str = "a.example";

pub struct Network {
    pub name: String,
    store: TempDir,
    pub control: Process,
}

pub fn tollway() -> Start {
    Start::new(binary("tollway").unwrap())
        .env("TOLLWAY_LOG", "info,tollway_proxy=debug,tollway_control=debug")
        .ready_within(PATIENCE)
}

impl Network {
    pub fn start(name: &str) -> Self {
        Self::start_by(tollway(), name, &[])
    }

    /// A network whose control plane has these options.
    pub fn start_with(name: &str, options: &[&str]) -> Self {
        Self::start_by(tollway(), name, options)
    }

    /// The same where the control plane is started by `start`.
    pub fn start_by(start: Start, name: &str, options: &[&str]) -> Self {
        let store = TempDir::new().unwrap();
        let control = start
            .args(["control", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
            .args(["--network", name, "--store"])
            .arg(store.path())
            // All networks of these tests are on this machine.
            .args(["--peer-addresses", "127.0.0.0/8"])
            .args(options)
            .start_listening()
            .unwrap();
        Self { name: name.to_owned(), store, control }
    }

    pub fn control_address(&self) -> SocketAddr {
        self.control.port("control").unwrap()
    }

    /// What a command about this network's store prints.
    pub fn command(&self, arguments: &[&str], stdin: &[u8]) -> Vec<u8> {
        let output = self.run(arguments, stdin);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        output.stdout
    }

    /// The error output of a command that must fail.
    pub fn failing_command(&self, arguments: &[&str], stdin: &[u8]) -> String {
        let output = self.run(arguments, stdin);
        assert!(!output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn run(&self, arguments: &[&str], stdin: &[u8]) -> Output {
        let mut child = Command::new(binary("tollway").unwrap())
            .args(&arguments[..2])
            .arg("--store")
            .arg(self.store.path())
            .args(&arguments[2..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(stdin).unwrap();
        child.wait_with_output().unwrap()
    }

    fn data_plane(&self, kind: &str, token: &[&str]) -> Start {
        let token = self.command(&[&["token", "create", "--uses", "any"], token].concat(), b"");
        tollway()
            .env("TOLLWAY_TOKEN", String::from_utf8(token).unwrap().trim())
            .args([kind, "--control"])
            .arg(self.control_address().to_string())
            .args(["--admin-listen", "127.0.0.1:0"])
    }

    /// A sidecar of `app` on free ports that has everything it waits for: then `/v1.0/healthz`
    /// succeeds.
    pub fn sidecar(&self, app: &str, options: &[&str]) -> Process {
        let sidecar = self
            .data_plane("sidecar", &[])
            .args(["--app-id", app, "--http-listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"])
            .args(["--outbound-listen", "127.0.0.1:0", "--inbound-listen", "127.0.0.1:0"])
            .args(options)
            .start_listening()
            .unwrap();
        let api = sidecar.port("http").unwrap();
        until_status(api, "GET /v1.0/healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", 204);
        sidecar
    }

    pub fn gateway(&self) -> Process {
        self.gateway_with(&[])
    }

    /// A gateway that advertises this address.
    pub fn gateway_at(&self, address: &str) -> Process {
        self.gateway_with(&["--advertise", address])
    }

    pub fn gateway_with(&self, options: &[&str]) -> Process {
        self.data_plane("gateway", &["--gateway"])
            .args(["--listen", "127.0.0.1:0"])
            .args(options)
            .start_listening()
            .unwrap()
    }

    /// A gateway that only dials out.
    pub fn dialling_gateway(&self) -> Process {
        let gateway = self.data_plane("gateway", &["--gateway"]);
        gateway.args(["--dial-out"]).start_listening().unwrap()
    }

    /// What another network joins this one with, once a gateway is known.
    pub fn join_bundle(&self) -> Vec<u8> {
        let bundle = retry_until(PATIENCE, "a join bundle", || {
            let output = self.run(&["join", "export"], b"");
            output.status.success().then_some(output.stdout)
        });
        bundle.unwrap()
    }

    /// Makes this network and `other` trust each other. Both have a gateway.
    pub fn join(&self, other: &Self) {
        self.join_with(other, &[]);
    }

    /// The same; this one accepts with `options`.
    pub fn join_with(&self, other: &Self, options: &[&str]) {
        self.join_bundle();
        self.command(&[&["join", "accept", "-"], options].concat(), &other.join_bundle());
    }

    pub fn trust_domain(&self) -> TrustDomain {
        TrustDomain::default_for(&label(&self.name))
    }

    /// The network's own authority, read from a copy of its store.
    pub fn authority(&self) -> Authority {
        authority_of(&self.store.path().join("tollway.store"), &self.name)
    }

    pub fn service(&self, app: &str) -> ServiceName {
        ServiceName { app: label(app), namespace: label("default"), network: label(&self.name) }
    }

    /// An honest certificate of `app` that believes this network.
    pub fn credentials(&self, app: &str) -> Credentials {
        let authority = self.authority();
        issue(&authority, self.service(app), &authority)
    }

    /// Plain clients of the relay reach `address` as `caller` of this network would reach
    /// `callee`.
    pub fn relay(&self, address: SocketAddr, caller: &str, callee: &str, alpn: &[u8]) -> TlsRelay {
        let (config, name) = self.client(caller, callee, alpn);
        TlsRelay::start(address, &name, config).unwrap()
    }

    /// How `caller` of this network reaches `callee`: its certificate, its expectation, and the
    /// server name.
    pub fn client(&self, caller: &str, callee: &str, alpn: &[u8]) -> (Arc<ClientConfig>, String) {
        let callee = self.service(callee);
        let expected = Expected::service(&callee, &self.trust_domain());
        let config = client_config(&self.credentials(caller), &expected, &[alpn]).unwrap();
        (config, callee.dns_san())
    }

    /// How `caller` of this network reaches its control plane.
    pub fn client_of_control(&self, caller: &str) -> (Arc<ClientConfig>, String) {
        let expected = Expected::control(&label(&self.name), &self.trust_domain());
        let config = client_config(&self.credentials(caller), &expected, &[b"h2"]).unwrap();
        (config, format!("control.{}.mesh", self.name))
    }
}

/// The authority of the network `name`, read from a copy of its store's file.
pub fn authority_of(file: &Path, name: &str) -> Authority {
    /// As the control plane stores it.
    #[derive(Clone, PartialEq, Message)]
    struct Stored {
        #[prost(string, tag = "3")]
        certificate_pem: String,
        #[prost(string, tag = "4")]
        key_pem: String,
    }
    let copies = TempDir::new().unwrap();
    let copy = copies.path().join("copy");
    std::fs::copy(file, &copy).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stored = runtime.block_on(async {
        let store = Store::open_embedded(&copy, Limits::default()).await.unwrap();
        Stored::decode(store.get(b"secret/authority").await.unwrap().unwrap().value).unwrap()
    });
    let pem = AuthorityPem { certificate: stored.certificate_pem, key: stored.key_pem };
    let network = label(name);
    Authority::from_pem(&TrustDomain::default_for(&network), &network, &pem).unwrap()
}

/// A front before the app at `to`, a URL, started by `start`; the folder has its certificate.
pub fn front(start: Start, to: &str, options: &[&str]) -> (TempDir, Process) {
    let files = TempDir::new().unwrap();
    let (certificate, key) =
        pki::Authority::new("fronts").server(&[FRONT]).write(files.path(), "a");
    let front = start
        .args(["front", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--cert"])
        .arg(certificate)
        .arg("--key")
        .arg(key)
        .args(["--to", to])
        .args(options)
        .start_listening()
        .unwrap();
    (files, front)
}

/// A certificate of `service` by `authority`, for a process that trusts `trusted`.
pub fn issue(authority: &Authority, service: ServiceName, trusted: &Authority) -> Credentials {
    issue_by(authority, trusted, |csr_der| {
        let (instance, ttl) = (Instance::new("i-1").unwrap(), HOUR);
        let request = IssueRequest { csr_der, service, instance, ttl };
        authority.issue(&request, SystemTime::now()).unwrap()
    })
}

/// A certificate of a part of the mesh by `authority`, for a process that trusts `trusted`.
pub fn issue_system(
    authority: &Authority,
    trusted: &Authority,
    issue: impl FnOnce(&SystemRequest, SystemTime) -> Result<IssuedChain, IssueError>,
) -> Credentials {
    issue_by(authority, trusted, |csr_der| {
        let (instance, ttl) = (Instance::new("i-1").unwrap(), HOUR);
        issue(&SystemRequest { csr_der, instance, ttl }, SystemTime::now()).unwrap()
    })
}

fn issue_by(
    authority: &Authority,
    trusted: &Authority,
    issue: impl FnOnce(Vec<u8>) -> IssuedChain,
) -> Credentials {
    let key = KeyPair::generate().unwrap();
    let issued = issue(key.csr_der().unwrap());
    let bundle = |of: &Authority| {
        let roots = vec![of.root_der().clone()];
        TrustBundle::new(of.network().clone(), of.trust_domain().clone(), roots).unwrap()
    };
    let mut bundles = vec![bundle(authority)];
    if trusted.trust_domain() != authority.trust_domain() {
        bundles.push(bundle(trusted));
    }
    Credentials::new(&key, issued.chain, TrustBundles::new(1, bundles).unwrap()).unwrap()
}

pub fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

/// Sends `request` on new connections until it is answered with `status`.
#[track_caller]
pub fn until_status(address: SocketAddr, request: &str, status: u16) {
    let mut last = String::new();
    let answered = retry_until(PATIENCE, "the awaited answer", || {
        let mut client = RawClient::connect(address).ok()?;
        client.send(request).ok()?;
        let answer = client
            .read_until(Duration::from_secs(10), |bytes| {
                bytes.windows(4).any(|end| end == b"\r\n\r\n")
            })
            .ok()?;
        last = answer.text();
        (answer.statuses() == [status]).then_some(())
    });
    assert!(answered.is_ok(), "never {status}, at last: {last}");
}

/// The value of a counter without labels on a process's admin port.
pub fn metric(process: &Process, name: &str) -> u64 {
    process.metric(name).unwrap()
}
