//! cargo's data on this workspace: its folder, its packages, their dependencies.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::process;

/// The workspace's members, from `cargo metadata --no-deps`.
pub(crate) struct Workspace {
    pub root: PathBuf,
    pub target: PathBuf,
    pub packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Metadata {
    workspace_root: PathBuf,
    target_directory: PathBuf,
    packages: Vec<Package>,
}

#[derive(Deserialize)]
pub(crate) struct Package {
    pub name: String,
    pub manifest_path: PathBuf,
    pub dependencies: Vec<Dependency>,
    #[serde(default)]
    pub metadata: Value,
}

#[derive(Deserialize)]
pub(crate) struct Dependency {
    pub name: String,
    pub kind: Option<DependencyKind>,
    pub rename: Option<String>,
    /// Set when the dependency is a folder of this workspace.
    pub path: Option<PathBuf>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DependencyKind {
    Dev,
    Build,
}

impl Workspace {
    pub(crate) fn load() -> Result<Self> {
        let metadata: Metadata = metadata(&["--no-deps"])?;
        Ok(Self {
            root: metadata.workspace_root,
            target: metadata.target_directory,
            packages: metadata.packages,
        })
    }

    /// Where `xtask` puts the programs it builds or installs for tests and lints.
    pub(crate) fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    /// The Go module of the tool of this name.
    pub(crate) fn go_module(&self, tool: &str) -> PathBuf {
        self.root.join("xtask").join("tools").join(tool)
    }

    /// The development build of the shipped program.
    pub(crate) fn program(&self) -> PathBuf {
        self.target.join("debug").join("tollway")
    }

    /// Every package of the build on this host, from outside too, and how they are connected.
    pub(crate) fn resolved(&self) -> Result<Resolved> {
        metadata(&["--filter-platform", host()?.as_str()])
    }
}

impl Package {
    pub(crate) fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(&self.manifest_path)
    }

    /// The name without the project's prefix: `http` for `tollway-http`, `cli` for `tollway`.
    pub(crate) fn short_name(&self) -> &str {
        short_name(&self.name)
    }
}

/// See [`Package::short_name`].
pub(crate) fn short_name(name: &str) -> &str {
    match name.strip_prefix("tollway-") {
        Some(short) => short,
        None if name == "tollway" => "cli",
        None => name,
    }
}

/// See [`Workspace::resolved`].
#[derive(Deserialize)]
pub(crate) struct Resolved {
    packages: Vec<ResolvedPackage>,
    workspace_members: Vec<String>,
    resolve: Graph,
}

#[derive(Deserialize)]
struct ResolvedPackage {
    id: String,
    name: String,
    #[serde(default)]
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Graph {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

#[derive(Deserialize)]
struct EdgeKind {
    kind: Option<DependencyKind>,
}

impl Resolved {
    /// The name by which code uses the package: `webpki` for `rustls-webpki`.
    pub(crate) fn library_name(&self, package: &str) -> String {
        let library = self
            .packages
            .iter()
            .filter(|candidate| candidate.name == package)
            .flat_map(|candidate| &candidate.targets)
            .find(|target| target.kind.iter().any(|kind| kind == "lib" || kind == "proc-macro"));
        library.map_or(package, |target| &target.name).replace('-', "_")
    }

    /// All crates that each member links, directly or not, outside of tests and build scripts.
    pub(crate) fn linked_crates(&self) -> HashMap<String, Vec<String>> {
        let names: HashMap<&str, &str> =
            self.packages.iter().map(|p| (p.id.as_str(), p.name.as_str())).collect();
        let nodes: HashMap<&str, &Node> =
            self.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let name = |id: &str| names.get(id).copied().unwrap_or(id).to_owned();
        self.workspace_members
            .iter()
            .map(|member| {
                let linked = reachable(member, &nodes);
                (name(member), linked.into_iter().map(name).collect())
            })
            .collect()
    }
}

fn reachable<'a>(start: &'a str, nodes: &HashMap<&'a str, &'a Node>) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut open = vec![start];
    while let Some(id) = open.pop() {
        let edges = nodes.get(id).map_or(&[][..], |node| &node.deps);
        for edge in edges.iter().filter(|edge| edge.dep_kinds.iter().any(|k| k.kind.is_none())) {
            if !found.contains(&edge.pkg.as_str()) {
                found.push(&edge.pkg);
                open.push(&edge.pkg);
            }
        }
    }
    found
}

fn metadata<T: serde::de::DeserializeOwned>(options: &[&str]) -> Result<T> {
    let text =
        process::output(process::cargo().args(["metadata", "--format-version=1"]).args(options))?;
    serde_json::from_str(&text).context("`cargo metadata` answered in a form unknown to xtask")
}

/// The host's target triple.
pub(crate) fn host() -> Result<String> {
    let text = process::output(process::cargo().arg("-vV"))?;
    text.lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .context("`cargo -vV` names no host")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_drop_the_prefix() {
        for (name, short) in [("tollway-http", "http"), ("tollway", "cli"), ("xtask", "xtask")] {
            assert_eq!(short_name(name), short);
        }
    }

    fn resolved() -> Resolved {
        serde_json::from_value(serde_json::json!({
            "workspace_members": ["a"],
            "packages": [
                {"id": "a", "name": "alpha"},
                {"id": "b", "name": "beta", "targets": [
                    {"name": "build-script-build", "kind": ["custom-build"]},
                    {"name": "short-beta", "kind": ["lib"]}]},
                {"id": "c", "name": "gamma"}, {"id": "d", "name": "delta"}
            ],
            "resolve": {"nodes": [
                {"id": "a", "deps": [
                    {"pkg": "b", "dep_kinds": [{"kind": null}]},
                    {"pkg": "d", "dep_kinds": [{"kind": "dev"}, {"kind": "build"}]}]},
                {"id": "b", "deps": [{"pkg": "c", "dep_kinds": [{"kind": "dev"}, {"kind": null}]}]},
                {"id": "c", "deps": [{"pkg": "b", "dep_kinds": [{"kind": null}]}]},
                {"id": "d", "deps": []}
            ]}
        }))
        .unwrap()
    }

    #[test]
    fn code_uses_the_name_of_the_library() {
        assert_eq!(resolved().library_name("beta"), "short_beta");
        assert_eq!(resolved().library_name("not-of-this-host"), "not_of_this_host");
    }

    #[test]
    fn linked_crates_follow_only_normal_dependencies() {
        let mut linked = resolved().linked_crates().remove("alpha").unwrap();
        linked.sort();
        assert_eq!(linked, ["beta", "gamma"]);
    }
}
