//! The status of a custom resource: what the control plane reports, as conditions of Kubernetes. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tollway_control::{RefusalReason, ResourceStatus, Verdict};

/// Sidecars that are named in a message; the others are counted.
const NAMED_LIMIT: usize = 10;
const APPLIED: &str = "Applied";

/// The part `status` of a custom resource.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct State {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) observed_generation: Option<i64>,
    /// Of the object that is in effect, as far as it is of this specification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<u64>,
    #[serde(default)]
    pub(crate) conditions: Vec<Condition>,
}

/// What a status says, in place of `before`. A condition that stays as it is has the time of its last change.
pub(crate) fn state(before: &State, status: &ResourceStatus, now: Timestamp) -> State {
    let (revision, conditions) = match &status.verdict {
        Verdict::Accepted { revision, sidecars, lagging } => {
            let accepted = Stated {
                of: "Accepted",
                is: "True",
                reason: "Accepted",
                text: "It is an object of the network.".to_owned(),
            };
            (Some(*revision), vec![accepted, applied(APPLIED, *sidecars, lagging.as_deref())])
        }
        Verdict::Refused { reason, why } => {
            let text =
                format!("{why}. What the resource was before, if anything, stays in effect.");
            let accepted = Stated { of: "Accepted", is: "False", reason: word(*reason), text };
            (None, vec![accepted, not_applied(APPLIED)])
        }
    };
    let stated = conditions.into_iter();
    let stated = stated.map(|of| condition(&before.conditions, of, status.generation, now));
    State { observed_generation: Some(status.generation), revision, conditions: stated.collect() }
}

/// A condition in place of the one of its type: while that stays as it is, it has the time of its last change.
pub(crate) fn condition(
    before: &[Condition],
    stated: Stated,
    generation: i64,
    now: Timestamp,
) -> Condition {
    let former = before.iter().find(|condition| condition.type_ == stated.of);
    let since = former.filter(|former| former.status == stated.is);
    Condition {
        type_: stated.of.to_owned(),
        status: stated.is.to_owned(),
        reason: stated.reason.to_owned(),
        message: stated.text,
        observed_generation: Some(generation),
        last_transition_time: since.map_or(Time(now), |former| former.last_transition_time.clone()),
    }
}

/// A condition without its times.
pub(crate) struct Stated {
    pub(crate) of: &'static str,
    pub(crate) is: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) text: String,
}

/// That sidecars do not apply what is not accepted.
pub(crate) fn not_applied(of: &'static str) -> Stated {
    let text = "The specification is not accepted.".to_owned();
    Stated { of, is: "False", reason: "NotAccepted", text }
}

/// Whether sidecars have applied it, as a condition of this type.
pub(crate) fn applied(of: &'static str, sidecars: u32, lagging: Option<&[String]>) -> Stated {
    match lagging {
        None => {
            let text = "Sidecars have not acknowledged it yet.".to_owned();
            Stated { of, is: "False", reason: "Pending", text }
        }
        Some([]) if sidecars == 0 => {
            let text = "It concerns no sidecar now.".to_owned();
            Stated { of, is: "True", reason: "Everywhere", text }
        }
        Some([]) => {
            let text = format!("All sidecars that it concerns have applied it ({sidecars}).");
            Stated { of, is: "True", reason: "Everywhere", text }
        }
        Some(lagging) => {
            let named = lagging[..lagging.len().min(NAMED_LIMIT)].join(", ");
            let more = lagging.len().saturating_sub(NAMED_LIMIT);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            let count = lagging.len();
            let text =
                format!("{count} of {sidecars} sidecars have not applied it: {named}{more}.");
            Stated { of, is: "False", reason: "Lagging", text }
        }
    }
}

fn word(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::Invalid => "Invalid",
        RefusalReason::NameTaken => "NameTaken",
        RefusalReason::LimitReached => "LimitReached",
        RefusalReason::Unavailable => "Unavailable",
    }
}

#[cfg(test)]
mod tests {
    use tollway_control::{ResourceKind, ResourceName};
    use tollway_model::ObjectKind;

    use super::*;

    fn status(generation: i64, verdict: Verdict) -> ResourceStatus {
        let kind = ResourceKind::Own(ObjectKind::Route);
        let name = ResourceName { kind, namespace: "shop".into(), name: "stock".into() };
        ResourceStatus { name, generation, verdict }
    }

    fn accepted(lagging: Option<&[&str]>) -> Verdict {
        let lagging = lagging.map(|names| names.iter().map(|&name| name.to_owned()).collect());
        Verdict::Accepted { revision: 7, sidecars: 12, lagging }
    }

    fn shown(state: &State) -> Vec<String> {
        let text =
            |it: &Condition| format!("{} {} {}: {}", it.type_, it.status, it.reason, it.message);
        state.conditions.iter().map(text).collect()
    }

    #[test]
    fn a_resource_is_accepted_and_then_applied() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let pending = state(&State::default(), &status(1, accepted(None)), at(1));
        assert_eq!(pending.revision, Some(7));
        assert_eq!(
            shown(&pending),
            [
                "Accepted True Accepted: It is an object of the network.",
                "Applied False Pending: Sidecars have not acknowledged it yet.",
            ]
        );
        let names: Vec<String> = (0..12).map(|number| format!("s{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let lagging = state(&pending, &status(1, accepted(Some(&names))), at(2));
        assert_eq!(
            shown(&lagging)[1],
            "Applied False Lagging: 12 of 12 sidecars have not applied it: s0, s1, s2, s3, s4, s5, s6, s7, s8, s9 and 2 more."
        );
        let everywhere = state(&lagging, &status(2, accepted(Some(&[]))), at(3));
        assert_eq!(
            shown(&everywhere)[1],
            "Applied True Everywhere: All sidecars that it concerns have applied it (12)."
        );
        let times = |state: &State| {
            let times = state.conditions.iter().map(|it| it.last_transition_time.0.as_second());
            times.collect::<Vec<_>>()
        };
        assert_eq!([times(&pending), times(&lagging)], [[1, 1], [1, 1]]);
        assert_eq!(times(&everywhere), [1, 3]);
        assert_eq!(everywhere.observed_generation, Some(2));
        // The same again is no change.
        assert_eq!(state(&everywhere, &status(2, accepted(Some(&[]))), at(9)), everywhere);
    }

    #[test]
    fn a_resource_that_is_refused_has_the_reason() {
        let why = "the network has at most 10000 routes".to_owned();
        let refused = Verdict::Refused { reason: RefusalReason::LimitReached, why };
        let refused = state(&State::default(), &status(3, refused), Timestamp::UNIX_EPOCH);
        assert_eq!(
            shown(&refused),
            [
                "Accepted False LimitReached: the network has at most 10000 routes. What the resource was before, if anything, stays in effect.",
                "Applied False NotAccepted: The specification is not accepted.",
            ]
        );
        assert_eq!((refused.revision, refused.observed_generation), (None, Some(3)));
    }
}
