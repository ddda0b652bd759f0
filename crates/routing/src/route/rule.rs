//! One rule, with what it names resolved.

use std::fmt;
use std::sync::Arc;

use tollway_model::route::{
    Affinity, HeaderEdits, PathEdit, Redirect, RouteAction, RouteRetry, RouteRule, RouteTimeouts,
    WHOLE_SHARE,
};
use tollway_model::{NetworkName, ObjectName, Route, ServiceName};

/// A rule as metrics and explanations name it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleName {
    pub route: ObjectName,
    /// Its name, or its number in the route, from 0.
    pub rule: Arc<str>,
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.route, self.rule)
    }
}

/// One change of a header field; names are in lower case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FieldEdit {
    Remove(Box<[u8]>),
    /// Replaces every line of the name.
    Set(Box<[u8]>, Box<[u8]>),
    /// Adds a line.
    Add(Box<[u8]>, Box<[u8]>),
}

/// A service that takes a share of the requests of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackendTarget {
    pub service: ServiceName,
    weight: u32,
    /// Changes of requests, the rule's and the backend's, in the order in which they are made.
    pub request: Vec<FieldEdit>,
    /// Changes of responses, likewise.
    pub response: Vec<FieldEdit>,
}

/// What a rule does with its requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RuleAction {
    Forward(Vec<BackendTarget>),
    Redirect(Redirect),
}

/// One rule of a route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    name: RuleName,
    place: usize,
    action: RuleAction,
    /// The sum of the weights.
    weight: u64,
    host: Option<Box<[u8]>>,
    path: Option<PathEdit>,
    mirrors: Vec<(ServiceName, u32)>,
    timeouts: RouteTimeouts,
    retry: Option<RouteRetry>,
    affinity: Option<Affinity>,
    /// Changes of the response of a redirect.
    response: Vec<FieldEdit>,
}

impl Rule {
    pub(super) fn new(
        route: &Route,
        number: usize,
        place: usize,
        rule: &RouteRule,
        network: &NetworkName,
    ) -> Self {
        let label = rule.name.as_ref().map_or_else(|| number.to_string(), ToString::to_string);
        let resolve =
            |service: &tollway_model::ServiceRef| service.resolve(&route.name.namespace, network);
        let action = match &rule.action {
            RouteAction::Redirect(redirect) => RuleAction::Redirect(redirect.clone()),
            RouteAction::Forward(backends) => {
                let target = |backend: &tollway_model::route::Backend| BackendTarget {
                    service: resolve(&backend.service),
                    weight: backend.weight,
                    request: edits(&[&rule.request, &backend.request]),
                    response: edits(&[&backend.response, &rule.response]),
                };
                RuleAction::Forward(backends.iter().map(target).collect())
            }
        };
        let weight = match &action {
            RuleAction::Forward(backends) => backends.iter().map(|of| u64::from(of.weight)).sum(),
            RuleAction::Redirect(_) => 0,
        };
        Self {
            name: RuleName { route: route.name.clone(), rule: label.into() },
            place,
            action,
            weight,
            host: rule.rewrite.host.as_ref().map(|host| host.as_bytes().into()),
            path: rule.rewrite.path.clone(),
            mirrors: rule.mirrors.iter().map(|of| (resolve(&of.service), of.share)).collect(),
            timeouts: rule.timeouts,
            retry: rule.retry.clone(),
            affinity: rule.affinity.clone(),
            response: edits(&[&rule.response]),
        }
    }

    #[must_use]
    pub fn name(&self) -> &RuleName {
        &self.name
    }

    /// Its place among the rules of the service that are for the caller.
    #[must_use]
    pub fn place(&self) -> usize {
        self.place
    }

    #[must_use]
    pub fn action(&self) -> &RuleAction {
        &self.action
    }

    /// The host that the app gets to see.
    #[must_use]
    pub fn host(&self) -> Option<&[u8]> {
        self.host.as_deref()
    }

    pub(super) fn path(&self) -> Option<&PathEdit> {
        self.path.as_ref()
    }

    #[must_use]
    pub fn timeouts(&self) -> &RouteTimeouts {
        &self.timeouts
    }

    #[must_use]
    pub fn retry(&self) -> Option<&RouteRetry> {
        self.retry.as_ref()
    }

    #[must_use]
    pub fn affinity(&self) -> Option<&Affinity> {
        self.affinity.as_ref()
    }

    /// Changes of the response of a redirect.
    #[must_use]
    pub fn redirect_edits(&self) -> &[FieldEdit] {
        &self.response
    }

    /// The index of the backend that takes a request; `random` is uniform. `None` for a redirect, and if every weight is 0.
    #[must_use]
    pub fn choose(&self, random: u64) -> Option<usize> {
        let RuleAction::Forward(backends) = &self.action else { return None };
        let mut rest = scaled(random, self.weight);
        backends.iter().position(|backend| {
            let weight = u64::from(backend.weight);
            let is_it = rest < weight;
            rest = rest.wrapping_sub(weight);
            is_it
        })
    }

    /// A backend by its index.
    #[must_use]
    pub fn backend(&self, index: usize) -> Option<&BackendTarget> {
        match &self.action {
            RuleAction::Forward(backends) => backends.get(index),
            RuleAction::Redirect(_) => None,
        }
    }

    /// The services that get a copy of a request; `random` gives a uniform number for each.
    pub fn mirrored(&self, mut random: impl FnMut() -> u64) -> impl Iterator<Item = &ServiceName> {
        let mut is_chosen = move |share: u32| {
            share >= WHOLE_SHARE || scaled(random(), u64::from(WHOLE_SHARE)) < u64::from(share)
        };
        self.mirrors.iter().filter_map(move |(service, share)| is_chosen(*share).then_some(service))
    }

    /// Whether any request of it is copied.
    #[must_use]
    pub fn has_mirrors(&self) -> bool {
        !self.mirrors.is_empty()
    }
}

/// A uniform number below `bound`, of one that is uniform over all 64 bits.
fn scaled(random: u64, bound: u64) -> u64 {
    let product = u128::from(random) * u128::from(bound);
    u64::try_from(product >> 64).expect("less than the bound")
}

/// The changes of several lists, in the order of the lists; within one it is removed, set, added.
fn edits(lists: &[&HeaderEdits]) -> Vec<FieldEdit> {
    let lower = |name: &str| -> Box<[u8]> { name.to_ascii_lowercase().into_bytes().into() };
    let mut edits = Vec::new();
    for HeaderEdits { remove, set, add } in lists {
        edits.extend(remove.iter().map(|name| FieldEdit::Remove(lower(name))));
        let written = |(name, value): &(String, String)| (lower(name), value.as_bytes().into());
        edits.extend(set.iter().map(written).map(|(name, value)| FieldEdit::Set(name, value)));
        edits.extend(add.iter().map(written).map(|(name, value)| FieldEdit::Add(name, value)));
    }
    edits
}
