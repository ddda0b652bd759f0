//! `tollway token`.

use anyhow::Result;
use clap::{Args, Subcommand};
use tollway_model::{AppId, Group, Label};
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;

use super::neighbours::group;
use crate::async_runtime::block_on;
use crate::command::access::StoreArg;

#[derive(Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Subcommand)]
enum TokenCommand {
    /// Print a new token. It can be used until it expires; keep it secret.
    Create(CreateArgs),
}

#[derive(Args)]
struct CreateArgs {
    #[command(flatten)]
    store: StoreArg,
    /// Only for this app.
    #[arg(long, value_name = "ID")]
    app: Option<AppId>,
    /// Only for this namespace; with --app, the app's namespace (`default` if not given).
    #[arg(long)]
    namespace: Option<Label>,
    /// For gateways.
    #[arg(long, conflicts_with_all = ["app", "namespace"])]
    gateway: bool,
    /// For agents of the fabric, of this group.
    #[arg(long, value_name = "GROUP", conflicts_with_all = ["app", "namespace", "gateway"], value_parser = group)]
    fabric: Option<Group>,
    /// Validity, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 24 * 3_600_000)]
    ttl_ms: u64,
}

pub(crate) fn run(args: TokenArgs) -> Result<()> {
    let TokenCommand::Create(args) = args.command;
    let request = v1::CreateTokenRequest { scope: Some(scope(&args)), ttl_ms: args.ttl_ms };
    block_on(async {
        let created = args.store.admin().await?.create_token(request).await?;
        println!("{}", created.token);
        Ok(())
    })?
}

fn scope(args: &CreateArgs) -> Scope {
    if let Some(group) = &args.fabric {
        return Scope::FabricGroup(group.to_string());
    }
    if args.gateway {
        return Scope::Gateway(v1::GatewayScope {});
    }
    let namespace = args.namespace.as_ref().map(ToString::to_string);
    match (&args.app, namespace) {
        (Some(app), namespace) => Scope::App(v1::AppScope {
            namespace: namespace.unwrap_or_else(|| "default".to_owned()),
            app: app.to_string(),
        }),
        (None, Some(namespace)) => Scope::Namespace(namespace),
        (None, None) => Scope::Any(v1::AnyWorkload {}),
    }
}
