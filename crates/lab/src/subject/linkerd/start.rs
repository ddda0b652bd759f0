//! Starts the proxies: in each network a control plane and one proxy at its app, in the caller's
//! also one at the caller, for all services that are called.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tollway_identity::{JoinToken, KeyPair};
use tollway_record::record::{Protocol, Tls};

use super::answers::{Knowledge, Served, Service, Workload};
use super::control::{CONTROL_PORT, LinkerdControlArgs};
use super::redirect::Redirect;
use crate::commands::{GRPC_PORT, HTTP_PORT};
use crate::error::LabError;
use crate::experiment::{Ground, READY_LIMIT};
use crate::progress::{Event, Progress};
use crate::subject::adapter::{Authorities, write_secret};
use crate::subject::{BACKGROUND, HOME, Leg, Route, StartedSubject, direct_url};
use tollway_net::ports_file::{self as ports, Ports};

/// App names in certificates, as Tollway's own in the same scenario.
const CALLER: &str = "client";
const APP: &str = "echo";
/// Names of the processes, after their network's.
const CONTROL: &str = "linkerd-control";
const CALLER_PROXY: &str = "linkerd-client";
const APP_PROXY: &str = "linkerd-app";
/// How long loading the rules may take.
const NFT_LIMIT: Duration = Duration::from_secs(20);
/// The addresses of apps in any network of the lab: a proxy looks these up.
const NETWORKS: &str = "10.0.0.0/8";

/// Starts everything for these legs.
pub(super) fn start(
    proxy: &Path,
    nft: &Path,
    ground: &mut Ground,
    legs: &[Leg],
    progress: &mut dyn Progress,
) -> Result<StartedSubject, LabError> {
    progress.report(&Event::Step("starting linkerd"));
    let mut start = Start::new(proxy, ground, legs)?;
    let networks: Vec<usize> = start.parts.iter().map(|part| part.network).collect();
    for part in 0..networks.len() {
        start.control(ground, part)?;
    }
    for part in 0..networks.len() {
        start.app_proxy(ground, part)?;
    }
    let outbound = start.caller_proxy(ground)?;
    for part in 0..networks.len() {
        start.redirect(ground, nft, part, outbound)?;
    }
    start.routes(ground)
}

/// A network that has a part in it.
struct NetworkPart {
    network: usize,
    /// Legs whose app is here.
    legs: Vec<Leg>,
    /// The address at which the app's proxy takes connections of other proxies.
    inbound: SocketAddr,
    caller: Option<Identity>,
    app: Identity,
    control: Option<SocketAddr>,
}

/// What a proxy proves itself with.
#[derive(Clone)]
struct Identity {
    app: &'static str,
    /// Folder of its key, its certificate request and its token.
    dir: PathBuf,
    /// `echo.default.west.mesh`
    name: String,
    /// `spiffe://west.tollway/ns/default/echo`
    id: String,
}

struct Start<'a> {
    proxy: &'a Path,
    legs: &'a [Leg],
    authorities: Authorities,
    /// The caller's is the first.
    parts: Vec<NetworkPart>,
    started: StartedSubject,
}

impl<'a> Start<'a> {
    fn new(proxy: &'a Path, ground: &Ground, legs: &'a [Leg]) -> Result<Self, LabError> {
        let networks: BTreeSet<usize> = legs.iter().map(|leg| leg.network).chain([HOME]).collect();
        let names: Vec<&str> =
            networks.iter().map(|network| ground.network(*network).name.as_str()).collect();
        let authorities = Authorities::create(&ground.file("linkerd-certificates"), &names)?;
        let parts = networks.iter().enumerate().map(|(part, &network)| {
            let caller = (network == HOME).then(|| identity(ground, &authorities, part, CALLER));
            Ok(NetworkPart {
                network,
                legs: legs.iter().filter(|leg| leg.network == network).copied().collect(),
                inbound: ground.free_port(network, false)?,
                caller: caller.transpose()?,
                app: identity(ground, &authorities, part, APP)?,
                control: None,
            })
        });
        let parts = parts.collect::<Result<_, LabError>>()?;
        Ok(Self { proxy, legs, authorities, parts, started: StartedSubject::default() })
    }

    fn control(&mut self, ground: &mut Ground, part: usize) -> Result<(), LabError> {
        let here = &self.parts[part];
        let workloads = here.caller.iter().chain([&here.app]).map(|identity| Workload {
            app: identity.app.to_owned(),
            token_file: identity.dir.join("token"),
        });
        let served = here.legs.iter().map(|leg| {
            let port = ground.app(here.network, leg)?.port();
            Ok((port, Served { port, opaque: leg.protocol == Protocol::Tcp }))
        });
        // Several legs may have one port.
        let served = served.collect::<Result<BTreeMap<u16, Served>, LabError>>()?;
        let callers = self.parts.iter().filter_map(|part| part.caller.as_ref());
        let knowledge = Knowledge {
            workloads: workloads.collect(),
            services: if here.caller.is_some() { self.services(ground)? } else { Vec::new() },
            served: served.into_values().collect(),
            callers: callers.map(|identity| identity.id.clone()).collect(),
        };
        let process = ground.process(here.network, CONTROL);
        let file = ground.file(&format!("{}.json", process.replace('/', "-")));
        let failed = |source| LabError::Write { path: file.clone(), source };
        let text = serde_json::to_string_pretty(&knowledge).map_err(|e| failed(e.into()))?;
        fs::write(&file, &text).map_err(failed)?;
        let (root, root_key) = self.authorities.keep(part)?;
        let args = LinkerdControlArgs {
            network: ground.network(here.network).name.clone(),
            root,
            root_key,
            knowledge: file,
            ports_file: ground.ports_path(&process),
        };
        let spec = ground.commands().linkerd_control(ground.network(here.network), CONTROL, &args);
        ground.start(&spec)?;
        let bound = ground.wait_ports(&process, READY_LIMIT)?;
        let address = ports::port(&args.ports_file, &bound, CONTROL_PORT)?;
        self.parts[part].control = Some(address);
        self.started.config.insert(format!("{process}/knowledge"), text);
        self.started.processes.push(process);
        Ok(())
    }

    /// One for each listener of each app that is called.
    fn services(&self, ground: &Ground) -> Result<Vec<Service>, LabError> {
        let mut services = BTreeMap::new();
        for leg in self.legs {
            let part = self.part(leg);
            let service = Service {
                address: called_at(ground, leg),
                name: format!("{APP}-{}", ground.app_name(leg)),
                namespace: ground.network(leg.network).name.clone(),
                opaque: leg.protocol == Protocol::Tcp,
                endpoint: ground.app(HOME, leg)?,
                inbound_port: part.inbound.port(),
                server_name: part.app.name.clone(),
                server_id: part.app.id.clone(),
            };
            services.insert(service.address, service);
        }
        Ok(services.into_values().collect())
    }

    fn part(&self, leg: &Leg) -> &NetworkPart {
        let part = self.parts.iter().find(|part| part.network == leg.network);
        part.expect("each leg's network has a part")
    }

    /// The proxy at an app.
    fn app_proxy(&mut self, ground: &mut Ground, part: usize) -> Result<(), LabError> {
        let here = &self.parts[part];
        if here.legs.is_empty() {
            return Ok(());
        }
        let (network, inbound) = (here.network, here.inbound);
        let apps = here.legs.iter().map(|leg| Ok(ground.app(network, leg)?.port()));
        let apps = apps.collect::<Result<BTreeSet<u16>, LabError>>()?;
        let apps: Vec<String> = apps.iter().map(u16::to_string).collect();
        let outbound = ground.free_port(network, true)?;
        let mut environment = self.environment(part, &here.app, inbound, outbound);
        environment.push(("LINKERD2_PROXY_INBOUND_PORTS", apps.join(",")));
        self.run(ground, network, APP_PROXY, environment, inbound)
    }

    /// The proxy at the caller; returns the port to which connections are to be redirected.
    fn caller_proxy(&mut self, ground: &mut Ground) -> Result<u16, LabError> {
        let (inbound, outbound) = (ground.free_port(HOME, true)?, ground.free_port(HOME, true)?);
        let caller = self.parts[0].caller.clone().expect("the caller's part is the first");
        let environment = self.environment(0, &caller, inbound, outbound);
        self.run(ground, HOME, CALLER_PROXY, environment, outbound)?;
        Ok(outbound.port())
    }

    /// The environment of every proxy: one worker, no log but warnings, and otherwise what Linkerd sets.
    fn environment(
        &self,
        part: usize,
        own: &Identity,
        inbound: SocketAddr,
        outbound: SocketAddr,
    ) -> Vec<(&'static str, String)> {
        let control = self.parts[part].control.map_or_else(String::new, |at| at.to_string());
        let dir = own.dir.display().to_string();
        vec![
            ("LINKERD2_PROXY_CORES", "1".to_owned()),
            ("LINKERD2_PROXY_LOG", "warn".to_owned()),
            ("LINKERD2_PROXY_SHUTDOWN_GRACE_PERIOD", "1s".to_owned()),
            ("LINKERD2_PROXY_INBOUND_LISTEN_ADDR", inbound.to_string()),
            ("LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS", outbound.to_string()),
            ("LINKERD2_PROXY_INBOUND_DEFAULT_POLICY", "deny".to_owned()),
            ("LINKERD2_PROXY_DESTINATION_SVC_ADDR", control.clone()),
            ("LINKERD2_PROXY_DESTINATION_PROFILE_NETWORKS", NETWORKS.to_owned()),
            ("LINKERD2_PROXY_POLICY_SVC_ADDR", control.clone()),
            ("LINKERD2_PROXY_POLICY_CLUSTER_NETWORKS", NETWORKS.to_owned()),
            ("LINKERD2_PROXY_POLICY_WORKLOAD", own.app.to_owned()),
            ("LINKERD2_PROXY_IDENTITY_SVC_ADDR", control),
            ("LINKERD2_PROXY_IDENTITY_LOCAL_NAME", own.name.clone()),
            ("LINKERD2_PROXY_IDENTITY_TOKEN_FILE", format!("{dir}/token")),
            ("LINKERD2_PROXY_IDENTITY_DIR", dir),
        ]
    }

    fn run(
        &mut self,
        ground: &mut Ground,
        network: usize,
        part: &str,
        mut environment: Vec<(&'static str, String)>,
        listener: SocketAddr,
    ) -> Result<(), LabError> {
        let admin = ground.free_port(network, true)?;
        environment.push(("LINKERD2_PROXY_ADMIN_LISTEN_ADDR", admin.to_string()));
        let lines = environment.iter().map(|(name, value)| format!("{name}={value}\n"));
        let process = ground.process(network, part);
        self.started.config.insert(format!("{process}/environment"), lines.collect());
        // Certificates as text, which would only fill the report.
        let roots = self.authorities.roots_pem();
        environment.push(("LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", roots));
        let spec = ground.spec(network, part, self.proxy).environment(environment);
        ground.start(&spec)?;
        self.started.processes.push(process.clone());
        let listeners = Ports::from([("listen".to_owned(), listener), ("admin".to_owned(), admin)]);
        ground.wait_listening(&process, network, &listeners, READY_LIMIT)
    }

    fn redirect(
        &mut self,
        ground: &Ground,
        nft: &Path,
        part: usize,
        outbound: u16,
    ) -> Result<(), LabError> {
        let here = &self.parts[part];
        let called = self.legs.iter().filter(|_| here.caller.is_some());
        let redirect = Redirect {
            called: called.map(|leg| (called_at(ground, leg), outbound)).collect(),
            inbound_port: (!here.legs.is_empty()).then(|| here.inbound.port()),
        };
        let rules = redirect.rules();
        let process = ground.process(here.network, "linkerd-redirect");
        let file = ground.file(&format!("{}.nft", process.replace('/', "-")));
        fs::write(&file, &rules)
            .map_err(|source| LabError::Write { path: file.clone(), source })?;
        let spec = ground.spec(here.network, "linkerd-redirect", nft);
        ground.run(&spec.args(["-f".into(), file.into_os_string()]), NFT_LIMIT)?;
        self.started.config.insert(format!("{process}/rules"), rules);
        Ok(())
    }

    fn routes(mut self, ground: &Ground) -> Result<StartedSubject, LabError> {
        for leg in self.legs {
            let controls = self.parts.iter().map(|part| ground.process(part.network, CONTROL));
            let roles = [
                ("client-sidecar", vec![ground.process(HOME, CALLER_PROXY)]),
                ("app-sidecar", vec![ground.process(leg.network, APP_PROXY)]),
                (BACKGROUND, controls.collect()),
            ];
            let route = Route {
                url: direct_url(leg.protocol, leg.tls, called_at(ground, leg)),
                headers: Vec::new(),
                caller_tls: None,
                cgroup: None,
                app_tls: Tls::Plain,
                hops: 2,
                tls: Tls::Mtls,
                made_of: "sidecar–sidecar".to_owned(),
                roles: roles.map(|(role, names)| (role.to_owned(), names)).into(),
            };
            self.started.routes.insert(*leg, route);
        }
        Ok(self.started)
    }
}

/// What the caller calls: a port of the app's network on which nothing listens, as that of a
/// service in a cluster, one for each of the app's listeners.
fn called_at(ground: &Ground, leg: &Leg) -> SocketAddr {
    let port = match ground.app_name(leg) {
        HTTP_PORT => 8_080,
        GRPC_PORT => 8_081,
        _ => 8_082,
    };
    SocketAddr::new(ground.network(leg.network).address, port)
}

/// Makes a key, a request for its certificate and a token.
fn identity(
    ground: &Ground,
    authorities: &Authorities,
    part: usize,
    app: &'static str,
) -> Result<Identity, LabError> {
    let authority = authorities.of(part);
    let dir = ground.file(&format!("linkerd-{}-{app}", authority.network()));
    fs::create_dir_all(&dir).map_err(|source| LabError::Write { path: dir.clone(), source })?;
    let service = authorities.service(part, app)?;
    let key = KeyPair::generate().map_err(crate::subject::CertificateError::from)?;
    let request = key.csr_der().map_err(crate::subject::CertificateError::from)?;
    let token = JoinToken::generate(authority.network(), authority.root_der())
        .map_err(crate::subject::CertificateError::from)?;
    write_secret(&dir.join("key.p8"), key.pkcs8_der().secret_der())?;
    write_secret(&dir.join("csr.der"), &request)?;
    write_secret(&dir.join("token"), token.to_string().as_bytes())?;
    let id = service.spiffe_id(authority.trust_domain()).to_string();
    Ok(Identity { app, dir, name: service.dns_san(), id })
}
