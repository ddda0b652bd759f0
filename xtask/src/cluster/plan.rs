//! What the rig consists of: two clusters, their machines, and every address.
//!
//! Addresses of machines are routed between the clusters. Those of pods and Services are the same in both,
//! and are not: only gateways can join them.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};

/// Services of either cluster.
pub(super) const SERVICES: &str = "10.96.0.0/16";
/// The API server as a Service: the first address of the range.
pub(super) const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// CoreDNS as a Service; its manifest has the same address.
pub(super) const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// Pods of all machines.
pub(super) const PODS: &str = "10.200.0.0/13";

/// A cluster with a network of its own.
pub(super) struct Cluster {
    pub(super) name: &'static str,
    pub(super) machines: &'static [Machine],
    /// The router of its network, in a range of 24 bits.
    pub(super) router: Ipv4Addr,
    /// Its end of the link to the other network.
    pub(super) link_end: Ipv4Addr,
}

/// A machine; the first one of a cluster has the control plane as well.
pub(super) struct Machine {
    pub(super) name: &'static str,
    pub(super) address: Ipv4Addr,
    /// Addresses of its pods.
    pub(super) pods: &'static str,
}

pub(super) const CLUSTERS: [Cluster; 2] = [
    Cluster {
        name: "a",
        machines: &[
            Machine { name: "a1", address: Ipv4Addr::new(10, 77, 0, 11), pods: "10.201.1.0/24" },
            Machine { name: "a2", address: Ipv4Addr::new(10, 77, 0, 12), pods: "10.201.2.0/24" },
        ],
        router: Ipv4Addr::new(10, 77, 0, 1),
        link_end: Ipv4Addr::new(10, 79, 0, 1),
    },
    Cluster {
        name: "b",
        machines: &[Machine {
            name: "b1",
            address: Ipv4Addr::new(10, 78, 0, 11),
            pods: "10.201.1.0/24",
        }],
        router: Ipv4Addr::new(10, 78, 0, 1),
        link_end: Ipv4Addr::new(10, 79, 0, 2),
    },
];

impl Cluster {
    /// The machine with the control plane.
    pub(super) fn first(&self) -> &'static Machine {
        &self.machines[0]
    }

    /// The range of its machines' addresses.
    pub(super) fn range(&self) -> String {
        let [a, b, c, _] = self.router.octets();
        format!("{a}.{b}.{c}.0/24")
    }
}

pub(super) fn machines() -> impl Iterator<Item = (&'static Cluster, &'static Machine)> {
    const ALL: &[Cluster] = &CLUSTERS;
    ALL.iter().flat_map(|cluster| cluster.machines.iter().map(move |machine| (cluster, machine)))
}

/// The machine of this name, and its cluster.
pub(super) fn machine(name: &str) -> Result<(&'static Cluster, &'static Machine)> {
    machines()
        .find(|(_, machine)| machine.name == name)
        .with_context(|| format!("the rig has no machine `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_in_the_ranges_that_are_routed() {
        for (cluster, machine) in machines() {
            assert!(machine.name.starts_with(cluster.name));
            assert_eq!(machine.address.octets()[..3], cluster.router.octets()[..3]);
            assert_eq!(cluster.range(), format!("{}.0/24", cluster.router).replace(".1.0/", ".0/"));
        }
        let [a, b] = &CLUSTERS;
        assert_eq!(a.link_end.octets()[..3], b.link_end.octets()[..3]);
        assert_eq!(machine("a2").unwrap().0.name, "a");
        assert!(machine("c1").is_err());
    }
}
