//! What an API server is answered about a pod. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use tollway_inject::{CAPTURE, DaprObjects, INJECT, InjectError, Namespace, Settings, inject};

use super::Which;
use crate::events::{About, Notes};

/// Notes of one pod that are passed on; the rest is left out.
const NOTES_LIMIT: usize = 16;
/// Longest warning in an answer, in characters: the API server cuts longer ones off.
const WARNING_CHARACTERS: usize = 250;

/// An `AdmissionReview` of `admission.k8s.io/v1`, as far as it is read.
#[derive(Deserialize)]
struct Review {
    request: Option<Request>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    uid: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    dry_run: Option<bool>,
    #[serde(default)]
    object: Value,
}

/// What became of a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Injected,
    Left,
    Refused,
}

/// The answer to a review.
#[derive(Debug)]
pub(crate) struct Answer {
    /// An `AdmissionReview` with the response.
    pub(crate) review: Value,
    pub(crate) outcome: Outcome,
    /// What to make known where the pod is.
    pub(crate) notes: Option<Notes>,
}

/// Reads a review.
///
/// # Errors
/// What is wrong with a body that is no review of a pod.
pub(crate) fn read(body: &[u8]) -> Result<Asked, String> {
    let review: Review = serde_json::from_slice(body)
        .map_err(|error| format!("the body is no AdmissionReview: {error}"))?;
    let request = review.request.ok_or("the AdmissionReview has no request")?;
    Ok(Asked(request))
}

/// A question about a pod.
pub(crate) struct Asked(Request);

impl Asked {
    /// The namespace whose objects of Dapr the answer depends on; `None`: it depends on none.
    pub(crate) fn namespace_of_dapr(&self) -> Option<&str> {
        let enabled = self.0.object.pointer("/metadata/annotations/dapr.io~1enabled")?;
        let is_left = enabled.as_str().is_some_and(|text| text.is_empty() || text == "false");
        (!is_left).then_some(self.0.namespace.as_str())
    }

    /// The pod is not made, for now.
    pub(crate) fn refuse_for_now(self, why: &str) -> Answer {
        let status = json!({"code": 503, "reason": "ServiceUnavailable", "message": why});
        let response = json!({"uid": self.0.uid, "allowed": false, "status": status});
        Answer { review: wrap(response), outcome: Outcome::Refused, notes: None }
    }

    /// Answers. `settings` are those of all pods, `dapr` has the objects of the namespace.
    ///
    /// # Errors
    /// The answer cannot be written.
    pub(crate) fn answer(
        self,
        which: Which,
        settings: &Settings,
        dapr: Option<DaprObjects>,
    ) -> Result<Answer, String> {
        let request = self.0;
        // No right to read namespaces is needed: which webhook asks says what they are marked with.
        let marks: &[&str] = match which {
            Which::MarkedNamespace => &[INJECT],
            Which::CapturedNamespace => &[INJECT, CAPTURE],
            Which::MarkedPod => &[],
        };
        let labels = marks.iter().map(|name| ((*name).to_owned(), "true".to_owned())).collect();
        let namespace = Namespace { name: request.namespace.clone(), labels, dapr };
        let injection = match inject(&request.object, &namespace, settings) {
            Ok(injection) => injection,
            Err(InjectError { object, problem }) => {
                let message = format!("no sidecar for {object}: {problem}");
                let status = json!({"code": 422, "reason": "Invalid", "message": message});
                let response = json!({"uid": request.uid, "allowed": false, "status": status});
                return Ok(Answer {
                    review: wrap(response),
                    outcome: Outcome::Refused,
                    notes: None,
                });
            }
        };
        let mut response = json!({"uid": request.uid, "allowed": true});
        let outcome = match injection.patch.as_slice() {
            [] => Outcome::Left,
            patch => {
                let patch = serde_json::to_vec(patch)
                    .map_err(|error| format!("the patch cannot be written: {error}"))?;
                response["patchType"] = json!("JSONPatch");
                response["patch"] = json!(STANDARD.encode(patch));
                Outcome::Injected
            }
        };
        let texts: Vec<String> =
            injection.notes.into_iter().take(NOTES_LIMIT).map(|note| note.text).collect();
        if !texts.is_empty() {
            let warnings: Vec<String> = texts.iter().map(|text| warning(text)).collect();
            response["warnings"] = json!(warnings);
        }
        let is_tried = request.dry_run == Some(true);
        let about = about(&request.object, &request.namespace);
        let notes =
            about.filter(|_| !is_tried && !texts.is_empty()).map(|about| Notes { about, texts });
        Ok(Answer { review: wrap(response), outcome, notes })
    }
}

fn wrap(response: Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

fn warning(text: &str) -> String {
    format!("tollway: {text}").chars().take(WARNING_CHARACTERS).collect()
}

/// The controller of the pod, or the pod if it has a name.
fn about(pod: &Value, namespace: &str) -> Option<About> {
    let text = |of: &Value, field: &str| of.get(field).and_then(Value::as_str).map(str::to_owned);
    let owners = pod.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let controls = |owner: &&Value| owner.get("controller") == Some(&Value::Bool(true));
    let namespace = namespace.to_owned();
    if let Some(owner) = owners.into_iter().flatten().find(controls) {
        return Some(About {
            api_version: text(owner, "apiVersion")?,
            kind: text(owner, "kind")?,
            name: text(owner, "name")?,
            uid: text(owner, "uid")?,
            namespace,
        });
    }
    let metadata = pod.get("metadata")?;
    let (api_version, kind) = ("v1".to_owned(), "Pod".to_owned());
    let name = text(metadata, "name")?;
    Some(About {
        api_version,
        kind,
        name,
        uid: text(metadata, "uid").unwrap_or_default(),
        namespace,
    })
}

#[cfg(test)]
mod tests {
    use tollway_inject::TokenFrom;

    use super::*;

    fn settings() -> Settings {
        let root_pin = Some("tollway1-root.west.Zm9v".to_owned());
        let token = TokenFrom::ServiceAccount { root_pin, expiration_seconds: 3600 };
        Settings { token, ..Settings::new("tollway:1", "control:15010") }
    }

    fn pod(annotations: Value) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": "orders-7d9f-",
                "labels": {"pod-template-hash": "7d9f"},
                "annotations": annotations,
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Thing", "name": "no", "uid": "0"},
                    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "orders-7d9f", "uid": "u1", "controller": true},
                ],
            },
            "spec": {"containers": [{"name": "orders", "image": "orders:1"}]},
        })
    }

    fn review(pod: &Value, dry_run: bool) -> Vec<u8> {
        let request = json!({
            "uid": "705a", "namespace": "shop", "operation": "CREATE", "dryRun": dry_run, "object": pod,
        });
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        serde_json::to_vec(&review).unwrap()
    }

    fn answer(body: &[u8], which: Which) -> Result<Answer, String> {
        read(body)?.answer(which, &settings(), None)
    }

    /// Dapr's objects are read for pods with its annotation alone, and the pod waits where they cannot be.
    #[test]
    fn a_pod_of_dapr_depends_on_the_objects_of_its_namespace() {
        let daprs = json!({"dapr.io/enabled": "true", "dapr.io/config": "appconfig"});
        let daprs = review(&pod(daprs), false);
        assert_eq!(read(&daprs).unwrap().namespace_of_dapr(), Some("shop"));
        for plain in [json!({}), json!({"dapr.io/enabled": "false"})] {
            assert_eq!(read(&review(&pod(plain), false)).unwrap().namespace_of_dapr(), None);
        }
        let given = |objects| {
            let asked = read(&daprs).unwrap();
            asked.answer(Which::MarkedPod, &settings(), Some(objects)).unwrap()
        };
        let refused = given(DaprObjects::default());
        let message = refused.review["response"]["status"]["message"].as_str().unwrap();
        assert!(message.contains("the Configuration `appconfig`"), "{message}");
        let configuration = json!({"metadata": {"name": "appconfig"}, "spec": {}});
        let objects = DaprObjects { configurations: vec![configuration], ..DaprObjects::default() };
        assert_eq!(given(objects).outcome, Outcome::Injected);
        let later = read(&daprs).unwrap().refuse_for_now("it is away");
        let response = &later.review["response"];
        assert_eq!(
            (&response["allowed"], &response["status"]["code"]),
            (&json!(false), &json!(503))
        );
    }

    fn asked(pod: &Value, which: Which) -> Answer {
        answer(&review(pod, false), which).unwrap()
    }

    #[test]
    fn a_pod_of_a_marked_namespace_gets_a_patch_that_adds_the_sidecar() {
        let pod = pod(json!({}));
        let given = asked(&pod, Which::MarkedNamespace);
        assert_eq!(given.outcome, Outcome::Injected);
        let response = &given.review["response"];
        assert_eq!((&response["uid"], &response["allowed"]), (&json!("705a"), &json!(true)));
        assert_eq!(response["patchType"], "JSONPatch");
        let patch = STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
        let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
        let mut patched = pod;
        json_patch::patch(&mut patched, &patch).unwrap();
        assert_eq!(patched["spec"]["initContainers"][0]["name"], "tollway");
        assert_eq!(patched["metadata"]["annotations"]["tollway.dev/app"], "orders");
        // The API server asks once more after other webhooks have changed the pod.
        assert_eq!(asked(&patched, Which::MarkedNamespace).outcome, Outcome::Left);
    }

    #[test]
    fn a_pod_of_another_namespace_gets_a_sidecar_if_it_asks_for_one() {
        assert_eq!(asked(&pod(json!({})), Which::MarkedPod).outcome, Outcome::Left);
        let asks = pod(json!({"tollway.dev/inject": "true"}));
        assert_eq!(asked(&asks, Which::MarkedPod).outcome, Outcome::Injected);
    }

    #[test]
    fn a_mistake_refuses_the_pod_and_names_the_annotation() {
        let given = asked(&pod(json!({"tollway.dev/port": "high"})), Which::MarkedNamespace);
        assert_eq!(given.outcome, Outcome::Refused);
        let status = &given.review["response"]["status"];
        assert_eq!(given.review["response"]["allowed"], false);
        assert!(status["message"].as_str().unwrap().contains("tollway.dev/port"), "{status}");
    }

    #[test]
    fn an_unknown_annotation_is_a_warning_and_an_event_at_what_makes_the_pod() {
        let odd = pod(json!({"tollway.dev/porrt": "80"}));
        let given = asked(&odd, Which::MarkedNamespace);
        let warnings = given.review["response"]["warnings"].as_array().unwrap();
        assert!(warnings[0].as_str().unwrap().contains("tollway.dev/porrt"), "{warnings:?}");
        let notes = given.notes.unwrap();
        assert_eq!(
            (notes.about.kind.as_str(), notes.about.name.as_str(), notes.about.namespace.as_str()),
            ("ReplicaSet", "orders-7d9f", "shop")
        );
        let tried = answer(&review(&odd, true), Which::MarkedNamespace).unwrap();
        assert_eq!(tried.notes, None, "a dry run changes nothing");
    }

    #[test]
    fn what_is_no_review_is_refused_with_what_is_wrong() {
        for (body, words) in [("{", "no AdmissionReview"), ("{}", "no request"), ("[1]", "no")] {
            let refused = answer(body.as_bytes(), Which::MarkedPod).unwrap_err();
            assert!(refused.contains(words), "{body}: {refused}");
        }
    }
}
