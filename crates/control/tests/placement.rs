//! Placement of actors over real connections: hosts and callers, step by step.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use support::host::{Answer, Host, Step, enter};
use support::{Member, Network, PATIENCE};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tollway_actors::placement::{Epoch, SHARDS, Shard};
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
    let mut back = Host::open(
        &shop,
        Step::Enter(v1::Enter { life: 7, types, attempt: 0, shares_types: false }),
    )
    .await;
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
    caller.until(&[("one", SHARDS / 2), ("two", SHARDS / 2)]).await;
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
    let entering =
        |types| Step::Enter(v1::Enter { life: 1, types, attempt: 0, shares_types: false });
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

/// What a host of another app offers: `cart`, of which it claims everything under an epoch, and a type of
/// its own.
fn claiming(life: u64, epoch: u64) -> Step {
    let all = Shard::all().map(|shard| (shard, Epoch(epoch))).collect();
    let types = vec![
        v1::HeldType { actor_type: "cart".into(), grants: tollway_wire::grants(&all) },
        v1::HeldType { actor_type: "own".into(), grants: Vec::new() },
    ];
    Step::Enter(v1::Enter { life, types, attempt: 1, shares_types: false })
}

/// Reads until the answer to `enter`: how much the host has to let go, and what it may not host.
async fn entered(host: &mut Host) -> (usize, Vec<v1::RefusedType>) {
    let mut wrong = 0;
    loop {
        match host.answer().await.unwrap() {
            Answer::GiveBack(back) => {
                assert_eq!(back.actor_type, "cart");
                wrong += tollway_wire::shard_set(&back.shards).unwrap().len();
            }
            Answer::Entered(entered) => return (wrong, entered.refused),
            other @ (Answer::LeaseKept(_) | Answer::Granted(_) | Answer::Left(_)) => {
                panic!("{other:?}")
            }
        }
    }
}

/// A host that has entered.
async fn entering(member: &Member, life: u64) -> Host {
    let mut host = Host::open(member, Step::Enter(enter(life))).await;
    assert_eq!(entered(&mut host).await, (0, Vec::new()));
    host.life = life;
    host
}

fn apps(status: &v1::ActorTypeStatus) -> Vec<&str> {
    status.apps.iter().map(String::as_str).collect()
}

/// The harm: a token for any app of the namespace suffices to become a host of every type there, and to
/// get half of its actors.
#[tokio::test]
async fn an_intruder_of_the_namespace_becomes_host_of_no_type_of_another_app() {
    let mut west = Network::start_with("west", |options| {
        options.timing.actor_lease = Duration::from_secs(1000);
    })
    .await;
    let (shop, intruder) = (west.member("shop", "one").await, west.member("intruder", "one").await);
    let mut host = entering(&shop, 1).await;
    host.granted().await;
    let mut caller = Caller::new(&shop).await;
    caller.until(&[("one", SHARDS)]).await;
    let epoch = host.held.values().max().unwrap().0;
    let mut liar = Host::open(&intruder, claiming(1, epoch)).await;
    let (wrong, refused) = entered(&mut liar).await;
    assert_eq!(wrong, SHARDS, "it holds nothing of what it claims");
    let [refused] = &refused[..] else { panic!("{refused:?}") };
    assert_eq!((&*refused.actor_type, &*refused.code), ("cart", "ERR_ACTOR_TYPE_TAKEN"));
    assert!(refused.message.contains("belongs to the app shop"), "{refused:?}");
    // Its own types go on, and the other's host is not even asked for anything.
    let Answer::Granted(granted) = liar.answer().await.unwrap() else { panic!("it is granted") };
    assert_eq!(granted.actor_type, "own");
    let kept = host.keep_lease().await.unwrap();
    assert_eq!(kept, Answer::LeaseKept(v1::LeaseKept {}));
    // The operator sees both.
    let types = west.admin.actor_types("").await.unwrap();
    let [cart, own] = &types[..] else { panic!("{types:?}") };
    assert_eq!(
        (&*cart.namespace, &*cart.actor_type, apps(cart)),
        ("default", "cart", vec!["shop"])
    );
    assert_eq!((cart.hosts, &cart.refused[..]), (1, &["intruder".to_owned()][..]));
    assert_eq!((&*own.actor_type, apps(own)), ("own", vec!["intruder"]));
    // Nor does it while the app is away, or after a restart of the control plane.
    host.send(Step::Leave(v1::Leave {})).await;
    assert_eq!(host.answer().await.unwrap(), Answer::Left(v1::Left {}));
    caller.until(&[]).await;
    let mut west = west.restart().await;
    let mut liar = Host::open(&intruder, claiming(2, epoch)).await;
    let (wrong, refused) = entered(&mut liar).await;
    assert_eq!((wrong, refused.len()), (SHARDS, 1));
    let types = west.admin.actor_types("default").await.unwrap();
    assert!(types[0].vacant_since_unix_s > 0 && types[0].hosts == 0, "{types:?}");
}

/// The harm: an app that asks for shared types gets those of others in a network whose operator has not
/// allowed it.
#[tokio::test]
async fn types_are_shared_only_where_the_operator_allows_it() {
    for may_share in [false, true] {
        let west = Network::start_with("west", |options| options.share_actor_types = may_share);
        let mut west = west.await;
        let (shop, web) = (west.member("shop", "one").await, west.member("web", "one").await);
        let sharing = || Step::Enter(v1::Enter { shares_types: true, ..enter(1) });
        let mut first = Host::open(&shop, sharing()).await;
        assert_eq!(entered(&mut first).await, (0, Vec::new()));
        let mut second = Host::open(&web, sharing()).await;
        let (_, refused) = entered(&mut second).await;
        assert_eq!(refused.is_empty(), may_share, "{refused:?}");
        let types = west.admin.actor_types("").await.unwrap();
        assert_eq!((types[0].shared, apps(&types[0])), (may_share, vec!["shop"]));
    }
}

/// The harm: while the control plane restarts, the first to enter claims every shard, beside the host
/// that holds them.
#[tokio::test]
async fn a_claim_after_a_restart_takes_nothing_from_the_host_that_was_granted_it() {
    let mut west = Network::start_with("west", |options| {
        options.timing.actor_lease = Duration::from_secs(1000);
    })
    .await;
    let (one, two) = (west.member("shop", "one").await, west.member("shop", "two").await);
    let intruder = west.member("intruder", "one").await;
    let mut host = Host::open(&one, Step::Enter(enter(7))).await;
    host.answer().await.unwrap();
    host.granted().await;
    let (held, epoch) = (host.held.clone(), host.held.values().max().unwrap().0);
    let west = west.restart().await;
    for epoch in [1, epoch, epoch + 1] {
        let mut liar = Host::open(&intruder, claiming(99, epoch)).await;
        assert_eq!(entered(&mut liar).await.0, SHARDS, "{epoch}");
        // A replica of the same app is believed no more than what it was granted.
        let mut liar = Host::open(&two, claiming(7, epoch)).await;
        assert_eq!(entered(&mut liar).await.0, SHARDS, "{epoch}");
    }
    let types =
        vec![v1::HeldType { actor_type: "cart".into(), grants: tollway_wire::grants(&held) }];
    let mut host = Host::open(
        &one,
        Step::Enter(v1::Enter { life: 7, types, attempt: 0, shares_types: false }),
    )
    .await;
    let (wrong, refused) = entered(&mut host).await;
    assert_eq!((wrong, &refused[..]), (0, &[][..]), "it keeps what it holds");
    assert_eq!(host.asked_back().await.len(), SHARDS / 2, "the replica gets its half");
    let mut caller = Caller::new(&one).await;
    caller.until(&[("one", SHARDS / 2)]).await;
    drop(west);
}

/// The harm: one certificate enters with hundreds of lives, and each gets a share of the actors.
#[tokio::test]
async fn many_lives_of_one_instance_have_one_share() {
    let mut west = Network::start_with("west", |options| {
        options.timing.actor_lease = Duration::from_secs(1000);
    })
    .await;
    let (one, two) = (west.member("shop", "one").await, west.member("shop", "two").await);
    let mut honest = Host::open(&one, Step::Enter(enter(1))).await;
    honest.answer().await.unwrap();
    honest.granted().await;
    let mut caller = Caller::new(&one).await;
    caller.until(&[("one", SHARDS)]).await;
    let mut lives = Vec::new();
    for life in 1..=60 {
        let mut host = Host::open(&two, Step::Enter(enter(life))).await;
        assert!(matches!(host.answer().await.unwrap(), Answer::Entered(_)));
        lives.push(host);
    }
    let asked = honest.asked_back().await;
    assert_eq!(asked.len(), SHARDS / 2, "one share for all of them");
    honest.give_back(&asked).await;
    caller.until(&[("one", SHARDS / 2), ("two", SHARDS / 2)]).await;
    let mut last = lives.pop().unwrap();
    assert_eq!(last.granted().await.len(), SHARDS / 2, "the life that began last has it");
    // The others are gone.
    for mut former in lives {
        let end = former.response().await.unwrap_err();
        assert_eq!(end.code(), Code::Aborted, "{end:?}");
    }
    let late = Host::open(&two, Step::Enter(enter(59))).await.response().await.unwrap_err();
    let code = tollway_wire::code_of(&late).map(|code| code.word());
    assert_eq!(code, Some("ERR_ACTOR_HOST_SUCCEEDED"), "{late:?}");
}

/// A sidecar that is killed and started again has no connection that it could end.
#[tokio::test]
async fn a_host_that_is_killed_again_and_again_within_one_lease_returns() {
    let mut west = Network::start("west").await;
    let shop = west.member("shop", "one").await;
    let began = tokio::time::Instant::now();
    let mut host = Host::enter(&shop, 1).await;
    host.granted().await;
    for life in 2..=5 {
        drop(host);
        host = Host::enter(&shop, life).await;
    }
    host.wait_for_all().await;
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    let mut caller = Caller::new(&shop).await;
    caller.until(&[("one", SHARDS)]).await;
}

/// An app that connects again before its sidecar has given everything back.
#[tokio::test]
async fn a_former_life_hands_over_before_its_lease_ends() {
    let mut west = Network::start_with("west", |options| {
        options.timing.actor_lease = Duration::from_secs(1000);
    })
    .await;
    let shop = west.member("shop", "one").await;
    let mut former = Host::open(&shop, Step::Enter(enter(1))).await;
    former.answer().await.unwrap();
    former.granted().await;
    let mut later = Host::open(&shop, Step::Enter(enter(2))).await;
    later.answer().await.unwrap();
    let asked = former.asked_back().await;
    assert_eq!(asked.len(), SHARDS);
    former.give_back(&asked).await;
    while later.held.len() < SHARDS {
        later.granted().await;
    }
    assert_eq!(former.response().await.unwrap_err().code(), Code::Aborted);
}

#[tokio::test]
async fn the_operator_moves_and_shares_a_type() {
    let mut west = Network::start_with("west", |options| {
        options.timing.actor_lease = Duration::from_secs(5);
    })
    .await;
    let (old, new) = (west.member("shop", "one").await, west.member("next", "one").await);
    let mut first = entering(&old, 1).await;
    first.granted().await;
    let mut refused = Host::open(&new, Step::Enter(enter(1))).await;
    assert_eq!(entered(&mut refused).await.1.len(), 1);
    let release =
        || v1::ReleaseActorTypeRequest { namespace: "default".into(), actor_type: "cart".into() };
    let error = west.admin.release_actor_type(release()).await.unwrap_err().to_string();
    assert!(error.contains("has hosts; stop them, or name the apps"), "{error}");
    let allow = |apps: &[&str]| v1::AllowActorTypeRequest {
        namespace: "default".into(),
        actor_type: "cart".into(),
        apps: apps.iter().map(|app| (*app).to_owned()).collect(),
    };
    for (apps, reason) in [(&[][..], "name 1 to 100"), (&["a b"], "`apps`")] {
        let error = west.admin.allow_actor_type(allow(apps)).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    // Both: the one that was refused has to enter again.
    west.admin.allow_actor_type(allow(&["shop", "next"])).await.unwrap();
    assert_eq!(refused.response().await.unwrap_err().code(), Code::Aborted);
    let mut second = entering(&new, 1).await;
    let asked = first.asked_back().await;
    first.give_back(&asked).await;
    second.granted().await;
    // Only the next one, and what the other holds is free when its lease has ended.
    west.admin.allow_actor_type(allow(&["next"])).await.unwrap();
    let end = first.response().await.unwrap_err();
    assert!(end.message().contains("assigned a type of this host to other apps"), "{end:?}");
    second.wait_for_all().await;
    // It stays so over a restart, and ends by the operator's word.
    second.send(Step::Leave(v1::Leave {})).await;
    while !matches!(second.answer().await.unwrap(), Answer::Left(_)) {}
    let mut west = west.restart().await;
    let types = west.admin.actor_types("").await.unwrap();
    assert!(types[0].named && apps(&types[0]) == ["next"], "{types:?}");
    let mut first = Host::open(&old, Step::Enter(enter(2))).await;
    assert_eq!(entered(&mut first).await.1.len(), 1);
    west.admin.release_actor_type(release()).await.unwrap();
    let mut first = entering(&old, 2).await;
    assert_eq!(first.granted().await.len(), SHARDS);
    let error = west.admin.release_actor_type(v1::ReleaseActorTypeRequest {
        actor_type: "other".into(),
        ..release()
    });
    let error = error.await.unwrap_err().to_string();
    assert!(error.contains("no app has the actor type default/other"), "{error}");
}
