//! Turns at the app: each is a request to one of the app's routes, and its response.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use prost::Message as _;
use serde::Serialize;
use serde_json::value::RawValue;
use tollway_actors::placement::Actor;
use tollway_model::ErrorCode;
use tollway_proxy::{ERROR_FIELD, RuntimeRequest, RuntimeTarget, TurnLease, UNPROCESSED_FIELD};
use tonic::body::Body;

use super::clock::Clock;
use super::json_object;
use super::problem::Problem;
use crate::loopback::Loopback;

/// In a response: the timer or reminder does not fire again.
const CANCEL: HeaderName = HeaderName::from_static("x-daprremindercancel");
/// The type of the data of a timer or reminder in a message.
const BYTES_TYPE: &str = "type.googleapis.com/google.protobuf.BytesValue";

/// Characters that are encoded in one part of a path.
const PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Characters that are encoded in a path of several parts.
const PATH: &AsciiSet = &PART.remove(b'/');

/// The kind of a turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum TurnKind {
    /// A call of this method, with its query.
    Method {
        name: String,
        query: Option<String>,
    },
    Timer {
        name: String,
        event: Event,
    },
    Reminder {
        name: String,
        event: Event,
    },
}

/// What the app gets when a timer or reminder is due, as it was registered.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Event {
    pub(crate) due_time: String,
    pub(crate) period: String,
    /// Only of timers.
    pub(crate) callback: String,
    pub(crate) data: Option<Data>,
}

/// The data of a timer or reminder: the text of a JSON document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Data(pub(crate) Bytes);

impl Data {
    /// Makes a document of bytes that came over gRPC: a string in base64, as in Dapr.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        Self(format!("\"{}\"", STANDARD.encode(bytes)).into())
    }

    /// The data as a message has it.
    pub(crate) fn any(&self) -> prost_types::Any {
        let value = self.0.to_vec().encode_to_vec();
        prost_types::Any { type_url: BYTES_TYPE.to_owned(), value }
    }
}

impl Event {
    /// The document that the app gets over HTTP, to the byte as Dapr 1.18 writes it.
    fn document(&self, is_timer: bool) -> Bytes {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Document<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            data: Option<&'a RawValue>,
            #[serde(skip_serializing_if = "Option::is_none")]
            callback: Option<&'a str>,
            due_time: &'a str,
            period: &'a str,
        }
        let data = self.data.as_ref().and_then(|data| serde_json::from_slice(&data.0).ok());
        let document = Document {
            data,
            callback: is_timer.then_some(self.callback.as_str()),
            due_time: &self.due_time,
            period: &self.period,
        };
        json_object::compact(&serde_json::to_vec(&document).unwrap_or_default()).into()
    }
}

/// A turn as the app gets it.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) actor: Actor,
    pub(crate) what: TurnKind,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Bytes,
}

/// The app's response to a turn that succeeded.
#[derive(Clone, Default, Debug)]
pub(crate) struct Answer {
    pub(crate) fields: HeaderMap,
    pub(crate) body: Bytes,
    /// The timer or reminder is not to fire again.
    pub(crate) cancels: bool,
}

/// Why the app did not respond to a turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Unanswered {
    Failed(Problem),
    /// The turn has not begun, because its lease ended first.
    TooLate,
}

impl From<Problem> for Unanswered {
    fn from(problem: Problem) -> Self {
        Self::Failed(problem)
    }
}

/// Why there is no response of the app over HTTP.
#[derive(Debug)]
pub(crate) struct NoAnswer {
    pub(crate) why: String,
    /// Nothing was sent to the app.
    is_unprocessed: bool,
}

impl NoAnswer {
    fn new(why: &dyn std::fmt::Display) -> Self {
        Self { why: why.to_string(), is_unprocessed: false }
    }
}

/// An app that hosts actors.
#[tonic::async_trait]
pub(crate) trait AppSide: Send + Sync {
    /// Runs a turn to its end. The turn must not begin after the end of the lease.
    ///
    /// # Errors
    /// [`Unanswered::Failed`] with the text of the app, or [`Unanswered::TooLate`].
    async fn run(&self, turn: Turn, lease: TurnLease) -> Result<Answer, Unanswered>;

    /// Has the app deactivate an actor.
    async fn deactivate(&self, actor: &Actor);
}

/// An app that is called over HTTP.
pub(crate) struct HttpApp {
    pub(crate) loopback: Arc<dyn Loopback>,
    pub(crate) clock: Clock,
    pub(crate) message_bytes: usize,
}

/// The path of an actor, in the API and at the app.
pub(crate) fn path_of(actor: &Actor) -> String {
    let part = |text: &str| utf8_percent_encode(text, PART).to_string();
    format!("/actors/{}/{}", part(&actor.actor_type), part(&actor.id))
}

/// A name as the next part of a path; empty for an empty name.
pub(crate) fn segment(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!("/{}", utf8_percent_encode(name, PART)) }
}

/// The path of a method of an actor, with its query.
pub(crate) fn method_path(actor: &Actor, name: &str, query: Option<&str>) -> String {
    let path = format!("{}/method/{}", path_of(actor), utf8_percent_encode(name, PATH));
    match query {
        Some(query) => format!("{path}?{query}"),
        None => path,
    }
}

impl HttpApp {
    /// Sends a request to the app, under a lease if it is a turn. Returns status, fields and whole
    /// body of the response.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        fields: HeaderMap,
        body: Bytes,
        turn: Option<TurnLease>,
    ) -> Result<(StatusCode, HeaderMap, Bytes), NoAnswer> {
        let request = Request::builder().method(method).uri(format!("http://app{path}"));
        let mut request =
            request.body(Body::new(Full::new(body))).map_err(|error| NoAnswer::new(&error))?;
        *request.headers_mut() = fields;
        RuntimeRequest { to: RuntimeTarget::App, turn, ..RuntimeRequest::default() }
            .write(request.headers_mut());
        let answer = self.loopback.call(request).await.map_err(|error| NoAnswer::new(&error))?;
        let (head, body) = answer.into_parts();
        let whole = Limited::new(body, self.message_bytes).collect().await;
        let body = whole.map_err(|error| NoAnswer::new(&error))?.to_bytes();
        if head.headers.contains_key(ERROR_FIELD) {
            let is_unprocessed = head.headers.contains_key(UNPROCESSED_FIELD);
            return Err(NoAnswer { why: message_of(&body), is_unprocessed });
        }
        Ok((head.status, head.headers, body))
    }
}

/// The message in the data loop's envelope of an error.
fn message_of(body: &[u8]) -> String {
    let envelope = serde_json::from_slice::<serde_json::Value>(body).ok();
    let message = envelope.as_ref().and_then(|envelope| envelope.get("message")?.as_str());
    message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned)
}

#[tonic::async_trait]
impl AppSide for HttpApp {
    async fn run(&self, turn: Turn, lease: TurnLease) -> Result<Answer, Unanswered> {
        let Turn { actor, what, mut fields, body } = turn;
        let is_event = !matches!(what, TurnKind::Method { .. });
        let (path, body) = match &what {
            TurnKind::Method { name, query } => (method_path(&actor, name, query.as_deref()), body),
            TurnKind::Timer { name, event } => {
                (event_path(&actor, "timer", name), event.document(true))
            }
            TurnKind::Reminder { name, event } => {
                (event_path(&actor, "remind", name), event.document(false))
            }
        };
        if is_event {
            fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let asked = self.ask(Method::PUT, &path, fields, body, Some(lease)).await;
        let (status, fields, body) = asked.map_err(|none| {
            if none.is_unprocessed && self.clock.now() >= lease.until {
                return Unanswered::TooLate;
            }
            Problem::invoke(&none.why).into()
        })?;
        match status.as_u16() {
            200..=299 => {
                let cancels = fields.get(CANCEL).is_some_and(|value| value == "true");
                Ok(Answer { fields, body, cancels: cancels && is_event })
            }
            404 => {
                let Actor { actor_type, id } = &actor;
                let method = match &what {
                    TurnKind::Method { name, .. } => name.clone(),
                    TurnKind::Timer { name, .. } => format!("timer/{name}"),
                    TurnKind::Reminder { name, .. } => format!("remind/{name}"),
                };
                let text =
                    format!("actor method not found: actors/{actor_type}/{id}/method/{method}");
                Err(Problem::invoke(&text).into())
            }
            status => {
                let words = String::from_utf8_lossy(&body);
                let text = format!("error from actor service: ({status}) {words}");
                Err(Problem::invoke(&text).into())
            }
        }
    }

    async fn deactivate(&self, actor: &Actor) {
        let (path, nothing) = (path_of(actor), HeaderMap::new());
        let failure = match self.ask(Method::DELETE, &path, nothing, Bytes::new(), None).await {
            Ok((status, _, _)) if status.is_success() => return,
            Ok((status, _, _)) => format!("it answered {status}"),
            Err(none) => none.why,
        };
        let (kind, id) = (&actor.actor_type, &actor.id);
        tracing::warn!(%kind, %id, reason = failure, "the app failed to deactivate an actor");
    }
}

fn event_path(actor: &Actor, kind: &str, name: &str) -> String {
    format!("{}/method/{kind}{}", path_of(actor), segment(name))
}

/// The app does not host actors.
pub(crate) fn no_app() -> Problem {
    Problem::new(ErrorCode::ActorNoAppChannel, "app channel is not initialized")
}

#[cfg(test)]
mod tests;
