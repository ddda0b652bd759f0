//! `tollway token`.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use clap::{Args, Subcommand};
use tollway_model::{AppId, Group, Label};
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;
use tollway_wire::v1::token_status::Scope as Stated;

use super::moment::{Moment, now_unix_ms};
use super::neighbours::group;
use crate::async_runtime::block_on;
use crate::command::access::StoreArg;
use crate::command::secret_output::SecretOutput;

#[derive(Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Subcommand)]
enum TokenCommand {
    /// Print a new token. It is a secret, and good for one instance unless --uses says otherwise.
    Create(CreateArgs),
    /// Show the tokens, without their secrets: who used them last, and what is left of them.
    List {
        #[command(flatten)]
        store: StoreArg,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Take a token back. Certificates that were issued for it run on: `tollway identity revoke`
    /// takes those back.
    Revoke {
        #[command(flatten)]
        store: StoreArg,
        /// As printed when it was made, and by `tollway token list`.
        id: String,
    },
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
    /// How many instances may use it: a number, or `any`. One that starts again is another one.
    #[arg(long, value_name = "N", default_value = "1")]
    uses: Uses,
    /// Validity, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 24 * 3_600_000)]
    ttl_ms: u64,
    /// Print JSON: the token with its id.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    output: SecretOutput,
}

/// How many instances may use a token; 0 for any number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Uses(u32);

impl FromStr for Uses {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            _ if text == "any" => Ok(Self(0)),
            Ok(count @ 1..) => Ok(Self(count)),
            Ok(0) | Err(_) => Err("give a number from 1 on, or `any`"),
        }
    }
}

impl fmt::Display for Uses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("any number of uses"),
            1 => f.write_str("one use"),
            count => write!(f, "{count} uses"),
        }
    }
}

impl TokenArgs {
    pub(crate) fn prints_json(&self) -> bool {
        match &self.command {
            TokenCommand::Create(create) => create.json,
            TokenCommand::List { json, .. } => *json,
            TokenCommand::Revoke { .. } => false,
        }
    }
}

pub(crate) fn run(args: TokenArgs) -> Result<()> {
    block_on(async {
        match args.command {
            TokenCommand::Create(args) => create(&args).await,
            TokenCommand::List { store, json } => list(&store, json).await,
            TokenCommand::Revoke { store, id } => {
                let revoked = store.admin().await?.revoke_token(id).await?.token;
                let revoked = revoked.unwrap_or_default();
                println!("{} is revoked", revoked.id);
                if revoked.used > 0 {
                    println!(
                        "{} instances enrolled with it; `tollway identity list` shows whose certificates run",
                        revoked.used
                    );
                }
                Ok(())
            }
        }
    })?
}

async fn create(args: &CreateArgs) -> Result<()> {
    let request = v1::CreateTokenRequest {
        scope: Some(scope(args)),
        ttl_ms: args.ttl_ms,
        uses: Some(args.uses.0),
    };
    let created = args.store.admin().await?.create_token(request).await?;
    if args.json {
        let printed = serde_json::json!({
            "token": created.token,
            "id": created.id,
            "uses": uses_left(created.uses, 0),
            "expires_at_unix_ms": created.expires_at_unix_ms,
        });
        return args.output.write(format!("{printed}\n").as_bytes());
    }
    args.output.write(format!("{}\n", created.token).as_bytes())?;
    let ends = Moment::of(created.expires_at_unix_ms, now_unix_ms());
    eprintln!("note: token {}, for {}, ends {ends}", created.id, Uses(created.uses));
    Ok(())
}

/// `None` for any number.
fn uses_left(uses: u32, used: u32) -> Option<u32> {
    (uses > 0).then(|| uses.saturating_sub(used))
}

async fn list(store: &StoreArg, json: bool) -> Result<()> {
    let mut admin = store.admin().await?;
    let (mut after, mut rows) = (String::new(), Vec::new());
    if !json {
        println!(
            "{:<13} {:<28} {:<14} {:<14} {:>5}  LAST USE",
            "ID", "FOR", "CREATED", "ENDS", "LEFT"
        );
    }
    loop {
        let page = admin.tokens(v1::ListTokensRequest { after, limit: 0 }).await?;
        after = page.tokens.last().map(|token| token.id.clone()).unwrap_or_default();
        for token in &page.tokens {
            if json {
                rows.push(in_json(token));
            } else {
                print_row(token, now_unix_ms());
            }
        }
        if !page.more || after.is_empty() {
            break;
        }
    }
    if json {
        println!("{}", serde_json::Value::Array(rows));
    }
    Ok(())
}

fn in_json(token: &v1::TokenStatus) -> serde_json::Value {
    let last_use = token.last_use.as_ref().map(|last| {
        serde_json::json!({
            "at_unix_ms": last.at_unix_ms,
            "by": by(last),
            "from": last.from,
        })
    });
    let revoked = Some(token.revoked_at_unix_ms).filter(|at| *at > 0);
    serde_json::json!({
        "id": token.id,
        "for": shown_scope(token),
        "created_at_unix_ms": token.created_at_unix_ms,
        "expires_at_unix_ms": token.expires_at_unix_ms,
        "revoked_at_unix_ms": revoked,
        "used": token.used,
        "uses_left": uses_left(token.uses, token.used),
        "last_use": last_use,
    })
}

fn print_row(token: &v1::TokenStatus, now: u64) {
    let created = Moment::of(token.created_at_unix_ms, now).to_string();
    let ends = if token.revoked_at_unix_ms > 0 {
        "revoked".to_owned()
    } else {
        Moment::of(token.expires_at_unix_ms, now).to_string()
    };
    let left = uses_left(token.uses, token.used).map_or("any".to_owned(), |left| left.to_string());
    let last = token.last_use.as_ref().map_or("-".to_owned(), |last| {
        format!("{} by {} from {}", Moment::of(last.at_unix_ms, now), by(last), last.from)
    });
    println!(
        "{:<13} {:<28} {created:<14} {ends:<14} {left:>5}  {last}",
        token.id,
        shown_scope(token)
    );
}

/// As `tollway identity revoke` takes it.
fn by(last: &v1::TokenUse) -> String {
    let service = last.service.as_ref();
    let service = service.map_or_else(String::new, |s| format!("{}.{}", s.app, s.namespace));
    format!("{service}/{}", last.instance)
}

fn shown_scope(token: &v1::TokenStatus) -> String {
    match &token.scope {
        Some(Stated::Any(_)) => "any app".to_owned(),
        Some(Stated::Namespace(namespace)) => format!("apps of {namespace}"),
        Some(Stated::App(scope)) => format!("{}.{}", scope.app, scope.namespace),
        Some(Stated::Gateway(_)) => "gateways".to_owned(),
        Some(Stated::FabricGroup(group)) => format!("agents of {group}"),
        None => "nothing that this version knows".to_owned(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_a_number_from_one_on_or_any() {
        assert_eq!("any".parse(), Ok(Uses(0)));
        assert_eq!("3".parse(), Ok(Uses(3)));
        for wrong in ["0", "-1", "", "all", "4294967296"] {
            assert!(wrong.parse::<Uses>().is_err(), "{wrong}");
        }
        assert_eq!((uses_left(0, 9), uses_left(3, 1), uses_left(1, 2)), (None, Some(2), Some(0)));
    }
}
