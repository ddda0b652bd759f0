//! A joined network whose control plane, under its real authority, sends what it likes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tollway_identity::{Authority, control_server_config};
use tollway_tests::network::issue_system;
use tollway_wire::v1;
use tollway_wire::v1::peering_server::{Peering, PeeringServer};
use tonic::{Request, Response, Status, Streaming};

/// From one message to the next.
const PAUSE: Duration = Duration::from_micros(500);

/// What changes from message to message.
#[derive(Clone, Copy)]
pub(crate) enum Script {
    /// A second root comes and goes.
    Roots,
    /// The number of replicas of a thousand services.
    Services,
}

/// The control plane of `east`, for as long as the runtime lives.
pub(crate) struct Evil {
    root: Vec<u8>,
    other_root: Vec<u8>,
    script: Script,
    /// Streams that were opened, and messages that were taken.
    pub(crate) opened: AtomicU64,
    pub(crate) taken: AtomicU64,
}

impl Evil {
    /// Listens at `address` in place of the control plane of `east`.
    pub(crate) async fn start(
        address: SocketAddr,
        east: &Authority,
        west: &Authority,
        script: Script,
    ) -> Arc<Self> {
        let credentials = issue_system(east, west, |request, now| east.issue_control(request, now));
        let other =
            Authority::create(east.trust_domain(), east.network(), SystemTime::now()).unwrap();
        let evil = Arc::new(Self {
            root: east.root_der().to_vec(),
            other_root: other.root_der().to_vec(),
            script,
            opened: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        });
        let config = control_server_config(&credentials, &[b"h2"], Duration::ZERO).unwrap();
        let (tls, listener) =
            (TlsAcceptor::from(config), TcpListener::bind(address).await.unwrap());
        let (accepted, incoming) = mpsc::channel(1);
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (tls, accepted) = (tls.clone(), accepted.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = tls.accept(tcp).await {
                        let _ = accepted.send(std::io::Result::Ok(stream)).await;
                    }
                });
            }
        });
        let service = PeeringServer::new(Service(evil.clone()));
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(ReceiverStream::new(incoming)));
        evil
    }

    fn trust(&self, has_both: bool) -> Option<v1::TrustBundle> {
        let mut roots = vec![self.root.clone()];
        roots.extend(has_both.then(|| self.other_root.clone()));
        let (trust_domain, network) = ("east.tollway".into(), "east".into());
        Some(v1::TrustBundle { trust_domain, roots, network, revoked: Vec::new() })
    }

    fn message(&self, number: u64) -> v1::FollowResponse {
        let is_odd = !number.is_multiple_of(2);
        let revision = number + 1;
        if number == 0 {
            let (snapshot_start, snapshot_end, trust) = (true, true, self.trust(false));
            return v1::FollowResponse {
                revision,
                snapshot_start,
                snapshot_end,
                trust,
                ..Default::default()
            };
        }
        match self.script {
            Script::Roots => {
                v1::FollowResponse { revision, trust: self.trust(is_odd), ..Default::default() }
            }
            Script::Services => {
                let services = (0..1000).map(|app| v1::Aggregate {
                    app: format!("s{app}"),
                    namespace: "default".into(),
                    ready_replicas: 1 + u32::from(is_odd),
                    protocol: v1::AppProtocol::Http.into(),
                    ..v1::Aggregate::default()
                });
                v1::FollowResponse { revision, services: services.collect(), ..Default::default() }
            }
        }
    }
}

struct Service(Arc<Evil>);

#[tonic::async_trait]
impl Peering for Service {
    type FollowStream = ReceiverStream<Result<v1::FollowResponse, Status>>;

    async fn join(
        &self,
        _: Request<v1::JoinRequest>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        Err(Status::unimplemented("it is joined"))
    }

    async fn follow(
        &self,
        _: Request<Streaming<v1::FollowRequest>>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let evil = self.0.clone();
        evil.opened.fetch_add(1, Ordering::SeqCst);
        let (responses, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            for number in 0.. {
                responses.send(Ok(evil.message(number))).await.ok()?;
                evil.taken.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(PAUSE).await;
            }
            Some(())
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
