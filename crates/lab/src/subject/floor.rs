//! `floor`: two relays that pass bytes, without TLS and without looking into them. What any pair
//! of proxies costs at least when each message passes two more processes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{
    Availability, Direct, HOME, Leg, Listener, Route, StartedSubject, Subject, SubjectKind,
    Variant, direct_url,
};
use crate::error::LabError;
use crate::experiment::{Ground, READY_LIMIT};
use crate::progress::Progress;
use crate::relay::{Forward, RelayArgs, Target};
use tollway_net::ports_file as ports;

/// A pair of relays.
pub struct Floor;

const PAIR: &[Variant] =
    &[Variant::known("relay-pair", "one beside the caller, one beside the app")];

/// Listener names of its relays.
const NEAR: &str = "near";
const FAR: &str = "far";

impl SubjectKind for Floor {
    fn name(&self) -> &str {
        "floor"
    }

    fn purpose(&self) -> &str {
        "a pair of bare relays, no TLS, no parsing: what two more processes cost at least"
    }

    fn variants(&self) -> &[Variant] {
        PAIR
    }

    fn availability(&self) -> Availability {
        Availability::Ready { version: String::new() }
    }

    fn make(&self, _: &Variant) -> Box<dyn Subject> {
        Box::new(Self)
    }
}

impl Subject for Floor {
    /// What the app ends itself passes it like anything else.
    fn carries(&self, leg: &Leg) -> Result<(), String> {
        Direct.carries(leg)
    }

    fn published(&self, _: &str) -> Vec<Listener> {
        let all = APPS.iter().map(|app| Listener {
            name: format!("floor-{app}"),
            process: far_process(app),
            port: FAR,
        });
        all.collect()
    }

    fn start(
        &self,
        ground: &mut Ground,
        legs: &[Leg],
        _: &mut dyn Progress,
    ) -> Result<StartedSubject, LabError> {
        let mut started = StartedSubject::default();
        for leg in legs {
            // One pair passes whatever one of the app's listeners understands.
            let passes = |other: &Leg| {
                other.network == leg.network && ground.app_name(other) == ground.app_name(leg)
            };
            let known = started.routes.iter().find(|(other, _)| passes(other));
            let route = match known.map(|(_, route)| route.clone()) {
                Some(route) => route,
                None => start_pair(ground, leg, &mut started)?,
            };
            started.routes.insert(*leg, route);
        }
        Ok(started)
    }
}

/// The app's listeners, as [`Ground::app_name`] calls them.
const APPS: [&str; 5] = ["http", "grpc", "tcp", "tls", "mtls"];

fn far_process(leg: &str) -> String {
    format!("floor-{leg}-far")
}

fn start_pair(
    ground: &mut Ground,
    leg: &Leg,
    started: &mut StartedSubject,
) -> Result<Route, LabError> {
    let name = ground.app_name(leg);
    let app = ground.app(leg.network, leg)?;
    let address = ground.network(leg.network).address;
    let far = relay(ground, leg.network, &far_process(name), FAR, address, app)?;
    let next = ground.published(HOME, leg.network, &format!("floor-{name}"))?;
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let to = ground.network(leg.network).name.clone();
    let near = relay(ground, HOME, &format!("floor-{name}-to-{to}"), NEAR, loopback, next)?;
    let ports_file = ground.ports_path(&near);
    let bound = ports::port(&ports_file, &ground.wait_ports(&near, READY_LIMIT)?, NEAR)?;
    let roles = [("near-relay", &near), ("far-relay", &far)];
    let roles = roles.map(|(role, process)| (role.to_owned(), vec![process.clone()]));
    started.processes.extend([far, near]);
    Ok(Route {
        url: direct_url(leg.protocol, leg.tls, bound),
        headers: Vec::new(),
        caller_tls: ground.app_tls(leg),
        cgroup: None,
        hops: 2,
        tls: leg.tls,
        app_tls: leg.tls,
        made_of: "relay–relay".to_owned(),
        roles: roles.into(),
    })
}

fn relay(
    ground: &mut Ground,
    network: usize,
    process: &str,
    listener: &str,
    listen_ip: IpAddr,
    target: SocketAddr,
) -> Result<String, LabError> {
    let name = ground.process(network, process);
    let args = RelayArgs {
        forwards: vec![Forward {
            name: listener.to_owned(),
            listen: SocketAddr::new(listen_ip, 0),
            target: Target::Address(target),
        }],
        delay_us: 0,
        ordinary_priority: true,
        ports_file: ground.ports_path(&name),
    };
    let spec = ground.commands().relay(&name, &args);
    let spec = spec.within(ground.network(network).namespace.as_ref());
    ground.start(&spec)?;
    ground.wait_ports(&name, READY_LIMIT)?;
    Ok(name)
}
