//! The network that a request for a service in any network goes to.

use tollway_http::RequestHead;
use tollway_model::ServiceName;
use tollway_model::call_trace::NetworkTaken;
use tollway_routing::{ChosenBy, NetworkSet};

use super::{Destination, Exchange};
use crate::headers;
use crate::upstream::{Chosen, CountedCall};

/// What has been decided for one request or connection.
pub(crate) struct ChosenNetwork {
    /// The service as it was called.
    called: ServiceName,
    /// The service in the network that was chosen last.
    service: ServiceName,
    index: usize,
    priority: u32,
    by: ChosenBy,
    /// The networks that it was sent to, the last one included.
    tried: NetworkSet,
    /// How often the network was chosen again after it had failed.
    stays: u8,
    /// It counts among what is under way there.
    _under_way: CountedCall,
    /// The head as it was before routes of that service changed it.
    unrouted: Option<Box<RequestHead>>,
}

impl ChosenNetwork {
    /// The choice for what calls `called` and was sent to `tried` before.
    pub(crate) fn new(called: ServiceName, tried: NetworkSet, chosen: Chosen) -> Self {
        let Chosen { service, index, priority, by, under_way } = chosen;
        let mut tried = tried;
        tried.insert(index);
        Self {
            called,
            service,
            index,
            priority,
            by,
            tried,
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

    /// The place of the network in the rules.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// The service as it was called.
    pub(crate) fn called(&self) -> &ServiceName {
        &self.called
    }

    /// The networks that it was sent to.
    pub(crate) fn tried(&self) -> NetworkSet {
        self.tried
    }

    /// The choice, as a call trace names it.
    pub(super) fn taken(&self) -> NetworkTaken {
        let by = match self.by {
            _ if self.is_again() => "retry",
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

    /// Whether it was sent to another network before.
    fn is_again(&self) -> bool {
        self.tried.len() > 1
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
