//! `tollway`: control planes, gateways where networks differ, and a sidecar at each end.
//!
//! Each variant adds one duty to the default, so that each duty's cost shows. `pooled` carries the
//! requests over pooled connections, `mesh-1` and its like over fewer connections. Mutual TLS,
//! metrics and the check of policies are always on. `duties` has all the usual duties, and `steered` a
//! route and a traffic policy.
//! `haproxy-gateway` and `flat` have HAProxy, or nothing, where networks meet, so that the cost of
//! our gateway shows. `front` has no mesh: it is what outside clients meet.

mod front;
mod haproxy_gateway;
mod mesh;

use std::path::PathBuf;

use tollway_record::record::{Protocol, Tls};

use super::{Availability, HOME, Leg, Listener, StartedSubject, Subject, SubjectKind, Variant};
use crate::commands::GATEWAY_PORT;
use crate::error::LabError;
use crate::experiment::Ground;
use crate::progress::Progress;

/// The kind of all Tollway's variants.
pub struct Tollway;

const VARIANTS: &[Variant] = &[
    Variant::known("two-sidecars", "mutual TLS and metrics; a gateway between networks"),
    Variant::known("traced-0.1", "and every tenth request traced"),
    Variant::known("traced-1", "and every request traced"),
    Variant::known("access-log", "and a line of log for each request"),
    Variant::known("policy", "and a policy that names caller, method and path"),
    Variant::known(
        "pooled",
        "and HTTP/1.1 between the sidecars, one request at a time on each connection",
    ),
    Variant::known(
        "intercepted",
        "and a caller that knows nothing of its sidecar and calls by name",
    ),
    Variant::known("one-sidecar", "caller and app beside the same sidecar, which calls itself"),
    Variant::known("duties", "and every tenth request traced, and that policy: all that is usual"),
    Variant::known("haproxy-gateway", "and HAProxy, passing bytes by server name, as the gateway"),
    Variant::known("flat", "and one network as far as the app: no gateway"),
    Variant::known("mesh-1", "and one connection at most from sidecar to sidecar"),
    Variant::known("mesh-4", "and four connections at most from sidecar to sidecar"),
    Variant::known("mesh-16", "and sixteen connections at most from sidecar to sidecar"),
    Variant::known("steered", "and a route, an outlier rule and a rate limit for the service"),
    Variant::known("former", "and sidecars of the program that TOLLWAY_FORMER_PROGRAM names"),
    Variant::known("front", "no mesh: one front before the app ends TLS and mutual TLS"),
];

/// Names another build of this program.
const FORMER: &str = "TOLLWAY_FORMER_PROGRAM";

/// What a variant's sidecars do besides their work, or otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Duties {
    pub(super) trace_ratio: Option<f64>,
    pub(super) access_log: bool,
    pub(super) policy: bool,
    /// A route and a traffic policy hold for the service.
    pub(super) steered: bool,
    /// Connections between sidecars carry one request at a time.
    pub(super) pooled: bool,
    /// The caller's connections are led to its sidecar by the kernel.
    pub(super) intercepted: bool,
    /// How many connections may go from one sidecar to another, if not as many as it is set to.
    pub(super) most_connections: Option<u32>,
}

/// What precedes the callee's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Crossing {
    #[default]
    Gateway,
    /// HAProxy in our gateway's place; that one serves the control planes alone.
    HaproxyGateway,
    /// Nothing: the caller's network reaches as far as the app.
    Flat,
}

impl Duties {
    /// Whether any of them is done once for a request.
    fn is_of_requests(self) -> bool {
        self.trace_ratio.is_some() || self.policy || self.steered
    }
}

impl SubjectKind for Tollway {
    fn name(&self) -> &str {
        "tollway"
    }

    fn purpose(&self) -> &str {
        "this program: sidecars at both ends, a gateway between networks"
    }

    fn variants(&self) -> &[Variant] {
        VARIANTS
    }

    fn availability(&self) -> Availability {
        Availability::Ready { version: crate::VERSION.into() }
    }

    fn make(&self, variant: &Variant) -> Box<dyn Subject> {
        let duties = match variant.name.as_ref() {
            "traced-0.1" => Duties { trace_ratio: Some(0.1), ..Duties::default() },
            "traced-1" => Duties { trace_ratio: Some(1.0), ..Duties::default() },
            "access-log" => Duties { access_log: true, ..Duties::default() },
            "policy" => Duties { policy: true, ..Duties::default() },
            "pooled" => Duties { pooled: true, ..Duties::default() },
            "intercepted" => Duties { intercepted: true, ..Duties::default() },
            "mesh-1" => Duties { most_connections: Some(1), ..Duties::default() },
            "mesh-4" => Duties { most_connections: Some(4), ..Duties::default() },
            "mesh-16" => Duties { most_connections: Some(16), ..Duties::default() },
            "duties" => Duties { trace_ratio: Some(0.1), policy: true, ..Duties::default() },
            "steered" => Duties { steered: true, ..Duties::default() },
            "front" => return Box::new(front::Front),
            _ => Duties::default(),
        };
        let crossing = match variant.name.as_ref() {
            "haproxy-gateway" => Crossing::HaproxyGateway,
            "flat" => Crossing::Flat,
            _ => Crossing::Gateway,
        };
        let is_alone = variant.name == "one-sidecar";
        let former =
            (variant.name == "former").then(|| std::env::var_os(FORMER).map(PathBuf::from));
        Box::new(Mesh { variant: variant.clone(), duties, crossing, is_alone, former })
    }
}

/// One variant.
pub(super) struct Mesh {
    pub(super) variant: Variant,
    pub(super) duties: Duties,
    pub(super) crossing: Crossing,
    /// Whether the caller uses the app's own sidecar.
    pub(super) is_alone: bool,
    /// Whether its sidecars are of another program, and which that is.
    pub(super) former: Option<Option<PathBuf>>,
}

impl Mesh {
    /// Distinguishes its processes from those of other variants; empty for the default.
    pub(super) fn suffix(&self) -> String {
        if self.variant == VARIANTS[0] { String::new() } else { format!(".{}", self.variant.name) }
    }

    /// Place among the variants: its gateways' port.
    pub(super) fn index(&self) -> u16 {
        let index = VARIANTS.iter().position(|variant| *variant == self.variant).unwrap_or(0);
        u16::try_from(index).unwrap_or(0)
    }

    pub(super) fn gateway(&self) -> String {
        format!("gateway{}", self.suffix())
    }
}

impl Subject for Mesh {
    fn carries(&self, leg: &Leg) -> Result<(), String> {
        if leg.tls != Tls::Plain {
            return Err("apps call their own sidecar in plain text on loopback".to_owned());
        }
        if self.former == Some(None) {
            return Err(format!("{FORMER} has to name the former program"));
        }
        if self.is_alone && leg.network != HOME {
            return Err("caller and app share a sidecar, so they are in one network".to_owned());
        }
        if self.crossing == Crossing::HaproxyGateway {
            haproxy_gateway::program()?;
        }
        if self.duties.steered && leg.network != HOME {
            return Err("its route is that of a service of the caller's network".to_owned());
        }
        if leg.protocol != Protocol::Http1 && self.duties.pooled {
            return Err("only requests of HTTP/1.1 are pooled".to_owned());
        }
        if leg.protocol == Protocol::Tcp && self.duties.is_of_requests() {
            return Err("its duty is about requests, and TCP has none".to_owned());
        }
        Ok(())
    }

    fn published(&self, _: &str) -> Vec<Listener> {
        if self.crossing == Crossing::Flat {
            return Vec::new();
        }
        let gateway = self.gateway();
        vec![Listener { name: gateway.clone(), process: gateway, port: GATEWAY_PORT }]
    }

    fn start(
        &self,
        ground: &mut Ground,
        legs: &[Leg],
        progress: &mut dyn Progress,
    ) -> Result<StartedSubject, LabError> {
        mesh::start(self, ground, legs, progress)
    }
}
