//! The rules of a set of policies, put in order once for all callers: a tree for each effect, and
//! the different lists of callers that rules name, each of them an audience.

use std::collections::HashMap;
use std::sync::Arc;

use tollway_model::{Caller, CallerPattern, Label, NetworkName, ObjectName, Policy, PolicyRule};

use super::tree::{Audience, Case, PolicyAt, RuleTree};

/// Compiled rules.
#[derive(Debug)]
pub(super) struct Compiled {
    names: Vec<ObjectName>,
    pub(super) deny: RuleTree,
    pub(super) allow: RuleTree,
    /// The first policy with an `allow` list.
    pub(super) closed_by: Option<ObjectName>,
    audiences: Vec<Listed>,
}

/// An audience: its members, and the properties of its rules.
#[derive(Debug)]
struct Listed {
    /// Of which policy: names without a namespace are of the policy's.
    namespace: Label,
    /// Empty means everybody.
    from: Vec<CallerPattern>,
    about: About,
}

/// What is decided by the caller alone, without the request.
#[derive(Clone, Copy, Default, Debug)]
struct About {
    /// The first policy that denies something.
    deny_any: Option<PolicyAt>,
    /// One allows every request.
    allows_without_request: bool,
    looks_at_paths: bool,
}

/// What concerns one caller.
#[derive(Debug)]
pub(super) struct Membership {
    /// Sorted.
    pub(super) audiences: Vec<Audience>,
    /// The first policy with a deny rule for this caller, with any condition on the request.
    pub(super) deny_any: Option<PolicyAt>,
    /// A rule allows every request of this caller.
    pub(super) allowed_without_request: bool,
    pub(super) looks_at_paths: bool,
}

impl Compiled {
    /// `policies` in the order in which they are named.
    pub(super) fn new(policies: &[Arc<Policy>]) -> Self {
        let closed = policies.iter().find(|policy| policy.allow.is_some());
        let mut compiled = Self {
            names: policies.iter().map(|policy| policy.name.clone()).collect(),
            deny: RuleTree::new(Case::Insensitive),
            allow: RuleTree::new(Case::Sensitive),
            closed_by: closed.map(|policy| policy.name.clone()),
            audiences: Vec::new(),
        };
        let mut known = HashMap::new();
        for (policy, at) in policies.iter().zip(0..) {
            for rule in &policy.deny {
                let audience = compiled.audience(&mut known, policy, rule);
                let about = compiled.about(audience, rule);
                about.deny_any.get_or_insert(at);
                compiled.deny.insert(at, audience, rule);
            }
            for rule in policy.allow.iter().flatten() {
                let audience = compiled.audience(&mut known, policy, rule);
                let about = compiled.about(audience, rule);
                about.allows_without_request |= rule.is_identity_only();
                compiled.allow.insert(at, audience, rule);
            }
        }
        compiled
    }

    pub(super) fn name(&self, policy: PolicyAt) -> &ObjectName {
        &self.names[policy as usize]
    }

    /// To which audiences `caller` belongs, in the service's `network`.
    pub(super) fn membership(&self, caller: Caller<'_>, network: &NetworkName) -> Membership {
        let mut found = Membership {
            audiences: Vec::new(),
            deny_any: None,
            allowed_without_request: false,
            looks_at_paths: false,
        };
        for (listed, audience) in self.audiences.iter().zip(0..) {
            let is_in = listed.from.is_empty()
                || listed.from.iter().any(|from| from.matches(caller, &listed.namespace, network));
            if is_in {
                found.audiences.push(audience);
                found.add(listed.about);
            }
        }
        found
    }

    /// The audience of a rule, new or known.
    fn audience<'p>(
        &mut self,
        known: &mut HashMap<(&'p Label, &'p [CallerPattern]), Audience>,
        policy: &'p Policy,
        rule: &'p PolicyRule,
    ) -> Audience {
        let namespace = &policy.name.namespace;
        *known.entry((namespace, &rule.from)).or_insert_with(|| {
            let (namespace, from) = (namespace.clone(), rule.from.clone());
            self.audiences.push(Listed { namespace, from, about: About::default() });
            Audience::try_from(self.audiences.len() - 1).expect("policies are limited in bytes")
        })
    }

    fn about(&mut self, audience: Audience, rule: &PolicyRule) -> &mut About {
        let about = &mut self.audiences[audience as usize].about;
        about.looks_at_paths |= !rule.paths.is_empty();
        about
    }
}

impl Membership {
    fn add(&mut self, about: About) {
        self.deny_any = match (self.deny_any, about.deny_any) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.allowed_without_request |= about.allows_without_request;
        self.looks_at_paths |= about.looks_at_paths;
    }
}
