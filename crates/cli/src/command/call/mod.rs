//! `tollway call`: one request through the mesh.
//!
//! The request goes through a sidecar: one of this call alone, with an identity of one minute
//! (`sidecar_access`), or one that runs already. It is served as any app's request is, and its
//! answer is written as it arrives (`exchange`). A program that is no sidecar is not waited for
//! (`liveness`). `--explain` prints the trace of the call (`call_trace`).

mod body;
mod call_trace;
mod exchange;
mod liveness;
mod options;
mod sidecar_access;
mod sidecar_url;
mod target;

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use tollway_model::ErrorCode;
use tollway_telemetry::init_terminal_log;

use self::call_trace::{CallTimes, Explanation};
use self::exchange::Output;
pub(crate) use self::options::CallArgs;
use self::sidecar_access::SidecarAccess;
use crate::async_runtime::block_on;
use crate::failure::Failure;

/// How much longer an explained call waits: its sidecar gives up after the timeout, and its answer
/// then has the trace.
const EXPLANATION_GRACE: Duration = Duration::from_secs(1);

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
    let sidecar = match args.sidecar.take() {
        Some(url) => SidecarAccess::at(url),
        None => Box::pin(SidecarAccess::open(&args, timeout)).await?,
    };
    let start = sidecar.is_own().then(|| began.elapsed());
    let sent = Instant::now();
    let mut answer = exchange::send(&sidecar, request).await?;
    let answered = sent.elapsed();
    let trace = call_trace::take_trace(&mut answer);
    let status = answer.status().as_u16();
    let output = match (&args.output, args.json) {
        (Some(path), _) => Output::File(path),
        (None, true) => Output::Nowhere,
        (None, false) => Output::Standard,
    };
    let (bytes, printed) = exchange::print(answer, &args.target, args.include, output).await;
    if args.explain {
        let times = CallTimes { start, answered, body: sent.elapsed() - answered };
        let explanation = Explanation::new(&args, status, bytes, times, trace);
        explanation.print(args.json, printed.as_ref().err())?;
    }
    // The reader has closed the pipe, as `head` does: that is no error to print.
    printed.or_else(|error| {
        let unread = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if unread == Some(io::ErrorKind::BrokenPipe) { Ok(ExitCode::FAILURE) } else { Err(error) }
    })
}

fn too_slow(name: &str, ms: u64) -> Failure {
    let what = format!("the call of {name} was not done within {ms} ms; give it more --timeout-ms");
    Failure::new(ErrorCode::TimedOut, what)
}
