//! What is in an image: programs, the libraries that their loader finds, the loader, and the few files
//! that they read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Where the program is.
pub(super) const PROGRAM: &str = "/tollway";
/// The user and group of the program: the one that `tollway kube inject` gives a sidecar.
pub(super) const USER: u32 = 15_001;
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// A file of the image.
pub(super) struct File {
    pub(super) mode: u32,
    pub(super) bytes: Vec<u8>,
}

/// The files of an image in the order of their paths, its symbolic links with what they lead to, and the
/// processor that it is for.
pub(crate) struct Contents {
    files: BTreeMap<String, File>,
    links: BTreeMap<String, String>,
    pub(super) architecture: &'static str,
}

impl Contents {
    /// The shipped program with all that it needs.
    pub(super) fn of(program: &Path, authorities: &Path) -> Result<Self> {
        let mut contents = Self::of_programs(&[(PROGRAM, program)])?;
        contents.file(AUTHORITIES, 0o644, read(authorities)?);
        for (path, text) in [
            ("/etc/passwd", format!("tollway:x:{USER}:{USER}:Tollway:/:/sbin/nologin\n")),
            ("/etc/group", format!("tollway:x:{USER}:\n")),
            // Names of a pod and of the cluster, in this order.
            ("/etc/nsswitch.conf", "hosts: files dns\n".to_owned()),
        ] {
            contents.file(path, 0o644, text.into_bytes());
        }
        Ok(contents)
    }

    /// Programs of this machine, each under its path in the image, with the libraries that their loader
    /// finds.
    pub(crate) fn of_programs(programs: &[(&str, &Path)]) -> Result<Self> {
        let (files, links) = (BTreeMap::new(), BTreeMap::new());
        let mut contents = Self { files, links, architecture: "" };
        for (path, program) in programs {
            let bytes = read(program)?;
            contents.architecture = architecture(&bytes)
                .with_context(|| format!("{} is no program for Linux", program.display()))?;
            contents.file(path, 0o755, bytes);
            for library in libraries(program)? {
                let path = library.to_str().context("a library has a path that is no text")?;
                contents.file(path, 0o755, read(&library)?);
            }
        }
        Ok(contents)
    }

    /// Adds a file that everybody may read.
    pub(crate) fn copy(&mut self, path: &str, from: &Path) -> Result<()> {
        self.file(path, 0o644, read(from)?);
        Ok(())
    }

    fn file(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        self.files.insert(path.to_owned(), File { mode, bytes });
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.links.insert(path.to_owned(), target.to_owned());
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &File)> {
        self.files.iter().map(|(path, file)| (path.as_str(), file))
    }

    pub(super) fn links(&self) -> impl Iterator<Item = (&str, &str)> {
        self.links.iter().map(|(path, target)| (path.as_str(), target.as_str()))
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> usize {
        self.files.values().map(|file| file.bytes.len()).sum()
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("could not read {}", path.display()))
}

/// The processor that an ELF file is for, as images call it.
fn architecture(elf: &[u8]) -> Option<&'static str> {
    const X86_64: u8 = 62;
    const AARCH64: u8 = 183;
    // The machine is a number of two bytes at 18, the lower one first on both.
    match (elf.get(..4)?, elf.get(18..20)?) {
        (b"\x7fELF", [X86_64, 0]) => Some("amd64"),
        (b"\x7fELF", [AARCH64, 0]) => Some("arm64"),
        _ => None,
    }
}

/// The libraries that the loader finds for a program, and the loader; none for a static program.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).env("LC_ALL", "C").output();
    let output = output.context("could not start `ldd`, which comes with the C library")?;
    let (printed, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if complaint.contains("not a dynamic executable") || printed.contains("statically linked") {
        return Ok(Vec::new());
    }
    ensure!(output.status.success(), "`ldd {}` failed: {}", program.display(), complaint.trim());
    listed(&printed)
}

/// The files in a list of `ldd`: `NAME => PATH (ADDRESS)` or `PATH (ADDRESS)`. What the kernel itself
/// gives has no path.
fn listed(list: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let file = line.split_once("=> ").map_or(line, |(_, file)| file);
        if file.starts_with("not found") {
            bail!("a library is missing: `{line}`; install its package");
        }
        let path = file.split_once(" (").map_or(file, |(path, _)| path);
        if path.starts_with('/') {
            found.push(PathBuf::from(path));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_read_from_the_list() {
        let list = "\tlinux-vdso.so.1 (0x00007f75fe552000)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f75f801e000)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f75fe554000)\n";
        let files = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(listed(list).unwrap(), files.map(PathBuf::from));
        let missing = listed("\tlibodd.so.1 => not found\n").unwrap_err().to_string();
        assert!(missing.contains("libodd.so.1"), "{missing}");
    }

    #[test]
    fn only_programs_of_known_processors_are_packed() {
        let mut elf = b"\x7fELF".to_vec();
        elf.resize(64, 0);
        assert_eq!(architecture(&elf), None);
        for (machine, name) in [(62, "amd64"), (183, "arm64")] {
            elf[18] = machine;
            assert_eq!(architecture(&elf), Some(name));
        }
        assert_eq!(architecture(b"#!/bin/sh\n"), None);
    }
}
