//! Metrics of what joined networks wanted and did not get, for the admin port.

use tollway_telemetry::Page;
use tollway_telemetry::metrics::{Counter, names};

/// The changes that were refused, or that wait.
#[derive(Default, Debug)]
pub(crate) struct PeerCounts {
    /// Roots changed too often, and wait.
    pub(super) roots_held: Counter,
    /// Gateways changed too often, and wait.
    pub(super) gateways_held: Counter,
    /// Gateways other than those of the bundle.
    pub(super) gateways_pinned: Counter,
    /// Addresses of gateways that lead inside.
    pub(super) gateways_refused: Counter,
    /// Streams that ended by a limit, or by what cannot be read.
    pub(super) streams_ended: Counter,
    /// Networks that were withdrawn since no gateway answered.
    pub(super) withdrawn: Counter,
    probes_answered: Counter,
    probes_silent: Counter,
}

impl PeerCounts {
    /// A probe of a gateway has ended.
    pub(super) fn probed(&self, is_answered: bool) {
        if is_answered { &self.probes_answered } else { &self.probes_silent }.add(1);
    }

    pub(crate) fn add_to(&self, page: &mut Page) {
        let mut refused = page.family(&names::PEER_CHANGES_REFUSED);
        for (reason, counter) in [
            ("roots_held", &self.roots_held),
            ("gateways_held", &self.gateways_held),
            ("gateways_pinned", &self.gateways_pinned),
            ("gateway_address", &self.gateways_refused),
            ("stream_ended", &self.streams_ended),
        ] {
            refused.sample(&[("reason", reason)], counter.value());
        }
        page.single(&names::JOINED_NETWORKS_WITHDRAWN, self.withdrawn.value());
        let mut probes = page.family(&names::GATEWAY_PROBES);
        probes.sample(&[("result", "answered")], self.probes_answered.value());
        probes.sample(&[("result", "silent")], self.probes_silent.value());
    }
}
