//! The gRPC client of Python, from its registry, with stubs made from `echo.proto`.

use std::path::{Path, PathBuf};
use std::process::Command;

use tollway_testkit::{TOOL_MISSING, need_tool, skip};

use super::mesh::AppProtocol;
use super::{Far, SERVICE, run};

/// What is installed beside the build, and stays there for the next time.
const PACKAGES: [&str; 2] = ["grpcio==1.85.1", "grpcio-tools==1.85.1"];

#[test]
fn grpcio_makes_all_kinds_of_calls() {
    let python = need_tool!("python3");
    if attempt(Command::new(&python).args(["-c", "import ensurepip"])).is_err() {
        skip!("{TOOL_MISSING}python3-venv");
    }
    let python = match install(&python) {
        Ok(python) => python,
        Err(reason) => skip!("{} could not be installed: {reason}", PACKAGES[0]),
    };
    let far = Far::start(AppProtocol::Grpc);
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let printed = run(Command::new(python)
        .arg(here.join("tests/clients/grpcio_client.py"))
        .args([&far.caller.grpc().to_string(), SERVICE])
        // Where it finds echo.proto.
        .env("PYTHONPATH", here.join("../load/proto")));
    assert_eq!(printed.trim(), "ok");
}

/// A Python of our own with the packages, made once; the reason if that cannot be.
fn install(python: &Path) -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("grpcio-1.85.1");
    let own = folder.join("bin/python");
    let done = folder.join("installed");
    if done.exists() {
        return Ok(own);
    }
    attempt(Command::new(python).args(["-m", "venv", "--clear"]).arg(&folder))?;
    attempt(
        Command::new(&own)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(["--only-binary", ":all:", "--timeout", "20", "--retries", "1"])
            .args(PACKAGES),
    )?;
    std::fs::write(&done, "").map_err(|error| error.to_string())?;
    Ok(own)
}

fn attempt(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    Err(errors.lines().chain(printed.lines()).next_back().unwrap_or("no reason given").to_owned())
}
