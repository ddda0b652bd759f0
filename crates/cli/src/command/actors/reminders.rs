//! `tollway actors reminders`: what is stored of the reminders of actors, listed and removed.

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use tollway_model::Label;
use tollway_wire::v1;
use tollway_wire::v1::remove_actor_reminders_request::What;

use super::parse_type;
use crate::command::access::StoreArg;
use crate::command::moment::{Moment, now_unix_ms};
use crate::command::usage::{printable, share};

#[derive(Subcommand)]
pub(super) enum RemindersCommand {
    /// Show how much each type and namespace keeps, and its share of what it may; with TYPE, its
    /// reminders too.
    List(ListArgs),
    /// Remove reminders of a type. Refused while it has hosts: stop the app before.
    Rm(RemoveArgs),
}

#[derive(Args)]
pub(super) struct ListArgs {
    /// TYPE or NAMESPACE/TYPE.
    #[arg(value_name = "TYPE")]
    actor_type: Option<String>,
    /// Only this namespace.
    #[arg(short = 'n', long, conflicts_with = "actor_type")]
    namespace: Option<Label>,
    /// Only this actor of TYPE.
    #[arg(long, value_name = "ID", requires = "actor_type")]
    actor: Option<String>,
    /// The rest of an answer, which has a thousand at most: NEXT is in the answer.
    #[arg(long, value_name = "NEXT", requires = "actor_type")]
    after: Option<String>,
    #[command(flatten)]
    store: StoreArg,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(override_usage = "tollway actors reminders rm TYPE --actor ID|--all")]
#[group(id = "what", required = true, multiple = false, args = ["actor", "all"])]
pub(super) struct RemoveArgs {
    /// TYPE or NAMESPACE/TYPE.
    #[arg(value_name = "TYPE")]
    actor_type: String,
    /// Remove the reminders of this actor.
    #[arg(long, value_name = "ID")]
    actor: Option<String>,
    /// Remove the one of this name.
    #[arg(long, requires = "actor", conflicts_with = "all")]
    name: Option<String>,
    /// Remove all reminders of the type.
    #[arg(long)]
    all: bool,
    /// Do it; without this the command shows what it would remove.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    store: StoreArg,
}

impl RemindersCommand {
    pub(super) fn prints_json(&self) -> bool {
        matches!(self, Self::List(ListArgs { json: true, .. }))
    }
}

pub(super) async fn run(command: RemindersCommand) -> Result<()> {
    match command {
        RemindersCommand::List(args) => list(args).await,
        RemindersCommand::Rm(args) => remove(args).await,
    }
}

async fn list(args: ListArgs) -> Result<()> {
    let mut request = v1::ListActorRemindersRequest {
        namespace: args.namespace.map(|name| name.to_string()).unwrap_or_default(),
        actor_id: args.actor.unwrap_or_default(),
        after: args.after.as_deref().map(from_hex).transpose()?.unwrap_or_default(),
        ..v1::ListActorRemindersRequest::default()
    };
    if let Some(actor_type) = &args.actor_type {
        (request.namespace, request.actor_type) = parse_type(actor_type)?;
    }
    let listed = args.store.admin().await?.actor_reminders(request).await?;
    if args.json {
        println!("{}", as_json(&listed));
    } else {
        print(&listed, args.actor_type.is_some());
    }
    Ok(())
}

async fn remove(args: RemoveArgs) -> Result<()> {
    let (namespace, actor_type) = parse_type(&args.actor_type)?;
    let of_type = format!("{namespace}/{actor_type}");
    let mut admin = args.store.admin().await?;
    if !args.yes {
        let what = match (&args.actor, &args.name) {
            (Some(actor), Some(name)) => format!("the reminder {name} of {of_type}/{actor}"),
            (Some(actor), None) => format!("the reminders of {of_type}/{actor}"),
            (None, _) => {
                let request =
                    v1::ListActorRemindersRequest { namespace, actor_type, ..Default::default() };
                let listed = admin.actor_reminders(request).await?;
                let used = listed.types.first().and_then(|of_type| of_type.usage);
                let used = used.unwrap_or_default();
                format!("{} reminders of {of_type}, {} bytes", used.entries, used.bytes)
            }
        };
        bail!("this removes {what} for good; stop the app, and repeat the command with --yes");
    }
    let what = match (args.actor, args.name) {
        (Some(actor_id), Some(name)) => What::One(v1::ReminderOfActor { actor_id, name }),
        (Some(actor_id), None) => What::ActorId(actor_id),
        (None, _) => What::All(true),
    };
    let request = v1::RemoveActorRemindersRequest { namespace, actor_type, what: Some(what) };
    let removed = admin.remove_actor_reminders(request).await?;
    println!("removed {removed} reminders of {of_type}");
    Ok(())
}

fn as_json(listed: &v1::ListActorRemindersResponse) -> serde_json::Value {
    let usage = |usage: Option<v1::StateUsage>| usage.unwrap_or_default();
    let types = listed.types.iter().map(|of_type| {
        let used = usage(of_type.usage);
        json!({
            "namespace": of_type.namespace,
            "type": of_type.actor_type,
            "reminders": used.entries,
            "bytes": used.bytes,
        })
    });
    let namespaces = listed.namespaces.iter().map(|namespace| {
        let used = usage(namespace.usage);
        json!({
            "namespace": namespace.namespace,
            "reminders": used.entries,
            "bytes": used.bytes,
        })
    });
    let reminders = listed.reminders.iter().map(|reminder| {
        json!({
            "actor": reminder.actor_id,
            "name": reminder.name,
            "due_unix_ms": reminder.due_unix_ms,
            "period": reminder.period,
            "bytes": reminder.bytes,
        })
    });
    let (all, quotas) = (usage(listed.all), listed.quotas.unwrap_or_default());
    json!({
        "types": types.collect::<Vec<_>>(),
        "further_types": listed.further_types,
        "namespaces": namespaces.collect::<Vec<_>>(),
        "reminders": reminders.collect::<Vec<_>>(),
        "next": to_hex(&listed.next),
        "all": { "reminders": all.entries, "bytes": all.bytes },
        "quotas": {
            "namespace_reminders": quotas.namespace_entries,
            "namespace_bytes": quotas.namespace_bytes,
            "reminders": quotas.entries,
            "bytes": quotas.bytes,
        },
    })
}

fn print(listed: &v1::ListActorRemindersResponse, has_type: bool) {
    let quotas = listed.quotas.unwrap_or_default();
    println!("{:<40} {:>10} {:>12} {:>7}", "TYPE", "REMINDERS", "BYTES", "OF MOST");
    let line = |name: &str, usage: Option<v1::StateUsage>, most: (u64, u64)| {
        let v1::StateUsage { entries, bytes } = usage.unwrap_or_default();
        let share = share(entries, most.0).max(share(bytes, most.1));
        println!("{name:<40} {entries:>10} {bytes:>12} {share:>6.1}%");
    };
    let of_namespace = (quotas.namespace_entries, quotas.namespace_bytes);
    for of_type in &listed.types {
        let name = format!("{}/{}", of_type.namespace, printable(&of_type.actor_type));
        line(&name, of_type.usage, of_namespace);
    }
    if listed.further_types > 0 {
        println!("and {} more types with less", listed.further_types);
    }
    if has_type {
        let now = now_unix_ms();
        for reminder in &listed.reminders {
            let name = format!("{}/{}", printable(&reminder.actor_id), printable(&reminder.name));
            let due = Moment::of(reminder.due_unix_ms, now);
            let period = printable(&reminder.period);
            let period = if period.is_empty() { "once" } else { &period };
            println!("  {name:<38} {:>10} {:>12}  due {due}", period, reminder.bytes);
        }
        if !listed.next.is_empty() {
            println!("  and more; see them with --after {}", to_hex(&listed.next));
        }
        return;
    }
    for namespace in &listed.namespaces {
        line(&format!("all of {}", namespace.namespace), namespace.usage, of_namespace);
    }
    line("all", listed.all, (quotas.entries, quotas.bytes));
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Result<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.map(byte).collect::<Option<_>>().context("--after takes what an earlier answer has")
}
