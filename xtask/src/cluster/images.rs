//! Images that every machine of the rig has, made of programs at hand: no registry is asked.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use serde_json::json;

use super::debian::Unpacked;
use crate::cache;
use crate::image::{Contents, Image};
use crate::process::find_program;

/// The first container of every pod; containerd's configuration names it.
const PAUSE: &str = "localhost/pause:1";
/// The manifest of CoreDNS names it.
const COREDNS: &str = "localhost/coredns:1";
/// For control planes of tests that have an etcd of their own.
const ETCD: &str = "localhost/etcd:1";
/// For pods of tests: a shell with its usual programs, `curl`, `nft`.
const BOX: &str = "localhost/box:1";

/// The programs that busybox is, by the name with which it is called.
const APPLETS: &[&str] = &[
    "cat", "date", "dd", "df", "echo", "env", "false", "grep", "head", "hostname", "httpd", "id",
    "ip", "ls", "mkdir", "mount", "nc", "nslookup", "ping", "ps", "seq", "sh", "sleep", "sort",
    "tail", "true", "uniq", "wc", "wget",
];

/// Programs that are built for these images.
#[derive(Hash)]
pub(super) struct Built<'a> {
    pub(super) pause: &'a Path,
    pub(super) coredns: &'a Path,
    pub(super) etcd: &'a Path,
}

/// A folder of the cache with an archive of each image; they are made unless they are there.
///
/// # Errors
///
/// Says which program is missing, or that the folder cannot be written.
pub(super) fn folder(built: &Built<'_>, unpacked: &Unpacked) -> Result<PathBuf> {
    let (curl, nft) = (installed("curl")?, installed("nft")?);
    let busybox = unpacked.busybox();
    // Installed programs change when the system is updated.
    let changed = |program: &Path| program.metadata()?.modified();
    let changed = |program| changed(program).unwrap_or(SystemTime::UNIX_EPOCH);
    let pins = (APPLETS, built, &busybox, changed(&curl), changed(&nft));
    let folder = cache::entry("cluster-images", pins);
    cache::once(&folder, |partial| {
        let mut boxed = Contents::of_programs(&[
            ("/bin/busybox", &busybox),
            ("/usr/bin/curl", &curl),
            ("/bin/nft", &nft),
        ])?;
        for applet in APPLETS {
            boxed.link(&format!("/bin/{applet}"), "/bin/busybox");
        }
        let write = |name: &str, contents: &Contents, entrypoint: &[&str]| {
            let settings = json!({
                "Env": ["PATH=/bin:/usr/bin"],
                "Entrypoint": entrypoint,
                "WorkingDir": "/",
            });
            let image = Image::of(contents, &settings, &name.parse()?, None)?;
            let file = name.replace(['/', ':'], "-") + ".tar";
            image.write_archive(&partial.join(file))
        };
        write(PAUSE, &Contents::of_programs(&[("/pause", built.pause)])?, &["/pause"])?;
        write(COREDNS, &Contents::of_programs(&[("/coredns", built.coredns)])?, &["/coredns"])?;
        write(ETCD, &Contents::of_programs(&[("/usr/local/bin/etcd", built.etcd)])?, &[])?;
        write(BOX, &boxed, &[])
    })?;
    Ok(folder)
}

fn installed(name: &str) -> Result<PathBuf> {
    find_program(name)
        .with_context(|| format!("`{name}` is missing; `cargo xtask test` installs it"))
}
