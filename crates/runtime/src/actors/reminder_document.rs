//! Reminders as documents: what an app registers, and what sidecars send each other.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tollway_actors::placement::Actor;
use tollway_actors::schedule::{FailurePolicy, Moment, Terms};
use tollway_wire::dapr::proto::common::v1::JobFailurePolicy;
use tollway_wire::dapr::proto::common::v1::job_failure_policy::Policy;
use tollway_wire::dapr::proto::runtime::v1::ActorReminder;

use super::alarms::Alarm;
use super::app::Data;
use super::json_object;
use super::problem::Problem;
use super::reminders::ReminderTerms;
use crate::rest::in_words;

/// A reminder in the form in which an app registers it and in which it is sent.
#[derive(Default, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase")]
pub(super) struct ReminderDocument<'a> {
    #[serde(default, skip_deserializing, skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(default, rename = "actorID", skip_deserializing)]
    actor_id: &'a str,
    #[serde(default, skip_deserializing)]
    actor_type: &'a str,
    #[serde(
        default,
        borrow,
        deserialize_with = "json_object::given",
        skip_serializing_if = "Option::is_none"
    )]
    data: Option<&'a RawValue>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    due_time: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    period: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    ttl: String,
    #[serde(default, skip_serializing)]
    overwrite: Option<bool>,
    #[serde(default, alias = "failure_policy", skip_serializing)]
    failure_policy: Option<PolicyDocument>,
}

#[derive(Deserialize)]
struct PolicyDocument {
    drop: Option<serde_json::Value>,
    constant: Option<ConstantDocument>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConstantDocument {
    #[serde(default)]
    interval: Option<String>,
    #[serde(default, alias = "max_retries")]
    max_retries: Option<u32>,
}

/// A reminder in the response of a sidecar.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReminderRecord {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default, rename = "actorID")]
    actor_id: String,
    #[serde(default)]
    actor_type: String,
    #[serde(default)]
    due_time: String,
    #[serde(default)]
    period: String,
    #[serde(default)]
    ttl: String,
    #[serde(default, deserialize_with = "kept")]
    data: Option<Box<RawValue>>,
}

/// Reads data of `null` as such.
fn kept<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(from).map(Some)
}

impl PolicyDocument {
    fn read(&self) -> Result<FailurePolicy, Problem> {
        let constant = self.constant.as_ref();
        let interval = constant.and_then(|constant| constant.interval.as_deref());
        let interval = interval.map(FailurePolicy::read_interval).transpose();
        let interval = interval.map_err(|error| Problem::malformed(&error.to_string()))?;
        let drops = self.drop.is_some() && constant.is_none();
        Ok(policy(drops, interval, constant.and_then(|constant| constant.max_retries)))
    }
}

/// Reads the body of a registration; an empty one is an empty document.
///
/// # Errors
/// [`Problem::malformed`].
pub(super) fn registration(body: &[u8]) -> Result<ReminderTerms, Problem> {
    let document: ReminderDocument<'_> = json_object::read(body)?;
    let data = document.data.map(|data| Data(Bytes::copy_from_slice(data.get().as_bytes())));
    let policy = document.failure_policy.map(|policy| policy.read()).transpose()?;
    Ok(ReminderTerms {
        terms: Terms::new(&document.due_time, &document.period, &document.ttl),
        data,
        policy: policy.unwrap_or_default(),
        overwrite: document.overwrite.unwrap_or(true),
    })
}

/// A reminder as a document, in the words of Dapr 1.18: a period is one of its scheduler, and of ends
/// only moments are shown. `name` is empty where the request has named it.
pub(super) fn document<'a>(
    name: &'a str,
    actor: &'a Actor,
    alarm: &'a Alarm,
) -> ReminderDocument<'a> {
    let data = alarm.event.data.as_ref();
    ReminderDocument {
        name,
        actor_id: &actor.id,
        actor_type: &actor.actor_type,
        due_time: alarm.event.due_time.clone(),
        period: scheduled(&alarm.event.period),
        // No duration has a colon.
        ttl: if alarm.ttl.contains(':') { alarm.ttl.to_string() } else { String::new() },
        data: data.and_then(|data| serde_json::from_slice(&data.0).ok()),
        ..ReminderDocument::default()
    }
}

/// A period as Dapr's scheduler writes it, such as `@every 1m0s`; one with months, which it does not
/// have, stays as it is.
fn scheduled(period: &str) -> String {
    let schedule = Terms::new("", period, "").read(Moment::MIN);
    let read = schedule.ok().and_then(|schedule| schedule.period);
    match read.filter(|read| read.months() == 0) {
        Some(read) => format!("@every {}", in_words(read.time())),
        None => period.to_owned(),
    }
}

/// The failure policy of a message as a document; `None` where the message has none.
pub(super) fn policy_document(message: JobFailurePolicy) -> Option<serde_json::Value> {
    Some(match message.policy? {
        Policy::Drop(_) => serde_json::json!({ "drop": {} }),
        Policy::Constant(constant) => {
            let interval = constant.interval.and_then(|time| Duration::try_from(time).ok());
            let interval = interval.map(|time| format!("{}ns", time.as_nanos()));
            let max_retries = constant.max_retries;
            serde_json::json!({ "constant": { "interval": interval, "maxRetries": max_retries } })
        }
    })
}

/// A reminder as a message. Empty fields are left out.
pub(super) fn message(record: ReminderRecord) -> ActorReminder {
    let given = |text: String| (!text.is_empty()).then_some(text);
    let data = record.data.map(|data| Data(Bytes::copy_from_slice(data.get().as_bytes())).any());
    ActorReminder {
        actor_type: record.actor_type,
        actor_id: record.actor_id,
        due_time: given(record.due_time),
        period: given(record.period),
        data,
        ttl: given(record.ttl),
    }
}

fn policy(drops: bool, interval: Option<Duration>, max_retries: Option<u32>) -> FailurePolicy {
    match drops {
        true => FailurePolicy::Drop,
        false => FailurePolicy::Constant {
            interval: interval.unwrap_or(FailurePolicy::INTERVAL),
            max_retries,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::app::Event;
    use super::super::testing::actor;
    use super::*;

    #[test]
    fn an_empty_registration_has_the_defaults() {
        for empty in ["", "  ", "{}", "{\"dueTime\":\"\",\"overwrite\":null}"] {
            let read = registration(empty.as_bytes()).unwrap();
            assert_eq!(read.terms, Terms::new("", "", ""), "{empty}");
            assert!(read.overwrite && read.data.is_none(), "{empty}");
            assert_eq!(read.policy, FailurePolicy::default(), "{empty}");
        }
    }

    #[test]
    fn a_registration_keeps_its_data_as_text() {
        let text = br#"{"dueTime":"1s","period":"PT2S","ttl":"1h","data":{"a": [1.0,"\u00e9"]},
            "overwrite":false,"name":"ignored","actorID":"ignored"}"#;
        let read = registration(text).unwrap();
        assert_eq!(read.terms, Terms::new("1s", "PT2S", "1h"));
        assert_eq!(read.data.unwrap().0, r#"{"a": [1.0,"\u00e9"]}"#.as_bytes());
        assert!(!read.overwrite);
    }

    #[test]
    fn failure_policies_are_read_in_both_spellings() {
        let read = |text: &str| {
            let text = format!("{{\"failurePolicy\":{text}}}");
            registration(text.as_bytes()).unwrap().policy
        };
        assert_eq!(read(r#"{"drop":{}}"#), FailurePolicy::Drop);
        let constant = |interval, max_retries| FailurePolicy::Constant { interval, max_retries };
        let default = FailurePolicy::INTERVAL;
        assert_eq!(read(r#"{"constant":{}}"#), constant(default, None));
        let twice = Duration::from_secs(2);
        let both = constant(twice, Some(5));
        assert_eq!(read(r#"{"constant":{"interval":"2s","maxRetries":5}}"#), both);
        assert_eq!(read(r#"{"drop":{},"constant":{"interval":"2s","max_retries":5}}"#), both);
        let snake = registration(br#"{"failure_policy":{"drop":{}}}"#).unwrap();
        assert_eq!(snake.policy, FailurePolicy::Drop);
    }

    #[test]
    fn a_registration_that_cannot_be_read_is_refused() {
        for text in
            ["7", "{\"data\":}", "{\"failurePolicy\":{\"constant\":{\"interval\":\"soon\"}}}"]
        {
            let problem = registration(text.as_bytes()).unwrap_err();
            assert_eq!(problem.http_status(), 400, "{text}");
        }
    }

    #[test]
    fn a_document_becomes_the_message_of_the_same_reminder() {
        let event = Event {
            due_time: "1s".to_owned(),
            period: String::new(),
            callback: String::new(),
            data: Some(Data::of_bytes(b"hello")),
        };
        let alarm = Alarm {
            event,
            ttl: "2030-01-02T15:00:00Z".to_owned(),
            policy: FailurePolicy::default(),
            version: 3,
        };
        let text = serde_json::to_string(&document("daily", &actor("7"), &alarm)).unwrap();
        assert_eq!(
            text,
            "{\"name\":\"daily\",\"actorID\":\"7\",\"actorType\":\"Cart\",\"data\":\"aGVsbG8=\",\
             \"dueTime\":\"1s\",\"ttl\":\"2030-01-02T15:00:00Z\"}"
        );
        let record: ReminderRecord = serde_json::from_str(&text).unwrap();
        assert_eq!(record.name, "daily");
        let message = message(record);
        assert_eq!((message.actor_type.as_str(), message.actor_id.as_str()), ("Cart", "7"));
        assert_eq!(message.due_time.as_deref(), Some("1s"));
        assert_eq!((message.period, message.ttl.as_deref()), (None, Some("2030-01-02T15:00:00Z")));
        assert_eq!(message.data, Some(alarm.event.data.unwrap().any()));
    }

    #[test]
    fn a13_a_period_is_shown_as_daprs_scheduler_has_it() {
        for (given, shown) in [
            ("1s", "@every 1s"),
            ("R5/PT1M30S", "@every 1m30s"),
            ("100ms", "@every 100ms"),
            ("P1Y2M", "P1Y2M"),
            ("", ""),
        ] {
            assert_eq!(scheduled(given), shown);
        }
    }

    #[test]
    fn a19_data_of_null_differ_from_none() {
        let data = |text: &[u8]| registration(text).unwrap().data.map(|data| data.0);
        assert_eq!(data(b"{}"), None);
        assert_eq!(data(b"{\"data\":null}"), Some(Bytes::from_static(b"null")));
    }

    #[test]
    fn a_policy_of_a_message_is_read_back_as_it_was() {
        use tollway_wire::dapr::proto::common::v1::{
            JobFailurePolicyConstant, JobFailurePolicyDrop,
        };
        let back = |policy| {
            let document = policy_document(JobFailurePolicy { policy: Some(policy) }).unwrap();
            let text = serde_json::json!({ "failurePolicy": document }).to_string();
            registration(text.as_bytes()).unwrap().policy
        };
        assert_eq!(back(Policy::Drop(JobFailurePolicyDrop {})), FailurePolicy::Drop);
        let interval = Duration::from_millis(1500);
        let message = JobFailurePolicyConstant {
            interval: Some(interval.try_into().unwrap()),
            max_retries: Some(2),
        };
        let constant = FailurePolicy::Constant { interval, max_retries: Some(2) };
        assert_eq!(back(Policy::Constant(message)), constant);
        assert!(policy_document(JobFailurePolicy { policy: None }).is_none());
    }
}
