//! Who holds how much of something that all share, such as connections, streams or bytes of names,
//! and who gives way when a limit is reached. Pure: ids come out, and the owner acts on them.
//!
//! A holder is an instance of a service in a namespace; each of the three has a limit beside that of
//! all. At a limit the one with most within it loses its oldest, if that is more than the newcomer
//! would then have: first the namespace is chosen, then its service, then the instance. So a crowd of
//! one identity costs that identity, and of equals none gives way.

mod limit;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

pub(crate) use limit::{Refused, Share, ShareLimit, evicted_status};

/// What a followed name counts in addition to its bytes.
pub(crate) const NAME_OVERHEAD_BYTES: u64 = 64;

/// Whose something is: an instance of a service in a namespace, in lower case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Holder {
    pub(crate) namespace: Arc<str>,
    pub(crate) service: Arc<str>,
    pub(crate) instance: Arc<str>,
}

impl Holder {
    pub(crate) fn new(namespace: &str, service: &str, instance: &str) -> Self {
        let low = |text: &str| text.to_ascii_lowercase().into();
        Self { namespace: low(namespace), service: low(service), instance: low(instance) }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.instance, self.service, self.namespace)
    }
}

/// The most that each level may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub(crate) instance: u64,
    /// Of a service with any number of instances.
    pub(crate) service: u64,
    /// Of a service with none, and what each instance that holds something adds.
    pub(crate) service_base: u64,
    pub(crate) service_step: u64,
    pub(crate) namespace: u64,
    pub(crate) all: u64,
}

impl Limits {
    /// A service has at most half of all, and a namespace three quarters, so that something is left
    /// for others whatever one of them does.
    pub(crate) fn of(all: u64, instance: u64) -> Self {
        let instance = instance.clamp(1, all.max(1));
        Self {
            instance,
            service: (all / 2).max(instance),
            service_base: u64::MAX,
            service_step: 0,
            namespace: (all / 4 * 3).max(instance),
            all,
        }
    }

    /// The same where a service has `base`, and `step` more for each of its instances.
    pub(crate) fn with_growth(self, base: u64, step: u64) -> Self {
        Self { service_base: base, service_step: step, ..self }
    }

    fn of_service(&self, instances: usize) -> u64 {
        let instances = u64::try_from(instances).unwrap_or(u64::MAX);
        let grown = self.service_base.saturating_add(self.service_step.saturating_mul(instances));
        self.service.min(grown)
    }
}

/// What a limit is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    Instance,
    Service,
    Namespace,
    All,
}

impl Level {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Instance => "instance",
            Self::Service => "service",
            Self::Namespace => "namespace",
            Self::All => "network",
        }
    }
}

/// What is to be done about a newcomer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    Admit,
    /// This one gives way; then decide again.
    Evict {
        number: u64,
        level: Level,
    },
    /// Nothing that others hold is more than the newcomer would have.
    Refuse {
        level: Level,
        limit: u64,
    },
}

/// Whether a newcomer may take the place of its own oldest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Own {
    GivesWay,
    Stays,
}

/// What everyone holds.
#[derive(Debug)]
pub(crate) struct Shares {
    limits: Limits,
    next: u64,
    holders: BTreeMap<u64, Holder>,
    all: u64,
    namespaces: BTreeMap<Arc<str>, Namespace>,
}

#[derive(Default, Debug)]
struct Namespace {
    held: u64,
    services: BTreeMap<Arc<str>, Service>,
}

#[derive(Default, Debug)]
struct Service {
    held: u64,
    instances: BTreeMap<Arc<str>, Instance>,
}

#[derive(Default, Debug)]
struct Instance {
    held: u64,
    /// The amount of each, by its number: the oldest first.
    amounts: BTreeMap<u64, u64>,
}

/// What a holder has, with what its service and its namespace have.
#[derive(Clone, Copy, Default)]
struct Held {
    instance: u64,
    service: u64,
    namespace: u64,
    /// Instances of the service.
    instances: usize,
    is_known: bool,
}

impl Shares {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, next: 0, holders: BTreeMap::new(), all: 0, namespaces: BTreeMap::new() }
    }

    pub(crate) fn all(&self) -> u64 {
        self.all
    }

    /// What is to be done so that `who` may hold `amount` more.
    pub(crate) fn decide(&self, who: &Holder, amount: u64, own: Own) -> Decision {
        let (limits, held) = (self.limits, self.held(who));
        let of_service = limits.of_service(held.instances + usize::from(!held.is_known));
        let checks = [
            (Level::Instance, held.instance, limits.instance),
            (Level::Service, held.service, of_service),
            (Level::Namespace, held.namespace, limits.namespace),
            (Level::All, self.all, limits.all),
        ];
        for (level, before, limit) in checks {
            if before.saturating_add(amount) > limit {
                let victim = self.victim(level, who, held, amount, own);
                return match victim {
                    Some(number) => Decision::Evict { number, level },
                    None => Decision::Refuse { level, limit },
                };
            }
        }
        Decision::Admit
    }

    /// The one that gives way for `amount` more of `who`, among all that share the limit of `level`.
    fn victim(&self, level: Level, who: &Holder, held: Held, amount: u64, own: Own) -> Option<u64> {
        if level == Level::All
            && let Some((name, most)) = most(&self.namespaces, |namespace| namespace.held)
            && *name != who.namespace
            && most.held > held.namespace.saturating_add(amount)
        {
            return most.oldest();
        }
        let namespace = self.namespaces.get(&who.namespace)?;
        if matches!(level, Level::All | Level::Namespace)
            && let Some((name, most)) = most(&namespace.services, |service| service.held)
            && *name != who.service
            && most.held > held.service.saturating_add(amount)
        {
            return most.oldest();
        }
        let service = namespace.services.get(&who.service)?;
        if level != Level::Instance
            && let Some((name, most)) = most(&service.instances, |instance| instance.held)
            && *name != who.instance
            && most.held > held.instance.saturating_add(amount)
        {
            return most.oldest();
        }
        match own {
            Own::GivesWay => service.instances.get(&who.instance)?.oldest(),
            Own::Stays => None,
        }
    }

    fn held(&self, who: &Holder) -> Held {
        let Some(namespace) = self.namespaces.get(&who.namespace) else { return Held::default() };
        let Some(service) = namespace.services.get(&who.service) else {
            return Held { namespace: namespace.held, ..Held::default() };
        };
        let instance = service.instances.get(&who.instance);
        Held {
            instance: instance.map_or(0, |instance| instance.held),
            service: service.held,
            namespace: namespace.held,
            instances: service.instances.len(),
            is_known: instance.is_some(),
        }
    }

    /// Counts `amount` for `who`, whatever the limits. Returns its number.
    pub(crate) fn add(&mut self, who: &Holder, amount: u64) -> u64 {
        let number = self.next;
        self.next += 1;
        self.holders.insert(number, who.clone());
        self.change(number, |_| amount);
        number
    }

    /// Counts `amount` more for a number, if it is held still.
    pub(crate) fn grow(&mut self, number: u64, amount: u64) {
        self.change(number, |before| before.saturating_add(amount));
    }

    pub(crate) fn shrink(&mut self, number: u64, amount: u64) {
        self.change(number, |before| before.saturating_sub(amount));
    }

    pub(crate) fn holder(&self, number: u64) -> Option<&Holder> {
        self.holders.get(&number)
    }

    fn change(&mut self, number: u64, change: impl FnOnce(u64) -> u64) {
        let Some(who) = self.holders.get(&number) else { return };
        let namespace = self.namespaces.entry(who.namespace.clone()).or_default();
        let service = namespace.services.entry(who.service.clone()).or_default();
        let instance = service.instances.entry(who.instance.clone()).or_default();
        let amount = instance.amounts.entry(number).or_default();
        let (before, after) = (*amount, change(*amount));
        *amount = after;
        let sums = [&mut instance.held, &mut service.held, &mut namespace.held, &mut self.all];
        for sum in sums {
            *sum = sum.saturating_sub(before).saturating_add(after);
        }
    }

    /// Forgets a number, and holders that have none left. Returns whether it was held.
    pub(crate) fn remove(&mut self, number: u64) -> bool {
        self.change(number, |_| 0);
        let Some(who) = self.holders.remove(&number) else { return false };
        let Some(namespace) = self.namespaces.get_mut(&who.namespace) else { return true };
        let Some(service) = namespace.services.get_mut(&who.service) else { return true };
        let Some(instance) = service.instances.get_mut(&who.instance) else { return true };
        instance.amounts.remove(&number);
        if !instance.amounts.is_empty() {
            return true;
        }
        service.instances.remove(&who.instance);
        if service.instances.is_empty() {
            namespace.services.remove(&who.service);
        }
        if namespace.services.is_empty() {
            self.namespaces.remove(&who.namespace);
        }
        true
    }
}

/// The one with most, the first of equals.
fn most<T>(all: &BTreeMap<Arc<str>, T>, held: impl Fn(&T) -> u64) -> Option<(&Arc<str>, &T)> {
    all.iter().rev().max_by_key(|(_, one)| held(one))
}

impl Namespace {
    fn oldest(&self) -> Option<u64> {
        most(&self.services, |service| service.held)?.1.oldest()
    }
}

impl Service {
    fn oldest(&self) -> Option<u64> {
        most(&self.instances, |instance| instance.held)?.1.oldest()
    }
}

impl Instance {
    /// The oldest that holds anything.
    fn oldest(&self) -> Option<u64> {
        let has_some = |(_, amount): &(&u64, &u64)| **amount > 0;
        self.amounts.iter().find(has_some).map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests;
