//! The records that only the control plane itself reads back. They are protobuf, so that a later
//! version reads what an earlier one wrote. Announcements and aggregates are stored as they
//! travel (`tollway_wire::v1`).

use std::net::SocketAddr;
use std::sync::Arc;

use tollway_wire::v1;

/// The subject and the expiry of a join token. The secret itself is not stored.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Token {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) secret_hash: Vec<u8>,
    #[prost(uint64, tag = "2")]
    pub(crate) expires_at_unix_ms: u64,
    /// `Scope` as a number.
    #[prost(enumeration = "ScopeKind", tag = "3")]
    pub(crate) scope: i32,
    #[prost(string, tag = "4")]
    pub(crate) namespace: String,
    #[prost(string, tag = "5")]
    pub(crate) app: String,
    #[prost(uint64, tag = "6")]
    pub(crate) created_at_unix_ms: u64,
    /// How many instances may use it; 0 for any number.
    #[prost(uint32, tag = "7")]
    pub(crate) uses: u32,
    /// 0 unless it was revoked.
    #[prost(uint64, tag = "8")]
    pub(crate) revoked_at_unix_ms: u64,
}

/// How far a join token was used. Beside the token, so that uses of one without a limit do not wait
/// for each other.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TokenUse {
    #[prost(uint32, tag = "1")]
    pub(crate) used: u32,
    #[prost(uint64, tag = "2")]
    pub(crate) at_unix_ms: u64,
    #[prost(message, optional, tag = "3")]
    pub(crate) service: Option<v1::ServiceName>,
    #[prost(string, tag = "4")]
    pub(crate) instance: String,
    #[prost(string, tag = "5")]
    pub(crate) from: String,
}

/// The last certificate of an instance.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Issued {
    #[prost(message, optional, tag = "1")]
    pub(crate) service: Option<v1::ServiceName>,
    #[prost(string, tag = "2")]
    pub(crate) instance: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) serial: Vec<u8>,
    /// SHA-256 of its public key.
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) key_hash: Vec<u8>,
    #[prost(uint64, tag = "5")]
    pub(crate) issued_at_unix_ms: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) expires_at_unix_ms: u64,
    /// Id of the token that it enrolled with.
    #[prost(string, tag = "7")]
    pub(crate) token: String,
}

/// Since when an identity is revoked; which one is in the key.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Revocation {
    #[prost(uint64, tag = "1")]
    pub(crate) revoked_at_unix_ms: u64,
    /// 0 for one that stays until it is taken back.
    #[prost(uint64, tag = "2")]
    pub(crate) ends_at_unix_ms: u64,
}

/// What a token is bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum ScopeKind {
    Unspecified = 0,
    Any = 1,
    Namespace = 2,
    App = 3,
    Gateway = 4,
    /// `app` is the group.
    Fabric = 5,
}

/// The keys of one instance of a service, as SHA-256 of each public key.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct InstanceKeys {
    /// The last one that was enrolled or used.
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) used: Vec<u8>,
    /// Those that renewals have issued since and that were not used yet, the oldest first.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(crate) issued: Vec<Vec<u8>>,
    /// The one that a token was last redeemed for; empty if that is not known.
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) enrolled: Vec<u8>,
    /// When that was.
    #[prost(uint64, tag = "4")]
    pub(crate) enrolled_at_unix_s: u64,
    /// When the last of its certificates ends.
    #[prost(uint64, tag = "5")]
    pub(crate) ends_at_unix_s: u64,
    /// When `used` was first used.
    #[prost(uint64, tag = "6")]
    pub(crate) used_at_unix_s: u64,
    /// It renews no more.
    #[prost(bool, tag = "7")]
    pub(crate) is_barred: bool,
    /// The pod whose token enrolled it last; none if that was a join token.
    #[prost(message, optional, tag = "8")]
    pub(crate) pod: Option<EnrolledPod>,
}

/// A pod of a Kubernetes cluster that proved who it is.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EnrolledPod {
    #[prost(string, tag = "1")]
    pub(crate) namespace: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) uid: String,
    /// It runs no more: its keys register and renew no more.
    #[prost(bool, tag = "4")]
    pub(crate) has_ended: bool,
}

/// A Service of the network's Kubernetes cluster.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ClusterService {
    /// Its own addresses, of 4 or 16 bytes.
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(crate) ips: Vec<Vec<u8>>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) groups: Vec<PodGroup>,
    #[prost(uint32, repeated, tag = "3")]
    pub(crate) ports: Vec<u32>,
}

/// Pods of a Service, and where its ports lead in them.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PodGroup {
    #[prost(message, repeated, tag = "1")]
    pub(crate) targets: Vec<PortTarget>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) pods: Vec<ServedPod>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct PortTarget {
    #[prost(uint32, tag = "1")]
    pub(crate) port: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) target: u32,
    /// As `tollway.v1.AppProtocol`.
    #[prost(int32, tag = "3")]
    pub(crate) protocol: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ServedPod {
    /// 4 or 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) ip: Vec<u8>,
    #[prost(bool, tag = "2")]
    pub(crate) is_ready: bool,
    /// Its app's own, on which it takes calls of the mesh; 0 where it has none.
    #[prost(uint32, tag = "3")]
    pub(crate) app_port: u32,
    /// Empty where none is stated.
    #[prost(string, tag = "4")]
    pub(crate) zone: String,
    #[prost(string, repeated, tag = "5")]
    pub(crate) instances: Vec<String>,
    /// Its app takes calls of the mesh, at the ports to which Services lead at least.
    #[prost(bool, tag = "6")]
    pub(crate) takes_calls: bool,
}

/// A join secret in an exported bundle. The secret itself is not stored.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct JoinSecret {
    #[prost(uint64, tag = "1")]
    pub(crate) expires_at_unix_ms: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) secret_hash: Vec<u8>,
    /// SHA-256 of the root of the network that redeemed it; empty while it is unused.
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) redeemed_by: Vec<u8>,
    /// The gateways of the network that redeems it may move.
    #[prost(bool, tag = "4")]
    pub(crate) follow_gateways: bool,
}

/// The network's authority, with its key: in `sealed_key` if the control plane has a passphrase,
/// else in `key_pem`, where the store's file mode is its only protection.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Authority {
    #[prost(string, tag = "1")]
    pub(crate) network: String,
    #[prost(string, tag = "2")]
    pub(crate) trust_domain: String,
    #[prost(string, tag = "3")]
    pub(crate) certificate_pem: String,
    #[prost(string, tag = "4")]
    pub(crate) key_pem: String,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) sealed_key: Vec<u8>,
}

/// An actor type: the apps that may host it, and what its hosts were granted.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ActorType {
    #[prost(string, repeated, tag = "1")]
    pub(crate) apps: Vec<String>,
    /// The operator has named the apps.
    #[prost(bool, tag = "2")]
    pub(crate) is_named: bool,
    /// Since when no host offers it; 0 while one does.
    #[prost(uint64, tag = "3")]
    pub(crate) vacant_since_unix_s: u64,
    #[prost(message, repeated, tag = "4")]
    pub(crate) hosts: Vec<ActorHost>,
    /// Other apps that share their types may host it, too.
    #[prost(bool, tag = "5")]
    pub(crate) is_shared: bool,
}

/// What one life of a host was granted.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ActorHost {
    #[prost(string, tag = "1")]
    pub(crate) app: String,
    #[prost(string, tag = "2")]
    pub(crate) instance: String,
    #[prost(fixed64, tag = "3")]
    pub(crate) life: u64,
    #[prost(message, repeated, tag = "4")]
    pub(crate) grants: Vec<ActorGrant>,
}

/// Shards that were granted together.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ActorGrant {
    #[prost(uint64, tag = "1")]
    pub(crate) epoch: u64,
    #[prost(uint32, repeated, tag = "2")]
    pub(crate) shards: Vec<u32>,
}

/// What was pinned when a network was joined.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PeerTrust {
    /// The name as that network spells it.
    #[prost(string, tag = "1")]
    pub(crate) network: String,
    #[prost(string, tag = "2")]
    pub(crate) trust_domain: String,
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub(crate) roots: Vec<Vec<u8>>,
    #[prost(uint64, tag = "4")]
    pub(crate) joined_at_unix_s: u64,
    /// This side has pinned it and the other has not agreed yet.
    #[prost(bool, tag = "5")]
    pub(crate) pending: bool,
    /// Its gateways may move without a new bundle.
    #[prost(bool, tag = "6")]
    pub(crate) follow_gateways: bool,
    /// The gateways of its bundle.
    #[prost(message, repeated, tag = "7")]
    pub(crate) bundle_gateways: Vec<v1::Address>,
    /// This network's operator has accepted that bundle; else the other network has presented it.
    #[prost(bool, tag = "8")]
    pub(crate) is_accepted: bool,
    /// The identities that it took back.
    #[prost(message, repeated, tag = "9")]
    pub(crate) revoked: Vec<v1::RevokedIdentity>,
}

/// The state of a joined network. It is reachable while a gateway of it answers; its control plane
/// answers if there is no error.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PeerLink {
    #[prost(bool, tag = "1")]
    pub(crate) reachable: bool,
    /// Why its control plane does not answer; empty when it does.
    #[prost(string, tag = "2")]
    pub(crate) last_error: String,
    /// The version of its control plane, as last received; empty if it sent none.
    #[prost(string, tag = "3")]
    pub(crate) version: String,
    /// With what its gateways are probed; empty until its control plane has sent it.
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) probe_secret: Vec<u8>,
    /// Where it is dialled, those that do not answer or that end soon. Others do answer.
    #[prost(message, repeated, tag = "5")]
    pub(crate) passed_over: Vec<v1::Address>,
}

impl PeerLink {
    pub(crate) fn is_passed_over(&self, address: SocketAddr) -> bool {
        let address = v1::Address::from(address);
        self.passed_over.contains(&address)
    }

    /// Those of `gateways` that are not passed over; all, if there is no other.
    pub(crate) fn that_answer(&self, gateways: Arc<[SocketAddr]>) -> Arc<[SocketAddr]> {
        if self.passed_over.is_empty() {
            return gateways;
        }
        let answers = |address: &SocketAddr| !self.is_passed_over(*address);
        let answering: Arc<[SocketAddr]> = gateways.iter().copied().filter(answers).collect();
        if answering.is_empty() { gateways } else { answering }
    }
}

/// How far a joined network's aggregates were applied, in that network's revisions.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PeerCursor {
    #[prost(uint64, tag = "1")]
    pub(crate) revision: u64,
}
