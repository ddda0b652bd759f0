//! By what a control plane and its etcd know each other: files that the operator has named, or a Secret that the
//! control plane keeps.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::watch;
use tollway_kube::{Cluster, EtcdCertificate, EtcdCertificates};
use tollway_model::KubeName;
use tollway_net::SecretFile;
use tollway_settings::Etcd;
use tollway_store::{EtcdOptions, EtcdTls};
use tracing::warn;

/// Most bytes of a key that are read.
const KEY_FILE_LIMIT_BYTES: u64 = 1 << 20;
/// From one look at the files to the next.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Where they come from.
#[derive(Debug)]
pub(super) enum EtcdCredentials {
    /// Etcd is spoken to in plain text, or there is none.
    None,
    Files(CertificateFiles),
    Secret(KubeName),
}

impl EtcdCredentials {
    /// Those of the settings, and what files have now.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(super) fn of(
        etcd: Etcd,
        key_may_be_open: bool,
    ) -> Result<(Self, Option<watch::Receiver<EtcdTls>>)> {
        if let Some(at) = etcd.etcd_secret {
            return Ok((Self::Secret(at), None));
        }
        let Some(ca) = etcd.etcd_ca else { return Ok((Self::None, None)) };
        let key = etcd.etcd_key.map(|key| SecretFile::new(key, key_may_be_open));
        let identity = etcd.etcd_cert.zip(key);
        let (current, tls) = watch::channel(read_all(&ca, identity.as_ref())?);
        Ok((Self::Files(CertificateFiles { ca, identity, current }), Some(tls)))
    }

    /// Waits until there are some, and adds them to the options of the store.
    pub(super) async fn begin(
        self,
        cluster: Option<&Cluster>,
        options: Option<&mut EtcdOptions>,
    ) -> RenewedCredentials {
        match (self, cluster, options) {
            (Self::Files(files), ..) => RenewedCredentials::Files(files),
            (Self::Secret(at), Some(cluster), Some(options)) => {
                let certificates = EtcdCertificates::begin(cluster, at, &options.members).await;
                let (shown, tls) = watch::channel(tls_of(certificates.current()));
                options.tls = Some(tls);
                RenewedCredentials::Secret(Box::new(certificates), shown)
            }
            (Self::None | Self::Secret(_), ..) => RenewedCredentials::None,
        }
    }
}

/// What keeps them current.
pub(super) enum RenewedCredentials {
    None,
    Files(CertificateFiles),
    Secret(Box<EtcdCertificates>, watch::Sender<EtcdTls>),
}

impl RenewedCredentials {
    /// Goes on until it is dropped.
    pub(super) async fn keep(self) -> Infallible {
        match self {
            Self::None => std::future::pending().await,
            Self::Files(files) => files.follow().await,
            Self::Secret(certificates, shown) => {
                certificates.keep(|renewed| drop(shown.send_replace(tls_of(renewed)))).await
            }
        }
    }
}

fn tls_of(certificate: &EtcdCertificate) -> EtcdTls {
    let EtcdCertificate { authorities, certificate, key } = certificate;
    let bytes = |text: &String| text.clone().into_bytes();
    EtcdTls { ca: bytes(authorities), identity: Some((bytes(certificate), bytes(key))) }
}

/// The files of etcd's certificates. Who renews them writes others in their place.
#[derive(Debug)]
pub(super) struct CertificateFiles {
    ca: PathBuf,
    identity: Option<(PathBuf, SecretFile)>,
    current: watch::Sender<EtcdTls>,
}

impl CertificateFiles {
    /// Reads them again, until it is dropped.
    async fn follow(&self) -> Infallible {
        let mut reported = None;
        loop {
            tokio::time::sleep(READ_AGAIN_AFTER).await;
            match read_all(&self.ca, self.identity.as_ref()) {
                Ok(read) => {
                    reported = None;
                    self.current.send_if_modified(|current| {
                        let is_other = *current != read;
                        *current = read;
                        is_other
                    });
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    if reported.as_ref() != Some(&error) {
                        warn!(
                            error,
                            "etcd's certificates cannot be read; the former ones are used"
                        );
                    }
                    reported = Some(error);
                }
            }
        }
    }
}

fn read_all(ca: &Path, identity: Option<&(PathBuf, SecretFile)>) -> Result<EtcdTls> {
    let identity = match identity {
        Some((certificate, key)) => {
            let read_key = key.read(KEY_FILE_LIMIT_BYTES).with_context(|| {
                format!("cannot read {}; check --etcd-key", key.path().display())
            })?;
            Some((read(certificate, "--etcd-cert")?, read_key))
        }
        None => None,
    };
    Ok(EtcdTls { ca: read(ca, "--etcd-ca")?, identity })
}

fn read(path: &Path, option: &str) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}; check {option}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn files_that_others_take_the_place_of_are_used_from_then_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let write = |name: &str, text: &str| std::fs::write(path(name), text).unwrap();
        ["ca", "cert", "key"].iter().for_each(|name| write(name, "first"));
        let etcd = Etcd {
            etcd_ca: Some(path("ca")),
            etcd_cert: Some(path("cert")),
            etcd_key: Some(path("key")),
            etcd_secret: None,
            etcd_lease_s: tollway_settings::Seconds(Duration::from_secs(5)),
        };
        let (credentials, tls) = EtcdCredentials::of(etcd, true).unwrap();
        let mut tls = tls.unwrap();
        assert_eq!(tls.borrow_and_update().ca, b"first");
        let keeping = tokio::spawn(credentials.begin(None, None).await.keep());
        tokio::time::sleep(2 * READ_AGAIN_AFTER).await;
        assert!(!tls.has_changed().unwrap(), "they are the same");
        std::fs::remove_file(path("key")).unwrap();
        write("cert", "second");
        tokio::time::sleep(2 * READ_AGAIN_AFTER).await;
        assert!(!tls.has_changed().unwrap(), "what cannot be read changes nothing");
        write("key", "second");
        tls.changed().await.unwrap();
        let (certificate, key) = tls.borrow().identity.clone().unwrap();
        assert_eq!((certificate, key), (b"second".to_vec(), b"second".to_vec()));
        keeping.abort();
    }
}
