//! What the API server's answers prove of a pod. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::authentication::v1::{TokenReviewStatus, UserInfo};
use k8s_openapi::api::core::v1::Pod;
use tollway_control::{PodsError, ProvenPod};

use crate::AUDIENCE;

const USER: &str = "system:serviceaccount:";
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
/// Annotations that name the app of a pod; the first that is there holds.
const APP: [&str; 2] = ["tollway.dev/app", "dapr.io/app-id"];

/// The pod that a token was made for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) namespace: String,
    pub(crate) account: String,
    pub(crate) pod: String,
    uid: String,
}

/// Reads which pod the API server has made a token for.
pub(crate) fn holder(review: &TokenReviewStatus) -> Result<Holder, PodsError> {
    if review.authenticated != Some(true) {
        let reason = review.error.as_deref().filter(|reason| !reason.is_empty());
        return Err(refused(reason.unwrap_or("it is not authentic")));
    }
    // An API server that knows no audiences would take a token that is for another one.
    if !review.audiences.iter().flatten().any(|audience| audience == AUDIENCE) {
        return Err(refused(&format!("it is not for the audience `{AUDIENCE}`")));
    }
    let user = review.user.as_ref();
    let name = user.and_then(|user| user.username.as_deref()).unwrap_or_default();
    let account = name.strip_prefix(USER).and_then(|rest| rest.split_once(':'));
    let Some((namespace, account)) = account else {
        return Err(refused(&format!("`{name}` is no service account")));
    };
    let (Some(pod), Some(uid)) = (extra(user, POD_NAME), extra(user, POD_UID)) else {
        return Err(refused("it is bound to no pod"));
    };
    let (namespace, account) = (namespace.to_owned(), account.to_owned());
    Ok(Holder { namespace, account, pod, uid })
}

/// What else is known of a user: the one value of this name.
fn extra(user: Option<&UserInfo>, name: &str) -> Option<String> {
    let values = user?.extra.as_ref()?.get(name)?;
    match values.as_slice() {
        [value] if !value.is_empty() => Some(value.clone()),
        _ => None,
    }
}

/// Compares the holder of a token with the pod of that name as it is now.
pub(crate) fn proven(holder: Holder, pod: Option<&Pod>) -> Result<ProvenPod, PodsError> {
    let Holder { namespace, account, pod: name, uid } = holder;
    let Some(pod) = pod else {
        return Err(refused(&format!("pod {name} of namespace {namespace} is deleted")));
    };
    let spec = pod.spec.as_ref();
    let runs_as = spec.and_then(|spec| spec.service_account_name.as_deref()).unwrap_or("default");
    if pod.metadata.uid.as_deref() != Some(uid.as_str()) {
        let reason = format!("it was made for another pod of the name {name}, which is deleted");
        return Err(refused(&reason));
    }
    if runs_as != account {
        let reason =
            format!("it is of the service account {account}, and the pod runs as {runs_as}");
        return Err(refused(&reason));
    }
    let phase = phase(pod);
    if has_ended(phase) {
        return Err(refused(&format!("pod {name} of namespace {namespace} has ended ({phase})")));
    }
    let Some(node) = spec.and_then(|spec| spec.node_name.clone()) else {
        return Err(refused(&format!("pod {name} of namespace {namespace} runs on no node")));
    };
    let app = app(pod.metadata.annotations.as_ref());
    Ok(ProvenPod { namespace, name, uid, service_account: account, node, app })
}

/// Whether the pod of a name is still the one with this UID, and has not ended.
pub(crate) fn runs(uid: &str, pod: Option<&Pod>) -> bool {
    pod.is_some_and(|pod| pod.metadata.uid.as_deref() == Some(uid) && !has_ended(phase(pod)))
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn has_ended(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

fn app(annotations: Option<&BTreeMap<String, String>>) -> Option<String> {
    let annotations = annotations?;
    let named = APP.iter().find_map(|name| annotations.get(*name));
    named.filter(|app| !app.is_empty()).cloned()
}

fn refused(reason: &str) -> PodsError {
    PodsError::Refused(reason.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn review(change: impl FnOnce(&mut Value)) -> TokenReviewStatus {
        let mut status = json!({
            "authenticated": true,
            "audiences": ["tollway"],
            "user": {
                "username": "system:serviceaccount:shop:stock",
                "uid": "1",
                "groups": ["system:serviceaccounts"],
                "extra": {
                    (POD_NAME): ["stock-1"],
                    (POD_UID): ["u-1"],
                    "authentication.kubernetes.io/node-name": ["a1"],
                },
            },
        });
        change(&mut status);
        serde_json::from_value(status).unwrap()
    }

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": {
                "name": "stock-1",
                "namespace": "shop",
                "uid": "u-1",
                "annotations": { "tollway.dev/app": "stock", "dapr.io/app-id": "other" },
            },
            "spec": { "containers": [], "serviceAccountName": "stock", "nodeName": "a1" },
            "status": { "phase": "Pending" },
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn reason<T: std::fmt::Debug>(judged: Result<T, PodsError>) -> String {
        match judged {
            Err(PodsError::Refused(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_token_proves_the_pod_that_it_is_bound_to() {
        let holder = holder(&review(|_| {})).unwrap();
        let proven = proven(holder, Some(&pod(|_| {}))).unwrap();
        let text = |text: &str| text.to_owned();
        let expected = ProvenPod {
            namespace: text("shop"),
            name: text("stock-1"),
            uid: text("u-1"),
            service_account: text("stock"),
            node: text("a1"),
            app: Some(text("stock")),
        };
        assert_eq!(proven, expected);
    }

    #[test]
    fn a_token_that_is_not_authentic_for_us_and_of_a_pod_proves_nothing() {
        let refused = |change: fn(&mut Value)| reason(holder(&review(change)));
        let of_another = |status: &mut Value| {
            status["authenticated"] = json!(false);
            status["error"] = json!("token has expired");
        };
        assert_eq!(refused(of_another), "token has expired");
        assert_eq!(refused(|s| s["authenticated"] = Value::Null), "it is not authentic");
        assert!(refused(|s| s["audiences"] = Value::Null).contains("the audience `tollway`"));
        assert!(refused(|s| s["audiences"] = json!(["api"])).contains("the audience `tollway`"));
        let person = refused(|s| s["user"]["username"] = json!("kubernetes-admin"));
        assert_eq!(person, "`kubernetes-admin` is no service account");
        assert_eq!(refused(|s| s["user"] = Value::Null), "`` is no service account");
        assert_eq!(refused(|s| s["user"]["extra"] = Value::Null), "it is bound to no pod");
        assert_eq!(refused(|s| s["user"]["extra"][POD_UID] = json!([])), "it is bound to no pod");
        assert_eq!(refused(|s| s["user"]["extra"][POD_UID] = json!([""])), "it is bound to no pod");
        let two = refused(|s| s["user"]["extra"][POD_NAME] = json!(["a", "b"]));
        assert_eq!(two, "it is bound to no pod");
    }

    #[test]
    fn a_token_of_a_pod_that_is_gone_or_was_made_again_proves_nothing() {
        let refused = |change: fn(&mut Value)| {
            reason(proven(holder(&review(|_| {})).unwrap(), Some(&pod(change))))
        };
        assert!(refused(|p| p["metadata"]["uid"] = json!("u-2")).contains("another pod"));
        assert!(refused(|p| p["spec"]["serviceAccountName"] = json!("x")).contains("runs as x"));
        assert!(refused(|p| p["spec"]["nodeName"] = Value::Null).contains("runs on no node"));
        assert!(refused(|p| p["status"]["phase"] = json!("Failed")).contains("has ended"));
        let gone = reason(proven(holder(&review(|_| {})).unwrap(), None));
        assert_eq!(gone, "pod stock-1 of namespace shop is deleted");
    }

    #[test]
    fn a_pod_runs_until_it_ends_or_another_one_has_its_name() {
        let is_running = |change: fn(&mut Value)| runs("u-1", Some(&pod(change)));
        assert!(is_running(|_| {}) && is_running(|p| p["status"] = Value::Null));
        assert!(is_running(|p| p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")));
        for ended in ["Succeeded", "Failed"] {
            assert!(!runs("u-1", Some(&pod(|p| p["status"]["phase"] = json!(ended)))), "{ended}");
        }
        assert!(!is_running(|p| p["metadata"]["uid"] = json!("u-2")));
        assert!(!runs("u-1", None));
    }

    #[test]
    fn the_annotation_of_tollway_comes_before_that_of_dapr() {
        let app = |change: fn(&mut Value)| {
            proven(holder(&review(|_| {})).unwrap(), Some(&pod(change))).unwrap().app
        };
        let annotations =
            |p: &mut Value| p["metadata"]["annotations"] = json!({"dapr.io/app-id": "d"});
        assert_eq!(app(annotations).as_deref(), Some("d"));
        assert_eq!(app(|p| p["metadata"]["annotations"] = Value::Null), None);
        assert_eq!(app(|p| p["metadata"]["annotations"][APP[0]] = json!("")), None);
    }
}
