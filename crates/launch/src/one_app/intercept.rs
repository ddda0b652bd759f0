//! Interception of the app's connections: what the sidecar needs for it, and its start.

use std::net::SocketAddr;
use std::sync::Arc;

use tollway_intercept::{InterceptError, Interception, Origins, Resolvers, Rules};
use tollway_proxy::NameTable;
use tollway_runtime::Sidecar;

use super::options::InterceptOptions;
use super::plan::Plan;
use crate::console::Console;
use crate::error::LaunchError;

/// Interception as it is planned.
pub(crate) struct InterceptPlan {
    options: InterceptOptions,
    origins: Arc<Origins>,
    names: Arc<NameTable>,
}

impl InterceptPlan {
    pub(super) fn new(options: InterceptOptions) -> Self {
        let aliases = &options.aliases;
        let pairs = aliases.iter().map(|alias| (alias.name.as_str(), alias.service.as_str()));
        let names = Arc::new(NameTable::new(pairs));
        Self { options, origins: Arc::default(), names }
    }

    /// The sidecar's side of it.
    pub(super) fn for_sidecar(&self) -> tollway_proxy::Interception {
        let origins: Arc<dyn tollway_proxy::Origins> = Arc::clone(&self.origins) as _;
        tollway_proxy::Interception { origins, names: Arc::clone(&self.names) }
    }
}

/// Begins to intercept what is started in the cgroup of the result. `None` where that is not wanted, or
/// cannot be had and is not required: then the console has what remains.
pub(super) async fn begin(
    plan: &Plan,
    sidecar: &Sidecar,
    console: Console,
) -> Result<Option<Interception>, LaunchError> {
    let Some(InterceptPlan { options, origins, names }) = &plan.intercept else { return Ok(None) };
    let rules = Rules {
        spared: options.spared.clone(),
        leads_all: !options.mesh_only,
        closed_port: plan.app.map(|(address, _)| address.port()).filter(|_| options.closes_port),
    };
    let listener: Vec<SocketAddr> = sidecar.ports("intercept").collect();
    let resolvers = Resolvers::of(options.resolvers.clone());
    match tollway_intercept::begin(origins, Arc::clone(names), &listener, &rules, resolvers).await {
        Ok(interception) => {
            let app = &plan.app_id;
            console.note(&format!("{app} is intercepted by programs of its cgroup (bpf)"));
            Ok(Some(interception))
        }
        Err(error) if options.is_required => Err(error.into()),
        Err(error) => {
            print_what_remains(plan, sidecar, console, &error);
            Ok(None)
        }
    }
}

/// Without the rights an app has to be led by its own means.
fn print_what_remains(plan: &Plan, sidecar: &Sidecar, console: Console, error: &InterceptError) {
    let outbound = sidecar.port("outbound").map_or_else(String::new, |address| address.to_string());
    console.error(&format!(
        "{app} is not intercepted: {error}{cause}\n\
         hint: run it as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON. Without them it calls \
         services through http_proxy=http://{outbound}, for hosts that end in .mesh alone, and those \
         of TCP through --upstream PORT=SERVICE",
        app = plan.app_id,
        cause = std::error::Error::source(error).map_or_else(String::new, |c| format!(" ({c})")),
    ));
}
