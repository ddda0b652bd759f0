//! Timers: they are in the memory of the host's sidecar while their actor is active.

use bytes::Bytes;
use hyper::{Response, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use tollway_actors::placement::Actor;
use tollway_actors::schedule::{FailurePolicy, Terms};
use tollway_model::{ErrorCode, chain};
use tollway_wire::dapr::proto::runtime::v1::{
    ActorTimer, GetActorTimerRequest, GetActorTimerResponse, ListActorTimersRequest,
    ListActorTimersResponse, NamedActorTimer, RegisterActorTimerRequest,
    UnregisterActorTimerRequest,
};
use tonic::body::Body;
use tonic::{Response as Reply, Status};

use super::Actors;
use super::alarms::{Alarm, Alarms};
use super::app::{Data, Event, no_app};
use super::json_object;
use super::names::{actor, timer_name};
use super::problem::Problem;
use crate::rest::empty;

/// Most timers of the actors of one app.
pub(crate) const ACTOR_TIMERS: usize = 100_000;

/// The body of a request over HTTP.
#[derive(Default, Deserialize)]
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
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
}

impl Actors {
    /// Registers a timer over HTTP.
    pub(super) fn put_timer(
        &self,
        actor: &Actor,
        name: &str,
        body: &[u8],
    ) -> Result<Response<Body>, Problem> {
        let document: Document<'_> = json_object::read(body)?;
        let data = document.data.map(|data| Data(Bytes::copy_from_slice(data.get().as_bytes())));
        let Document { due_time, period, ttl, callback, .. } = document;
        let event = Event { due_time, period, callback, data };
        self.register_timer(actor, name, event, ttl)?;
        Ok(empty(StatusCode::NO_CONTENT))
    }

    /// Removes a timer. Succeeds if there is none.
    pub(super) fn delete_timer(&self, actor: &Actor, name: &str) -> Result<(), Problem> {
        let key = (actor.clone(), Arc::from(name));
        self.timers()?.remove(&key);
        Ok(())
    }

    fn timers(&self) -> Result<Arc<Alarms>, Problem> {
        self.hosting().map(|hosting| hosting.timers).ok_or_else(no_app)
    }

    fn register_timer(
        &self,
        actor: &Actor,
        name: &str,
        event: Event,
        ttl: String,
    ) -> Result<(), Problem> {
        let failed = |why: String| {
            let text = format!("error creating actor timer: {why}");
            Problem::new(ErrorCode::ActorTimerCreate, text)
        };
        let hosting = self.hosting().ok_or_else(no_app)?;
        if self.is_ending() {
            let text = "the sidecar is about to end";
            return Err(Problem::new(ErrorCode::ActorRuntimeClosed, text));
        }
        let Actor { actor_type, id } = actor;
        if hosting.host.may_write(actor).is_none() {
            let text =
                format!("can't create timer for actor '{actor_type}||{id}': it is not active here");
            return Err(failed(text));
        }
        let terms = Terms::new(&event.due_time, &event.period, &ttl);
        let schedule = terms.read(self.clock.wall()).map_err(|error| failed(chain(&error)))?;
        if hosting.timers.len() >= ACTOR_TIMERS {
            let text = format!("the actors of this app have {ACTOR_TIMERS} timers already");
            return Err(failed(text));
        }
        let key = (actor.clone(), Arc::from(name));
        let alarm = Alarm { event, ttl, policy: FailurePolicy::default(), version: 0 };
        hosting.timers.insert(key, schedule, alarm);
        if hosting.host.may_write(actor).is_none() {
            // The actor was deactivated meanwhile, and its timers were removed.
            hosting.timers.forget(actor);
        }
        Ok(())
    }

    pub(crate) fn rpc_register_timer(
        &self,
        request: RegisterActorTimerRequest,
    ) -> Result<Reply<()>, Status> {
        let RegisterActorTimerRequest { actor_type, actor_id, name, ttl, .. } = &request;
        let register = || {
            let actor = actor(actor_type, actor_id)?;
            let name = &timer_name(name.clone())?;
            let data = (!request.data.is_empty()).then(|| Data::of_bytes(&request.data));
            let event = Event {
                due_time: request.due_time.clone(),
                period: request.period.clone(),
                callback: request.callback.clone(),
                data,
            };
            self.register_timer(&actor, name, event, ttl.clone())
        };
        register().map(Reply::new).map_err(|problem: Problem| problem.status())
    }

    pub(crate) fn rpc_unregister_timer(
        &self,
        request: &UnregisterActorTimerRequest,
    ) -> Result<Reply<()>, Status> {
        let removed = actor(&request.actor_type, &request.actor_id)
            .and_then(|actor| self.delete_timer(&actor, &request.name));
        removed.map(Reply::new).map_err(|problem| problem.status())
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
