//! The request and its answer.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use tollway_dial::{DialError, dial};
use tollway_model::{ErrorCode, MESH_SUFFIX};

use super::body::{self, Body};
use super::call_trace;
use super::liveness;
use super::options::CallArgs;
use super::sidecar_access::SidecarAccess;
use super::target::Target;
use crate::failure::Failure;

/// The field that names the service.
const TARGET: &str = "dapr-app-id";
/// Largest body that may be a failure of the mesh, where its length is known before.
const FAILURE_BYTES_LIMIT: u64 = 64 * 1024;
/// Largest body that is searched for an error, if the length shows only at the end.
const READ_BYTES_LIMIT: usize = 16 * 1024 * 1024;

/// The request by the command's arguments.
pub(super) fn request(args: &CallArgs) -> Result<Request<Body>> {
    let data = args.data.as_ref().map(body::Data::open).transpose()?;
    let mut request = Request::builder()
        .method(args.method())
        .uri(args.target.path.as_str())
        .header(HOST, format!("{}.{MESH_SUFFIX}", args.target.service))
        .header(USER_AGENT, concat!("tollway/", env!("CARGO_PKG_VERSION")))
        .header(header::ACCEPT, "*/*")
        .body(body::empty())
        .context("the request cannot be made")?;
    if let Some(sent) = data {
        request
            .headers_mut()
            .insert(CONTENT_TYPE, header::HeaderValue::from_static(sent.content_type));
        if let Some(length) = sent.length {
            request.headers_mut().insert(CONTENT_LENGTH, length.into());
        }
        *request.body_mut() = sent.body;
    }
    // Given fields replace the default ones; one given twice is sent twice.
    for (name, _) in &args.headers {
        request.headers_mut().remove(name);
    }
    for (name, value) in &args.headers {
        request.headers_mut().append(name, value.clone());
    }
    request.headers_mut().insert(TARGET, args.target.service.parse()?);
    if args.explain {
        request.headers_mut().insert(call_trace::ASK, call_trace::YES);
    }
    Ok(request)
}

/// Time to connect to a sidecar that runs: elsewhere than here, packets may just be lost.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no connection, in words.
fn reason(error: DialError) -> String {
    match error {
        DialError::Timeout { within } => format!("no connection within {} s", within.as_secs()),
        other @ (DialError::Resolve(_) | DialError::Connect(_) | DialError::Tls(_)) => {
            io::Error::from(other).to_string()
        }
    }
}

/// Sends it through the sidecar; returns with the head of the answer.
pub(super) async fn send(
    sidecar: &SidecarAccess,
    request: Request<Body>,
) -> Result<Response<Incoming>> {
    let unreachable = |why: String| {
        let what = format!("no sidecar answers at {}: {why}; check --sidecar", sidecar.address);
        Failure::new(ErrorCode::Unreachable, what)
    };
    let dialled = dial(&sidecar.address, None, CONNECT_TIMEOUT).await;
    let stream = dialled.map_err(|error| unreachable(reason(error)))?;
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .preserve_header_case(true)
        .handshake(TokioIo::new(stream))
        .await
        .context("the sidecar does not speak HTTP")?;
    tokio::spawn(connection);
    let answer = sender.send_request(request);
    if sidecar.is_own() {
        return answer.await.context("the sidecar gave no answer");
    }
    let no_sidecar = |what: String| {
        let what = format!("what listens at {} is no sidecar: {what}", sidecar.address);
        Failure::new(ErrorCode::Unreachable, format!("{what}; check --sidecar"))
    };
    let answer = liveness::wait(&sidecar.address, answer).await.map_err(no_sidecar)?;
    answer.map_err(|error| {
        if error.is_parse() {
            return no_sidecar(format!("it does not answer in HTTP ({error})")).into();
        }
        anyhow!(error).context("the sidecar gave no answer")
    })
}

/// Writes the answer; the code is 0 for a status below 400. A failure of the mesh goes to
/// standard error, whatever an app answers is passed on. Says how many bytes of body were written.
pub(super) async fn print(
    answer: Response<Incoming>,
    target: &Target,
    include: bool,
    output: Output<'_>,
) -> (u64, Result<ExitCode>) {
    let mut bytes = 0;
    let printed = write(answer, target, include, output, &mut bytes).await;
    (bytes, printed)
}

async fn write(
    answer: Response<Incoming>,
    target: &Target,
    include: bool,
    output: Output<'_>,
    bytes: &mut u64,
) -> Result<ExitCode> {
    let (head, body) = answer.into_parts();
    let failed = head.status.is_client_error() || head.status.is_server_error();
    let mut body = Answered::Streamed(body);
    if failed && is_json(&head) {
        body = body.read().await?;
        if let Answered::Read(read) = &body
            && let Some((code, message)) = failure(read)
        {
            return Err(Failure::new(code, message).into());
        }
    }
    let mut sink = Sink::open(output)?;
    if include {
        sink.write(head_text(&head).as_bytes())?;
    }
    match body {
        Answered::Streamed(body) => copy(body, &mut sink, bytes).await?,
        Answered::Read(read) => {
            sink.write(&read)?;
            *bytes += read.len() as u64;
        }
    }
    if failed {
        bail!("{} answered {}", target.service, head.status);
    }
    Ok(ExitCode::SUCCESS)
}

/// The body of an answer: unread, or read already.
enum Answered {
    Streamed(Incoming),
    Read(Bytes),
}

impl Answered {
    /// Reads a body that may describe a failure. One that is larger than any of those comes from
    /// an app that makes long stories of its errors.
    async fn read(self) -> Result<Self> {
        let Self::Streamed(body) = self else { return Ok(self) };
        if body.size_hint().lower() > FAILURE_BYTES_LIMIT {
            return Ok(Self::Streamed(body));
        }
        let read = Limited::new(body, READ_BYTES_LIMIT).collect().await;
        Ok(Self::Read(read.map_err(|error| anyhow!("the answer broke off: {error}"))?.to_bytes()))
    }
}

async fn copy(mut body: Incoming, sink: &mut Sink<'_>, bytes: &mut u64) -> Result<()> {
    while let Some(frame) = body.frame().await {
        let frame = frame.context("the answer broke off")?;
        if let Ok(data) = frame.into_data() {
            sink.write(&data)?;
            *bytes += data.len() as u64;
        }
    }
    Ok(())
}

fn is_json(head: &hyper::http::response::Parts) -> bool {
    let kind = head.headers.get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"))
}

/// Code and message, if a sidecar reports why there is no answer of the app.
fn failure(body: &[u8]) -> Option<(ErrorCode, String)> {
    let value: serde_json::Value = serde_json::from_slice(body).ok()?;
    let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
    Some((ErrorCode::from_word(&text("errorCode")?)?, text("message")?))
}

fn head_text(head: &hyper::http::response::Parts) -> String {
    let mut text = format!("{:?} {}\r\n", head.version, head.status);
    for (name, value) in &head.headers {
        text.push_str(&format!("{name}: {}\r\n", String::from_utf8_lossy(value.as_bytes())));
    }
    text.push_str("\r\n");
    text
}

/// Where the answer is to go.
#[derive(Clone, Copy)]
pub(super) enum Output<'a> {
    Standard,
    File(&'a Path),
    Nowhere,
}

/// The same, open.
enum Sink<'a> {
    Output(io::Stdout),
    File(File, &'a Path),
    Nowhere,
}

impl<'a> Sink<'a> {
    fn open(output: Output<'a>) -> Result<Self> {
        let path = match output {
            Output::Standard => return Ok(Self::Output(io::stdout())),
            Output::Nowhere => return Ok(Self::Nowhere),
            Output::File(path) => path,
        };
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self::File(file, path))
    }

    /// What was written is seen at once: an answer may come in pieces, over a long time.
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Output(output) => {
                let written = output.write_all(bytes).and_then(|()| output.flush());
                written.context("cannot write to standard output")
            }
            Self::File(file, path) => {
                file.write_all(bytes).with_context(|| format!("cannot write {}", path.display()))
            }
            Self::Nowhere => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_the_mesh_differs_from_an_apps_answer() {
        let body = br#"{"errorCode":"ERR_UNKNOWN_SERVICE","message":"who?"}"#;
        assert_eq!(failure(body), Some((ErrorCode::UnknownService, "who?".to_owned())));
        assert_eq!(failure(br#"{"errorCode":"E1","message":"mine"}"#), None);
        assert_eq!(failure(br#"{"error":"mine"}"#), None);
        assert_eq!(failure(b"mine"), None);
    }
}
