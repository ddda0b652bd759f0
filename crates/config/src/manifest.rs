//! What `tollway apply` reads and `tollway get -o yaml` prints: kinds in the form of Kubernetes'
//! objects, so that the same files serve as its custom resources.

use std::fmt::Display;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;
use tollway_model::{
    CallerPattern, Label, MethodName, NameError, ObjectName, PathPattern, Policy, PolicyError,
    PolicyRule, PolicyTarget, chain,
};

/// A policy as it is written.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PolicyManifest {
    api_version: ApiVersion,
    kind: Kind,
    metadata: Metadata,
    spec: PolicySpec,
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
enum ApiVersion {
    #[serde(rename = "tollway/v1")]
    V1,
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
enum Kind {
    Policy,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: Text<Label>,
    #[serde(default = "default_namespace")]
    namespace: Text<Label>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicySpec {
    target: Target,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow: Option<Vec<Rule>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deny: Vec<Rule>,
}

/// `app: NAME`, `app: "*"` for the policy's namespace, and `namespace: "*"` with it for the
/// network.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    app: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
}

/// A list that is left out means any; an empty one is a mistake, since it would mean none.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    #[serde(default, deserialize_with = "filled", skip_serializing_if = "Vec::is_empty")]
    from: Vec<Text<CallerPattern>>,
    #[serde(default, deserialize_with = "filled", skip_serializing_if = "Vec::is_empty")]
    methods: Vec<Text<MethodName>>,
    #[serde(default, deserialize_with = "filled", skip_serializing_if = "Vec::is_empty")]
    paths: Vec<Text<PathPattern>>,
}

/// Why the parts of a manifest do not fit together.
#[derive(Debug, Error)]
#[error("policy {policy}")]
pub struct ManifestError {
    /// As `NAMESPACE/NAME`.
    policy: String,
    #[source]
    cause: ManifestCause,
}

#[derive(Debug, Error)]
enum ManifestCause {
    #[error("`target` names an app of any namespace; name a namespace, or take app `*` too")]
    AnyNamespace,
    #[error("`target` is in the namespace `{other}`, and a policy protects its own: `{namespace}`")]
    OtherNamespace { other: String, namespace: String },
    #[error("`target.app`")]
    App(#[source] NameError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

fn default_namespace() -> Text<Label> {
    Text(Label::new("default").expect("it is a label"))
}

fn filled<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let list = Vec::deserialize(deserializer)?;
    if list.is_empty() {
        return Err(D::Error::custom("an empty list matches nothing; leave it out to match any"));
    }
    Ok(list)
}

impl PolicyManifest {
    /// The policy that the manifest describes.
    ///
    /// # Errors
    /// When its parts do not fit together; the text names the policy.
    pub fn into_policy(self) -> Result<Policy, ManifestError> {
        let Metadata { name: Text(name), namespace: Text(namespace) } = self.metadata;
        let name = ObjectName { namespace, name };
        let of_policy = |cause| ManifestError { policy: name.to_string(), cause };
        let policy = Policy {
            target: read_target(&self.spec.target, &name).map_err(of_policy)?,
            name: name.clone(),
            allow: self.spec.allow.map(|rules| rules.into_iter().map(Rule::into_rule).collect()),
            deny: self.spec.deny.into_iter().map(Rule::into_rule).collect(),
        };
        policy.check().map_err(|error| of_policy(error.into()))?;
        Ok(policy)
    }
}

fn read_target(target: &Target, name: &ObjectName) -> Result<PolicyTarget, ManifestCause> {
    match (target.app.as_str(), target.namespace.as_deref()) {
        ("*", Some("*")) => Ok(PolicyTarget::Network),
        (_, Some("*")) => Err(ManifestCause::AnyNamespace),
        (_, Some(other)) if !other.eq_ignore_ascii_case(name.namespace.as_str()) => {
            let namespace = name.namespace.to_string();
            Err(ManifestCause::OtherNamespace { other: other.to_owned(), namespace })
        }
        ("*", _) => Ok(PolicyTarget::Namespace),
        (app, _) => Ok(PolicyTarget::App(Label::new(app).map_err(ManifestCause::App)?)),
    }
}

impl From<Policy> for PolicyManifest {
    fn from(policy: Policy) -> Self {
        let any = || "*".to_owned();
        let target = match policy.target {
            PolicyTarget::App(app) => Target { app: app.to_string(), namespace: None },
            PolicyTarget::Namespace => Target { app: any(), namespace: None },
            PolicyTarget::Network => Target { app: any(), namespace: Some(any()) },
        };
        let rules = |rules: Vec<PolicyRule>| rules.into_iter().map(Rule::from).collect();
        Self {
            api_version: ApiVersion::V1,
            kind: Kind::Policy,
            metadata: Metadata {
                name: Text(policy.name.name),
                namespace: Text(policy.name.namespace),
            },
            spec: PolicySpec { target, allow: policy.allow.map(rules), deny: rules(policy.deny) },
        }
    }
}

impl Rule {
    fn into_rule(self) -> PolicyRule {
        fn bare<T>(texts: Vec<Text<T>>) -> Vec<T> {
            texts.into_iter().map(|text| text.0).collect()
        }
        PolicyRule { from: bare(self.from), methods: bare(self.methods), paths: bare(self.paths) }
    }
}

impl From<PolicyRule> for Rule {
    fn from(rule: PolicyRule) -> Self {
        fn texts<T>(values: Vec<T>) -> Vec<Text<T>> {
            values.into_iter().map(Text).collect()
        }
        Self { from: texts(rule.from), methods: texts(rule.methods), paths: texts(rule.paths) }
    }
}

/// A value that is written as a text.
#[derive(Clone, PartialEq, Debug)]
struct Text<T>(T);

impl<T: Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de, T> Deserialize<'de> for Text<T>
where
    T: FromStr,
    T::Err: std::error::Error,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(|error| D::Error::custom(chain(&error)))
    }
}

/// A text cannot be written as YAML.
#[derive(Debug, Error)]
#[error("cannot write the policies as YAML")]
pub struct WriteError(#[source] serde_saphyr::ser::Error);

/// Policies as YAML documents that can be applied again.
///
/// # Errors
/// When a text cannot be written as YAML, which no policy has.
pub fn to_yaml(manifests: &[PolicyManifest]) -> Result<String, WriteError> {
    let documents: Result<Vec<String>, _> = manifests.iter().map(serde_saphyr::to_string).collect();
    Ok(documents.map_err(WriteError)?.join("---\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml;

    const EXAMPLE: &str = r#"
apiVersion: tollway/v1
kind: Policy
metadata:
  name: stock-readers
  namespace: shop
spec:
  target:
    app: stock
  allow:
    - from: [web, "*.reports", "*.*.east", spiffe://old.example/ns/shop/web]
      methods: [GET, HEAD]
      paths: [/items/**, "/users/{id}/orders"]
  deny:
    - paths: [/items/secret/**]
"#;

    fn read(text: &str) -> Result<Vec<Policy>, String> {
        let manifests: Vec<PolicyManifest> =
            yaml::parse_all(text, "p.yaml").map_err(|error| error.to_string())?;
        let read = |manifest: PolicyManifest| manifest.into_policy().map_err(|e| chain(&e));
        manifests.into_iter().map(read).collect()
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        let mut text = EXAMPLE.to_owned();
        for (namespace, spec) in [
            ("shop", "{target: {app: \"*\"}, allow: []}"),
            ("tollway", "{target: {app: \"*\", namespace: \"*\"}, deny: [{from: [\"*.*.*\"]}]}"),
            ("default", "{target: {app: \"7\"}, allow: [{}], deny: [{methods: [\"NO\"]}]}"),
        ] {
            text += &format!(
                "---\napiVersion: tollway/v1\nkind: Policy\n\
                 metadata: {{name: \"123\", namespace: {namespace}}}\nspec: {spec}\n"
            );
        }
        let policies = read(&text).unwrap();
        assert_eq!(policies.len(), 4);
        let manifests: Vec<_> = policies.iter().cloned().map(PolicyManifest::from).collect();
        let printed = to_yaml(&manifests).unwrap();
        assert_eq!(read(&printed).unwrap(), policies, "{printed}");
        let json = serde_json::to_string(&manifests[0]).unwrap();
        assert_eq!(read(&json).unwrap(), policies[..1], "JSON is YAML");
    }

    #[test]
    fn the_namespace_is_default_unless_given() {
        let text = EXAMPLE.replace("  namespace: shop\n", "");
        assert_eq!(read(&text).unwrap()[0].name.to_string(), "default/stock-readers");
    }

    #[track_caller]
    fn check_refused(before: &str, after: &str, message: &str) {
        assert!(EXAMPLE.contains(before), "{before}");
        let text = read(&EXAMPLE.replacen(before, after, 1)).unwrap_err();
        assert!(text.contains(message), "{text}");
    }

    #[test]
    fn mistakes_are_reported_with_their_position() {
        check_refused("    app: stock", "    apps: stock", "p.yaml:9:5: unknown field `apps`");
        check_refused("tollway/v1", "tollway/v2", "p.yaml:2:13: unknown value `tollway/v2`");
        check_refused("kind: Policy", "kind: Polcy", "did you mean `Policy`?");
        check_refused("[GET, HEAD]", "[GET, \"A B\"]", "p.yaml:12:22: `A B` is not a method");
        check_refused("/items/**", "/it*ems", "p.yaml:13:15: the path `/it*ems`");
        check_refused("[GET, HEAD]", "[]", "an empty list matches nothing");
        check_refused("\"*.reports\"", "\"*\"", "leave `from` out");
        check_refused("name: stock-readers", "name: a b", "holds the character ' '");
        check_refused("app: stock", "app: sto/ck", "policy shop/stock-readers: `target.app`");
    }

    #[test]
    fn a_policy_protects_its_own_namespace() {
        let target = |text: &str| format!("app: {text}");
        check_refused("app: stock", &target("stock\n    namespace: other"), "protects its own");
        check_refused("app: stock", &target("stock\n    namespace: \"*\""), "any namespace");
        check_refused(
            "app: stock",
            &target("\"*\"\n    namespace: \"*\""),
            "belongs to the namespace `tollway`",
        );
        let same = EXAMPLE.replace("app: stock", "app: stock\n    namespace: shop");
        assert!(read(&same).is_ok());
    }
}
