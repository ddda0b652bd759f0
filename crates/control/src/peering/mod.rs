//! Between control planes: joining ([`join`]), sending joined networks the state of this one
//! ([`follow`]), and following theirs ([`link`], stored by [`intake`]). [`admission`] decides which
//! network may join, [`gateways`] where it may be reached, [`pace`] how fast it may change things.
//! [`probe`] asks its gateways whether they live, and [`liveness`] decides by the answers whether it is
//! withdrawn. [`bundles`] accepts what an operator keeps in a cluster.

pub(crate) mod admission;
pub(crate) mod bundles;
mod counts;
pub(crate) mod dial;
pub(crate) mod follow;
mod gateways;
mod intake;
pub(crate) mod join;
mod joined;
pub(crate) mod link;
mod liveness;
mod pace;
mod probe;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tollway_identity::KeyExchange;
use tollway_identity::{Authority, Credentials};
use tollway_model::NetworkName;
use tollway_store::Store;
use tollway_wire::v1;
use tollway_wire::v1::peering_server;
use tonic::{Request, Response, Status, Streaming};

pub(crate) use counts::PeerCounts;
use pace::Interval;

use crate::background::Background;
use crate::connections::Caller;
use crate::hub::Hub;
use crate::options::Timing;

/// What joins and the streams between control planes share.
pub(crate) struct Peering {
    pub(crate) store: Store,
    pub(crate) hub: Arc<Hub>,
    pub(crate) authority: Arc<Authority>,
    /// The control plane's own, renewed and with the current trust.
    pub(crate) current: watch::Receiver<Arc<Credentials>>,
    pub(crate) timing: Timing,
    pub(crate) key_exchange: KeyExchange,
    pub(crate) background: Background,
    pub(crate) counts: Arc<PeerCounts>,
    /// When the gateways of each joined network moved.
    pub(crate) moves: Moves,
}

/// When the gateways of each joined network moved.
#[derive(Default)]
pub(crate) struct Moves(Mutex<HashMap<NetworkName, Interval>>);

impl Peering {
    fn gateway_moves(&self) -> MutexGuard<'_, HashMap<NetworkName, Interval>> {
        self.moves.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
