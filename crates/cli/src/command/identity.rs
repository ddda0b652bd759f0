//! `tollway identity`: who has a certificate, and whose is taken back.

use std::str::FromStr;

use anyhow::Result;
use clap::{Args, Subcommand};
use tollway_model::{AppId, Instance, Label};
use tollway_wire::v1;

use super::moment::{Moment, now_unix_ms};
use crate::async_runtime::block_on;
use crate::command::access::StoreArg;

#[derive(Args)]
pub(crate) struct IdentityArgs {
    #[command(subcommand)]
    command: IdentityCommand,
}

#[derive(Subcommand)]
enum IdentityCommand {
    /// Show the instances whose certificates run.
    List {
        #[command(flatten)]
        store: StoreArg,
        /// Show what is revoked, in this network and in joined ones.
        #[arg(long)]
        revoked: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Take an identity back: its certificates are refused, here and in joined networks, and its
    /// connections end.
    Revoke {
        #[command(flatten)]
        store: StoreArg,
        /// An app, or one instance of it: `APP[.NAMESPACE][/INSTANCE]`. The namespace is `default` if
        /// it is not given.
        identity: Named,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the pin of the network's root, by which pods recognise their control plane. It is no
    /// secret.
    Root {
        #[command(flatten)]
        store: StoreArg,
    },
    /// Take a revocation back. The same identity has to be given.
    Restore {
        #[command(flatten)]
        store: StoreArg,
        identity: Named,
    },
}

/// `APP[.NAMESPACE][/INSTANCE]`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Named(v1::RevokedIdentity);

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (service, instance) = match text.split_once('/') {
            Some((service, instance)) => (service, Some(instance)),
            None => (text, None),
        };
        let (app, namespace) = service.split_once('.').unwrap_or((service, "default"));
        let shape = |error: &dyn std::error::Error| {
            format!("{error}; an identity is APP[.NAMESPACE][/INSTANCE]")
        };
        let app: AppId = app.parse().map_err(|error| shape(&error))?;
        let namespace = Label::new(namespace).map_err(|error| shape(&error))?;
        let instance = instance.map(Instance::new).transpose().map_err(|error| shape(&error))?;
        Ok(Self(v1::RevokedIdentity {
            app: app.to_string(),
            namespace: namespace.to_string(),
            instance: instance.map_or_else(String::new, |instance| instance.to_string()),
        }))
    }
}

impl IdentityArgs {
    pub(crate) fn prints_json(&self) -> bool {
        match &self.command {
            IdentityCommand::List { json, .. } | IdentityCommand::Revoke { json, .. } => *json,
            IdentityCommand::Root { .. } | IdentityCommand::Restore { .. } => false,
        }
    }
}

pub(crate) fn run(args: IdentityArgs) -> Result<()> {
    block_on(async {
        match args.command {
            IdentityCommand::List { store, revoked: true, json } => revoked(&store, json).await,
            IdentityCommand::List { store, revoked: false, json } => list(&store, json).await,
            IdentityCommand::Revoke { store, identity, json } => {
                revoke(&store, identity, json).await
            }
            IdentityCommand::Root { store } => {
                println!("{}", store.admin().await?.status().await?.root_pin);
                Ok(())
            }
            IdentityCommand::Restore { store, identity } => {
                let shown = shown(Some(&identity.0));
                store.admin().await?.restore_identity(identity.0).await?;
                println!("{shown} is no longer revoked");
                Ok(())
            }
        }
    })?
}

async fn revoke(store: &StoreArg, identity: Named, json: bool) -> Result<()> {
    let done = store.admin().await?.revoke_identity(identity.0).await?;
    let revocation = done.revocation.unwrap_or_default();
    if json {
        let printed = serde_json::json!({
            "identity": shown(revocation.identity.as_ref()),
            "revoked_at_unix_ms": revocation.revoked_at_unix_ms,
            "ends_at_unix_ms": at(revocation.ends_at_unix_ms),
            "connections": done.connections,
            "usable_tokens": done.tokens,
        });
        println!("{printed}");
        return Ok(());
    }
    let identity = shown(revocation.identity.as_ref());
    println!(
        "{identity} is revoked; connections to the control plane that end: {}",
        done.connections
    );
    for token in done.tokens {
        println!(
            "it enrolled with the token {token}, which is good still: `tollway token revoke {token}`"
        );
    }
    Ok(())
}

async fn revoked(store: &StoreArg, json: bool) -> Result<()> {
    let revocations = store.admin().await?.revocations().await?;
    if json {
        let row = |one: &v1::RevocationStatus| {
            serde_json::json!({
                "identity": shown(one.identity.as_ref()),
                "network": Some(&one.network).filter(|network| !network.is_empty()),
                "revoked_at_unix_ms": at(one.revoked_at_unix_ms),
                "ends_at_unix_ms": at(one.ends_at_unix_ms),
            })
        };
        println!("{}", serde_json::Value::Array(revocations.iter().map(row).collect()));
        return Ok(());
    }
    let now = now_unix_ms();
    println!("{:<40} {:<16} {:<14} ENDS", "REVOKED", "BY", "SINCE");
    for one in revocations {
        let by = if one.network.is_empty() { "this network" } else { &one.network };
        let since = match at(one.revoked_at_unix_ms) {
            Some(at) => Moment::of(at, now).to_string(),
            None => "-".to_owned(),
        };
        let ends = Moment::of(one.ends_at_unix_ms, now);
        println!("{:<40} {by:<16} {since:<14} {ends}", shown(one.identity.as_ref()));
    }
    Ok(())
}

async fn list(store: &StoreArg, json: bool) -> Result<()> {
    let mut admin = store.admin().await?;
    let (mut after, mut rows) = (String::new(), Vec::new());
    if !json {
        println!(
            "{:<44} {:<9} {:<14} {:<14} {:<14} SERIAL",
            "IDENTITY", "KIND", "ISSUED", "ENDS", "SEEN"
        );
    }
    loop {
        let page = admin.identities(v1::ListIdentitiesRequest { after, limit: 0 }).await?;
        for one in &page.identities {
            if json {
                rows.push(in_json(one));
            } else {
                print_row(one, now_unix_ms());
            }
        }
        if page.next.is_empty() {
            break;
        }
        after = page.next;
    }
    if json {
        println!("{}", serde_json::Value::Array(rows));
    }
    Ok(())
}

fn in_json(one: &v1::IdentityStatus) -> serde_json::Value {
    let service = one.service.clone().unwrap_or_default();
    serde_json::json!({
        "app": service.app,
        "namespace": service.namespace,
        "instance": one.instance,
        "kind": kind(one),
        "serial": hex(&one.serial),
        "issued_at_unix_ms": one.issued_at_unix_ms,
        "expires_at_unix_ms": one.expires_at_unix_ms,
        "last_seen_unix_ms": one.last_seen_unix_ms,
        "connected": one.connected,
        "token": Some(&one.token).filter(|token| !token.is_empty()),
        "revoked": one.revoked,
    })
}

fn print_row(one: &v1::IdentityStatus, now: u64) {
    let service = one.service.clone().unwrap_or_default();
    let identity = format!("{}.{}/{}", service.app, service.namespace, one.instance);
    let issued = Moment::of(one.issued_at_unix_ms, now).to_string();
    let ends = if one.revoked {
        "revoked".to_owned()
    } else {
        Moment::of(one.expires_at_unix_ms, now).to_string()
    };
    let seen = if one.connected {
        "connected".to_owned()
    } else {
        Moment::of(one.last_seen_unix_ms, now).to_string()
    };
    let (kind, serial) = (kind(one), hex(&one.serial));
    println!("{identity:<44} {kind:<9} {issued:<14} {ends:<14} {seen:<14} {serial}");
}

fn kind(one: &v1::IdentityStatus) -> &'static str {
    let service = one.service.as_ref();
    let is_system = service.is_some_and(|s| s.namespace == tollway_identity::SYSTEM_NAMESPACE);
    match service {
        Some(s) if is_system && s.app == tollway_identity::GATEWAY_APP => "gateway",
        Some(_) if is_system => "agent",
        Some(_) | None => "workload",
    }
}

fn shown(identity: Option<&v1::RevokedIdentity>) -> String {
    let Some(v1::RevokedIdentity { app, namespace, instance }) = identity else {
        return String::new();
    };
    if instance.is_empty() {
        format!("{app}.{namespace}")
    } else {
        format!("{app}.{namespace}/{instance}")
    }
}

fn at(unix_ms: u64) -> Option<u64> {
    Some(unix_ms).filter(|at| *at > 0)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_an_app_with_a_namespace_and_an_instance_where_given() {
        let named = |text: &str| text.parse::<Named>().map(|named| shown(Some(&named.0)));
        assert_eq!(named("stock").unwrap(), "stock.default");
        assert_eq!(named("stock.shop").unwrap(), "stock.shop");
        assert_eq!(named("stock/a-1").unwrap(), "stock.default/a-1");
        assert_eq!(named("gateway.tollway/g").unwrap(), "gateway.tollway/g");
        for wrong in ["", "stock.", "stock.shop.east", "stock/", "stock/a/b", ".shop", "st ock"] {
            let refused = named(wrong).unwrap_err();
            assert!(refused.contains("APP[.NAMESPACE][/INSTANCE]"), "{wrong}: {refused}");
        }
    }
}
