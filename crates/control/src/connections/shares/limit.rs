//! The owner of what is shared: hands out shares, and evicts those that give way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio_util::sync::{CancellationToken, DropGuard};
use tollway_model::ErrorCode;
use tollway_telemetry::LogLimiter;
use tonic::Status;
use tracing::warn;

use super::{Decision, Holder, Level, Limits, Own, Shares};

/// Shares of one kind, up to its limits.
#[derive(Debug)]
pub(crate) struct ShareLimit {
    /// What is shared, in words for the log and for those that are refused.
    what: &'static str,
    own: Own,
    state: Mutex<State>,
    refused: AtomicU64,
    evicted: AtomicU64,
}

#[derive(Debug)]
struct State {
    shares: Shares,
    tokens: HashMap<u64, Tokens>,
    log: LogLimiter,
}

/// Cancelled to evict a share, and when it is given back.
#[derive(Debug)]
struct Tokens {
    evicted: CancellationToken,
    released: CancellationToken,
}

/// What one holder has; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    limit: Arc<ShareLimit>,
    who: Holder,
    number: u64,
    evicted: CancellationToken,
    // Dropped last: once it is cancelled, everything that the share stands for is gone.
    _released: DropGuard,
}

/// Why a share was not given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    what: &'static str,
    level: Level,
    limit: u64,
}

impl Refused {
    pub(crate) fn status(&self) -> Status {
        let Self { what, level, limit } = self;
        let text = format!(
            "the {} has as many {what} as it may, {limit}; end some, or raise the limit at the control plane",
            level.word()
        );
        tollway_wire::with_code(Status::resource_exhausted(text), ErrorCode::ShareExceeded)
    }
}

/// The status of what was evicted.
pub(crate) fn evicted_status() -> Status {
    let text = "another one took its place, because this identity had most; use fewer at a time";
    tollway_wire::with_code(Status::resource_exhausted(text), ErrorCode::ShareExceeded)
}

impl ShareLimit {
    /// `own` states whether a holder's oldest gives way to its newest.
    pub(crate) fn new(what: &'static str, limits: Limits, own: Own) -> Arc<Self> {
        let state = State {
            shares: Shares::new(limits),
            tokens: HashMap::new(),
            log: LogLimiter::default(),
        };
        Arc::new(Self {
            what,
            own,
            state: Mutex::new(state),
            refused: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        })
    }

    /// A share of `amount`; those that give way for it are evicted, and may be gone a little later.
    ///
    /// # Errors
    /// [`Refused`] if no other has more.
    pub(crate) fn acquire(self: &Arc<Self>, who: &Holder, amount: u64) -> Result<Share, Refused> {
        self.take(who, amount).map(|(share, _)| share)
    }

    /// The same, once those that gave way are gone.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    pub(crate) async fn acquire_freed(self: &Arc<Self>, who: &Holder) -> Result<Share, Refused> {
        let (share, leaving) = self.take(who, 1)?;
        for released in leaving {
            released.cancelled().await;
        }
        Ok(share)
    }

    fn take(
        self: &Arc<Self>,
        who: &Holder,
        amount: u64,
    ) -> Result<(Share, Vec<CancellationToken>), Refused> {
        let mut state = self.state();
        let leaving = self.make_space(&mut state, who, amount)?;
        let number = state.shares.add(who, amount);
        let (evicted, released) = (CancellationToken::new(), CancellationToken::new());
        let tokens = Tokens { evicted: evicted.clone(), released: released.clone() };
        state.tokens.insert(number, tokens);
        drop(state);
        let _released = released.drop_guard();
        Ok((Share { limit: self.clone(), who: who.clone(), number, evicted, _released }, leaving))
    }

    /// Evicts what gives way for `amount` more of `who`. Returns what ends when they are gone.
    fn make_space(
        &self,
        state: &mut State,
        who: &Holder,
        amount: u64,
    ) -> Result<Vec<CancellationToken>, Refused> {
        let mut leaving = Vec::new();
        loop {
            match state.shares.decide(who, amount, self.own) {
                Decision::Admit => return Ok(leaving),
                Decision::Evict { number, level } => {
                    self.evicted.fetch_add(1, Ordering::Relaxed);
                    if let Some(holder) = state.shares.holder(number)
                        && let Some(left_out) =
                            state.log.admit("evicted", holder.to_string(), now())
                    {
                        let (what, limit) = (self.what, level.word());
                        warn!(code = %ErrorCode::ShareExceeded, %holder, newcomer = %who, what, limit, left_out, "the oldest of the identity that has most was evicted");
                    }
                    state.shares.remove(number);
                    if let Some(tokens) = state.tokens.remove(&number) {
                        tokens.evicted.cancel();
                        leaving.push(tokens.released);
                    }
                }
                Decision::Refuse { level, limit } => {
                    return Err(self.refuse(state, who, Refused { what: self.what, level, limit }));
                }
            }
        }
    }

    /// Counts that `who` came too often, more than `per_second` for a while.
    pub(crate) fn refuse_pace(&self, who: &Holder, per_second: u32) -> Refused {
        let refused = Refused { what: self.what, level: Level::Instance, limit: per_second.into() };
        self.refuse(&mut self.state(), who, refused)
    }

    fn refuse(&self, state: &mut State, who: &Holder, refused: Refused) -> Refused {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(left_out) = state.log.admit("refused", who.to_string(), now()) {
            let Refused { what, level, limit } = &refused;
            warn!(code = %ErrorCode::ShareExceeded, holder = %who, what, level = level.word(), limit, left_out, "an identity was refused more than its share");
        }
        refused
    }

    /// What all hold.
    pub(crate) fn held(&self) -> u64 {
        self.state().shares.all()
    }

    /// How often one was refused, and how often one gave way.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Cancelled when the share is evicted: what it stands for must end.
    pub(crate) fn evicted(&self) -> &CancellationToken {
        &self.evicted
    }

    /// Takes `amount` more.
    ///
    /// # Errors
    /// As [`ShareLimit::acquire`]; then it has what it had.
    pub(crate) fn grow(&self, amount: u64) -> Result<(), Refused> {
        let mut state = self.limit.state();
        self.limit.make_space(&mut state, &self.who, amount)?;
        state.shares.grow(self.number, amount);
        Ok(())
    }

    /// Gives `amount` back.
    pub(crate) fn shrink(&self, amount: u64) {
        self.limit.state().shares.shrink(self.number, amount);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.limit.state();
        state.shares.remove(self.number);
        state.tokens.remove(&self.number);
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(own: Own) -> Arc<ShareLimit> {
        ShareLimit::new("streams", Limits::of(4, 2), own)
    }

    fn who(instance: &str) -> Holder {
        Holder::new("shop", "web", instance)
    }

    #[test]
    fn what_is_dropped_is_given_back() {
        let limit = limit(Own::Stays);
        let share = limit.acquire(&who("a"), 1).ok().unwrap();
        share.grow(1).unwrap();
        let refused = share.grow(1).unwrap_err();
        assert_eq!((refused.level, refused.limit), (Level::Instance, 2));
        let status = refused.status();
        assert_eq!(tollway_wire::code_of(&status).unwrap().word(), "ERR_SHARE_EXCEEDED");
        share.shrink(1);
        share.grow(1).unwrap();
        drop(share);
        assert_eq!((limit.held(), limit.refused(), limit.evicted()), (0, 1, 0));
        assert!(limit.state().tokens.is_empty());
    }

    #[tokio::test]
    async fn a_newcomer_waits_until_what_gave_way_is_gone() {
        let limit = limit(Own::GivesWay);
        let [first, _second] = [(); 2].map(|()| limit.acquire(&who("a"), 1).ok().unwrap());
        let evicted = first.evicted().clone();
        let ending = async {
            evicted.cancelled().await;
            assert_eq!(limit.held(), 2, "the place is taken already");
            drop(first);
        };
        let newcomer = who("a");
        let (third, ()) = tokio::join!(limit.acquire_freed(&newcomer), ending);
        assert!(third.is_ok() && limit.evicted() == 1 && limit.held() == 2);
    }
}
