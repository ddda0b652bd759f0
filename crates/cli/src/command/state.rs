//! `tollway state`: what apps keep in the state of their network, listed and removed.

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use tollway_model::Label;
use tollway_wire::v1;
use tollway_wire::v1::remove_state_request::What;

use crate::async_runtime::block_on;
use crate::command::access::StoreArg;
use crate::command::usage::{printable, share};

#[derive(Args)]
pub(crate) struct StateArgs {
    #[command(subcommand)]
    command: StateCommand,
}

#[derive(Subcommand)]
enum StateCommand {
    /// Show how much each app keeps, and its share of what it may; with APP, its keys too.
    List(ListArgs),
    /// Remove entries of an app. Stop the app before: what it writes meanwhile may stay.
    Rm(RemoveArgs),
}

#[derive(Args)]
struct ListArgs {
    /// One app: APP, or APP.NAMESPACE.
    #[arg(value_name = "APP", value_parser = app)]
    app: Option<App>,
    /// Only this namespace; with APP, its namespace (`default` if not given).
    #[arg(short = 'n', long)]
    namespace: Option<Label>,
    /// Keys after this one; an answer has a thousand at most.
    #[arg(long, value_name = "KEY", requires = "app")]
    after: Option<String>,
    #[command(flatten)]
    store: StoreArg,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[group(id = "what", required = true, multiple = false, args = ["key", "all"])]
struct RemoveArgs {
    /// The app: APP, or APP.NAMESPACE.
    #[arg(value_name = "APP", value_parser = app)]
    app: App,
    /// The app's namespace (`default` if not given).
    #[arg(short = 'n', long)]
    namespace: Option<Label>,
    /// Remove this entry.
    #[arg(long)]
    key: Option<String>,
    /// Remove all entries.
    #[arg(long)]
    all: bool,
    /// Do it; without this the command shows what it would remove.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    store: StoreArg,
}

/// An app, and its namespace if it was given.
#[derive(Clone, Debug)]
struct App {
    app: Label,
    namespace: Option<Label>,
}

fn app(text: &str) -> Result<App, String> {
    let label = |text: &str| Label::new(text).map_err(|error| error.to_string());
    match text.split_once('.') {
        None => Ok(App { app: label(text)?, namespace: None }),
        Some((app, namespace)) => Ok(App { app: label(app)?, namespace: Some(label(namespace)?) }),
    }
}

impl App {
    /// Its namespace and name.
    fn place(&self, namespace: Option<&Label>) -> Result<(String, String)> {
        let namespace = match (&self.namespace, namespace) {
            (Some(one), Some(other)) if one != other => {
                bail!("the app is of the namespace {one}; leave --namespace out");
            }
            (Some(namespace), _) | (None, Some(namespace)) => namespace.to_string(),
            (None, None) => "default".to_owned(),
        };
        Ok((namespace, self.app.to_string()))
    }
}

impl StateArgs {
    pub(crate) fn prints_json(&self) -> bool {
        matches!(self.command, StateCommand::List(ListArgs { json: true, .. }))
    }
}

pub(crate) fn run(args: StateArgs) -> Result<()> {
    block_on(async {
        match args.command {
            StateCommand::List(args) => list(args).await,
            StateCommand::Rm(args) => remove(args).await,
        }
    })?
}

async fn list(args: ListArgs) -> Result<()> {
    let mut request = v1::ListStateRequest {
        namespace: args.namespace.as_ref().map(ToString::to_string).unwrap_or_default(),
        after_key: args.after.unwrap_or_default(),
        ..v1::ListStateRequest::default()
    };
    if let Some(app) = &args.app {
        (request.namespace, request.app) = app.place(args.namespace.as_ref())?;
    }
    let has_app = !request.app.is_empty();
    let listed = args.store.admin().await?.state(request).await?;
    if args.json {
        println!("{}", as_json(&listed));
    } else {
        print(&listed, has_app);
    }
    Ok(())
}

async fn remove(args: RemoveArgs) -> Result<()> {
    let (namespace, app) = args.app.place(args.namespace.as_ref())?;
    let name = format!("{app}.{namespace}");
    let mut admin = args.store.admin().await?;
    if !args.yes {
        let what = match &args.key {
            Some(key) => format!("the entry {key} of {name}"),
            None => {
                let request = v1::ListStateRequest { namespace, app, ..Default::default() };
                let listed = admin.state(request).await?;
                let used = listed.apps.first().and_then(|app| app.usage).unwrap_or_default();
                format!("{} entries of {name}, {} bytes", used.entries, used.bytes)
            }
        };
        bail!("this removes {what} for good; stop the app, and repeat the command with --yes");
    }
    let what = args.key.map_or(What::All(true), What::Key);
    let request = v1::RemoveStateRequest { namespace, app, what: Some(what) };
    let removed = admin.remove_state(request).await?;
    println!("removed {} entries of {name}, {} bytes", removed.entries, removed.bytes);
    Ok(())
}

fn as_json(listed: &v1::ListStateResponse) -> serde_json::Value {
    let quotas = listed.quotas.unwrap_or_default();
    let usage = |usage: Option<v1::StateUsage>| usage.unwrap_or_default();
    let apps: Vec<_> = listed
        .apps
        .iter()
        .map(|app| {
            let used = usage(app.usage);
            json!({
                "namespace": app.namespace,
                "app": app.app,
                "entries": used.entries,
                "bytes": used.bytes,
            })
        })
        .collect();
    let namespaces: Vec<_> = listed
        .namespaces
        .iter()
        .map(|namespace| {
            let used = usage(namespace.usage);
            json!({
                "namespace": namespace.namespace,
                "entries": used.entries,
                "bytes": used.bytes,
            })
        })
        .collect();
    let keys: Vec<_> =
        listed.keys.iter().map(|key| json!({ "key": key.key, "bytes": key.bytes })).collect();
    let all = usage(listed.all);
    json!({
        "apps": apps,
        "further_apps": listed.further_apps,
        "namespaces": namespaces,
        "keys": keys,
        "has_further_keys": listed.has_further_keys,
        "all": { "entries": all.entries, "bytes": all.bytes },
        "quotas": {
            "app_entries": quotas.app_entries,
            "app_bytes": quotas.app_bytes,
            "namespace_bytes": quotas.namespace_bytes,
            "bytes": quotas.bytes,
        },
    })
}

fn print(listed: &v1::ListStateResponse, has_app: bool) {
    let quotas = listed.quotas.unwrap_or_default();
    println!("{:<40} {:>10} {:>12} {:>7}", "NAME", "ENTRIES", "BYTES", "OF MOST");
    let line = |name: &str, usage: Option<v1::StateUsage>, most: u64| {
        let v1::StateUsage { entries, bytes } = usage.unwrap_or_default();
        println!("{name:<40} {entries:>10} {bytes:>12} {:>6.1}%", share(bytes, most));
    };
    for app in &listed.apps {
        line(&format!("{}.{}", app.app, app.namespace), app.usage, quotas.app_bytes);
    }
    if listed.further_apps > 0 {
        println!("and {} more apps with less", listed.further_apps);
    }
    if has_app {
        for key in &listed.keys {
            println!("  {:<51} {:>12}", printable(&key.key), key.bytes);
        }
        if listed.has_further_keys {
            println!("  and more; --after KEY shows those after a key");
        }
        return;
    }
    for namespace in &listed.namespaces {
        let name = format!("all of {}", namespace.namespace);
        line(&name, namespace.usage, quotas.namespace_bytes);
    }
    line("all", listed.all, quotas.bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_app_has_the_namespace_that_is_given() {
        let place = |text: &str, namespace: Option<&str>| {
            let namespace = namespace.map(|text| Label::new(text).unwrap());
            app(text).unwrap().place(namespace.as_ref()).ok()
        };
        let found = |namespace: &str, app: &str| Some((namespace.to_owned(), app.to_owned()));
        assert_eq!(place("cart", None), found("default", "cart"));
        assert_eq!(place("cart", Some("shop")), found("shop", "cart"));
        assert_eq!(place("cart.shop", None), found("shop", "cart"));
        assert_eq!(place("cart.shop", Some("shop")), found("shop", "cart"));
        assert_eq!(place("cart.shop", Some("other")), None);
        assert!(app("cart.shop.west").is_err() && app(".shop").is_err());
    }
}
