//! The networks that may serve a service which is called in any network: how healthy each is, and what
//! is under way there. Which of them takes a request is decided by `routing`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use tollway_model::failover::{FAILOVER_NETWORKS_LIMIT, FailoverRules};
use tollway_model::{Endpoint, ServiceName, ServiceState, UnavailableReason};
use tollway_routing::{ChosenBy, FailoverSet, NetworkChoice, NetworkHealth, NetworkSet};

use crate::cx::Cx;
use crate::exchange::Destination;
use crate::request_error::RequestError;
use crate::upstream::links::Links;
use crate::upstream::{Pool, Upstreams, pools, scale};

/// The networks of one service.
pub(crate) struct Networks {
    rules: Arc<FailoverRules>,
    /// Of each network: replicas, ready or not.
    registered: Arc<[u32]>,
    set: FailoverSet,
    members: Vec<Member>,
}

/// The service in one of the networks.
struct Member {
    service: ServiceName,
    destination: Destination,
    under_way: Arc<AtomicU32>,
}

/// Counts one request or connection as under way in a network. Dropping it ends the count.
#[derive(Debug)]
pub(crate) struct CountedCall(Arc<AtomicU32>);

impl CountedCall {
    fn new(count: &Arc<AtomicU32>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The network of a request.
pub(crate) struct Chosen {
    /// The service there.
    pub(crate) service: ServiceName,
    pub(crate) index: usize,
    pub(crate) priority: u32,
    pub(crate) by: ChosenBy,
    pub(crate) under_way: CountedCall,
    /// By these rules.
    pub(crate) rules: Arc<FailoverRules>,
    /// The networks that it was sent to before, by their places in the rules.
    pub(crate) tried: NetworkSet,
    /// A network was chosen for it before.
    pub(crate) is_again: bool,
}

/// What was chosen before for a request that is to go elsewhere.
pub(crate) struct Before {
    pub(crate) rules: Arc<FailoverRules>,
    /// The networks that it was sent to, by their places in those rules.
    pub(crate) tried: NetworkSet,
    /// Where it may stay, if that is the own network and other replicas are healthy there.
    pub(crate) present: Option<usize>,
}

/// What is known when a network is to be chosen.
pub(crate) enum Choice {
    Network(Chosen),
    /// The state of this service has to come first.
    Unknown(Destination),
    /// No network is left, for these reasons.
    None(RequestError),
}

impl Networks {
    /// The networks of `rules`. Counts of what is under way continue from `before`.
    pub(crate) fn new(
        service: &ServiceName,
        rules: &Arc<FailoverRules>,
        registered: &Arc<[u32]>,
        before: Option<&Self>,
    ) -> Self {
        let member = |service: ServiceName| {
            let known = before.and_then(|of| of.members.iter().find(|of| of.service == service));
            Member {
                under_way: known.map(|of| Arc::clone(&of.under_way)).unwrap_or_default(),
                destination: Destination::Service(service.clone()),
                service,
            }
        };
        let networks = rules.networks.iter().take(FAILOVER_NETWORKS_LIMIT);
        Self {
            set: FailoverSet::new(rules),
            members: networks.map(|of| member(service.in_network(&of.network))).collect(),
            rules: Arc::clone(rules),
            registered: Arc::clone(registered),
        }
    }

    /// The service in networks that may no longer serve by `newer`.
    pub(crate) fn gone<'a>(
        &'a self,
        newer: Option<&'a Self>,
    ) -> impl Iterator<Item = &'a Destination> {
        let is_named = move |member: &Member| {
            newer.is_some_and(|of| of.members.iter().any(|of| of.service == member.service))
        };
        self.members.iter().filter(move |member| !is_named(member)).map(|of| &of.destination)
    }

    fn priority(&self, index: usize) -> u32 {
        self.rules.networks.get(index).map_or(u32::MAX, |of| of.priority)
    }
}

/// Chooses the network of a request for a service in any network.
///
/// # Errors
/// When too many services are in use to ask for one more.
pub(crate) fn choose(
    cx: &mut Cx,
    links: &impl Links,
    upstreams: &mut Upstreams,
    service: &ServiceName,
    before: Option<Before>,
) -> Result<Choice, RequestError> {
    let of = Destination::Service(service.clone());
    let (_, pool) = pools::pool_in_use(cx, upstreams, &of)?;
    let none = || Choice::None(RequestError::unavailable(UnavailableReason::NoFailover, service));
    // It is put back below: the pools of its members are beside its own.
    let Some(networks) = pool.networks.take() else { return Ok(none()) };
    let chosen = choose_of(cx, links, upstreams, service, &networks, before);
    if let Some(pool) = upstreams.pools.get_mut(&of) {
        pool.networks = Some(networks);
    }
    chosen
}

fn choose_of(
    cx: &mut Cx,
    links: &impl Links,
    upstreams: &mut Upstreams,
    service: &ServiceName,
    networks: &Networks,
    before: Option<Before>,
) -> Result<Choice, RequestError> {
    let is_again = before.is_some();
    // By other rules than those of before nothing was tried.
    let before = before.filter(|before| *before.rules == *networks.rules);
    let (mut tried, present) = before.map_or_else(Default::default, |of| (of.tried, of.present));
    let mut health = [NetworkHealth::default(); FAILOVER_NETWORKS_LIMIT];
    let mut unknown: Option<(u32, &Member)> = None;
    for (index, (member, health)) in networks.members.iter().zip(&mut health).enumerate() {
        let (_, pool) = pools::pool_in_use(cx, upstreams, &member.destination)?;
        pool.is_of_any_network = true;
        let priority = networks.priority(index);
        let is_first = unknown.is_none_or(|(first, _)| priority < first);
        if pool.state.is_none() && is_first && !tried.contains(index) {
            unknown = Some((priority, member));
        }
        let registered = networks.registered.get(index).copied().unwrap_or_default();
        *health = NetworkHealth {
            under_way: member.under_way.load(Ordering::Relaxed),
            ..health_of(pool, registered, links, cx.now)
        };
        let is_own = matches!(pool.state, Some(ServiceState::Local { .. }));
        if present == Some(index) && is_own && health.healthy > 1 {
            tried.remove(index);
        }
    }
    let known = |index: usize| health.get(index).copied().unwrap_or_default();
    let chosen = networks.set.choose(known, tried, cx.next_random());
    if let Some((priority, member)) = unknown
        && chosen.is_none_or(|chosen| priority <= networks.priority(chosen.index))
    {
        return Ok(Choice::Unknown(member.destination.clone()));
    }
    let member = chosen.and_then(|of| Some((of, networks.members.get(of.index)?)));
    let Some((NetworkChoice { index, by }, member)) = member else {
        return Ok(Choice::None(no_network(upstreams, service, networks)));
    };
    Ok(Choice::Network(Chosen {
        service: member.service.clone(),
        index,
        priority: networks.priority(index),
        by,
        under_way: CountedCall::new(&member.under_way),
        rules: Arc::clone(&networks.rules),
        tried,
        is_again,
    }))
}

/// How many of a network's replicas can be sent requests. In the own network those whose address is not
/// passed over; in another one all that are ready there, if one of its gateways answers.
fn health_of(pool: &Pool, registered: u32, links: &impl Links, now: Instant) -> NetworkHealth {
    let ready = match &pool.state {
        Some(ServiceState::Local { endpoints, .. }) => {
            let is_usable = |of: &&Endpoint| !pool.is_passed_over(of.address, now);
            endpoints.iter().filter(is_usable).count()
        }
        Some(ServiceState::Remote { remote, .. }) => {
            let mut gateways = remote.gateways.iter();
            if gateways.any(|address| !pool.is_passed_over(*address, now)) {
                remote.ready_replicas as usize
            } else {
                0
            }
        }
        Some(
            ServiceState::Failover { .. }
            | ServiceState::AddressOf(_)
            | ServiceState::Unavailable(_),
        )
        | None => {
            return NetworkHealth { registered, ..NetworkHealth::default() };
        }
    };
    let answers = scale::answers(links, pool);
    let healthy = if answers { u32::try_from(ready).unwrap_or(u32::MAX) } else { 0 };
    NetworkHealth { healthy, registered, under_way: 0, may_be_tried: true }
}

/// Why none of the networks serves a request.
fn no_network(upstreams: &Upstreams, service: &ServiceName, networks: &Networks) -> RequestError {
    let reason = |member: &Member| {
        let state = upstreams.pools.get(&member.destination).and_then(|pool| pool.state.as_ref());
        let why = match state {
            Some(ServiceState::Unavailable(reason)) => match reason {
                UnavailableReason::UnknownService => "does not have it",
                UnavailableReason::UnknownNetwork => "is not joined",
                UnavailableReason::UnreachableNetwork => "cannot be reached",
                UnavailableReason::NoReadyEndpoint => "has no ready replica",
                UnavailableReason::NoFailover => "is none",
            },
            Some(
                ServiceState::Local { .. }
                | ServiceState::Remote { .. }
                | ServiceState::AddressOf(_)
                | ServiceState::Failover { .. },
            ) => "did not answer",
            None => "is not known yet",
        };
        format!("{} {why}", member.service.network)
    };
    let reasons: Vec<String> = networks.members.iter().map(reason).collect();
    RequestError::NoNetwork { service: service.clone(), reasons: reasons.join(", ") }
}
