//! The location of an actor: what a caller knows of it, how long it waits, and its error if no host
//! takes the call.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tollway_actors::placement::{Actor, Shard};
use tollway_model::{ErrorCode, ServiceName};
use tollway_wire::ActorHost;

use super::call::Call;
use super::owners::KnownOwners;
use super::problem::Problem;

/// How long a call waits for a host of its actor. It is longer than the lease of a host that has
/// crashed (3 s) and the time that the next host needs to begin.
pub(crate) const PLACED_WITHIN: Duration = Duration::from_secs(10);
/// How long a call waits until the control plane has sent the hosts of a type.
pub(super) const OWNERS_WITHIN: Duration = Duration::from_secs(5);
/// How long a call waits in daprd's place for a host that offers the type. Dapr asks five times more, a
/// second apart.
pub(super) const OFFERED_WITHIN: Duration = Duration::from_secs(5);
/// Shortest and longest wait between two attempts while the known location does not change.
const SHORTEST_WAIT: Duration = Duration::from_millis(5);
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// A call waits for this part of the time since its first attempt, so it takes at most that much
/// longer than necessary.
const WAIT_SHARE: u32 = 4;

/// The location of an actor, as far as this sidecar knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ActorLocation {
    /// The control plane has not sent the hosts of the type.
    Unknown,
    /// No host offers the type.
    NotOffered,
    /// At this host, or at none for the moment.
    At(Option<ActorHost>),
}

impl ActorLocation {
    pub(super) fn of(known: &KnownOwners, shard: Shard) -> Self {
        match known {
            KnownOwners::Unknown => Self::Unknown,
            KnownOwners::NotOffered => Self::NotOffered,
            KnownOwners::Owners(owners) => Self::At(owners.shards[shard.number()].clone()),
        }
    }
}

/// Returns when another host than `former` has the shard. A host that gave the shard up in order has
/// answered by then; one that has crashed or hangs has lost its lease.
pub(super) async fn taken_over(
    mut known: watch::Receiver<KnownOwners>,
    shard: Shard,
    former: &ActorHost,
) {
    let is_another = |known: &KnownOwners| match ActorLocation::of(known, shard) {
        ActorLocation::At(Some(owner)) => owner != *former,
        ActorLocation::At(None) | ActorLocation::Unknown | ActorLocation::NotOffered => false,
    };
    if known.wait_for(is_another).await.is_err() {
        // No further change will come.
        std::future::pending::<()>().await;
    }
}

/// How long a call waits before its next attempt, when its first was `since` ago.
pub(super) fn pause(since: Duration) -> Duration {
    (since / WAIT_SHARE).clamp(SHORTEST_WAIT, LONGEST_WAIT)
}

/// Splits a type `TYPE@APP.NAMESPACE.NETWORK` into the type and the app that offers it. `None` for
/// every other name.
pub(super) fn split_remote_type(
    actor_type: &str,
    home: &ServiceName,
) -> Option<(Arc<str>, ServiceName)> {
    let (actor_type, service) = actor_type.rsplit_once('@')?;
    let is_whole = service.split('.').count() == 3 && !actor_type.is_empty();
    let service = ServiceName::parse(service, home).ok().filter(|_| is_whole)?;
    Some((Arc::from(actor_type), service))
}

/// No host offers the type of the actor.
pub(super) fn no_address(actor: &Actor) -> Problem {
    let Actor { actor_type, id } = actor;
    let text = format!("did not find address for actor '{actor_type}||{id}'");
    Problem::new(ErrorCode::ActorNoAddress, text)
}

/// An app of another network or namespace calls an actor through one of the apps that offer its type,
/// and another of them hosts it.
pub(super) fn hosted_by_another(actor: &Actor, owner: &ActorHost) -> Problem {
    let Actor { actor_type, id } = actor;
    let text = format!(
        "actor '{actor_type}||{id}' is hosted by {0}: call type '{actor_type}@{0}'",
        owner.service
    );
    Problem::new(ErrorCode::ActorNoAddress, text)
}

/// Reminders are asked for by an app that does not host the type of their actors.
pub(super) fn reminders_not_hosted() -> Problem {
    let text = "operations on actor reminders are only possible on hosted actor types";
    Problem::new(ErrorCode::ActorReminderNotHosted, text)
}

/// No app of another network, or of another namespace, took the call in time.
pub(super) fn unplaced_remotely(actor: &Actor, service: &ServiceName) -> Problem {
    let Actor { actor_type, id } = actor;
    let text = format!(
        "no host took the call of actor '{actor_type}||{id}' of {service} within {} s",
        PLACED_WITHIN.as_secs()
    );
    Problem::new(ErrorCode::ActorUnplaced, text)
}

/// No host took the call in time; for the own app the text has what is known of the actor's location.
pub(super) fn unplaced(call: &Call, known: &KnownOwners) -> Problem {
    let Actor { actor_type, id } = &call.actor;
    let state = match ActorLocation::of(known, Shard::of(id)) {
        ActorLocation::Unknown => {
            let text = format!(
                "the control plane has not said within {} s who runs actors of type '{actor_type}'",
                OWNERS_WITHIN.as_secs()
            );
            return Problem::new(ErrorCode::ActorNoPlacement, text);
        }
        ActorLocation::At(Some(_)) if call.caller.is_some() => {
            "its host takes no calls at the moment".to_owned()
        }
        ActorLocation::At(Some(owner)) => {
            format!("its host is workload {} of {}", owner.instance, owner.service)
        }
        ActorLocation::At(None) | ActorLocation::NotOffered => {
            "it has no host at the moment".to_owned()
        }
    };
    let text = format!(
        "no host took the call of actor '{actor_type}||{id}' within {} s: {state}",
        PLACED_WITHIN.as_secs()
    );
    Problem::new(ErrorCode::ActorUnplaced, text)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use hyper::HeaderMap;
    use tollway_model::{Label, SpiffeId};
    use tollway_proxy::ActorCaller;

    use super::super::names::Work;
    use super::super::testing::{actor, host, owners, service};
    use super::*;

    #[test]
    fn a_type_names_its_app_only_with_namespace_and_network() {
        let home = service("web");
        let split = |text| {
            let (actor_type, service) = split_remote_type(text, &home)?;
            Some((actor_type.to_string(), service.to_string()))
        };
        let remote = ("Cart".to_owned(), "stock.shop.east".to_owned());
        assert_eq!(split("Cart@stock.shop.east"), Some(remote));
        let odd = ("a@b".to_owned(), "stock.shop.east".to_owned());
        assert_eq!(split("a@b@stock.shop.east"), Some(odd));
        for near in ["Cart", "Cart@stock", "Cart@stock.shop", "@stock.shop.east", "Cart@a..b"] {
            assert_eq!(split(near), None, "{near}");
        }
    }

    #[test]
    fn waits_grow_with_the_time_that_a_call_has_taken() {
        let pause_ms = |since| pause(Duration::from_millis(since)).as_millis();
        assert_eq!([0, 20, 40, 400, 10_000].map(pause_ms), [5, 5, 10, 100, 100]);
    }

    #[test]
    fn a_location_is_what_is_known_of_the_shard() {
        let shard = Shard::of("7");
        let of = |known: &KnownOwners| ActorLocation::of(known, shard);
        assert_eq!(of(&KnownOwners::Unknown), ActorLocation::Unknown);
        assert_eq!(of(&KnownOwners::NotOffered), ActorLocation::NotOffered);
        assert_eq!(of(&owners(None)), ActorLocation::At(None));
        assert_eq!(of(&owners(Some(host("a")))), ActorLocation::At(Some(host("a"))));
    }

    #[test]
    fn the_error_of_a_call_that_no_host_took_names_the_known_host() {
        let mut call = Call {
            actor: actor("7"),
            work: Work::ListReminders,
            fields: HeaderMap::new(),
            body: Bytes::new(),
            caller: None,
        };
        let of = |known: &KnownOwners| unplaced(&call, known);
        let unknown = of(&KnownOwners::Unknown);
        assert_eq!(unknown.code, ErrorCode::ActorNoPlacement);
        assert!(unknown.text.contains("has not said within 5 s"), "{}", unknown.text);
        let nowhere = of(&owners(None));
        assert_eq!(nowhere.code, ErrorCode::ActorUnplaced);
        assert!(nowhere.text.ends_with("within 10 s: it has no host at the moment"));
        let at = of(&owners(Some(host("a"))));
        assert!(at.text.ends_with("its host is workload a of cart.default.west"), "{}", at.text);
        let spiffe = SpiffeId::parse("spiffe://west.tollway/ns/lowly/evil").unwrap();
        call.caller = Some(ActorCaller { spiffe, network: Label::new("west").unwrap() });
        let at = unplaced(&call, &owners(Some(host("a"))));
        assert!(at.text.ends_with("its host takes no calls at the moment"), "{}", at.text);
    }

    #[tokio::test(start_paused = true)]
    async fn an_actor_is_taken_over_when_another_host_has_it() {
        let (known, changes) = watch::channel(owners(Some(host("a"))));
        let former = host("a");
        let shard = Shard::of("7");
        let waiting = tokio::spawn(async move { taken_over(changes, shard, &former).await });
        for same in [owners(None), KnownOwners::NotOffered, owners(Some(host("a")))] {
            known.send_replace(same);
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(!waiting.is_finished());
        }
        known.send_replace(owners(Some(host("b"))));
        waiting.await.unwrap();
    }
}
