//! Names and addresses.

use std::net::{IpAddr, SocketAddr};

use tollway_model::{Instance, Label, NetworkName, Revocation, ServiceName, TrustDomain};

use crate::{ConvertError, REVOCATIONS_PER_TRUST_DOMAIN_LIMIT, v1};

impl From<&ServiceName> for v1::ServiceName {
    fn from(name: &ServiceName) -> Self {
        Self {
            app: name.app.as_str().to_owned(),
            namespace: name.namespace.as_str().to_owned(),
            network: name.network.as_str().to_owned(),
        }
    }
}

impl From<SocketAddr> for v1::Address {
    fn from(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        Self { ip, port: u32::from(address.port()) }
    }
}

/// Reads one label; `field` names it in the error.
///
/// # Errors
/// [`ConvertError::Name`].
pub fn label(text: &str, field: &'static str) -> Result<Label, ConvertError> {
    Label::new(text).map_err(|source| ConvertError::Name { field, source })
}

/// Reads the name of an instance.
///
/// # Errors
/// [`ConvertError::Name`].
pub fn instance(text: &str) -> Result<Instance, ConvertError> {
    label(text, "instance")
}

/// Reads the name of a network that exists.
///
/// # Errors
/// [`ConvertError::Name`].
pub fn network_name(text: &str) -> Result<NetworkName, ConvertError> {
    Label::of_network(text).map_err(|source| ConvertError::Name { field: "network", source })
}

/// Reads a revoked identity.
///
/// # Errors
/// [`ConvertError::Name`].
pub fn revocation(stated: &v1::RevokedIdentity) -> Result<Revocation, ConvertError> {
    let named = !stated.instance.is_empty();
    Ok(Revocation {
        namespace: label(&stated.namespace, "namespace")?,
        app: label(&stated.app, "app")?,
        instance: if named { Some(instance(&stated.instance)?) } else { None },
    })
}

/// Reads the revoked identities of a trust domain.
///
/// # Errors
/// [`ConvertError::TooMany`], or as [`revocation`].
pub fn revocations(stated: &[v1::RevokedIdentity]) -> Result<Vec<Revocation>, ConvertError> {
    let (count, limit) = (stated.len(), REVOCATIONS_PER_TRUST_DOMAIN_LIMIT);
    if count > limit {
        return Err(ConvertError::TooMany { field: "revoked", count, limit });
    }
    stated.iter().map(revocation).collect()
}

impl From<&Revocation> for v1::RevokedIdentity {
    fn from(revoked: &Revocation) -> Self {
        let instance = revoked.instance.as_ref();
        Self {
            app: revoked.app.as_str().to_owned(),
            namespace: revoked.namespace.as_str().to_owned(),
            instance: instance.map_or_else(String::new, |label| label.as_str().to_owned()),
        }
    }
}

/// Reads a trust domain.
///
/// # Errors
/// [`ConvertError::Name`].
pub fn trust_domain(text: &str) -> Result<TrustDomain, ConvertError> {
    TrustDomain::new(text).map_err(|source| ConvertError::Name { field: "trust_domain", source })
}

/// Reads the full name of a service.
///
/// # Errors
/// [`ConvertError`] when it is absent or a label is malformed.
pub fn service_name(name: Option<&v1::ServiceName>) -> Result<ServiceName, ConvertError> {
    let name = name.ok_or(ConvertError::Missing { field: "service" })?;
    Ok(ServiceName {
        app: label(&name.app, "service.app")?,
        namespace: label(&name.namespace, "service.namespace")?,
        network: label(&name.network, "service.network")?,
    })
}

/// Reads the name of what a data plane calls: of a service, of a port of a Service of the cluster, or of an
/// address in it.
///
/// # Errors
/// As [`service_name`].
pub fn called_name(name: Option<&v1::ServiceName>) -> Result<ServiceName, ConvertError> {
    let name = name.ok_or(ConvertError::Missing { field: "service" })?;
    let app = ServiceName::read_called(&name.app);
    Ok(ServiceName {
        app: app.map_err(|source| ConvertError::Name { field: "service.app", source })?,
        namespace: label(&name.namespace, "service.namespace")?,
        network: label(&name.network, "service.network")?,
    })
}

/// Reads an address; `field` names it in the error.
///
/// # Errors
/// [`ConvertError`] when it is absent, the IP has another length than 4 or 16 bytes, or the port
/// is 0 or above 65535.
pub fn address(
    address: Option<&v1::Address>,
    field: &'static str,
) -> Result<SocketAddr, ConvertError> {
    let address = address.ok_or(ConvertError::Missing { field })?;
    let ip = ip(&address.ip).ok_or(ConvertError::Ip { field, length: address.ip.len() })?;
    match u16::try_from(address.port) {
        Ok(port) if port != 0 => Ok(SocketAddr::new(ip, port)),
        _ => Err(ConvertError::Port { field, port: address.port }),
    }
}

/// Reads up to `limit` addresses.
///
/// # Errors
/// [`ConvertError::TooMany`], or as [`address`].
pub fn addresses(
    list: &[v1::Address],
    field: &'static str,
    limit: usize,
) -> Result<Vec<SocketAddr>, ConvertError> {
    if list.len() > limit {
        return Err(ConvertError::TooMany { field, count: list.len(), limit });
    }
    list.iter().map(|one| address(Some(one), field)).collect()
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(v4));
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_wire() {
        for text in ["10.0.0.7:80", "[2001:db8::1]:65535", "[::ffff:10.0.0.7]:1"] {
            let expected: SocketAddr = text.parse().unwrap();
            let sent = v1::Address::from(expected);
            assert_eq!(address(Some(&sent), "address"), Ok(expected));
        }
    }

    #[test]
    fn bad_addresses_are_refused_with_the_field() {
        let check = |ip: &[u8], port, expected: &str| {
            let sent = v1::Address { ip: ip.to_vec(), port };
            assert_eq!(address(Some(&sent), "inside").unwrap_err().to_string(), expected);
        };
        check(
            &[1, 2, 3],
            80,
            "the field `inside` holds an IP address of 3 bytes; it must be 4 or 16",
        );
        check(&[1, 2, 3, 4], 0, "the field `inside` holds the port 0; it must be 1 to 65535");
        check(
            &[1, 2, 3, 4],
            65_536,
            "the field `inside` holds the port 65536; it must be 1 to 65535",
        );
        assert_eq!(address(None, "inside"), Err(ConvertError::Missing { field: "inside" }));
    }

    #[test]
    fn more_addresses_than_the_limit_are_refused() {
        let one = v1::Address { ip: vec![1, 2, 3, 4], port: 1 };
        let three = vec![one; 3];
        assert_eq!(addresses(&three, "gateways", 3).map(|a| a.len()), Ok(3));
        assert_eq!(
            addresses(&three, "gateways", 2),
            Err(ConvertError::TooMany { field: "gateways", count: 3, limit: 2 })
        );
    }

    #[test]
    fn names_keep_their_spelling_and_are_checked() {
        let name = v1::ServiceName {
            app: "Stock".into(),
            namespace: "shop".into(),
            network: "east".into(),
        };
        let read = service_name(Some(&name)).unwrap();
        assert_eq!(v1::ServiceName::from(&read), name);
        let bad = v1::ServiceName { namespace: "a/b".into(), ..name };
        assert_eq!(
            service_name(Some(&bad)).unwrap_err().to_string(),
            "the field `service.namespace` does not hold a name"
        );
    }
}
