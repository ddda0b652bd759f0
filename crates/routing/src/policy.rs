//! Whether a caller may make a request: the policies of one service, made ready to be asked.
//!
//! What a caller is does not change while it is connected, so the work is done in two steps. A
//! [`PolicySet`] holds what protects one service. A [`CallerView`] is what of it concerns one
//! caller, as a tree of paths; it is made once per caller and revision, and asked per request.
//!
//! Deny wins. A service for which any policy has an `allow` list is closed for everything that
//! no policy allows; without one it is open. Where a path can be read in two ways, a request is
//! let in only if it is under both. A deny rule errs on the side of refusing: it ignores the case
//! of letters, and for a connection without requests (TCP) it holds by the caller alone.

mod tree;

use std::fmt;
use std::sync::Arc;

use tollway_model::{Caller, NormalPath, PathError, Policy, PolicyName, PolicyRule, ServiceName};

use tree::{Case, RuleTree};

/// The policies that protect one service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicySet {
    service: ServiceName,
    policies: Vec<Arc<Policy>>,
}

impl PolicySet {
    /// Keeps of `policies` those that protect `service`.
    #[must_use]
    pub fn new(service: ServiceName, policies: impl IntoIterator<Item = Arc<Policy>>) -> Self {
        let mut policies: Vec<_> =
            policies.into_iter().filter(|policy| policy.scope().covers(&service)).collect();
        // The order decides which policy a refusal names: it must not depend on the delivery.
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        Self { service, policies }
    }

    /// Whether nothing protects the service: every caller may do everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }

    /// What concerns one caller.
    #[must_use]
    pub fn view(&self, caller: Caller<'_>) -> CallerView {
        let concerns = |policy: &Policy, rule: &PolicyRule| {
            let (namespace, network) = (&policy.name.namespace, &self.service.network);
            rule.from.is_empty()
                || rule.from.iter().any(|from| from.matches(caller, namespace, network))
        };
        let mut view = CallerView::open();
        for policy in &self.policies {
            if policy.allow.is_some() && view.closed_by.is_none() {
                view.closed_by = Some(policy.name.clone());
            }
            for rule in policy.deny.iter().filter(|rule| concerns(policy, rule)) {
                view.deny_any.get_or_insert_with(|| policy.name.clone());
                view.add(&policy.name, rule, Effect::Deny);
            }
            for rule in policy.allow.iter().flatten().filter(|rule| concerns(policy, rule)) {
                view.allowed_without_request |= rule.is_identity_only();
                view.add(&policy.name, rule, Effect::Allow);
            }
        }
        view
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Allow,
    Deny,
}

/// What the policies of a service mean for one caller.
#[derive(Debug)]
pub struct CallerView {
    deny: RuleTree,
    allow: RuleTree,
    /// The first policy with an `allow` list.
    closed_by: Option<PolicyName>,
    /// The first policy with a deny rule for this caller, whatever else the rule asks for.
    deny_any: Option<PolicyName>,
    /// A rule allows this caller whatever it asks for.
    allowed_without_request: bool,
    looks_at_paths: bool,
}

/// Why a caller is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyRefusal {
    /// The policy that refuses.
    pub policy: PolicyName,
    pub why: PolicyReason,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyReason {
    /// One of its deny rules holds.
    Denied,
    /// It closes the service, and no policy allows this.
    NotAllowed,
}

impl fmt::Display for PolicyRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            PolicyReason::Denied => write!(f, "policy {} denies it", self.policy),
            PolicyReason::NotAllowed => {
                write!(f, "policy {} is in force and no rule allows it", self.policy)
            }
        }
    }
}

impl CallerView {
    fn open() -> Self {
        Self {
            deny: RuleTree::new(Case::Ignored),
            allow: RuleTree::new(Case::Kept),
            closed_by: None,
            deny_any: None,
            allowed_without_request: false,
            looks_at_paths: false,
        }
    }

    fn add(&mut self, policy: &PolicyName, rule: &PolicyRule, effect: Effect) {
        self.looks_at_paths |= !rule.paths.is_empty();
        match effect {
            Effect::Allow => self.allow.insert(policy, rule),
            Effect::Deny => self.deny.insert(policy, rule),
        }
    }

    /// Whether a request is let in, and how its target must be sent on when that is not as it
    /// came. Targets stay untouched where no rule looks at paths.
    ///
    /// # Errors
    /// [`RequestRefusal`].
    pub fn decide_request(
        &self,
        method: &[u8],
        target: &[u8],
    ) -> Result<Option<Vec<u8>>, RequestRefusal> {
        if !self.looks_at_paths {
            // Every rule here holds for any path.
            self.decide_path(method, b"/")?;
            return Ok(None);
        }
        let path = NormalPath::read(target)?;
        self.decide_path(method, path.path())?;
        if let Some(other) = path.second_reading() {
            self.decide_path(method, other)?;
        }
        Ok(path.into_changed_target())
    }

    /// The policy of which a rule allows a request that is let in; `None` if it needs none.
    #[must_use]
    pub fn allowed_by(&self, method: &[u8], target: &[u8]) -> Option<&PolicyName> {
        self.closed_by.as_ref()?;
        if !self.looks_at_paths {
            return self.allow.find(method, b"/");
        }
        let path = NormalPath::read(target).ok()?;
        self.allow.find(method, path.path())
    }

    /// Whether a connection is let in of which only the caller is known (TCP).
    ///
    /// # Errors
    /// [`PolicyRefusal`].
    pub fn decide_connection(&self) -> Result<(), PolicyRefusal> {
        if let Some(policy) = &self.deny_any {
            return Err(refusal(policy, PolicyReason::Denied));
        }
        match &self.closed_by {
            Some(policy) if !self.allowed_without_request => {
                Err(refusal(policy, PolicyReason::NotAllowed))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn decide_path(&self, method: &[u8], path: &[u8]) -> Result<(), PolicyRefusal> {
        if let Some(policy) = self.deny.find(method, path) {
            return Err(refusal(policy, PolicyReason::Denied));
        }
        match &self.closed_by {
            Some(policy) if self.allow.find(method, path).is_none() => {
                Err(refusal(policy, PolicyReason::NotAllowed))
            }
            Some(_) | None => Ok(()),
        }
    }
}

fn refusal(policy: &PolicyName, why: PolicyReason) -> PolicyRefusal {
    PolicyRefusal { policy: policy.clone(), why }
}

/// Why a request is not let in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RequestRefusal {
    Policy(PolicyRefusal),
    /// The path has no safe reading, so no rule can be applied to it.
    Path(PathError),
}

impl From<PolicyRefusal> for RequestRefusal {
    fn from(refusal: PolicyRefusal) -> Self {
        Self::Policy(refusal)
    }
}

impl From<PathError> for RequestRefusal {
    fn from(error: PathError) -> Self {
        Self::Path(error)
    }
}

#[cfg(test)]
mod tests;
