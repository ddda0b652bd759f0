//! The peer of a connection by its certificate, and what that entitles it to.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tollway_identity::{PeerIdentity, SYSTEM_NAMESPACE, control_spiffe_id, issued_at};
use tollway_model::{ErrorCode, Instance, NetworkName, ServiceName};
use tonic::{Request, Status};

use super::send_backlog::SendBacklog;
use super::shares::{Holder, Share, ShareLimit};
use crate::addresses::Origin;
use crate::catalogue::Catalogue;

/// How often the clock is read while a stream is open, in case that it was set. Streams are many.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// What the TLS handshake proved.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// No certificate was shown: only a token or a join secret can help.
    Anonymous,
    /// A valid certificate of this network or of a joined one.
    Authenticated(Arc<PeerIdentity>),
    /// A certificate of this network that has ended within the grace: it renews itself, and has no
    /// other right.
    Ended(Arc<PeerIdentity>),
}

/// The holder of a certificate that renews itself.
#[derive(Clone, Debug)]
pub(crate) struct Renewing {
    pub(crate) service: ServiceName,
    pub(crate) instance: Instance,
    /// Hash of its public key.
    pub(crate) key: [u8; 32],
    pub(crate) issued_at: SystemTime,
    /// How long ago the certificate ended, if it has.
    pub(crate) ended: Option<Duration>,
}

/// The peer of a connection, as the calls on it know it.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) caller: Caller,
    pub(crate) origin: Origin,
    pub(crate) from: IpAddr,
    pub(crate) backlog: Arc<SendBacklog>,
}

/// Where a request that arrived over TLS comes from.
pub(crate) fn origin_of<T>(request: &Request<T>) -> Origin {
    request.extensions().get::<Peer>().map_or(Origin::Relayed, |peer| peer.origin)
}

impl Caller {
    /// The caller of a request that arrived over TLS.
    pub(crate) fn of<T>(request: &Request<T>) -> Self {
        let peer = request.extensions().get::<Peer>();
        peer.map_or(Self::Anonymous, |peer| peer.caller.clone())
    }

    /// The address of the connection that a request arrived on.
    pub(crate) fn address<T>(request: &Request<T>) -> Option<IpAddr> {
        request.extensions().get::<Peer>().map(|peer| peer.from)
    }

    /// The workload or gateway of this network.
    pub(crate) fn workload(
        &self,
        catalogue: &Catalogue,
    ) -> Result<(ServiceName, Instance), Status> {
        Self::member(self.identity()?, catalogue)
    }

    /// The workload or gateway of this network whose certificate is to be renewed: one that is valid,
    /// or has ended within `grace`, also while the connection was open.
    pub(crate) fn renewing(
        &self,
        catalogue: &Catalogue,
        grace: Duration,
    ) -> Result<Renewing, Status> {
        let now = SystemTime::now();
        let identity = match self {
            Self::Authenticated(identity) | Self::Ended(identity)
                if identity.ended_within(grace, now) =>
            {
                identity
            }
            Self::Authenticated(_) | Self::Ended(_) | Self::Anonymous => self.identity()?,
        };
        let (service, instance) = Self::member(identity, catalogue)?;
        Ok(Renewing {
            service,
            instance,
            key: identity.key_hash,
            issued_at: issued_at(identity.not_before, identity.not_after),
            ended: now.duration_since(identity.not_after).ok().filter(|ago| !ago.is_zero()),
        })
    }

    fn member(
        identity: &PeerIdentity,
        catalogue: &Catalogue,
    ) -> Result<(ServiceName, Instance), Status> {
        let home = catalogue.home();
        if identity.spiffe.trust_domain != home.trust_domain {
            return Err(Status::permission_denied(format!(
                "this is for workloads of {}; the certificate is {}",
                home.network, identity.spiffe
            )));
        }
        let Some(instance) = identity.instance.clone() else {
            return Err(Status::permission_denied("the certificate names no instance"));
        };
        let service = ServiceName {
            app: identity.spiffe.app.clone(),
            namespace: identity.spiffe.namespace.clone(),
            network: home.network.clone(),
        };
        if catalogue.is_revoked(&service, &instance) {
            return Err(revoked_status(&service, &instance));
        }
        Ok((service, instance))
    }

    /// The joined network whose control plane this is.
    pub(crate) fn peer(&self, catalogue: &Catalogue) -> Result<NetworkName, Status> {
        let identity = self.identity()?;
        let domain = &identity.spiffe.trust_domain;
        if identity.spiffe != control_spiffe_id(domain) {
            return Err(Status::permission_denied(format!(
                "this is for control planes of joined networks; the certificate is {}",
                identity.spiffe
            )));
        }
        catalogue.joined_by_trust_domain(domain).cloned().ok_or_else(|| {
            Status::permission_denied(format!("the trust domain {domain} is not joined"))
        })
    }

    /// What counts the names that a stream of this caller follows.
    pub(crate) fn follow(&self, limit: &Arc<ShareLimit>) -> Result<Share, Status> {
        let who = holder(self.identity()?);
        limit.acquire(&who, 0).map_err(|refused| refused.status())
    }

    fn identity(&self) -> Result<&PeerIdentity, Status> {
        match self {
            // Checked at the handshake already, but a connection may outlive its certificate.
            Self::Authenticated(identity) if !identity.valid_at(SystemTime::now()) => {
                Err(expired_status())
            }
            Self::Authenticated(identity) => Ok(identity),
            Self::Ended(_) => Err(expired_status()),
            Self::Anonymous => {
                Err(Status::unauthenticated("this needs a certificate; get one with a join token"))
            }
        }
    }

    /// Returns when the certificate ends: what it opened must end too.
    pub(crate) async fn expired(&self) {
        match self {
            Self::Authenticated(identity) | Self::Ended(identity) => {
                while let Ok(rest) = identity.not_after.duration_since(SystemTime::now()) {
                    tokio::time::sleep(rest.min(LOOK_EVERY)).await;
                }
            }
            Self::Anonymous => std::future::pending().await,
        }
    }
}

/// Whose connections and streams count together: an instance, or the control plane of a joined
/// network.
pub(crate) fn holder(identity: &PeerIdentity) -> Holder {
    let PeerIdentity { spiffe, instance, .. } = identity;
    if *spiffe == control_spiffe_id(&spiffe.trust_domain) {
        return Holder::new(spiffe.trust_domain.as_str(), spiffe.app.as_str(), "");
    }
    let instance = instance.as_ref().map_or("", |instance| instance.as_str());
    Holder::new(spiffe.namespace.as_str(), spiffe.app.as_str(), instance)
}

/// The status of a stream whose caller's certificate ended.
pub(crate) fn expired_status() -> Status {
    let what = "the certificate of this connection has ended; connect with a new one";
    tollway_wire::with_code(Status::unauthenticated(what), ErrorCode::CertificateExpired)
}

/// The refusal of a workload whose identity was taken back.
pub(crate) fn revoked_status(service: &ServiceName, instance: &Instance) -> Status {
    let reason = format!(
        "the identity of {service} (instance {instance}) was revoked; an operator can take that back with `tollway identity restore`"
    );
    tollway_wire::with_code(Status::permission_denied(reason), ErrorCode::IdentityRevoked)
}

/// Whether a service belongs to the mesh itself.
pub(crate) fn is_system(service: &ServiceName) -> bool {
    service.namespace.as_str().eq_ignore_ascii_case(SYSTEM_NAMESPACE)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use tollway_model::{Label, Revocation, TrustDomain};
    use tonic::Code;

    use super::*;
    use crate::catalogue::Home;
    use crate::key::Key;
    use crate::options::EgressMode;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    fn caller(app: &str, instance: &str) -> Caller {
        let (namespace, network, app) = (label("default"), label("west"), label(app));
        let service = ServiceName { app, namespace, network };
        Caller::Authenticated(Arc::new(PeerIdentity {
            spiffe: service.spiffe_id(&TrustDomain::new("west.tollway").unwrap()),
            dns_names: vec![service.dns_san()],
            service,
            instance: Some(label(instance)),
            not_before: UNIX_EPOCH,
            not_after: SystemTime::now() + Duration::from_secs(600),
            key_hash: [0; 32],
            serial: vec![1],
        }))
    }

    #[test]
    fn no_rpc_serves_a_revoked_identity_whose_connection_stands() {
        let home = Home {
            network: label("west"),
            trust_domain: TrustDomain::new("west.tollway").unwrap(),
            root: Vec::new(),
            egress: EgressMode::Direct,
            listen: "127.0.0.1:15010".parse().unwrap(),
            peer_addresses: Arc::from([]),
        };
        let mut catalogue = Catalogue::new(home, 0);
        let refusal = |catalogue: &Catalogue, app: &str, instance: &str| {
            caller(app, instance).workload(catalogue).err()
        };
        assert!(refusal(&catalogue, "stock", "a").is_none());
        let (namespace, app) = (label("default"), label("Stock"));
        let one = Revocation { namespace, app, instance: Some(label("a")) };
        let all = Revocation { app: label("orders"), instance: None, ..one.clone() };
        for revoked in [&one, &all] {
            // The key alone revokes, whatever its value is.
            let key = Key::Revoked(revoked.clone());
            catalogue.put(&key, b"\xff", 1).unwrap();
        }
        for (app, instance) in [("stock", "A"), ("orders", "x")] {
            let refused = refusal(&catalogue, app, instance).expect("it is refused");
            assert_eq!(refused.code(), Code::PermissionDenied);
            let code = tollway_wire::code_of(&refused);
            assert_eq!(code, Some(ErrorCode::IdentityRevoked), "{refused:?}");
        }
        assert!(refusal(&catalogue, "stock", "b").is_none());
        for revoked in [one, all] {
            catalogue.delete(&Key::Revoked(revoked), 2);
        }
        assert!(refusal(&catalogue, "stock", "a").is_none());
        assert!(refusal(&catalogue, "orders", "x").is_none());
    }
}
