//! The identity in a certificate, as every listener of the mesh reads it from a peer.

use tollway_identity::{CertificateDer, PeerIdentity, peer_identity};
use tollway_model::{ServiceName, SpiffeId};

/// An error repeats one name of the certificate.
const ERROR_BYTES: usize = 16 * 1024;

/// Any bytes as the leaf.
pub(crate) fn run(data: &[u8]) {
    let leaf = CertificateDer::from(data.to_vec());
    match peer_identity(std::slice::from_ref(&leaf)) {
        Ok(identity) => check(&identity),
        Err(error) => assert!(error.to_string().len() <= ERROR_BYTES, "{error}"),
    }
}

/// All names of an identity are of one workload.
fn check(identity: &PeerIdentity) {
    let PeerIdentity { spiffe, service, dns_names, instance, .. } = identity;
    assert_eq!(SpiffeId::parse(&spiffe.to_string()).as_ref(), Ok(spiffe));
    assert_eq!((&service.app, &service.namespace), (&spiffe.app, &spiffe.namespace));
    let own = service.dns_san().to_ascii_lowercase();
    let names: Vec<_> = dns_names.iter().map(|name| name.to_ascii_lowercase()).collect();
    assert!(names.contains(&own), "{names:?} lack {own}");
    assert_eq!(ServiceName::parse_dns_san(&own).as_ref(), Ok(service));
    if let Some(instance) = instance {
        let of_instance = format!("{instance}.{own}").to_ascii_lowercase();
        assert!(names.contains(&of_instance), "{names:?} lack {of_instance}");
    }
}
