//! Custom resources of a cluster become objects of the network, and the cluster gets their status.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::sync::Arc;

use support::{Network, PATIENCE, Watch};
use tokio::sync::{Mutex, mpsc, watch};
use tollway_control::{
    AdminError, Following, RefusalReason, Reporting, Resource, ResourceEvent, ResourceKind,
    ResourceName, ResourceStatus, Resources, Verdict,
};
use tollway_model::{Mode, Object, ObjectKind, ObjectName, Policy, PolicyTarget};
use tollway_wire::v1;
use tonic::Code;

const POLICY: ResourceKind = ResourceKind::Own(ObjectKind::Policy);

/// A cluster whose resources are what a test reports.
#[derive(Debug)]
struct TestCluster {
    /// Where the control plane takes events, once it follows resources.
    events: watch::Sender<Option<mpsc::Sender<ResourceEvent>>>,
    reports: mpsc::UnboundedSender<ResourceStatus>,
    reported: Mutex<mpsc::UnboundedReceiver<ResourceStatus>>,
}

impl TestCluster {
    fn new() -> Arc<Self> {
        let (reports, reported) = mpsc::unbounded_channel();
        Arc::new(Self { events: watch::Sender::default(), reports, reported: Mutex::new(reported) })
    }

    async fn send(&self, events: impl IntoIterator<Item = ResourceEvent>) {
        let mut sender = self.events.subscribe();
        let sender = sender.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        for event in events {
            sender.send(event).await.unwrap();
        }
    }

    /// Reports that there are these policies and no others.
    async fn list(&self, resources: Vec<Resource>) {
        let kind = POLICY;
        self.send([ResourceEvent::ListBegins(kind)]).await;
        self.send(resources.into_iter().map(ResourceEvent::Listed)).await;
        self.send([ResourceEvent::ListEnds(kind)]).await;
    }

    /// The next status that the control plane reports.
    async fn status(&self) -> ResourceStatus {
        let mut reported = self.reported.lock().await;
        tokio::time::timeout(PATIENCE, reported.recv()).await.unwrap().unwrap()
    }

    /// The next one of this kind.
    async fn until(&self, is_wanted: impl Fn(&Verdict) -> bool) -> ResourceStatus {
        loop {
            let status = self.status().await;
            if is_wanted(&status.verdict) {
                return status;
            }
        }
    }
}

impl Resources for TestCluster {
    fn follow(&self, events: mpsc::Sender<ResourceEvent>) -> Following<'_> {
        self.events.send_replace(Some(events));
        Box::pin(std::future::pending())
    }

    fn report<'a>(&'a self, status: &'a ResourceStatus) -> Reporting<'a> {
        self.reports.send(status.clone()).unwrap();
        Box::pin(std::future::ready(Ok(())))
    }
}

async fn start(cluster: &Arc<TestCluster>) -> Network {
    let resources: Arc<dyn Resources> = Arc::<TestCluster>::clone(cluster);
    Network::start_with_metrics("west", |options| options.resources = Some(resources)).await
}

fn name(name: &str) -> ResourceName {
    let kind = POLICY;
    ResourceName { kind, namespace: "default".into(), name: name.into() }
}

/// A policy that closes the app `stock`.
fn closed(of: &str, generation: i64) -> Resource {
    let policy = Policy {
        name: ObjectName::new("default", of).unwrap(),
        target: PolicyTarget::App(support::label("stock")),
        mode: Mode::Enforce,
        allow: Some(Vec::new()),
        deny: Vec::new(),
    };
    let object = Ok(Object::Policy(Arc::new(policy)));
    Resource { name: name(of), generation, created_unix_ms: 5, bytes: 100, object }
}

async fn names(network: &mut Network) -> Vec<String> {
    let kind = v1::ObjectKind::Policy.into();
    let request = v1::ListObjectsRequest { kind, ..Default::default() };
    let objects = network.admin.objects(request).await.unwrap().objects;
    let name = |object: v1::Object| tollway_wire::object(&object).unwrap().name().name.to_string();
    objects.into_iter().map(name).collect()
}

async fn until_names(network: &mut Network, expected: &[&str]) {
    let changed = async {
        while names(network).await != expected {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, changed).await.unwrap();
}

async fn command_applies(network: &mut Network, of: &str) -> Result<(), AdminError> {
    let object = v1::Object::from(&closed(of, 1).object.unwrap());
    let request = v1::ApplyObjectsRequest { objects: vec![object], ..Default::default() };
    network.admin.apply_objects(request).await.map(drop)
}

async fn command_deletes(network: &mut Network, of: &str) -> Result<(), AdminError> {
    let id = v1::ObjectId {
        kind: v1::ObjectKind::Policy.into(),
        namespace: "default".into(),
        name: of.into(),
    };
    let request = v1::DeleteObjectsRequest { ids: vec![id], ..Default::default() };
    network.admin.delete_objects(request).await.map(drop)
}

#[tokio::test]
async fn a_resource_is_an_object_whose_sidecars_are_reported() {
    let cluster = TestCluster::new();
    let mut west = start(&cluster).await;
    let stock = west.member("stock", "a").await;
    let mut sidecar = Watch::services(&stock, &[]).await;
    sidecar.until_quiet().await;

    cluster.list(vec![closed("readers", 1)]).await;
    let pending = cluster.status().await;
    assert_eq!((pending.name.clone(), pending.generation), (name("readers"), 1));
    let Verdict::Accepted { revision, sidecars: 1, lagging: None } = pending.verdict else {
        panic!("{pending:?}")
    };
    // It acknowledges what it reads.
    sidecar.until_quiet().await;
    let applied = cluster.status().await.verdict;
    let everywhere = Verdict::Accepted { revision, sidecars: 1, lagging: Some(Vec::new()) };
    assert_eq!(applied, everywhere);

    // It does not read the next one.
    let shadow = Resource { generation: 2, ..closed("others", 2) };
    cluster.send([ResourceEvent::Changed(shadow)]).await;
    let lags = |verdict: &Verdict| {
        let lagging = Some(vec!["a.stock.default".to_owned()]);
        matches!(verdict, Verdict::Accepted { lagging: named, .. } if *named == lagging)
    };
    assert_eq!(cluster.until(lags).await.generation, 2);
    assert_eq!(names(&mut west).await, ["others", "readers"]);
    cluster.send([ResourceEvent::Deleted(name("readers"))]).await;
    until_names(&mut west, &["others"]).await;
}

#[tokio::test]
async fn what_was_deleted_while_the_control_plane_was_away_is_removed() {
    let cluster = TestCluster::new();
    let mut west = start(&cluster).await;
    command_applies(&mut west, "by-hand").await.unwrap();
    cluster.list(vec![closed("goes", 1), closed("stays", 1)]).await;
    until_names(&mut west, &["by-hand", "goes", "stays"]).await;
    cluster.events.send_replace(None);
    let mut west = west.restart().await;
    // Nothing is removed before all have been listed.
    cluster.send([ResourceEvent::ListBegins(POLICY)]).await;
    assert_eq!(names(&mut west).await, ["by-hand", "goes", "stays"]);
    cluster.list(vec![closed("stays", 1)]).await;
    until_names(&mut west, &["by-hand", "stays"]).await;
}

#[tokio::test]
async fn commands_and_resources_leave_each_others_objects_alone() {
    let cluster = TestCluster::new();
    let mut west = start(&cluster).await;
    command_applies(&mut west, "taken").await.unwrap();
    cluster.list(vec![closed("taken", 1), closed("own", 1)]).await;
    let refused = cluster.status().await;
    assert_eq!(refused.name, name("taken"));
    let Verdict::Refused { reason: RefusalReason::NameTaken, why } = refused.verdict else {
        panic!("{refused:?}")
    };
    assert!(why.contains("tollway delete policy default/taken"), "{why}");
    assert_eq!(cluster.status().await.name, name("own"), "one hurts no other");
    for refused in
        [command_applies(&mut west, "own").await, command_deletes(&mut west, "own").await]
    {
        let refused = refused.unwrap_err();
        let AdminError::Refused(refused) = refused else { panic!("{refused:?}") };
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("kubectl"), "{refused}");
    }
    // Its deletion removes nothing of the command.
    cluster.send([ResourceEvent::Deleted(name("taken"))]).await;
    cluster.send([ResourceEvent::Changed(closed("later", 1))]).await;
    until_names(&mut west, &["later", "own", "taken"]).await;

    // Once the name is free, the resource has it without another change.
    cluster.send([ResourceEvent::Changed(closed("taken", 2))]).await;
    command_deletes(&mut west, "taken").await.unwrap();
    let is_accepted = |verdict: &Verdict| matches!(verdict, Verdict::Accepted { .. });
    while cluster.until(is_accepted).await.name != name("taken") {}
}

#[tokio::test]
async fn a_resource_with_a_mistake_keeps_what_it_was_and_is_reported() {
    let cluster = TestCluster::new();
    let mut west = start(&cluster).await;
    cluster.list(vec![closed("readers", 1)]).await;
    assert!(matches!(cluster.status().await.verdict, Verdict::Accepted { .. }));
    let broken = Resource { object: Err("an odd thing".into()), ..closed("readers", 2) };
    cluster.send([ResourceEvent::Changed(broken)]).await;
    let refused = cluster.status().await;
    let (reason, why) = (RefusalReason::Invalid, "an odd thing".to_owned());
    assert_eq!((refused.generation, refused.verdict), (2, Verdict::Refused { reason, why }));
    assert_eq!(names(&mut west).await, ["readers"]);
    let page = west.page().await;
    for count in [r#"state="accepted"} 0"#, r#"state="refused"} 1"#] {
        let line = format!(r#"tollway_custom_resources{{kind="policy",{count}"#);
        assert!(page.contains(&line), "{line}: {page}");
    }
    cluster.send([ResourceEvent::Deleted(name("readers"))]).await;
    until_names(&mut west, &[]).await;
}
