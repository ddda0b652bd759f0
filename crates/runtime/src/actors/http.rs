//! The API of actors over HTTP: `/v1.0/actors/TYPE/ID/…`.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use tollway_actors::placement::Actor;
use tollway_model::ErrorCode;
use tollway_proxy::{ActorCaller, ActorLookup};
use tollway_state::Entry;
use tonic::body::Body;

use super::Actors;
use super::call::{Call, elsewhere};
use super::names::{ActorRequest, Work, asked};
use super::problem::Problem;
use crate::body_collector::{BodyCollector, CollectError};
use crate::go_json;
use crate::rest::{STREAM_TOO_LARGE, empty, not_collected};
use crate::routes::From;
use crate::state::{Step, expiry};

/// The time at which an entry of an actor's state expires.
const TTL_END: HeaderName = HeaderName::from_static("metadata.ttlexpiretime");

impl Actors {
    /// Responds to a request of the app about actors.
    ///
    /// # Errors
    /// Returns every other request unchanged.
    pub(crate) async fn answer(
        &self,
        bodies: &BodyCollector,
        request: Request<Body>,
    ) -> Result<Response<Body>, Request<Body>> {
        let (actor, asked) = match asked(From::App, request.method(), request.uri().path()) {
            None => return Err(request),
            Some(Err(problem)) => return Ok(problem.response()),
            Some(Ok(asked)) => asked,
        };
        let (head, body) = request.into_parts();
        let mut held = match bodies.collect(body).await {
            Ok(held) => held,
            Err(CollectError::TooLarge)
                if bodies.is_in_daprds_place()
                    && matches!(asked, ActorRequest::Host(Work::Method { .. })) =>
            {
                let text = format!("invalid request: failed to read body: {STREAM_TOO_LARGE}");
                return Ok(Problem::new(ErrorCode::ActorBadName, text).response());
            }
            Err(why) => return Ok(not_collected(why, "a request about an actor", bodies)),
        };
        let answered = match asked {
            ActorRequest::Transact => self.change_state(&actor, &held.bytes).await,
            ActorRequest::GetState(key) => self.get_state(&actor, &key).await.map(entry_answer),
            ActorRequest::Host(work) => {
                let work = with_query(work, head.uri.query());
                let (fields, body) = (head.headers, std::mem::take(&mut held.bytes).into());
                let asked = self.ask(Call { actor, work, fields, body, caller: None }).await;
                asked.map_err(|problem| match self.lookup_failed(&problem) {
                    Some(text) => Problem::invoke(&text),
                    None => problem,
                })
            }
        };
        Ok(answered.unwrap_or_else(|problem| problem.response()))
    }

    /// Responds to the call of another sidecar.
    pub(crate) async fn answer_inbound(
        &self,
        bodies: &BodyCollector,
        request: Request<Body>,
    ) -> Response<Body> {
        let (actor, asked) = match asked(From::Mesh, request.method(), request.uri().path()) {
            Some(Ok(asked)) => asked,
            Some(Err(problem)) => return problem.response(),
            None => {
                let (mut head, _) = request.into_parts();
                let caller = ActorCaller::take(&mut head.headers);
                return self.answer_of_type(&head.method, head.uri.path(), caller.as_ref()).await;
            }
        };
        let ActorRequest::Host(work) = asked else { return elsewhere() };
        let work = with_query(work, request.uri().query());
        let (mut head, body) = request.into_parts();
        let lookup = ActorLookup::take(&mut head.headers);
        let caller = ActorCaller::take(&mut head.headers);
        let mut call = Call { actor, work, fields: head.headers, body: Bytes::new(), caller };
        if let Err(refused) = self.admit_call(lookup, &call).await {
            return refused;
        }
        let bodies = match &call.caller {
            Some(caller) => bodies.of(&caller.spiffe.to_string()),
            None => bodies.clone(),
        };
        match bodies.collect(body).await {
            Ok(mut held) => {
                call.body = std::mem::take(&mut held.bytes).into();
                let answer = self.answer_call(lookup, call).await;
                drop(held);
                answer
            }
            Err(why) => not_collected(why, "a call of an actor", &bodies),
        }
    }

    async fn change_state(&self, actor: &Actor, body: &[u8]) -> Result<Response<Body>, Problem> {
        let steps: Vec<Step<'_>> =
            go_json::from_slice(body).map_err(|error| Problem::malformed(&error.to_string()))?;
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
