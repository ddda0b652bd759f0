//! The API of actors over HTTP: `/v1.0/actors/TYPE/ID/…`.

use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use tollway_placement::Actor;
use tollway_state::Entry;
use tonic::body::Body;

use super::Actors;
use super::call::{Call, elsewhere};
use super::names::{Asked, Work, asked};
use super::problem::Problem;
use crate::held::Room;
use crate::rest::{empty, not_whole};
use crate::state::{Step, expiry};

/// When an entry of an actor's state will be gone.
const TTL_END: HeaderName = HeaderName::from_static("metadata.ttlexpiretime");

impl Actors {
    /// Answers what the app asks about actors; gives anything else back.
    pub(crate) async fn answer(
        &self,
        room: &Room,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Request<Incoming>> {
        let (actor, asked) = match asked(request.method(), request.uri().path()) {
            None => return Err(request),
            Some(Err(problem)) => return Ok(problem.response()),
            Some(Ok(asked)) => asked,
        };
        if matches!(asked, Asked::Host(Work::ListReminders | Work::DeleteReminders)) {
            return Err(request);
        }
        let (head, body) = request.into_parts();
        let held = match room.whole(body).await {
            Ok(held) => held,
            Err(why) => return Ok(not_whole(why, "a request about an actor", room)),
        };
        let answered = match asked {
            Asked::Transact => self.change_state(&actor, &held.bytes).await,
            Asked::GetState(key) => self.get_state(&actor, &key).await.map(entry_answer),
            Asked::PutTimer(name) => self.put_timer(&actor, &name, &held.bytes),
            Asked::DeleteTimer(name) => {
                self.delete_timer(&actor, &name).map(|()| empty(StatusCode::NO_CONTENT))
            }
            Asked::Host(work) => {
                let work = with_query(work, head.uri.query());
                let (fields, body) = (head.headers, held.bytes.clone().into());
                self.ask(Call { actor, work, fields, body }).await
            }
        };
        Ok(answered.unwrap_or_else(|problem| problem.response()))
    }

    /// Answers the call of another sidecar.
    pub(crate) async fn answer_inbound(
        &self,
        room: &Room,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let (actor, asked) = match asked(request.method(), request.uri().path()) {
            Some(Ok(asked)) => asked,
            Some(Err(problem)) => return problem.response(),
            None => return self.answer_of_type(&request).await,
        };
        let Asked::Host(work) = asked else { return elsewhere() };
        let work = with_query(work, request.uri().query());
        let (head, body) = request.into_parts();
        match room.whole(body).await {
            Ok(held) => {
                let (fields, body) = (head.headers, held.bytes.clone().into());
                self.answer_call(Call { actor, work, fields, body }).await
            }
            Err(why) => not_whole(why, "a call of an actor", room),
        }
    }

    async fn change_state(&self, actor: &Actor, body: &[u8]) -> Result<Response<Body>, Problem> {
        let steps: Vec<Step<'_>> =
            serde_json::from_slice(body).map_err(|error| Problem::malformed(&error.to_string()))?;
        let no_metadata = std::collections::HashMap::new();
        let mut ops = Vec::with_capacity(steps.len());
        for step in steps {
            let op = match step.operation.as_str() {
                "upsert" => step.request.into_set(&no_metadata),
                "delete" => step.request.into_delete(),
                other => Err(format!("operation type {other:?} is neither upsert nor delete")),
            };
            ops.push(op.map_err(|why| Problem::malformed(&why))?);
        }
        self.transact(actor, ops).await?;
        Ok(empty(StatusCode::NO_CONTENT))
    }
}

fn with_query(work: Work, query: Option<&str>) -> Work {
    match (work, query) {
        (Work::Method { name, .. }, Some(query)) => {
            Work::Method { name, query: Some(query.to_owned()) }
        }
        (work, _) => work,
    }
}

fn entry_answer(found: Option<Entry>) -> Response<Body> {
    let Some(entry) = found else { return empty(StatusCode::NO_CONTENT) };
    let end = expiry(&entry).and_then(|end| HeaderValue::try_from(end).ok());
    let mut answer = Response::new(Body::new(Full::from(entry.value)));
    let fields = answer.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(end) = end {
        fields.insert(TTL_END, end);
    }
    answer
}
