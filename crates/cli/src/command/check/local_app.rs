//! What `tollway run` meets beyond the ports of its sidecar: the app's port and program, and the
//! control plane, which is this user's local one unless another is named.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use tollway_model::ErrorCode;

use super::finding::Finding;
use super::{control_plane, ports};
use crate::async_runtime::block_on;
use crate::command::access::CONTROL_OPTION;
use tollway_launch::local_control::{self, Found};
use tollway_launch::refuse_unused_token;
use tollway_settings::Listing;

/// `options` is the command line of `run`; after `--` follows the app's.
pub(super) fn inspect(settings: &Listing, options: &[OsString]) -> Result<Vec<Finding>> {
    let mut findings = vec![app_port(settings)];
    let command = options.iter().skip_while(|option| *option != "--").nth(1);
    findings.extend(command.map(|program| app_program(program)));
    let named = settings.first("control");
    if named.is_empty() {
        findings.push(local_control()?);
        if let Err(refused) = refuse_unused_token(CONTROL_OPTION) {
            findings.push(Finding::of_error("token", &refused.into()));
        }
    } else {
        findings.extend(control_plane::inspect(settings)?);
    }
    Ok(findings)
}

/// Checks that no other process listens on the app's port.
fn app_port(settings: &Listing) -> Finding {
    let name = "app_port";
    let Ok(port) = settings.first(name).parse::<u16>() else {
        return Finding::ok(name, "none is given; the app only makes calls");
    };
    let address = settings.first("app_address").parse();
    ports::address_is_free(
        name,
        SocketAddr::new(address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), port),
    )
}

/// As the system searches for it.
fn app_program(program: &OsStr) -> Finding {
    let name = "program";
    let shown = Path::new(program).display();
    match find_program(program) {
        Some(path) => Finding::ok(name, path.display().to_string()),
        None => Finding::fail(
            name,
            ErrorCode::AppNotStarted,
            format!("there is no program `{shown}`"),
            "check its name and your PATH",
        ),
    }
}

fn find_program(program: &OsStr) -> Option<PathBuf> {
    let path = Path::new(program);
    let runs = |path: &PathBuf| {
        path.metadata()
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if path.components().count() > 1 {
        return Some(path.to_owned()).filter(runs);
    }
    let directories = std::env::var_os("PATH")?;
    std::env::split_paths(&directories).map(|directory| directory.join(path)).find(runs)
}

/// This user's own.
pub(super) fn local_control() -> Result<Finding> {
    let name = "control plane";
    Ok(match block_on(local_control::inspect())? {
        Ok(Found::Running(running)) => match running.version_skew() {
            Some(skew) => {
                let (what, fix) = skew.split_once("\nhint: ").unwrap_or((&skew, ""));
                Finding::warn(name, what, fix)
            }
            None => Finding::ok(name, format!("your local one at {}", running.address())),
        },
        Ok(Found::Crashed) => Finding::warn(
            name,
            "your local one has crashed",
            "nothing: the next `tollway run` or `tollway call` starts it again",
        ),
        Ok(Found::Nothing) => Finding::ok(name, "your local one starts with the first app"),
        Err(error) => Finding::of_error(name, &error.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        assert_eq!(app_program(OsStr::new("sh")).level, Level::Ok);
        assert_eq!(app_program(OsStr::new("/bin/sh")).level, Level::Ok);
        for wrong in ["no-such-program", "/etc/passwd", "/etc", "./sh"] {
            let found = app_program(OsStr::new(wrong));
            assert_eq!(found.code, Some(ErrorCode::AppNotStarted), "{wrong}");
        }
    }
}
