//! Decides what comes together: guards, limits of leases, revisions, one frame.
//!
//! A transaction sees those before it in its group as done, though nothing is durable yet. That
//! is sound because they share one frame: either all of them happen or none.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::time::Duration;

use tokio::sync::oneshot;

use super::State;
use super::format::FrameBuilder;
use super::writer::{Decided, FrameStep, Overlay, Request};
use crate::error::{LeaseError, TransactError};
use crate::model::{Expected, Guard, LeaseId, Limits, Op, Transaction};

/// What happens once the frame is durable, in order.
#[derive(Debug)]
pub(super) enum Effect {
    Transaction(Decided),
    LeaseGranted { lease: LeaseId, ttl: Duration },
    LeaseEnded { lease: LeaseId },
}

/// The answer to a caller once the frame is durable.
pub(super) enum Outcome {
    Transact(oneshot::Sender<Result<u64, TransactError>>, Result<u64, TransactError>),
    GrantLease(oneshot::Sender<Result<LeaseId, LeaseError>>, Result<LeaseId, LeaseError>),
    EndLease(oneshot::Sender<Result<(), LeaseError>>, Result<(), LeaseError>),
}

impl Outcome {
    /// Sends every caller its outcome, or the failure that `failure` gives instead. Callers
    /// that have gone away are skipped.
    pub(super) fn answer_all(
        outcomes: Vec<Self>,
        failure: impl Fn(&Self) -> Option<TransactError>,
    ) {
        for outcome in outcomes {
            let failed = failure(&outcome);
            match outcome {
                Self::Transact(reply, result) => {
                    let _ = reply.send(failed.map_or(result, Err));
                }
                Self::GrantLease(reply, result) => {
                    let failed = failed.map(|error| Err(LeaseError::Transact(error)));
                    let _ = reply.send(failed.unwrap_or(result));
                }
                Self::EndLease(reply, result) => {
                    let failed = failed.map(|error| Err(LeaseError::Transact(error)));
                    let _ = reply.send(failed.unwrap_or(result));
                }
            }
        }
    }
}

/// A decided group.
pub(super) struct Prepared {
    pub(super) frame: FrameBuilder,
    pub(super) effects: Vec<Effect>,
    pub(super) outcomes: Vec<Outcome>,
}

/// A group in the making.
pub(super) struct Group<'a> {
    state: &'a State,
    limits: Limits,
    frame: FrameBuilder,
    effects: Vec<Effect>,
    outcomes: Vec<Outcome>,
    revision: u64,
    next_lease: u64,
    lease_count: usize,
    /// Leases that this group grants (`true`) or ends.
    leases: HashMap<LeaseId, bool>,
    /// Puts of this group under each lease.
    lease_puts: HashMap<LeaseId, usize>,
    /// Covers the first `overlaid` effects; filled when it is needed.
    overlay: Overlay,
    overlaid: usize,
}

impl<'a> Group<'a> {
    pub(super) fn new(state: &'a State, limits: Limits) -> Self {
        Self {
            state,
            limits,
            frame: FrameBuilder::new(Vec::new()),
            effects: Vec::new(),
            outcomes: Vec::new(),
            revision: state.revision,
            next_lease: state.next_lease_id().0.get(),
            lease_count: state.leases().len(),
            leases: HashMap::new(),
            lease_puts: HashMap::new(),
            overlay: Overlay::new(),
            overlaid: 0,
        }
    }

    /// Bytes of the frame so far.
    pub(super) fn bytes(&self) -> usize {
        self.frame.len()
    }

    pub(super) fn add(&mut self, request: Request) {
        match request {
            Request::Transact { transaction, reply } => {
                let result = self.decide_transaction(&transaction);
                self.outcomes.push(Outcome::Transact(reply, result));
            }
            Request::GrantLease { ttl, reply } => {
                let result = self.decide_grant(ttl);
                self.outcomes.push(Outcome::GrantLease(reply, result));
            }
            Request::EndLease { lease, reply } => {
                let result = self.decide_end(lease);
                self.outcomes.extend(reply.map(|reply| Outcome::EndLease(reply, result)));
            }
        }
    }

    pub(super) fn finish(self) -> Prepared {
        Prepared { frame: self.frame, effects: self.effects, outcomes: self.outcomes }
    }

    fn decide_transaction(&mut self, transaction: &Transaction) -> Result<u64, TransactError> {
        for guard in &transaction.guards {
            self.check_guard(guard)?;
        }
        self.check_leases(&transaction.ops)?;
        let superseded = superseded_steps(&transaction.ops);
        let mut steps = Vec::with_capacity(transaction.ops.len());
        for (index, op) in transaction.ops.iter().enumerate() {
            if superseded.get(index) == Some(&true) {
                continue;
            }
            let no_change = matches!(op, Op::Delete { key } if self.revision_of(key).is_none());
            if !no_change {
                steps.push(op);
            }
        }
        if !steps.is_empty() {
            self.write_transaction(&steps);
        }
        Ok(self.revision)
    }

    fn decide_grant(&mut self, ttl: Duration) -> Result<LeaseId, LeaseError> {
        if self.lease_count >= self.limits.leases {
            return Err(LeaseError::TooMany { limit: self.limits.leases });
        }
        let lease = LeaseId(NonZeroU64::new(self.next_lease).unwrap_or(NonZeroU64::MIN));
        self.next_lease = self.next_lease.saturating_add(1);
        self.lease_count += 1;
        self.leases.insert(lease, true);
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.frame.lease_granted(lease, ttl_ms);
        self.effects.push(Effect::LeaseGranted { lease, ttl });
        Ok(lease)
    }

    /// Ends a lease. It is the first of its group, so its keys are those of the state.
    fn decide_end(&mut self, lease: LeaseId) -> Result<(), LeaseError> {
        let ended = self.state.lease(lease).ok_or(LeaseError::NoLease { lease })?;
        let deletes: Vec<Op> = ended
            .keys
            .iter()
            .map(|key| Op::Delete { key: bytes::Bytes::copy_from_slice(key) })
            .collect();
        if !deletes.is_empty() {
            self.write_transaction(&deletes.iter().collect::<Vec<_>>());
        }
        self.lease_count -= 1;
        self.leases.insert(lease, false);
        self.frame.lease_ended(lease);
        self.effects.push(Effect::LeaseEnded { lease });
        Ok(())
    }

    fn write_transaction(&mut self, steps: &[&Op]) {
        self.revision += 1;
        let count = u32::try_from(steps.len()).expect("steps are limited far below 2^32");
        self.frame.transaction(self.revision, count);
        for op in steps {
            if let Op::Put { lease: Some(lease), .. } = op {
                *self.lease_puts.entry(*lease).or_insert(0) += 1;
            }
        }
        let steps_in_frame = steps.iter().map(|op| match op {
            Op::Put { key, value, lease } => FrameStep {
                start: self.frame.put(key, value, *lease),
                key_length: key.len(),
                value_length: Some(value.len()),
                lease: *lease,
            },
            Op::Delete { key } => FrameStep {
                start: self.frame.delete(key),
                key_length: key.len(),
                value_length: None,
                lease: None,
            },
        });
        let steps = steps_in_frame.collect();
        self.effects.push(Effect::Transaction(Decided { revision: self.revision, steps }));
    }

    fn check_guard(&mut self, guard: &Guard) -> Result<(), TransactError> {
        let found = self.revision_of(&guard.key);
        let holds = match guard.expected {
            Expected::Absent => found.is_none(),
            Expected::Revision(revision) => found == Some(revision),
        };
        if holds {
            return Ok(());
        }
        Err(TransactError::Conflict { key: guard.key.clone(), expected: guard.expected, found })
    }

    /// Checks that the leases of the puts run and have space. A key that is put again counts twice
    /// within a group, so a lease that is nearly full may be refused early.
    fn check_leases(&self, ops: &[Op]) -> Result<(), TransactError> {
        let mut puts = HashMap::new();
        for op in ops {
            if let Op::Put { lease: Some(lease), .. } = op {
                *puts.entry(*lease).or_insert(0) += 1;
            }
        }
        for (lease, count) in puts {
            let held = self.state.lease(lease).map(|lease| lease.keys.len());
            let runs = self.leases.get(&lease).copied().unwrap_or(held.is_some());
            if !runs {
                return Err(TransactError::NoLease { lease });
            }
            let before = held.unwrap_or(0) + self.lease_puts.get(&lease).copied().unwrap_or(0);
            if before + count > self.limits.lease_keys {
                return Err(TransactError::LeaseFull { lease, limit: self.limits.lease_keys });
            }
        }
        Ok(())
    }

    /// The revision of a key after the transactions decided so far.
    fn revision_of(&mut self, key: &[u8]) -> Option<u64> {
        for effect in &self.effects[self.overlaid..] {
            let Effect::Transaction(decided) = effect else { continue };
            for step in &decided.steps {
                let revision = step.value_length.map(|_| decided.revision);
                self.overlay.insert(step.key(self.frame.bytes()).into(), revision);
            }
        }
        self.overlaid = self.effects.len();
        match self.overlay.get(key) {
            Some(revision) => *revision,
            None => self.state.row(key).map(super::state::Row::revision),
        }
    }
}

/// Which steps a later one of the same key replaces; empty when none can be.
fn superseded_steps(ops: &[Op]) -> Vec<bool> {
    if ops.windows(2).all(|pair| pair[0].key() < pair[1].key()) {
        return Vec::new();
    }
    let mut last = HashMap::with_capacity(ops.len());
    let mut superseded = vec![false; ops.len()];
    for (index, op) in ops.iter().enumerate() {
        if let Some(former) = last.insert(op.key(), index) {
            superseded[former] = true;
        }
    }
    superseded
}
