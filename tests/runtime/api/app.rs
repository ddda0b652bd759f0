//! An app with a gRPC server that takes calls by `OnInvoke`: it records its requests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tollway_wire::dapr::proto::common::v1::{InvokeRequest, InvokeResponse};
use tollway_wire::dapr::proto::runtime::v1::HealthCheckResponse;
use tollway_wire::dapr::proto::runtime::v1::app_callback_health_check_server::{
    AppCallbackHealthCheck, AppCallbackHealthCheckServer,
};
use tollway_wire::dapr::proto::runtime::v1::app_callback_server::{AppCallback, AppCallbackServer};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};

/// What it puts into the details of a status.
pub(crate) const DETAILS: &[u8] = b"\x0a\x03why";

/// What it takes.
const MESSAGE_BYTES: usize = 16 << 20;

/// The request and its metadata.
pub(crate) type Asked = (MetadataMap, InvokeRequest);

#[derive(Clone, Default)]
pub(crate) struct GrpcApp {
    asked: Arc<Mutex<Vec<Asked>>>,
    is_ill: Arc<AtomicBool>,
    /// Calls under way, and the most there were.
    at_once: Arc<(AtomicUsize, AtomicUsize)>,
    /// Calls of `meet/COUNT`, each of which waits until so many have come.
    met: watch::Sender<usize>,
}

impl GrpcApp {
    /// Serves on a port of loopback, as long as the runtime lives.
    pub(crate) async fn serve(&self) -> SocketAddr {
        self.serve_limited(None).await
    }

    /// The same, with so many streams on each connection.
    pub(crate) async fn serve_limited(&self, streams: Option<u32>) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder()
            .max_concurrent_streams(streams)
            .add_service(
                AppCallbackServer::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES),
            )
            .add_service(AppCallbackHealthCheckServer::new(self.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        address
    }

    /// Its answer to health probes from now on.
    pub(crate) fn be_ill(&self, is_ill: bool) {
        self.is_ill.store(is_ill, Ordering::Relaxed);
    }

    /// The most calls that it had at a time.
    pub(crate) fn most_at_once(&self) -> usize {
        self.at_once.1.load(Ordering::Relaxed)
    }

    /// All requests since the last call.
    pub(crate) fn all_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// The one request since the last call.
    pub(crate) fn asked(&self) -> Asked {
        let mut asked = self.all_asked();
        assert_eq!(asked.len(), 1, "calls at the app");
        asked.remove(0)
    }
}

#[tonic::async_trait]
impl AppCallback for GrpcApp {
    async fn on_invoke(
        &self,
        request: Request<InvokeRequest>,
    ) -> Result<Response<InvokeResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        let (method, data) = (message.method.clone(), message.data.clone());
        // Awaited until it is there.
        if method != "healthz" {
            self.asked.lock().unwrap().push((metadata, message));
        }
        if method == "slow" {
            let (now, most) = &*self.at_once;
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(30)).await;
            now.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(count) = method.strip_prefix("meet/") {
            let count = count.parse().unwrap();
            self.met.send_modify(|met| *met += 1);
            self.met.subscribe().wait_for(|met| *met >= count).await.unwrap();
        }
        if let Some(code) = method.strip_prefix("fail/") {
            let code = Code::from_i32(code.parse().unwrap());
            let mut metadata = MetadataMap::new();
            metadata.insert("x-why", "asked for".parse().unwrap());
            let details = DETAILS.into();
            return Err(Status::with_details_and_metadata(code, "it fails", details, metadata));
        }
        let content_type = "text/answer".to_owned();
        let mut answer = Response::new(InvokeResponse { data, content_type });
        answer.metadata_mut().insert("x-answer", "yes".parse().unwrap());
        answer.metadata_mut().insert("x-tollway-caller", "forged".parse().unwrap());
        Ok(answer)
    }
}

#[tonic::async_trait]
impl AppCallbackHealthCheck for GrpcApp {
    async fn health_check(&self, _: Request<()>) -> Result<Response<HealthCheckResponse>, Status> {
        if self.is_ill.load(Ordering::Relaxed) {
            return Err(Status::unavailable("ill"));
        }
        Ok(Response::new(HealthCheckResponse {}))
    }
}
