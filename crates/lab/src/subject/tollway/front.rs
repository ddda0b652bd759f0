//! `tollway:front`: one front alone before the app, which ends TLS and mutual TLS. No mesh.

use std::collections::BTreeMap;

use tollway_record::record::{Protocol, Tls};

use crate::commands::FRONT_PORT;
use crate::error::LabError;
use crate::experiment::{Ground, READY_LIMIT};
use crate::progress::Progress;
use crate::subject::{HOME, Leg, Listener, Route, StartedSubject, Subject, direct_url};

/// A front for callers that show a certificate, and one for those that show none.
pub(super) struct Front;

/// The processes, and the names of their listeners.
const ALL: [&str; 2] = ["tollway-front-tls", "tollway-front-mtls"];

impl Subject for Front {
    fn carries(&self, leg: &Leg) -> Result<(), String> {
        match (leg.tls, leg.protocol) {
            (Tls::Plain, _) => Err("a front is there to end TLS".to_owned()),
            (_, Protocol::Http1 | Protocol::Http2) => Ok(()),
            _ => Err("the app that it leads to speaks HTTP/1.1".to_owned()),
        }
    }

    fn published(&self, _: &str) -> Vec<Listener> {
        let listener = |name: &str| Listener {
            name: name.to_owned(),
            process: name.to_owned(),
            port: FRONT_PORT,
        };
        ALL.map(listener).into()
    }

    fn start(
        &self,
        ground: &mut Ground,
        legs: &[Leg],
        _: &mut dyn Progress,
    ) -> Result<StartedSubject, LabError> {
        let mut started = StartedSubject::default();
        for leg in legs {
            let name = name_of(leg);
            let process = ground.process(leg.network, name);
            if !started.processes.contains(&process) {
                start_front(ground, leg, name, &process)?;
                started.processes.push(process.clone());
            }
            let bound = ground.published(HOME, leg.network, name)?;
            let route = Route {
                url: direct_url(leg.protocol, leg.tls, bound),
                headers: Vec::new(),
                caller_tls: ground.app_tls(leg),
                cgroup: None,
                hops: 1,
                tls: leg.tls,
                app_tls: Tls::Plain,
                made_of: "front".to_owned(),
                roles: BTreeMap::from([("front".to_owned(), vec![process])]),
            };
            started.routes.insert(*leg, route);
        }
        Ok(started)
    }
}

fn name_of(leg: &Leg) -> &'static str {
    let [tls, mtls] = ALL;
    if leg.tls == Tls::Mtls { mtls } else { tls }
}

/// With the certificate of its app.
fn start_front(ground: &mut Ground, leg: &Leg, name: &str, process: &str) -> Result<(), LabError> {
    let app = ground.app(leg.network, &Leg { tls: Tls::Plain, ..*leg })?;
    let none = || LabError::Unpublished { name: "certificate of the app".to_owned() };
    let identity = ground.app_identity(leg.network).ok_or_else(none)?.clone();
    let ports_file = ground.ports_path(process);
    let network = ground.network(leg.network);
    let mutual = leg.tls == Tls::Mtls;
    let spec = ground.commands().front(network, name, &identity, mutual, app, &ports_file);
    ground.start(&spec.named(process))?;
    ground.wait_ports(process, READY_LIMIT)?;
    Ok(())
}
