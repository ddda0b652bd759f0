//! What runs on a machine: containerd, the kubelet and kube-proxy, on the first one of a cluster the
//! control plane, and how each is configured.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::process::{WaitOptions, wait};
use serde_json::{Value, json};

use super::keys::{ADMINISTRATOR, CONTROLLERS, ON_MACHINE, PROXY, SCHEDULER};
use super::machine::FILES;
use super::plan::{Cluster, Machine};
use super::plan::{DNS_SERVICE, PODS, SERVICES};
use super::state::{Settings, write};
use crate::process;

/// The programs of the rig come first: a host may have others of the same name.
const PATH: &str = "/run/rig/kube:/run/rig/node:/usr/sbin:/usr/bin:/sbin:/bin";
const CONTAINERD: &str = include_str!("containerd.toml");
/// How long the API server, or containerd, may take to answer.
const READY_LIMIT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(100);

/// A process by the name of its program.
pub(super) type Service = (&'static str, Child);

/// Starts all of them, in an order in which each finds what it needs.
pub(super) fn start(
    settings: &Settings,
    cluster: &Cluster,
    machine: &Machine,
) -> Result<Vec<Service>> {
    let is_first = cluster.first().name == machine.name;
    let mut started = Vec::new();
    if is_first {
        started.push(spawn("etcd", &etcd())?);
        started.push(spawn("kube-apiserver", &apiserver(machine))?);
    }
    write(Path::new("/var/etc/containerd.toml"), CONTAINERD)?;
    started.push(spawn("containerd", &["--config", "/var/etc/containerd.toml"].map(Into::into))?);
    write_network(machine)?;
    until("containerd", || process::output(program("ctr").arg("version")).is_ok())?;
    import_images()?;
    let server = if is_first { ADMINISTRATOR } else { machine.name };
    until("the API server", || {
        let mut kubectl = program("kubectl");
        kubectl.args(["--kubeconfig", &access(server), "get", "--raw", "/readyz"]);
        process::output(&mut kubectl).is_ok()
    })?;
    if is_first {
        started.push(spawn("kube-controller-manager", &controllers(settings))?);
        started.push(spawn("kube-scheduler", &scheduler())?);
    }
    let kubelet = kubelet(settings, machine);
    write(Path::new("/var/etc/kubelet.json"), &kubelet.to_string())?;
    // Names out of the cluster are not to be found: there is nothing outside.
    write(Path::new("/var/etc/resolv.conf"), "nameserver 127.0.0.53\n")?;
    started.push(spawn(
        "kubelet",
        &[
            "--config=/var/etc/kubelet.json".to_owned(),
            format!("--node-labels=tollway.dev/control-plane={is_first}"),
            format!("--kubeconfig={}", access(machine.name)),
            format!("--hostname-override={}", machine.name),
            format!("--node-ip={}", machine.address),
        ],
    )?);
    write(Path::new("/var/etc/kube-proxy.json"), &proxy(machine).to_string())?;
    started.push(spawn("kube-proxy", &["--config=/var/etc/kube-proxy.json".to_owned()])?);
    Ok(started)
}

/// Waits for every process that ends, as the first one of a machine has to, as long as the machine runs. A
/// service that ends is named in the log.
pub(super) fn reap(machine: &Machine, services: &[Service]) -> Result<()> {
    loop {
        let (pid, status) = match wait(WaitOptions::empty()) {
            Ok(Some(ended)) => ended,
            Ok(None) | Err(Errno::INTR) => continue,
            Err(error) => return Err(error).context("nothing runs on the machine any more"),
        };
        let pid = pid.as_raw_nonzero().get().unsigned_abs();
        if let Some((name, _)) = services.iter().find(|(_, child)| child.id() == pid) {
            eprintln!("{}: {name} ended: {status:?}", machine.name);
        }
    }
}

fn spawn(name: &'static str, arguments: &[String]) -> Result<Service> {
    let failed = || format!("could not start {name}");
    let log = File::create(format!("/var/log/{name}.log")).with_context(failed)?;
    let errors = log.try_clone().with_context(failed)?;
    let mut command = program(name);
    command.args(arguments).stdin(Stdio::null()).stdout(log).stderr(errors);
    Ok((name, command.spawn().with_context(failed)?))
}

/// A program of the rig with the environment of a machine.
fn program(name: &str) -> Command {
    let folder = if matches!(name, "containerd" | "ctr") { "node" } else { "kube" };
    let mut command = Command::new(Path::new(FILES).join(folder).join(name));
    command.env_clear().env("PATH", PATH).env("HOME", "/var/root").current_dir("/");
    command
}

fn until(what: &str, mut answers: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + READY_LIMIT;
    while !answers() {
        if Instant::now() > deadline {
            bail!("{what} did not answer within {READY_LIMIT:?}");
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn import_images() -> Result<()> {
    let folder = Path::new(FILES).join("images");
    let failed = || format!("could not list {}", folder.display());
    for entry in folder.read_dir().with_context(failed)? {
        let archive = entry.with_context(failed)?.path();
        process::output(program("ctr").args(IMPORT).arg(archive))?;
    }
    Ok(())
}

/// Arguments of `ctr` before an archive with an image for pods.
pub(super) const IMPORT: [&str; 4] = ["--namespace", "k8s.io", "images", "import"];

/// A client's access file on a machine.
fn access(client: &str) -> String {
    format!("{ON_MACHINE}/{client}.kubeconfig")
}

fn key(name: &str) -> String {
    format!("{ON_MACHINE}/{name}")
}

fn etcd() -> Vec<String> {
    const CLIENTS: &str = "http://127.0.0.1:2379";
    [
        "--data-dir=/var/lib/etcd",
        // A rig does not outlive its host.
        "--unsafe-no-fsync",
        &format!("--listen-client-urls={CLIENTS}"),
        &format!("--advertise-client-urls={CLIENTS}"),
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--log-level=warn",
    ]
    .map(str::to_owned)
    .into()
}

fn apiserver(machine: &Machine) -> Vec<String> {
    vec![
        "--etcd-servers=http://127.0.0.1:2379".to_owned(),
        format!("--advertise-address={}", machine.address),
        "--secure-port=6443".to_owned(),
        format!("--service-cluster-ip-range={SERVICES}"),
        format!("--tls-cert-file={}", key("apiserver.crt")),
        format!("--tls-private-key-file={}", key("apiserver.key")),
        format!("--client-ca-file={}", key("ca.crt")),
        format!("--token-auth-file={}", key("tokens.csv")),
        format!("--kubelet-client-certificate={}", key("kubelet-client.crt")),
        format!("--kubelet-client-key={}", key("kubelet-client.key")),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
        format!("--service-account-key-file={}", key("sa.pub")),
        format!("--service-account-signing-key-file={}", key("sa.key")),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--allow-privileged=true".to_owned(),
    ]
}

fn controllers(settings: &Settings) -> Vec<String> {
    let access = access(CONTROLLERS);
    vec![
        format!("--kubeconfig={access}"),
        format!("--authentication-kubeconfig={access}"),
        format!("--authorization-kubeconfig={access}"),
        "--use-service-account-credentials".to_owned(),
        format!("--service-account-private-key-file={}", key("sa.key")),
        format!("--root-ca-file={}", key("ca.crt")),
        format!("--cluster-signing-cert-file={}", key("ca.crt")),
        format!("--cluster-signing-key-file={}", key("ca.key")),
        format!("--node-monitor-grace-period={}s", settings.grace.as_secs()),
        "--node-monitor-period=1s".to_owned(),
        "--leader-elect=false".to_owned(),
        "--allocate-node-cidrs=false".to_owned(),
    ]
}

fn scheduler() -> Vec<String> {
    let access = access(SCHEDULER);
    vec![
        format!("--kubeconfig={access}"),
        format!("--authentication-kubeconfig={access}"),
        format!("--authorization-kubeconfig={access}"),
        "--leader-elect=false".to_owned(),
    ]
}

fn kubelet(settings: &Settings, machine: &Machine) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": key("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [DNS_SERVICE.to_string()],
        "clusterDomain": "cluster.local",
        "resolvConf": "/var/etc/resolv.conf",
        "podCIDR": machine.pods,
        // It would change those of the host: better that it does not start.
        "protectKernelDefaults": true,
        // A container may not have the right to lower it.
        "oomScoreAdj": 0,
        "maxOpenFiles": 20_000,
        "failSwapOn": false,
        // Tests kill the same container again and again.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
        // The host's disk is not the machine's.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
        },
        // The machine is heard of four times in this.
        "nodeLeaseDurationSeconds": settings.grace.as_secs(),
        "nodeStatusUpdateFrequency": "2s",
        "syncFrequency": "10s",
    })
}

fn proxy(machine: &Machine) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": access(PROXY)},
        "hostnameOverride": machine.name,
        "clusterCIDR": PODS,
        // These limits are the host's.
        "conntrack": {"maxPerCore": 0, "min": 0},
        "nftables": {"minSyncPeriod": "100ms"},
    })
}

/// The network of pods. Among machines a pod's address stays what it is; elsewhere it is the machine's.
fn write_network(machine: &Machine) -> Result<()> {
    let folder = Path::new("/var/etc/cni");
    std::fs::create_dir_all(folder)
        .with_context(|| format!("could not make {}", folder.display()))?;
    let network = json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "hairpinMode": true,
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni-addresses",
                    "ranges": [[{"subnet": machine.pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}},
        ],
    });
    write(&folder.join("10-pods.conflist"), &network.to_string())?;
    // The network namespace outlives the machine, so the table may be there.
    let rules = format!(
        "add table ip pods\ndelete table ip pods\n\
         table ip pods {{ chain leaving {{ type nat hook postrouting priority 100; \
         ip saddr {PODS} ip daddr != {{ {PODS}, 224.0.0.0/4 }} oifname \"eth0\" masquerade; }}; }}\n"
    );
    let file = Path::new("/var/etc/pods.nft");
    write(file, &rules)?;
    process::output(Command::new("nft").arg("-f").arg(file)).map(drop)
}
