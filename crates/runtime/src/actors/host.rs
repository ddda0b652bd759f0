//! The actors of this sidecar's app. This module carries out what [`Turns`] decides; `lease` has
//! the lease and the shards.

mod lease;
mod outcomes;

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tollway_actors::placement::{
    Actor, Effect, Epoch, NoTurn, Order, Refusal, Shard, ShardSet, Turns,
};
use tollway_model::ErrorCode;
use tollway_proxy::TurnLease;
use tollway_telemetry::DaprMetrics;
use tollway_wire::v1;

use self::lease::another_lease;
use self::outcomes::{Outcomes, Unstored};
use super::app::Unanswered;
use super::clock::Clock;
use super::problem::Problem;
use super::settings::Types;
use crate::loopback::Loopback;

/// Most turns that wait for one actor.
pub(crate) const ACTOR_TURNS_WAITING: usize = 1000;
/// Time for the app to deactivate an actor.
const DEACTIVATION: Duration = Duration::from_secs(5);
/// Time after which a turn that was called off counts as ended, even if the app goes on with it.
const CALLED_OFF: Duration = Duration::from_secs(1);
/// Longest delay until an idle actor is noticed.
const CHECK_EVERY: Duration = Duration::from_millis(250);

/// A shard that is given back, and the grant that it was held by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GivenBack {
    pub(crate) actor_type: Arc<str>,
    pub(crate) shard: Shard,
    pub(crate) epoch: Epoch,
}

/// Shards that the host has been granted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Granted {
    pub(crate) actor_type: Arc<str>,
    pub(crate) shards: ShardSet,
    pub(crate) epoch: Epoch,
}

/// Has the app deactivate an actor.
pub(crate) type Deactivate = Box<dyn Fn(Actor) -> tokio::task::JoinHandle<()> + Send + Sync>;

/// The actors that this sidecar's app runs.
pub(crate) struct Host {
    inner: Mutex<Inner>,
    types: Types,
    deactivate: Deactivate,
    metrics: Option<Arc<DaprMetrics>>,
    /// The data loop, where turns may wait until the lease ends.
    loopback: Arc<dyn Loopback>,
    clock: Clock,
    given_back: mpsc::UnboundedSender<GivenBack>,
    granted: mpsc::UnboundedSender<Granted>,
    /// Of reminders that fired.
    outcomes: Arc<Outcomes>,
    /// Notified when something may be due earlier than before.
    sooner: Notify,
}

struct Inner {
    turns: Turns,
    last_turn: u64,
    asked: HashMap<u64, oneshot::Sender<Result<Begun, NoTurn>>>,
    running: HashMap<u64, CancellationToken>,
    /// The number of the present lease.
    lease: u64,
    /// The control plane has admitted the host, now or earlier.
    has_entered: bool,
    /// Types that the app offers and that are not hosted here, with the reason.
    refused: BTreeMap<String, Problem>,
}

/// A turn that may run while the grant of this epoch is valid.
struct Begun {
    epoch: Epoch,
    called_off: CancellationToken,
}

/// Why a turn has no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NotRun {
    /// It did not begin.
    No(NoTurn),
    /// The app failed.
    Failed(Problem),
    /// It had begun when the actor moved to another host.
    CalledOff,
}

/// A requested turn. Dropping it ends the turn, and the next one begins.
struct Ticket {
    host: Arc<Host>,
    turn: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.host.close(self.turn);
    }
}

impl Host {
    /// Creates the host of an app that offers these types. The receivers get what the host gives
    /// back and what it is granted.
    pub(crate) fn new(
        types: Types,
        deactivate: Deactivate,
        metrics: Option<Arc<DaprMetrics>>,
        loopback: Arc<dyn Loopback>,
        clock: Clock,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<GivenBack>, mpsc::UnboundedReceiver<Granted>) {
        let (given_back, back) = mpsc::unbounded_channel();
        let (granted, grants) = mpsc::unbounded_channel();
        let inner = Inner {
            turns: Turns::new(types.clone(), ACTOR_TURNS_WAITING),
            last_turn: 0,
            asked: HashMap::new(),
            running: HashMap::new(),
            lease: another_lease(),
            has_entered: false,
            refused: BTreeMap::new(),
        };
        let (inner, sooner) = (Mutex::new(inner), Notify::new());
        (
            Arc::new(Self {
                inner,
                types,
                deactivate,
                metrics,
                loopback,
                clock,
                given_back,
                granted,
                outcomes: Arc::default(),
                sooner,
            }),
            back,
            grants,
        )
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    pub(crate) fn types(&self) -> &Types {
        &self.types
    }

    /// Takes note of the types that the control plane does not let the app host.
    pub(crate) fn set_refused(&self, refused: &[v1::RefusedType]) {
        let problem = |refused: &v1::RefusedType| {
            let code = ErrorCode::from_word(&refused.code).unwrap_or(ErrorCode::ActorTypeTaken);
            (refused.actor_type.clone(), Problem::new(code, refused.message.clone()))
        };
        let is_offered = |it: &&v1::RefusedType| self.types.contains_key(it.actor_type.as_str());
        let refused: BTreeMap<String, Problem> =
            refused.iter().filter(is_offered).map(problem).collect();
        let mut inner = self.inner();
        for (actor_type, problem) in &refused {
            if inner.refused.get(actor_type) != Some(problem) {
                let (code, reason) = (problem.code.word(), &problem.text);
                tracing::warn!(actor_type, code, reason, "actors of a type are not hosted here");
            }
        }
        for actor_type in inner.refused.keys().filter(|it| !refused.contains_key(*it)) {
            tracing::info!(actor_type, "actors of a type are hosted here now");
        }
        inner.refused = refused;
    }

    /// Whether the app offers a type that the control plane lets it host.
    pub(crate) fn hosts(&self, actor_type: &str) -> bool {
        self.types.contains_key(actor_type) && !self.inner().refused.contains_key(actor_type)
    }

    /// Why a type that the app offers is not hosted here.
    pub(crate) fn refusal(&self, actor_type: &str) -> Option<Problem> {
        self.inner().refused.get(actor_type).cloned()
    }

    /// The types that the app offers and that are not hosted here, with the reason.
    pub(crate) fn refused(&self) -> BTreeMap<String, Problem> {
        self.inner().refused.clone()
    }

    /// The chain of calls that a turn of this type belongs to: the one that the caller named, or a
    /// new one. `None` if the type is not reentrant.
    pub(crate) fn chain(&self, actor_type: &str, said: Option<&str>) -> Option<Arc<str>> {
        self.types.get(actor_type)?.reentrancy?;
        Some(said.map_or_else(|| uuid::Uuid::new_v4().to_string().into(), Arc::from))
    }

    /// Active actors by type.
    pub(crate) fn counts(&self) -> Vec<(String, usize)> {
        self.inner().turns.counts().map(|(name, count)| (name.to_owned(), count)).collect()
    }

    /// Waiting turns by type.
    pub(crate) fn waiting(&self) -> Vec<(String, usize)> {
        self.inner().turns.waiting().map(|(name, count)| (name.to_owned(), count)).collect()
    }

    /// Runs `work` when it is the actor's turn, as a part of this chain of calls. `work` gets the
    /// lease under which it must begin at the app. A turn that has begun runs to its end, even if
    /// the caller drops the future.
    ///
    /// # Errors
    /// [`NotRun`].
    pub(crate) async fn turn<T: Send + 'static, F>(
        self: &Arc<Self>,
        actor: &Actor,
        chain: Option<Arc<str>>,
        work: impl FnOnce(TurnLease) -> F + Send + 'static,
    ) -> Result<T, NotRun>
    where
        F: Future<Output = Result<T, Unanswered>> + Send,
    {
        let (ticket, begins) = self.ask(actor, chain);
        let (mut answer, answered) = oneshot::channel();
        let (host, actor) = (Arc::clone(self), actor.clone());
        tokio::spawn(async move {
            let begun = tokio::select! {
                begun = begins => begun,
                () = answer.closed() => return,
            };
            // The caller may have dropped the future; then the result is not read.
            let Begun { epoch, called_off } = match begun {
                Ok(Ok(begun)) => begun,
                Ok(Err(why)) => return drop(answer.send(Err(NotRun::No(why)))),
                // The host is gone.
                Err(_) => return,
            };
            // The process may have been suspended since the turn was allowed to begin, and the
            // lease may have ended.
            let lease = host.lease(&actor, epoch).filter(|_| !called_off.is_cancelled());
            let Some(lease) = lease else {
                let why = NoTurn::Elsewhere(Refusal::LeaseEnded);
                return drop(answer.send(Err(NotRun::No(why))));
            };
            let mut work = pin!(work(lease));
            tokio::select! {
                // The turn must have begun before it is called off.
                biased;
                done = &mut work => {
                    drop(ticket);
                    let _ = answer.send(done.map_err(|why| match why {
                        Unanswered::Failed(problem) => NotRun::Failed(problem),
                        Unanswered::TooLate => {
                            NotRun::No(NoTurn::Elsewhere(Refusal::LeaseEnded))
                        }
                    }));
                }
                () = called_off.cancelled() => {
                    let _ = answer.send(Err(NotRun::CalledOff));
                    let _ = tokio::time::timeout(CALLED_OFF, work).await;
                    drop(ticket);
                }
            }
        });
        answered.await.unwrap_or(Err(NotRun::CalledOff))
    }

    /// A reminder of an actor is about to fire: its shard is given back when the outcome is stored. `None`
    /// if the actor is not at this host.
    pub(crate) fn unstored(&self, actor: &Actor) -> Option<Unstored> {
        let epoch = self.epoch(actor)?;
        let shard = (Arc::clone(&actor.actor_type), Shard::of(&actor.id));
        Some(self.outcomes.begin(shard, epoch))
    }

    fn ask(
        self: &Arc<Self>,
        actor: &Actor,
        chain: Option<Arc<str>>,
    ) -> (Ticket, oneshot::Receiver<Result<Begun, NoTurn>>) {
        let (begin, begins) = oneshot::channel();
        let mut inner = self.inner();
        inner.last_turn += 1;
        let turn = inner.last_turn;
        inner.asked.insert(turn, begin);
        let effects = inner.turns.ask(turn, actor, chain, self.clock.now());
        self.carry_out(&mut inner, effects);
        (Ticket { host: Arc::clone(self), turn }, begins)
    }

    fn close(self: &Arc<Self>, turn: u64) {
        let mut inner = self.inner();
        if inner.asked.remove(&turn).is_some() {
            return inner.turns.give_up(turn);
        }
        if inner.running.remove(&turn).is_some() {
            let effects = inner.turns.ended(turn, self.clock.now());
            self.carry_out(&mut inner, effects);
        }
    }

    /// Carries out an order of the control plane.
    pub(crate) fn obey(self: &Arc<Self>, order: &Order) {
        let mut inner = self.inner();
        let effects = inner.turns.obey(order, self.clock.now());
        self.carry_out(&mut inner, effects);
        drop(inner);
        if let (Order::GiveBack { actor_type, .. }, Some(metrics)) = (order, &self.metrics) {
            metrics.runtime().rebalanced(actor_type);
        }
        if let Order::Grant { actor_type, epoch, shards } = order
            && let Some((actor_type, _)) = self.types.get_key_value(actor_type.as_str())
        {
            let actor_type = Arc::clone(actor_type);
            // The receiver lives as long as the host.
            let _ =
                self.granted.send(Granted { actor_type, shards: shards.clone(), epoch: *epoch });
        }
        self.sooner.notify_one();
    }

    /// Does what is due, until the future is dropped.
    pub(crate) async fn run_timers(self: Arc<Self>) {
        loop {
            let pause = self.run_due().min(CHECK_EVERY);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.sooner.notified() => {}
            }
        }
    }

    /// Does what is due now. Returns the time until something is due again.
    fn run_due(self: &Arc<Self>) -> Duration {
        let mut inner = self.inner();
        let now = self.clock.now();
        let effects = inner.turns.sweep(now);
        self.carry_out(&mut inner, effects);
        inner.turns.next_moment().map_or(CHECK_EVERY, |at| at.saturating_sub(now))
    }

    fn carry_out(self: &Arc<Self>, inner: &mut Inner, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Begin { turn, epoch } => {
                    let called_off = CancellationToken::new();
                    inner.running.insert(turn, called_off.clone());
                    if let Some(begin) = inner.asked.remove(&turn) {
                        // If the caller has dropped the future, its ticket closes the turn.
                        let _ = begin.send(Ok(Begun { epoch, called_off }));
                    }
                }
                Effect::Refuse { turn, why } => {
                    if let Some(begin) = inner.asked.remove(&turn) {
                        let _ = begin.send(Err(why));
                    }
                }
                Effect::CallOff { turn } => {
                    if let Some(called_off) = inner.running.get(&turn) {
                        called_off.cancel();
                    }
                }
                Effect::Deactivate { actor } => self.deactivate(actor),
                Effect::GiveBack { actor_type, shard, epoch } => {
                    let of_type = (Arc::clone(&actor_type), shard);
                    let back = GivenBack { actor_type, shard, epoch };
                    let to_session = self.given_back.clone();
                    // Without a session the lease ends by itself.
                    let give_back = move || drop(to_session.send(back));
                    match self.outcomes.are_stored(&of_type) {
                        true => give_back(),
                        false => self.outcomes.then(of_type, give_back),
                    }
                }
            }
        }
    }

    fn deactivate(self: &Arc<Self>, actor: Actor) {
        let mut letting_go = (self.deactivate)(actor.clone());
        let host = Arc::clone(self);
        tokio::spawn(async move {
            let has_let_go = tokio::time::timeout(DEACTIVATION, &mut letting_go).await.is_ok();
            if let Some(metrics) = &host.metrics {
                metrics.runtime().deactivated(&actor.actor_type, has_let_go);
            }
            if !has_let_go {
                let (kind, id) = (&actor.actor_type, &actor.id);
                tracing::warn!(%kind, %id, "the app has not deactivated an actor in time");
                // A request that the app does not answer would hold up the end of the sidecar.
                letting_go.abort();
            }
            let mut inner = host.inner();
            let effects = inner.turns.deactivated(&actor, host.clock.now());
            host.carry_out(&mut inner, effects);
        });
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
