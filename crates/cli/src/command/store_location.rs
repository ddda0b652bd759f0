//! The location of a control plane's store as its options: a directory, or etcd with its
//! certificates.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tollway_net::SecretFile;
use tollway_settings::{Etcd, StoreLocation};
use tollway_store::{EtcdOptions, EtcdTls};

/// Most bytes of a key that are read.
const KEY_FILE_LIMIT_BYTES: u64 = 1 << 20;

/// The directory of the admin socket, and etcd where the store is there.
///
/// # Errors
/// Settings that do not go together, and files that cannot be read.
pub(super) fn location(
    store: StoreLocation,
    admin_dir: Option<PathBuf>,
    etcd: Etcd,
    key_may_be_open: bool,
) -> Result<(PathBuf, Option<EtcdOptions>)> {
    match (store, admin_dir) {
        (StoreLocation::Directory(_), Some(_)) => {
            bail!("--admin-dir is for a store in etcd; the admin socket is in --store")
        }
        (StoreLocation::Directory(directory), None) if etcd.etcd_ca.is_none() => {
            Ok((directory, None))
        }
        (StoreLocation::Directory(_), None) => {
            bail!("--etcd-ca is for a store in etcd; name one with --store, or leave --etcd-ca out")
        }
        (StoreLocation::Etcd { .. }, None) => bail!(
            "the store is in etcd; name with --admin-dir where the admin socket is to be, by which `tollway` commands on this machine reach the control plane (`--store` of those)"
        ),
        (StoreLocation::Etcd { members, prefix }, Some(directory)) => {
            let tls = tls(&etcd, key_may_be_open)?;
            let lease = etcd.etcd_lease_s.0;
            Ok((directory, Some(EtcdOptions { members, prefix, holder: holder(), tls, lease })))
        }
    }
}

fn tls(etcd: &Etcd, key_may_be_open: bool) -> Result<Option<EtcdTls>> {
    let Some(ca) = &etcd.etcd_ca else { return Ok(None) };
    let identity = match (&etcd.etcd_cert, &etcd.etcd_key) {
        (Some(certificate), Some(key)) => {
            let file = SecretFile::new(key.clone(), key_may_be_open);
            let key = file.read(KEY_FILE_LIMIT_BYTES);
            let key = key.with_context(|| {
                format!("cannot read {}; check --etcd-key", file.path().display())
            })?;
            Some((read(certificate, "--etcd-cert")?, key))
        }
        _ => None,
    };
    Ok(Some(EtcdTls { ca: read(ca, "--etcd-ca")?, identity }))
}

/// This process for those that wait: its machine and number.
fn holder() -> String {
    let host = rustix::system::uname();
    format!("{} (process {})", host.nodename().to_string_lossy(), std::process::id())
}

fn read(path: &Path, option: &str) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}; check {option}", path.display()))
}
