//! Between control planes: joining ([`join`]), sending joined networks the state of this one
//! ([`follow`]), and following theirs ([`link`], stored by [`intake`]). [`admission`] decides which
//! network may join, [`probe`] whether a silent one can still be reached.

pub(crate) mod admission;
pub(crate) mod dial;
pub(crate) mod follow;
mod intake;
pub(crate) mod join;
mod joined;
pub(crate) mod link;
mod probe;

use std::sync::Arc;

use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tollway_identity::{Authority, Credentials};
use tollway_store::Store;
use tollway_wire::v1;
use tollway_wire::v1::peering_server;
use tonic::{Request, Response, Status, Streaming};

use crate::background::Background;
use crate::connections::Caller;
use crate::hub::Hub;
use crate::options::Timing;
use crate::standstill::Standstill;

/// What joins and the streams between control planes share.
pub(crate) struct Peering {
    pub(crate) store: Store,
    pub(crate) hub: Arc<Hub>,
    pub(crate) authority: Arc<Authority>,
    /// The control plane's own, renewed and with the current trust.
    pub(crate) current: watch::Receiver<Arc<Credentials>>,
    pub(crate) timing: Timing,
    pub(crate) standstill: Arc<Standstill>,
    pub(crate) background: Background,
}

impl Peering {
    pub(crate) fn credentials(&self) -> Arc<Credentials> {
        self.current.borrow().clone()
    }
}

pub(crate) struct PeeringService(pub(crate) Arc<Peering>);

#[tonic::async_trait]
impl peering_server::Peering for PeeringService {
    type FollowStream = ReceiverStream<Result<v1::FollowResponse, Status>>;

    async fn join(
        &self,
        request: Request<v1::JoinRequest>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        let request = request.into_inner();
        join::redeem(&self.0, &request.secret, &request.bundle).await?;
        let network = self.0.authority.network().as_str().to_owned();
        Ok(Response::new(v1::JoinResponse { network }))
    }

    async fn follow(
        &self,
        request: Request<Streaming<v1::FollowRequest>>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let caller = Caller::of(&request);
        let network = self.0.hub.read(|catalogue| caller.peer(catalogue))?;
        let stream = follow::start(self.0.clone(), caller, network, request.into_inner());
        Ok(Response::new(stream))
    }
}
