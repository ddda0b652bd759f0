//! The certificate of an etcd that belongs to a control plane: its members serve with it, and know each other and
//! the control plane by it.

use std::convert::Infallible;

use tollway_model::KubeName;
use tracing::warn;

use crate::Cluster;
use crate::own_certificate::{OwnCertificate, Purpose};
use crate::secret_certificate::{SecretCertificate, TRIED_AGAIN_AFTER};

/// Under this name commands reach a member from its own pod.
const OWN_POD: &str = "localhost";

/// What a client of etcd shows and trusts, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdCertificate {
    /// The authorities of the members' certificates.
    pub authorities: String,
    pub certificate: String,
    pub key: String,
}

/// A key is no text for logs.
impl std::fmt::Debug for EtcdCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdCertificate").finish_non_exhaustive()
    }
}

impl From<OwnCertificate> for EtcdCertificate {
    fn from(of: OwnCertificate) -> Self {
        Self { authorities: of.authorities, certificate: of.certificate, key: of.key }
    }
}

/// Keeps that certificate in a Secret, from which the kubelet brings it to the members. Every replica of a control
/// plane does, the ones that stand by as well.
pub struct EtcdCertificates {
    secret: SecretCertificate,
    shown: EtcdCertificate,
}

impl EtcdCertificates {
    /// Waits until there is one for the members, each `host:port`; the first replica makes it.
    pub async fn begin(cluster: &Cluster, at: KubeName, members: &[String]) -> Self {
        let hosts = members.iter().map(|member| host(member).to_owned());
        let names = hosts.chain([OWN_POD.to_owned()]).collect();
        let purpose = Purpose { holder: "tollway-etcd", names, is_of_clients: true };
        let secret = SecretCertificate::new(cluster.client.clone(), at, purpose);
        let shown = tokio::select! {
            shown = next(&secret, None) => shown,
            never = following(&secret) => match never {},
        };
        Self { secret, shown }
    }

    /// What is good now.
    #[must_use]
    pub fn current(&self) -> &EtcdCertificate {
        &self.shown
    }

    /// Goes on until it is dropped; `renewed` gets each other one.
    pub async fn keep(mut self, renewed: impl Fn(&EtcdCertificate)) -> Infallible {
        let secret = &self.secret;
        let keeping = async {
            loop {
                self.shown = next(secret, Some(&self.shown)).await;
                renewed(&self.shown);
            }
        };
        tokio::select! {
            never = keeping => never,
            never = following(secret) => never,
        }
    }
}

async fn following(secret: &SecretCertificate) -> Infallible {
    secret.follow().await;
    // A watch begins again for ever.
    std::future::pending().await
}

/// Keeps the certificate until it is another one than this.
async fn next(secret: &SecretCertificate, shown: Option<&EtcdCertificate>) -> EtcdCertificate {
    let mut changes = secret.changes();
    loop {
        let wait = match secret.check().await {
            Ok(checked) => match checked.good.map(EtcdCertificate::from) {
                Some(good) if Some(&good) != shown => return good,
                Some(_) | None => checked.again,
            },
            Err(error) => {
                warn!(error, "the certificate of etcd cannot be kept");
                TRIED_AGAIN_AFTER
            }
        };
        tokio::select! {
            _ = changes.changed() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// That of `host:port`.
fn host(member: &str) -> &str {
    member.rsplit_once(':').map_or(member, |(host, _)| host)
}
