//! Placement of actors over real connections: hosts and callers, step by step.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use support::host::{Answer, Host, Step, enter};
use support::{Member, Network, PATIENCE};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tollway_actors::placement::SHARDS;
use tollway_wire::v1;
use tollway_wire::v1::placement_client::PlacementClient;
use tonic::{Code, Streaming};

/// The holders, as a caller of `cart` sees them.
struct Caller {
    _requests: mpsc::Sender<v1::WatchOwnersRequest>,
    owners: Streaming<v1::Owners>,
}

impl Caller {
    async fn new(member: &Member) -> Self {
        let (requests, outgoing) = mpsc::channel(8);
        let add = vec!["cart".to_owned()];
        requests.send(v1::WatchOwnersRequest { add, remove: Vec::new() }).await.unwrap();
        let mut client = PlacementClient::new(member.channel().await);
        let owners = client.watch_owners(ReceiverStream::new(outgoing)).await.unwrap();
        Self { _requests: requests, owners: owners.into_inner() }
    }

    async fn owners(&mut self) -> BTreeMap<String, usize> {
        let message = tokio::time::timeout(PATIENCE, self.owners.message()).await;
        let message = message.expect("something is said").unwrap().expect("the stream goes on");
        let mut counts = BTreeMap::new();
        let owners = tollway_wire::read_owners(&message).unwrap();
        for owner in owners.into_iter().flat_map(|owners| owners.shards).flatten() {
            *counts.entry(format!("{} of {}", owner.instance, owner.service)).or_default() += 1;
        }
        counts
    }

    /// Waits until it is sent this.
    async fn until(&mut self, expected: &[(&str, usize)]) {
        let name = |(instance, count): &(&str, usize)| {
            (format!("{instance} of shop.default.west"), *count)
        };
        let expected: BTreeMap<String, usize> = expected.iter().map(name).collect();
        let mut owners = None;
        while owners.as_ref() != Some(&expected) {
            owners = Some(self.owners().await);
        }
    }
}

#[tokio::test]
async fn a_second_host_gets_its_half_when_the_first_has_given_it_back() {
    let mut west = Network::start("west").await;
    let (one, two) = (west.member("shop", "one").await, west.member("shop", "two").await);
    let mut caller = Caller::new(&west.member("web", "a").await).await;
    assert_eq!(caller.owners().await, BTreeMap::new(), "no host offers it");
    let mut first = Host::enter(&one, 1).await;
    assert_eq!(first.granted().await.len(), SHARDS);
    caller.until(&[("one", SHARDS)]).await;
    let mut second = Host::enter(&two, 1).await;
    let asked = first.asked_back().await;
    assert_eq!(asked.len(), SHARDS / 2);
    caller.until(&[("one", SHARDS / 2)]).await;
    first.give_back(&asked).await;
    assert_eq!(second.granted().await, asked);
    caller.until(&[("one", SHARDS / 2), ("two", SHARDS / 2)]).await;
    assert!(second.held.values().min() > first.held.values().max(), "later grants are higher");
}

#[tokio::test]
async fn who_leaves_or_retires_hands_over_at_once() {
    let mut west = Network::start_with("west", |options| {
        options.timing.actor_lease = Duration::from_secs(1000);
    })
    .await;
    let (one, two) = (west.member("shop", "one").await, west.member("shop", "two").await);
    let held = |host: &Host| host.held.len();
    let mut first = Host::open(&one, Step::Enter(enter(1))).await;
    first.answer().await.unwrap();
    first.granted().await;
    let mut second = Host::open(&two, Step::Enter(enter(1))).await;
    second.answer().await.unwrap();
    first.send(Step::Retire(v1::Retire {})).await;
    while held(&first) > 0 {
        let asked = first.asked_back().await;
        first.give_back(&asked).await;
    }
    while held(&second) < SHARDS {
        second.granted().await;
    }
    first.send(Step::Leave(v1::Leave {})).await;
    assert_eq!(first.answer().await.unwrap(), Answer::Left(v1::Left {}));
    let mut third = Host::open(&one, Step::Enter(enter(2))).await;
    third.answer().await.unwrap();
    second.asked_back().await;
    second.send(Step::Leave(v1::Leave {})).await;
    while held(&third) < SHARDS {
        third.granted().await;
    }
}

#[tokio::test]
async fn a_silent_host_loses_everything_when_its_lease_ends() {
    let mut west = Network::start("west").await;
    let (one, two) = (west.member("shop", "one").await, west.member("shop", "two").await);
    let mut caller = Caller::new(&one).await;
    let mut silent = Host::enter(&one, 1).await;
    let began = tokio::time::Instant::now();
    silent.granted().await;
    let mut second = Host::enter(&two, 1).await;
    silent.asked_back().await;
    second.wait_for_all().await;
    assert!(began.elapsed() >= Duration::from_millis(950), "{:?}", began.elapsed());
    caller.until(&[("two", SHARDS)]).await;
    // Its stream ends, or it is refused at its next message.
    let end = loop {
        if silent.requests.send(keep_lease()).await.is_err() {
            break silent.response().await.unwrap_err();
        }
        match silent.response().await {
            Ok(_) => {}
            Err(status) => break status,
        }
    };
    assert!(matches!(end.code(), Code::FailedPrecondition | Code::Aborted), "{end:?}");
}

fn keep_lease() -> v1::HostRequest {
    v1::HostRequest { request: Some(Step::KeepLease(v1::KeepLease {})) }
}

#[tokio::test]
async fn who_comes_back_within_the_lease_keeps_what_it_holds() {
    let mut west = Network::start_with("west", |options| {
        options.timing.actor_lease = Duration::from_secs(5);
    })
    .await;
    let shop = west.member("shop", "one").await;
    let mut caller = Caller::new(&shop).await;
    let mut first = Host::open(&shop, Step::Enter(enter(7))).await;
    first.answer().await.unwrap();
    first.granted().await;
    caller.until(&[("one", SHARDS)]).await;
    let held = std::mem::take(&mut first.held);
    drop(first);
    let types =
        vec![v1::HeldType { actor_type: "cart".into(), grants: tollway_wire::grants(&held) }];
    let mut back = Host::open(&shop, Step::Enter(v1::Enter { life: 7, types, attempt: 0 })).await;
    back.answer().await.unwrap();
    let kept = back.keep_lease().await.unwrap();
    assert_eq!(kept, Answer::LeaseKept(v1::LeaseKept {}), "nothing is granted or asked for");
    // Another life of the same instance is another host: it waits for the end of the lease.
    let began = tokio::time::Instant::now();
    let mut other = Host::open(&shop, Step::Enter(enter(8))).await;
    other.answer().await.unwrap();
    drop(back);
    other.wait_for_all().await;
    assert!(began.elapsed() >= Duration::from_secs(4), "{:?}", began.elapsed());
}

/// A host's message on a connection that it gave up may come after those on the next.
#[tokio::test]
async fn an_enter_that_comes_late_takes_nothing_from_the_one_after_it() {
    let mut west = Network::start("west").await;
    let (one, two) = (west.member("shop", "one").await, west.member("shop", "two").await);
    let entering = |attempt| Step::Enter(v1::Enter { attempt, ..enter(7) });
    let mut host = Host::open(&one, entering(2)).await;
    host.answer().await.unwrap();
    assert_eq!(host.granted().await.len(), SHARDS);
    let mut late = Host::open(&one, entering(1)).await;
    let refused = late.answer().await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
    assert!(refused.message().contains("a later conversation"), "{refused}");
    // The conversation continues, and the host still holds everything: half is asked back.
    let kept = host.keep_lease().await.unwrap();
    assert_eq!(kept, Answer::LeaseKept(v1::LeaseKept {}));
    let _second = Host::enter(&two, 1).await;
    assert_eq!(host.asked_back().await.len(), SHARDS / 2);
    let mut again = Host::open(&one, entering(3)).await;
    again.answer().await.unwrap();
}

#[tokio::test]
async fn a_restarted_control_plane_takes_nothing_from_those_who_come_back() {
    let mut west = Network::start("west").await;
    let (one, two) = (west.member("shop", "one").await, west.member("shop", "two").await);
    let mut first = Host::enter(&one, 1).await;
    first.granted().await;
    let mut second = Host::enter(&two, 1).await;
    let asked = first.asked_back().await;
    first.give_back(&asked).await;
    second.granted().await;
    let held = first.held.clone();
    let west = west.restart().await;
    let began = tokio::time::Instant::now();
    let mut first = Host::enter_with(&one, first.life, held).await;
    let mut caller = Caller::new(&one).await;
    caller.until(&[("one", SHARDS / 2)]).await;
    // The other host does not come back, and may hold its half until its lease has ended.
    first.wait_for_all().await;
    assert!(began.elapsed() >= Duration::from_millis(700), "{:?}", began.elapsed());
    caller.until(&[("one", SHARDS)]).await;
    drop(west);
}

#[tokio::test]
async fn namespaces_do_not_see_each_other() {
    let mut west = Network::start("west").await;
    let (here, there) =
        (west.member("shop", "one").await, west.member("shop.elsewhere", "two").await);
    let mut mine = Host::enter(&here, 1).await;
    let mut theirs = Host::enter(&there, 1).await;
    assert_eq!(mine.granted().await.len(), SHARDS);
    assert_eq!(theirs.granted().await.len(), SHARDS);
    let mut caller = Caller::new(&there).await;
    let owners = caller.owners().await;
    assert_eq!(owners.keys().collect::<Vec<_>>(), ["two of shop.elsewhere.west"]);
}

#[tokio::test]
async fn what_is_not_valid_is_refused_with_the_reason() {
    let mut west = Network::start("west").await;
    let shop = west.member("shop", "one").await;
    let grant = |shards: Vec<u8>| v1::Grant { epoch: 1, shards };
    let held = |actor_type: &str, shards| v1::HeldType {
        actor_type: actor_type.into(),
        grants: vec![grant(shards)],
    };
    let entering = |types| Step::Enter(v1::Enter { life: 1, types, attempt: 0 });
    let cases = [
        (Step::KeepLease(v1::KeepLease {}), "the first request must be `enter`"),
        (entering(vec![held("cart", vec![0; 127])]), "a set of shards has the length 127"),
        (entering(vec![held("", vec![0; 128])]), "an actor type has 0 bytes"),
        (entering(vec![held(&"x".repeat(257), vec![0; 128])]), "an actor type has 257 bytes"),
        (entering(vec![v1::HeldType::default(); 1001]), "holds 1001 entries; at most 1000"),
    ];
    for (first, reason) in cases {
        let status = Host::open(&shop, first).await.response().await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains(reason), "{status:?}");
    }
    let gateway = west.gateway("gateway-1").await;
    let mut client = PlacementClient::new(gateway.channel().await);
    let (_requests, outgoing) = mpsc::channel(1);
    let refused = client.host(ReceiverStream::new(outgoing)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
}

#[tokio::test]
async fn a_namespace_has_so_many_actor_types() {
    let mut west = Network::start_with("west", |options| {
        options.timing.actor_lease = Duration::from_secs(1000);
    })
    .await;
    let (one, two) = (west.member("shop", "one").await, west.member("shop", "two").await);
    let offered = |names: std::ops::Range<usize>| {
        let kind = |name| v1::HeldType { actor_type: format!("t{name}"), ..Default::default() };
        Step::Enter(v1::Enter { life: 1, types: names.map(kind).collect(), attempt: 0 })
    };
    let mut full = Host::open(&one, offered(0..1000)).await;
    full.response().await.unwrap();
    let status = Host::open(&two, offered(999..1001)).await.response().await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains("at most 1000 actor types"), "{status:?}");
    let mut fits = Host::open(&two, offered(998..1000)).await;
    fits.response().await.unwrap();
}
