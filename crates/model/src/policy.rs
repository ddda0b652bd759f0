//! Policies: who may call what.
//!
//! A policy belongs to a namespace and protects one of its services, all of them, or (in the mesh's
//! own namespace) every service of the network. This module validates one policy; `routing`
//! combines several.

mod operation;
mod pattern;

use std::fmt;

use thiserror::Error;

use crate::mode::Mode;
use crate::name::{AppId, Label, ServiceName};
use crate::object::ObjectName;

pub use operation::OperationPath;
pub use pattern::{
    Caller, CallerPattern, MethodName, PATTERN_BYTES_LIMIT, PATTERN_SEGMENTS_LIMIT, Part,
    PathPattern, PatternError, PatternSegment,
};

/// Rules of one policy, `allow` and `deny` together.
pub const RULES_PER_POLICY_LIMIT: usize = 500;
/// Callers, methods or paths of one rule.
pub const RULE_ENTRIES_LIMIT: usize = 100;

/// The mesh's own namespace: policies for the whole network live there.
const SYSTEM_NAMESPACE: &str = "tollway";

/// Why a policy was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PolicyError {
    #[error(
        "a policy for every service of the network belongs to the namespace `tollway`, not `{namespace}`"
    )]
    NetworkScope { namespace: Label },
    #[error(
        "a policy of the namespace `tollway` is for the whole network: write `target: {{app: \"*\", namespace: \"*\"}}`"
    )]
    SystemScope,
    #[error(
        "the policy has neither `allow` nor `deny`; `allow: []` closes its target to everybody"
    )]
    NoRules,
    #[error("the policy has {count} rules; at most {RULES_PER_POLICY_LIMIT} are accepted")]
    TooManyRules { count: usize },
    #[error(
        "a rule has {count} entries in `{field}`; at most {RULE_ENTRIES_LIMIT} are accepted: split it"
    )]
    TooManyEntries { field: &'static str, count: usize },
}

/// What a policy protects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PolicyTarget {
    /// One service of the policy's namespace.
    App(AppId),
    /// Every service of the policy's namespace.
    Namespace,
    /// Every service of the network.
    Network,
}

/// The services that a set of policies protects alike.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum PolicyScope {
    Network,
    Namespace(Label),
    App(Label, AppId),
}

impl PolicyScope {
    /// Every scope that contains a service.
    #[must_use]
    pub fn of_service(service: &ServiceName) -> [Self; 3] {
        let namespace = service.namespace.clone();
        [
            Self::Network,
            Self::Namespace(namespace.clone()),
            Self::App(namespace, service.app.clone()),
        ]
    }

    /// Whether it holds for a service of its network.
    #[must_use]
    pub fn covers(&self, service: &ServiceName) -> bool {
        match self {
            Self::Network => true,
            Self::Namespace(namespace) => *namespace == service.namespace,
            Self::App(namespace, app) => *namespace == service.namespace && *app == service.app,
        }
    }
}

impl fmt::Display for PolicyScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network => f.write_str("every service of the network"),
            Self::Namespace(namespace) => write!(f, "every service of the namespace {namespace}"),
            Self::App(namespace, app) => write!(f, "the service {app}.{namespace}"),
        }
    }
}

/// One rule: it holds for a request if each part that it has holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PolicyRule {
    /// Any of these callers; empty means every caller.
    pub from: Vec<CallerPattern>,
    /// Any of these methods; empty means every method.
    pub methods: Vec<MethodName>,
    /// Any of these paths; empty means every path.
    pub paths: Vec<PathPattern>,
}

impl PolicyRule {
    /// Whether it can be judged without an HTTP request.
    #[must_use]
    pub fn is_identity_only(&self) -> bool {
        self.methods.is_empty() && self.paths.is_empty()
    }
}

/// The callers that may, and may not, call the services that it protects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    pub name: ObjectName,
    pub target: PolicyTarget,
    pub mode: Mode,
    /// Requests that are let in. Where there is a list, even an empty one, the target is closed
    /// for everything that no policy allows.
    pub allow: Option<Vec<PolicyRule>>,
    /// Requests that are refused, whatever else allows them.
    pub deny: Vec<PolicyRule>,
}

impl Policy {
    /// The services it protects.
    #[must_use]
    pub fn scope(&self) -> PolicyScope {
        let namespace = self.name.namespace.clone();
        match &self.target {
            PolicyTarget::App(app) => PolicyScope::App(namespace, app.clone()),
            PolicyTarget::Namespace => PolicyScope::Namespace(namespace),
            PolicyTarget::Network => PolicyScope::Network,
        }
    }

    /// Rules, `allow` first.
    pub fn rules(&self) -> impl Iterator<Item = &PolicyRule> {
        self.allow.iter().flatten().chain(&self.deny)
    }

    /// Checks what the types alone do not hold.
    ///
    /// # Errors
    /// [`PolicyError`] for the first rule of the format that is broken.
    pub fn check(&self) -> Result<(), PolicyError> {
        let is_system = self.name.namespace.as_str().eq_ignore_ascii_case(SYSTEM_NAMESPACE);
        match (&self.target, is_system) {
            (PolicyTarget::Network, false) => {
                let namespace = self.name.namespace.clone();
                return Err(PolicyError::NetworkScope { namespace });
            }
            (PolicyTarget::App(_) | PolicyTarget::Namespace, true) => {
                return Err(PolicyError::SystemScope);
            }
            (PolicyTarget::Network, true)
            | (PolicyTarget::App(_) | PolicyTarget::Namespace, false) => {}
        }
        if self.allow.is_none() && self.deny.is_empty() {
            return Err(PolicyError::NoRules);
        }
        let count = self.rules().count();
        if count > RULES_PER_POLICY_LIMIT {
            return Err(PolicyError::TooManyRules { count });
        }
        self.rules().try_for_each(check_entries)
    }
}

fn check_entries(rule: &PolicyRule) -> Result<(), PolicyError> {
    let lists =
        [("from", rule.from.len()), ("methods", rule.methods.len()), ("paths", rule.paths.len())];
    match lists.into_iter().find(|(_, count)| *count > RULE_ENTRIES_LIMIT) {
        Some((field, count)) => Err(PolicyError::TooManyEntries { field, count }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(namespace: &str, target: PolicyTarget) -> Policy {
        let name = ObjectName::new(namespace, "p").unwrap();
        Policy { name, target, mode: Mode::Enforce, allow: Some(Vec::new()), deny: Vec::new() }
    }

    #[test]
    fn the_whole_network_is_protected_from_one_namespace_only() {
        assert_eq!(policy("tollway", PolicyTarget::Network).check(), Ok(()));
        assert_eq!(policy("shop", PolicyTarget::Namespace).check(), Ok(()));
        let refused = policy("shop", PolicyTarget::Network).check().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "a policy for every service of the network belongs to the namespace `tollway`, not `shop`"
        );
        let refused = policy("Tollway", PolicyTarget::Namespace).check().unwrap_err();
        assert_eq!(refused, PolicyError::SystemScope);
    }

    #[test]
    fn a_policy_without_rules_is_refused() {
        let silent = Policy { allow: None, ..policy("shop", PolicyTarget::Namespace) };
        assert_eq!(silent.check(), Err(PolicyError::NoRules));
    }

    #[test]
    fn rules_and_their_entries_are_limited() {
        let rules = vec![PolicyRule::default(); RULES_PER_POLICY_LIMIT];
        let full = Policy { deny: rules, ..policy("shop", PolicyTarget::Namespace) };
        assert_eq!(full.check(), Ok(()));
        let over = Policy { allow: Some(vec![PolicyRule::default()]), ..full };
        assert_eq!(over.check(), Err(PolicyError::TooManyRules { count: 501 }));

        let methods = vec![MethodName::new("GET").unwrap(); RULE_ENTRIES_LIMIT + 1];
        let rule = PolicyRule { methods, ..PolicyRule::default() };
        let over = Policy { deny: vec![rule], ..policy("shop", PolicyTarget::Namespace) };
        let refused = PolicyError::TooManyEntries { field: "methods", count: 101 };
        assert_eq!(over.check(), Err(refused));
        let mut full = over;
        full.deny[0].methods.pop();
        assert_eq!(full.check(), Ok(()));
    }

    #[test]
    fn a_rule_with_a_method_or_a_path_is_not_judged_by_the_caller_alone() {
        let methods = vec![MethodName::new("GET").unwrap()];
        let paths = vec!["/a".parse().unwrap()];
        let of = |methods: &[MethodName], paths: &[PathPattern]| {
            let rule =
                PolicyRule { from: Vec::new(), methods: methods.into(), paths: paths.into() };
            rule.is_identity_only()
        };
        assert!(of(&[], &[]));
        assert!(!of(&methods, &[]) && !of(&[], &paths) && !of(&methods, &paths));
    }

    #[test]
    fn a_service_lies_in_three_scopes() {
        let label = |text| Label::new(text).unwrap();
        let stock = ServiceName::parse_in("stock.shop", &label("x"), &label("west")).unwrap();
        assert!(PolicyScope::of_service(&stock).iter().all(|scope| scope.covers(&stock)));
        let web = ServiceName { app: label("web"), ..stock.clone() };
        let covered = PolicyScope::of_service(&stock).iter().filter(|s| s.covers(&web)).count();
        assert_eq!(covered, 2);
        let shown = PolicyScope::of_service(&stock).map(|scope| scope.to_string());
        let [network, namespace, app] = [
            "every service of the network",
            "every service of the namespace shop",
            "the service stock.shop",
        ];
        assert_eq!(shown, [network, namespace, app]);
    }
}
