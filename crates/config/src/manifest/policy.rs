//! The `spec` of a policy.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tollway_model::{
    CallerPattern, Label, MethodName, NameError, ObjectName, PathPattern, Policy, PolicyError,
    PolicyRule, PolicyTarget,
};

use super::Problem;
use super::values::{Mode, Text, bare, filled, texts};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spec {
    target: Target,
    #[serde(default, skip_serializing_if = "Mode::is_enforce")]
    mode: Mode,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow: Option<Vec<Rule>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deny: Vec<Rule>,
}

/// `app: NAME`, `app: "*"` for the policy's namespace, and `namespace: "*"` with it for the
/// network.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    app: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    #[serde(default, deserialize_with = "filled", skip_serializing_if = "Vec::is_empty")]
    from: Vec<Text<CallerPattern>>,
    #[serde(default, deserialize_with = "filled", skip_serializing_if = "Vec::is_empty")]
    methods: Vec<Text<MethodName>>,
    #[serde(default, deserialize_with = "filled", skip_serializing_if = "Vec::is_empty")]
    paths: Vec<Text<PathPattern>>,
}

/// Why the parts of a policy do not fit together.
#[derive(Debug, Error)]
enum Misfit {
    #[error("`target` names an app of any namespace; name a namespace, or take app `*` too")]
    AnyNamespace,
    #[error("`target` is in the namespace `{other}`, and a policy protects its own: `{namespace}`")]
    OtherNamespace { other: String, namespace: String },
    #[error("`target.app`")]
    App(#[source] NameError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl Spec {
    pub(super) fn into_policy(self, name: ObjectName) -> Result<Policy, Problem> {
        let read = || {
            let policy = Policy {
                target: self.target.read(&name)?,
                mode: self.mode.into(),
                name,
                allow: self.allow.map(|rules| rules.into_iter().map(Rule::into_rule).collect()),
                deny: self.deny.into_iter().map(Rule::into_rule).collect(),
            };
            policy.check()?;
            Ok(policy)
        };
        read().map_err(|misfit: Misfit| Problem::of(&misfit))
    }
}

impl Target {
    fn read(&self, name: &ObjectName) -> Result<PolicyTarget, Misfit> {
        match (self.app.as_str(), self.namespace.as_deref()) {
            ("*", Some("*")) => Ok(PolicyTarget::Network),
            (_, Some("*")) => Err(Misfit::AnyNamespace),
            (_, Some(other)) if !other.eq_ignore_ascii_case(name.namespace.as_str()) => {
                let namespace = name.namespace.to_string();
                Err(Misfit::OtherNamespace { other: other.to_owned(), namespace })
            }
            ("*", _) => Ok(PolicyTarget::Namespace),
            (app, _) => Ok(PolicyTarget::App(Label::new(app).map_err(Misfit::App)?)),
        }
    }
}

impl From<&Policy> for Spec {
    fn from(policy: &Policy) -> Self {
        let any = || "*".to_owned();
        let target = match &policy.target {
            PolicyTarget::App(app) => Target { app: app.to_string(), namespace: None },
            PolicyTarget::Namespace => Target { app: any(), namespace: None },
            PolicyTarget::Network => Target { app: any(), namespace: Some(any()) },
        };
        let rules = |rules: &Vec<PolicyRule>| rules.iter().map(Rule::from).collect();
        Self {
            target,
            mode: policy.mode.into(),
            allow: policy.allow.as_ref().map(rules),
            deny: rules(&policy.deny),
        }
    }
}

impl Rule {
    fn into_rule(self) -> PolicyRule {
        PolicyRule { from: bare(self.from), methods: bare(self.methods), paths: bare(self.paths) }
    }
}

impl From<&PolicyRule> for Rule {
    fn from(rule: &PolicyRule) -> Self {
        Self { from: texts(&rule.from), methods: texts(&rule.methods), paths: texts(&rule.paths) }
    }
}
