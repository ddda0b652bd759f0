//! `tollway actors`: which apps may host which actor types, and the reminders that are stored.

mod reminders;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use tollway_model::{AppId, Label};
use tollway_wire::v1;

use self::reminders::RemindersCommand;
use crate::async_runtime::block_on;
use crate::command::access::StoreArg;

#[derive(Args)]
pub(crate) struct ActorsArgs {
    #[command(subcommand)]
    command: ActorsCommand,
}

#[derive(Subcommand)]
enum ActorsCommand {
    /// Show the actor types, the apps that may host them, and the apps that were refused.
    List {
        #[command(flatten)]
        store: StoreArg,
        /// Only types of this namespace.
        #[arg(short = 'n', long)]
        namespace: Option<Label>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Name the apps that may host a type: these and no others, from now on. Hosts of other apps lose what
    /// they hold.
    Allow {
        #[command(flatten)]
        store: StoreArg,
        /// TYPE or NAMESPACE/TYPE.
        #[arg(value_name = "TYPE")]
        actor_type: String,
        /// Ids of the apps.
        #[arg(required = true, value_name = "APP")]
        apps: Vec<AppId>,
    },
    /// Let the next app that offers a type have it, and what is stored of its reminders.
    Release {
        #[command(flatten)]
        store: StoreArg,
        /// TYPE or NAMESPACE/TYPE.
        #[arg(value_name = "TYPE")]
        actor_type: String,
    },
    /// Show the reminders that are stored, and remove those of a type that has no hosts.
    Reminders {
        #[command(subcommand)]
        command: RemindersCommand,
    },
}

impl ActorsArgs {
    pub(crate) fn prints_json(&self) -> bool {
        match &self.command {
            ActorsCommand::List { json, .. } => *json,
            ActorsCommand::Reminders { command } => command.prints_json(),
            ActorsCommand::Allow { .. } | ActorsCommand::Release { .. } => false,
        }
    }
}

pub(crate) fn run(args: ActorsArgs) -> Result<()> {
    block_on(async {
        match args.command {
            ActorsCommand::List { store, namespace, json } => {
                let namespace = namespace.map(|name| name.to_string()).unwrap_or_default();
                let types = store.admin().await?.actor_types(&namespace).await?;
                if json {
                    print_json(&types)
                } else {
                    print_table(&types)
                }
                Ok(())
            }
            ActorsCommand::Allow { store, actor_type, apps } => {
                let (namespace, actor_type) = parse_type(&actor_type)?;
                let apps: Vec<String> = apps.iter().map(ToString::to_string).collect();
                let line = format!("{namespace}/{actor_type} is for {}", apps.join(", "));
                let request = v1::AllowActorTypeRequest { namespace, actor_type, apps };
                store.admin().await?.allow_actor_type(request).await?;
                println!("{line}");
                Ok(())
            }
            ActorsCommand::Release { store, actor_type } => {
                let (namespace, actor_type) = parse_type(&actor_type)?;
                let line = format!("{namespace}/{actor_type} is for the next app that offers it");
                let request = v1::ReleaseActorTypeRequest { namespace, actor_type };
                store.admin().await?.release_actor_type(request).await?;
                println!("{line}");
                Ok(())
            }
            ActorsCommand::Reminders { command } => reminders::run(command).await,
        }
    })?
}

/// Namespace and type. The name of a type has no `/` in apps that follow Dapr.
fn parse_type(text: &str) -> Result<(String, String)> {
    let Some((namespace, actor_type)) = text.split_once('/') else {
        return Ok(("default".to_owned(), text.to_owned()));
    };
    let namespace = Label::new(namespace).with_context(|| format!("the namespace of `{text}`"))?;
    Ok((namespace.to_string(), actor_type.to_owned()))
}

fn print_table(types: &[v1::ActorTypeStatus]) {
    println!("{:<36} {:>5} {:<24} {:<6} REFUSED", "TYPE", "HOSTS", "APPS", "BY");
    for known in types {
        let name = format!("{}/{}", known.namespace, known.actor_type.escape_debug());
        let by = match (known.named, known.shared) {
            (true, _) => "name",
            (false, true) => "shared",
            (false, false) => "first",
        };
        let (apps, refused) = (known.apps.join(", "), known.refused.join(", "));
        let line = format!("{name:<36} {:>5} {apps:<24} {by:<6} {refused}", known.hosts);
        println!("{}", line.trim_end());
    }
}

fn print_json(types: &[v1::ActorTypeStatus]) {
    let known = types.iter().map(|known| {
        let vacant_since = Some(known.vacant_since_unix_s).filter(|since| *since > 0);
        serde_json::json!({
            "namespace": known.namespace,
            "type": known.actor_type,
            "apps": known.apps,
            "named": known.named,
            "shared": known.shared,
            "hosts": known.hosts,
            "vacant_since_unix_s": vacant_since,
            "refused": known.refused,
        })
    });
    println!("{}", serde_json::json!({ "types": known.collect::<Vec<_>>() }));
}
