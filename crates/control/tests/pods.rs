//! Pods prove who they are by the tokens of their service accounts, and get no other identity.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use support::{Network, bootstrap_by};
use tokio::sync::watch;
use tollway_control::{Announcing, PodOptions, Pods, PodsError, ProvenPod, Proving};
use tollway_identity::{KeyPair, RootPin};
use tollway_model::{ErrorCode, KubeName};
use tollway_wire::v1;
use tollway_wire::v1::identity_client::IdentityClient;
use tonic::{Code, Status};

/// A cluster whose API server knows these tokens: `stock.good.x` is of the pod `stock-1` of the app
/// `stock`, `edge.good.x` of the pod `edge-1`, which is a gateway's.
#[derive(Debug, Default)]
struct TestCluster {
    asked: AtomicU64,
    /// Announcements that have failed, and the one that has not.
    refused: AtomicU64,
    announced: watch::Sender<Option<(String, String)>>,
}

impl Pods for TestCluster {
    fn prove<'a>(&'a self, token: &'a str) -> Proving<'a> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let answer = match token.split('.').collect::<Vec<_>>().as_slice() {
            [name, "good", _] => Ok(ProvenPod {
                namespace: "default".to_owned(),
                name: format!("{name}-1"),
                uid: format!("{name}-uid"),
                service_account: (*name).to_owned(),
                node: "a1".to_owned(),
                app: (*name != "edge").then(|| (*name).to_owned()),
            }),
            [_, "away", _] => Err(PodsError::Unavailable("no route to host".to_owned())),
            _ => Err(PodsError::Refused("token has expired".to_owned())),
        };
        Box::pin(std::future::ready(answer))
    }

    /// The first one fails.
    fn announce<'a>(&'a self, at: &'a KubeName, root: &'a RootPin) -> Announcing<'a> {
        let is_first = self.refused.fetch_add(1, Ordering::Relaxed) == 0;
        Box::pin(async move {
            if is_first {
                return Err(PodsError::Unavailable("configmaps is forbidden".to_owned()));
            }
            self.announced.send_replace(Some((at.to_string(), root.to_string())));
            Ok(())
        })
    }
}

struct World {
    network: Network,
    cluster: Arc<TestCluster>,
    root: RootPin,
}

impl World {
    async fn start() -> Self {
        let cluster = Arc::new(TestCluster::default());
        let pods: Arc<dyn Pods> = Arc::<TestCluster>::clone(&cluster);
        let gateways = Some("default/edge".parse().unwrap());
        let options = PodOptions { pods, gateways, root: Some("tollway/root".parse().unwrap()) };
        let mut network = Network::start_with("west", |o| o.pods = Some(options)).await;
        let root = network.admin.status().await.unwrap().root_pin.parse().unwrap();
        Self { network, cluster, root }
    }

    async fn enrol(
        &self,
        pod_token: &str,
        service: &str,
        instance: &str,
    ) -> Result<v1::IssueResponse, Status> {
        let request = v1::IssueRequest {
            csr: KeyPair::generate().unwrap().csr_der().unwrap(),
            service: Some((&self.network.own(service)).into()),
            instance: instance.to_owned(),
            token: String::new(),
            ttl_s: 0,
            pod_token: pod_token.to_owned(),
        };
        let channel = bootstrap_by(self.network.address, &self.root).await;
        Ok(IdentityClient::new(channel).issue(request).await?.into_inner())
    }

    async fn refused(&self, pod_token: &str, service: &str, instance: &str) -> Status {
        self.enrol(pod_token, service, instance).await.unwrap_err()
    }
}

#[tokio::test]
async fn the_root_is_made_known_in_the_cluster_also_after_a_failure() {
    let world = World::start().await;
    let mut announced = world.cluster.announced.subscribe();
    let written = announced.wait_for(Option::is_some).await.unwrap().clone();
    assert_eq!(written, Some(("tollway/root".to_owned(), world.root.to_string())));
    assert!(world.cluster.refused.load(Ordering::Relaxed) >= 2);
}

fn code(status: &Status) -> Option<ErrorCode> {
    tollway_wire::code_of(status)
}

#[tokio::test]
async fn a_pod_gets_the_identity_of_its_own_app_and_no_other() {
    let mut world = World::start().await;
    for instance in ["stock-1", "stock-uid"] {
        world.enrol("stock.good.x", "stock", instance).await.unwrap();
    }
    // A container that was restarted has another key.
    world.enrol("stock.good.x", "stock", "stock-1").await.unwrap();
    let listed =
        world.network.admin.identities(v1::ListIdentitiesRequest::default()).await.unwrap();
    let mut listed: Vec<_> = listed.identities.into_iter().map(|one| one.instance).collect();
    listed.sort();
    assert_eq!(listed, ["stock-1", "stock-uid"]);
    for (service, instance, words) in [
        ("orders", "stock-1", "is not the app orders, it is stock"),
        ("stock.bank", "stock-1", "has no identity of namespace bank"),
        ("stock", "stock-2", "is not the instance stock-2"),
        ("gateway.tollway", "stock-1", "is not that of gateways"),
        ("control.tollway", "stock-1", "no pod has the identity"),
    ] {
        let refused = world.refused("stock.good.x", service, instance).await;
        assert_eq!(code(&refused), Some(ErrorCode::TokenRefused), "{refused}");
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(refused.message().contains(words), "{refused}");
    }
}

#[tokio::test]
async fn a_pod_of_the_named_service_account_is_a_gateway_and_no_app() {
    let world = World::start().await;
    world.enrol("edge.good.x", "gateway.tollway", "edge-1").await.unwrap();
    let refused = world.refused("edge.good.x", "edge", "edge-1").await;
    assert!(refused.message().contains("it is no app"), "{refused}");
}

#[tokio::test]
async fn what_the_cluster_refuses_is_refused_and_what_it_does_not_answer_may_be_tried_again() {
    let world = World::start().await;
    let refused = world.refused("stock.expired.x", "stock", "stock-1").await;
    assert_eq!(code(&refused), Some(ErrorCode::TokenRefused));
    assert!(refused.message().contains("token has expired"), "{refused}");
    let away = world.refused("stock.away.x", "stock", "stock-1").await;
    assert_eq!(
        (away.code(), code(&away)),
        (Code::Unavailable, Some(ErrorCode::ControlUnreachable))
    );
    // What cannot be a token does not reach the API server.
    let asked = world.cluster.asked.load(Ordering::Relaxed);
    for text in ["x", "a.b", "a b.c.d", &"a".repeat(20_000)] {
        let refused = world.refused(text, "stock", "stock-1").await;
        assert_eq!(code(&refused), Some(ErrorCode::TokenMalformed), "{refused}");
    }
    assert_eq!(world.cluster.asked.load(Ordering::Relaxed), asked);
}

#[tokio::test]
async fn a_revoked_pod_gets_no_identity_by_its_token() {
    let mut world = World::start().await;
    world.enrol("stock.good.x", "stock", "stock-1").await.unwrap();
    let [app, namespace, instance] = ["stock", "default", "stock-1"].map(str::to_owned);
    let identity = v1::RevokedIdentity { app, namespace, instance };
    world.network.admin.revoke_identity(identity).await.unwrap();
    let refused = world.refused("stock.good.x", "stock", "stock-1").await;
    assert_eq!(code(&refused), Some(ErrorCode::IdentityRevoked), "{refused}");
    world.enrol("stock.good.x", "stock", "stock-uid").await.unwrap();
}

#[tokio::test]
async fn a_control_plane_outside_of_a_cluster_takes_no_tokens_of_pods() {
    let mut world = World::start().await;
    world.network = world.network.restart_with(|options| options.pods = None).await;
    let refused = world.refused("stock.good.x", "stock", "stock-1").await;
    assert_eq!(code(&refused), Some(ErrorCode::TokenRefused));
    assert!(refused.message().contains("--kubernetes"), "{refused}");
}

#[tokio::test]
async fn a_check_shows_whether_the_token_of_a_pod_is_good() {
    let world = World::start().await;
    let check = async |pod_token: &str| {
        let request = v1::CheckRequest { token: String::new(), pod_token: pod_token.to_owned() };
        let channel = bootstrap_by(world.network.address, &world.root).await;
        IdentityClient::new(channel).check(request).await
    };
    assert_eq!(check("stock.good.x").await.unwrap().into_inner().network, "west");
    let refused = check("stock.expired.x").await.unwrap_err();
    assert_eq!(code(&refused), Some(ErrorCode::TokenRefused));
}
