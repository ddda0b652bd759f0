//! The open streams of an app: which of them gets a turn, and what all of them offer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tollway_actors::placement::Actor;
use tollway_proxy::TurnLease;

use super::{ACTOR_STREAMS, Answer, AppSide, Problem, StreamApp, Turn, Types, Unanswered};

/// The open streams of an app, in the order in which they were opened.
pub(crate) struct Streams {
    inner: Mutex<Inner>,
    /// The types of all of them; of a type that several offer, the settings of the newest.
    offered: watch::Sender<Types>,
}

#[derive(Default)]
struct Inner {
    open: Vec<OpenStream>,
    last: u64,
    /// A task hosts the types.
    is_hosted: bool,
}

struct OpenStream {
    number: u64,
    types: Types,
    app: Arc<StreamApp>,
}

/// A stream that was added.
pub(super) struct Opened {
    /// By which it is removed.
    pub(super) number: u64,
    /// A task is to be started that hosts the types.
    pub(super) is_to_be_hosted: bool,
}

impl Streams {
    pub(crate) fn new() -> Arc<Self> {
        let offered = watch::Sender::new(Types::new());
        Arc::new(Self { inner: Mutex::default(), offered })
    }

    /// What all streams offer, now and later.
    pub(super) fn offered(&self) -> watch::Receiver<Types> {
        self.offered.subscribe()
    }

    /// Adds a stream; `None` if there are too many.
    pub(super) fn enter(&self, types: Types, app: Arc<StreamApp>) -> Option<Opened> {
        let mut inner = self.inner();
        if inner.open.len() >= ACTOR_STREAMS {
            return None;
        }
        inner.last += 1;
        let number = inner.last;
        inner.open.push(OpenStream { number, types, app });
        self.note(&inner);
        let is_to_be_hosted = !inner.is_hosted && !self.offered.borrow().is_empty();
        inner.is_hosted |= is_to_be_hosted;
        Some(Opened { number, is_to_be_hosted })
    }

    /// Removes a stream.
    pub(super) fn leave(&self, number: u64) {
        let mut inner = self.inner();
        inner.open.retain(|stream| stream.number != number);
        self.note(&inner);
    }

    /// Takes note that no task hosts the types any more; false if there are some.
    pub(super) fn end_hosting(&self) -> bool {
        let mut inner = self.inner();
        inner.is_hosted = !self.offered.borrow().is_empty();
        !inner.is_hosted
    }

    fn note(&self, inner: &Inner) {
        let mut all = Types::new();
        for stream in &inner.open {
            all.extend(stream.types.clone());
        }
        self.offered.send_if_modified(|offered| {
            let is_new = *offered != all;
            *offered = all;
            is_new
        });
    }

    /// The newest stream that offers the type of an actor.
    fn of(&self, actor: &Actor) -> Option<Arc<StreamApp>> {
        let inner = self.inner();
        let offers = |stream: &&OpenStream| stream.types.contains_key(&actor.actor_type);
        inner.open.iter().rev().find(offers).map(|stream| Arc::clone(&stream.app))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl AppSide for Streams {
    async fn run(&self, turn: Turn, lease: TurnLease) -> Result<Answer, Unanswered> {
        match self.of(&turn.actor) {
            Some(app) => app.run(turn, lease).await,
            None => Err(Problem::invoke("the app's stream of actor events has ended").into()),
        }
    }

    async fn deactivate(&self, actor: &Actor) {
        if let Some(app) = self.of(actor) {
            app.deactivate(actor).await;
        }
    }
}
