//! The location of a control plane's store as its options: a directory, or etcd with its
//! certificates.

use std::path::PathBuf;

use anyhow::{Result, bail};
use tollway_settings::{Etcd, StoreLocation};
use tollway_store::EtcdOptions;

use super::etcd_credentials::EtcdCredentials;

/// Where a control plane keeps its state.
#[derive(Debug)]
pub(super) struct Location {
    /// That of the admin socket, and of the store's files without etcd.
    pub(super) directory: PathBuf,
    pub(super) etcd: Option<EtcdOptions>,
    pub(super) credentials: EtcdCredentials,
}

/// # Errors
/// Settings that do not go together, and files that cannot be read.
pub(super) fn location(
    store: StoreLocation,
    admin_dir: Option<PathBuf>,
    etcd: Etcd,
    key_may_be_open: bool,
) -> Result<Location> {
    match (store, admin_dir) {
        (StoreLocation::Directory(_), Some(_)) => {
            bail!("--admin-dir is for a store in etcd; the admin socket is in --store")
        }
        (StoreLocation::Directory(_), None) if etcd.etcd_ca.is_some() => {
            bail!("--etcd-ca is for a store in etcd; name one with --store, or leave --etcd-ca out")
        }
        (StoreLocation::Directory(_), None) if etcd.etcd_secret.is_some() => bail!(
            "--etcd-secret is for a store in etcd; name one with --store, or leave --etcd-secret out"
        ),
        (StoreLocation::Directory(directory), None) => {
            Ok(Location { directory, etcd: None, credentials: EtcdCredentials::None })
        }
        (StoreLocation::Etcd { .. }, None) => bail!(
            "the store is in etcd; name with --admin-dir where the admin socket is to be, by which `tollway` commands on this machine reach the control plane (`--store` of those)"
        ),
        (StoreLocation::Etcd { .. }, Some(_))
            if etcd.etcd_ca.is_some() && etcd.etcd_secret.is_some() =>
        {
            bail!(
                "etcd's certificates are files (--etcd-ca) or in a Secret (--etcd-secret); leave one out"
            )
        }
        (StoreLocation::Etcd { members, prefix }, Some(directory)) => {
            let lease = etcd.etcd_lease_s.0;
            let (credentials, tls) = EtcdCredentials::of(etcd, key_may_be_open)?;
            // Its members wait for the certificate that this process makes.
            let is_awaited = matches!(credentials, EtcdCredentials::Secret(_));
            let options = EtcdOptions { members, prefix, holder: holder(), tls, is_awaited, lease };
            Ok(Location { directory, etcd: Some(options), credentials })
        }
    }
}

/// This process for those that wait: its machine and number.
fn holder() -> String {
    let host = rustix::system::uname();
    format!("{} (process {})", host.nodename().to_string_lossy(), std::process::id())
}
