//! A control plane's directory: as it would open when none runs there, and by its admin socket
//! when one does.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use tollway_control::{AUTHORITY_KEY, AdminClient, AdminError, StoredKey, check_stored_key};
use tollway_identity::SealingKey;
use tollway_model::ErrorCode;
use tollway_store::{Damage, Inspection, OpenError, inspect as inspect_store, inspect_entry};
use tollway_wire::v1;

use super::finding::Finding;
use super::machine::writable;
use super::trust;
use crate::async_runtime::block_on;
use crate::failure::Report;

/// The name of the finding that a control plane runs on the store.
pub(super) const RUNS: &str = "control plane";
/// The store's file in its directory.
const FILE: &str = "tollway.store";
/// Free bytes below which a store cannot work for long, and below which it is worth a word.
const SPACE_FAIL_BYTES: u64 = 16 << 20;
const SPACE_WARN_BYTES: u64 = 256 << 20;
const THIS_VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) fn inspect(directory: &Path, key: Option<&SealingKey>) -> Result<Vec<Finding>> {
    let mut findings = vec![directory_finding(directory, "--store")];
    findings.extend(space(directory));
    let file = directory.join(FILE);
    match inspect_store(&file) {
        Ok(found) => {
            findings.push(readable(&file, found));
            if let Ok(Some(value)) = inspect_entry(&file, AUTHORITY_KEY.as_bytes()) {
                findings.push(authority_key(&value, key));
            }
        }
        Err(OpenError::Missing { .. }) => {
            findings.push(Finding::ok("store", "empty; the first start makes it"));
        }
        Err(OpenError::Locked { .. }) => findings.extend(running(directory)?),
        Err(error) => findings.push(Finding::of_error("store", &error.into())),
    }
    Ok(findings)
}

/// Whether the directory, which `option` names, is there, or can be made, and written.
pub(super) fn directory_finding(directory: &Path, option: &str) -> Finding {
    let name = "directory";
    let choose = format!("choose another one with {option}");
    let refused =
        |what: String, fix: String| Finding::fail(name, ErrorCode::StoreUnwritable, what, fix);
    if directory.is_dir() {
        return if writable(directory) {
            Finding::ok(name, directory.display().to_string())
        } else {
            let what = format!("{} cannot be written by this user", directory.display());
            refused(what, format!("run as its owner, or {choose}"))
        };
    }
    if directory.exists() {
        let what = format!("{} is no directory", directory.display());
        return refused(what, choose);
    }
    match nearest(directory) {
        Some(parent) if writable(parent) => {
            Finding::ok(name, format!("{} will be made", directory.display()))
        }
        Some(parent) => {
            let what = format!("{} cannot be made in {}", directory.display(), parent.display());
            refused(what, format!("run as a user who may write there, or {choose}"))
        }
        None => refused(format!("{} has no parent", directory.display()), choose),
    }
}

/// The directory itself, or the nearest one above that is there.
fn nearest(path: &Path) -> Option<&Path> {
    path.ancestors()
        .map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path })
        .find(|path| path.is_dir())
}

fn space(directory: &Path) -> Option<Finding> {
    let found = rustix::fs::statvfs(nearest(directory)?).ok()?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let what = format!("{} MiB free", free >> 20);
    let fix = "make room on that file system: a store that cannot write serves on, and takes no \
               change";
    Some(if free < SPACE_FAIL_BYTES {
        Finding::fail("space", ErrorCode::DiskFull, what, fix)
    } else if free < SPACE_WARN_BYTES {
        Finding::warn("space", what, fix)
    } else {
        Finding::ok("space", what)
    })
}

/// Whether the authority's key is sealed, and by the passphrase that was given.
fn authority_key(value: &[u8], key: Option<&SealingKey>) -> Finding {
    let name = "authority key";
    match (check_stored_key(value, key), key) {
        (Ok(StoredKey::Sealed), _) => Finding::ok(name, "sealed, and the passphrase opens it"),
        (Ok(StoredKey::Plain), Some(_)) => Finding::ok(name, "the next start seals it"),
        (Ok(StoredKey::Plain), None) => {
            Finding::ok(name, "not sealed; --authority-key-file seals it")
        }
        (Err(error), _) => Finding::of_error(name, &error.into()),
    }
}

fn readable(file: &Path, found: Inspection) -> Finding {
    if let Some(Damage { offset, what, .. }) = found.damage {
        let error = OpenError::Corrupt { path: found.path, offset, what };
        return Finding::of_error("store", &error.into());
    }
    let keys: usize = found.keys.values().sum();
    let Inspection { file_bytes, revision, .. } = found;
    let what = format!("{}: {keys} keys, revision {revision}, {file_bytes} bytes", file.display());
    Finding::ok("store", what)
}

/// A control plane has it open: checks that it answers.
fn running(directory: &Path) -> Result<Vec<Finding>> {
    Ok(match ask(directory)? {
        Ok(answer) => {
            let mut findings = vec![Finding::ok("store", "in use by a control plane that answers")];
            findings.extend(answered(&answer));
            findings
        }
        Err(error) => {
            let (reason, ..) = Report::of(&error.into()).into_parts();
            let what = format!("a process has it open and does not answer: {reason}");
            let fix = "wait, or end the control plane that uses this directory";
            vec![Finding::fail("store", ErrorCode::StoreLocked, what, fix)]
        }
    })
}

/// What a control plane reports of itself and of the networks that it has joined.
pub(super) type Answer = (v1::StatusResponse, Vec<v1::JoinStatus>);

/// Asks the control plane that has its admin socket in `directory`.
pub(super) fn ask(directory: &Path) -> Result<Result<Answer, AdminError>> {
    block_on(async {
        let mut client = AdminClient::connect(directory).await?;
        let status = client.status().await?;
        Ok((status, client.joins().await?))
    })
}

pub(super) fn answered((status, joins): &Answer) -> Vec<Finding> {
    let mut findings = vec![
        Finding::ok(RUNS, format!("network {}, revision {}", status.network, status.revision)),
        versions(status),
    ];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    findings.extend(trust::own(status, now));
    if joins.is_empty() {
        findings.push(Finding::ok("peering", "no network is joined"));
    }
    findings.extend(joins.iter().flat_map(|join| trust::joined(join, &status.version, now)));
    findings
}

/// Processes with another version than this program.
fn versions(status: &v1::StatusResponse) -> Finding {
    let mut others: BTreeMap<&str, usize> = BTreeMap::new();
    let data_planes = status.data_planes.iter().map(|data_plane| data_plane.version.as_str());
    for version in data_planes.filter(|version| *version != THIS_VERSION) {
        *others.entry(if version.is_empty() { "an older one" } else { version }).or_default() += 1;
    }
    if status.version != THIS_VERSION {
        return Finding::warn(
            "versions",
            format!("the control plane runs {}, this is {THIS_VERSION}", status.version),
            "start it again with the new program",
        );
    }
    if others.is_empty() {
        let count = status.data_planes.len();
        return Finding::ok("versions", format!("{THIS_VERSION} everywhere ({count} connected)"));
    }
    let list: Vec<_> = others.iter().map(|(version, n)| format!("{n} run {version}")).collect();
    Finding::warn(
        "versions",
        format!("this is {THIS_VERSION}; of the connected, {}", list.join(", ")),
        "upgrade the control plane first, then gateways, then sidecars",
    )
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn other_versions_are_counted() {
        let data_plane = |version: &str| v1::DataPlane {
            version: version.to_owned(),
            ..v1::DataPlane::default()
        };
        let mut status =
            v1::StatusResponse { version: THIS_VERSION.to_owned(), ..Default::default() };
        status.data_planes = vec![data_plane(THIS_VERSION)];
        assert_eq!(versions(&status).level, Level::Ok);
        status.data_planes.extend([data_plane("0.0.9"), data_plane("0.0.9"), data_plane("")]);
        let found = versions(&status);
        assert_eq!(found.level, Level::Warn);
        assert!(found.what.ends_with("2 run 0.0.9, 1 run an older one"), "{}", found.what);
        status.version = "0.0.9".to_owned();
        assert!(versions(&status).what.starts_with("the control plane runs 0.0.9"));
    }

    #[test]
    fn the_place_of_a_store_that_is_not_there_is_found() {
        assert_eq!(nearest(Path::new("/proc/nowhere/below")), Some(Path::new("/proc")));
        assert_eq!(nearest(Path::new("nowhere")), Some(Path::new(".")));
    }
}
