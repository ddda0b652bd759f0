//! Timers: they are in the memory of the sidecar that hosts their actor. They end when the actor is
//! deactivated or moves. One of an actor that is not active makes it active when it fires.

use bytes::Bytes;
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::sync::Arc;
use tollway_actors::placement::{Actor, Epoch};
use tollway_actors::schedule::{FailurePolicy, Field, TermProblem, Terms, TermsError};
use tollway_model::{ErrorCode, chain};
use tollway_wire::dapr::proto::runtime::v1::{
    ActorTimer, GetActorTimerRequest, GetActorTimerResponse, ListActorTimersRequest,
    ListActorTimersResponse, NamedActorTimer, RegisterActorTimerRequest,
    UnregisterActorTimerRequest,
};
use tonic::{Response as Reply, Status};

use super::alarms::{Alarm, Alarms};
use super::app::{Data, Event, no_app};
use super::call::{Attempt, Call};
use super::json_object;
use super::names::{Work, actor};
use super::problem::Problem;
use super::{Actors, Hosting};
use crate::rest::empty;

/// Most timers of the actors of one app.
pub(crate) const ACTOR_TIMERS: usize = 100_000;

/// A timer in the form in which it is registered.
#[derive(Default, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase")]
struct Document<'a> {
    #[serde(default)]
    due_time: String,
    #[serde(default)]
    period: String,
    #[serde(default)]
    ttl: String,
    #[serde(default)]
    callback: String,
    #[serde(
        default,
        borrow,
        deserialize_with = "json_object::given",
        skip_serializing_if = "Option::is_none"
    )]
    data: Option<&'a RawValue>,
}

impl Actors {
    /// Registers a timer of an actor of this host, which need not be active.
    pub(super) fn put_timer_here(&self, call: &Call, name: &str) -> Attempt {
        let Some(hosting) = self.hosting() else { return Attempt::Elsewhere };
        let Some(epoch) = hosting.host.timer_epoch(&call.actor) else { return Attempt::Elsewhere };
        match self.register_timer(&hosting, epoch, call, name) {
            Ok(()) => Attempt::Done(empty(StatusCode::NO_CONTENT)),
            Err(problem) => Attempt::Failed(problem),
        }
    }

    /// Removes a timer of an actor of this host. Succeeds if there is none.
    pub(super) fn delete_timer_here(&self, call: &Call, name: &str) -> Attempt {
        let Some(hosting) = self.hosting() else { return Attempt::Elsewhere };
        if hosting.host.epoch(&call.actor).is_none() {
            return Attempt::Elsewhere;
        }
        hosting.timers.remove(&(call.actor.clone(), Arc::from(name)));
        Attempt::Done(empty(StatusCode::NO_CONTENT))
    }

    fn timers(&self) -> Result<Arc<Alarms>, Problem> {
        self.hosting().map(|hosting| hosting.timers).ok_or_else(no_app)
    }

    fn register_timer(
        &self,
        hosting: &Hosting,
        epoch: Epoch,
        call: &Call,
        name: &str,
    ) -> Result<(), Problem> {
        let document: Document<'_> = json_object::read(&call.body)?;
        let data = document.data.map(|data| Data(Bytes::copy_from_slice(data.get().as_bytes())));
        let Document { due_time, period, ttl, callback, .. } = document;
        if self.is_ending() {
            let text = "actor runtime is closed";
            return Err(Problem::new(ErrorCode::ActorRuntimeClosed, text));
        }
        let Hosting { host, timers, .. } = hosting;
        let terms = Terms::new(&due_time, &period, &ttl).read(self.clock.wall());
        let schedule = terms.map_err(|error| not_created(&reason(&error)))?;
        if timers.len() >= ACTOR_TIMERS {
            timers.remove_of_former_epochs(host);
        }
        if timers.len() >= ACTOR_TIMERS {
            let text = format!("the actors of this app have {ACTOR_TIMERS} timers already");
            return Err(not_created(&text));
        }
        let event = Event { due_time, period, callback, data };
        // A firing that fails counts as one.
        let alarm = Alarm { event, ttl, policy: FailurePolicy::Drop, version: epoch.0 };
        timers.insert((call.actor.clone(), Arc::from(name)), schedule, alarm);
        Ok(())
    }

    pub(crate) async fn rpc_register_timer(
        &self,
        request: RegisterActorTimerRequest,
    ) -> Result<Reply<()>, Status> {
        let RegisterActorTimerRequest { actor_type, actor_id, name, .. } = request;
        let data = (!request.data.is_empty()).then(|| Data::of_bytes(&request.data));
        let document = Document {
            due_time: request.due_time,
            period: request.period,
            ttl: request.ttl,
            callback: request.callback,
            data: data.as_ref().and_then(|data| serde_json::from_slice(&data.0).ok()),
        };
        let body = serde_json::to_vec(&document).unwrap_or_default();
        let work = Work::PutTimer(name).checked().map_err(|problem| problem.status())?;
        self.rpc_ask(&actor_type, &actor_id, work, body.into()).await?;
        Ok(Reply::new(()))
    }

    pub(crate) async fn rpc_unregister_timer(
        &self,
        request: UnregisterActorTimerRequest,
    ) -> Result<Reply<()>, Status> {
        let UnregisterActorTimerRequest { actor_type, actor_id, name } = request;
        self.rpc_ask(&actor_type, &actor_id, Work::DeleteTimer(name), Bytes::new()).await?;
        Ok(Reply::new(()))
    }

    pub(crate) fn rpc_get_timer(
        &self,
        request: GetActorTimerRequest,
    ) -> Result<Reply<GetActorTimerResponse>, Status> {
        let GetActorTimerRequest { actor_type, actor_id, name } = request;
        let found = actor(&actor_type, &actor_id)
            .and_then(|actor| Ok(self.timers()?.get(&(actor, Arc::from(name.as_str())))));
        let found = found.map_err(|problem| problem.status())?;
        let Some(alarm) = found else {
            return Err(Status::not_found(format!("the actor has no timer {name:?}")));
        };
        let ActorTimer { due_time, period, ttl, callback, data, .. } = timer(&alarm);
        Ok(Reply::new(GetActorTimerResponse {
            actor_type,
            actor_id,
            due_time,
            period,
            ttl,
            callback,
            data,
        }))
    }

    pub(crate) fn rpc_list_timers(
        &self,
        request: ListActorTimersRequest,
    ) -> Result<Reply<ListActorTimersResponse>, Status> {
        let ListActorTimersRequest { actor_type, actor_id } = request;
        let found = actor(&actor_type, &actor_id).and_then(|actor| Ok(self.timers()?.of(&actor)));
        let found = found.map_err(|problem| problem.status())?;
        let named = |(name, alarm): (Arc<str>, Arc<Alarm>)| NamedActorTimer {
            name: name.to_string(),
            timer: Some(ActorTimer {
                actor_type: actor_type.clone(),
                actor_id: actor_id.clone(),
                ..timer(&alarm)
            }),
        };
        Ok(Reply::new(ListActorTimersResponse { timers: found.into_iter().map(named).collect() }))
    }
}

fn not_created(why: &str) -> Problem {
    Problem::new(ErrorCode::ActorTimerCreate, format!("error creating actor timer: {why}"))
}

/// The app does not offer the type of the actor.
pub(super) fn not_registered(Actor { actor_type, id }: &Actor) -> Problem {
    not_created(&format!(
        "can't create timer for actor {actor_type}||{id}: actor type not registered"
    ))
}

/// What is wrong with the terms of a timer, in Dapr's words where it has some.
fn reason(error: &TermsError) -> String {
    let TermsError { field, given, problem } = error;
    let field = match field {
        Field::Period => "invalid timer period: ",
        Field::DueTime => "error parsing timer due time: ",
        Field::Ttl if *problem == TermProblem::Over => "timer has already expired: ",
        Field::Ttl => "error parsing timer TTL: ",
        Field::Interval => "",
    };
    match (error.field, problem) {
        (Field::Period, TermProblem::Unreadable) => {
            format!("{field}parse error: unsupported duration format: {given}")
        }
        (_, TermProblem::Unreadable) => {
            format!("{field}unsupported time/duration format: {given}")
        }
        (Field::Period, TermProblem::RepetitionCount) => format!("{field}has zero repetitions"),
        (_, TermProblem::Repetitions) => format!("{field}repetitions are not allowed"),
        _ => format!("{field}{}", chain(error)),
    }
}

/// A timer as it was registered. Empty fields are left out.
fn timer(alarm: &Alarm) -> ActorTimer {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let Event { due_time, period, callback, data } = &alarm.event;
    ActorTimer {
        actor_type: String::new(),
        actor_id: String::new(),
        due_time: given(due_time),
        period: given(period),
        ttl: given(&alarm.ttl),
        callback: given(callback),
        data: data.as_ref().map(Data::any),
    }
}
