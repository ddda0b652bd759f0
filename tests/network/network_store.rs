//! What a network's control plane keeps for apps, against the suite that every state store holds;
//! over restarts, for several replicas and apart for each app.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tollway_control::{AdminClient, ControlPlane, Options};
use tollway_model::Label;
use tollway_proxy::mesh::{MeshClient, MeshConfig, Role, TokenSource};
use tollway_runtime::network_store;
use tollway_state::{Consistency, Delete, Entry, Set, StateError, StateStore, Value};
use tollway_testkit::{RawClient, metric_in};
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;

/// Far more than anything here takes; a test that waits for it has failed.
const PATIENCE: Duration = Duration::from_secs(20);

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

struct Control {
    dir: TempDir,
    options: Options,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Control {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Options::new(dir.path().join("store"), label("west"));
        options.listen = "127.0.0.1:0".parse().unwrap();
        options.admin_listen = Some(options.listen);
        options.ports_file = Some(dir.path().join("ports.json"));
        Self::run(dir, options).await
    }

    async fn run(dir: TempDir, options: Options) -> Self {
        let control = ControlPlane::bind(options.clone()).await.unwrap();
        let address = control.address();
        let (stop, stopped) = oneshot::channel();
        let serve = control.serve(async { drop(stopped.await) });
        let task = tokio::spawn(async { serve.await.unwrap() });
        Self { dir, options, address, stop: Some(stop), task }
    }

    /// Ends it in good order and starts it again where it was.
    async fn restart(mut self) -> Self {
        drop(self.stop.take());
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap();
        self.options.listen = self.address;
        Self::run(self.dir, self.options).await
    }

    /// Its metrics at its admin port.
    fn metric(&self, name: &str) -> u64 {
        let ports = std::fs::read_to_string(self.options.ports_file.as_ref().unwrap()).unwrap();
        let ports: BTreeMap<String, SocketAddr> = serde_json::from_str(&ports).unwrap();
        let request = "GET /metrics HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n";
        let page = RawClient::exchange(ports["admin"], request, PATIENCE).unwrap();
        metric_in(&page.text(), name).unwrap()
    }

    async fn store(&self, namespace: &str, app: &str, instance: &str) -> Arc<dyn StateStore> {
        let mut admin = AdminClient::connect(&self.options.store).await.unwrap();
        let scope = Some(Scope::Any(v1::AnyWorkload {}));
        let request = v1::CreateTokenRequest { scope, ttl_ms: 0, uses: Some(0) };
        let token = admin.create_token(request).await.unwrap().token;
        let token = TokenSource::Given(token.parse().unwrap());
        let role = Role::Sidecar { app: label(app), namespace: label(namespace) };
        let config = MeshConfig::new(self.address.into(), token, role, label(instance));
        network_store(Arc::new(MeshClient::start(config, |_| {}).await.unwrap()))
    }
}

fn bytes(key: &str, bytes: Vec<u8>) -> Set {
    Set::new(key, Value::Bytes(bytes.into()))
}

async fn get(store: &Arc<dyn StateStore>, key: &str) -> Option<Entry> {
    store.get(key, Consistency::Strong).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_control_planes_store_holds_the_contract() {
    let control = Control::start().await;
    tollway_tests::state_contract::hold(control.store("default", "web", "i-1").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_what_an_app_keeps_and_others_do_not_see_it() {
    let control = Control::start().await;
    let one = control.store("default", "web", "i-1").await;
    let other = control.store("Default", "WEB", "i-2").await;
    one.set(bytes("k", b"1".to_vec())).await.unwrap();
    assert_eq!(get(&other, "k").await.unwrap().value, "1");
    for (namespace, app) in [("default", "shop"), ("shop", "web")] {
        let stranger = control.store(namespace, app, "i-3").await;
        assert_eq!(get(&stranger, "k").await, None);
        stranger.set(bytes("k", b"2".to_vec())).await.unwrap();
        stranger.delete(Delete::new("k")).await.unwrap();
    }
    assert_eq!(get(&one, "k").await.unwrap().value, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_survives_a_restart_of_the_control_plane() {
    let control = Control::start().await;
    let store = control.store("default", "web", "i-1").await;
    store.set(bytes("k", b"1".to_vec())).await.unwrap();
    let before = get(&store, "k").await.unwrap();
    let control = control.restart().await;
    assert_eq!(get(&store, "k").await.unwrap(), before);
    // A write over a connection that has ended meanwhile is made on another one.
    let control = control.restart().await;
    store.set(bytes("k", b"2".to_vec())).await.unwrap();
    let again = control.store("default", "web", "i-9").await;
    assert_eq!(get(&again, "k").await.unwrap().value, "2");
    let stale = Set { etag: before.etag, ..bytes("k", b"3".to_vec()) };
    assert!(store.set(stale).await.unwrap_err().is_mismatch());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_app_keeps_is_bounded() {
    let control = Control::start().await;
    let store = control.store("default", "web", "i-1").await;
    let refused = async |set: Set, words: &str| {
        let reported = store.set(set).await.unwrap_err();
        let StateError::TooLarge { what, .. } = &reported else { panic!("{reported:?}") };
        assert!(what.contains(words), "{what}");
    };
    refused(bytes(&"k".repeat(801), vec![1]), "a key in bytes").await;
    refused(bytes("k", vec![1; (1 << 20) + 1]), "the value of k in bytes").await;
    store.set(bytes(&"k".repeat(800), vec![1; 1 << 20])).await.unwrap();
    for number in 0..62 {
        store.set(bytes(&format!("k{number}"), vec![1; 1 << 20])).await.unwrap();
    }
    refused(bytes("more", vec![1; 1 << 20]), "what the app keeps in bytes").await;
    let (entries, kept) =
        (control.metric("tollway_app_state_entries"), control.metric("tollway_app_state_bytes"));
    assert!(entries == 63 && (63 << 20..=64 << 20).contains(&kept), "{entries}, {kept} bytes");
    // What there is can be changed and made smaller, and all of it is read at once.
    store.set(bytes("k1", vec![2; 1 << 20])).await.unwrap();
    let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    let found = store.bulk_get(&keys).await.unwrap();
    assert!(found.iter().all(|entry| entry.as_ref().unwrap().value.len() == 1 << 20));
    store.delete(Delete::new("k0")).await.unwrap();
    store.set(bytes("more", vec![1; 1 << 20])).await.unwrap();
    let other = control.store("default", "shop", "i-1").await;
    other.set(bytes("k", vec![1; 1 << 20])).await.unwrap();
    // What was counted is counted again after a restart.
    let _control = control.restart().await;
    let entry = get(&store, "k1").await.unwrap();
    assert_eq!(entry.value[0], 2);
    refused(bytes("and more", vec![1; 1 << 20]), "what the app keeps in bytes").await;
}
