//! Plans what a stream that follows this whole network is sent next. Pure.

use tollway_model::{NetworkName, Revision, ServiceName};

use crate::catalogue::{Catalogue, Subject};

/// Names only: their states are read when they are sent, so they may be newer than `revision`,
/// never older.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    /// The follower is at this revision once it has all parts.
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

/// The difference to a follower at revision `known`; `None` for one without state.
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
            Subject::Service(_)
            | Subject::Trust
            | Subject::Objects(_)
            | Subject::ClusterService(_)
            | Subject::Address(_)
            | Subject::Ports(_)
            | Subject::Cluster => {}
        }
    }
    delta
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use prost::Message as _;
    use tollway_model::{AppProtocol, Label, TrustDomain, Workload};
    use tollway_wire::v1;

    use super::*;
    use crate::catalogue::{Home, PinnedTrust};
    use crate::key::Key;
    use crate::options::RemoteCalls;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    fn name(text: &str) -> ServiceName {
        ServiceName::parse_in(text, &label("default"), &label("west")).unwrap()
    }

    fn put_workload(catalogue: &mut Catalogue, app: &str, revision: u64) {
        let service = name(app);
        let workload = Workload {
            service: service.clone(),
            instance: label("a"),
            address: "10.0.0.1:50002".parse().unwrap(),
            protocol: Some(AppProtocol::Http),
            ready: true,
            locality: tollway_model::Locality::default(),
        };
        let key =
            Key::Workload { namespace: service.namespace, app: service.app, instance: label("a") };
        catalogue.put(&key, &v1::Workload::from(&workload).encode_to_vec(), revision).unwrap();
        catalogue.advance(revision);
    }

    /// West as of revision 10, when its store was read, and two changes since.
    fn catalogue() -> Catalogue {
        let home = Home {
            network: label("west"),
            trust_domain: TrustDomain::new("west.tollway").unwrap(),
            root: Vec::new(),
            remote_calls: RemoteCalls::Direct,
            egress: tollway_model::EgressDefault::Open,
            listen: SocketAddr::from(([10, 0, 0, 1], 15010)),
            peer_addresses: Arc::from([]),
        };
        let mut catalogue = Catalogue::new(home, 10);
        put_workload(&mut catalogue, "old", 4);
        put_workload(&mut catalogue, "stock", 11);
        let east = PinnedTrust {
            network: label("east"),
            trust_domain: TrustDomain::new("east.tollway").unwrap(),
            roots: Vec::new(),
            joined_at_unix_s: 0,
            pending: false,
            follow_gateways: false,
            bundle_gateways: Vec::new(),
            is_accepted: false,
            revoked: Vec::new(),
        };
        catalogue.put(&Key::PeerTrust { network: label("east") }, &east.write(), 12).unwrap();
        catalogue.advance(12);
        catalogue
    }

    #[test]
    fn a_newcomer_and_one_from_too_long_ago_get_everything() {
        for known in [None, Some(Revision(9)), Some(Revision(13))] {
            let delta = plan(&catalogue(), known);
            assert!(delta.snapshot, "{known:?}");
            assert_eq!(delta.services, [name("old"), name("stock")]);
            assert_eq!(delta.networks, [label("east")]);
            assert!(delta.gateways);
            assert_eq!(delta.revision, Revision(12));
        }
    }

    #[test]
    fn a_follower_gets_what_changed_since() {
        let delta = plan(&catalogue(), Some(Revision(10)));
        assert!(!delta.snapshot);
        assert_eq!((delta.services, delta.networks), (vec![name("stock")], vec![label("east")]));
        let delta = plan(&catalogue(), Some(Revision(11)));
        assert_eq!((delta.services, delta.networks), (vec![], vec![label("east")]));
        let delta = plan(&catalogue(), Some(Revision(12)));
        assert_eq!(delta, Delta { revision: Revision(12), ..Delta::default() });
    }

    #[test]
    fn services_of_other_networks_are_not_passed_on() {
        let mut catalogue = catalogue();
        let aggregate = v1::Aggregate {
            app: "stock".into(),
            namespace: "default".into(),
            ready_replicas: 1,
            protocol: v1::AppProtocol::Http.into(),
            ..v1::Aggregate::default()
        };
        let (namespace, app) = (label("default"), label("stock"));
        let key = Key::PeerService { network: label("east"), namespace, app };
        catalogue.put(&key, &aggregate.encode_to_vec(), 13).unwrap();
        catalogue.advance(13);
        let delta = plan(&catalogue, Some(Revision(12)));
        assert_eq!(delta, Delta { revision: Revision(13), ..Delta::default() });
    }
}
