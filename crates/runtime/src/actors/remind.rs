//! The API of reminders. The host of the actor carries the requests out.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde::{Deserialize, Serialize};
use tollway_model::ErrorCode;
use tollway_proxy::{ActorCaller, ERROR_FIELD};
use tollway_wire::ActorHost;
use tollway_wire::dapr::proto::runtime::v1::{
    ActorReminder, GetActorReminderRequest, GetActorReminderResponse, ListActorRemindersRequest,
    ListActorRemindersResponse, NamedActorReminder, RegisterActorReminderRequest,
    UnregisterActorReminderRequest, UnregisterActorRemindersByTypeRequest,
    UnregisterActorRemindersByTypeResponse,
};
use tonic::body::Body;
use tonic::{Response as Reply, Status};

use super::Actors;
use super::app::{Data, segment};
use super::call::{Attempt, Call, at, elsewhere};
use super::json_object;
use super::location::{OWNERS_WITHIN, reminders_not_hosted};
use super::names::{Work, actor};
use super::owners::KnownOwners;
use super::problem::Problem;
use super::reminder_document::{ReminderRecord, document, message, policy_document, registration};
use super::reminders::{Refused, Reminders};
use super::rpc::envelope_status;
use super::timers::not_registered;
use crate::rest::empty;
use crate::routes::{self, Endpoint, From};

/// Largest response of another sidecar, in bytes.
const ANSWER_BYTES: usize = 64 << 20;

fn json(of: &impl Serialize) -> Response<Body> {
    let text = json_object::compact(&serde_json::to_vec(of).unwrap_or_default());
    let mut answer = Response::new(Body::new(Full::from(text)));
    let kind = hyper::header::HeaderValue::from_static("application/json");
    answer.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    answer
}

fn not_found(name: &str) -> Problem {
    let text = format!("actor reminder not found: {name}");
    Problem::new(ErrorCode::ActorReminderNotFound, text)
}

impl Actors {
    /// Asks the host of an actor. Only apps that offer the type may ask for timers and reminders.
    pub(crate) async fn ask(&self, call: Call) -> Result<Response<Body>, Problem> {
        let actor_type = &call.actor.actor_type;
        let (code, what) = match &call.work {
            Work::Method { .. } => return self.invoke(call).await,
            Work::PutTimer(_) => {
                self.check_offered(actor_type, || not_registered(&call.actor)).await?;
                (ErrorCode::ActorTimerCreate, "creating actor timer")
            }
            Work::DeleteTimer(_) => {
                let offered = self.check_offered(actor_type, || not_registered(&call.actor)).await;
                // Nothing is to be deleted.
                return match offered {
                    Ok(()) => self.invoke(call).await,
                    Err(_) => Ok(empty(StatusCode::NO_CONTENT)),
                };
            }
            Work::PutReminder(_) => {
                self.check_offered(actor_type, reminders_not_hosted).await?;
                (ErrorCode::ActorReminderCreate, "creating actor reminder")
            }
            Work::GetReminder(_) | Work::ListReminders => {
                self.check_offered(actor_type, reminders_not_hosted).await?;
                (ErrorCode::ActorReminderGet, "getting actor reminder")
            }
            Work::DeleteReminder(_) | Work::DeleteReminders => {
                self.check_offered(actor_type, reminders_not_hosted).await?;
                (ErrorCode::ActorReminderDelete, "deleting actor reminder")
            }
        };
        let asked = self.invoke(call).await;
        asked.map_err(|problem| {
            // The host serves reminders as Dapr's scheduler does: without it the operation fails.
            let is_away =
                matches!(problem.code, ErrorCode::ActorUnplaced | ErrorCode::ActorNoPlacement);
            if !is_away {
                return problem;
            }
            Problem::new(code, format!("error {what}: {}", problem.text))
        })
    }

    /// Whether the app offers a type, once that is known.
    async fn check_offered(
        &self,
        actor_type: &str,
        refused: impl FnOnce() -> Problem,
    ) -> Result<(), Problem> {
        self.until_types_known().await;
        if self.offers(actor_type) {
            return Ok(());
        }
        let taken = self.hosting().and_then(|hosting| hosting.host.refusal(actor_type));
        Err(taken.unwrap_or_else(refused))
    }

    /// Handles a request about the reminders of an actor of this host.
    pub(super) async fn remind_here(&self, call: &Call) -> Attempt {
        let Some(hosting) = self.hosting() else { return Attempt::Elsewhere };
        match done(&hosting.reminders, call).await {
            Ok(answer) => Attempt::Done(answer),
            Err(Refused::Problem(problem)) => Attempt::Failed(problem),
            Err(Refused::Elsewhere) => Attempt::Elsewhere,
        }
    }

    /// Responds to another sidecar that lists the reminders of a type at this host.
    pub(super) async fn answer_of_type(
        &self,
        method: &Method,
        path: &str,
        caller: Option<&ActorCaller>,
    ) -> Response<Body> {
        let actor_type = match routes::find(From::Mesh, method, path) {
            Some((Endpoint::ListRemindersOfType | Endpoint::DeleteRemindersOfType, parts)) => {
                parts.concat()
            }
            _ => return elsewhere(),
        };
        let actor_type = percent_encoding::percent_decode_str(&actor_type).decode_utf8_lossy();
        if let Err(problem) = self.may_remind(&actor_type, caller).await {
            return problem.response();
        }
        match self.of_type_here(method, &actor_type).await {
            Ok(answer) => answer,
            Err(Refused::Problem(problem)) => problem.response(),
            Err(Refused::Elsewhere) => elsewhere(),
        }
    }

    async fn of_type_here(
        &self,
        method: &Method,
        actor_type: &str,
    ) -> Result<Response<Body>, Refused> {
        let reminders = self.hosting().ok_or(Refused::Elsewhere)?.reminders;
        if *method == Method::DELETE {
            reminders.delete_of_type(actor_type).await?;
            return Ok(empty(StatusCode::NO_CONTENT));
        }
        let found = reminders.of_type(actor_type);
        let documents = found.iter().map(|((actor, name), alarm)| document(name, actor, alarm));
        Ok(json(&documents.collect::<Vec<_>>()))
    }

    /// The responses of all hosts of a type, this one included.
    async fn of_type(&self, method: Method, actor_type: &str) -> Result<Vec<Bytes>, Problem> {
        let failed = |why: &str| {
            Problem::new(
                ErrorCode::ActorReminderGet,
                format!("error getting actor reminder: {why}"),
            )
        };
        let kind: Arc<str> = Arc::from(actor_type);
        let mut known = self.directory.follow(&kind).ok_or_else(|| failed("too many types"))?;
        let owners = async {
            let owners = known.wait_for(|known| !matches!(known, KnownOwners::Unknown)).await;
            owners.map(|known| known.clone()).ok()
        };
        let owners = tokio::time::timeout(OWNERS_WITHIN, owners).await;
        let hosts: BTreeSet<ActorHost> = match owners {
            Ok(Some(KnownOwners::Owners(owners))) => {
                owners.shards.iter().flatten().cloned().collect()
            }
            Ok(Some(KnownOwners::NotOffered)) => return Ok(Vec::new()),
            Ok(Some(KnownOwners::Unknown) | None) | Err(_) => {
                return Err(failed("the control plane has not said who hosts the type"));
            }
        };
        let mut answers = Vec::new();
        for host in hosts {
            let answer = if host == self.me {
                match self.of_type_here(&method, actor_type).await {
                    Ok(answer) => answer,
                    Err(Refused::Problem(problem)) => return Err(problem),
                    Err(Refused::Elsewhere) => return Err(failed("the type has just moved")),
                }
            } else {
                let url = format!("http://sidecar/v1.0/actor-reminders{}", segment(actor_type));
                let request = Request::builder().method(method.clone()).uri(url);
                let (asked, none) = (at(&host), HeaderMap::new());
                match self.send(&host.service, &asked, request, none, Bytes::new()).await {
                    Attempt::Done(answer) => answer,
                    Attempt::Failed(problem) => return Err(problem),
                    Attempt::Elsewhere => return Err(failed("a host cannot be reached")),
                }
            };
            let is_failed = answer.headers().contains_key(ERROR_FIELD);
            let whole = http_body_util::Limited::new(answer.into_body(), ANSWER_BYTES).collect();
            let body = whole.await.map_err(|error| failed(&error.to_string()))?.to_bytes();
            if is_failed {
                return Err(failed(&String::from_utf8_lossy(&body)));
            }
            answers.push(body);
        }
        Ok(answers)
    }

    /// Asks the host of an actor for a client over gRPC. Returns the body of the response.
    pub(super) async fn rpc_ask(
        &self,
        actor_type: &str,
        actor_id: &str,
        work: Work,
        body: Bytes,
    ) -> Result<Bytes, Status> {
        let actor = actor(actor_type, actor_id).map_err(|problem| problem.status())?;
        let call = Call { actor, work, fields: HeaderMap::new(), body, caller: None };
        let answer = self.ask(call).await.map_err(|problem| problem.status())?;
        let (head, body) = answer.into_parts();
        let whole = http_body_util::Limited::new(body, ANSWER_BYTES).collect().await;
        let body = whole.map_err(|error| Status::internal(error.to_string()))?.to_bytes();
        match head.headers.get(ERROR_FIELD) {
            Some(word) => Err(envelope_status(word.as_bytes(), &body)),
            None => Ok(body),
        }
    }

    pub(crate) async fn rpc_register_reminder(
        &self,
        request: RegisterActorReminderRequest,
    ) -> Result<Reply<()>, Status> {
        let data = (!request.data.is_empty()).then(|| Data::of_bytes(&request.data));
        let policy = request.failure_policy.and_then(policy_document);
        let mut body = serde_json::json!({
            "dueTime": request.due_time,
            "period": request.period,
            "ttl": request.ttl,
            "overwrite": request.overwrite,
            "failurePolicy": policy,
        });
        // `null` would be data.
        if let Some(data) = data.and_then(|data| serde_json::from_slice(&data.0).ok()) {
            body["data"] = data;
        }
        let work = Work::PutReminder(request.name).checked();
        let work = work.map_err(|problem| problem.status())?;
        let body = body.to_string().into();
        self.rpc_ask(&request.actor_type, &request.actor_id, work, body).await?;
        Ok(Reply::new(()))
    }

    pub(crate) async fn rpc_unregister_reminder(
        &self,
        request: UnregisterActorReminderRequest,
    ) -> Result<Reply<()>, Status> {
        let UnregisterActorReminderRequest { actor_type, actor_id, name } = request;
        self.rpc_ask(&actor_type, &actor_id, Work::DeleteReminder(name), Bytes::new()).await?;
        Ok(Reply::new(()))
    }

    pub(crate) async fn rpc_unregister_reminders_by_type(
        &self,
        request: UnregisterActorRemindersByTypeRequest,
    ) -> Result<Reply<UnregisterActorRemindersByTypeResponse>, Status> {
        let actor_type = request.actor_type;
        match request.actor_id {
            Some(id) => {
                self.rpc_ask(&actor_type, &id, Work::DeleteReminders, Bytes::new()).await?;
            }
            None => {
                let offered = self.check_offered(&actor_type, reminders_not_hosted).await;
                offered.map_err(|problem| problem.status())?;
                let deleted = self.of_type(Method::DELETE, &actor_type).await;
                deleted.map_err(|problem| problem.status())?;
            }
        }
        Ok(Reply::new(UnregisterActorRemindersByTypeResponse {}))
    }

    pub(crate) async fn rpc_get_reminder(
        &self,
        request: GetActorReminderRequest,
    ) -> Result<Reply<GetActorReminderResponse>, Status> {
        let GetActorReminderRequest { actor_type, actor_id, name } = request;
        let work = Work::GetReminder(name);
        let body = self.rpc_ask(&actor_type, &actor_id, work, Bytes::new()).await?;
        let ActorReminder { actor_type, actor_id, due_time, period, data, ttl } =
            message(read::<ReminderRecord>(&body)?);
        let answer = GetActorReminderResponse { actor_type, actor_id, due_time, period, data, ttl };
        Ok(Reply::new(answer))
    }

    pub(crate) async fn rpc_list_reminders(
        &self,
        request: ListActorRemindersRequest,
    ) -> Result<Reply<ListActorRemindersResponse>, Status> {
        let ListActorRemindersRequest { actor_type, actor_id } = request;
        let bodies = match actor_id {
            Some(id) => {
                vec![self.rpc_ask(&actor_type, &id, Work::ListReminders, Bytes::new()).await?]
            }
            None => {
                let offered = self.check_offered(&actor_type, reminders_not_hosted).await;
                offered.map_err(|problem| problem.status())?;
                let found = self.of_type(Method::GET, &actor_type).await;
                found.map_err(|problem| problem.status())?
            }
        };
        let mut reminders = Vec::new();
        for body in bodies {
            let named = |record: ReminderRecord| {
                let name = record.name.clone();
                NamedActorReminder { name, reminder: Some(message(record)) }
            };
            reminders.extend(read::<Vec<ReminderRecord>>(&body)?.into_iter().map(named));
        }
        Ok(Reply::new(ListActorRemindersResponse { reminders }))
    }
}

async fn done(reminders: &Reminders, call: &Call) -> Result<Response<Body>, Refused> {
    let actor = &call.actor;
    match &call.work {
        Work::PutReminder(name) => reminders.put(actor, name, registration(&call.body)?).await?,
        Work::GetReminder(name) => {
            let found = reminders.get(actor, name).await?;
            let alarm = found.ok_or_else(|| not_found(name))?;
            return Ok(json(&document("", actor, &alarm)));
        }
        Work::DeleteReminder(name) => reminders.delete(actor, name).await?,
        Work::ListReminders => {
            let found = reminders.of(actor).await?;
            let documents = found.iter().map(|(name, alarm)| document(name, actor, alarm));
            return Ok(json(&documents.collect::<Vec<_>>()));
        }
        Work::DeleteReminders => reminders.delete_of(actor).await?,
        Work::Method { .. } | Work::PutTimer(_) | Work::DeleteTimer(_) => {
            return Err(Refused::Elsewhere);
        }
    }
    Ok(empty(StatusCode::NO_CONTENT))
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Status> {
    serde_json::from_slice(body).map_err(|error| Status::internal(error.to_string()))
}
