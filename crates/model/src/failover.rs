//! Failover: which networks may serve a service that is called in any network
//! (`app.namespace.any`), and in which order.
//!
//! The operator of the callers' network writes it. A network that is not named serves nothing, joined or
//! not. The object belongs to the namespace of the service and is about one service of that namespace, or
//! all of them. This module validates; `routing` decides.

use thiserror::Error;

use crate::name::{ANY_NETWORK, AppId, NetworkName, ServiceName};
use crate::object::ObjectName;
use crate::policy::PolicyScope;
use crate::route::WEIGHT_LIMIT;

/// Networks that one object names.
pub const FAILOVER_NETWORKS_LIMIT: usize = 16;
/// Largest priority.
pub const FAILOVER_PRIORITY_LIMIT: u32 = 1000;
/// Most requests under way for each replica before others go elsewhere.
pub const SPILL_OVER_LIMIT: u32 = 1_000_000;

/// Why an object of this kind was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FailoverError {
    #[error("`networks` is empty, so no network may serve; name one at least")]
    NoNetworks,
    #[error("`networks` has {count} entries; at most {limit} are accepted")]
    TooMany { count: usize, limit: usize },
    #[error(
        "`{ANY_NETWORK}` stands for the networks that are named here; it cannot be one of them"
    )]
    Any,
    #[error("the network `{network}` is named twice")]
    Twice { network: NetworkName },
    #[error("`{field}` of the network `{network}` is {number}; at most {limit} are accepted")]
    TooLarge { field: &'static str, network: NetworkName, number: u32, limit: u32 },
    #[error("the weight of the network `{network}` is 0; leave the network out")]
    NoWeight { network: NetworkName },
    #[error("`threshold` is {percent}; 1 to 100 are accepted")]
    Threshold { percent: u32 },
    #[error("`spillOver.requestsPerReplica` is {number}; 1 to {SPILL_OVER_LIMIT} are accepted")]
    SpillOver { number: u32 },
}

/// Which services it is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FailoverTarget {
    /// One service of the object's namespace.
    App(AppId),
    /// Every service of the object's namespace that no other object is about.
    Namespace,
}

/// Which networks may serve a service that is called in any network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failover {
    pub name: ObjectName,
    pub target: FailoverTarget,
    pub rules: FailoverRules,
}

/// The networks that may serve a service, in which order, and when the next ones take a share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailoverRules {
    pub networks: Vec<FailoverNetwork>,
    /// The networks of a priority take all requests while so many percent of their replicas are healthy;
    /// with fewer, the next priority takes a share.
    pub threshold: u32,
    /// Requests of one data thread under way for each healthy replica of a priority, above which requests
    /// go to the next priority; `None` for no limit.
    pub spill_over: Option<u32>,
}

/// A network that may serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailoverNetwork {
    pub network: NetworkName,
    /// Lower ones come first.
    pub priority: u32,
    /// Its share among the networks of its priority.
    pub weight: u32,
}

impl FailoverRules {
    /// What `threshold` is where none is named.
    pub const THRESHOLD: u32 = 70;

    /// Checks what the types alone do not hold.
    ///
    /// # Errors
    /// [`FailoverError`] for the first rule of the format that is broken.
    pub fn check(&self) -> Result<(), FailoverError> {
        let (count, limit) = (self.networks.len(), FAILOVER_NETWORKS_LIMIT);
        if count == 0 {
            return Err(FailoverError::NoNetworks);
        }
        if count > limit {
            return Err(FailoverError::TooMany { count, limit });
        }
        for (at, of) in self.networks.iter().enumerate() {
            let network = || of.network.clone();
            if of.network.is_any_network() {
                return Err(FailoverError::Any);
            }
            if self.networks[..at].iter().any(|other| other.network == of.network) {
                return Err(FailoverError::Twice { network: network() });
            }
            for (field, number, limit) in [
                ("priority", of.priority, FAILOVER_PRIORITY_LIMIT),
                ("weight", of.weight, WEIGHT_LIMIT),
            ] {
                if number > limit {
                    let network = network();
                    return Err(FailoverError::TooLarge { field, network, number, limit });
                }
            }
            if of.weight == 0 {
                return Err(FailoverError::NoWeight { network: network() });
            }
        }
        if !(1..=100).contains(&self.threshold) {
            return Err(FailoverError::Threshold { percent: self.threshold });
        }
        match self.spill_over {
            Some(number) if !(1..=SPILL_OVER_LIMIT).contains(&number) => {
                Err(FailoverError::SpillOver { number })
            }
            _ => Ok(()),
        }
    }
}

impl Failover {
    /// The services that it is about, in any network.
    #[must_use]
    pub fn scope(&self) -> PolicyScope {
        let namespace = self.name.namespace.clone();
        match &self.target {
            FailoverTarget::App(app) => PolicyScope::App(namespace, app.clone()),
            FailoverTarget::Namespace => PolicyScope::Namespace(namespace),
        }
    }

    /// The object that holds for a service: one for this service before one for its namespace, and of two
    /// of the same target the first by name.
    #[must_use]
    pub fn holding<'a>(
        service: &ServiceName,
        all: impl IntoIterator<Item = &'a Self>,
    ) -> Option<&'a Self> {
        let is_general = |of: &Self| of.target == FailoverTarget::Namespace;
        let about = all.into_iter().filter(|of| of.scope().covers(service));
        about.min_by_key(|of| (is_general(of), &of.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Label;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    fn network(name: &str) -> FailoverNetwork {
        FailoverNetwork { network: label(name), priority: 0, weight: 1 }
    }

    fn rules(networks: Vec<FailoverNetwork>) -> FailoverRules {
        FailoverRules { networks, threshold: 70, spill_over: None }
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        let good = rules(vec![network("west"), network("east")]);
        assert_eq!(good.check(), Ok(()));
        let many = (0..=FAILOVER_NETWORKS_LIMIT).map(|n| network(&format!("n{n}"))).collect();
        let with = |change: fn(&mut FailoverRules)| {
            let mut rules = good.clone();
            change(&mut rules);
            rules
        };
        for (bad, reason) in [
            (rules(Vec::new()), "`networks` is empty"),
            (rules(many), "17 entries"),
            (rules(vec![network("ANY")]), "`any` stands for the networks"),
            (rules(vec![network("west"), network("West")]), "`West` is named twice"),
            (with(|r| r.networks[1].priority = 1001), "`priority` of the network `east` is 1001"),
            (with(|r| r.networks[0].weight = 1_000_001), "`weight` of the network `west`"),
            (with(|r| r.networks[0].weight = 0), "leave the network out"),
            (with(|r| r.threshold = 0), "`threshold` is 0"),
            (with(|r| r.threshold = 101), "`threshold` is 101"),
            (with(|r| r.spill_over = Some(0)), "requestsPerReplica` is 0"),
            (with(|r| r.spill_over = Some(1_000_001)), "requestsPerReplica` is 1000001"),
        ] {
            let text = bad.check().unwrap_err().to_string();
            assert!(text.contains(reason), "{text}");
        }
        let largest = with(|r| {
            (r.threshold, r.spill_over) = (100, Some(SPILL_OVER_LIMIT));
            (r.networks[0].priority, r.networks[0].weight) = (1000, WEIGHT_LIMIT);
        });
        assert_eq!(largest.check(), Ok(()));
    }

    #[test]
    fn an_object_for_one_service_holds_before_one_for_all() {
        let object = |name: &str, app: Option<&str>| Failover {
            name: ObjectName::new("shop", name).unwrap(),
            target: app.map_or(FailoverTarget::Namespace, |app| FailoverTarget::App(label(app))),
            rules: rules(vec![network("west")]),
        };
        let all = [object("a", None), object("c", Some("stock")), object("b", Some("stock"))];
        let holding = |service: &str, all: &[Failover]| {
            let service = ServiceName::parse_in(service, &label("shop"), &label("any")).unwrap();
            Failover::holding(&service, all).map(|of| of.name.to_string())
        };
        assert_eq!(holding("stock", &all).as_deref(), Some("shop/b"));
        assert_eq!(holding("orders", &all).as_deref(), Some("shop/a"));
        assert_eq!(holding("stock.other", &all), None);
        assert_eq!(holding("orders", &all[1..]), None);
    }
}
