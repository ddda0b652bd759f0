//! Policies.

use std::str::FromStr;

use prost::Message as _;
use tollway_model::{
    Mode, ObjectId, ObjectKind, PatternError, Policy, PolicyError, PolicyRule, PolicyTarget,
};

use crate::object::{check_size, read_name};
use crate::{ConvertError, label, v1};

impl From<&Policy> for v1::Policy {
    fn from(policy: &Policy) -> Self {
        let target = match &policy.target {
            PolicyTarget::App(app) => v1::policy::Target::App(app.to_string()),
            PolicyTarget::Namespace => v1::policy::Target::WholeNamespace(v1::WholeNamespace {}),
            PolicyTarget::Network => v1::policy::Target::WholeNetwork(v1::WholeNetwork {}),
        };
        Self {
            namespace: policy.name.namespace.to_string(),
            name: policy.name.name.to_string(),
            target: Some(target),
            has_allow: policy.allow.is_some(),
            allow: policy.allow.iter().flatten().map(Into::into).collect(),
            deny: policy.deny.iter().map(Into::into).collect(),
            shadow: policy.mode == Mode::Shadow,
        }
    }
}

impl From<&PolicyRule> for v1::PolicyRule {
    fn from(rule: &PolicyRule) -> Self {
        fn texts<T: ToString>(parts: &[T]) -> Vec<String> {
            parts.iter().map(ToString::to_string).collect()
        }
        Self { from: texts(&rule.from), methods: texts(&rule.methods), paths: texts(&rule.paths) }
    }
}

/// Reads a policy and checks it as a whole.
///
/// # Errors
/// [`ConvertError`] for the first thing that is wrong.
pub fn policy(policy: &v1::Policy) -> Result<Policy, ConvertError> {
    let name = read_name(&policy.namespace, &policy.name)?;
    let id = ObjectId { kind: ObjectKind::Policy, name: name.clone() };
    check_size(&id, policy.encoded_len())?;
    let target = match policy.target.as_ref() {
        Some(v1::policy::Target::App(app)) => PolicyTarget::App(label(app, "target.app")?),
        Some(v1::policy::Target::WholeNamespace(_)) => PolicyTarget::Namespace,
        Some(v1::policy::Target::WholeNetwork(_)) => PolicyTarget::Network,
        None => return Err(ConvertError::Missing { field: "target" }),
    };
    let rules = |rules: &[v1::PolicyRule]| -> Result<Vec<PolicyRule>, ConvertError> {
        rules.iter().map(|rule| read_rule(&id, rule)).collect()
    };
    let allow = rules(&policy.allow)?;
    let has_allow = policy.has_allow || !allow.is_empty();
    let deny = rules(&policy.deny)?;
    let mode = if policy.shadow { Mode::Shadow } else { Mode::Enforce };
    let read = Policy { target, mode, allow: has_allow.then_some(allow), deny, name };
    let checked: Result<(), PolicyError> = read.check();
    checked.map_err(|source| ConvertError::Policy { object: id.clone(), source })?;
    Ok(read)
}

/// Reads every policy of a set.
///
/// # Errors
/// As [`policy`].
pub fn policies(set: &v1::Policies) -> Result<Vec<Policy>, ConvertError> {
    set.policies.iter().map(policy).collect()
}

fn read_rule(id: &ObjectId, rule: &v1::PolicyRule) -> Result<PolicyRule, ConvertError> {
    fn parse<T: FromStr<Err = PatternError>>(texts: &[String]) -> Result<Vec<T>, PatternError> {
        texts.iter().map(|text| text.parse()).collect()
    }
    let read = || {
        Ok(PolicyRule {
            from: parse(&rule.from)?,
            methods: parse(&rule.methods)?,
            paths: parse(&rule.paths)?,
        })
    };
    read().map_err(|source| ConvertError::PolicyRule { object: id.clone(), source })
}

#[cfg(test)]
mod tests {
    use tollway_model::{Label, ObjectName};

    use super::*;

    fn rule() -> PolicyRule {
        PolicyRule {
            from: vec!["web.*.east".parse().unwrap(), "spiffe://x.y/ns/*/web".parse().unwrap()],
            methods: vec!["GET".parse().unwrap()],
            paths: vec!["/a/{id}/**".parse().unwrap(), "/caf\u{e9}".parse().unwrap()],
        }
    }

    fn sample(target: PolicyTarget, allow: Option<Vec<PolicyRule>>) -> Policy {
        let namespace = if target == PolicyTarget::Network { "tollway" } else { "shop" };
        let name = ObjectName::new(namespace, "readers").unwrap();
        let mode = if allow.is_none() { Mode::Shadow } else { Mode::Enforce };
        Policy { name, target, mode, allow, deny: vec![PolicyRule::default(), rule()] }
    }

    #[test]
    fn policies_survive_the_wire() {
        let targets = [
            PolicyTarget::App(Label::new("Stock").unwrap()),
            PolicyTarget::Namespace,
            PolicyTarget::Network,
        ];
        for target in targets {
            for allow in [None, Some(Vec::new()), Some(vec![rule()])] {
                let sent = sample(target.clone(), allow);
                let set = v1::Policies { policies: vec![(&sent).into()] };
                assert_eq!(policies(&set), Ok(vec![sent]));
            }
        }
    }

    #[test]
    fn what_is_not_valid_is_refused_with_its_name() {
        let good = v1::Policy::from(&sample(PolicyTarget::Namespace, None));
        let check = |break_it: &dyn Fn(&mut v1::Policy), expected: &str| {
            let mut sent = good.clone();
            break_it(&mut sent);
            assert_eq!(policy(&sent).unwrap_err().to_string(), expected);
        };
        check(
            &|p| p.name = "a b".into(),
            "`shop/a b` is not the name of an object, NAMESPACE/NAME",
        );
        check(&|p| p.target = None, "the field `target` is missing");
        check(&|p| p.deny.clear(), "the policy shop/readers is not valid");
        check(
            &|p| p.deny[1].paths[0] = "a".into(),
            "the policy shop/readers has a rule that is not valid",
        );
        check(
            &|p| {
                p.deny = vec![
                    v1::PolicyRule { methods: vec!["X".repeat(32); 100], ..<_>::default() };
                    20
                ]
            },
            "the policy shop/readers has 68079 bytes; at most 65536 are accepted: split it",
        );
    }
}
