//! Keys, tokens and access files of a cluster: an authority of its own, and a token for each client of
//! the API server.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use super::plan::{API_SERVICE, Cluster};
use super::state::{State, write};
use crate::process;

/// Where a machine has the folder of its cluster's keys.
pub(super) const ON_MACHINE: &str = "/run/rig/keys";
/// The certificates live longer than any rig.
const DAYS: &str = "365";
/// Instead of the system's, which has extensions of its own.
const OPENSSL_CONF: &str = "openssl.cnf";

/// The files of the clients on machines are `NAME.kubeconfig`.
pub(super) const ADMINISTRATOR: &str = "admin";
pub(super) const CONTROLLERS: &str = "controllers";
pub(super) const SCHEDULER: &str = "scheduler";
pub(super) const PROXY: &str = "proxy";

/// Makes all of them, and the administrator's access file that the host uses.
pub(super) fn make(state: &State, cluster: &Cluster) -> Result<()> {
    let folder = state.keys(cluster.name);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("could not make {}", folder.display()))?;
    write(&folder.join(OPENSSL_CONF), "[req]\ndistinguished_name = name\n[name]\n")?;
    let subject = format!("/CN=cluster-{}", cluster.name);
    certificate(
        &folder,
        "ca",
        &subject,
        &[
            "basicConstraints=critical,CA:true",
            "keyUsage=critical,keyCertSign,digitalSignature,cRLSign",
        ],
    )?;
    let names = format!(
        "subjectAltName=IP:{},IP:{API_SERVICE},IP:127.0.0.1,DNS:localhost,DNS:kubernetes,\
         DNS:kubernetes.default,DNS:kubernetes.default.svc,\
         DNS:kubernetes.default.svc.cluster.local",
        cluster.first().address
    );
    certificate(
        &folder,
        "apiserver",
        "/CN=kube-apiserver",
        &["basicConstraints=critical,CA:false", "extendedKeyUsage=serverAuth", &names],
    )?;
    certificate(
        &folder,
        "kubelet-client",
        "/O=system:masters/CN=kube-apiserver",
        &["basicConstraints=critical,CA:false", "extendedKeyUsage=clientAuth"],
    )?;
    openssl(
        &folder,
        &["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
        "sa.key",
    )?;
    openssl(&folder, &["pkey", "-in", "sa.key", "-pubout"], "sa.pub")?;
    let mut tokens = String::new();
    let mut client = |file: &str, user: &str, group: &str| -> Result<String> {
        let token = token()?;
        writeln!(tokens, "{token},{user},{user},\"{group}\"")?;
        let access = access(cluster, &token, &Path::new(ON_MACHINE).join("ca.crt"));
        write(&folder.join(format!("{file}.kubeconfig")), &access)?;
        Ok(token)
    };
    let administrator = client(ADMINISTRATOR, "admin", "system:masters")?;
    client(CONTROLLERS, "system:kube-controller-manager", "")?;
    client(SCHEDULER, "system:kube-scheduler", "")?;
    client(PROXY, "system:kube-proxy", "")?;
    for machine in cluster.machines {
        client(machine.name, &format!("system:node:{}", machine.name), "system:nodes")?;
    }
    write(&folder.join("tokens.csv"), &tokens)?;
    let access = access(cluster, &administrator, &folder.join("ca.crt"));
    write(&state.kubeconfig(cluster.name), &access)
}

/// A key and a certificate of the cluster's authority, or of that itself.
fn certificate(folder: &Path, name: &str, subject: &str, extensions: &[&str]) -> Result<()> {
    let key = format!("{name}.key");
    let mut arguments =
        vec!["req", "-config", OPENSSL_CONF, "-x509", "-new", "-nodes", "-newkey", "ec"];
    arguments.extend(["-pkeyopt", "ec_paramgen_curve:P-256", "-keyout", &key]);
    arguments.extend(["-subj", subject, "-days", DAYS]);
    if name != "ca" {
        arguments.extend(["-CA", "ca.crt", "-CAkey", "ca.key"]);
    }
    for extension in extensions {
        arguments.extend(["-addext", extension]);
    }
    openssl(folder, &arguments, &format!("{name}.crt"))
}

fn openssl(folder: &Path, arguments: &[&str], out: &str) -> Result<()> {
    let mut openssl = Command::new("openssl");
    openssl.current_dir(folder).args(arguments).args(["-out", out]);
    process::output(&mut openssl).map(drop)
}

fn token() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("could not read /dev/urandom")?;
    let mut text = String::new();
    for byte in bytes {
        write!(text, "{byte:02x}")?;
    }
    Ok(text)
}

/// A client's access file. JSON is YAML.
fn access(cluster: &Cluster, token: &str, authority: &Path) -> String {
    let server = format!("https://{}:6443", cluster.first().address);
    let name = cluster.name;
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{
            "name": name,
            "cluster": {"server": server, "certificate-authority": authority},
        }],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    })
    .to_string()
}
