//! Health probes of the app: `GET` of a path over HTTP, or `AppCallbackHealthCheck/HealthCheck`
//! over gRPC.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::{http1, http2};
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::watch;
use tollway_model::AppProtocol;
use tollway_proxy::HealthCheck;
use tollway_telemetry::DaprMetrics;
use tollway_wire::dapr::proto::runtime::v1::app_callback_health_check_client::AppCallbackHealthCheckClient;
use tonic::metadata::AsciiMetadataValue;

use crate::app::{App, TOKEN};

/// Interval of probes until the first success.
const BEFORE_FIRST: Duration = Duration::from_millis(250);

/// The health of the app, by its last probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct HealthState {
    /// Failed probes in a row.
    failed: u32,
    has_been_well: bool,
}

impl HealthState {
    /// Unhealthy until the first success.
    fn nothing(threshold: u32) -> Self {
        Self { failed: threshold, has_been_well: false }
    }

    fn after(self, is_answered: bool) -> Self {
        match is_answered {
            true => Self { failed: 0, has_been_well: true },
            false => Self { failed: self.failed.saturating_add(1), ..self },
        }
    }

    fn is_well(self, threshold: u32) -> bool {
        self.failed < threshold
    }
}

/// Why a probe failed.
struct Unhealthy {
    /// The status of a response over HTTP.
    status: Option<StatusCode>,
    reason: String,
}

impl Unhealthy {
    fn because(reason: impl ToString) -> Self {
        Self { status: None, reason: reason.to_string() }
    }
}

/// Probes the app until the future is dropped, and sets `well` to its health.
pub(crate) async fn watch_health(
    app: App,
    check: HealthCheck,
    well: watch::Sender<bool>,
    metrics: Option<Arc<DaprMetrics>>,
) {
    let mut known = HealthState::nothing(check.threshold);
    loop {
        let began = Instant::now();
        let asked = tokio::time::timeout(check.timeout, ask(&app, &check.path)).await;
        let answer = asked.unwrap_or_else(|_| Err(Unhealthy::because("it did not answer in time")));
        if let Some(metrics) = metrics.as_ref().filter(|_| app.protocol != AppProtocol::Grpc) {
            metrics.probed(counted_status(&answer).as_u16(), began.elapsed());
        }
        known = known.after(answer.is_ok());
        let is_well = known.is_well(check.threshold);
        if well.send_if_modified(|was| std::mem::replace(was, is_well) != is_well) {
            let reason = answer.as_ref().err().map(|ill| ill.reason.as_str());
            tracing::info!(app = %app.address, is_well, reason, "the app's health changed");
        } else if let Err(Unhealthy { reason, .. }) = &answer {
            tracing::debug!(app = %app.address, reason, failed = known.failed, "a health check failed");
        }
        let pause = match known.has_been_well {
            true => check.interval,
            false => check.interval.min(BEFORE_FIRST),
        };
        tokio::time::sleep(pause).await;
    }
}

/// The status under which a probe is counted.
fn counted_status(answer: &Result<StatusCode, Unhealthy>) -> StatusCode {
    match answer {
        Ok(status) => *status,
        Err(ill) => ill.status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// # Errors
/// Why the probe failed.
async fn ask(app: &App, path: &str) -> Result<StatusCode, Unhealthy> {
    if app.protocol == AppProtocol::Grpc {
        return ask_by_grpc(app).await.map(|()| StatusCode::OK).map_err(Unhealthy::because);
    }
    let status = ask_by_http(app, path).await.map_err(Unhealthy::because)?;
    match status.is_success() {
        true => Ok(status),
        false => Err(Unhealthy { status: Some(status), reason: format!("it answered {status}") }),
    }
}

async fn ask_by_grpc(app: &App) -> Result<(), String> {
    let channel = app.channel();
    let mut request = tonic::Request::new(());
    if let Some(token) = &app.token
        && let Ok(value) = AsciiMetadataValue::try_from(token.reveal())
    {
        request.metadata_mut().insert(TOKEN, value);
    }
    let answer = AppCallbackHealthCheckClient::new(channel).health_check(request).await;
    answer.map(|_| ()).map_err(|status| status.to_string())
}

async fn ask_by_http(
    app: &App,
    path: &str,
) -> Result<StatusCode, Box<dyn std::error::Error + Send + Sync>> {
    let io = TokioIo::new(app.connect().await?);
    let mut request = Request::new(Empty::<Bytes>::new());
    if let Some(token) = &app.token {
        request.headers_mut().insert(TOKEN, HeaderValue::from_str(token.reveal())?);
    }
    if app.protocol == AppProtocol::H2c {
        *request.uri_mut() = uri(app.address, path)?;
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
        let connection = tokio::spawn(connection);
        let answer = sender.send_request(request).await;
        connection.abort();
        return Ok(answer?.status());
    }
    *request.uri_mut() = path.parse()?;
    request.headers_mut().insert(HOST, HeaderValue::from_str(&app.address.to_string())?);
    let (mut sender, connection) = http1::handshake(io).await?;
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(request).await;
    connection.abort();
    Ok(answer?.status())
}

fn uri(address: SocketAddr, path: &str) -> Result<Uri, hyper::http::Error> {
    Uri::builder().scheme("http").authority(address.to_string()).path_and_query(path).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_make_an_app_ill_and_one_answer_makes_it_well() {
        let mut known = HealthState::nothing(3);
        let mut seen = String::new();
        for answer in "xx.xx.xxx.".chars() {
            known = known.after(answer == '.');
            seen.push(if known.is_well(3) { 'w' } else { 'i' });
        }
        assert_eq!(seen, "iiwwwwwwiw");
    }
}
