//! The control plane as a sidecar or gateway would meet it: reached, the right one, its clock, and
//! whether it takes the token.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use tollway_dial::{Targets, Unreached, dial_any};
use tollway_model::ErrorCode;
use tollway_proxy::mesh::{ControlCheck, MeshError, check_control};
use tollway_settings::Listing;

use super::finding::{Finding, Level};
use crate::async_runtime::block_on;
use crate::command::mesh::token_source;
use crate::failure::without_os_numbers;

/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Clocks further apart than this make trouble: certificates begin and end at a time.
const CLOCK_WARN_MS: u64 = 2_000;
const CLOCK_FAIL_MS: u64 = 60_000;
/// A token that ends sooner is worth a word.
const TOKEN_SOON: Duration = Duration::from_secs(3600);
/// The default address of a control plane.
const USUAL_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 15010);
const THIS_VERSION: &str = env!("CARGO_PKG_VERSION");

/// With the token that the part would use.
pub(super) fn inspect(settings: &Listing) -> Result<Vec<Finding>> {
    let control: Targets = settings.first("control").parse()?;
    let (control, mut findings) = (&control, Vec::new());
    let token_file = settings.values("token_file").first().map(PathBuf::from);
    let may_be_open = settings.first("allow_open_files") == "true";
    if may_be_open && let Some(path) = &token_file {
        findings.extend(token_file_mode(path));
    }
    let pod_token_file = settings.values("pod_token_file").first().map(PathBuf::from);
    let root_pin = settings.values("root_pin").first().map(|text| text.parse()).transpose()?;
    let token = token_source(token_file, (pod_token_file, root_pin), may_be_open)?;
    match block_on(check_control(control, &token))? {
        Ok(found) => findings.extend(answered(control, &found)),
        Err(error) => {
            let is_token = matches!(
                error,
                MeshError::NoToken { .. }
                    | MeshError::TokenFile { .. }
                    | MeshError::OpenTokenFile { .. }
                    | MeshError::PodTokenFile { .. }
                    | MeshError::Token(_)
            );
            findings.push(failed(error));
            if is_token {
                // It was not even dialled.
                findings.extend(inspect_without_token(control)?);
            }
        }
    }
    Ok(findings)
}

/// Checks the usual address; without a named control plane it is no failure that none runs.
pub(super) fn inspect_usual_address() -> Result<Option<Finding>> {
    let found = inspect_without_token(&USUAL_ADDRESS.into())?;
    Ok(found.into_iter().find(|finding| finding.level == Level::Ok))
}

/// Checks only whether something listens there: a control plane answers no unauthenticated peer.
pub(super) fn inspect_without_token(control: &Targets) -> Result<Vec<Finding>> {
    // The timer is made inside the runtime that it needs.
    let dialled = block_on(async { dial_any(control, &[], None, CONNECT_TIMEOUT).await })?;
    Ok(vec![
        match dialled {
            Ok(at) => Finding::ok("control plane", format!("something listens at {}", at.address)),
            Err(unreached) => unreachable(&unreached),
        }
        .at_most(Level::Warn),
    ])
}

fn unreachable(unreached: &Unreached) -> Finding {
    Finding::fail(
        "control plane",
        ErrorCode::ControlUnreachable,
        without_os_numbers(&format!("none at {unreached}")),
        "start one with `tollway control`, or say where it is with --control",
    )
}

fn answered(control: &Targets, found: &ControlCheck) -> Vec<Finding> {
    let name = "control plane";
    let mut findings =
        vec![Finding::ok(name, format!("{control} serves the network {}", found.network))];
    findings.push(version(&found.version));
    if !found.version.is_empty() {
        findings.push(clock(found.clock_ahead_ms));
    }
    findings.push(match found.token_left {
        Some(left) if left < TOKEN_SOON => Finding::warn(
            "token",
            format!("is taken, for {} min", left.as_secs() / 60),
            "make a new one with `tollway token create` before it ends",
        ),
        Some(left) => {
            Finding::ok("token", format!("is taken, for {} h", (left.as_secs() + 1800) / 3600))
        }
        None => Finding::ok("token", "is of this network"),
    });
    findings
}

/// Whether the control plane runs the same version as this program.
fn version(theirs: &str) -> Finding {
    if theirs == THIS_VERSION {
        return Finding::ok("version", format!("{theirs}, here and there"));
    }
    let theirs = if theirs.is_empty() { "an older one" } else { theirs };
    Finding::warn(
        "version",
        format!("the control plane runs {theirs}, this is {THIS_VERSION}"),
        "upgrade the control plane first, then the others",
    )
}

fn clock(ahead_ms: i64) -> Finding {
    let apart = ahead_ms.unsigned_abs();
    let direction = if ahead_ms > 0 { "behind" } else { "ahead of" };
    let what = format!(
        "{:.1} s {direction} the control plane's",
        Duration::from_millis(apart).as_secs_f64()
    );
    let fix = "set the clock of both machines by NTP";
    if apart >= CLOCK_FAIL_MS {
        Finding::fail("clock", ErrorCode::ClockOff, what, fix)
    } else if apart >= CLOCK_WARN_MS {
        Finding::warn("clock", what, fix)
    } else {
        Finding::ok("clock", "agrees with the control plane's")
    }
}

fn failed(error: MeshError) -> Finding {
    let name = match error.code() {
        Some(
            ErrorCode::TokenMissing
            | ErrorCode::FileUnusable
            | ErrorCode::TokenMalformed
            | ErrorCode::TokenRefused
            | ErrorCode::TokenExpired
            | ErrorCode::TokenSpent
            | ErrorCode::TokenRevoked,
        ) => "token",
        Some(ErrorCode::ClockOff) => "clock",
        _ => "control plane",
    };
    Finding::of_error(name, &error.into())
}

/// A token is a secret.
fn token_file_mode(path: &Path) -> Option<Finding> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    (mode & 0o077 != 0).then(|| {
        Finding::warn(
            "token file",
            format!("{} can be read by others", path.display()),
            format!("chmod 600 {}", path.display()),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_far_apart_are_reported_with_the_direction() {
        assert_eq!(clock(1_999).level, Level::Ok);
        assert_eq!(clock(-2_000).level, Level::Warn);
        let far = clock(3_600_000);
        assert_eq!((far.level, far.code), (Level::Fail, Some(ErrorCode::ClockOff)));
        assert_eq!(far.what, "3600.0 s behind the control plane's");
        assert!(clock(-90_000).what.contains("90.0 s ahead of"));
    }

    #[test]
    fn another_version_is_worth_a_word() {
        assert_eq!(version(THIS_VERSION).level, Level::Ok);
        assert_eq!(version("9.9.9").level, Level::Warn);
        assert!(version("").what.contains("an older one"));
    }
}
