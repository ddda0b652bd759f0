//! What the control plane has sent to this data plane, as far as it is needed to resume and to make
//! differences of a full state. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tollway_model::traffic_policy::TrafficParts;
use tollway_model::{
    NetworkName, Policy, Revision, Route, ServiceName, ServiceState, ServiceUpdate,
    UnavailableReason,
};
use tollway_routing::EgressRules;
use tollway_wire::{ConvertError, NetworkState, NetworkUpdate, v1};

use super::MeshDelta;
use crate::served_ports::ServedPorts;

/// The states that were passed on.
#[derive(Debug, Default)]
pub(super) struct Knowledge {
    revision: Revision,
    services: HashMap<ServiceName, Known>,
    networks: HashMap<NetworkName, NetworkState>,
    policies: Option<Vec<Policy>>,
    /// What the traffic policies of the own service come to.
    own_traffic: Arc<TrafficParts>,
    /// What the own app may call out of the mesh.
    egress: Option<EgressRules>,
    /// Ports of the own app beside the one that it is set to; none before they are stated.
    ports: ServedPorts,
    /// The routes that were passed on, of services that have any.
    routes: HashMap<ServiceName, Arc<[Arc<Route>]>>,
    /// Counts the policies, routes and traffic policies that were passed on.
    change_number: u64,
    /// What the full state that is under way has mentioned.
    snapshot: Option<Mentioned>,
    /// Services whose routes or traffic policies could not be read, and were not reported yet.
    unread: Vec<(ServiceName, ConvertError)>,
}

/// What was passed on of a service.
#[derive(Debug)]
struct Known {
    state: ServiceState,
    routes: Arc<[Arc<Route>]>,
    traffic: Arc<TrafficParts>,
    /// Why routes or traffic policies that were sent last could not be read; those here are then older.
    unread: Option<ConvertError>,
}

#[derive(Debug, Default)]
struct Mentioned {
    services: HashSet<ServiceName>,
    networks: HashSet<NetworkName>,
}

impl Knowledge {
    /// Everything up to here was applied.
    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    /// Whether a state of the service was ever received.
    pub(super) fn knows(&self, service: &ServiceName) -> bool {
        self.services.contains_key(service)
    }

    /// The service is no longer followed: its state grows old.
    pub(super) fn forget(&mut self, service: &ServiceName) {
        self.services.remove(service);
        self.routes.remove(service);
    }

    /// Takes in the routes of a service, if they are others than before, and numbers them.
    pub(super) fn take_routes(&mut self, update: &ServiceUpdate) -> Option<u64> {
        let before = self.routes.get(&update.service);
        if before.map_or(&[][..], |routes| routes) == &*update.routes {
            return None;
        }
        if update.routes.is_empty() {
            self.routes.remove(&update.service);
        } else {
            self.routes.insert(update.service.clone(), Arc::clone(&update.routes));
        }
        self.change_number += 1;
        Some(self.change_number)
    }

    /// Takes in the policies of the own service, if they are others than before, and numbers
    /// them.
    ///
    /// # Errors
    /// [`ConvertError`] when one of them cannot be read: none of them is taken then.
    pub(super) fn take_policies(
        &mut self,
        response: &v1::WatchResponse,
    ) -> Result<Option<(u64, &[Policy])>, ConvertError> {
        let Some(stated) = &response.policies else { return Ok(None) };
        let policies = tollway_wire::policies(stated)?;
        if self.policies.as_ref() == Some(&policies) {
            return Ok(None);
        }
        self.change_number += 1;
        Ok(Some((self.change_number, self.policies.insert(policies))))
    }

    /// Takes in what the traffic policies of the own service come to, if it is other than before, and
    /// numbers it.
    ///
    /// # Errors
    /// [`ConvertError`] when a part cannot be read: those of before hold then.
    pub(super) fn take_own_traffic(
        &mut self,
        response: &v1::WatchResponse,
    ) -> Result<Option<(u64, Arc<TrafficParts>)>, ConvertError> {
        let stated = tollway_wire::own_traffic(response)?;
        let Some(parts) = stated.filter(|parts| *parts != *self.own_traffic) else {
            return Ok(None);
        };
        self.own_traffic = Arc::new(parts);
        self.change_number += 1;
        Ok(Some((self.change_number, Arc::clone(&self.own_traffic))))
    }

    /// Numbers a change that is to be acknowledged once every data thread has applied it.
    pub(super) fn number_change(&mut self) -> u64 {
        self.change_number += 1;
        self.change_number
    }

    /// Takes in what the own app may call out of the mesh, if it is other than before, and numbers it.
    ///
    /// # Errors
    /// [`ConvertError`] when a part cannot be read: what held before holds then.
    pub(super) fn take_egress(
        &mut self,
        response: &v1::WatchResponse,
    ) -> Result<Option<(u64, EgressRules)>, ConvertError> {
        let stated = tollway_wire::egress_rules(response)?;
        let rules = stated.map(|(by_default, egresses)| EgressRules::new(by_default, egresses));
        let Some(rules) = rules.filter(|rules| self.egress.as_ref() != Some(rules)) else {
            return Ok(None);
        };
        self.change_number += 1;
        Ok(Some((self.change_number, self.egress.insert(rules).clone())))
    }

    /// The ports of the own app that Services of a cluster lead to, if a response has others than before.
    ///
    /// # Errors
    /// [`ConvertError`] when a port cannot be read: those of before are served then.
    pub(super) fn take_ports(
        &mut self,
        response: &v1::WatchResponse,
    ) -> Result<Option<ServedPorts>, ConvertError> {
        let stated = tollway_wire::served_ports(response)?.map(|ports| ServedPorts::new(&ports));
        let changed = stated.filter(|ports| self.ports != *ports);
        Ok(changed.inspect(|ports| self.ports.clone_from(ports)))
    }

    /// The number of the policies, routes or traffic policies passed on last; 0 when there were none.
    pub(super) fn change_number(&self) -> u64 {
        self.change_number
    }

    /// A new stream begins: a full state that was cut off is void.
    pub(super) fn begin_stream(&mut self) {
        self.snapshot = None;
    }

    /// Takes a response in and returns what is new in it. What was known in the same state is
    /// left out.
    ///
    /// # Errors
    /// [`ConvertError`]; what came before the malformed part was taken in.
    pub(super) fn take(&mut self, response: &v1::WatchResponse) -> Result<MeshDelta, ConvertError> {
        if response.snapshot_start {
            self.snapshot = Some(Mentioned::default());
        }
        let mut delta = MeshDelta::default();
        for update in &response.services {
            let (service, state) = tollway_wire::service_state(update)?;
            if let Some(mentioned) = &mut self.snapshot {
                mentioned.services.insert(service.clone());
            }
            let (known, is_news) = self.known(&service, state, update);
            if is_news {
                delta.services.push(ServiceUpdate {
                    service: service.clone(),
                    revision: Revision(update.revision),
                    state: known.state.clone(),
                    routes: known.routes.clone(),
                    traffic: known.traffic.clone(),
                });
            }
            self.services.insert(service, known);
        }
        for update in &response.networks {
            let update = tollway_wire::network_update(update)?;
            if let Some(mentioned) = &mut self.snapshot {
                mentioned.networks.insert(update.network.clone());
            }
            self.take_network(update, &mut delta);
        }
        if response.snapshot_end
            && let Some(mentioned) = self.snapshot.take()
        {
            self.sweep(&mentioned, Revision(response.revision), &mut delta);
        }
        // Within a full state the revision is that of the end: only then it can be resumed from.
        if self.snapshot.is_none() {
            self.revision = Revision(response.revision);
        }
        delta.revision = self.revision;
        Ok(delta)
    }

    /// What is known of a service once it was taken in, and whether that is new. Routes and
    /// traffic policies of a later version leave those that hold.
    fn known(
        &mut self,
        service: &ServiceName,
        state: ServiceState,
        update: &v1::ServiceUpdate,
    ) -> (Known, bool) {
        let before = self.services.get(service);
        let mut unread = None;
        let routes = tollway_wire::service_routes(update).unwrap_or_else(|why| {
            unread = Some(why);
            before.map_or_else(Arc::default, |of| of.routes.clone())
        });
        let traffic = tollway_wire::service_traffic(update).unwrap_or_else(|why| {
            unread = Some(why);
            before.map_or_else(Arc::default, |of| of.traffic.clone())
        });
        let is_same =
            |of: &Known| of.state == state && of.routes == routes && of.traffic == traffic;
        let is_news = !before.is_some_and(is_same);
        let is_policed = match before {
            Some(of) => of.traffic != traffic,
            None => *traffic != TrafficParts::default(),
        };
        if let Some(why) = &unread
            && before.is_none_or(|of| of.unread.as_ref() != Some(why))
        {
            self.unread.push((service.clone(), why.clone()));
        }
        self.change_number += u64::from(is_policed);
        (Known { state, routes, traffic, unread }, is_news)
    }

    /// Services whose routes or traffic policies could not be read, each once for one reason.
    pub(super) fn take_unread(&mut self) -> Vec<(ServiceName, ConvertError)> {
        std::mem::take(&mut self.unread)
    }

    fn take_network(&mut self, update: NetworkUpdate, delta: &mut MeshDelta) {
        let before = match update.state {
            NetworkState::Removed => self.networks.remove(&update.network),
            NetworkState::Joined { .. } => {
                self.networks.insert(update.network.clone(), update.state.clone())
            }
        };
        if before.as_ref() != Some(&update.state) {
            delta.networks.push(update);
        }
    }

    /// What a full state did not mention has gone.
    fn sweep(&mut self, mentioned: &Mentioned, revision: Revision, delta: &mut MeshDelta) {
        let gone = |name: &&ServiceName| !mentioned.services.contains(*name);
        let services: Vec<_> = self.services.keys().filter(gone).cloned().collect();
        for service in services {
            self.services.remove(&service);
            let state = ServiceState::Unavailable(UnavailableReason::UnknownService);
            delta.services.push(ServiceUpdate {
                service,
                revision,
                state,
                routes: Arc::default(),
                traffic: Arc::default(),
            });
        }
        let gone = |name: &&NetworkName| !mentioned.networks.contains(*name);
        let networks: Vec<_> = self.networks.keys().filter(gone).cloned().collect();
        for network in networks {
            self.networks.remove(&network);
            delta.networks.push(NetworkUpdate { network, revision, state: NetworkState::Removed });
        }
    }
}

#[cfg(test)]
mod tests {
    use tollway_model::{AppProtocol, Endpoint, Label, TrustDomain};

    use super::*;

    fn name(app: &str) -> ServiceName {
        let [namespace, network] = ["default", "west"].map(|l| Label::new(l).unwrap());
        ServiceName::parse_in(app, &namespace, &network).unwrap()
    }

    fn local(app: &str, port: u16) -> v1::ServiceUpdate {
        let endpoint = Endpoint::new(Label::new("a").unwrap(), ([10, 0, 0, 1], port).into());
        let state = ServiceState::Local {
            unready: [].into(),
            endpoints: vec![endpoint].into(),
            protocol: AppProtocol::Http,
            trust_domain: TrustDomain::new("west.tollway").unwrap(),
        };
        (&ServiceUpdate {
            service: name(app),
            revision: Revision(1),
            state,
            routes: Arc::default(),
            traffic: Arc::default(),
        })
            .into()
    }

    fn joined(network: &str) -> v1::NetworkUpdate {
        v1::NetworkUpdate {
            network: network.to_owned(),
            revision: 1,
            trust_domain: format!("{network}.tollway"),
            reachable: true,
            ..v1::NetworkUpdate::default()
        }
    }

    fn response(revision: u64, services: Vec<v1::ServiceUpdate>) -> v1::WatchResponse {
        v1::WatchResponse { revision, services, ..v1::WatchResponse::default() }
    }

    fn changes(delta: &MeshDelta) -> Vec<String> {
        let service = |update: &ServiceUpdate| match &update.state {
            ServiceState::Unavailable(reason) => format!("{} {reason:?}", update.service.app),
            ServiceState::Local { .. }
            | ServiceState::Remote { .. }
            | ServiceState::AddressOf(_)
            | ServiceState::Failover { .. } => {
                format!("{} there", update.service.app)
            }
        };
        let network = |update: &NetworkUpdate| match update.state {
            NetworkState::Joined { .. } => format!("{} joined", update.network),
            NetworkState::Removed => format!("{} removed", update.network),
        };
        let mut changes: Vec<_> = delta.services.iter().map(service).collect();
        changes.extend(delta.networks.iter().map(network));
        changes.sort();
        changes
    }

    #[test]
    fn the_same_state_again_is_no_news() {
        let mut knowledge = Knowledge::default();
        let first = knowledge.take(&response(3, vec![local("stock", 1)])).unwrap();
        assert_eq!((changes(&first), first.revision), (vec!["stock there".into()], Revision(3)));
        let again = knowledge.take(&response(4, vec![local("stock", 1)])).unwrap();
        assert_eq!((changes(&again), again.revision), (vec![], Revision(4)));
        let moved = knowledge.take(&response(5, vec![local("stock", 2)])).unwrap();
        assert_eq!(changes(&moved), ["stock there"]);
        knowledge.forget(&name("stock"));
        assert!(!knowledge.knows(&name("stock")));
        let anew = knowledge.take(&response(6, vec![local("stock", 2)])).unwrap();
        assert_eq!(changes(&anew), ["stock there"]);
    }

    fn with_routes(app: &str, names: &[&str]) -> v1::ServiceUpdate {
        let rule = v1::RouteRule {
            action: Some(v1::route_rule::Action::Redirect(v1::Redirect {
                status: 302,
                ..v1::Redirect::default()
            })),
            ..v1::RouteRule::default()
        };
        let route = |name: &&str| v1::Route {
            namespace: "default".into(),
            name: (*name).into(),
            service: app.into(),
            rules: vec![rule.clone()],
            created_unix_ms: 1,
        };
        v1::ServiceUpdate { routes: names.iter().map(route).collect(), ..local(app, 1) }
    }

    fn routes(delta: &MeshDelta) -> Vec<Vec<String>> {
        let names = |update: &ServiceUpdate| {
            update.routes.iter().map(|route| route.name.name.to_string()).collect()
        };
        delta.services.iter().map(names).collect()
    }

    #[test]
    fn changed_routes_alone_are_news() {
        let mut knowledge = Knowledge::default();
        let mut take = |names: &[&str]| {
            let taken = knowledge.take(&response(3, vec![with_routes("stock", names)])).unwrap();
            routes(&taken)
        };
        assert_eq!(take(&["a"]), [["a"]]);
        assert!(take(&["a"]).is_empty());
        assert_eq!(take(&["a", "b"]), [["a", "b"]]);
        assert_eq!(take(&[]), [[""; 0]]);
        assert!(take(&[]).is_empty());
    }

    #[test]
    fn routes_that_cannot_be_read_leave_those_that_hold_and_are_reported_once() {
        let mut knowledge = Knowledge::default();
        let mut later = with_routes("stock", &["a", "b"]);
        later.routes[1].rules[0].action = None;
        let mut moved = later.clone();
        moved.state = local("stock", 2).state;
        let mut take = |update: &v1::ServiceUpdate| {
            let delta = knowledge.take(&response(3, vec![update.clone()])).unwrap();
            let unread = knowledge.take_unread();
            let reported = |(service, why)| (service, tollway_model::chain(&why));
            let unread: Vec<(ServiceName, String)> = unread.into_iter().map(reported).collect();
            (routes(&delta), unread)
        };
        let why = "the route default/b cannot be read: the field `action` is missing".to_owned();
        let reported = vec![(name("stock"), why)];
        assert_eq!(take(&with_routes("stock", &["a"])), (vec![vec!["a".into()]], vec![]));
        assert_eq!(take(&later), (vec![], reported.clone()));
        assert_eq!(take(&moved), (vec![vec!["a".into()]], vec![]), "the rest of the update holds");
        assert_eq!(take(&later), (vec![vec!["a".into()]], vec![]));
        assert_eq!(take(&with_routes("stock", &["b"])), (vec![vec!["b".into()]], vec![]));
        assert_eq!(take(&later), (vec![], reported));
    }

    fn parts(percent: u32) -> Option<v1::TrafficParts> {
        Some(v1::TrafficParts { panic_percent: Some(percent), ..v1::TrafficParts::default() })
    }

    #[test]
    fn changed_traffic_policies_alone_are_news_and_unread_ones_leave_those_that_hold() {
        let mut knowledge = Knowledge::default();
        let mut take = |traffic| {
            let update = v1::ServiceUpdate { traffic, ..local("stock", 1) };
            let delta = knowledge.take(&response(3, vec![update])).unwrap();
            let percents = delta.services.iter().map(|of| of.traffic.panic_percent).collect();
            let percents: Vec<Option<u32>> = percents;
            (percents, knowledge.take_unread().len())
        };
        assert_eq!(take(parts(1)), (vec![Some(1)], 0));
        assert_eq!(take(parts(1)), (vec![], 0));
        assert_eq!(take(parts(101)), (vec![], 1), "no such percentage");
        assert_eq!(take(parts(101)), (vec![], 0), "it is reported once");
        assert_eq!(take(parts(2)), (vec![Some(2)], 0));
        assert_eq!(take(None), (vec![None], 0));
    }

    #[test]
    fn traffic_policies_of_the_own_service_are_passed_on_when_they_change() {
        let mut knowledge = Knowledge::default();
        let mut take = |traffic| {
            let response = v1::WatchResponse { traffic, ..v1::WatchResponse::default() };
            let taken = knowledge.take_own_traffic(&response);
            taken.map(|parts| parts.map(|(_, parts)| parts.panic_percent)).map_err(|_| ())
        };
        assert_eq!(take(Some(v1::TrafficParts::default())), Ok(None), "there were none");
        assert_eq!(take(parts(1)), Ok(Some(Some(1))));
        assert_eq!(take(None), Ok(None), "nothing is stated");
        assert_eq!(take(parts(101)), Err(()));
        assert_eq!(take(parts(1)), Ok(None));
        assert_eq!(take(Some(v1::TrafficParts::default())), Ok(Some(None)));
    }

    #[test]
    fn what_was_not_passed_on_is_news_when_its_service_is_followed_again() {
        let mut knowledge = Knowledge::default();
        let take = |knowledge: &mut Knowledge, asked: &[ServiceName]| {
            let mut delta = knowledge.take(&response(3, vec![local("stock", 1)])).unwrap();
            let asked = asked.iter().cloned().collect();
            super::super::session::retain_asked(&mut delta, &asked, knowledge);
            changes(&delta)
        };
        assert_eq!(take(&mut knowledge, &[]), [""; 0], "the answer crossed an unsubscription");
        assert_eq!(take(&mut knowledge, &[name("stock")]), ["stock there"]);
        assert_eq!(take(&mut knowledge, &[name("stock")]), [""; 0]);
    }

    #[test]
    fn what_a_full_state_does_not_mention_has_gone() {
        let mut knowledge = Knowledge::default();
        let mut all = response(3, vec![local("stock", 1), local("orders", 1)]);
        all.networks = vec![joined("east"), joined("north")];
        knowledge.take(&all).unwrap();
        let mut first = response(0, vec![local("stock", 1)]);
        first.snapshot_start = true;
        first.networks = vec![joined("east")];
        let first = knowledge.take(&first).unwrap();
        assert_eq!((changes(&first), knowledge.revision()), (vec![], Revision(3)));
        let mut last = response(9, vec![local("new", 1)]);
        last.snapshot_end = true;
        let last = knowledge.take(&last).unwrap();
        assert_eq!(changes(&last), ["new there", "north removed", "orders UnknownService"]);
        assert_eq!(knowledge.revision(), Revision(9));
    }

    #[test]
    fn a_full_state_that_was_cut_off_removes_nothing() {
        let mut knowledge = Knowledge::default();
        knowledge.take(&response(3, vec![local("stock", 1)])).unwrap();
        let mut cut = response(0, vec![]);
        cut.snapshot_start = true;
        knowledge.take(&cut).unwrap();
        knowledge.begin_stream();
        let next = knowledge.take(&response(4, vec![])).unwrap();
        assert_eq!(changes(&next), [""; 0]);
        assert!(knowledge.knows(&name("stock")));
        assert_eq!(knowledge.revision(), Revision(4));
    }

    #[test]
    fn a_removed_network_is_reported_once() {
        let mut knowledge = Knowledge::default();
        let mut removed = response(1, vec![]);
        removed.networks =
            vec![v1::NetworkUpdate { removed: true, network: "east".into(), ..Default::default() }];
        assert_eq!(changes(&knowledge.take(&removed).unwrap()), ["east removed"]);
        let mut there = response(2, vec![]);
        there.networks = vec![joined("east")];
        assert_eq!(changes(&knowledge.take(&there).unwrap()), ["east joined"]);
        assert_eq!(changes(&knowledge.take(&removed).unwrap()), ["east removed"]);
    }

    #[test]
    fn the_same_policies_again_are_no_news() {
        let policy = |name: &str| v1::Policy {
            namespace: "shop".into(),
            name: name.into(),
            target: Some(v1::policy::Target::App("stock".into())),
            has_allow: true,
            ..v1::Policy::default()
        };
        let with = |policies| v1::WatchResponse {
            policies: Some(v1::Policies { policies }),
            ..v1::WatchResponse::default()
        };
        let mut knowledge = Knowledge::default();
        let mut take = |response| {
            let taken = knowledge.take_policies(&response);
            taken.map(|taken| taken.map(|(number, policies)| (number, policies.len())))
        };
        assert_eq!(take(response(1, vec![])), Ok(None));
        assert_eq!(take(with(vec![])), Ok(Some((1, 0))), "that there are none is news");
        assert_eq!(take(with(vec![])), Ok(None));
        assert_eq!(take(with(vec![policy("a")])), Ok(Some((2, 1))));
        assert_eq!(take(with(vec![policy("a")])), Ok(None));
        assert!(take(with(vec![policy("a b")])).is_err());
        assert_eq!(take(with(vec![policy("a")])), Ok(None), "what is malformed changes nothing");
    }

    #[test]
    fn traffic_policies_of_a_service_are_numbered_when_they_change() {
        let mut knowledge = Knowledge::default();
        let mut take = |update: v1::ServiceUpdate| {
            let delta = knowledge.take(&response(3, vec![update])).unwrap();
            (delta.services.len(), knowledge.change_number())
        };
        let with = |percent| v1::ServiceUpdate {
            traffic: Some(v1::TrafficParts { panic_percent: Some(percent), ..Default::default() }),
            ..local("stock", 1)
        };
        assert_eq!(take(local("stock", 1)), (1, 0));
        assert_eq!(take(with(10)), (1, 1));
        assert_eq!(take(with(10)), (0, 1));
        assert_eq!(take(with(20)), (1, 2));
        let moved = v1::ServiceUpdate { state: local("stock", 2).state, ..with(20) };
        assert_eq!(take(moved), (1, 2), "nothing about traffic");
        assert_eq!(take(local("stock", 2)), (1, 3));
    }

    #[test]
    fn a_malformed_update_is_refused() {
        let bad = v1::ServiceUpdate::default();
        let refused = Knowledge::default().take(&response(1, vec![bad])).unwrap_err();
        assert_eq!(refused, ConvertError::Missing { field: "service" });
    }
}
