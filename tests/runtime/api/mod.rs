//! The runtime API over gRPC, and calls over HTTP for apps with a gRPC server, across two networks.

mod actor_rules;
mod app;
mod app_side;
mod as_daprd;
mod dapr_kinds;
mod dapr_metrics;
pub(crate) mod daprd;
mod events;
mod external_endpoints;
mod ordinary;
mod own;
mod random;
mod reflection;
mod resilience;
mod rows;
mod sdk;
mod state;
mod tokens;
mod translated;

use std::net::SocketAddr;

use tollway_tests::mesh::http::call;
use tollway_wire::dapr::proto::common::v1::http_extension::Verb;
use tollway_wire::dapr::proto::common::v1::{HttpExtension, InvokeRequest, InvokeResponse};
use tollway_wire::dapr::proto::runtime::v1::InvokeServiceRequest;
use tollway_wire::dapr::proto::runtime::v1::dapr_client::DaprClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// A client of the gRPC API at a listener.
async fn client(listener: SocketAddr) -> DaprClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{listener}")).unwrap();
    DaprClient::new(endpoint.connect().await.unwrap())
}

/// `POST /METHOD` with a text.
fn message(method: &str, text: &str) -> InvokeRequest {
    InvokeRequest {
        method: method.to_owned(),
        data: Some(prost_types::Any { type_url: String::new(), value: text.as_bytes().to_vec() }),
        content_type: "text/plain".to_owned(),
        http_extension: Some(HttpExtension { verb: Verb::Post.into(), querystring: String::new() }),
    }
}

async fn invoke(
    listener: SocketAddr,
    id: &str,
    message: InvokeRequest,
) -> Result<Response<InvokeResponse>, Status> {
    let request = InvokeServiceRequest { id: id.to_owned(), message: Some(message) };
    client(listener).await.invoke_service(request).await
}

fn text_of(answer: &InvokeResponse) -> String {
    String::from_utf8(answer.data.clone().unwrap_or_default().value).unwrap()
}
