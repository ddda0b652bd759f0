//! What all connections of a server share.

use std::cell::RefCell;
use std::sync::Arc;

use tollway_http::{Fields, RequestHead};
use tollway_record::SplitMix64;

use crate::faults::Faults;
use crate::options::EchoOptions;
use crate::routes::{Plan, plan, plan_for_actor};
use crate::source::plain_pattern;
use crate::timer_fires::TimerFires;

/// Settings and state that every connection uses.
pub(crate) struct Shared {
    /// Repeated to make bodies of a given length.
    pub(crate) pattern: Arc<[u8]>,
    name: Option<String>,
    pub(crate) actor_types: u32,
    pub(crate) timer_fires: TimerFires,
    faults: Faults,
    random: RefCell<SplitMix64>,
}

impl Shared {
    pub(crate) fn new(options: &EchoOptions) -> Self {
        Self {
            pattern: plain_pattern(),
            name: options.name.clone(),
            actor_types: options.actor_types,
            timer_fires: TimerFires::new(),
            faults: options.faults.clone(),
            random: RefCell::new(SplitMix64::new(options.seed)),
        }
    }

    /// Decides how a request is answered.
    pub(crate) fn plan(&self, head: &RequestHead) -> Plan {
        if self.actor_types > 0
            && let Some(plan) = plan_for_actor(head)
        {
            return plan;
        }
        plan(head, &self.faults, &mut self.random.borrow_mut())
    }

    /// Adds the server's name to the fields of an answer.
    pub(crate) fn sign(&self, fields: &mut Fields) {
        if let Some(name) = &self.name {
            fields.push(b"x-echo-name", name.as_bytes());
        }
    }
}
