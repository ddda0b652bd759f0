//! The network that a request for a service in any network goes to.

use std::sync::Arc;

use tollway_http::RequestHead;
use tollway_model::ServiceName;
use tollway_model::call_trace::NetworkTaken;
use tollway_model::failover::FailoverRules;
use tollway_routing::{ChosenBy, NetworkSet};

use super::{Destination, Exchange};
use crate::headers;
use crate::upstream::{Before, Chosen, CountedCall};

/// What has been decided for one request or connection.
pub(crate) struct ChosenNetwork {
    /// The service as it was called.
    called: ServiceName,
    /// The service in the network that was chosen last.
    service: ServiceName,
    index: usize,
    priority: u32,
    by: ChosenBy,
    rules: Arc<FailoverRules>,
    /// The networks that it was sent to, the last one included, by their places in the rules.
    tried: NetworkSet,
    /// A network was chosen for it before.
    is_again: bool,
    /// How often the network was chosen again after it had failed.
    stays: u8,
    /// It counts among what is under way there.
    _under_way: CountedCall,
    /// The head as it was before routes of that service changed it.
    unrouted: Option<Box<RequestHead>>,
}

impl ChosenNetwork {
    /// The choice for what calls `called`.
    pub(crate) fn new(called: ServiceName, chosen: Chosen) -> Self {
        let Chosen { service, index, priority, by, under_way, rules, mut tried, is_again } = chosen;
        tried.insert(index);
        Self {
            called,
            service,
            index,
            priority,
            by,
            rules,
            tried,
            is_again,
            stays: 0,
            _under_way: under_way,
            unrouted: None,
        }
    }

    /// The network was chosen again so often after it had failed.
    pub(crate) fn with_stays(self, stays: u8) -> Self {
        Self { stays, ..self }
    }

    pub(crate) fn stays(&self) -> u8 {
        self.stays
    }

    /// What was chosen so far, for a choice in which the network may stay the same or not.
    pub(crate) fn before(&self, may_stay: bool) -> Before {
        let present = may_stay.then_some(self.index);
        Before { rules: Arc::clone(&self.rules), tried: self.tried, present }
    }

    /// The service as it was called.
    pub(crate) fn called(&self) -> &ServiceName {
        &self.called
    }

    /// The choice, as a call trace names it.
    pub(super) fn taken(&self) -> NetworkTaken {
        let by = match self.by {
            _ if self.is_again => "retry",
            ChosenBy::Priority => "priority",
            ChosenBy::Health => "health",
            ChosenBy::Load => "load",
            ChosenBy::LastResort => "last_resort",
        };
        NetworkTaken {
            called: self.called.to_string(),
            network: self.service.network.to_string(),
            priority: self.priority,
            by: by.to_owned(),
        }
    }
}

impl Exchange {
    /// It goes to the network that was chosen, as if the service there had been called.
    pub(crate) fn enter_network(&mut self, chosen: ChosenNetwork) {
        if let Some(head) = self.network.take().and_then(|of| of.unrouted) {
            // The routes of the service in the next network hold there.
            self.head = head;
            self.steering = None;
        }
        headers::send_to(&mut self.head, &chosen.service);
        self.destination = Destination::Service(chosen.service.clone());
        self.network = Some(Box::new(chosen));
    }

    /// Routes are about to change the head.
    pub(crate) fn keep_unrouted(&mut self) {
        if let Some(network) = &mut self.network {
            network.unrouted.get_or_insert_with(|| self.head.clone());
        }
    }
}
