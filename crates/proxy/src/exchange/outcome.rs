//! What an attempt shows of the replica that it was made at: noted once, where a traffic policy asks
//! for it; and which replicas another attempt avoids.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tollway_http::{Fields, ResponseHead};
use tollway_model::Instance;
use tollway_routing::{ReplicaOutcome, retry_after};

use super::{Exchange, ExchangeKey, Exchanges};
use crate::conn::{ConnKey, Connection, Connections};
use crate::cx::{Cx, Effect};
use crate::observe::grpc_status;
use crate::upstream::{NotedOutcome, ReplicaRef};

/// The gRPC status of a call that ends without one.
const UNKNOWN: u16 = 2;

/// An attempt at a replica that is judged by its outcome.
pub(crate) struct JudgedAttempt {
    replica: ReplicaRef,
    began: Instant,
    /// Until the head of the response came.
    took: Option<Duration>,
}

/// A replica at which an attempt has failed.
pub(crate) struct FailedReplica {
    instance: Option<Instance>,
    address: Option<SocketAddr>,
}

impl FailedReplica {
    /// Whether a connection leads there; behind a gateway the address is that of all.
    pub(crate) fn is_at(&self, instance: Option<&Instance>, address: Option<SocketAddr>) -> bool {
        if self.instance.is_some() {
            return self.instance.as_ref() == instance;
        }
        self.address.is_some() && self.address == address
    }
}

impl Exchange {
    /// An attempt begins on a connection.
    #[inline]
    pub(crate) fn begin_attempt(&mut self, key: ConnKey, conn: &Connection, now: Instant) {
        self.sent_on = key;
        self.judged = None;
        if let Some(replica) = conn.replica {
            self.judge(replica, now);
        }
    }

    #[cold]
    fn judge(&mut self, replica: ReplicaRef, began: Instant) {
        // A host of actors cannot be replaced, and what an actor answers is its own.
        if !self.is_of_actors {
            self.judged = Some(Box::new(JudgedAttempt { replica, began, took: None }));
        }
    }

    /// The head of a response has come; `is_whole`: nothing follows it.
    pub(crate) fn judge_head(&mut self, cx: &mut Cx, head: &ResponseHead, is_whole: bool) {
        let Some(judged) = &mut self.judged else { return };
        judged.took = Some(cx.now.saturating_duration_since(judged.began));
        let of_grpc = if self.is_grpc { grpc_status(&head.fields) } else { None };
        // What is no answer of gRPC goes by its status of HTTP.
        let lacks_status = self.is_grpc && is_whole && head.status == 200;
        let of_grpc = of_grpc.or(lacks_status.then_some(UNKNOWN));
        let outcome = outcome_of(head.status, of_grpc, &head.fields);
        if is_whole || of_grpc.is_some() || outcome != ReplicaOutcome::Success {
            self.note_outcome(cx, outcome);
        }
    }

    /// The whole response has come after its head. Its trailers have the status of a gRPC call.
    pub(super) fn judge_end(&mut self, cx: &mut Cx, trailers: Option<&Fields>) {
        if self.judged.is_none() {
            return;
        }
        let is_of_grpc = self.is_grpc && self.answer.status == 200;
        let outcome = match trailers {
            Some(trailers) if is_of_grpc => {
                outcome_of(200, Some(grpc_status(trailers).unwrap_or(UNKNOWN)), trailers)
            }
            None if is_of_grpc => ReplicaOutcome::Failure,
            Some(_) | None => ReplicaOutcome::Success,
        };
        self.note_outcome(cx, outcome);
    }

    /// The caller is gone. A replica that had begun to answer works.
    pub(super) fn judge_abandoned(&mut self, cx: &mut Cx) {
        if self.answer.has_begun {
            self.note_success(cx);
        }
    }

    /// The attempt has gone well.
    pub(super) fn note_success(&mut self, cx: &mut Cx) {
        self.note_outcome(cx, ReplicaOutcome::Success);
    }

    /// Nothing, or no more, comes of the attempt.
    pub(super) fn note_failure(&mut self, cx: &mut Cx) {
        self.note_outcome(cx, ReplicaOutcome::Failure);
    }

    fn note_outcome(&mut self, cx: &mut Cx, outcome: ReplicaOutcome) {
        let Some(judged) = self.judged.take() else { return };
        let since_sent = || cx.now.saturating_duration_since(judged.began);
        let took = judged.took.unwrap_or_else(since_sent);
        let noted = NotedOutcome { replica: judged.replica, outcome, took };
        cx.effects.push(Effect::NoteReplica(noted));
    }

    /// Another attempt goes to another replica than this one, if there is one.
    pub(super) fn avoid_replica(&mut self, conns: &Connections) {
        if let Some(conn) = conns.get(self.sent_on) {
            let (instance, address) = (conn.instance().cloned(), conn.remote);
            self.avoided.push(FailedReplica { instance, address });
        }
    }
}

/// An attempt has broken off, or had no answer in time: the replica has failed, and another attempt
/// avoids it.
pub(crate) fn on_attempt_broke(
    cx: &mut Cx,
    conns: &Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    exchange.note_failure(cx);
    if !exchange.has_response_begun() {
        exchange.avoid_replica(conns);
    }
}

/// The replica has refused a request that it has done nothing of; another attempt avoids it.
pub(crate) fn on_attempt_refused(conns: &Connections, exchanges: &mut Exchanges, key: ExchangeKey) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    exchange.judged = None;
    exchange.avoid_replica(conns);
}

fn outcome_of(status: u16, of_grpc: Option<u16>, fields: &Fields) -> ReplicaOutcome {
    let of_grpc = of_grpc.map(|status| u8::try_from(status).unwrap_or(u8::MAX));
    let asked = || fields.value(b"retry-after").and_then(retry_after);
    match ReplicaOutcome::of_response(status, of_grpc, None) {
        ReplicaOutcome::Overloaded { .. } => ReplicaOutcome::Overloaded { retry_after: asked() },
        outcome => outcome,
    }
}
