//! Calls of actors. A call goes to the host of the actor, and is repeated if the actor moved before
//! the call had begun.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, http::request};
use tokio::sync::watch;
use tokio::time::Instant;
use tollway_actors::placement::{Actor, NoTurn, Shard};
use tollway_model::{ErrorCode, ServiceName};
use tollway_proxy::{
    ActorCaller, ActorLookup, ERROR_FIELD, OWN_FIELDS, RuntimeRequest, RuntimeTarget,
    UNPROCESSED_FIELD,
};
use tollway_wire::ActorHost;
use tonic::body::Body;

use super::app::{Answer, Turn, TurnKind, method_path, path_of, segment};
use super::host::NotRun;
use super::location::{
    ActorLocation, OFFERED_WITHIN, OWNERS_WITHIN, PLACED_WITHIN, hosted_by_another, no_address,
    pause, reminders_not_hosted, split_remote_type, taken_over, unplaced, unplaced_remotely,
};
use super::names::Work;
use super::owners::KnownOwners;
use super::problem::Problem;
use super::{Actors, Hosting};
use crate::resiliency::keys_of_actor;
use crate::rest;

/// How long the response of a former host is waited for after another host has the actor.
const LATE_ANSWER: Duration = Duration::from_millis(100);

/// How often a call is made again in daprd's place that was cut off, as often as by Dapr.
pub(super) const CUT_OFF_REPEATS: u32 = 5;

/// Names the chain of calls that a call belongs to.
pub(crate) const REENTRANCY: HeaderName = HeaderName::from_static("dapr-reentrancy-id");
pub(super) const APP_ID: HeaderName = HeaderName::from_static("dapr-app-id");
const UNPROCESSED: HeaderName = HeaderName::from_static(UNPROCESSED_FIELD);
const YES: HeaderValue = HeaderValue::from_static("1");

impl Work {
    /// Method and path of the request from one sidecar to another.
    fn request(&self, actor: &Actor) -> (Method, String) {
        let timers = |name: &str| format!("{}/timers{}", path_of(actor), segment(name));
        let reminders = |name: &str| format!("{}/reminders{}", path_of(actor), segment(name));
        match self {
            Self::Method { name, query } => {
                (Method::PUT, method_path(actor, name, query.as_deref()))
            }
            Self::PutTimer(name) => (Method::PUT, timers(name)),
            Self::DeleteTimer(name) => (Method::DELETE, timers(name)),
            Self::PutReminder(name) => (Method::PUT, reminders(name)),
            Self::GetReminder(name) => (Method::GET, reminders(name)),
            Self::DeleteReminder(name) => (Method::DELETE, reminders(name)),
            Self::ListReminders => (Method::GET, reminders("")),
            Self::DeleteReminders => (Method::DELETE, reminders("")),
        }
    }
}

/// A call with its whole body, since it may be repeated.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) actor: Actor,
    pub(crate) work: Work,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Bytes,
    /// The app that calls, in another sidecar; `None` for the app beside this one.
    pub(crate) caller: Option<ActorCaller>,
}

/// The outcome of one attempt.
pub(crate) enum Attempt {
    Done(Response<Body>),
    Failed(Problem),
    /// The actor is not there, or its host cannot be reached. The call has not begun.
    Elsewhere,
}

/// How often a call may still be made again that was cut off.
struct Repeats {
    left: u32,
}

impl Repeats {
    /// The outcome of an attempt. A call that was cut off looks for its actor again, from now on.
    fn of(&mut self, attempt: Attempt, began: &mut Instant) -> Attempt {
        let is_cut_off = match &attempt {
            Attempt::Done(answer) => {
                has_code(answer, &[ErrorCode::ActorCutOff, ErrorCode::ClosedEarly])
            }
            Attempt::Failed(problem) => problem.code == ErrorCode::ActorCutOff,
            Attempt::Elsewhere => false,
        };
        if !is_cut_off || self.left == 0 {
            return attempt;
        }
        self.left -= 1;
        *began = Instant::now();
        Attempt::Elsewhere
    }
}

impl Actors {
    /// Calls an actor at its host, under the app's Resiliency rules, and returns the response of
    /// its app. A type `TYPE@APP.NAMESPACE.NETWORK` is the `TYPE` that this app offers, in any
    /// network.
    ///
    /// # Errors
    /// [`Problem`].
    pub(crate) async fn invoke(&self, call: Call) -> Result<Response<Body>, Problem> {
        let is_method = matches!(call.work, Work::Method { .. });
        let resiliency = self.resiliency.as_ref().filter(|_| is_method);
        let found = resiliency.and_then(|resiliency| {
            Some((resiliency, resiliency.of_actor(&call.actor.actor_type)?))
        });
        let Some((resiliency, rules)) = found else { return self.invoke_once(call).await };
        let keys = keys_of_actor(rules.scope, &call.actor);
        let target = format!("actor_{}", call.actor.actor_type);
        let attempt = || Box::pin(self.invoke_once(call.clone()));
        resiliency.run(rules, &target, &keys, true, attempt).await
    }

    /// Calls an actor without Resiliency rules.
    async fn invoke_once(&self, mut call: Call) -> Result<Response<Body>, Problem> {
        let Some((actor_type, service)) =
            split_remote_type(&call.actor.actor_type, &self.me.service)
        else {
            return self.invoke_near(call).await;
        };
        call.actor.actor_type = actor_type;
        let lookup = RuntimeTarget::Actors(ActorLookup::ByCallee);
        let asked = RuntimeRequest { to: lookup, ..RuntimeRequest::default() };
        let mut began = Instant::now();
        let mut repeats = self.repeats_of(&call);
        loop {
            match repeats.of(self.ask_there(&service, &asked, &call).await, &mut began) {
                Attempt::Done(answer) => return Ok(answer),
                Attempt::Failed(problem) => return Err(problem),
                Attempt::Elsewhere if began.elapsed() < PLACED_WITHIN => {}
                Attempt::Elsewhere => {
                    return Err(unplaced_remotely(&call.actor, &service));
                }
            }
            tokio::time::sleep(pause(began.elapsed())).await;
        }
    }

    /// Calls an actor of the own network and namespace, without Resiliency rules.
    async fn invoke_near(&self, call: Call) -> Result<Response<Body>, Problem> {
        let mut began = Instant::now();
        let mut repeats = self.repeats_of(&call);
        // An actor of this host needs no lookup.
        if self.hosting().is_some_and(|hosting| hosting.host.epoch(&call.actor).is_some()) {
            match repeats.of(self.invoke_here(&call).await, &mut began) {
                Attempt::Done(answer) => return Ok(answer),
                Attempt::Failed(problem) => return Err(problem),
                Attempt::Elsewhere => {}
            }
        }
        let Some(mut known) = self.directory.follow(&call.actor.actor_type) else {
            let text = "too many types of actors are called from here";
            return Err(Problem::new(ErrorCode::Overloaded, text));
        };
        let shard = Shard::of(&call.actor.id);
        loop {
            let location = ActorLocation::of(&known.borrow_and_update(), shard);
            let patience = match &location {
                ActorLocation::NotOffered => {
                    let patience = self.patience_for_an_offer(&call);
                    if began.elapsed() >= patience {
                        return Err(no_address(&call.actor));
                    }
                    patience
                }
                ActorLocation::Unknown => OWNERS_WITHIN,
                ActorLocation::At(owner) => {
                    let attempt = match owner {
                        Some(owner) if *owner == self.me => self.invoke_here(&call).await,
                        // Another app would judge the call as one of this app.
                        Some(owner)
                            if call.caller.is_some() && owner.service != self.me.service =>
                        {
                            Attempt::Failed(hosted_by_another(&call.actor, owner))
                        }
                        Some(owner) => self.ask_owner(owner, &call, known.clone()).await,
                        None => Attempt::Elsewhere,
                    };
                    match repeats.of(attempt, &mut began) {
                        Attempt::Done(answer) => return Ok(answer),
                        Attempt::Failed(problem) => return Err(problem),
                        Attempt::Elsewhere => PLACED_WITHIN,
                    }
                }
            };
            if began.elapsed() >= patience {
                return Err(unplaced(&call, &known.borrow()));
            }
            // Waits until the location changes, or until the next attempt is due. A caller may
            // learn of a new owner before the owner does, or before it has the owner's endpoint.
            let elsewhere = known.wait_for(|now| ActorLocation::of(now, shard) != location);
            let _ = tokio::time::timeout(pause(began.elapsed()), elsewhere).await;
        }
    }

    /// How long a call waits for a host where none offers the type.
    fn patience_for_an_offer(&self, call: &Call) -> Duration {
        let actor_type = &call.actor.actor_type;
        let may_be_own = !*self.types_known.borrow() || self.offers(actor_type);
        match call.caller {
            None if may_be_own => PLACED_WITHIN,
            None if self.is_repeated(call) => OFFERED_WITHIN,
            None | Some(_) => Duration::ZERO,
        }
    }

    /// Whether a call of the own app is made again where Dapr makes it again. Where rules apply to the
    /// type, they say how often that is.
    fn is_repeated(&self, call: &Call) -> bool {
        let rules = || self.resiliency.as_ref()?.of_actor(&call.actor.actor_type);
        self.in_daprds_place && call.caller.is_none() && rules().is_none()
    }

    fn repeats_of(&self, call: &Call) -> Repeats {
        let is_method = matches!(call.work, Work::Method { .. });
        let left = if is_method && self.is_repeated(call) { CUT_OFF_REPEATS } else { 0 };
        Repeats { left }
    }

    /// Invokes an actor of this host.
    pub(crate) async fn invoke_here(&self, call: &Call) -> Attempt {
        match &call.work {
            Work::Method { name, query } => self.turn_here(call, name, query.as_ref()).await,
            Work::PutTimer(name) => self.put_timer_here(call, name),
            Work::DeleteTimer(name) => self.delete_timer_here(call, name),
            Work::PutReminder(_)
            | Work::GetReminder(_)
            | Work::DeleteReminder(_)
            | Work::ListReminders
            | Work::DeleteReminders => self.remind_here(call).await,
        }
    }

    async fn turn_here(&self, call: &Call, name: &str, query: Option<&String>) -> Attempt {
        let Some(Hosting { host, app, .. }) = self.hosting() else { return Attempt::Elsewhere };
        let mut fields = fields_for_app(&call.fields);
        let said = fields.remove(REENTRANCY);
        let said = said.as_ref().and_then(|id| id.to_str().ok());
        let chain = host.chain(&call.actor.actor_type, said);
        if let Some(id) = chain.as_deref().and_then(|id| HeaderValue::try_from(id).ok()) {
            fields.insert(REENTRANCY, id);
        }
        let what = TurnKind::Method { name: name.to_owned(), query: query.cloned() };
        let turn = Turn { actor: call.actor.clone(), what, fields, body: call.body.clone() };
        let run =
            host.turn(&call.actor, chain, move |lease| async move { app.run(turn, lease).await });
        match run.await {
            Ok(answer) => Attempt::Done(response(answer)),
            Err(why) => match not_run(why) {
                Some(problem) => Attempt::Failed(problem),
                None => Attempt::Elsewhere,
            },
        }
    }

    /// Asks the host of an actor. Ends early if another host takes the actor over.
    async fn ask_owner(
        &self,
        owner: &ActorHost,
        call: &Call,
        known: watch::Receiver<KnownOwners>,
    ) -> Attempt {
        let number = self.next_call.fetch_add(1, Ordering::Relaxed);
        let caller = call.caller.clone();
        let asked = RuntimeRequest { number: Some(number), caller, ..at(owner) };
        let mut asked = pin!(self.ask_there(&owner.service, &asked, call));
        tokio::select! {
            attempt = &mut asked => return attempt,
            () = taken_over(known, Shard::of(&call.actor.id), owner) => {}
        }
        let attempt = loop {
            match tokio::time::timeout(LATE_ANSWER, &mut asked).await {
                Ok(attempt) => break attempt,
                // Repeated in case the data loop did not have the call yet.
                Err(_) => self.loopback.call_off(number),
            }
        };
        match attempt {
            Attempt::Done(answer) if has_code(&answer, &[ErrorCode::Silent]) => {
                Attempt::Failed(lost(call, owner))
            }
            attempt @ (Attempt::Done(_) | Attempt::Failed(_) | Attempt::Elsewhere) => attempt,
        }
    }

    async fn ask_there(
        &self,
        service: &ServiceName,
        asked: &RuntimeRequest,
        call: &Call,
    ) -> Attempt {
        let (method, path) = call.work.request(&call.actor);
        let request = Request::builder().method(method).uri(format!("http://sidecar/v1.0{path}"));
        self.send(service, asked, request, call.fields.clone(), call.body.clone()).await
    }

    /// Asks the runtime in a sidecar of a service.
    pub(super) async fn send(
        &self,
        service: &ServiceName,
        asked: &RuntimeRequest,
        request: request::Builder,
        given: HeaderMap,
        body: Bytes,
    ) -> Attempt {
        let mut request = match request.body(Body::new(Full::new(body))) {
            Ok(request) => request,
            Err(error) => return Attempt::Failed(Problem::invoke(&error.to_string())),
        };
        let fields = request.headers_mut();
        *fields = given;
        fields.remove(HOST);
        fields.remove(CONTENT_LENGTH);
        match HeaderValue::try_from(service.to_string()) {
            Ok(name) => drop(fields.insert(APP_ID, name)),
            Err(error) => return Attempt::Failed(Problem::invoke(&error.to_string())),
        }
        asked.write(fields);
        match self.loopback.call(request).await {
            // A refusal with another status is final.
            Ok(answer)
                if answer.headers().contains_key(UNPROCESSED)
                    && answer.status().is_server_error() =>
            {
                Attempt::Elsewhere
            }
            Ok(answer) => Attempt::Done(answer.map(Body::new)),
            Err(error) => Attempt::Failed(Problem::invoke(&error.to_string())),
        }
    }

    /// Responds to the call of another sidecar, which [`Self::admit_call`] has admitted.
    pub(crate) async fn answer_call(&self, lookup: ActorLookup, call: Call) -> Response<Body> {
        let attempt = match lookup {
            ActorLookup::ByCallee => match self.invoke_near(call).await {
                Ok(answer) => Attempt::Done(answer),
                Err(problem) => Attempt::Failed(problem),
            },
            ActorLookup::Done => self.invoke_here(&call).await,
        };
        match attempt {
            Attempt::Done(answer) => answer,
            Attempt::Failed(problem) => problem.response(),
            Attempt::Elsewhere => elsewhere(),
        }
    }

    /// Whether the call of another sidecar may be carried out here, before its body is read. Gives the
    /// response if not.
    pub(crate) async fn admit_call(
        &self,
        lookup: ActorLookup,
        call: &Call,
    ) -> Result<(), Response<Body>> {
        let admitted = match (lookup, &call.work) {
            (ActorLookup::ByCallee, _) => self.may_look_up(call),
            (ActorLookup::Done, _) if self.hosting().is_none() => return Err(elsewhere()),
            (ActorLookup::Done, Work::Method { .. }) if !self.offers(&call.actor.actor_type) => {
                return Err(elsewhere());
            }
            (ActorLookup::Done, Work::Method { .. }) => Ok(()),
            (ActorLookup::Done, _) => {
                self.may_remind(&call.actor.actor_type, call.caller.as_ref()).await
            }
        };
        admitted.map_err(|problem| problem.response())
    }
}

impl Actors {
    /// Whether the app beside this sidecar offers a type that it may host.
    pub(super) fn offers(&self, actor_type: &str) -> bool {
        self.hosting().is_some_and(|hosting| hosting.host.hosts(actor_type))
    }

    /// Whether another app's call of an actor is looked up here: only methods of the types that the app
    /// beside this sidecar offers.
    fn may_look_up(&self, call: &Call) -> Result<(), Problem> {
        match &call.work {
            Work::Method { .. } if self.offers(&call.actor.actor_type) => Ok(()),
            Work::Method { .. } => Err(no_address(&call.actor)),
            Work::PutTimer(_)
            | Work::DeleteTimer(_)
            | Work::PutReminder(_)
            | Work::GetReminder(_)
            | Work::DeleteReminder(_)
            | Work::ListReminders
            | Work::DeleteReminders => Err(reminders_not_hosted()),
        }
    }

    /// Whether a caller may ask this host for reminders: it is a replica of the own app, or of another
    /// app of the namespace that hosts actors of the type.
    pub(super) async fn may_remind(
        &self,
        actor_type: &str,
        caller: Option<&ActorCaller>,
    ) -> Result<(), Problem> {
        let refused = reminders_not_hosted;
        let caller = caller.ok_or_else(refused)?.service();
        if caller == self.me.service {
            return Ok(());
        }
        // The directory knows of the own namespace alone, and follows no type for a stranger.
        let is_near = caller.namespace == self.me.service.namespace
            && caller.network == self.me.service.network;
        if !is_near || !self.offers(actor_type) {
            return Err(refused());
        }
        let mut known = self.directory.follow(&Arc::from(actor_type)).ok_or_else(refused)?;
        let owners = known.wait_for(|known| !matches!(known, KnownOwners::Unknown));
        let is_host = match tokio::time::timeout(OWNERS_WITHIN, owners).await {
            Ok(Ok(known)) => match &*known {
                KnownOwners::Owners(owners) => {
                    owners.shards.iter().flatten().any(|host| host.service == caller)
                }
                KnownOwners::NotOffered | KnownOwners::Unknown => false,
            },
            Ok(Err(_)) | Err(_) => false,
        };
        if is_host { Ok(()) } else { Err(refused()) }
    }
}

/// Whether a response is the error of one of these codes.
fn has_code(answer: &Response<Body>, codes: &[ErrorCode]) -> bool {
    let word = answer.headers().get(ERROR_FIELD);
    word.is_some_and(|word| codes.iter().any(|code| word == code.word()))
}

/// For the runtime of this host and no other.
pub(super) fn at(host: &ActorHost) -> RuntimeRequest {
    RuntimeRequest {
        to: RuntimeTarget::Actors(ActorLookup::Done),
        instance: Some(host.instance.clone()),
        ..RuntimeRequest::default()
    }
}

fn lost(call: &Call, former: &ActorHost) -> Problem {
    let former = match call.caller {
        // Which workloads an app has is no business of others.
        Some(_) => "its former host".to_owned(),
        None => format!("workload {} of {}", former.instance, former.service),
    };
    let text = format!(
        "the actor is at another host now, and {former} has not answered; the call may have been \
         carried out"
    );
    Problem::new(ErrorCode::ActorCutOff, format!("error invoke actor method: {text}"))
}

/// The response to a sidecar that must look up the actor's host again.
pub(crate) fn elsewhere() -> Response<Body> {
    let mut answer = rest::empty(StatusCode::SERVICE_UNAVAILABLE);
    answer.headers_mut().insert(UNPROCESSED, YES);
    answer
}

/// The error for the caller of a turn that did not run; `None` if another host is to run the turn.
pub(crate) fn not_run(why: NotRun) -> Option<Problem> {
    match why {
        NotRun::No(NoTurn::Elsewhere(_)) => None,
        NotRun::Failed(problem) => Some(problem),
        NotRun::No(NoTurn::Crowded { limit }) => {
            let text = format!("{limit} calls wait for this actor already; try again");
            Some(Problem::new(ErrorCode::Overloaded, text))
        }
        NotRun::No(NoTurn::TooDeep { limit }) => {
            tracing::debug!(limit, "a call has come back to its actor too often");
            let text = "maximum stack depth exceeded";
            Some(Problem::new(ErrorCode::ActorStackDepth, text))
        }
        NotRun::CalledOff => {
            let text = "error invoke actor method: the actor had to move before the call had \
                        ended; it may have been carried out";
            Some(Problem::new(ErrorCode::ActorCutOff, text))
        }
    }
}

fn response(answer: Answer) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(answer.body)));
    *response.headers_mut() = answer.fields;
    response
}

/// The fields of a call that the app gets. Fields that name the target, that belong to one
/// connection, or that are Tollway's own are left out, except the caller's identity.
fn fields_for_app(fields: &HeaderMap) -> HeaderMap {
    let is_for_app = |name: &str| {
        let of_mesh = name.starts_with(OWN_FIELDS) && name != "x-tollway-caller";
        !of_mesh
            && !matches!(
                name,
                "host"
                    | "content-length"
                    | "connection"
                    | "keep-alive"
                    | "te"
                    | "trailer"
                    | "transfer-encoding"
                    | "upgrade"
                    | "dapr-app-id"
                    | "dapr-api-token"
            )
    };
    let passed = fields.iter().filter(|(name, _)| is_for_app(name.as_str()));
    passed.map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests;
