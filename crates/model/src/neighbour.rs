//! Neighbours of the fabric: where an address of a virtual network is found.
//!
//! This module validates records, packs them into bytes ([`packed`]) and merges those that arrive
//! in any order ([`Merged`]). `wire` converts them to messages, the control plane stores them, the
//! fabric forwards by them.

mod address;
mod merge;
pub mod packed;
#[cfg(test)]
mod tests_support;

use std::fmt;
use std::net::IpAddr;

use thiserror::Error;

use crate::name::{Label, NameError};

pub use address::{AddressError, Mac, Vni, host_ip, inner_ip};
pub use merge::{Merged, supersedes};

/// Longest name of a group: with `fabric-` before it, it is the name of its agents.
const GROUP_LIMIT_BYTES: usize = 56;
/// What an agent's app name begins with; the name of its group follows.
const AGENT_PREFIX: &str = "fabric-";

/// A group: a part of the table, which its agents have whole. It compares without case.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group(Label);

/// Why a group's name was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GroupError {
    #[error("the name of a group is a label")]
    Label(#[from] NameError),
    #[error(
        "the group `{name}` has a name of {length} characters; it may have at most {GROUP_LIMIT_BYTES}"
    )]
    TooLong { name: String, length: usize },
}

impl Group {
    /// Reads the name of a group: a label of at most 56 characters.
    ///
    /// # Errors
    /// [`GroupError`] when it is not one.
    pub fn new(text: &str) -> Result<Self, GroupError> {
        let label = Label::new(text)?;
        if text.len() > GROUP_LIMIT_BYTES {
            return Err(GroupError::TooLong { name: text.to_owned(), length: text.len() });
        }
        Ok(Self(label))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The name in lower case, as certificates and store keys have it.
    #[must_use]
    pub fn to_lower(&self) -> String {
        self.0.to_lower()
    }

    /// The app name of the group's agents in the mesh's own namespace: `fabric-<group>`.
    #[must_use]
    pub fn agent_app(&self) -> Label {
        let name = format!("{AGENT_PREFIX}{}", self.to_lower());
        Label::new(&name).expect("a group's name is short enough for it")
    }

    /// The group whose agents have this app name in the mesh's own namespace.
    #[must_use]
    pub fn of_agent_app(app: &Label) -> Option<Self> {
        let app = app.to_lower();
        Self::new(app.strip_prefix(AGENT_PREFIX)?).ok()
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// What names a neighbour within its group. The order is that of its packed form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NeighbourKey {
    vni: Vni,
    ip: IpAddr,
}

impl NeighbourKey {
    /// Names the neighbour with this address in a virtual network.
    ///
    /// # Errors
    /// [`AddressError`] when no neighbour can have the address.
    pub fn new(vni: Vni, ip: IpAddr) -> Result<Self, AddressError> {
        Ok(Self { vni, ip: inner_ip(ip)? })
    }

    #[must_use]
    pub fn vni(&self) -> Vni {
        self.vni
    }

    /// Its address inside the virtual network.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.ip
    }
}

impl fmt::Display for NeighbourKey {
    /// As people read it: `vni 7, 10.0.0.1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vni {}, {}", self.vni, self.ip)
    }
}

/// The host that has a neighbour, and the hardware addresses of both.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HostLocation {
    pub mac: Mac,
    host_ip: IpAddr,
    pub host_mac: Mac,
}

impl HostLocation {
    /// # Errors
    /// [`AddressError`] when no host can have the address.
    pub fn new(mac: Mac, host_ip: IpAddr, host_mac: Mac) -> Result<Self, AddressError> {
        Ok(Self { mac, host_ip: address::host_ip(host_ip)?, host_mac })
    }

    /// The outer address of the host.
    #[must_use]
    pub fn host_ip(&self) -> IpAddr {
        self.host_ip
    }
}

/// A neighbour as of one revision of its group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NeighbourRecord {
    pub key: NeighbourKey,
    /// Of the transaction that wrote it; 0 where none has, as in a request to write it.
    pub revision: u64,
    /// `None` is a tombstone: it was deleted at that revision.
    pub location: Option<HostLocation>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_named_by_a_short_label() {
        let longest = "g".repeat(56);
        assert_eq!(Group::new(&longest).unwrap().agent_app().as_str().len(), 63);
        let refused = |text: &str| Group::new(text).unwrap_err().to_string();
        assert_eq!(
            refused(&"g".repeat(57)),
            format!(
                "the group `{}` has a name of 57 characters; it may have at most 56",
                "g".repeat(57)
            )
        );
        assert_eq!(refused("a.b"), "the name of a group is a label");
    }

    #[test]
    fn agents_are_named_after_their_group() {
        let group = Group::new("Racks-1").unwrap();
        assert_eq!(group.agent_app().as_str(), "fabric-racks-1");
        let of = |app: &str| Group::of_agent_app(&Label::new(app).unwrap());
        assert_eq!(of("fabric-racks-1"), Some(group.clone()));
        assert_eq!(of("FABRIC-RACKS-1"), Some(group));
        assert_eq!(of("gateway"), None);
        assert_eq!(of("fabric-"), None);
    }
}
