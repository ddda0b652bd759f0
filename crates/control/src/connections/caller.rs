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

/// The holder of a certificate that renews itself or announces its instance, with its key.
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
    use crate::catalogue::{Home, PinnedTrust};
    use crate::connections::shares::{Limits, Own};
    use crate::key::Key;
    use crate::options::RemoteCalls;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    /// Of `app[.namespace[.network]]`; it ends `rest_s` from now.
    fn certificate(name: &str, instance: Option<&str>, rest_s: i64) -> PeerIdentity {
        let service = ServiceName::parse_in(name, &label("default"), &label("west")).unwrap();
        let rest = Duration::from_secs(rest_s.unsigned_abs());
        let now = SystemTime::now();
        PeerIdentity {
            spiffe: service.spiffe_id(&TrustDomain::default_for(&service.network)),
            dns_names: vec![service.dns_san()],
            service,
            instance: instance.map(label),
            not_before: UNIX_EPOCH,
            not_after: if rest_s < 0 { now - rest } else { now + rest },
            key_hash: [7; 32],
            serial: vec![1],
        }
    }

    fn authenticated(certificate: PeerIdentity) -> Caller {
        Caller::Authenticated(Arc::new(certificate))
    }

    fn caller(app: &str, instance: &str) -> Caller {
        authenticated(certificate(app, Some(instance), 600))
    }

    /// Of the network west, which has joined east.
    fn catalogue() -> Catalogue {
        let home = Home {
            network: label("west"),
            trust_domain: TrustDomain::new("west.tollway").unwrap(),
            root: Vec::new(),
            remote_calls: RemoteCalls::Direct,
            egress: tollway_model::EgressDefault::Open,
            listen: "127.0.0.1:15010".parse().unwrap(),
            peer_addresses: Arc::from([]),
        };
        let mut catalogue = Catalogue::new(home, 0);
        let trust = PinnedTrust {
            network: label("east"),
            trust_domain: TrustDomain::new("east.tollway").unwrap(),
            roots: vec![b"east root".to_vec()],
            joined_at_unix_s: 0,
            pending: false,
            follow_gateways: false,
            bundle_gateways: Vec::new(),
            is_accepted: false,
            revoked: Vec::new(),
        };
        catalogue.put(&Key::PeerTrust { network: label("east") }, &trust.write(), 1).unwrap();
        catalogue
    }

    fn code<T>(outcome: Result<T, Status>) -> Option<Code> {
        outcome.err().map(|status| status.code())
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn only_a_workload_of_this_network_with_a_certificate_that_counts_is_one() {
        let catalogue = catalogue();
        let (service, instance) = caller("Stock.shop", "a").workload(&catalogue).unwrap();
        assert_eq!((service.to_string(), instance.as_str()), ("stock.shop.west".into(), "a"));
        let ended = certificate("stock", Some("a"), -5);
        for (other, expected) in [
            (Caller::Anonymous, Code::Unauthenticated),
            (authenticated(certificate("stock.shop.east", Some("a"), 600)), Code::PermissionDenied),
            (authenticated(certificate("stock", None, 600)), Code::PermissionDenied),
            (authenticated(ended.clone()), Code::Unauthenticated),
            (Caller::Ended(Arc::new(ended)), Code::Unauthenticated),
        ] {
            assert_eq!(code(other.workload(&catalogue)), Some(expected), "{other:?}");
        }
        // Another network's trust domain may not speak of ours.
        let mut forged = certificate("stock", Some("a"), 600);
        forged.spiffe.trust_domain = TrustDomain::new("east.tollway").unwrap();
        assert_eq!(code(authenticated(forged).workload(&catalogue)), Some(Code::PermissionDenied));
    }

    #[test]
    fn a_certificate_that_has_ended_renews_itself_within_the_grace_and_no_later() {
        let catalogue = catalogue();
        let renewing = |rest_s, grace| {
            let certificate = Arc::new(certificate("stock", Some("a"), rest_s));
            // The connection may have been open before the end, or not.
            let [open, new] =
                [Caller::Authenticated(certificate.clone()), Caller::Ended(certificate)];
            let outcomes = [open, new].map(|caller| caller.renewing(&catalogue, grace));
            outcomes.map(|outcome| outcome.map(|renewing| (renewing.key, renewing.ended.is_some())))
        };
        let [valid, _] = renewing(600, HOUR);
        assert_eq!(valid.unwrap(), ([7; 32], false));
        for outcome in renewing(-60, HOUR) {
            assert_eq!(outcome.unwrap(), ([7; 32], true));
        }
        for (rest_s, grace) in [(-4000, HOUR), (-60, Duration::ZERO)] {
            for outcome in renewing(rest_s, grace) {
                assert_eq!(code(outcome), Some(Code::Unauthenticated));
            }
        }
        assert_eq!(code(Caller::Anonymous.renewing(&catalogue, HOUR)), Some(Code::Unauthenticated));
        let far = Caller::Ended(Arc::new(certificate("stock.shop.east", Some("a"), -60)));
        assert_eq!(code(far.renewing(&catalogue, HOUR)), Some(Code::PermissionDenied));
    }

    #[test]
    fn only_the_control_plane_of_a_joined_network_is_one() {
        let catalogue = catalogue();
        let of = |name, instance| authenticated(certificate(name, instance, 600));
        let network = of("control.tollway.east", None).peer(&catalogue).unwrap();
        assert_eq!(network, label("east"));
        for other in [
            of("stock.shop.east", Some("a")),
            of("gateway.tollway.east", Some("a")),
            of("control.shop.east", None),
            of("control.tollway.north", None),
        ] {
            assert_eq!(code(other.peer(&catalogue)), Some(Code::PermissionDenied), "{other:?}");
        }
        assert_eq!(code(Caller::Anonymous.peer(&catalogue)), Some(Code::Unauthenticated));
    }

    #[test]
    fn what_an_instance_holds_is_counted_as_its_own() {
        let holder = |name, instance| holder(&certificate(name, instance, 600)).to_string();
        assert_eq!(holder("Stock.shop", Some("A")), "a.stock.shop");
        assert_eq!(holder("stock.shop", None), ".stock.shop");
        // A joined network's control plane is none of ours, and each network's is another.
        assert_eq!(holder("control.tollway.east", Some("a")), ".control.east.tollway");
        assert_eq!(holder("control.tollway.north", Some("a")), ".control.north.tollway");

        let limit = ShareLimit::new("names", Limits::of(8, 2), Own::Stays);
        assert_eq!(code(Caller::Anonymous.follow(&limit)), Some(Code::Unauthenticated));
        assert!(caller("stock", "a").follow(&limit).is_ok());
    }

    #[test]
    fn names_of_the_mesh_itself_are_known_in_any_case() {
        let of_the_mesh = |name: &str| {
            is_system(&ServiceName::parse_in(name, &label("a"), &label("west")).unwrap())
        };
        assert!(of_the_mesh("gateway.tollway") && of_the_mesh("gateway.Tollway"));
        assert!(!of_the_mesh("tollway.shop") && !of_the_mesh("gateway.tollway2"));
    }

    #[test]
    fn a_request_without_a_connection_is_a_strangers() {
        let mut request = Request::new(());
        assert!(matches!(Caller::of(&request), Caller::Anonymous));
        assert_eq!(origin_of(&request), Origin::Relayed, "its address proves nothing");
        assert_eq!(Caller::address(&request), None);
        let from = IpAddr::from([10, 0, 0, 7]);
        request.extensions_mut().insert(Peer {
            caller: caller("stock", "a"),
            origin: Origin::Direct(from),
            from,
            backlog: SendBacklog::new(Arc::default()),
        });
        assert!(matches!(Caller::of(&request), Caller::Authenticated(_)));
        assert_eq!(origin_of(&request), Origin::Direct(from));
        assert_eq!(Caller::address(&request), Some(from));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_certificate_opened_ends_with_it() {
        caller_of(-1).expired().await;
        for other in [caller_of(600), Caller::Anonymous] {
            let outcome = tokio::time::timeout(HOUR, other.expired()).await;
            assert!(outcome.is_err(), "{other:?}: the wall clock has not moved");
        }
    }

    fn caller_of(rest_s: i64) -> Caller {
        authenticated(certificate("stock", Some("a"), rest_s))
    }

    #[test]
    fn no_rpc_serves_a_revoked_identity_whose_connection_stands() {
        let mut catalogue = catalogue();
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
