//! The keys of the store.
//!
//! Labels are in lower case in keys, since names compare without case; values preserve the
//! spelling. A label never has `/`, so a key is unambiguous. Everything that a data plane or a peer
//! may see is under `mesh/` and is watched; secrets are under other prefixes.

use bytes::Bytes;
use tollway_model::{Instance, Label, ObjectId, ObjectKind, ObjectName, Revocation, ServiceName};

/// Start of every key that the catalogue watches.
pub(crate) const MESH_PREFIX: &str = "mesh/";
/// The network's authority.
pub const AUTHORITY_KEY: &str = "secret/authority";
/// Start of the keys of join tokens.
pub(crate) const TOKEN_PREFIX: &str = "secret/token/";
/// Start of the keys of instances' public keys.
pub(crate) const INSTANCE_PREFIX: &str = "secret/instance/";
/// Start of the keys of what was used of a join token.
pub(crate) const TOKEN_USE_PREFIX: &str = "secret/token-use/";
/// Start of the keys of the last certificate of each instance.
pub(crate) const ISSUED_PREFIX: &str = "secret/issued/";
/// Start of the keys of join secrets.
pub(crate) const JOIN_PREFIX: &str = "secret/join/";

/// A key under [`MESH_PREFIX`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Key {
    Workload {
        namespace: Label,
        app: Label,
        instance: Label,
    },
    Gateway {
        instance: Label,
    },
    /// Its entry's revision is the trust revision.
    Trust,
    Revoked(Revocation),
    Object(ObjectId),
    /// A Service of the network's Kubernetes cluster.
    ClusterService {
        namespace: Label,
        name: Label,
    },
    PeerTrust {
        network: Label,
    },
    PeerGateways {
        network: Label,
    },
    PeerLink {
        network: Label,
    },
    PeerCursor {
        network: Label,
    },
    PeerService {
        network: Label,
        namespace: Label,
        app: Label,
    },
}

impl Key {
    pub(crate) fn encode(&self) -> Bytes {
        let low = Label::to_lower;
        let tail = match self {
            Self::Workload { namespace, app, instance } => {
                format!("workload/{}/{}/{}", low(namespace), low(app), low(instance))
            }
            Self::Gateway { instance } => format!("gateway/{}", low(instance)),
            Self::Trust => "trust".to_owned(),
            Self::Revoked(Revocation { namespace, app, instance: None }) => {
                format!("revoked/{}/{}", low(namespace), low(app))
            }
            Self::Revoked(Revocation { namespace, app, instance: Some(instance) }) => {
                format!("revoked/{}/{}/{}", low(namespace), low(app), low(instance))
            }
            Self::Object(ObjectId { kind, name: ObjectName { namespace, name } }) => {
                format!("{kind}/{}/{}", low(namespace), low(name))
            }
            Self::ClusterService { namespace, name } => {
                format!("cluster-service/{}/{}", low(namespace), low(name))
            }
            Self::PeerTrust { network } => format!("peer/{}/trust", low(network)),
            Self::PeerGateways { network } => format!("peer/{}/gateways", low(network)),
            Self::PeerLink { network } => format!("peer/{}/link", low(network)),
            Self::PeerCursor { network } => format!("peer/{}/cursor", low(network)),
            Self::PeerService { network, namespace, app } => {
                format!("peer/{}/service/{}/{}", low(network), low(namespace), low(app))
            }
        };
        format!("{MESH_PREFIX}{tail}").into()
    }

    /// `None` for a key of another kind, such as a later version may write.
    pub(crate) fn parse(key: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(key).ok()?.strip_prefix(MESH_PREFIX)?;
        let parts: Vec<&str> = text.split('/').collect();
        let label = |at: usize| Label::new(parts[at]).ok();
        Some(match parts.as_slice() {
            ["workload", _, _, _] => {
                Self::Workload { namespace: label(1)?, app: label(2)?, instance: label(3)? }
            }
            ["gateway", _] => Self::Gateway { instance: label(1)? },
            ["trust"] => Self::Trust,
            ["revoked", _, _] => {
                Self::Revoked(Revocation { namespace: label(1)?, app: label(2)?, instance: None })
            }
            ["revoked", _, _, _] => Self::Revoked(Revocation {
                namespace: label(1)?,
                app: label(2)?,
                instance: Some(label(3)?),
            }),
            ["cluster-service", _, _] => {
                Self::ClusterService { namespace: label(1)?, name: label(2)? }
            }
            ["peer", _, "trust"] => Self::PeerTrust { network: label(1)? },
            ["peer", _, "gateways"] => Self::PeerGateways { network: label(1)? },
            ["peer", _, "link"] => Self::PeerLink { network: label(1)? },
            ["peer", _, "cursor"] => Self::PeerCursor { network: label(1)? },
            ["peer", _, "service", _, _] => {
                Self::PeerService { network: label(1)?, namespace: label(3)?, app: label(4)? }
            }
            [kind, _, _] => {
                let kind = ObjectKind::ALL.into_iter().find(|known| known.as_str() == *kind)?;
                let name = ObjectName { namespace: label(1)?, name: label(2)? };
                Self::Object(ObjectId { kind, name })
            }
            _ => return None,
        })
    }
}

/// The key of the last certificate of an instance.
pub(crate) fn issued_key(service: &ServiceName, instance: &Instance) -> Bytes {
    format!("{}{}", issued_prefix(&service.namespace, &service.app), instance.to_lower()).into()
}

/// Start of the keys of the last certificates of an app's instances.
pub(crate) fn issued_prefix(namespace: &Label, app: &Label) -> String {
    format!("{ISSUED_PREFIX}{}/{}/", namespace.to_lower(), app.to_lower())
}

/// Start of every key of a peer.
pub(crate) fn peer_prefix(network: &Label) -> String {
    format!("{MESH_PREFIX}peer/{}/", network.to_lower())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back_in_lower_case() {
        let label = |text| Label::new(text).unwrap();
        let (network, namespace, app, instance) =
            (label("East"), label("Shop"), label("service"), label("trust"));
        let keys = [
            Key::Workload {
                namespace: namespace.clone(),
                app: app.clone(),
                instance: instance.clone(),
            },
            Key::Gateway { instance },
            Key::Trust,
            Key::Revoked(Revocation {
                namespace: namespace.clone(),
                app: app.clone(),
                instance: None,
            }),
            Key::Revoked(Revocation {
                namespace: namespace.clone(),
                app: app.clone(),
                instance: Some(label("Replica")),
            }),
            Key::ClusterService { namespace: namespace.clone(), name: app.clone() },
            Key::PeerTrust { network: network.clone() },
            Key::PeerGateways { network: network.clone() },
            Key::PeerLink { network: network.clone() },
            Key::PeerCursor { network: network.clone() },
            Key::PeerService { network, namespace: namespace.clone(), app: app.clone() },
        ];
        let name = ObjectName { namespace, name: app };
        let object = |kind| Key::Object(ObjectId { kind, name: name.clone() });
        for key in keys.into_iter().chain(ObjectKind::ALL.map(object)) {
            let encoded = key.encode();
            assert_eq!(encoded, encoded.to_ascii_lowercase());
            assert_eq!(Key::parse(&encoded), Some(key));
        }
    }

    #[test]
    fn foreign_keys_are_passed_over() {
        for key in ["mesh/", "mesh/workload/a/b", "mesh/policy/x", "secret/token/x", "\u{e9}"] {
            assert_eq!(Key::parse(key.as_bytes()), None, "{key}");
        }
        assert_eq!(Key::parse(&[0xff]), None);
    }
}
