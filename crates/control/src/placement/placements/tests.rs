//! What is stored before a host learns of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;
use tollway_actors::placement::{Held, SHARDS, TYPE_RETENTION, TypeApps};
use tollway_store::Limits;

use super::record::TypeRecord;
use super::*;
use crate::app_state::AppState;
use crate::background::Background;
use crate::placement::lapse;
use crate::reminders::Reminders;
use crate::stores::Stores;

const LEASE: Duration = Duration::from_secs(1000);

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn host(app: &str, life: u64) -> Host {
    Host { app: label(app), instance: label("one"), life }
}

async fn store(dir: &TempDir, limits: Limits) -> Store {
    Store::open_embedded(&dir.path().join("plane"), limits).await.unwrap()
}

/// Placements over a store, with the task that writes.
async fn placements(store: &Store) -> (Arc<Placements>, CancellationToken) {
    let placements = Arc::new(Placements::load(store, LEASE, false).await.unwrap());
    let (writing, stop) = (placements.clone(), CancellationToken::new());
    let stopped = stop.clone();
    tokio::spawn(async move { writing.write(stopped).await });
    (placements, stop)
}

fn enter(placements: &Placements, host: &Host) -> mpsc::Receiver<Result<Order, Status>> {
    enter_for(placements, host, "cart")
}

fn enter_for(
    placements: &Placements,
    host: &Host,
    actor_type: &str,
) -> mpsc::Receiver<Result<Order, Status>> {
    let (orders, receiver) = mpsc::channel(ORDERS_LIMIT);
    let held = Held::from([(actor_type.to_owned(), BTreeMap::new())]);
    let entering = Entry { held: &held, attempt: 0, shares: false };
    placements.enter(&label("shop"), host, entering, orders).unwrap();
    receiver
}

/// The harm: a control plane that ends right after a grant does not know of it when it starts again, and
/// lets another host claim the shards.
#[tokio::test]
async fn what_a_host_is_granted_is_in_the_store_by_then() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir, Limits::default()).await;
    let (placements, _stop) = placements(&store).await;
    let mut orders = enter(&placements, &host("cart", 7));
    let Order::Grant { epoch, shards, .. } = orders.recv().await.unwrap().unwrap() else {
        panic!("it is granted everything");
    };
    let left = record::read(&store).await.unwrap();
    let record = &left.types[&label("shop")]["cart"];
    assert!(record.apps.may_host(&label("cart")));
    let grants: Vec<_> = record.grants.iter().collect();
    assert_eq!(grants, [(&(host("cart", 7), epoch), &shards)]);
    assert!(left.last.is_some_and(|last| last >= epoch.0), "{left:?}");
    // Another one over the same store takes it up.
    let later = Placements::load(&store, LEASE, false).await.unwrap();
    assert!(later.state().first > epoch);
    assert!(later.holding(&label("shop"), &host("cart", 7), |_| ()).is_none(), "it enters first");
    let _orders = enter(&later, &host("cart", 7));
    let refused = later.types(None).remove(&label("shop")).unwrap();
    assert_eq!((refused.len(), refused[0].hosts), (1, 1));
    assert_eq!(shards.len(), SHARDS);
}

/// The harm: a store that refuses writes has hosts hold what no later control plane knows of.
#[tokio::test]
async fn while_the_store_refuses_a_host_is_granted_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { value_bytes: 100, ..Limits::default() };
    let store = store(&dir, limits).await;
    let (placements, _stop) = placements(&store).await;
    for _ in 0..2 {
        let mut orders = enter(&placements, &host("cart", 1));
        let refused = orders.recv().await.unwrap().unwrap_err();
        assert!(refused.message().contains("the control plane's store refused"), "{refused:?}");
        assert!(orders.recv().await.is_none(), "it has to enter again");
    }
    let status = placements.release(&label("shop"), "nothing").await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::NotFound);
    let allowed = placements.allow(&label("shop"), "cart", [label(&"x".repeat(63))].into()).await;
    assert!(allowed.is_err(), "the operator learns of it");
    assert!(record::read(&store).await.unwrap().types.is_empty());
}

/// The harm: hosts that enter again and again fill the memory while the store is slow.
#[tokio::test]
async fn orders_that_wait_for_the_store_are_bounded_and_their_hosts_enter_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir, Limits::default()).await;
    // Nothing is written yet.
    let placements = Arc::new(Placements::load(&store, LEASE, false).await.unwrap());
    let (stream, _others) = mpsc::channel(1);
    {
        let waiting = |number| {
            let (actor_type, shards) = ("cart".to_owned(), ShardSet::default());
            let order = Order::GiveBack { actor_type, shards };
            (label("other"), Outgoing { number, stream: stream.clone(), order })
        };
        let mut state = placements.state();
        state.outbox.orders.extend((1..u32::try_from(UNSENT_ORDERS_LIMIT).unwrap()).map(waiting));
    }
    let mut first = enter(&placements, &host("cart", 1));
    assert_eq!(placements.state().outbox.orders.len(), UNSENT_ORDERS_LIMIT);
    assert!(first.try_recv().is_err_and(|error| error == TryRecvError::Empty), "it waits");
    for app in ["web", "stock", "orders"] {
        let mut further = enter_for(&placements, &host(app, 1), app);
        let ended = further.try_recv();
        assert_eq!(ended.err(), Some(TryRecvError::Disconnected), "it has to enter again");
        assert_eq!(placements.state().outbox.orders.len(), UNSENT_ORDERS_LIMIT);
    }
    // Once the store has taken what waits, there is room.
    let (writing, stop) = (placements.clone(), CancellationToken::new());
    let stopped = stop.clone();
    tokio::spawn(async move { writing.write(stopped).await });
    assert!(matches!(first.recv().await, Some(Ok(Order::Grant { .. }))));
    let mut again = enter_for(&placements, &host("web", 1), "web");
    assert!(matches!(again.recv().await, Some(Ok(Order::Grant { .. }))));
    stop.cancel();
}

#[tokio::test]
async fn a_type_without_hosts_goes_to_another_app_when_nothing_is_stored_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir, Limits::default()).await;
    let since = unix_now().saturating_sub(TYPE_RETENTION);
    let vacant = |since| {
        let apps = TypeApps::restored([label("cart")].into(), (false, false), Some(since));
        TypeRecord { apps, grants: BTreeMap::new() }.encode()
    };
    let shop = label("shop");
    let recent = since + Duration::from_secs(600);
    for (name, since) in [("cart", since), ("a|b", since), ("recent", recent)] {
        let put = Transaction::new().put(record::key(&shop, name), vacant(since));
        store.transact(put).await.unwrap();
    }
    let (placements, stop) = placements(&store).await;
    let (stores, background) = (Stores::Directory(dir.path().to_owned()), Background::default());
    let reminders = Reminders::new(stores.clone(), placements.clone(), background.clone());
    let app_state = AppState::new(stores, background.clone());
    lapse::release_all(&placements, &reminders, &app_state).await;
    let names = |placements: &Placements| -> Vec<String> {
        let types = placements.types(Some(&shop)).remove(&shop).unwrap_or_default();
        types.into_iter().map(|it| it.actor_type).collect()
    };
    assert_eq!(names(&placements), ["a|b", "recent"], "odd names may have state");
    placements.saved().await.unwrap();
    stop.cancel();
    assert_eq!(names(&Placements::load(&store, LEASE, false).await.unwrap()), ["a|b", "recent"]);
    background.stop.cancel();
}

/// The harm: namespaces that a token for any of them makes up stay in memory for good.
#[tokio::test]
async fn a_namespace_without_types_is_forgotten_and_its_grants_go_on_when_it_returns() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir, Limits::default()).await;
    let (placements, _stop) = placements(&store).await;
    let (shop, other) = (label("shop"), label("other"));
    let known = || placements.state().realms.len();
    let mut last = Epoch(0);
    for life in 1..4 {
        let mut orders = enter(&placements, &host("web", life));
        assert_eq!(known(), 1);
        let Order::Grant { epoch, .. } = orders.recv().await.unwrap().unwrap() else {
            panic!("it is granted everything");
        };
        assert!(epoch > last, "a former grant could pass for this one");
        last = epoch;
        placements.leave(&shop, &host("web", life));
        placements.release(&shop, "cart").await.unwrap();
        assert_eq!(known(), 0);
    }
    // What names a namespace that has no host does not begin it.
    placements.retire(&other, &host("web", 1));
    placements.given_back(&other, &host("web", 1), "cart", &[(last, Shard::all().collect())]);
    assert!(!placements.renew(&other, &host("web", 1)));
    assert_eq!(known(), 0);
    assert!(record::read(&store).await.unwrap().types.is_empty());
}

/// The harm: a host that repeats steps without content has all streams of all namespaces look up all
/// that they follow.
#[tokio::test]
async fn steps_that_change_nothing_wake_no_stream() {
    use crate::connections::{Holder, Limits as ShareLimits, Own, ShareLimit};

    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir, Limits::default()).await;
    let (placements, _stop) = placements(&store).await;
    let (shop, web) = (label("shop"), host("web", 1));
    let mut orders = enter(&placements, &web);
    let Order::Grant { epoch, .. } = orders.recv().await.unwrap().unwrap() else {
        panic!("it is granted everything");
    };
    let limit = ShareLimit::new("bytes", ShareLimits::of(1_000, 1_000), Own::Stays);
    let share = limit.acquire(&Holder::new("shop", "web", "a"), 0).ok().unwrap();
    let mut follower = placements.followers.enter(shop.clone(), share);
    follower.add(vec!["cart".to_owned()]).unwrap();
    follower.take();
    let all = || Shard::all().collect::<ShardSet>();
    for _ in 0..1_000 {
        placements.given_back(&shop, &web, "cart", &[]);
        placements.given_back(&shop, &web, "cart", &[(epoch, ShardSet::default())]);
        placements.given_back(&shop, &web, "other", &[(epoch, all())]);
        assert!(placements.renew(&shop, &web));
    }
    assert_eq!(placements.followers.woken(), 0);
    placements.given_back(&shop, &web, "cart", &[(epoch, all())]);
    assert!(placements.followers.woken() == 1 && follower.take().len() == 1);
}
