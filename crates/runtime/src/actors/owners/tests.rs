//! What is known of the hosts of a type, by a clock that the tests advance.

use tokio::time::{advance, sleep};
use tollway_actors::placement::SHARDS;
use tollway_wire::v1;

use super::*;
use crate::actors::testing::{NoControl, owners};

fn message(actor_type: &str, owners: &KnownOwners) -> v1::Owners {
    let KnownOwners::Owners(owners) = owners else {
        return v1::Owners { actor_type: actor_type.to_owned(), ..v1::Owners::default() };
    };
    tollway_wire::owners(actor_type, owners, Clone::clone)
}

fn is_offered(known: &watch::Receiver<KnownOwners>) -> Option<bool> {
    match &*known.borrow() {
        KnownOwners::Unknown => None,
        KnownOwners::NotOffered => Some(false),
        KnownOwners::Owners(owners) => {
            assert_eq!(owners.shards.len(), SHARDS);
            Some(true)
        }
    }
}

fn followed(directory: &Directory, name: &str) -> watch::Receiver<KnownOwners> {
    directory.follow(&Arc::from(name)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_type_is_unknown_until_the_control_plane_names_its_hosts() {
    let directory = Directory::new();
    let known = followed(&directory, "Cart");
    assert_eq!(is_offered(&known), None);
    directory.receive(&message("Cart", &KnownOwners::NotOffered)).unwrap();
    assert_eq!(is_offered(&known), Some(false), "it was never offered: that is believed at once");
    directory.receive(&message("Cart", &owners(None))).unwrap();
    assert_eq!(is_offered(&known), Some(true));
    directory.receive(&message("Other", &owners(None))).unwrap();
    assert_eq!(directory.types().len(), 1, "what was not asked for is not followed");
}

#[tokio::test(start_paused = true)]
async fn hosts_that_are_gone_are_believed_gone_after_a_while() {
    let directory = Directory::new();
    let known = followed(&directory, "Cart");
    directory.receive(&message("Cart", &owners(None))).unwrap();
    directory.receive(&message("Cart", &KnownOwners::NotOffered)).unwrap();
    advance(DOUBT - Duration::from_millis(1)).await;
    directory.believe();
    assert_eq!(is_offered(&known), Some(true));
    directory.receive(&message("Cart", &KnownOwners::NotOffered)).unwrap();
    advance(Duration::from_millis(1)).await;
    directory.believe();
    assert_eq!(is_offered(&known), Some(false), "saying it again does not begin the time anew");
}

#[tokio::test(start_paused = true)]
async fn hosts_that_come_back_end_the_doubt() {
    let directory = Directory::new();
    let known = followed(&directory, "Cart");
    directory.receive(&message("Cart", &owners(None))).unwrap();
    directory.receive(&message("Cart", &KnownOwners::NotOffered)).unwrap();
    advance(DOUBT / 2).await;
    directory.receive(&message("Cart", &owners(None))).unwrap();
    advance(DOUBT).await;
    directory.believe();
    assert_eq!(is_offered(&known), Some(true));
}

#[tokio::test(start_paused = true)]
async fn each_type_is_asked_for_once_and_given_up_when_it_is_not_used() {
    let directory = Directory::new();
    let (requests, mut sent) = mpsc::channel(REQUESTS);
    let used = followed(&directory, "Used");
    drop(followed(&directory, "Unused"));
    directory.ask(&requests).await;
    let mut add = sent.try_recv().unwrap().add;
    add.sort_unstable();
    assert_eq!(add, ["Unused", "Used"]);
    directory.ask(&requests).await;
    assert!(sent.try_recv().is_err(), "nothing is new");
    sleep(UNUSED).await;
    directory.sweep(&requests).await;
    assert_eq!(sent.try_recv().unwrap().remove, ["Unused"]);
    assert_eq!(directory.types().len(), 1);
    drop(used);
    directory.sweep(&requests).await;
    assert_eq!(sent.try_recv().unwrap().remove, ["Used"]);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_types_is_bounded() {
    let directory = Directory::new();
    for number in 0..ACTOR_TYPES_PER_STREAM_LIMIT {
        followed(&directory, &format!("T{number}"));
    }
    assert!(directory.follow(&Arc::from("more")).is_none());
    followed(&directory, "T0");
}

#[tokio::test(start_paused = true)]
async fn no_connection_is_opened_before_a_type_is_called() {
    let directory = Directory::new();
    let control = Arc::new(NoControl::default());
    let link = Arc::clone(&control) as Arc<dyn ControlLink>;
    tokio::spawn(Arc::clone(&directory).run(link));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(control.connections(), 0);
    followed(&directory, "Cart");
    sleep(Duration::from_millis(1)).await;
    assert_eq!(control.connections(), 1);
}
