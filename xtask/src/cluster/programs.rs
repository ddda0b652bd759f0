//! The programs of a cluster at pinned versions, built once into the cache: Kubernetes with etcd,
//! containerd with runc and CNI's plugins, CoreDNS.
//!
//! The pins are Go modules in `xtask/tools/cluster-*`. Only runc needs a C compiler.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::debian::{self, Unpacked};
use super::images;
use crate::workspace::Workspace;
use crate::{cache, go, process};

/// Folders of the cache with all that a machine needs.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Programs {
    /// Kubernetes, etcd, `kubectl`.
    pub(super) kube: PathBuf,
    /// containerd and `ctr`, runc, and `cni` with the plugins.
    pub(super) node: PathBuf,
    /// Archives of images, which every machine has from the beginning.
    pub(super) images: PathBuf,
}

/// One module in `xtask/tools`, and what is built of it.
struct Part {
    module: &'static str,
    builds: &'static [Build],
    /// Links to what is built, each with its target.
    links: &'static [(&'static str, &'static str)],
}

/// One call of `go build`.
struct Build {
    packages: &'static [&'static str],
    /// A file, or a folder with `/` at its end.
    into: &'static str,
    tags: &'static str,
    stamps: &'static [Stamp],
    links_c: bool,
}

/// A version that a program states about itself, which is that of a module.
struct Stamp {
    variable: &'static str,
    module: &'static str,
    form: Form,
}

/// What of `v1.2.3` is stamped.
#[derive(Clone, Copy)]
enum Form {
    Whole,
    WithoutV,
    Major,
    Minor,
}

const KUBERNETES: &str = "k8s.io/kubernetes";
const CONTAINERD: &str = "github.com/containerd/containerd/v2";

const KUBE: Part = Part {
    module: "cluster-kube",
    builds: &[
        Build {
            packages: &["."],
            into: "kube",
            tags: "",
            // The server states the first ones, its clients the others. Without them it is v0.0.0.
            stamps: &[
                kubernetes("k8s.io/component-base/version.gitVersion", Form::Whole),
                kubernetes("k8s.io/component-base/version.gitMajor", Form::Major),
                kubernetes("k8s.io/component-base/version.gitMinor", Form::Minor),
                kubernetes("k8s.io/client-go/pkg/version.gitVersion", Form::Whole),
                kubernetes("k8s.io/client-go/pkg/version.gitMajor", Form::Major),
                kubernetes("k8s.io/client-go/pkg/version.gitMinor", Form::Minor),
            ],
            links_c: false,
        },
        // Alone it is small enough for an image.
        Build { packages: &["."], into: "etcd", tags: "etcd", stamps: &[], links_c: false },
    ],
    links: &[
        ("kube-apiserver", "kube"),
        ("kube-controller-manager", "kube"),
        ("kube-proxy", "kube"),
        ("kube-scheduler", "kube"),
        ("kubectl", "kube"),
        ("kubelet", "kube"),
    ],
};

const NODE: Part = Part {
    module: "cluster-node",
    builds: &[
        Build {
            packages: &[
                "github.com/containerd/containerd/v2/cmd/containerd",
                "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
                "github.com/containerd/containerd/v2/cmd/ctr",
            ],
            into: "./",
            tags: "no_btrfs,no_devmapper,no_zfs,no_tracing",
            stamps: &[Stamp {
                variable: "github.com/containerd/containerd/v2/version.Version",
                module: CONTAINERD,
                form: Form::Whole,
            }],
            links_c: false,
        },
        Build {
            packages: &[
                "github.com/containernetworking/plugins/plugins/main/bridge",
                "github.com/containernetworking/plugins/plugins/main/loopback",
                "github.com/containernetworking/plugins/plugins/ipam/host-local",
                "github.com/containernetworking/plugins/plugins/meta/portmap",
            ],
            into: "cni/",
            tags: "",
            stamps: &[],
            links_c: false,
        },
        // Without seccomp it starts no pod: the kubelet wants the default profile for each.
        Build {
            packages: &["github.com/opencontainers/runc"],
            into: "runc",
            tags: "seccomp,netgo,osusergo",
            stamps: &[Stamp {
                variable: "main.version",
                module: "github.com/opencontainers/runc",
                form: Form::WithoutV,
            }],
            links_c: true,
        },
        Build { packages: &["."], into: "pause", tags: "", stamps: &[], links_c: false },
    ],
    links: &[],
};

const DNS: Part = Part {
    module: "cluster-dns",
    builds: &[Build { packages: &["."], into: "coredns", tags: "", stamps: &[], links_c: false }],
    links: &[],
};

const fn kubernetes(variable: &'static str, form: Form) -> Stamp {
    Stamp { variable, module: KUBERNETES, form }
}

/// All programs and images, which are built unless the cache has them.
///
/// # Errors
///
/// Says which of them cannot be had, with the compiler's reason on the screen.
pub(super) fn build(workspace: &Workspace) -> Result<Programs> {
    let unpacked = debian::unpacked()?;
    let kube = KUBE.folder(workspace, &unpacked)?;
    let node = NODE.folder(workspace, &unpacked)?;
    let dns = DNS.folder(workspace, &unpacked)?;
    let built = images::Built {
        pause: &node.join("pause"),
        coredns: &dns.join("coredns"),
        etcd: &kube.join("etcd"),
    };
    let images = images::folder(&built, &unpacked)?;
    Ok(Programs { kube, node, images })
}

impl Part {
    fn folder(&self, workspace: &Workspace, unpacked: &Unpacked) -> Result<PathBuf> {
        let module = workspace.go_module(self.module);
        let file = module.join("go.mod");
        let versions = std::fs::read_to_string(&file)
            .with_context(|| format!("could not read {}", file.display()))?;
        let commands = self
            .builds
            .iter()
            .map(|build| Ok((build, build.arguments(&versions)?)))
            .collect::<Result<Vec<_>>>()?;
        let options: Vec<&Vec<String>> = commands.iter().map(|(_, options)| options).collect();
        let folder = cache::entry(self.module, (go::pins(&module)?, options, self.links));
        cache::once(&folder, |partial| {
            for (build, arguments) in &commands {
                let mut go = go::build_command(&module)?;
                go.args(arguments).arg("-o").arg(partial.join(build.into)).args(build.packages);
                if build.links_c {
                    unpacked.link_seccomp(&mut go);
                }
                process::run(&mut go)?;
            }
            for (link, target) in self.links {
                cache::link(Path::new(target), &partial.join(link))?;
            }
            Ok(())
        })
        .with_context(|| format!("{} could not be built", self.module))?;
        Ok(folder)
    }
}

impl Build {
    /// All arguments but the packages and where the result is put.
    fn arguments(&self, versions: &str) -> Result<Vec<String>> {
        let mut flags = String::from("-s -w");
        for stamp in self.stamps {
            let version = version_of(versions, stamp.module)
                .with_context(|| format!("no version of {} in go.mod", stamp.module))?;
            flags.push_str(&format!(" -X {}={}", stamp.variable, stamp.form.of(version)));
        }
        if self.links_c {
            flags.push_str(" -extldflags -static");
        }
        Ok(["-trimpath", "-buildvcs=false", "-tags", self.tags, "-ldflags", &flags]
            .map(str::to_owned)
            .into())
    }
}

impl Form {
    fn of(self, version: &str) -> &str {
        let number = version.strip_prefix('v').unwrap_or(version);
        let mut parts = number.split('.');
        match self {
            Self::Whole => version,
            Self::WithoutV => number,
            Self::Major => parts.next().unwrap_or_default(),
            Self::Minor => parts.nth(1).unwrap_or_default(),
        }
    }
}

/// The version of a module in the text of a `go.mod`.
fn version_of<'a>(text: &'a str, module: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let mut words = line.trim_start().trim_start_matches("require ").split_whitespace();
        (words.next()? == module).then(|| words.next()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_states_the_version_that_is_pinned() {
        let pins =
            "module a\n\nrequire b.example/c v0.1.0\nrequire (\n\tk8s.io/kubernetes v1.37.2\n)\n";
        assert_eq!(version_of(pins, KUBERNETES), Some("v1.37.2"));
        assert_eq!(version_of(pins, "b.example/c"), Some("v0.1.0"));
        assert_eq!(version_of(pins, "b.example"), None);
        let arguments = KUBE.builds[0].arguments(pins).unwrap().join(" ");
        for stamp in ["version.gitVersion=v1.37.2", "gitMajor=1 ", "gitMinor=37 "] {
            assert!(arguments.contains(stamp), "{arguments}");
        }
        assert!(KUBE.builds[0].arguments("module a\n").is_err());
        assert_eq!(Form::WithoutV.of("v1.5.2"), "1.5.2");
    }

    #[test]
    fn modules_have_a_version_for_every_stamp() {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools");
        for part in [KUBE, NODE, DNS] {
            let pins = std::fs::read_to_string(tools.join(part.module).join("go.mod")).unwrap();
            for build in part.builds {
                build.arguments(&pins).unwrap();
            }
        }
    }
}
