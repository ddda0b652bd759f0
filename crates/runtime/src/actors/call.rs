//! A call of an actor: to where the actor is, again when it has moved before the call was begun.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tokio::sync::watch;
use tokio::time::Instant;
use tollway_model::{ErrorCode, Instance, ServiceName};
use tollway_placement::{Actor, NoTurn, Shard};
use tollway_proxy::{
    ACTOR_FIELD, CALL_FIELD, ERROR_FIELD, INSTANCE_FIELD, OWN_FIELDS, UNPROCESSED_FIELD,
};
use tollway_wire::ActorHost;
use tonic::body::Body;

use super::app::{Answer, Turn, What, method_path, path_of, segment};
use super::host::NotRun;
use super::names::Work;
use super::owners::Known;
use super::problem::Problem;
use super::{Actors, Hosting};
use crate::resilient::keys_of_actor;
use crate::rest;

/// How long a call waits for a host of its actor: longer than a host that has crashed keeps its
/// lease (3 s), and the next needs to begin.
pub(crate) const PLACED_WITHIN: Duration = Duration::from_secs(10);
/// How long it waits until the control plane has told of a type at all.
pub(super) const TOLD_WITHIN: Duration = Duration::from_secs(5);
/// Between two attempts, while nothing else is heard.
const SHORTEST_WAIT: Duration = Duration::from_millis(5);
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// The part of the time since its first attempt that a call waits before the next: so much longer
/// than it has to it takes at most.
const WAIT_SHARE: u32 = 4;
/// How much later than the news that another host has an actor the answer of the former may come.
const LATE_ANSWER: Duration = Duration::from_millis(100);

/// The chain of calls that a call belongs to.
pub(crate) const REENTRANCY: HeaderName = HeaderName::from_static("dapr-reentrancy-id");
const APP_ID: HeaderName = HeaderName::from_static("dapr-app-id");
const INSTANCE: HeaderName = HeaderName::from_static(INSTANCE_FIELD);
const FOR_ACTOR: HeaderName = HeaderName::from_static(ACTOR_FIELD);
const NUMBER: HeaderName = HeaderName::from_static(CALL_FIELD);
const UNPROCESSED: HeaderName = HeaderName::from_static(UNPROCESSED_FIELD);
/// The callee's sidecar is to find the actor and to call it where it is.
const ANYWHERE: HeaderName = HeaderName::from_static("tollway-actor-anywhere");
const YES: HeaderValue = HeaderValue::from_static("1");

impl Work {
    /// As one sidecar asks it of another.
    fn request(&self, actor: &Actor) -> (Method, String) {
        let reminders = |name: &str| format!("{}/reminders{}", path_of(actor), segment(name));
        match self {
            Self::Method { name, query } => {
                (Method::PUT, method_path(actor, name, query.as_deref()))
            }
            Self::PutReminder(name) => (Method::PUT, reminders(name)),
            Self::GetReminder(name) => (Method::GET, reminders(name)),
            Self::DeleteReminder(name) => (Method::DELETE, reminders(name)),
            Self::ListReminders => (Method::GET, reminders("")),
            Self::DeleteReminders => (Method::DELETE, reminders("")),
        }
    }
}

/// A call, held whole: it may have to be made again.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) actor: Actor,
    pub(crate) work: Work,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Bytes,
}

/// Where an actor is, as far as it is known.
#[derive(PartialEq)]
enum Place {
    /// The control plane has not told of its type.
    Untold,
    /// Nobody offers its type.
    Nowhere,
    /// At this host, or at none for the moment.
    At(Option<ActorHost>),
}

impl Place {
    fn of(known: &Known, shard: Shard) -> Self {
        match known {
            Known::Nothing => Self::Untold,
            Known::Nobody => Self::Nowhere,
            Known::Owners(owners) => Self::At(owners.shards[shard.number()].clone()),
        }
    }
}

/// What came of one attempt.
pub(crate) enum Attempt {
    Done(Response<Body>),
    Failed(Problem),
    /// The actor is not there, or cannot be reached; nothing was begun.
    Elsewhere,
}

impl Actors {
    /// Calls an actor wherever it is, and returns the answer of its app. A type `TYPE@APP.NAMESPACE.NETWORK`
    /// is the `TYPE` that this app offers, in whichever network.
    ///
    /// # Errors
    /// [`Problem`].
    pub(crate) async fn invoke(&self, call: Call) -> Result<Response<Body>, Problem> {
        let is_method = matches!(call.work, Work::Method { .. });
        let resilient = self.resilient.as_ref().filter(|_| is_method);
        let found = resilient
            .and_then(|resilient| Some((resilient, resilient.of_actor(&call.actor.actor_type)?)));
        let Some((resilient, rules)) = found else { return self.invoke_once(call).await };
        let keys = keys_of_actor(rules.scope, &call.actor);
        let target = format!("actor_{}", call.actor.actor_type);
        let attempt = || Box::pin(self.invoke_once(call.clone()));
        resilient.run(rules, &target, &keys, true, attempt).await
    }

    /// The same without rules about calls that fail.
    async fn invoke_once(&self, mut call: Call) -> Result<Response<Body>, Problem> {
        let Some((actor_type, service)) = far(&call.actor.actor_type, &self.me.service) else {
            return self.invoke_near(call).await;
        };
        call.actor.actor_type = actor_type;
        call.fields.insert(ANYWHERE, YES);
        let began = Instant::now();
        loop {
            match self.ask_there((&service, None), &call, call.fields.clone()).await {
                Attempt::Done(answer) => return Ok(answer),
                Attempt::Failed(problem) => return Err(problem),
                Attempt::Elsewhere if began.elapsed() < PLACED_WITHIN => {}
                Attempt::Elsewhere => {
                    let Actor { actor_type, id } = &call.actor;
                    let text = format!(
                        "nobody took the call of actor '{actor_type}||{id}' of {service} within {} s",
                        PLACED_WITHIN.as_secs()
                    );
                    return Err(Problem::new(ErrorCode::ActorUnplaced, text));
                }
            }
            tokio::time::sleep(pause(began)).await;
        }
    }

    /// The same for an actor of the own network and namespace.
    async fn invoke_near(&self, call: Call) -> Result<Response<Body>, Problem> {
        // What is here need not be looked up.
        if self.hosting().is_some_and(|hosting| hosting.host.epoch(&call.actor).is_some()) {
            match self.invoke_here(&call).await {
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
        let began = Instant::now();
        loop {
            let place = Place::of(&known.borrow_and_update(), shard);
            let patience = match &place {
                Place::Nowhere => return Err(no_address(&call.actor)),
                Place::Untold => TOLD_WITHIN,
                Place::At(owner) => {
                    let attempt = match owner {
                        Some(owner) if *owner == self.me => self.invoke_here(&call).await,
                        Some(owner) => self.ask_owner(owner, &call, known.clone()).await,
                        None => Attempt::Elsewhere,
                    };
                    match attempt {
                        Attempt::Done(answer) => return Ok(answer),
                        Attempt::Failed(problem) => return Err(problem),
                        Attempt::Elsewhere => PLACED_WITHIN,
                    }
                }
            };
            if began.elapsed() >= patience {
                return Err(unplaced(&call.actor, &known.borrow()));
            }
            // Whichever comes first: the actor is somewhere else, or it is time to ask again. Callers
            // may hear of a new owner before the owner does, or before they hear how to reach it.
            let elsewhere = known.wait_for(|now| Place::of(now, shard) != place);
            let _ = tokio::time::timeout(pause(began), elsewhere).await;
        }
    }

    /// Does what is asked of an actor of the app beside this sidecar.
    pub(crate) async fn invoke_here(&self, call: &Call) -> Attempt {
        match &call.work {
            Work::Method { name, query } => self.turn_here(call, name, query.as_ref()).await,
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
        let what = What::Method { name: name.to_owned(), query: query.cloned() };
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

    /// Asks the host of an actor, until another has it.
    async fn ask_owner(
        &self,
        owner: &ActorHost,
        call: &Call,
        known: watch::Receiver<Known>,
    ) -> Attempt {
        let number = self.next_call.fetch_add(1, Ordering::Relaxed);
        let mut fields = call.fields.clone();
        fields.insert(NUMBER, number.into());
        let callee = (&owner.service, Some(&owner.instance));
        let mut asked = pin!(self.ask_there(callee, call, fields));
        tokio::select! {
            attempt = &mut asked => return attempt,
            () = taken_over(known, Shard::of(&call.actor.id), owner) => {}
        }
        let attempt = loop {
            match tokio::time::timeout(LATE_ANSWER, &mut asked).await {
                Ok(attempt) => break attempt,
                // Once more where the data loop had not heard of it yet.
                Err(_) => self.caller.inside().call_off(number),
            }
        };
        match attempt {
            Attempt::Done(answer) if is_silent(&answer) => Attempt::Failed(lost(owner)),
            attempt @ (Attempt::Done(_) | Attempt::Failed(_) | Attempt::Elsewhere) => attempt,
        }
    }

    async fn ask_there(
        &self,
        callee: (&ServiceName, Option<&Instance>),
        call: &Call,
        fields: HeaderMap,
    ) -> Attempt {
        let (method, path) = call.work.request(&call.actor);
        self.send(callee, method, &format!("/v1.0{path}"), fields, call.body.clone()).await
    }

    /// Asks the runtime of the sidecar of a service: of this replica, or of any.
    pub(super) async fn send(
        &self,
        (service, instance): (&ServiceName, Option<&Instance>),
        method: Method,
        path: &str,
        given: HeaderMap,
        body: Bytes,
    ) -> Attempt {
        let request = Request::builder().method(method).uri(format!("http://sidecar{path}"));
        let mut request = match request.body(Full::new(body)) {
            Ok(request) => request,
            Err(error) => return Attempt::Failed(Problem::invoke(&error.to_string())),
        };
        let fields = request.headers_mut();
        *fields = given;
        fields.remove(HOST);
        fields.remove(CONTENT_LENGTH);
        let instance = instance.map(|instance| (INSTANCE, instance.to_string()));
        for (name, value) in [(APP_ID, service.to_string())].into_iter().chain(instance) {
            match HeaderValue::try_from(value) {
                Ok(value) => drop(fields.insert(name, value)),
                Err(error) => return Attempt::Failed(Problem::invoke(&error.to_string())),
            }
        }
        fields.insert(FOR_ACTOR, YES);
        match self.caller.call(request).await {
            // What is refused for what it is stays so.
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

    /// Answers the call of another sidecar.
    pub(crate) async fn answer_call(&self, mut call: Call) -> Response<Body> {
        if call.fields.remove(ANYWHERE).is_some() {
            let answered = self.invoke_near(call).await;
            return answered.unwrap_or_else(|problem| problem.response());
        }
        match self.invoke_here(&call).await {
            Attempt::Done(answer) => answer,
            Attempt::Failed(problem) => problem.response(),
            Attempt::Elsewhere => elsewhere(),
        }
    }
}

/// Ends when another host has an actor. A host that gives it up in good order has answered by then;
/// one that is gone, or stands still, has lost its lease.
async fn taken_over(mut known: watch::Receiver<Known>, shard: Shard, former: &ActorHost) {
    let is_another = |now: &Known| match now {
        Known::Owners(owners) => {
            owners.shards[shard.number()].as_ref().is_some_and(|owner| owner != former)
        }
        Known::Nothing | Known::Nobody => false,
    };
    if known.wait_for(is_another).await.is_err() {
        // Nothing is told any more.
        std::future::pending::<()>().await;
    }
}

/// Whether the data loop says that a callee never answered.
fn is_silent(answer: &Response<Body>) -> bool {
    let word = answer.headers().get(ERROR_FIELD);
    word.is_some_and(|word| word == ErrorCode::Silent.word())
}

fn lost(former: &ActorHost) -> Problem {
    let text = format!(
        "the actor is at another host now, and workload {} of {} has not answered; the call may \
         have been carried out",
        former.instance, former.service
    );
    Problem::invoke(&text)
}

/// How long a call that was first tried at `began` waits before it is tried again.
fn pause(began: Instant) -> Duration {
    (began.elapsed() / WAIT_SHARE).clamp(SHORTEST_WAIT, LONGEST_WAIT)
}

/// The answer to a sidecar that has to look where the actor is now.
pub(crate) fn elsewhere() -> Response<Body> {
    let mut answer = rest::empty(StatusCode::SERVICE_UNAVAILABLE);
    answer.headers_mut().insert(UNPROCESSED, YES);
    answer
}

/// What a turn that was not run means to its caller; `None` if it is to be asked for elsewhere.
pub(crate) fn not_run(why: NotRun) -> Option<Problem> {
    match why {
        NotRun::No(NoTurn::Elsewhere(_)) => None,
        NotRun::Failed(problem) => Some(problem),
        NotRun::No(NoTurn::Crowded { limit }) => {
            let text = format!("{limit} calls wait for this actor already; try again");
            Some(Problem::new(ErrorCode::Overloaded, text))
        }
        NotRun::No(NoTurn::TooDeep { limit }) => {
            let text = format!("maximum stack depth exceeded: {limit}");
            Some(Problem::new(ErrorCode::ActorStackDepth, text))
        }
        NotRun::CalledOff => {
            let text =
                "the actor had to move before the call had ended; it may have been carried out";
            Some(Problem::invoke(text))
        }
    }
}

fn response(answer: Answer) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(answer.body)));
    *response.headers_mut() = answer.fields;
    response
}

/// What the app gets of a call's fields: neither what names the target, nor what is of one
/// connection, nor words of the mesh but who calls.
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
                    | "tollway-actor-anywhere"
                    | "dapr-app-id"
                    | "dapr-api-token"
            )
    };
    let kept = fields.iter().filter(|(name, _)| is_for_app(name.as_str()));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The type, and the app that offers it, where the name of a type names both.
fn far(actor_type: &str, home: &ServiceName) -> Option<(Arc<str>, ServiceName)> {
    let (actor_type, service) = actor_type.rsplit_once('@')?;
    let is_whole = service.split('.').count() == 3 && !actor_type.is_empty();
    let service = ServiceName::parse(service, home).ok().filter(|_| is_whole)?;
    Some((Arc::from(actor_type), service))
}

fn no_address(actor: &Actor) -> Problem {
    let Actor { actor_type, id } = actor;
    let text = format!("did not find address for actor '{actor_type}||{id}'");
    Problem::new(ErrorCode::ActorNoAddress, text)
}

fn unplaced(actor: &Actor, known: &Known) -> Problem {
    let Actor { actor_type, id } = actor;
    match known {
        Known::Nothing => {
            let text = format!(
                "the control plane has not told within {} s who runs actors of type '{actor_type}'",
                TOLD_WITHIN.as_secs()
            );
            Problem::new(ErrorCode::ActorNoPlacement, text)
        }
        Known::Nobody | Known::Owners(_) => {
            let owner = match known {
                Known::Owners(owners) => owners.shards[Shard::of(id).number()].as_ref(),
                Known::Nothing | Known::Nobody => None,
            };
            let state = owner.map_or_else(
                || "it has no host at the moment".to_owned(),
                |owner| format!("its host is workload {} of {}", owner.instance, owner.service),
            );
            let text = format!(
                "nobody took the call of actor '{actor_type}||{id}' within {} s: {state}",
                PLACED_WITHIN.as_secs()
            );
            Problem::new(ErrorCode::ActorUnplaced, text)
        }
    }
}
