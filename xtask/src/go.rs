//! Go at the version that the tools need, and the tools that it builds.
//!
//! Debian's Go is older. Where the search path has no newer one, it brings the pinned toolchain as the
//! module that Go itself would fetch, verified by Go's checksum database. Toolchain and tools are in
//! [`crate::cache`]; a link in `target/tools` leads to each tool.

use std::fs::Permissions;
use std::hash::Hash;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::process::{self, find_program, is_executable};
use crate::workspace::Workspace;

/// The oldest Go that builds nearly every tool, and the one that is fetched.
pub(crate) const VERSION: [u32; 3] = [1, 26, 8];

/// A Go of the pinned version or a newer one.
///
/// # Errors
///
/// Says that there is no Go at all, or that the toolchain cannot be fetched.
pub(crate) fn toolchain() -> Result<PathBuf> {
    toolchain_of(VERSION)
}

/// A Go of this version or a newer one.
fn toolchain_of(wanted: [u32; 3]) -> Result<PathBuf> {
    let found = find_program("go").context("there is no Go on the search path to begin with")?;
    if version_of(&found).is_some_and(|version| version >= wanted) {
        return Ok(found);
    }
    let modules = cache::root().join("go-modules");
    let [major, minor, patch] = wanted;
    let version = format!("v0.0.1-go{major}.{minor}.{patch}.linux-{}", architecture()?);
    let folder = modules.join(format!("golang.org/toolchain@{version}"));
    let go = folder.join("bin/go");
    if is_executable(&go) {
        return Ok(go);
    }
    std::fs::create_dir_all(&modules)
        .with_context(|| format!("could not make {}", modules.display()))?;
    process::run(
        Command::new(found)
            .args(["mod", "download", &format!("golang.org/toolchain@{version}")])
            .current_dir(&modules)
            .env("GOMODCACHE", &modules)
            .env("GOFLAGS", "-modcacherw")
            .env("GOTOOLCHAIN", "local"),
    )?;
    // A module has no modes of files. `go` comes last: it is the sign that all of it is there.
    for programs in [format!("pkg/tool/linux_{}", architecture()?), "bin".to_owned()] {
        make_executable(&folder.join(programs))?;
    }
    Ok(go)
}

/// Go's name of this machine's architecture.
fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("there is no pinned Go for {other}"),
    }
}

/// What `go env GOVERSION` prints, as numbers; a missing patch level is 0.
fn version_of(go: &Path) -> Option<[u32; 3]> {
    let text =
        process::output(Command::new(go).args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local"));
    parse_version(&text.ok()?)
}

fn parse_version(text: &str) -> Option<[u32; 3]> {
    let mut version = [0; 3];
    for (at, number) in text.trim().strip_prefix("go")?.split('.').enumerate() {
        *version.get_mut(at)? = number.parse().ok()?;
    }
    Some(version)
}

fn make_executable(folder: &Path) -> Result<()> {
    let failed = || format!("could not make the programs in {} executable", folder.display());
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in folder.read_dir().with_context(failed)? {
        files.push(entry.with_context(failed)?.path());
    }
    files.sort_by_key(|file| file.file_name().is_some_and(|name| name == "go"));
    files
        .iter()
        .try_for_each(|file| std::fs::set_permissions(file, Permissions::from_mode(0o755)))
        .with_context(failed)
}

/// Whether the tool of this name is built from its module as it is.
pub(crate) fn is_built(workspace: &Workspace, name: &str) -> bool {
    let link = std::fs::read_link(workspace.tools().join(name)).ok();
    let built = built(workspace, name).ok();
    built.is_some_and(|built| link.as_ref() == Some(&built) && is_executable(&built))
}

/// Builds the tool unless the cache has it, and makes the link to it.
///
/// # Errors
///
/// Says that Go cannot be had or the tool cannot be built.
pub(crate) fn build(workspace: &Workspace, name: &str, package: &str) -> Result<()> {
    let built = built(workspace, name)?;
    if !is_executable(&built) {
        let mut go = build_command(&workspace.go_module(name))?;
        process::run(go.arg("-o").arg(&built).arg(package))?;
    }
    cache::link(&built, &workspace.tools().join(name))
}

/// `go build` in a module as it is, without a C compiler or library: what it builds is static.
///
/// # Errors
///
/// Says that Go cannot be had.
pub(crate) fn build_command(module: &Path) -> Result<Command> {
    command(VERSION, module, &["build"])
}

/// A command of a Go of this version or a newer one, as [`build_command`] runs it.
///
/// # Errors
///
/// Says that Go cannot be had.
pub(crate) fn command(version: [u32; 3], module: &Path, arguments: &[&str]) -> Result<Command> {
    let mut go = Command::new(toolchain_of(version)?);
    go.current_dir(module).args(arguments).env("GOTOOLCHAIN", "local");
    go.env("GOFLAGS", "-mod=readonly").env("CGO_ENABLED", "0");
    Ok(go)
}

/// The folder with the sources of a module that `module` needs.
///
/// # Errors
///
/// Says that it cannot be had.
pub(crate) fn module_folder(version: [u32; 3], module: &Path, needed: &str) -> Result<PathBuf> {
    // What was built earlier may be in the cache of tools, and its sources gone.
    process::run(&mut command(version, module, &["mod", "download", needed])?)?;
    let mut go = command(version, module, &["list", "-m", "-f", "{{.Dir}}", needed])?;
    Ok(PathBuf::from(process::output(&mut go)?.trim()))
}

/// Where the tool's program is in the cache.
fn built(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    Ok(cache::entry(name, pins(&workspace.go_module(name))?).join(name))
}

/// What the build of a module depends on: Go's version and all files of the module.
pub(crate) fn pins(module: &Path) -> Result<impl Hash + use<>> {
    let read = || -> std::io::Result<Vec<(PathBuf, Vec<u8>)>> {
        let mut files = Vec::new();
        for entry in module.read_dir()? {
            let path = entry?.path();
            let name = path.file_name().map(PathBuf::from).unwrap_or_default();
            files.push((name, std::fs::read(path)?));
        }
        files.sort();
        Ok(files)
    };
    let files = read().with_context(|| format!("could not read {}", module.display()))?;
    Ok((VERSION, files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_go_are_compared_as_numbers() {
        assert_eq!(parse_version("go1.26.8\n"), Some([1, 26, 8]));
        assert_eq!(parse_version("go1.9"), Some([1, 9, 0]));
        assert!(parse_version("go1.9") < Some(VERSION) && Some([1, 100, 0]) > Some(VERSION));
        assert_eq!(parse_version("devel +abc"), None);
    }

    #[test]
    fn a_tool_has_another_place_in_the_cache_when_its_module_changes() {
        let root = tempfile::tempdir().unwrap();
        let workspace = Workspace {
            root: root.path().to_owned(),
            target: root.path().join("target"),
            packages: Vec::new(),
        };
        let module = workspace.go_module("tool");
        std::fs::create_dir_all(&module).unwrap();
        std::fs::write(module.join("go.mod"), "module a\n").unwrap();
        let before = built(&workspace, "tool").unwrap();
        assert_eq!(built(&workspace, "tool").unwrap(), before);
        std::fs::write(module.join("go.mod"), "module b\n").unwrap();
        assert_ne!(built(&workspace, "tool").unwrap(), before);
    }
}
