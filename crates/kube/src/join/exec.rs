//! Runs a command of the program in a pod, by the API server.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::AttachParams;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

/// Bytes that are read of what a command prints; a bundle and a list of networks have fewer.
const PRINTED_BYTES: u64 = 4 << 20;

/// Why a command in a pod gave no result.
#[derive(Debug, Error)]
pub enum ExecError {
    #[error(
        "a command cannot be run in its pod; the user of the context needs the right to create pods/exec there"
    )]
    Begin(#[source] kube::Error),
    #[error("the connection to a command in its pod broke")]
    Broken(#[source] std::io::Error),
    /// What the command wrote to its standard error.
    #[error("{0}")]
    Failed(String),
}

/// What the command prints, if it succeeds.
pub(super) async fn run(
    pods: &Api<Pod>,
    pod: &str,
    command: &[&str],
    input: Option<&[u8]>,
) -> Result<Vec<u8>, ExecError> {
    let streams = AttachParams::default().container("control").stdin(input.is_some());
    let mut process =
        pods.exec(pod, command.iter().copied(), &streams).await.map_err(ExecError::Begin)?;
    let (stdin, stdout, stderr) = (process.stdin(), process.stdout(), process.stderr());
    let status = process.take_status();
    let writing = async {
        let (Some(mut stdin), Some(input)) = (stdin, input) else { return Ok(()) };
        stdin.write_all(input).await?;
        stdin.shutdown().await
    };
    // A command that fails need not read its input: what it writes shows why.
    let writing = async { std::io::Result::Ok(writing.await) };
    let (printed, written, sent) =
        tokio::try_join!(read(stdout), read(stderr), writing).map_err(ExecError::Broken)?;
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    if status.and_then(|status| status.status).as_deref() == Some("Success") {
        return Ok(printed);
    }
    let written = String::from_utf8_lossy(&written).into_owned();
    match sent {
        Err(error) if written.is_empty() => Err(ExecError::Broken(error)),
        Ok(()) | Err(_) => Err(ExecError::Failed(written)),
    }
}

async fn read(stream: Option<impl AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let Some(stream) = stream else { return Ok(bytes) };
    stream.take(PRINTED_BYTES).read_to_end(&mut bytes).await?;
    if bytes.len() as u64 == PRINTED_BYTES {
        return Err(std::io::Error::other(format!("it prints {PRINTED_BYTES} bytes or more")));
    }
    Ok(bytes)
}
