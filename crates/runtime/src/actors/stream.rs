//! An app that hosts actors over a gRPC stream that it opens itself (`SubscribeActorEventsAlpha1`).
//! It needs no port of its own.
//!
//! An app may have several streams at once. A turn goes to the newest one that offers its type, so a
//! stream without types takes none, and those of an earlier one go on there until it ends.

mod streams;

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::Stream;
use tollway_actors::placement::Actor;
use tollway_proxy::TurnLease;
use tollway_wire::dapr::proto::runtime::v1::subscribe_actor_events_request_alpha1::RequestType as FromApp;
use tollway_wire::dapr::proto::runtime::v1::subscribe_actor_events_response_alpha1::ResponseType as ToApp;
use tollway_wire::dapr::proto::runtime::v1::{
    ActorReentrancyConfig, SubscribeActorEventsRequestAlpha1 as AppMessage,
    SubscribeActorEventsRequestInitialAlpha1 as Initial,
    SubscribeActorEventsResponseAlpha1 as Message,
    SubscribeActorEventsResponseDeactivateRequestAlpha1 as Deactivate,
    SubscribeActorEventsResponseInitialAlpha1 as Opened,
    SubscribeActorEventsResponseInvokeRequestAlpha1 as Invoke,
    SubscribeActorEventsResponseReminderRequestAlpha1 as Remind,
    SubscribeActorEventsResponseTimerRequestAlpha1 as TimerDue,
};
use tonic::{Response, Status, Streaming};

use super::Actors;
use super::app::{Answer, AppSide, Event, Turn, TurnKind, Unanswered};
use super::call::REENTRANCY;
use super::clock::Clock;
use super::problem::Problem;
use super::settings::{Reentrancy, TypeSettings, Types, types};

pub(super) use self::streams::Streams;

/// Most streams of one app.
pub(super) const ACTOR_STREAMS: usize = 32;

/// Messages that the app has not accepted yet.
const MESSAGES: usize = 64;
/// Time for the first message.
const OPEN_WITHIN: Duration = Duration::from_secs(10);

/// The name of the chain of calls among the metadata of a message, where the case of letters counts.
const CHAIN: &str = "Dapr-Reentrancy-Id";

/// In a response: it is an error of the actor.
const ACTOR_ERROR: HeaderName = HeaderName::from_static("x-daprerrorresponseheader");

/// The gRPC code of an app that does not have the method.
const NOT_FOUND: u32 = 5;

/// A message on its way to the app.
struct Outgoing {
    message: Result<Message, Status>,
    /// Of a turn: its id, and the time from which on it must not begin.
    turn: Option<(String, Duration)>,
}

impl From<Result<Message, Status>> for Outgoing {
    fn from(message: Result<Message, Status>) -> Self {
        Self { message, turn: None }
    }
}

/// The messages to the app. A turn whose lease has ended before the app accepts the message is left
/// out.
pub(crate) struct ToAppStream {
    messages: mpsc::Receiver<Outgoing>,
    waiting: Arc<PendingAnswers>,
    clock: Clock,
}

impl Stream for ToAppStream {
    type Item = Result<Message, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while let Some(Outgoing { message, turn }) = ready!(self.messages.poll_recv(context)) {
            match turn {
                Some((id, by)) if self.clock.now() >= by => {
                    self.waiting.complete(&id, Err(Unanswered::TooLate));
                }
                _ => return Poll::Ready(Some(message)),
            }
        }
        Poll::Ready(None)
    }
}

/// The calls that wait for the app's response, by the id of the message.
#[derive(Default)]
struct PendingAnswers(Mutex<HashMap<String, oneshot::Sender<Result<FromApp, Unanswered>>>>);

impl PendingAnswers {
    fn complete(&self, id: &str, said: Result<FromApp, Unanswered>) {
        let waiting = self.lock().remove(id);
        if let Some(waiting) = waiting {
            // The caller may have dropped the future.
            let _ = waiting.send(said);
        }
    }

    fn lock(
        &self,
    ) -> MutexGuard<'_, HashMap<String, oneshot::Sender<Result<FromApp, Unanswered>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sidecar's end of the stream.
struct StreamApp {
    messages: mpsc::Sender<Outgoing>,
    waiting: Arc<PendingAnswers>,
    last: AtomicU64,
}

impl StreamApp {
    /// Sends a message under a new id and returns the app's response. A turn is not sent from
    /// `begin_by` on.
    ///
    /// # Errors
    /// The stream has ended, or the turn has become too late.
    async fn ask(
        &self,
        begin_by: Option<Duration>,
        message: impl FnOnce(String) -> ToApp,
    ) -> Result<FromApp, Unanswered> {
        let id = self.last.fetch_add(1, Ordering::Relaxed).to_string();
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().insert(id.clone(), answer);
        let asked = PendingAnswer { app: self, id: id.clone() };
        let turn = begin_by.map(|by| (id.clone(), by));
        let message = Ok(Message { response_type: Some(message(id)) });
        let gone = || Problem::invoke("the app's stream of actor events has ended");
        self.messages.send(Outgoing { message, turn }).await.map_err(|_| gone())?;
        let answer = answered.await.map_err(|_| gone())?;
        drop(asked);
        answer
    }

    /// Passes a message of the app to the call that waits for it.
    ///
    /// # Errors
    /// The message is not valid here.
    fn receive(&self, said: Option<FromApp>) -> Result<(), Status> {
        let Some(said) = said else {
            return Err(Status::invalid_argument("a message of the stream says nothing"));
        };
        let id = match &said {
            FromApp::InitialRequest(_) => {
                return Err(Status::invalid_argument("what the app offers was said already"));
            }
            FromApp::InvokeResponse(answer) => &answer.id,
            FromApp::ReminderResponse(answer) | FromApp::TimerResponse(answer) => &answer.id,
            FromApp::DeactivateResponse(answer) => &answer.id,
            FromApp::RequestFailed(failed) => &failed.id,
        };
        let id = id.clone();
        self.waiting.complete(&id, Ok(said));
        Ok(())
    }
}

/// A message that waits for its response. Dropping it ends the wait.
struct PendingAnswer<'a> {
    app: &'a StreamApp,
    id: String,
}

impl Drop for PendingAnswer<'_> {
    fn drop(&mut self) {
        self.app.waiting.lock().remove(&self.id);
    }
}

#[tonic::async_trait]
impl AppSide for StreamApp {
    async fn run(&self, turn: Turn, lease: TurnLease) -> Result<Answer, Unanswered> {
        let by = Some(lease.until);
        let Turn { actor, what, fields, body } = turn;
        let (actor_type, actor_id) = (actor.actor_type.to_string(), actor.id.to_string());
        let metadata = metadata(&fields);
        let called = match &what {
            TurnKind::Method { name, .. } => Some(name.clone()),
            TurnKind::Timer { .. } | TurnKind::Reminder { .. } => None,
        };
        let answered = match what {
            TurnKind::Method { name: method, .. } => {
                let data = body.to_vec();
                let message = |id| Invoke { id, actor_type, actor_id, method, data, metadata };
                self.ask(by, |id| ToApp::InvokeRequest(message(id))).await?
            }
            TurnKind::Timer { name, event } => {
                let Event { due_time, period, callback, data } = event;
                let data = data.map(|data| data.any());
                let message = |id| TimerDue {
                    id,
                    actor_type,
                    actor_id,
                    name,
                    due_time,
                    period,
                    callback,
                    data,
                    metadata,
                };
                self.ask(by, |id| ToApp::TimerRequest(message(id))).await?
            }
            TurnKind::Reminder { name, event } => {
                let Event { due_time, period, data, .. } = event;
                let data = data.map(|data| data.any());
                let message = |id| Remind {
                    id,
                    actor_type,
                    actor_id,
                    name,
                    due_time,
                    period,
                    data,
                    metadata,
                };
                self.ask(by, |id| ToApp::ReminderRequest(message(id))).await?
            }
        };
        Ok(answer(answered, called.as_deref())?)
    }

    async fn deactivate(&self, actor: &Actor) {
        let (actor_type, actor_id) = (actor.actor_type.to_string(), actor.id.to_string());
        let message = |id| ToApp::DeactivateRequest(Deactivate { id, actor_type, actor_id });
        if let Ok(FromApp::RequestFailed(failed)) = self.ask(None, message).await {
            let (kind, id) = (&actor.actor_type, &actor.id);
            tracing::warn!(%kind, %id, reason = failed.message, "the app failed to deactivate an actor");
        }
    }
}

/// What a message of the app means for a turn: of this method, or a firing.
fn answer(said: FromApp, method: Option<&str>) -> Result<Answer, Problem> {
    match said {
        FromApp::InvokeResponse(answer) => {
            let read =
                |(name, value): (String, String)| Some((name.parse().ok()?, value.parse().ok()?));
            let mut fields = answer.metadata.into_iter().filter_map(read).collect::<HeaderMap>();
            if answer.error {
                // As an app over HTTP marks it: the error is the answer.
                fields.insert(ACTOR_ERROR, HeaderValue::from_static("true"));
            }
            Ok(Answer { fields, body: answer.data.into(), cancels: false })
        }
        FromApp::ReminderResponse(answer) | FromApp::TimerResponse(answer) => {
            Ok(Answer { cancels: answer.cancel, ..Answer::default() })
        }
        FromApp::DeactivateResponse(_) => Ok(Answer::default()),
        FromApp::RequestFailed(failed) => {
            let text = match method.filter(|_| failed.code == NOT_FOUND) {
                Some(method) => format!("actor method not found: {method}"),
                None => format!("error from actor service: {}", failed.message),
            };
            Err(Problem::invoke(&text))
        }
        FromApp::InitialRequest(_) => Err(Problem::invoke("the app answered nothing")),
    }
}

/// Fields as metadata, the chain of calls by the name that Dapr gives it. Values that are not text are
/// left out.
fn metadata(fields: &HeaderMap) -> HashMap<String, String> {
    let read = |(name, value): (&HeaderName, &HeaderValue)| {
        let name = if name == REENTRANCY { CHAIN } else { name.as_str() };
        Some((name.to_owned(), value.to_str().ok()?.to_owned()))
    };
    fields.iter().filter_map(read).collect()
}

/// Reads the types that an app offers by the first message of its stream.
///
/// # Errors
/// The mistake, as text.
fn offered(initial: Initial) -> Result<Types, String> {
    let time = |time: Option<prost_types::Duration>| {
        let time = time.and_then(|time| Duration::try_from(time).ok());
        time.filter(|time| !time.is_zero())
    };
    let reentrancy = |said: Option<ActorReentrancyConfig>| {
        said.map(|said| Reentrancy {
            enabled: said.enabled,
            max_stack_depth: said.max_stack_depth.and_then(|depth| usize::try_from(depth).ok()),
        })
    };
    let general = TypeSettings {
        idle: time(initial.actor_idle_timeout),
        drain: time(initial.drain_ongoing_call_timeout),
        drains: initial.drain_rebalanced_actors,
        reentrancy: reentrancy(initial.reentrancy),
    };
    let special = initial.entities_config.into_iter().map(|part| {
        let said = TypeSettings {
            idle: time(part.actor_idle_timeout),
            drain: time(part.drain_ongoing_call_timeout),
            drains: part.drain_rebalanced_actors,
            reentrancy: reentrancy(part.reentrancy),
        };
        (part.entities, said)
    });
    types(&initial.entities, &general, special.collect())
}

impl Actors {
    /// Serves the stream of an app that hosts actors over it.
    ///
    /// # Errors
    /// The first message is not valid, or the app is called over HTTP.
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        mut messages: Streaming<AppMessage>,
    ) -> Result<Response<ToAppStream>, Status> {
        if self.http_app.is_some() {
            let text = "the app is called over HTTP: its actors are too (--app-protocol grpc, or no \
                        --app-port, for actors over this stream)";
            return Err(Status::failed_precondition(text));
        }
        let first = tokio::time::timeout(OPEN_WITHIN, messages.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("nothing was said in time"))??;
        let Some(FromApp::InitialRequest(initial)) = first.and_then(|first| first.request_type)
        else {
            return Err(Status::invalid_argument("the first message says what the app offers"));
        };
        let types = offered(initial).map_err(Status::invalid_argument)?;
        let (sender, receiver) = mpsc::channel(MESSAGES);
        let opened = Message { response_type: Some(ToApp::InitialResponse(Opened {})) };
        // The channel is empty, so it accepts the message.
        let _ = sender.try_send(Ok(opened).into());
        let waiting = Arc::new(PendingAnswers::default());
        let outgoing =
            ToAppStream { messages: receiver, waiting: Arc::clone(&waiting), clock: self.clock };
        let app = Arc::new(StreamApp { messages: sender, waiting, last: AtomicU64::new(1) });
        let opened = self.streams.enter(types, Arc::clone(&app)).ok_or_else(|| {
            let text = format!("the app has {ACTOR_STREAMS} streams of actor events; end others");
            Status::resource_exhausted(text)
        })?;
        if opened.is_to_be_hosted {
            tokio::spawn(Arc::clone(self).host_streams());
        }
        let streams = Arc::clone(&self.streams);
        tokio::spawn(async move {
            let why = app.listen(&mut messages).await;
            if let Some(why) = why {
                let _ = app.messages.send(Err(why).into()).await;
            }
            app.waiting.lock().clear();
            streams.leave(opened.number);
        });
        Ok(Response::new(outgoing))
    }

    /// Hosts the types of all open streams until there is none.
    async fn host_streams(self: Arc<Self>) {
        if let Some(announcer) = &self.announcer {
            announcer.announce(true);
        }
        let mut offered = self.streams.offered();
        loop {
            let types = offered.borrow_and_update().clone();
            if types.is_empty() {
                // Another stream may have come at this moment.
                if self.streams.end_hosting() { break } else { continue }
            }
            let (here, is_here) = watch::channel(true);
            let side: Arc<dyn AppSide> = Arc::clone(&self.streams) as Arc<dyn AppSide>;
            let mut hosting = pin!(self.host(types.clone(), side, is_here));
            // The sender lives as long as the streams do.
            let changed = async { drop(offered.wait_for(|now| *now != types).await) };
            tokio::select! {
                () = &mut hosting => {}
                () = changed => {
                    here.send_replace(false);
                    hosting.await;
                }
            }
            if self.is_ending() {
                break;
            }
        }
        if let Some(announcer) = &self.announcer {
            announcer.announce(false);
        }
    }
}

impl StreamApp {
    /// Receives messages until the stream ends. Returns the app's mistake, if it made one.
    async fn listen(&self, messages: &mut Streaming<AppMessage>) -> Option<Status> {
        loop {
            tokio::select! {
                message = messages.message() => match message {
                    Ok(Some(message)) => {
                        if let Err(why) = self.receive(message.request_type) {
                            return Some(why);
                        }
                    }
                    Ok(None) | Err(_) => return None,
                },
                () = self.messages.closed() => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests;
