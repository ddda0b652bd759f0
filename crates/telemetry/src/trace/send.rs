//! One export: a request to the collector, and what came of it.

use std::error::Error;
use std::fmt::Write;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use tollway_model::chain;
use tonic::client::Grpc;
use tonic::codec::{BufferSettings, Codec, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};
use tonic_prost::ProstDecoder;

use super::connect::Dialler;
use super::endpoint::{TraceEndpoint, TraceHeaders, TraceProtocol};

/// The method of OTLP's service.
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Largest answer that is read, in bytes.
const ANSWER_BYTES: usize = 64 * 1024;
/// Longest wait that a collector may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Why an export did not arrive.
#[derive(Debug)]
pub(super) enum Failure {
    /// A later attempt may succeed; after this time, if the collector gave one.
    Passing { reason: String, wait: Option<Duration> },
    /// A further attempt would be refused too.
    Final { reason: String },
}

impl Failure {
    fn passing(reason: String) -> Self {
        Self::Passing { reason, wait: None }
    }

    /// What broke a connection may not break the next one.
    fn broken(error: &dyn Error) -> Self {
        Self::passing(chain(error))
    }
}

/// Sends to one collector.
pub(super) enum Sender {
    Grpc(Box<GrpcSender>),
    Http(Box<HttpSender>),
}

impl Sender {
    pub(super) fn new(endpoint: &TraceEndpoint, headers: TraceHeaders, dialler: Dialler) -> Self {
        match endpoint.protocol {
            TraceProtocol::Grpc => {
                Self::Grpc(Box::new(GrpcSender::new(endpoint, headers, dialler)))
            }
            TraceProtocol::Http => Self::Http(Box::new(HttpSender {
                dialler,
                path: endpoint.path.clone(),
                authority: endpoint.authority(),
                headers,
                open: None,
            })),
        }
    }

    /// Sends an `ExportTraceServiceRequest` once; returns how many spans the collector refused.
    pub(super) async fn send(&mut self, request: Bytes) -> Result<u64, Failure> {
        let answer = match self {
            Self::Grpc(sender) => sender.send(request).await?,
            Self::Http(sender) => sender.send(request).await?,
        };
        let refused = answer.partial_success.map_or(0, |partial| partial.rejected_spans);
        Ok(u64::try_from(refused).unwrap_or_default())
    }
}

/// Over gRPC; the channel dials again by itself.
pub(super) struct GrpcSender {
    client: Grpc<Channel>,
    metadata: MetadataMap,
}

impl GrpcSender {
    fn new(endpoint: &TraceEndpoint, headers: TraceHeaders, dialler: Dialler) -> Self {
        let origin = Uri::builder()
            .scheme(endpoint.scheme())
            .authority(endpoint.authority())
            .path_and_query("/")
            .build()
            .expect("its parts were parsed from a URL");
        let connector = tower::service_fn(move |_: Uri| {
            let dialler = dialler.clone();
            async move { dialler.dial().await }
        });
        // TLS is the dialler's, so to the channel every connection is a plain one.
        let channel = Endpoint::from_static("http://collector")
            .origin(origin)
            .connect_with_connector_lazy(connector);
        let client = Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES);
        Self { client, metadata: MetadataMap::from_headers(headers.0) }
    }

    async fn send(&mut self, request: Bytes) -> Result<ExportTraceServiceResponse, Failure> {
        let mut request = tonic::Request::new(request);
        *request.metadata_mut() = self.metadata.clone();
        self.client.ready().await.map_err(|error| Failure::broken(&error))?;
        let answer = self.client.unary(request, PathAndQuery::from_static(EXPORT), Written).await;
        Ok(answer.map_err(|status| classify_status(&status))?.into_inner())
    }
}

/// Requests that are written already.
#[derive(Clone, Copy)]
struct Written;

impl Codec for Written {
    type Encode = Bytes;
    type Decode = ExportTraceServiceResponse;
    type Encoder = Self;
    type Decoder = ProstDecoder<ExportTraceServiceResponse>;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::default())
    }
}

impl Encoder for Written {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, request: Bytes, message: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.put(request);
        Ok(())
    }
}

fn classify_status(status: &Status) -> Failure {
    let mut reason = format!("{:?}", status.code());
    if !status.message().is_empty() {
        let _ = write!(reason, ": {}", status.message());
    }
    add_causes(&mut reason, status);
    match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss
        // The channel's error of a broken connection.
        | Code::Unknown => Failure::passing(reason),
        Code::Ok
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::Unimplemented
        | Code::Internal
        | Code::Unauthenticated => Failure::Final { reason },
    }
}

/// Adds the causes of the channel's error that its message does not have.
fn add_causes(reason: &mut String, status: &Status) {
    let mut cause = status.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !reason.contains(&text) {
            let _ = write!(reason, ": {text}");
        }
        cause = error.source();
    }
}

/// Over HTTP/1.1, on one connection as long as it lasts.
pub(super) struct HttpSender {
    dialler: Dialler,
    path: String,
    authority: String,
    headers: TraceHeaders,
    open: Option<SendRequest<Full<Bytes>>>,
}

impl HttpSender {
    async fn send(&mut self, body: Bytes) -> Result<ExportTraceServiceResponse, Failure> {
        let mut connection = self.connection().await?;
        let mut request = Request::post(&self.path)
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(Full::new(body))
            .map_err(|error| Failure::Final { reason: error.to_string() })?;
        request.headers_mut().extend(self.headers.0.clone());
        let answer = connection.send_request(request).await;
        let answer = answer.map_err(|error| Failure::broken(&error))?;
        let (status, wait) = (answer.status(), retry_after(&answer));
        let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| Failure::broken(&*error))?.to_bytes();
        self.open = Some(connection);
        match status {
            // A collector that accepted everything may add any text.
            StatusCode::OK => Ok(ExportTraceServiceResponse::decode(body).unwrap_or_default()),
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => {
                Err(Failure::Passing { reason: status.to_string(), wait })
            }
            other => Err(Failure::Final { reason: other.to_string() }),
        }
    }

    /// The connection of before, if it still takes requests, or a new one.
    async fn connection(&mut self) -> Result<SendRequest<Full<Bytes>>, Failure> {
        if let Some(mut open) = self.open.take()
            && open.ready().await.is_ok()
        {
            return Ok(open);
        }
        let stream = self.dialler.dial().await.map_err(|error| Failure::broken(&error))?;
        let (sender, connection) =
            http1::handshake(stream).await.map_err(|error| Failure::broken(&error))?;
        // How it ends shows in the next request.
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// In seconds; the form with a date is not read.
fn retry_after<B>(answer: &Response<B>) -> Option<Duration> {
    let seconds = answer.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_WAIT))
}
