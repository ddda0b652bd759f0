//! The location of a control plane's store: a directory, or etcd.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use tollway_store::{EtcdOptions, EtcdTls};

const SCHEME: &str = "etcd://";

/// What `--store` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StoreLocation {
    Directory(PathBuf),
    Etcd { members: Vec<String>, prefix: String },
}

#[derive(Args)]
pub(super) struct EtcdArgs {
    /// File with the certificates of those who sign etcd's; etcd is spoken to over TLS then.
    #[arg(long, value_name = "FILE", help_heading = "etcd")]
    etcd_ca: Option<PathBuf>,
    /// File with the certificate that is shown to etcd.
    #[arg(
        long,
        value_name = "FILE",
        requires_all = ["etcd_ca", "etcd_key"],
        help_heading = "etcd"
    )]
    etcd_cert: Option<PathBuf>,
    /// File with its key.
    #[arg(long, value_name = "FILE", requires = "etcd_cert", help_heading = "etcd")]
    etcd_key: Option<PathBuf>,
    /// Time after which one that stands by takes over from a master that gives no sign of life, in
    /// seconds.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(2..=60),
        help_heading = "etcd"
    )]
    etcd_lease_s: u64,
}

impl FromStr for StoreLocation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return match text.split_once("://") {
                Some((scheme, _)) => Err(format!(
                    "`{scheme}` is no place for a store; write a directory, or {SCHEME}HOST:PORT/PREFIX"
                )),
                None if text.is_empty() => Err("write a directory".to_owned()),
                None => Ok(Self::Directory(text.into())),
            };
        };
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if prefix.trim_matches('/').is_empty() {
            return Err(format!(
                "say what the keys in etcd begin with: {SCHEME}{members}/tollway/NETWORK"
            ));
        }
        let members: Vec<_> = members.split(',').map(str::to_owned).collect();
        for member in &members {
            let port = member.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
                return Err(format!("`{member}` is no member of etcd; write HOST:PORT"));
            }
        }
        Ok(Self::Etcd { members, prefix: format!("/{}/", prefix.trim_matches('/')) })
    }
}

impl EtcdArgs {
    /// The directory of the admin socket, and etcd where the store is there.
    pub(super) fn location(
        self,
        store: StoreLocation,
        admin_dir: Option<PathBuf>,
    ) -> Result<(PathBuf, Option<EtcdOptions>)> {
        match (store, admin_dir) {
            (StoreLocation::Directory(_), Some(_)) => {
                bail!("--admin-dir is for a store in etcd; the admin socket is in --store")
            }
            (StoreLocation::Directory(directory), None) if self.etcd_ca.is_none() => {
                Ok((directory, None))
            }
            (StoreLocation::Directory(_), None) => bail!("--etcd-ca is for a store in etcd"),
            (StoreLocation::Etcd { .. }, None) => bail!(
                "the store is in etcd; say with --admin-dir where the admin socket is to be, by which `tollway` commands on this machine reach the control plane (`--store` of those)"
            ),
            (StoreLocation::Etcd { members, prefix }, Some(directory)) => {
                let options = EtcdOptions {
                    members,
                    prefix,
                    holder: holder(),
                    tls: self.tls()?,
                    lease: Duration::from_secs(self.etcd_lease_s),
                };
                Ok((directory, Some(options)))
            }
        }
    }

    fn tls(&self) -> Result<Option<EtcdTls>> {
        let Some(ca) = &self.etcd_ca else { return Ok(None) };
        let identity = match (&self.etcd_cert, &self.etcd_key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        };
        Ok(Some(EtcdTls { ca: read(ca)?, identity }))
    }
}

/// This process for those that wait: its machine and number.
fn holder() -> String {
    let host = rustix::system::uname();
    format!("{} (process {})", host.nodename().to_string_lossy(), std::process::id())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_directories_or_in_etcd() {
        let read = |text: &str| text.parse::<StoreLocation>();
        assert_eq!(read("some/dir"), Ok(StoreLocation::Directory("some/dir".into())));
        let members = vec!["a:2379".to_owned(), "[::1]:2379".to_owned()];
        let prefix = "/tollway/west/".to_owned();
        for text in
            ["etcd://a:2379,[::1]:2379/tollway/west", "etcd://a:2379,[::1]:2379/tollway/west/"]
        {
            let location = StoreLocation::Etcd { members: members.clone(), prefix: prefix.clone() };
            assert_eq!(read(text), Ok(location));
        }
    }

    #[test]
    fn an_invalid_location_is_refused_with_what_to_write() {
        for (text, said) in [
            ("", "write a directory"),
            ("redis://a:1/x", "`redis` is no place for a store"),
            ("etcd://a:2379", "etcd://a:2379/tollway/NETWORK"),
            ("etcd://a:2379//", "etcd://a:2379/tollway/NETWORK"),
            ("etcd://a/x", "`a` is no member of etcd"),
            ("etcd://a:2379,/x", "`` is no member of etcd"),
            ("etcd://:2379/x", "`:2379` is no member of etcd"),
            ("etcd://a:99999/x", "`a:99999` is no member of etcd"),
        ] {
            let refused = text.parse::<StoreLocation>().unwrap_err();
            assert!(refused.contains(said), "{text}: {refused}");
        }
    }
}
