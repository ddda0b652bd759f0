//! A host of actors of the type `cart`, step by step.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tollway_actors::placement::{Epoch, Order, SHARDS, Shard, ShardSet};
use tollway_wire::v1;
pub use tollway_wire::v1::host_request::Request as Step;
pub use tollway_wire::v1::host_response::Response as Answer;
use tollway_wire::v1::placement_client::PlacementClient;
use tonic::{Status, Streaming};

use super::{Member, PATIENCE};

/// A host of `cart` that carries out orders when the test lets it.
pub struct Host {
    pub requests: mpsc::Sender<v1::HostRequest>,
    pub responses: Streaming<v1::HostResponse>,
    pub life: u64,
    pub held: BTreeMap<Shard, Epoch>,
}

impl Host {
    pub async fn enter(member: &Member, life: u64) -> Self {
        Self::enter_with(member, life, BTreeMap::new()).await
    }

    pub async fn enter_with(member: &Member, life: u64, held: BTreeMap<Shard, Epoch>) -> Self {
        let types =
            vec![v1::HeldType { actor_type: "cart".into(), grants: tollway_wire::grants(&held) }];
        let mut host = Self::open(
            member,
            Step::Enter(v1::Enter { life, types, attempt: 0, shares_types: false }),
        )
        .await;
        host.held = held;
        host.life = life;
        let entered = host.answer().await.unwrap();
        assert_eq!(entered, Answer::Entered(v1::Entered { lease_ms: 1000, refused: Vec::new() }));
        host
    }

    pub async fn open(member: &Member, first: Step) -> Self {
        let (requests, outgoing) = mpsc::channel(8);
        requests.send(v1::HostRequest { request: Some(first) }).await.unwrap();
        let mut client = PlacementClient::new(member.channel().await);
        let responses = client.host(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
        Self { requests, responses, life: 0, held: BTreeMap::new() }
    }

    pub async fn send(&self, step: Step) {
        self.requests.send(v1::HostRequest { request: Some(step) }).await.unwrap();
    }

    pub async fn response(&mut self) -> Result<v1::HostResponse, Status> {
        let next = tokio::time::timeout(PATIENCE, self.responses.message()).await;
        Ok(next.expect("something is said")?.expect("the stream goes on"))
    }

    pub async fn answer(&mut self) -> Result<Answer, Status> {
        Ok(self.response().await?.response.unwrap())
    }

    pub async fn order(&mut self) -> Order {
        let response = self.response().await.unwrap();
        tollway_wire::order(&response).unwrap().unwrap_or_else(|| panic!("{response:?}"))
    }

    pub async fn granted(&mut self) -> ShardSet {
        match self.order().await {
            Order::Grant { epoch, shards, .. } => {
                self.held.extend(shards.iter().map(|shard| (shard, epoch)));
                shards
            }
            Order::GiveBack { shards, .. } => panic!("asked for {shards:?}"),
        }
    }

    pub async fn asked_back(&mut self) -> ShardSet {
        match self.order().await {
            Order::GiveBack { shards, .. } => shards,
            Order::Grant { shards, .. } => panic!("granted {shards:?}"),
        }
    }

    pub async fn give_back(&mut self, shards: &ShardSet) {
        let mut back = self.held.clone();
        back.retain(|shard, _| shards.contains(*shard));
        self.held.retain(|shard, _| !shards.contains(*shard));
        let grants = tollway_wire::grants(&back);
        self.send(Step::GivenBack(v1::GivenBack { actor_type: "cart".into(), grants })).await;
    }

    pub async fn keep_lease(&mut self) -> Result<Answer, Status> {
        self.send(Step::KeepLease(v1::KeepLease {})).await;
        self.answer().await
    }
}

impl Host {
    /// Keeps its lease until it has been granted everything.
    pub async fn wait_for_all(&mut self) {
        while self.held.len() < SHARDS {
            if let Answer::Granted(granted) = self.keep_lease().await.unwrap() {
                let (epoch, shards) = tollway_wire::read_grant(&granted.grant.unwrap()).unwrap();
                assert!(Some(&epoch) > self.held.values().max(), "epochs only grow");
                self.held.extend(shards.iter().map(|shard| (shard, epoch)));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// What a host of `cart` that holds nothing enters with.
pub fn enter(life: u64) -> v1::Enter {
    let types = vec![v1::HeldType { actor_type: "cart".into(), grants: Vec::new() }];
    v1::Enter { life, types, attempt: 0, shares_types: false }
}
