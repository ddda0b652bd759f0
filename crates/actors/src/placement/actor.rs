//! An actor as its host knows it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// An actor.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Actor {
    pub actor_type: Arc<str>,
    pub id: Arc<str>,
}

/// How the actors of a type are run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TypeOptions {
    /// One that has had no turn for so long is deactivated.
    pub idle: Duration,
    /// How long a turn under way may continue after its shard is asked back; then it is cancelled.
    /// Zero: not at all.
    pub drain: Duration,
    /// How deep a chain of calls may come back to an actor that is in it; `None`: a call that comes
    /// back waits for the turn that made it, and so for ever.
    pub reentrancy: Option<usize>,
}

/// One actor.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) running: Vec<Running>,
    /// The call chain of the turns under way.
    pub(crate) chain: Option<Arc<str>>,
    pub(crate) waiting: VecDeque<Waiting>,
    /// The time since which no turn is under way.
    pub(crate) idle_since: Duration,
    /// Its entry in the heap of idle checks.
    pub(crate) check: u64,
    pub(crate) rest: Rest,
}

/// Whether an actor is to be let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    Active,
    /// Once its turns have ended.
    Due,
    /// The app is being notified.
    UnderWay,
}

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) turn: u64,
    pub(crate) is_called_off: bool,
}

#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) turn: u64,
    pub(crate) chain: Option<Arc<str>>,
}

impl State {
    /// Of an actor that has been activated now.
    pub(crate) fn new(now: Duration, check: u64) -> Self {
        Self {
            running: Vec::new(),
            chain: None,
            waiting: VecDeque::new(),
            idle_since: now,
            check,
            rest: Rest::Active,
        }
    }

    /// One of its turns begins.
    pub(crate) fn begin(&mut self, asked: Waiting) {
        self.running.push(Running { turn: asked.turn, is_called_off: false });
        if self.chain.is_none() {
            self.chain = asked.chain;
        }
    }
}
