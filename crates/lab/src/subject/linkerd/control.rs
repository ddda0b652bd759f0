//! `tollway lab linkerd-control`: what linkerd2-proxy needs of Linkerd's control plane, for one
//! network of the lab.
//!
//! A process of its own, since a proxy takes plain text only from a control plane on its own
//! loopback, and so that its time does not count for the lab or a proxy. It issues certificates and
//! answers from a file; nothing ever changes, so each stream has one message and stays open.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use linkerd2_proxy_api::destination::destination_server::{Destination, DestinationServer};
use linkerd2_proxy_api::destination::{DestinationProfile, GetDestination, Update};
use linkerd2_proxy_api::identity::identity_server::{Identity, IdentityServer};
use linkerd2_proxy_api::identity::{CertifyRequest, CertifyResponse};
use linkerd2_proxy_api::inbound::inbound_server_policies_server::{
    InboundServerPolicies, InboundServerPoliciesServer,
};
use linkerd2_proxy_api::inbound::{self, PortSpec};
use linkerd2_proxy_api::outbound::outbound_policies_server::{
    OutboundPolicies, OutboundPoliciesServer,
};
use linkerd2_proxy_api::outbound::{OutboundPolicy, TrafficSpec};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tollway_identity::{Authority, AuthorityError, AuthorityPem, IssueRequest};
use tollway_model::{Instance, Label, NameError, NetworkName, ServiceName, TrustDomain};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::answers::Knowledge;
use tollway_net::ports_file::{self as ports, Ports, PortsError};

/// Name of its one listener in its ports file.
pub(super) const CONTROL_PORT: &str = "control";
/// How long certificates are valid: longer than any experiment.
const TTL: Duration = Duration::from_secs(7 * 24 * 3600);

/// One network's control plane.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct LinkerdControlArgs {
    /// Name of the network.
    #[arg(long)]
    pub network: String,
    /// The network's root certificate (PEM).
    #[arg(long)]
    pub root: PathBuf,
    /// The root's key (PEM).
    #[arg(long)]
    pub root_key: PathBuf,
    /// Its state, as JSON.
    #[arg(long)]
    pub knowledge: PathBuf,
    /// Written when it listens: {"control": "127.0.0.1:PORT"}.
    #[arg(long)]
    pub ports_file: PathBuf,
}

/// Why the control plane could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum LinkerdControlError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is not what a control plane of the lab knows")]
    Knowledge { path: PathBuf, source: serde_json::Error },
    #[error("no certificate can carry the name {name:?}")]
    Name { name: String, source: NameError },
    #[error("cannot use the network's certificate authority")]
    Authority(#[from] AuthorityError),
    #[error("cannot listen on loopback")]
    Listen(#[source] io::Error),
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Ports(#[from] PortsError),
    #[error("the server failed")]
    Serve(#[from] tonic::transport::Error),
}

impl LinkerdControlArgs {
    /// The arguments as [`clap`] reads them back.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let paths = [
            ("--root", &self.root),
            ("--root-key", &self.root_key),
            ("--knowledge", &self.knowledge),
            ("--ports-file", &self.ports_file),
        ];
        let paths =
            paths.map(|(name, path)| [name.to_owned(), path.to_string_lossy().into_owned()]);
        let network = ["--network".to_owned(), self.network.clone()];
        [network].into_iter().chain(paths).flatten().collect()
    }
}

/// Serves until SIGTERM or SIGINT.
pub fn run_linkerd_control(args: &LinkerdControlArgs) -> Result<(), LinkerdControlError> {
    let knowledge: Knowledge = serde_json::from_str(&read(&args.knowledge)?).map_err(|source| {
        LinkerdControlError::Knowledge { path: args.knowledge.clone(), source }
    })?;
    let certifier = Certifier::open(args, &knowledge)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(LinkerdControlError::Listen)?;
    runtime.block_on(serve(args, Answers { certifier, knowledge }))
}

async fn serve(args: &LinkerdControlArgs, answers: Answers) -> Result<(), LinkerdControlError> {
    let listener =
        TcpListener::bind(("127.0.0.1", 0)).await.map_err(LinkerdControlError::Listen)?;
    let address = listener.local_addr().map_err(LinkerdControlError::Listen)?;
    let mut terminated = signal(SignalKind::terminate()).map_err(LinkerdControlError::Signals)?;
    let mut interrupted = signal(SignalKind::interrupt()).map_err(LinkerdControlError::Signals)?;
    let answers = Arc::new(answers);
    let server = Server::builder()
        .add_service(IdentityServer::from_arc(Arc::clone(&answers)))
        .add_service(DestinationServer::from_arc(Arc::clone(&answers)))
        .add_service(InboundServerPoliciesServer::from_arc(Arc::clone(&answers)))
        .add_service(OutboundPoliciesServer::from_arc(answers))
        .serve_with_incoming(TcpListenerStream::new(listener));
    ports::write(&args.ports_file, &Ports::from([(CONTROL_PORT.to_owned(), address)]))?;
    // Streams never end by themselves: the proxies' are cut off.
    tokio::select! {
        ended = server => Ok(ended?),
        _ = terminated.recv() => Ok(()),
        _ = interrupted.recv() => Ok(()),
    }
}

struct Answers {
    certifier: Certifier,
    knowledge: Knowledge,
}

/// Issues certificates to the workloads in its list.
pub(super) struct Certifier {
    authority: Authority,
    workloads: Vec<Known>,
}

struct Known {
    service: ServiceName,
    token: String,
}

impl Certifier {
    fn open(args: &LinkerdControlArgs, knowledge: &Knowledge) -> Result<Self, LinkerdControlError> {
        let named =
            |name: &str, source| LinkerdControlError::Name { name: name.to_owned(), source };
        let network =
            NetworkName::new(&args.network).map_err(|source| named(&args.network, source))?;
        let pem = AuthorityPem { certificate: read(&args.root)?, key: read(&args.root_key)? };
        let domain = TrustDomain::default_for(&network);
        let authority = Authority::from_pem(&domain, &network, &pem)?;
        let known = knowledge.workloads.iter().map(|workload| {
            let app = Label::new(&workload.app).map_err(|source| named(&workload.app, source))?;
            let namespace = Label::new("default").map_err(|source| named(&workload.app, source))?;
            let service = ServiceName { app, namespace, network: network.clone() };
            Ok(Known { service, token: read(&workload.token_file)? })
        });
        Ok(Self { authority, workloads: known.collect::<Result<_, LinkerdControlError>>()? })
    }

    /// A certificate for who proves to be a known workload.
    fn certify(&self, request: CertifyRequest, now: SystemTime) -> Result<CertifyResponse, Status> {
        let is_it = |known: &&Known| known.service.dns_san() == request.identity;
        let known = self.workloads.iter().find(is_it);
        let known = known.ok_or_else(|| {
            Status::failed_precondition(format!("no workload is called {}", request.identity))
        })?;
        if known.token.as_bytes() != request.token.as_slice() {
            return Err(Status::permission_denied("this token is another workload's"));
        }
        let internal =
            |error: &dyn std::error::Error| Status::internal(tollway_model::chain(error));
        let instance = Instance::new("lab").map_err(|error| internal(&error))?;
        let asked = IssueRequest {
            csr_der: request.certificate_signing_request,
            service: known.service.clone(),
            instance,
            ttl: TTL,
        };
        let issued = self
            .authority
            .issue(&asked, now)
            .map_err(|error| Status::invalid_argument(tollway_model::chain(&error)))?;
        let mut chain = issued.chain.iter().map(|certificate| certificate.to_vec());
        Ok(CertifyResponse {
            leaf_certificate: chain.next().unwrap_or_default(),
            intermediate_certificates: chain.collect(),
            valid_until: Some(issued.not_after.into()),
        })
    }
}

/// A stream that sends one message and stays open.
type OneAnswer<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn one_answer<T: Send + 'static>(answer: T) -> Response<OneAnswer<T>> {
    Response::new(Box::pin(tokio_stream::once(Ok(answer)).chain(tokio_stream::pending())))
}

#[tonic::async_trait]
impl Identity for Answers {
    async fn certify(
        &self,
        request: Request<CertifyRequest>,
    ) -> Result<Response<CertifyResponse>, Status> {
        self.certifier.certify(request.into_inner(), SystemTime::now()).map(Response::new)
    }
}

#[tonic::async_trait]
impl Destination for Answers {
    type GetStream = OneAnswer<Update>;
    type GetProfileStream = OneAnswer<DestinationProfile>;

    async fn get(
        &self,
        request: Request<GetDestination>,
    ) -> Result<Response<Self::GetStream>, Status> {
        Ok(one_answer(self.knowledge.endpoints(&request.get_ref().path)))
    }

    async fn get_profile(
        &self,
        request: Request<GetDestination>,
    ) -> Result<Response<Self::GetProfileStream>, Status> {
        let path = &request.get_ref().path;
        // The one status after which a proxy does not ask again.
        let unknown = || Status::invalid_argument(format!("no service is at {path}"));
        self.knowledge.profile(path).map(one_answer).ok_or_else(unknown)
    }
}

#[tonic::async_trait]
impl InboundServerPolicies for Answers {
    type WatchPortStream = OneAnswer<inbound::Server>;

    async fn get_port(
        &self,
        request: Request<PortSpec>,
    ) -> Result<Response<inbound::Server>, Status> {
        Ok(Response::new(self.knowledge.inbound(request.get_ref().port)))
    }

    async fn watch_port(
        &self,
        request: Request<PortSpec>,
    ) -> Result<Response<Self::WatchPortStream>, Status> {
        Ok(one_answer(self.knowledge.inbound(request.get_ref().port)))
    }
}

#[tonic::async_trait]
impl OutboundPolicies for Answers {
    type WatchStream = OneAnswer<OutboundPolicy>;

    async fn get(&self, request: Request<TrafficSpec>) -> Result<Response<OutboundPolicy>, Status> {
        let policy = self.knowledge.outbound(request.get_ref());
        policy.map(Response::new).ok_or_else(|| Status::not_found("no such service"))
    }

    async fn watch(
        &self,
        request: Request<TrafficSpec>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let policy = self.knowledge.outbound(request.get_ref());
        policy.map(one_answer).ok_or_else(|| Status::not_found("no such service"))
    }
}

fn read(path: &Path) -> Result<String, LinkerdControlError> {
    std::fs::read_to_string(path)
        .map_err(|source| LinkerdControlError::Read { path: path.to_path_buf(), source })
}

#[cfg(test)]
mod tests;
