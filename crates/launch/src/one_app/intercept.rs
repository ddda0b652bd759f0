//! Interception of the app's connections: the way of it, what the sidecar needs for it, and its start.

use std::net::SocketAddr;
use std::sync::Arc;

use tollway_intercept::{InterceptError, Interception, Origins, Resolvers, Rules};
use tollway_net::AppNetwork;
use tollway_proxy::{NameTable, RedirectedOrigins};
use tollway_routing::intercept::LeftAlone;
use tollway_runtime::Sidecar;

use super::options::{InterceptOptions, Interceptor};
use super::plan::Plan;
use crate::console::Console;
use crate::error::LaunchError;

/// Interception as it is planned.
pub(crate) struct InterceptPlan {
    options: InterceptOptions,
    names: Arc<NameTable>,
    means: Means,
}

/// By what the kernel is going to lead connections to the sidecar.
enum Means {
    Programs(Arc<Origins>),
    Namespace(Arc<AppNetwork>),
    /// By nothing: neither of the ways can be had, and why.
    Neither {
        programs: InterceptError,
        namespace: InterceptError,
    },
}

impl InterceptPlan {
    /// Decides the way, and makes the network namespace for an app that gets one.
    ///
    /// # Errors
    /// [`LaunchError::Intercept`] if a way is required that cannot be had.
    pub(super) fn new(options: InterceptOptions) -> Result<Self, LaunchError> {
        let means = match options.by {
            Some(Interceptor::Bpf) => Means::Programs(Arc::default()),
            Some(Interceptor::Nftables) => Means::Namespace(tollway_intercept::make_network()?),
            None => match tollway_intercept::check_programs() {
                Ok(()) => Means::Programs(Arc::default()),
                Err(programs) => match tollway_intercept::make_network() {
                    Ok(network) => Means::Namespace(network),
                    Err(namespace) => Means::Neither { programs, namespace },
                },
            },
        };
        let aliases = &options.aliases;
        let pairs = aliases.iter().map(|alias| (alias.name.as_str(), alias.service.as_str()));
        let names = Arc::new(NameTable::new(pairs));
        Ok(Self { options, names, means })
    }

    /// The network namespace of the app, if it has one of its own.
    pub(super) fn network(&self) -> Option<&Arc<AppNetwork>> {
        match &self.means {
            Means::Namespace(network) => Some(network),
            Means::Programs(_) | Means::Neither { .. } => None,
        }
    }

    /// The sidecar's side of it; `None` without a way.
    pub(super) fn for_sidecar(&self) -> Option<tollway_proxy::Interception> {
        let origins: Arc<dyn tollway_proxy::Origins> = match &self.means {
            Means::Programs(origins) => Arc::clone(origins) as _,
            Means::Namespace(_) => Arc::new(RedirectedOrigins),
            Means::Neither { .. } => return None,
        };
        let InterceptOptions { spared, mesh_only, .. } = &self.options;
        Some(tollway_proxy::Interception {
            port: 0,
            origins,
            names: Arc::clone(&self.names),
            network: self.network().cloned(),
            left_alone: LeftAlone::new(spared.clone(), *mesh_only),
            is_in_cluster: false,
        })
    }
}

/// Begins to intercept what is started as the result has it. `None` where that is not wanted, or cannot
/// be had and is not required: then the console has what remains.
pub(super) fn begin(
    plan: &Plan,
    sidecar: &Sidecar,
    console: Console,
) -> Result<Option<Interception>, LaunchError> {
    let Some(InterceptPlan { options, names, means }) = &plan.intercept else { return Ok(None) };
    let listener: Vec<SocketAddr> = sidecar.ports("intercept").collect();
    let resolvers = Resolvers::of(options.resolvers.clone());
    let names = Arc::clone(names);
    let app = &plan.app_id;
    let (begun, note) = match means {
        Means::Programs(origins) => {
            let rules = Rules {
                spared: options.spared.clone(),
                leads_all: !options.mesh_only,
                closed_port: plan
                    .app
                    .map(|(address, _)| address.port())
                    .filter(|_| options.closes_port),
            };
            let begun = tollway_intercept::begin(origins, names, &listener, &rules, resolvers);
            (begun, "by programs of its cgroup (bpf)")
        }
        Means::Namespace(network) => {
            let of_sidecar = sidecar.loopback_ports();
            let begun =
                tollway_intercept::begin_in(network, names, &listener, of_sidecar, resolvers);
            (begun, "in a network namespace of its own (nftables), which only TCP and names leave")
        }
        Means::Neither { programs, namespace } => {
            print_what_remains(plan, sidecar, console, &[programs, namespace]);
            return Ok(None);
        }
    };
    match begun {
        Ok(interception) => {
            console.note(&format!("{app} is intercepted {note}"));
            Ok(Some(interception))
        }
        // What the sidecar passes on goes to the app in the namespace.
        Err(error) if options.by.is_some() || plan.app_network().is_some() => Err(error.into()),
        Err(error) => {
            print_what_remains(plan, sidecar, console, &[&error]);
            Ok(None)
        }
    }
}

/// Without the rights an app has to be led by its own means.
fn print_what_remains(
    plan: &Plan,
    sidecar: &Sidecar,
    console: Console,
    errors: &[&InterceptError],
) {
    let outbound = sidecar.port("outbound").map_or_else(String::new, |address| address.to_string());
    let reason = |error: &&InterceptError| {
        let cause = std::error::Error::source(error);
        format!("{error}{}", cause.map_or_else(String::new, |cause| format!(" ({cause})")))
    };
    let reasons: Vec<String> = errors.iter().map(reason).collect();
    console.error(&format!(
        "{app} is not intercepted: {reasons}\n\
         hint: run it as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, or with CAP_SYS_ADMIN \
         and CAP_NET_ADMIN. Without them it calls services through http_proxy=http://{outbound}, for \
         hosts that end in .mesh alone, and those of TCP through --upstream PORT=SERVICE",
        app = plan.app_id,
        reasons = reasons.join("; "),
    ));
}
