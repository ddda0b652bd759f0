//! Python with what the apps need, from its registry, in an environment in the cache.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{cache, process};

/// The released SDK brings what the SDK needs; its tests run with the sources beside them.
const PACKAGES: &[&str] = &[
    "dapr[grpc,fastapi,flask]==1.19.0",
    "cloudevents==1.13.0",
    "cryptography==50.0.2",
    "fastapi==0.165.0",
    "flask==3.1.3",
    "grpcio==1.85.3",
    "grpcio-status==1.85.3",
    "httpx==0.28.1",
    "protobuf==7.36.2",
    "pytest==9.1.1",
    "pytest-asyncio==1.5.0",
    "redis==8.1.0",
    "requests==2.34.2",
    "uvicorn==0.54.0",
];

/// The folder with `python3`.
///
/// # Errors
/// There is no Python with `venv`, or a package cannot be installed.
pub(super) fn environment() -> Result<PathBuf> {
    let folder = cache::entry("python-apps", PACKAGES);
    let programs = folder.join("bin");
    let is_whole = folder.join("whole");
    if !is_whole.is_file() {
        cache::remove_folder(&folder)?;
        process::run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        let mut install = Command::new(programs.join("pip"));
        process::run(install.args(["install", "--quiet"]).args(PACKAGES))?;
        std::fs::write(&is_whole, "").context("cannot write into the cache")?;
    }
    Ok(programs)
}
