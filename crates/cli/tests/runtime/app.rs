//! An app that speaks gRPC and takes calls by `OnInvoke`: it remembers what it was asked.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio_stream::wrappers::TcpListenerStream;
use tollway_wire::dapr::proto::common::v1::{InvokeRequest, InvokeResponse};
use tollway_wire::dapr::proto::runtime::v1::app_callback_server::{AppCallback, AppCallbackServer};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};

/// What it puts into the details of a status.
pub(crate) const DETAILS: &[u8] = b"\x0a\x03why";

/// What it was asked, and with which metadata.
pub(crate) type Asked = (MetadataMap, InvokeRequest);

#[derive(Clone, Default)]
pub(crate) struct GrpcApp {
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl GrpcApp {
    /// Serves on a port of loopback, as long as the runtime lives.
    pub(crate) async fn serve(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder()
            .add_service(AppCallbackServer::new(self.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        address
    }

    /// The one thing it was asked since the last look.
    pub(crate) fn asked(&self) -> Asked {
        let mut asked = std::mem::take(&mut *self.asked.lock().unwrap());
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
        // Asked for by whoever waits until it is there.
        if method != "healthz" {
            self.asked.lock().unwrap().push((metadata, message));
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
