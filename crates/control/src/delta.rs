//! What a stream that follows this whole network has to be told next. Pure.

use tollway_model::{NetworkName, Revision, ServiceName};

use crate::catalogue::{Catalogue, Subject};

/// Names only: their states are read when they are sent, so they may be newer than `revision`,
/// never older.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    /// The follower knows everything up to here once it has all of this.
    pub(crate) revision: Revision,
    /// Everything there is, instead of what changed.
    pub(crate) snapshot: bool,
    /// Services of this network.
    pub(crate) services: Vec<ServiceName>,
    /// Joined networks.
    pub(crate) networks: Vec<NetworkName>,
    /// The gateways of this network.
    pub(crate) gateways: bool,
}

/// The difference to a follower that knows everything up to `known`; `None` knows nothing.
pub(crate) fn plan(catalogue: &Catalogue, known: Option<Revision>) -> Delta {
    let revision = catalogue.revision();
    let Some(known) = known.filter(|known| catalogue.reaches_back_to(known.0)) else {
        return Delta {
            revision,
            snapshot: true,
            services: catalogue.local_services().cloned().collect(),
            networks: catalogue.peers().map(|(network, _)| network.clone()).collect(),
            gateways: true,
        };
    };
    let mut delta = Delta { revision, ..Delta::default() };
    let home = &catalogue.home().network;
    for subject in catalogue.changes_after(known.0) {
        match subject {
            Subject::Service(name) if name.network == *home => delta.services.push(name.clone()),
            Subject::Network(network) => delta.networks.push(network.clone()),
            Subject::Gateways => delta.gateways = true,
            Subject::Service(_) | Subject::Trust => {}
        }
    }
    delta
}
