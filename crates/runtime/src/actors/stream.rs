//! An app that runs its actors over a stream of gRPC which it has opened itself
//! (`SubscribeActorEventsAlpha1`): it needs no port of its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::HeaderMap;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tollway_placement::Actor;
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
use super::app::{Answer, AppSide, Event, Turn, Unanswered, What};
use super::clock::now;
use super::problem::Problem;
use super::settings::{Reentrancy, Said, Types, types};

/// What the app has not taken yet.
const MESSAGES: usize = 64;
/// Time for the first message.
const OPEN_WITHIN: Duration = Duration::from_secs(10);

/// The code of gRPC by which an app says that it has no such method.
const NOT_FOUND: u32 = 5;

/// The sidecar's end of the stream.
struct StreamApp {
    messages: mpsc::Sender<Result<Message, Status>>,
    /// Who waits for the answer to a message.
    waiting: Mutex<HashMap<String, oneshot::Sender<FromApp>>>,
    last: AtomicU64,
}

impl StreamApp {
    /// The app's answer to a message under an id of its own.
    ///
    /// # Errors
    /// The stream has ended.
    async fn ask(&self, message: impl FnOnce(String) -> ToApp) -> Result<FromApp, Problem> {
        let id = self.last.fetch_add(1, Ordering::Relaxed).to_string();
        let (answer, answered) = oneshot::channel();
        self.waiting().insert(id.clone(), answer);
        let asked = Asked { app: self, id: id.clone() };
        let message = Message { response_type: Some(message(id)) };
        let gone = || Problem::invoke("the app's stream of actor events has ended");
        self.messages.send(Ok(message)).await.map_err(|_| gone())?;
        let answer = answered.await.map_err(|_| gone());
        drop(asked);
        answer
    }

    /// What the app says.
    ///
    /// # Errors
    /// It is not understood.
    fn heard(&self, said: Option<FromApp>) -> Result<(), Status> {
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
        let waiting = self.waiting().remove(id);
        if let Some(waiting) = waiting {
            // Whoever asked may have gone away.
            let _ = waiting.send(said);
        }
        Ok(())
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<FromApp>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message that waits for its answer; dropped, nobody does any more.
struct Asked<'a> {
    app: &'a StreamApp,
    id: String,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.app.waiting().remove(&self.id);
    }
}

#[tonic::async_trait]
impl AppSide for StreamApp {
    async fn run(&self, turn: Turn, begin_by: Duration) -> Result<Answer, Unanswered> {
        if now() >= begin_by {
            return Err(Unanswered::TooLate);
        }
        let Turn { actor, what, fields, body } = turn;
        let (actor_type, actor_id) = (actor.actor_type.to_string(), actor.id.to_string());
        let metadata = metadata(&fields);
        let answered = match what {
            What::Method { name: method, .. } => {
                let data = body.to_vec();
                let message = |id| Invoke { id, actor_type, actor_id, method, data, metadata };
                self.ask(|id| ToApp::InvokeRequest(message(id))).await?
            }
            What::Timer { name, event } => {
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
                self.ask(|id| ToApp::TimerRequest(message(id))).await?
            }
            What::Reminder { name, event } => {
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
                self.ask(|id| ToApp::ReminderRequest(message(id))).await?
            }
        };
        Ok(answer(answered)?)
    }

    async fn let_go(&self, actor: &Actor) {
        let (actor_type, actor_id) = (actor.actor_type.to_string(), actor.id.to_string());
        let message = |id| ToApp::DeactivateRequest(Deactivate { id, actor_type, actor_id });
        if let Ok(FromApp::RequestFailed(failed)) = self.ask(message).await {
            let (kind, id) = (&actor.actor_type, &actor.id);
            tracing::warn!(%kind, %id, reason = failed.message, "the app was to let go of an actor, and failed");
        }
    }
}

fn answer(said: FromApp) -> Result<Answer, Problem> {
    match said {
        FromApp::InvokeResponse(answer) => {
            let read =
                |(name, value): (String, String)| Some((name.parse().ok()?, value.parse().ok()?));
            if answer.error {
                // As an app is that answers 500 over HTTP.
                let words = String::from_utf8_lossy(&answer.data);
                return Err(Problem::invoke(&format!("error from actor service: (500) {words}")));
            }
            let fields = answer.metadata.into_iter().filter_map(read).collect::<HeaderMap>();
            Ok(Answer { fields, body: answer.data.into(), cancels: false })
        }
        FromApp::ReminderResponse(answer) | FromApp::TimerResponse(answer) => {
            Ok(Answer { cancels: answer.cancel, ..Answer::default() })
        }
        FromApp::DeactivateResponse(_) => Ok(Answer::default()),
        FromApp::RequestFailed(failed) => {
            let text = match failed.code {
                NOT_FOUND => format!("actor method not found: {}", failed.message),
                code => format!("error from actor service: ({code}) {}", failed.message),
            };
            Err(Problem::invoke(&text))
        }
        FromApp::InitialRequest(_) => Err(Problem::invoke("the app answered nothing")),
    }
}

/// Fields as metadata; what is no text is left out.
fn metadata(fields: &HeaderMap) -> HashMap<String, String> {
    let read = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
        Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
    };
    fields.iter().filter_map(read).collect()
}

/// What an app offers by the first message of its stream.
///
/// # Errors
/// What is wrong, in words.
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
    let general = Said {
        idle: time(initial.actor_idle_timeout),
        drain: time(initial.drain_ongoing_call_timeout),
        drains: initial.drain_rebalanced_actors,
        reentrancy: reentrancy(initial.reentrancy),
    };
    let special = initial.entities_config.into_iter().map(|part| {
        let said = Said {
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
    /// Serves the stream of an app that offers actors by it.
    ///
    /// # Errors
    /// What the app says first is not understood, or it is an app that is called over HTTP.
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        mut messages: Streaming<AppMessage>,
    ) -> Result<Response<ReceiverStream<Result<Message, Status>>>, Status> {
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
        // It has room: nothing was sent yet.
        let _ = sender.try_send(Ok(opened));
        let app = Arc::new(StreamApp {
            messages: sender,
            waiting: Mutex::default(),
            last: AtomicU64::new(1),
        });
        let (here, is_here) = watch::channel(true);
        let actors = Arc::clone(self);
        let announcer = self.announcer.clone();
        tokio::spawn(async move {
            if let Some(announcer) = &announcer {
                announcer.announce(true);
            }
            let side: Arc<dyn AppSide> = app.clone();
            let hosting = tokio::spawn(async move { actors.host(types, side, is_here).await });
            let why = app.listen(&mut messages).await;
            if let Some(why) = why {
                let _ = app.messages.send(Err(why)).await;
            }
            app.waiting().clear();
            here.send_replace(false);
            // A panic was logged where it happened.
            let _ = hosting.await;
            if let Some(announcer) = &announcer {
                announcer.announce(false);
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

impl StreamApp {
    /// Takes answers until the stream ends; returns what the app did wrong, if it did.
    async fn listen(&self, messages: &mut Streaming<AppMessage>) -> Option<Status> {
        loop {
            tokio::select! {
                message = messages.message() => match message {
                    Ok(Some(message)) => {
                        if let Err(why) = self.heard(message.request_type) {
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
