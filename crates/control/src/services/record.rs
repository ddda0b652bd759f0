//! A Service of the cluster as it is stored.

use std::net::IpAddr;

use prost::Message as _;
use tollway_model::{AreaName, Label};
use tollway_wire::{ConvertError, v1};

use super::{ClusterService, PodGroup, PodPorts, PortTarget, ServedPod};
use crate::catalogue::RecordError;
use crate::stored;

impl ClusterService {
    /// Its namespace and name are in the key.
    pub(crate) fn write(&self) -> Vec<u8> {
        let ip = |ip: &IpAddr| match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let pod = |pod: &ServedPod| stored::ServedPod {
            ip: ip(&pod.address),
            is_ready: pod.is_ready,
            instances: pod.instances.iter().map(ToString::to_string).collect(),
            app_port: pod.ports.own().map_or(0, u32::from),
            takes_calls: pod.takes_calls(),
            zone: pod.zone.as_ref().map(ToString::to_string).unwrap_or_default(),
        };
        let target = |of: &PortTarget| stored::PortTarget {
            port: u32::from(of.port),
            target: u32::from(of.target),
            protocol: v1::AppProtocol::from(of.protocol).into(),
        };
        let group = |group: &PodGroup| stored::PodGroup {
            targets: group.targets.iter().map(target).collect(),
            pods: group.pods.iter().map(pod).collect(),
        };
        stored::ClusterService {
            ips: self.addresses.iter().map(ip).collect(),
            ports: self.ports.iter().copied().map(u32::from).collect(),
            groups: self.groups.iter().map(group).collect(),
        }
        .encode_to_vec()
    }

    pub(crate) fn read(namespace: &Label, name: &Label, value: &[u8]) -> Result<Self, RecordError> {
        let stored = stored::ClusterService::decode(value)?;
        let addresses = stored.ips.iter().map(|bytes| ip(bytes));
        Ok(Self {
            namespace: namespace.clone(),
            name: name.clone(),
            addresses: addresses.collect::<Result<_, _>>()?,
            ports: stored.ports.iter().copied().map(port).collect::<Result<_, _>>()?,
            groups: stored.groups.iter().map(group).collect::<Result<_, _>>()?,
        })
    }
}

fn group(stored: &stored::PodGroup) -> Result<PodGroup, ConvertError> {
    let target = |of: &stored::PortTarget| {
        let protocol = tollway_wire::protocol(of.protocol)?;
        Ok::<_, ConvertError>(PortTarget {
            port: port(of.port)?,
            target: port(of.target)?,
            protocol,
        })
    };
    let pod = |pod: &stored::ServedPod| {
        let zone = (!pod.zone.is_empty()).then(|| AreaName::new(&pod.zone)).transpose();
        let instances = pod.instances.iter().map(|name| tollway_wire::instance(name));
        Ok::<_, ConvertError>(ServedPod {
            address: ip(&pod.ip)?,
            instances: instances.collect::<Result<_, _>>()?,
            is_ready: pod.is_ready,
            ports: match (pod.takes_calls, pod.app_port) {
                (false, _) => PodPorts::None,
                (true, 0) => PodPorts::OfServices,
                (true, own) => PodPorts::Own(port(own)?),
            },
            zone: zone.map_err(|source| ConvertError::Area { field: "zone", source })?,
        })
    };
    Ok(PodGroup {
        targets: stored.targets.iter().map(target).collect::<Result<_, _>>()?,
        pods: stored.pods.iter().map(pod).collect::<Result<_, _>>()?,
    })
}

fn ip(bytes: &[u8]) -> Result<IpAddr, ConvertError> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| v6()).map_err(|_| ConvertError::Ip { field: "ip", length: bytes.len() })
}

fn port(stated: u32) -> Result<u16, ConvertError> {
    let port = u16::try_from(stated).ok().filter(|port| *port > 0);
    port.ok_or(ConvertError::Port { field: "port", port: stated })
}

#[cfg(test)]
mod tests {
    use tollway_model::AppProtocol;

    use super::*;

    #[test]
    fn a_service_reads_back_as_it_was_written() {
        let label = |text: &str| Label::new(text).unwrap();
        let pod = |ip: &str, ports: PodPorts, zone: Option<&str>| ServedPod {
            address: ip.parse().unwrap(),
            instances: ports.own().map(|_| label("stock-1")).into_iter().collect(),
            is_ready: ports == PodPorts::Own(8080),
            ports,
            zone: zone.map(|zone| AreaName::new(zone).unwrap()),
        };
        let service = ClusterService {
            namespace: label("shop"),
            name: label("stock"),
            addresses: vec!["10.96.0.7".parse().unwrap(), "fd00::7".parse().unwrap()],
            ports: vec![80, 90],
            groups: vec![
                PodGroup {
                    targets: vec![PortTarget {
                        port: 80,
                        target: 8080,
                        protocol: AppProtocol::H2c,
                    }],
                    pods: vec![
                        pod("10.1.0.1", PodPorts::Own(8080), Some("eu-1a")),
                        pod("fd01::1", PodPorts::None, None),
                        pod("fd01::2", PodPorts::OfServices, None),
                    ],
                },
                PodGroup { targets: Vec::new(), pods: Vec::new() },
            ],
        };
        assert!(service.write().len() <= service.size(), "it is no more than is counted");
        let read = |value: &[u8]| ClusterService::read(&service.namespace, &service.name, value);
        assert_eq!(read(&service.write()).unwrap(), service);
        let broken = |change: fn(&mut stored::ClusterService)| {
            let mut stored = stored::ClusterService::decode(&*service.write()).unwrap();
            change(&mut stored);
            read(&stored.encode_to_vec()).unwrap_err();
        };
        broken(|stored| stored.ips[0].truncate(3));
        broken(|stored| stored.ports[0] = 65_536);
        broken(|stored| stored.groups[0].pods[0].instances[0] = "a.b".to_owned());
        broken(|stored| stored.groups[0].targets[0].port = 0);
        broken(|stored| stored.groups[0].targets[0].target = 65_536);
        broken(|stored| stored.groups[0].targets[0].protocol = 0);
        broken(|stored| stored.groups[0].pods[0].app_port = 65_536);
        broken(|stored| stored.groups[0].pods[0].ip.clear());
        broken(|stored| stored.groups[0].pods[0].zone = "a b".to_owned());
        read(b"\xff").unwrap_err();
    }
}
