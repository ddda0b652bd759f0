//! `cargo xtask image`: the container image of the shipped program, made without Docker, as an OCI layout
//! and as an archive that `ctr image import` and `docker load` take.
//!
//! The same program and libraries give the same bytes: entries are sorted, times are fixed, and the
//! compressor is a pinned library whose output does not depend on the processor. `contents` decides what
//! is in the image, `tar` and `gzip` write it, `layout` puts the parts together.

mod contents;
mod gzip;
mod layout;
mod tar;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::cache::remove_folder;
use crate::process;
use crate::workspace::Workspace;
pub(crate) use contents::Contents;
use contents::{PROGRAM, USER};
pub(crate) use layout::{Image, Name};

/// Most bytes of the image as it is sent to a node.
const LIMIT_BYTES: u64 = 20_000_000;
/// How hard the layer of a release is compressed.
const LEVEL: u8 = 9;
/// The image by which the tests of clusters call the development build.
const NAME_FOR_TESTS: &str = "tollway:test";
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

#[derive(Args)]
pub(crate) struct Options {
    /// The program to pack; by default a release build, which is made first.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Name of the image, with its tag; by default `tollway` with the version.
    #[arg(long, value_name = "NAME:TAG", default_value = concat!("tollway:", env!("CARGO_PKG_VERSION")))]
    name: String,
    /// Folder for the layout and the archive; what they had before is replaced [default: target/image].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Certificates of public authorities, for calls out of the mesh (PEM).
    #[arg(long, value_name = "FILE", default_value = AUTHORITIES)]
    authorities: PathBuf,
}

/// Makes the image and prints its digest and size. Prepared for releases: the limit of the size holds
/// for those alone.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let program = match &options.program {
        Some(program) => program.clone(),
        None => {
            process::run(process::cargo().args(["build", "--release", "--package", "tollway"]))?;
            workspace.target.join("release/tollway")
        }
    };
    let name: Name = options.name.parse()?;
    let contents = Contents::of(&program, &options.authorities)?;
    let image = Image::of(&contents, &settings(), &name, Some(LEVEL))?;
    let size = image.sent_bytes();
    let out = options.out.clone().unwrap_or_else(|| workspace.target.join("image"));
    let (layout, archive) = (out.join("layout"), out.join("tollway.tar"));
    std::fs::create_dir_all(&out).with_context(|| format!("could not make {}", out.display()))?;
    remove_folder(&layout)?;
    image.write_layout(&layout)?;
    image.write_archive(&archive)?;
    for (path, file) in contents.files() {
        println!("file     {:>9} {path}", file.bytes.len());
    }
    println!("image    {}", name.full());
    println!("digest   {}", image.digest());
    println!("size     {size} bytes compressed, {} unpacked", contents.bytes());
    println!("layout   {}", layout.display());
    println!("archive  {}", archive.display());
    if options.program.is_none() && size > LIMIT_BYTES {
        bail!(
            "the image has {size} bytes, and {LIMIT_BYTES} at most are wanted; look at the files above"
        );
    }
    Ok(())
}

/// Makes the image of the development build for the tests of clusters, without the names for a debugger,
/// and returns its archive.
pub(crate) fn of_development_build(workspace: &Workspace) -> Result<PathBuf> {
    let out = workspace.target.join("image-for-tests");
    std::fs::create_dir_all(&out).with_context(|| format!("could not make {}", out.display()))?;
    let (program, archive) = (out.join("tollway"), out.join("tollway.tar"));
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&program).arg(workspace.target.join("debug/tollway"));
    process::run(&mut strip)?;
    let contents = Contents::of(&program, Path::new(AUTHORITIES))?;
    // It goes no farther than this machine.
    let image = Image::of(&contents, &settings(), &NAME_FOR_TESTS.parse()?, None)?;
    image.write_archive(&archive)?;
    Ok(archive)
}

/// How a container of the shipped program is started.
fn settings() -> Value {
    json!({
        "User": format!("{USER}:{USER}"),
        "Env": ["PATH=/"],
        "Entrypoint": [PROGRAM],
        "WorkingDir": "/",
        "Labels": {
            "org.opencontainers.image.title": "tollway",
            "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    })
}

#[cfg(test)]
mod tests;
