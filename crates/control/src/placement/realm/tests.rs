//! One namespace, step by step.

use super::*;

const LEASE: Duration = Duration::from_secs(3);
const AT_ONCE: Duration = Duration::ZERO;
const UNIX: Duration = Duration::from_secs(1_800_000_000);

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn host(app: &str, instance: &str, life: u64) -> Host {
    Host { app: label(app), instance: label(instance), life }
}

fn offering(types: &[&str]) -> Held {
    types.iter().map(|name| ((*name).to_owned(), BTreeMap::new())).collect()
}

fn realm() -> Realm {
    Realm::new(LEASE, Epoch(100), BTreeMap::new(), UNIX)
}

/// A realm over what another one has stored of `cart`.
fn restarted(realm: &Realm) -> Realm {
    let record = realm.record("cart").unwrap();
    Realm::new(LEASE, Epoch(1000), BTreeMap::from([("cart".to_owned(), record)]), UNIX)
}

/// Enters, and returns the answer with the receiver of orders.
fn enter(
    realm: &mut Realm,
    host: &Host,
    held: &Held,
    now: Duration,
) -> Result<(Entered, mpsc::Receiver<Result<Order, Status>>), NotEntered> {
    let (orders, receiver) = mpsc::channel(64);
    let entering = Entry { held, attempt: 0, shares: false };
    realm.enter(host, entering, orders, now).map(|entered| (entered, receiver))
}

fn refusals(entered: &Entered) -> Vec<(&str, &str)> {
    entered.refused.iter().map(|it| (it.actor_type.as_str(), it.code.word())).collect()
}

/// Settles; the number of shards that each instance is granted.
fn granted(realm: &mut Realm, now: Duration) -> BTreeMap<String, usize> {
    let mut granted = BTreeMap::new();
    for Outgoing { number, order, .. } in realm.settle(now, UNIX).orders {
        if let Order::Grant { shards, .. } = order {
            let instance = realm.hosts[&number].host.instance.to_string();
            *granted.entry(instance).or_default() += shards.len();
        }
    }
    granted
}

/// The harm: any app of the namespace enters as a host of another's type, gets its share of the
/// actors, and reads their reminders.
#[test]
fn an_app_hosts_no_type_of_another_app() {
    let mut realm = realm();
    let cart = host("cart", "one", 1);
    let (entered, _orders) = enter(&mut realm, &cart, &offering(&["cart"]), AT_ONCE).unwrap();
    assert_eq!(refusals(&entered), []);
    assert_eq!(granted(&mut realm, AT_ONCE).len(), 1);
    let intruder = host("intruder", "one", 1);
    let claimed = Shard::all().map(|shard| (shard, Epoch(101))).collect();
    let held = Held::from([("cart".to_owned(), claimed), ("own".to_owned(), BTreeMap::new())]);
    let (entered, _orders) = enter(&mut realm, &intruder, &held, AT_ONCE).unwrap();
    assert_eq!(refusals(&entered), [("cart", "ERR_ACTOR_TYPE_TAKEN")]);
    let text = &entered.refused[0].text;
    assert!(text.contains("belongs to the app cart, and intruder may not host it"), "{text}");
    let all = Order::GiveBack { actor_type: "cart".into(), shards: Shard::all().collect() };
    assert_eq!(entered.wrong, [all], "what it claims it has to let go");
    let orders = realm.settle(AT_ONCE, UNIX).orders;
    assert!(
        orders
            .iter()
            .all(|it| matches!(&it.order, Order::Grant { actor_type, .. } if actor_type == "own"))
    );
    let holds = realm.holdings(&intruder).unwrap();
    assert!(Shard::all().all(|shard| !holds("cart", shard, Epoch(101))));
    let refused = realm.types().into_iter().find(|it| it.actor_type == "cart").unwrap().refused;
    assert_eq!(refused, BTreeSet::from([label("intruder")]), "the operator sees who was refused");
}

/// Enters as an app that shares its types, or does not; the types that it may not host.
fn share(realm: &mut Realm, host: &Host, shares: bool) -> Vec<String> {
    let (orders, _) = mpsc::channel(64);
    let held = offering(&["cart"]);
    let entering = Entry { held: &held, attempt: 0, shares };
    let entered = realm.enter(host, entering, orders, AT_ONCE).unwrap();
    entered.refused.into_iter().map(|refused| refused.actor_type).collect()
}

/// The harm: an app that shares its types, as in Dapr, gets those of one that does not.
#[test]
fn an_app_hosts_the_type_of_another_only_where_both_share_it() {
    let (cart, web) = (host("cart", "one", 1), host("web", "one", 1));
    for (owner_shares, other_shares, is_hosted) in
        [(true, true, true), (true, false, false), (false, true, false), (false, false, false)]
    {
        let mut realm = realm();
        assert_eq!(share(&mut realm, &cart, owner_shares), [""; 0]);
        let refused = share(&mut realm, &web, other_shares);
        assert_eq!(refused.is_empty(), is_hosted, "{owner_shares} {other_shares}");
        let hosts = granted(&mut realm, AT_ONCE).len();
        assert_eq!(hosts, 1, "what moves is asked back first");
        let status = &realm.types()[0];
        assert_eq!((status.is_shared, status.hosts), (owner_shares, 1 + usize::from(is_hosted)));
        assert_eq!(status.apps, [label("cart")], "the type belongs to the first app");
        // So it is over a restart of the control plane.
        let mut later = restarted(&realm);
        assert_eq!(share(&mut later, &web, other_shares), refused);
    }
    // Once a replica of the app does not share it, no further app gets it.
    let mut realm = realm();
    assert_eq!(share(&mut realm, &cart, true), [""; 0]);
    assert_eq!(share(&mut realm, &host("cart", "two", 1), false), [""; 0]);
    assert_eq!(share(&mut realm, &web, true), ["cart"]);
}

/// The harm: the intruder waits for a moment in which the app has no host.
#[test]
fn a_type_remains_with_its_app_while_it_has_no_hosts_and_over_restarts() {
    let mut realm = realm();
    let (_, orders) =
        enter(&mut realm, &host("cart", "one", 1), &offering(&["cart"]), AT_ONCE).unwrap();
    realm.settle(AT_ONCE, UNIX);
    realm.leave(&host("cart", "one", 1));
    drop(orders);
    let unsaved = realm.settle(AT_ONCE, UNIX).unsaved;
    assert_eq!(unsaved, BTreeSet::from(["cart".to_owned()]), "it is stored that it is vacant");
    let mut later = restarted(&realm);
    for realm in [&mut realm, &mut later] {
        let intruder = host("intruder", "one", 1);
        let (entered, _orders) = enter(realm, &intruder, &offering(&["cart"]), AT_ONCE).unwrap();
        assert_eq!(refusals(&entered), [("cart", "ERR_ACTOR_TYPE_TAKEN")]);
        let until = UNIX + tollway_actors::placement::TYPE_RETENTION;
        assert!(!realm.has_lapsed("cart", until - Duration::from_secs(1)));
        assert!(realm.has_lapsed("cart", until));
        assert_eq!(realm.lapsed(until), [("cart".to_owned(), vec![label("cart")])]);
    }
    let (entered, _orders) =
        enter(&mut later, &host("Cart", "two", 1), &offering(&["cart"]), AT_ONCE).unwrap();
    assert_eq!(refusals(&entered), [], "its own app, however it is spelled");
}

#[test]
fn a_type_that_is_released_or_assigned_goes_to_the_next_app_at_once() {
    let mut realm = realm();
    let cart = host("cart", "one", 1);
    let (_, mut of_cart) = enter(&mut realm, &cart, &offering(&["cart"]), AT_ONCE).unwrap();
    realm.settle(AT_ONCE, UNIX);
    let next = host("next", "one", 1);
    let (_, mut of_next) = enter(&mut realm, &next, &offering(&["cart"]), AT_ONCE).unwrap();
    assert_eq!(realm.release("cart"), Err(NotReleased::HasHosts));
    assert_eq!(realm.release("other"), Err(NotReleased::Unknown));
    // Both, and no others.
    realm.allow("cart", BTreeSet::from([label("cart"), label("next")]), UNIX);
    assert!(of_next.try_recv().unwrap().unwrap_err().message().contains("enter again"));
    assert!(of_cart.try_recv().is_err(), "nothing changes for it");
    let (entered, _of_next) = enter(&mut realm, &next, &offering(&["cart"]), AT_ONCE).unwrap();
    assert_eq!(refusals(&entered), []);
    assert_eq!(realm.placement.hosts("cart").count(), 2);
    // Only the next one: the former loses its lease.
    realm.allow("cart", BTreeSet::from([label("next")]), UNIX);
    assert!(of_cart.try_recv().unwrap().is_err());
    assert!(!realm.renew(&cart, AT_ONCE), "its lease runs out");
    let again = enter(&mut realm, &cart, &offering(&["cart"]), AT_ONCE);
    assert_eq!(again.unwrap_err(), NotEntered::Ended);
    assert_eq!(granted(&mut realm, LEASE - Duration::from_millis(1)), BTreeMap::new());
    assert!(realm.renew(&next, LEASE - Duration::from_millis(1)));
    assert_eq!(granted(&mut realm, LEASE), BTreeMap::from([("one".to_owned(), 1024)]));
    let (entered, _of_cart) = enter(&mut realm, &cart, &offering(&["cart"]), LEASE).unwrap();
    assert_eq!(refusals(&entered), [("cart", "ERR_ACTOR_TYPE_TAKEN")]);
    // Apps that were named keep the type, until it is released.
    realm.leave(&next);
    realm.settle(LEASE, UNIX);
    assert!(!realm.has_lapsed("cart", UNIX * 2));
    assert_eq!(realm.release("cart"), Ok(()));
    assert_eq!(realm.record("cart"), None, "nothing of it is stored");
    let (entered, _of_cart) = enter(&mut realm, &cart, &offering(&["cart"]), LEASE).unwrap();
    assert_eq!(refusals(&entered), []);
}

/// The harm: one instance enters with a thousand lives and gets a share for each of them.
#[test]
fn a_thousand_lives_of_an_instance_have_one_share() {
    let mut realm = realm();
    let (_, _other) =
        enter(&mut realm, &host("cart", "other", 1), &offering(&["cart"]), AT_ONCE).unwrap();
    realm.settle(AT_ONCE, UNIX);
    let mut streams = Vec::new();
    for life in 1..=1_100 {
        let liar = host("cart", "one", life);
        streams.push(enter(&mut realm, &liar, &offering(&["cart"]), AT_ONCE).unwrap());
        // Whatever is asked back is given back.
        for Outgoing { number, order, .. } in realm.settle(AT_ONCE, UNIX).orders {
            let Order::GiveBack { shards, .. } = order else { continue };
            for ((host, epoch), _) in realm.placement.grants("cart") {
                if host == number {
                    realm.placement.given_back(&number, "cart", &shards, epoch);
                }
            }
        }
    }
    realm.settle(AT_ONCE, UNIX);
    let mut held: BTreeMap<Host, usize> = BTreeMap::new();
    for ((host, _), shards) in realm.record("cart").unwrap().grants {
        *held.entry(host).or_default() += shards.len();
    }
    assert_eq!(held[&host("cart", "other", 1)], 512);
    let lives: Vec<_> = held.iter().filter(|(host, _)| host.instance == label("one")).collect();
    assert!(lives.len() <= 1 && lives.iter().all(|(_, count)| **count == 512), "{lives:?}");
    assert!(realm.hosts.len() <= 3 && realm.numbers.len() == realm.hosts.len());
}

/// A sidecar that is killed and started again, several times within one lease.
#[test]
fn of_an_instance_the_life_that_began_last_hosts() {
    let mut realm = realm();
    let one = |life| host("cart", "one", life);
    let (_, _first) = enter(&mut realm, &one(1), &offering(&["cart"]), AT_ONCE).unwrap();
    assert_eq!(granted(&mut realm, AT_ONCE).values().sum::<usize>(), 1024);
    for life in 2..=6 {
        let now = Duration::from_millis(300 * life);
        let (entered, _orders) = enter(&mut realm, &one(life), &offering(&["cart"]), now).unwrap();
        assert_eq!(refusals(&entered), []);
        assert_eq!(granted(&mut realm, now), BTreeMap::new(), "the first may have turns under way");
        for before in 1..life {
            let late = enter(&mut realm, &one(before), &offering(&["cart"]), now);
            assert_eq!(late.unwrap_err(), NotEntered::Succeeded, "{before}");
        }
        if life == 6 {
            assert_eq!(realm.hosts.len(), 2, "one that holds something and one that waits");
            realm.renew(&one(6), now);
            assert_eq!(granted(&mut realm, LEASE).values().sum::<usize>(), 1024);
            assert!(realm.holdings(&one(6)).is_some());
            // A former life that was only suspended does not come back.
            let late = enter(&mut realm, &one(1), &offering(&["cart"]), LEASE);
            assert_eq!(late.unwrap_err(), NotEntered::Succeeded);
        }
    }
}

/// The harm: after a restart of the control plane the first to come claims all shards.
#[test]
fn a_claim_after_a_restart_is_worth_what_was_granted() {
    let mut realm = realm();
    let (_, _orders) =
        enter(&mut realm, &host("cart", "one", 7), &offering(&["cart"]), AT_ONCE).unwrap();
    realm.settle(AT_ONCE, UNIX);
    let everything = |epoch| {
        let all = Shard::all().map(|shard| (shard, Epoch(epoch))).collect();
        Held::from([("cart".to_owned(), all)])
    };
    for liar in [host("intruder", "x", 99), host("cart", "two", 7), host("cart", "one", 8)] {
        for epoch in [1, 101, 999, u64::MAX] {
            let mut realm = restarted(&realm);
            let (entered, _orders) = enter(&mut realm, &liar, &everything(epoch), AT_ONCE).unwrap();
            let [Order::GiveBack { shards, .. }] = &entered.wrong[..] else {
                panic!("{:?}", entered.wrong);
            };
            assert_eq!(shards.len(), 1024);
            assert_eq!(granted(&mut realm, AT_ONCE), BTreeMap::new());
            let holds = realm.holdings(&liar).unwrap();
            assert!(Shard::all().all(|shard| !holds("cart", shard, Epoch(epoch))));
        }
    }
    let mut realm = restarted(&realm);
    let honest = host("cart", "one", 7);
    assert!(realm.holdings(&honest).is_none(), "it enters first");
    let (entered, _orders) = enter(&mut realm, &honest, &everything(101), AT_ONCE).unwrap();
    assert_eq!(entered.wrong, [], "it keeps what it has");
    let holds = realm.holdings(&honest).unwrap();
    assert!(Shard::all().all(|shard| holds("cart", shard, Epoch(101))));
}

/// The harm: sidecars refuse a message with more hosts than they accept, and lose the type.
#[test]
fn a_type_has_so_many_hosts() {
    let mut realm = realm();
    let mut streams = Vec::new();
    let one = |number: usize| host("cart", &format!("n{number}"), 1);
    for number in 0..ACTOR_HOSTS_PER_TYPE_LIMIT {
        let (entered, orders) =
            enter(&mut realm, &one(number), &offering(&["cart"]), AT_ONCE).unwrap();
        assert_eq!(refusals(&entered), []);
        streams.push(orders);
    }
    let more = one(ACTOR_HOSTS_PER_TYPE_LIMIT);
    let (entered, _orders) = enter(&mut realm, &more, &offering(&["cart", "x"]), AT_ONCE).unwrap();
    assert_eq!(refusals(&entered), [("cart", "ERR_ACTOR_TYPES_EXCEEDED")]);
    let (entered, _orders) = enter(&mut realm, &one(5), &offering(&["cart"]), AT_ONCE).unwrap();
    assert_eq!(refusals(&entered), [], "one that is there may come back");
    realm.settle(AT_ONCE, UNIX);
    let owners = realm.owners("cart").unwrap();
    let message = tollway_wire::owners("cart", &owners, |host| tollway_wire::ActorHost {
        service: host.service(&label("shop"), &label("west")),
        instance: host.instance.clone(),
    });
    assert!(tollway_wire::read_owners(&message).is_ok());
}

/// The harm: one app takes all types that a namespace can have.
#[test]
fn an_app_leaves_half_of_the_types_to_others() {
    let mut realm = realm();
    let names = |from: usize, count: usize| -> Vec<String> {
        (from..from + count).map(|number| format!("t{number}")).collect()
    };
    let offer = |realm: &mut Realm, app: &str, names: &[String]| {
        let held = names.iter().map(|name| (name.clone(), BTreeMap::new())).collect();
        let (entered, _) = enter(realm, &host(app, "one", 1), &held, AT_ONCE).unwrap();
        entered.refused
    };
    let refused = offer(&mut realm, "greedy", &names(0, ACTOR_TYPES_PER_APP_LIMIT + 1));
    assert_eq!(refused.len(), 1);
    assert!(refused[0].text.contains("an app has at most 500"), "{refused:?}");
    assert_eq!(offer(&mut realm, "honest", &names(1_000, ACTOR_TYPES_PER_APP_LIMIT)), []);
    let refused = offer(&mut realm, "late", &names(2_000, 1));
    assert_eq!(refused[0].code.word(), "ERR_ACTOR_TYPES_EXCEEDED");
    assert!(refused[0].text.contains("a namespace has at most 1000"), "{refused:?}");
}
