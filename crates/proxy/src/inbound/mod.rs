//! Inbound requests: who may call the app, how many requests it has at one time, and which caller is
//! next.
//!
//! The stages in order: [`policy`] (and, for call traces, [`admission`]), [`concurrency`],
//! [`fairness`]; [`tcp`] for connections that carry bytes. [`Inbound`] owns their state.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "most places ask for the one or two roles of a connection that concern them"
)]

pub(crate) mod admission;
pub(crate) mod concurrency;
pub(crate) mod fairness;
pub(crate) mod policy;
pub(crate) mod tcp;

use std::sync::Arc;

use tollway_http::RequestHead;
use tollway_model::ServiceName;
use tollway_routing::AccessList;
use tollway_telemetry::DaprMetrics;

use crate::conn::Connection;
use crate::request_error::RequestError;
use crate::runtime_protocol::TurnLease;
use concurrency::ConcurrencyLimit;
use fairness::FairQueue;
use policy::PolicyGate;
pub(crate) use policy::{PolicyDenial, Rights, Upgraded};

/// What is known of those who call the app.
pub(crate) struct Inbound {
    policy: PolicyGate,
    concurrency: ConcurrencyLimit,
    fair_queue: FairQueue,
    lease: TurnLease,
}

impl Inbound {
    /// `access` is what the app's own configuration says beside the policies; what it decides is
    /// counted in `metrics`.
    pub(crate) fn new(access: Option<Arc<AccessList>>, metrics: Option<Arc<DaprMetrics>>) -> Self {
        Self {
            policy: PolicyGate::new(access, metrics),
            concurrency: ConcurrencyLimit::default(),
            fair_queue: FairQueue::default(),
            lease: TurnLease::default(),
        }
    }

    /// Lets a request in or not. Gives the target it must be sent on with, if that is another.
    ///
    /// # Errors
    /// The policies refuse it, or are not known yet.
    pub(crate) fn admit_request(
        &mut self,
        conn: Option<&mut Connection>,
        head: &RequestHead,
        home: &ServiceName,
    ) -> Result<Option<Vec<u8>>, RequestError> {
        self.policy.admit_request(conn, head, home)
    }

    /// The lease under which turns of actors are sent to the app.
    pub(crate) fn lease(&self) -> TurnLease {
        self.lease
    }

    /// The lease lasts longer than was known.
    pub(crate) fn renew(&mut self, lease: TurnLease) {
        self.lease = lease;
    }

    /// Whether a request may go to the app without waiting for anything to happen.
    pub(crate) fn is_due(&self) -> bool {
        self.concurrency.is_due()
    }
}
