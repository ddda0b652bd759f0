//! Debian packages that are fetched and unpacked into the cache, not installed: a shell with its usual
//! programs for images, and what runc is linked with.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::process::{self, find_program};

/// Debian's busybox has dynamic libraries: a static one crashes when it looks up a name.
const PACKAGES: &[&str] = &["busybox", "libseccomp-dev"];

/// The unpacked packages.
pub(super) struct Unpacked {
    root: PathBuf,
}

/// The packages, which are fetched unless the cache has them.
///
/// # Errors
///
/// Says that they cannot be fetched.
pub(super) fn unpacked() -> Result<Unpacked> {
    let root = cache::entry("cluster-debian", (PACKAGES, std::env::consts::ARCH));
    let fetch = |partial: &Path| {
        if find_program("apt-get").is_none() || find_program("dpkg").is_none() {
            bail!("`apt-get` and `dpkg` are missing: the rig needs Debian or Ubuntu");
        }
        let apt = |arguments: &[&str]| {
            process::run(Command::new("apt-get").arg("-q").args(arguments).current_dir(partial))
        };
        // As root for its own folder: apt's own user may not write here.
        let download = || apt(&[&["-o", "APT::Sandbox::User=root", "download"], PACKAGES].concat());
        // Package lists may be absent or too old, so a failure earns one refresh.
        download().or_else(|_| apt(&["update"]).and_then(|()| download()))?;
        for entry in partial.read_dir().context("could not list the fetched packages")? {
            let package = entry.context("could not list the fetched packages")?.path();
            if package.extension().is_some_and(|extension| extension == "deb") {
                process::run(Command::new("dpkg").arg("-x").arg(&package).arg(partial))?;
                std::fs::remove_file(&package)
                    .with_context(|| format!("could not remove {}", package.display()))?;
            }
        }
        Ok(())
    };
    cache::once(&root, fetch)
        .with_context(|| format!("could not fetch Debian's {}", PACKAGES.join(" and ")))?;
    Ok(Unpacked { root })
}

impl Unpacked {
    pub(super) fn busybox(&self) -> PathBuf {
        // Newer releases of Debian have it below `usr`.
        let old = self.root.join("bin/busybox");
        if old.is_file() { old } else { self.root.join("usr/bin/busybox") }
    }

    /// Has `go build` link C code with the static libseccomp. Nothing asks `pkg-config` for it, which
    /// would find an installed one.
    pub(super) fn link_seccomp(&self, go: &mut Command) {
        let usr = self.root.join("usr");
        let libraries = usr.join("lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
        go.env("CGO_ENABLED", "1").env("PKG_CONFIG", "true");
        go.env("CGO_CFLAGS", format!("-O2 -I{}", usr.join("include").display()));
        go.env("CGO_LDFLAGS", format!("-L{} -lseccomp", libraries.display()));
    }
}
