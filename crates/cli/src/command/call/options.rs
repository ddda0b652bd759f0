//! The options of `tollway call`.

use std::path::PathBuf;

use clap::Args;
use hyper::Method;
use hyper::header::{HeaderName, HeaderValue};
use tollway_model::{AppId, Label};
use tollway_settings::Access;

use super::body::Data;
use super::sidecar_url::SidecarUrl;
use super::target::Target;
use crate::part::SettingsArgs;

#[derive(Args)]
pub(crate) struct CallArgs {
    /// The service and the path, such as `stock.shop.east/items?limit=3`.
    #[arg(value_name = "APP[.NS[.NETWORK]]/PATH")]
    pub(super) target: Target,
    /// Method [default: GET, or POST with -d].
    #[arg(short = 'X', long, value_name = "METHOD")]
    pub(super) request: Option<Method>,
    /// Body; `@FILE` sends a file, `-` standard input, both as they are.
    #[arg(short, long, value_name = "BODY", allow_hyphen_values = true)]
    pub(super) data: Option<Data>,
    /// Header field; without one a body is `application/json` if it is JSON.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = header)]
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// Print the head of the answer too.
    #[arg(short, long, conflicts_with = "json")]
    pub(super) include: bool,
    /// Print the hops of the call, with identities and times, on standard error.
    #[arg(long)]
    pub(super) explain: bool,
    /// Print the hops as JSON on standard output, in place of the body, which -o still receives.
    #[arg(long, requires = "explain")]
    pub(super) json: bool,
    /// File that receives the body of the answer.
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Time for the whole call, in milliseconds [default: 60 s until it is answered].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) timeout_ms: Option<u64>,
    /// Call as this app; a join token may be good for one only.
    #[arg(long, value_name = "ID", default_value = "call", conflicts_with = "sidecar")]
    pub(super) app_id: AppId,
    /// Call from this namespace, which is also that of a service named without one.
    #[arg(long, default_value = "default", conflicts_with = "sidecar")]
    pub(super) namespace: Label,
    /// Call through a sidecar that runs, as its app, such as http://127.0.0.1:3500.
    #[arg(long, value_name = "URL", conflicts_with_all = ["control", "token_file"])]
    pub(super) sidecar: Option<SidecarUrl>,
    #[command(flatten)]
    pub(super) access: SettingsArgs<Access>,
}

impl CallArgs {
    pub(crate) fn prints_json(&self) -> bool {
        self.json
    }

    /// The method of the request.
    pub(super) fn method(&self) -> Method {
        let method = self.request.clone();
        method.unwrap_or(if self.data.is_some() { Method::POST } else { Method::GET })
    }
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("a header is written NAME: VALUE")?;
    let name = name.trim().parse().map_err(|_| format!("`{name}` is not a header's name"))?;
    let value = value.trim().parse().map_err(|_| format!("the value of {name} is not text"))?;
    Ok((name, value))
}
