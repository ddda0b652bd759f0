//! Pods prove who they are by the tokens of their service accounts, and get no other identity.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::{Member, Network, PATIENCE, Registration, Watch, bootstrap_by, issue_by, workload};
use tokio::sync::{mpsc, watch};
use tollway_control::{
    Announcing, Asking, Following, Options, PartAccounts, PodEvent, PodId, PodOptions, Pods,
    PodsError, ProvenPod, Proving,
};
use tollway_identity::{KeyPair, RootPin};
use tollway_model::{ErrorCode, KubeName};
use tollway_wire::v1;
use tollway_wire::v1::identity_client::IdentityClient;
use tollway_wire::v1::register_request::Request as Announce;
use tonic::{Code, Status};

/// A cluster whose API server knows these tokens: `stock.good.x` is of the pod `stock-1` of the app
/// `stock`, `edge.good.x` of the pod `edge-1`, which is a gateway's.
#[derive(Debug, Default)]
struct TestCluster {
    asked: AtomicU64,
    /// Announcements that have failed, and those that have not.
    refused: AtomicU64,
    announced: watch::Sender<BTreeMap<String, String>>,
    /// Where the control plane takes events, once it follows pods.
    events: watch::Sender<Option<mpsc::Sender<PodEvent>>>,
    /// UIDs of pods that do not run.
    ended: Mutex<Vec<String>>,
}

impl TestCluster {
    async fn report(&self, event: PodEvent) {
        let mut events = self.events.subscribe();
        let events = events.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        events.send(event).await.unwrap();
    }
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

    fn follow(&self, events: mpsc::Sender<PodEvent>) -> Following<'_> {
        self.events.send_replace(Some(events));
        Box::pin(std::future::pending())
    }

    fn runs<'a>(&'a self, pod: &'a PodId) -> Asking<'a> {
        let runs = !self.ended.lock().unwrap().contains(&pod.uid);
        Box::pin(std::future::ready(Ok(runs)))
    }

    /// The first one fails.
    fn announce<'a>(&'a self, at: &'a KubeName, root: &'a RootPin) -> Announcing<'a> {
        let is_first = self.refused.fetch_add(1, Ordering::Relaxed) == 0;
        Box::pin(async move {
            if is_first {
                return Err(PodsError::Unavailable("configmaps is forbidden".to_owned()));
            }
            self.announced.send_modify(|all| drop(all.insert(at.to_string(), root.to_string())));
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
        Self::start_with(|_| {}).await
    }

    async fn start_with(adjust: impl FnOnce(&mut Options)) -> Self {
        let cluster = Arc::new(TestCluster::default());
        let pods: Arc<dyn Pods> = Arc::<TestCluster>::clone(&cluster);
        let parts = PartAccounts {
            gateways: Some("default/edge".parse().unwrap()),
            agents: vec!["default/racks=racks".parse().unwrap()],
        };
        let roots = ["tollway/root", "elsewhere/root"].map(|at| at.parse().unwrap()).to_vec();
        let options = PodOptions { pods, parts, roots };
        let mut network = Network::start_with("west", |o| {
            o.pods = Some(options);
            adjust(o);
        })
        .await;
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

    /// The instance of the pod of the app `stock`.
    async fn stock(&self) -> Member {
        let channel = bootstrap_by(self.network.address, &self.root).await;
        let tokens = [String::new(), "stock.good.x".to_owned()];
        let service = self.network.own("stock");
        let credentials = issue_by(channel, &service, "stock-1", tokens).await.unwrap();
        Member { address: self.network.address, credentials }
    }

    /// Waits until so many instances of `stock` are registered.
    async fn wait_registered(&mut self, count: u32) {
        let admin = &mut self.network.admin;
        let waiting = async {
            loop {
                let services = admin.services().await.unwrap().services;
                if services.iter().map(|service| service.workloads).sum::<u32>() == count {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap();
    }

    /// Waits until all that was reported so far has been taken.
    async fn wait_taken(&self) {
        self.cluster.report(PodEvent::Ended { uid: "last-uid".to_owned() }).await;
        let waiting = async { while self.enrol("last.good.x", "last", "last-1").await.is_ok() {} };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap();
    }

    async fn refused(&self, pod_token: &str, service: &str, instance: &str) -> Status {
        self.enrol(pod_token, service, instance).await.unwrap_err()
    }
}

#[tokio::test]
async fn the_root_is_made_known_in_the_cluster_also_after_a_failure() {
    let world = World::start().await;
    let mut announced = world.cluster.announced.subscribe();
    let written = announced.wait_for(|all| all.len() == 2).await.unwrap().clone();
    let root = world.root.to_string();
    let wanted = ["elsewhere/root", "tollway/root"].map(|at| (at.to_owned(), root.clone()));
    assert_eq!(written, wanted.into());
    assert_eq!(world.cluster.refused.load(Ordering::Relaxed), 3, "one had to be tried again");
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
        ("fabric-racks.tollway", "stock-1", "is not that of agents of the group racks"),
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
async fn a_pod_of_a_named_service_account_is_an_agent_of_its_group_alone() {
    let world = World::start().await;
    world.enrol("racks.good.x", "fabric-racks.tollway", "racks-1").await.unwrap();
    for (service, words) in [
        ("fabric-rooms.tollway", "is not that of agents of the group rooms"),
        ("gateway.tollway", "is not that of gateways"),
    ] {
        let refused = world.refused("racks.good.x", service, "racks-1").await;
        assert!(refused.message().contains(words), "{refused}");
    }
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

#[tokio::test]
async fn the_registration_of_a_pod_ends_with_the_pod_and_its_certificate_registers_no_more() {
    let mut world = World::start_with(|options| options.timing.lease = PATIENCE * 10).await;
    let stock = world.stock().await;
    let mut registration = Registration::workload(&stock, 8080).await;
    world.wait_registered(1).await;
    world.cluster.report(PodEvent::Ended { uid: "another".to_owned() }).await;
    world.cluster.report(PodEvent::Ended { uid: "stock-uid".to_owned() }).await;
    // The lease runs for minutes.
    world.wait_registered(0).await;
    let keep_alive = Announce::KeepAlive(v1::KeepAlive {});
    registration.send(keep_alive).await;
    let refused = registration.answer().await.unwrap_err();
    assert_eq!(code(&refused), Some(ErrorCode::KeyRefused), "{refused}");
    assert!(refused.message().contains("is deleted or has ended"), "{refused}");
    let mut again = Registration::open(&stock).await.unwrap();
    again.send(Announce::Workload(workload(&stock, 8080, true))).await;
    assert_eq!(code(&again.answer().await.unwrap_err()), Some(ErrorCode::KeyRefused));
    world.wait_registered(0).await;
}

/// The harm: an app that begins to terminate stops taking connections, and callers' are reset.
#[tokio::test]
async fn a_pod_that_terminates_is_called_no_more_and_keeps_its_registration() {
    let mut world = World::start_with(|options| options.timing.lease = PATIENCE * 10).await;
    let stock = world.stock().await;
    let mut registration = Registration::workload(&stock, 8080).await;
    let web = world.network.member("web", "web-1").await;
    let mut watch = Watch::services(&web, &["stock"]).await;
    watch.until("stock", "local [8080]").await;
    world.cluster.report(PodEvent::Leaving { uid: "another".to_owned() }).await;
    world.cluster.report(PodEvent::Leaving { uid: "stock-uid".to_owned() }).await;
    watch.until("stock", "none ready").await;
    let keep_alive = Announce::KeepAlive(v1::KeepAlive {});
    registration.send(keep_alive).await;
    registration.answer().await.unwrap();
    // A stream that has broken comes back, and says what it said before.
    drop(registration);
    let mut again = Registration::open(&stock).await.unwrap();
    again.send(Announce::Workload(workload(&stock, 8080, true))).await;
    again.answer().await.unwrap();
    watch.until_quiet().await;
    watch.until("stock", "none ready").await;
}

/// A pod of a StatefulSet has the name of the one before.
#[tokio::test]
async fn that_a_pod_leaves_does_not_concern_who_has_its_name_now() {
    let mut world = World::start().await;
    drop(world.stock().await);
    let other = world.network.member("stock", "stock-1").await;
    let mut registration = Registration::workload(&other, 8080).await;
    let revision = registration.set_ready(&other, 8080, true).await;
    world.cluster.report(PodEvent::Leaving { uid: "stock-uid".to_owned() }).await;
    world.wait_taken().await;
    let now = registration.set_ready(&other, 8080, true).await;
    assert_eq!(now, revision, "it is as it was");
}

/// The harm: the end of a pod is not seen while the control plane is away.
#[tokio::test]
async fn a_pod_that_ended_while_the_control_plane_was_away_registers_no_more() {
    let mut world = World::start_with(|options| options.timing.lease = PATIENCE * 10).await;
    let stock = world.stock().await;
    world.cluster.events.send_replace(None);
    world.network = world.network.restart().await;
    // It runs, though the list lacks it, as one does that was made a moment ago.
    for event in [PodEvent::ListBegins, PodEvent::ListEnds] {
        world.cluster.report(event).await;
    }
    let registration = Registration::workload(&stock, 8080).await;
    world.wait_registered(1).await;
    world.cluster.ended.lock().unwrap().push("stock-uid".to_owned());
    for event in [PodEvent::ListBegins, PodEvent::ListEnds] {
        world.cluster.report(event).await;
    }
    world.wait_registered(0).await;
    drop(registration);
    let mut again = Registration::open(&stock).await.unwrap();
    again.send(Announce::Workload(workload(&stock, 8080, true))).await;
    assert_eq!(code(&again.answer().await.unwrap_err()), Some(ErrorCode::KeyRefused));
}

/// A pod of a StatefulSet has the name of the one before.
#[tokio::test]
async fn the_end_of_a_pod_does_not_concern_who_has_its_name_now() {
    let mut world = World::start().await;
    drop(world.stock().await);
    let other = world.network.member("stock", "stock-1").await;
    let mut registration = Registration::workload(&other, 8080).await;
    let revision = registration.set_ready(&other, 8080, true).await;
    world.cluster.report(PodEvent::Ended { uid: "stock-uid".to_owned() }).await;
    world.wait_taken().await;
    let now = registration.set_ready(&other, 8080, true).await;
    assert_eq!(now, revision, "it was not announced again");
}

#[tokio::test]
async fn a_pod_that_ended_while_it_enrolled_gets_no_certificate() {
    let world = World::start().await;
    world.cluster.report(PodEvent::Ended { uid: "stock-uid".to_owned() }).await;
    world.wait_taken().await;
    let refused = world.refused("stock.good.x", "stock", "stock-1").await;
    assert_eq!(code(&refused), Some(ErrorCode::TokenRefused));
    assert!(refused.message().contains("is deleted"), "{refused}");
}
