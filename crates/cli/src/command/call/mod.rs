//! `tollway call`: one request through the mesh.
//!
//! The way in is a sidecar: one of its own, which lives as long as the call and has an identity
//! of one minute (`door`), or one that runs already. The request goes the way that any app's
//! does, and its answer is written as it comes (`exchange`). A program that is no sidecar is not
//! waited for (`sign`). Which way it took is told where that is asked for (`explain`).

mod body;
mod door;
mod exchange;
mod explain;
mod sign;
mod target;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use hyper::Method;
use hyper::header::{HeaderName, HeaderValue};
use tollway_model::{AppId, ErrorCode, Label};
use tollway_telemetry::init_terminal_log;

use self::body::Data;
use self::door::{Door, SidecarUrl};
use self::exchange::Output;
use self::explain::{CallTimes, Explanation};
use self::target::Target;
use crate::command::access::AccessArgs;
use crate::failure::Failure;
use crate::runtime::block_on;

#[derive(Args)]
pub(crate) struct CallArgs {
    /// The service and the path, such as `stock.shop.east/items?limit=3`.
    #[arg(value_name = "APP[.NS[.NETWORK]]/PATH")]
    target: Target,
    /// Method [default: GET, or POST with -d].
    #[arg(short = 'X', long, value_name = "METHOD")]
    request: Option<Method>,
    /// Body; `@FILE` sends a file, `-` standard input, both as they are.
    #[arg(short, long, value_name = "BODY", allow_hyphen_values = true)]
    data: Option<Data>,
    /// Header field; without one a body is `application/json` if it is JSON.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Print the head of the answer too.
    #[arg(short, long, conflicts_with = "json")]
    include: bool,
    /// Tell which way it took, with identities and times, on standard error.
    #[arg(long)]
    explain: bool,
    /// Tell the way as JSON on standard output, in place of the body, which -o still receives.
    #[arg(long, requires = "explain")]
    json: bool,
    /// Receives the body of the answer.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Time for the whole call, in milliseconds [default: 60 s until it is answered].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout_ms: Option<u64>,
    /// Call as this app; a join token may be good for one only.
    #[arg(long, value_name = "ID", default_value = "call", conflicts_with = "sidecar")]
    app_id: AppId,
    /// Call from this namespace, which is also that of a service named without one.
    #[arg(long, default_value = "default", conflicts_with = "sidecar")]
    namespace: Label,
    /// Call through a sidecar that runs, as its app, such as http://127.0.0.1:3500.
    #[arg(long, value_name = "URL", conflicts_with_all = ["control", "token_file"])]
    sidecar: Option<SidecarUrl>,
    #[command(flatten)]
    access: AccessArgs,
}

/// How much longer an explained call waits: its sidecar, which gives up after the same time,
/// tells where it was then.
const EXPLANATION_GRACE: Duration = Duration::from_secs(1);

impl CallArgs {
    pub(crate) fn prints_json(&self) -> bool {
        self.json
    }

    fn method(&self) -> Method {
        let method = self.request.clone();
        method.unwrap_or(if self.data.is_some() { Method::POST } else { Method::GET })
    }
}

pub(crate) fn run(args: CallArgs) -> Result<ExitCode> {
    init_terminal_log("error");
    block_on(async {
        let Some(ms) = args.timeout_ms else { return call(args, None).await };
        let timeout = Duration::from_millis(ms);
        let patience = if args.explain { timeout + EXPLANATION_GRACE } else { timeout };
        let name = args.target.service.clone();
        tokio::time::timeout(patience, call(args, Some(timeout)))
            .await
            .unwrap_or_else(|_| Err(too_slow(&name, ms).into()))
    })?
}

async fn call(mut args: CallArgs, timeout: Option<Duration>) -> Result<ExitCode> {
    let request = exchange::request(&args)?;
    let began = Instant::now();
    let door = match args.sidecar.take() {
        Some(url) => Door::at(url),
        None => Door::open(&args, timeout).await?,
    };
    let start = door.is_own().then(|| began.elapsed());
    let sent = Instant::now();
    let mut answer = exchange::send(&door, request).await?;
    let answered = sent.elapsed();
    let way = explain::take_way(&mut answer);
    let status = answer.status().as_u16();
    let output = match (&args.output, args.json) {
        (Some(path), _) => Output::File(path),
        (None, true) => Output::Nowhere,
        (None, false) => Output::Standard,
    };
    let (bytes, printed) = exchange::print(answer, &args.target, args.include, output).await;
    if args.explain {
        let times = CallTimes { start, answered, body: sent.elapsed() - answered };
        let told = Explanation::new(&args, status, bytes, times, way);
        told.print(args.json, printed.as_ref().err())?;
    }
    // Whoever reads has what they want, such as `head`, and needs no word about it.
    printed.or_else(|error| {
        let unread = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if unread == Some(io::ErrorKind::BrokenPipe) { Ok(ExitCode::FAILURE) } else { Err(error) }
    })
}

fn too_slow(name: &str, ms: u64) -> Failure {
    let what = format!("the call of {name} was not done within {ms} ms; give it more --timeout-ms");
    Failure::new(ErrorCode::TimedOut, what)
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("a header is written NAME: VALUE")?;
    let name = name.trim().parse().map_err(|_| format!("`{name}` is not a header's name"))?;
    let value = value.trim().parse().map_err(|_| format!("the value of {name} is not text"))?;
    Ok((name, value))
}
