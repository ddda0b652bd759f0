//! What is reported of a route of the Gateway API: conditions of each Service that it is attached to. No I/O.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tollway_control::{RefusalReason, Verdict};

use crate::conditions::{Stated, applied, condition, not_applied};

/// Who reports: parts of a route's status that others report stay as they are.
pub(super) const CONTROLLER: &str = "tollway.dev/control";
/// The condition that sidecars have applied the route; the API has none for it.
const APPLIED: &str = "tollway.dev/Applied";

/// Reasons for which a reference leads nowhere, in the API's words.
pub(super) const INVALID_KIND: &str = "InvalidKind";
pub(super) const BACKEND_NOT_FOUND: &str = "BackendNotFound";

/// Why something of a route is not as it states.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    /// In the API's words.
    pub(super) reason: &'static str,
    pub(super) why: String,
}

/// What is reported about a parent of a route.
pub(super) struct ParentState<'a> {
    /// As the route writes it.
    pub(super) written: &'a Value,
    pub(super) verdict: Result<Verdict, Refusal>,
    pub(super) unresolved: Option<&'a Refusal>,
}

/// The part `parents` of a route's status, in place of what is there.
pub(super) fn parents(
    reported: &[Value],
    generation: i64,
    states: &[ParentState<'_>],
    now: Timestamp,
) -> Vec<Value> {
    let is_own = |entry: &Value| entry["controllerName"] == CONTROLLER;
    let mut entries: Vec<Value> = reported.iter().filter(|of| !is_own(of)).cloned().collect();
    for state in states {
        let before = reported.iter().find(|of| is_own(of) && of["parentRef"] == *state.written);
        let before = before.and_then(|of| Vec::<Condition>::deserialize(&of["conditions"]).ok());
        let before = before.unwrap_or_default();
        let conditions = stated(state).map(|stated| condition(&before, stated, generation, now));
        entries.push(json!({
            "parentRef": state.written,
            "controllerName": CONTROLLER,
            "conditions": conditions,
        }));
    }
    entries
}

fn stated(state: &ParentState<'_>) -> [Stated; 3] {
    let (accepted, applied) = match &state.verdict {
        Ok(Verdict::Accepted { sidecars, lagging, .. }) => {
            let text = "The route is in effect for callers of the Service.".to_owned();
            let accepted = Stated { of: "Accepted", is: "True", reason: "Accepted", text };
            (accepted, applied(APPLIED, *sidecars, lagging.as_deref()))
        }
        Ok(Verdict::Refused { reason, why }) => {
            let text = format!("{why}. What the route was before, if anything, stays in effect.");
            (not_accepted(word(*reason), text), not_applied(APPLIED))
        }
        Err(Refusal { reason, why }) => {
            (not_accepted(reason, format!("{why}.")), not_applied(APPLIED))
        }
    };
    let of = "ResolvedRefs";
    let resolved = match state.unresolved {
        None => {
            let text = "All references lead somewhere.".to_owned();
            Stated { of, is: "True", reason: "ResolvedRefs", text }
        }
        Some(Refusal { reason, why }) => {
            let text = format!("{why}. Its share of the requests is answered with 500.");
            Stated { of, is: "False", reason, text }
        }
    };
    [accepted, resolved, applied]
}

fn not_accepted(reason: &'static str, text: String) -> Stated {
    Stated { of: "Accepted", is: "False", reason, text }
}

/// The word of a reason for which the control plane does not accept a route.
fn word(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::Invalid => "UnsupportedValue",
        RefusalReason::NameTaken => "NameTaken",
        RefusalReason::LimitReached => "LimitReached",
        RefusalReason::Unavailable => "Pending",
    }
}
