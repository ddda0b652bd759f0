//! `accessControl` of Dapr's Configuration: who may ask what of the app.

use serde::Deserialize;
use tollway_model::{
    CallerPattern, Label, MethodName, ObjectName, OperationPath, Part, RULES_PER_POLICY_LIMIT,
    TrustDomain,
};
use tollway_routing::{AccessList, Action, CallerAccess, Operation};

/// Dapr's default trust domain, which means that of the own network.
const USUAL_TRUST_DOMAIN: &str = "public";

/// The section as it is written.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Spec {
    default_action: Option<String>,
    trust_domain: Option<String>,
    policies: Vec<Policy>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Policy {
    app_id: String,
    namespace: String,
    trust_domain: String,
    default_action: Option<String>,
    operations: Vec<Named>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Named {
    name: String,
    http_verb: Vec<String>,
    action: String,
}

/// What the section means; `None` where everybody may everything. The list's namespace is the app's.
///
/// # Errors
/// What cannot be understood, in words.
pub(crate) fn read(spec: &Spec, namespace: &Label) -> Result<Option<AccessList>, String> {
    let stated = filled(spec.default_action.as_deref());
    let default = match stated {
        Some(word) => action(word, "accessControl.defaultAction")?,
        // As Dapr has it: a list is there to let in those that are on it.
        None if !spec.policies.is_empty() => Action::Deny,
        None => Action::Allow,
    };
    if spec.policies.is_empty() && default == Action::Allow {
        return Ok(None);
    }
    let count: usize = spec.policies.iter().map(|policy| 1 + policy.operations.len()).sum();
    if count > RULES_PER_POLICY_LIMIT {
        return Err(format!(
            "accessControl has {count} callers and operations; at most {RULES_PER_POLICY_LIMIT} \
             are accepted"
        ));
    }
    let own = filled(spec.trust_domain.as_deref()).unwrap_or(USUAL_TRUST_DOMAIN);
    let callers = spec.policies.iter().map(|policy| policy.read(own, default));
    let callers = callers.collect::<Result<Vec<_>, String>>()?;
    let name = Label::new("accessControl").map_err(|error| error.to_string())?;
    let name = ObjectName { namespace: namespace.clone(), name };
    Ok(Some(AccessList { name, default, callers }))
}

impl Policy {
    /// `own` is what the file calls the trust domain of the app's network.
    fn read(&self, own: &str, default: Action) -> Result<CallerAccess, String> {
        let Self { app_id, namespace, trust_domain, default_action, operations } = self;
        for (field, text) in
            [("appId", app_id), ("namespace", namespace), ("trustDomain", trust_domain)]
        {
            if text.is_empty() {
                return Err(format!(
                    "a policy of accessControl for the app `{app_id}` lacks `{field}`; name all \
                     three: appId, namespace and trustDomain"
                ));
            }
        }
        let field = format!("accessControl of `{app_id}`");
        let part = |text: &str| Label::new(text).map(Part::Is);
        let (app, namespace) = (part(app_id), part(namespace));
        let app = app.map_err(|error| format!("{field}: {error}"))?;
        let namespace = namespace.map_err(|error| format!("{field}: {error}"))?;
        // Certificates have them in lower case.
        let is = |other: &str| trust_domain.eq_ignore_ascii_case(other);
        let caller = if is(own) || is(USUAL_TRUST_DOMAIN) {
            CallerPattern::Service { app, namespace: Some(namespace), network: None }
        } else {
            let trust_domain = TrustDomain::new(&trust_domain.to_ascii_lowercase())
                .map_err(|error| format!("{field}: {error}"))?;
            CallerPattern::Spiffe { trust_domain, namespace, app }
        };
        let default = match filled(default_action.as_deref()) {
            Some(word) => action(word, &field)?,
            None => default,
        };
        let operations = operations.iter().map(|named| named.read(&field));
        let operations = operations.collect::<Result<Vec<_>, String>>()?;
        Ok(CallerAccess { caller, default, operations })
    }
}

impl Named {
    fn read(&self, field: &str) -> Result<Operation, String> {
        let Self { name, http_verb, action: word } = self;
        // Methods of gRPC have no slash; Dapr puts one before them.
        let path = if name.starts_with('/') { name.clone() } else { format!("/{name}") };
        let path: OperationPath = path.parse().map_err(|error| format!("{field}: {error}"))?;
        let is_any = http_verb.iter().any(|verb| verb == "*");
        let verbs = if is_any { &[] } else { http_verb.as_slice() };
        let methods = verbs.iter().map(|verb| MethodName::new(&verb.to_ascii_uppercase()));
        let methods = methods.collect::<Result<Vec<_>, _>>();
        let methods = methods.map_err(|error| format!("{field}, `{name}`: {error}"))?;
        let action = action(word, &format!("{field}, `{name}`"))?;
        Ok(Operation { path, methods, action })
    }
}

fn filled(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

fn action(word: &str, field: &str) -> Result<Action, String> {
    match word.to_ascii_lowercase().as_str() {
        "allow" => Ok(Action::Allow),
        "deny" => Ok(Action::Deny),
        _ => Err(format!("{field} has the action `{word}`; write allow or deny")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn list(section: &Value) -> Result<Option<AccessList>, String> {
        let spec = Option::<Spec>::deserialize(section).map_err(|error| error.to_string())?;
        read(&spec.unwrap_or_default(), &Label::new("shop").unwrap())
    }

    #[test]
    fn an_operation_without_a_slash_gets_one_as_in_daprd() {
        for (name, path) in
            [("GetItem", "/GetItem"), ("items/*", "/items/*"), ("", "/"), ("/a/**/b*", "/a/**/b*")]
        {
            let operation = json!([{ "name": name, "action": "allow" }]);
            let list = list(&policy(json!({ "operations": operation }))).unwrap().unwrap();
            assert_eq!(list.callers[0].operations[0].path.to_string(), path);
        }
    }

    fn policy(more: Value) -> Value {
        let mut policy = json!({
            "appId": "web", "namespace": "default", "trustDomain": "public",
        });
        let fields = policy.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        json!({ "trustDomain": "shop.example", "policies": [policy] })
    }

    #[test]
    fn callers_are_read_with_what_they_may_ask() {
        let operations = json!([
            { "name": "/orders/*", "httpVerb": ["get", "POST"], "action": "allow" },
            { "name": "/orders/secret", "httpVerb": ["*"], "action": "deny" },
        ]);
        let section = policy(json!({ "defaultAction": "deny", "operations": operations }));
        let list = list(&section).unwrap().unwrap();
        assert_eq!(
            (list.name.to_string().as_str(), list.default),
            ("shop/accessControl", Action::Deny)
        );
        let [caller] = &list.callers[..] else { panic!("one caller: {list:?}") };
        assert_eq!(
            (caller.caller.to_string().as_str(), caller.default),
            ("web.default", Action::Deny)
        );
        let [orders, secret] = &caller.operations[..] else { panic!("two operations: {caller:?}") };
        let methods: Vec<_> = orders.methods.iter().map(MethodName::as_str).collect();
        assert_eq!((methods, orders.action), (vec!["GET", "POST"], Action::Allow));
        assert_eq!((secret.methods.len(), secret.action), (0, Action::Deny));
    }

    #[test]
    fn a_trust_domain_is_the_own_networks_or_anothers() {
        for (domain, caller) in [
            ("public", "web.default"),
            ("shop.example", "web.default"),
            ("east.tollway", "spiffe://east.tollway/ns/default/web"),
            // As in the first example of Dapr's documentation.
            ("myDomain", "spiffe://mydomain/ns/default/web"),
            ("Public", "web.default"),
            ("Shop.Example", "web.default"),
        ] {
            let found = list(&policy(json!({ "trustDomain": domain }))).unwrap().unwrap();
            assert_eq!(found.callers[0].caller.to_string(), caller);
        }
    }

    #[test]
    fn defaults_are_daprs() {
        let default = |section: Value| list(&section).unwrap().map(|list| list.default);
        assert_eq!(default(Value::Null), None);
        assert_eq!(default(json!({})), None);
        assert_eq!(default(json!({ "defaultAction": "allow", "policies": [] })), None);
        assert_eq!(default(json!({ "defaultAction": "Deny" })), Some(Action::Deny));
        assert_eq!(default(policy(json!({}))), Some(Action::Deny));
        let open = json!({ "defaultAction": "allow", "policies": policy(json!({}))["policies"] });
        let open = list(&open).unwrap().unwrap();
        assert_eq!((open.default, open.callers[0].default), (Action::Allow, Action::Allow));
    }

    #[test]
    fn mistakes_are_reported_with_their_position() {
        let operation = |operation: Value| policy(json!({ "operations": [operation] }));
        for (section, message) in [
            (json!({ "defaultAction": "perhaps" }), "defaultAction has the action `perhaps`"),
            (json!({ "policies": [{ "appId": "a" }] }), "lacks `namespace`"),
            (policy(json!({ "appId": "" })), "lacks `appId`"),
            (policy(json!({ "appId": "a.b" })), "accessControl of `a.b`"),
            (policy(json!({ "trustDomain": "No Domain" })), "accessControl of `web`"),
            (operation(json!({ "name": "/a//b", "action": "allow" })), "empty segment"),
            (operation(json!({ "name": "/a" })), "`/a` has the action ``"),
            (operation(json!({ "name": "/a", "httpVerb": ["G T"], "action": "deny" })), "`G T`"),
        ] {
            let refused = list(&section).unwrap_err();
            assert!(refused.contains(message), "{section}: {refused}");
        }
        // The caller counts as one.
        let mut many = vec![json!({ "name": "/a", "action": "allow" }); RULES_PER_POLICY_LIMIT];
        let refused = list(&policy(json!({ "operations": many }))).unwrap_err();
        assert!(refused.contains("501 callers and operations"), "{refused}");
        many.pop();
        assert!(list(&policy(json!({ "operations": many }))).is_ok());
    }
}
