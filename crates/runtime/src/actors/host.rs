//! The actors of this sidecar's app: carries out what [`Turns`] decides.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tollway_actors::placement::{
    Actor, Effect, Epoch, Held, NoTurn, Order, Refusal, Shard, ShardSet, Turns,
};
use tollway_proxy::TurnLease;
use tollway_telemetry::DaprMetrics;

use super::app::Unanswered;
use super::clock::Clock;
use super::problem::Problem;
use super::settings::Types;
use crate::loopback::Loopback;

/// Most turns that wait for one actor.
pub(crate) const ACTOR_TURNS_WAITING: usize = 1000;
/// How long the app may take to let go of an actor.
const DEACTIVATION: Duration = Duration::from_secs(5);
/// How long a turn that was called off may still go on in the app before it counts as ended.
const CALLED_OFF: Duration = Duration::from_secs(1);
/// How late it may be seen that an actor has been idle for long enough.
const CHECK_EVERY: Duration = Duration::from_millis(250);

/// A shard that is given back, and the grant that it was held by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GivenBack {
    pub(crate) actor_type: Arc<str>,
    pub(crate) shard: Shard,
    pub(crate) epoch: Epoch,
}

/// Shards that the host holds from now on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Granted {
    pub(crate) actor_type: Arc<str>,
    pub(crate) shards: ShardSet,
    pub(crate) epoch: Epoch,
}

/// Has the app let go of an actor.
pub(crate) type Deactivate = Box<dyn Fn(Actor) -> tokio::task::JoinHandle<()> + Send + Sync>;

/// The actors that the app beside this sidecar runs.
pub(crate) struct Host {
    inner: Mutex<Inner>,
    types: Types,
    deactivate: Deactivate,
    metrics: Option<Arc<DaprMetrics>>,
    /// Where turns go out, which may wait there until the lease is over.
    loopback: Arc<dyn Loopback>,
    clock: Clock,
    given_back: mpsc::UnboundedSender<GivenBack>,
    granted: mpsc::UnboundedSender<Granted>,
    /// Something may be due earlier than it was.
    sooner: Notify,
}

struct Inner {
    turns: Turns,
    last_turn: u64,
    asked: HashMap<u64, oneshot::Sender<Result<Begun, NoTurn>>>,
    running: HashMap<u64, CancellationToken>,
    /// What the lease is told by from those before it.
    lease: u64,
}

/// A turn that may be run now, while the grant of this epoch stands.
struct Begun {
    epoch: Epoch,
    called_off: CancellationToken,
}

/// Why there is no result of a turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NotRun {
    /// It did not begin.
    No(NoTurn),
    /// The app did not do it.
    Failed(Problem),
    /// It had begun when the actor had to go elsewhere.
    CalledOff,
}

/// A turn that was asked for, until it is over: dropped, the next one begins.
struct Ticket {
    host: Arc<Host>,
    turn: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.host.close(self.turn);
    }
}

/// The number of a lease. What was begun under another is late, though this one stands.
fn another_lease() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

impl Host {
    /// Of an app that offers these types. What it gives back, and what it is granted, comes by the
    /// receivers.
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

    /// The chain of calls that a turn of this type belongs to: the one that its caller has said,
    /// or a new one. `None` where calls do not come back to actors of the type.
    pub(crate) fn chain(&self, actor_type: &str, said: Option<&str>) -> Option<Arc<str>> {
        self.types.get(actor_type)?.reentrancy?;
        Some(said.map_or_else(|| uuid::Uuid::new_v4().to_string().into(), Arc::from))
    }

    /// Actors that the app has, by type.
    pub(crate) fn counts(&self) -> Vec<(String, usize)> {
        self.inner().turns.counts().map(|(name, count)| (name.to_owned(), count)).collect()
    }

    /// Turns that wait, by type.
    pub(crate) fn waiting(&self) -> Vec<(String, usize)> {
        self.inner().turns.waiting().map(|(name, count)| (name.to_owned(), count)).collect()
    }

    /// Runs `work` when it is the actor's turn, as a part of this chain of calls; it is told from
    /// when on it must not begin in the app any more. Whoever asked may go away: a turn that has
    /// begun goes on until its end.
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
            // Whoever asked may have gone away: what is said then nobody hears.
            let Begun { epoch, called_off } = match begun {
                Ok(Ok(begun)) => begun,
                Ok(Err(why)) => return drop(answer.send(Err(NotRun::No(why)))),
                // The host is gone.
                Err(_) => return,
            };
            // The process may have stood still since that was decided: what could begin then may
            // have no time to end in now.
            let lease = host.lease(&actor, epoch).filter(|_| !called_off.is_cancelled());
            let Some(lease) = lease else {
                let why = NoTurn::Elsewhere(Refusal::LeaseEnded);
                return drop(answer.send(Err(NotRun::No(why))));
            };
            let mut work = pin!(work(lease));
            tokio::select! {
                // It has begun before it can be called off.
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

    /// Under which epoch an actor may write now; `None` where it is not active here.
    pub(crate) fn may_write(&self, actor: &Actor) -> Option<Epoch> {
        self.inner().turns.may_write(actor, self.clock.now())
    }

    /// Under which epoch the shard of an actor is held, active or not; `None` if it is not.
    pub(crate) fn epoch(&self, actor: &Actor) -> Option<Epoch> {
        let shard = Shard::of(&actor.id);
        self.inner().turns.holdings().may_write(&actor.actor_type, shard, self.clock.now())
    }

    /// Whether a grant stands.
    pub(crate) fn holds(&self, actor_type: &str, shard: Shard, epoch: Epoch) -> bool {
        self.inner().turns.holdings().may_write(actor_type, shard, self.clock.now()) == Some(epoch)
    }

    /// Under which lease a turn that was begun under this epoch has to begin in the app, and by when;
    /// `None` if it must not any more. A turn that was begun before its shard was asked back still
    /// may.
    fn lease(&self, actor: &Actor, epoch: Epoch) -> Option<TurnLease> {
        let (shard, mut inner) = (Shard::of(&actor.id), self.inner());
        let holdings = inner.turns.holdings();
        let stands = match holdings.may_begin(&actor.actor_type, shard, self.clock.now()) {
            Ok(held) => held == epoch,
            Err(Refusal::Leaving) => {
                holdings.may_write(&actor.actor_type, shard, self.clock.now()) == Some(epoch)
            }
            Err(Refusal::NotHere | Refusal::LeaseEnded) => false,
        };
        let until = holdings.begin_by().filter(|_| stands)?;
        Some(TurnLease { number: inner.lease, until })
    }

    /// What is held of a type.
    pub(crate) fn held(&self, actor_type: &str) -> BTreeMap<Shard, Epoch> {
        self.inner().turns.holdings().held(actor_type, self.clock.now())
    }

    /// What to enter with.
    pub(crate) fn to_enter(self: &Arc<Self>) -> Held {
        let mut inner = self.inner();
        let (held, effects) = inner.turns.to_enter(self.clock.now());
        self.carry_out(&mut inner, effects);
        held
    }

    /// Entered by what was asked at `asked`.
    pub(crate) fn entered(&self, asked: Duration, lasts: Duration) {
        let mut inner = self.inner();
        inner.lease = another_lease();
        inner.turns.holdings().entered(asked, lasts);
        drop(inner);
        self.sooner.notify_one();
    }

    /// The lease was renewed by what was asked at `asked`.
    pub(crate) fn lease_renewed(&self, asked: Duration) {
        let mut inner = self.inner();
        let holdings = inner.turns.holdings();
        let has_ended = holdings.ends().is_none_or(|ends| self.clock.now() >= ends);
        holdings.kept(asked);
        let until = holdings.begin_by();
        if has_ended {
            inner.lease = another_lease();
        } else if let Some(until) = until {
            self.loopback.lease_renewed(TurnLease { number: inner.lease, until });
        }
    }

    /// When the lease has to be asked for anew; `None` without one.
    pub(crate) fn renew_at(&self) -> Option<Duration> {
        self.inner().turns.holdings().renew_at()
    }

    /// Whether no shard is held.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.inner().turns.holdings().counts().all(|(_, count)| count == 0)
    }

    /// Does what the control plane orders.
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
            // Who would hear of it is gone only when the host is.
            let _ =
                self.granted.send(Granted { actor_type, shards: shards.clone(), epoch: *epoch });
        }
        self.sooner.notify_one();
    }

    /// Does what is due, again and again.
    pub(crate) async fn run_timers(self: Arc<Self>) {
        loop {
            let pause = self.run_due().min(CHECK_EVERY);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.sooner.notified() => {}
            }
        }
    }

    /// Does what is due now; returns in how long something is again.
    fn run_due(self: &Arc<Self>) -> Duration {
        let mut inner = self.inner();
        let now = self.clock.now();
        let effects = inner.turns.look(now);
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
                        // Who went away meanwhile closes the ticket.
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
                    // Without a session nobody is to be told: the lease ends by itself.
                    let _ = self.given_back.send(GivenBack { actor_type, shard, epoch });
                }
            }
        }
    }

    fn deactivate(self: &Arc<Self>, actor: Actor) {
        let letting_go = (self.deactivate)(actor.clone());
        let host = Arc::clone(self);
        tokio::spawn(async move {
            let has_let_go = tokio::time::timeout(DEACTIVATION, letting_go).await.is_ok();
            if let Some(metrics) = &host.metrics {
                metrics.runtime().deactivated(&actor.actor_type, has_let_go);
            }
            if !has_let_go {
                let (kind, id) = (&actor.actor_type, &actor.id);
                tracing::warn!(%kind, %id, "the app does not let go of an actor; it is let go all the same");
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
