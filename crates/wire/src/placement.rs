//! Which host runs which actors.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use tollway_actors::placement::{Epoch, Held, Order, Owners, SHARDS, Shard, ShardSet};
use tollway_model::{Instance, ServiceName};

use crate::{
    ACTOR_HOSTS_PER_TYPE_LIMIT, ACTOR_TYPE_LIMIT_BYTES, ACTOR_TYPES_PER_HOST_LIMIT, ConvertError,
    instance, service_name, v1,
};

/// Bytes of a set of shards.
const SET_BYTES: usize = SHARDS / 8;
const _: () = assert!(ACTOR_HOSTS_PER_TYPE_LIMIT == SHARDS, "each host has a shard at least");

/// An app that runs actors, as callers reach it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ActorHost {
    pub service: ServiceName,
    pub instance: Instance,
}

/// Reads the name of an actor type: anything of 1 to 256 bytes.
///
/// # Errors
/// [`ConvertError::ActorType`].
pub fn actor_type(text: &str) -> Result<&str, ConvertError> {
    if text.is_empty() || text.len() > ACTOR_TYPE_LIMIT_BYTES || text.contains('\0') {
        return Err(ConvertError::ActorType { length: text.len() });
    }
    Ok(text)
}

/// A set of shards as it travels.
#[must_use]
pub fn shard_bytes(shards: &ShardSet) -> Vec<u8> {
    let mut bytes = vec![0; SET_BYTES];
    for shard in shards.iter() {
        bytes[shard.number() / 8] |= 1 << (shard.number() % 8);
    }
    bytes
}

/// Reads a set of shards.
///
/// # Errors
/// [`ConvertError::Shards`].
pub fn shard_set(bytes: &[u8]) -> Result<ShardSet, ConvertError> {
    if bytes.len() != SET_BYTES {
        return Err(ConvertError::Shards { length: bytes.len() });
    }
    let is_in = |shard: &Shard| bytes[shard.number() / 8] & (1 << (shard.number() % 8)) != 0;
    Ok(Shard::all().filter(is_in).collect())
}

/// Shards by the epoch of their grant, as they travel.
#[must_use]
pub fn grants(held: &BTreeMap<Shard, Epoch>) -> Vec<v1::Grant> {
    let mut by_epoch: BTreeMap<Epoch, ShardSet> = BTreeMap::new();
    for (shard, epoch) in held {
        by_epoch.entry(*epoch).or_default().insert(*shard);
    }
    by_epoch.into_iter().map(|(epoch, shards)| grant(epoch, &shards)).collect()
}

fn grant(epoch: Epoch, shards: &ShardSet) -> v1::Grant {
    v1::Grant { epoch: epoch.0, shards: shard_bytes(shards) }
}

/// Reads one grant.
///
/// # Errors
/// [`ConvertError::Shards`].
pub fn read_grant(grant: &v1::Grant) -> Result<(Epoch, ShardSet), ConvertError> {
    Ok((Epoch(grant.epoch), shard_set(&grant.shards)?))
}

/// Reads what a host offers and holds. Of a shard named twice the later grant counts.
///
/// # Errors
/// [`ConvertError`] for the first thing that is wrong.
pub fn held(types: &[v1::HeldType]) -> Result<Held, ConvertError> {
    if types.len() > ACTOR_TYPES_PER_HOST_LIMIT {
        let (count, limit) = (types.len(), ACTOR_TYPES_PER_HOST_LIMIT);
        return Err(ConvertError::TooMany { field: "types", count, limit });
    }
    let mut held = Held::new();
    for offered in types {
        let shards = held.entry(actor_type(&offered.actor_type)?.to_owned()).or_default();
        for grant in &offered.grants {
            let (epoch, granted) = read_grant(grant)?;
            shards.extend(granted.iter().map(|shard| (shard, epoch)));
        }
    }
    Ok(held)
}

impl From<&Order> for v1::HostResponse {
    fn from(order: &Order) -> Self {
        let response = match order {
            Order::Grant { actor_type, epoch, shards } => {
                v1::host_response::Response::Granted(v1::Granted {
                    actor_type: actor_type.clone(),
                    grant: Some(grant(*epoch, shards)),
                })
            }
            Order::GiveBack { actor_type, shards } => {
                v1::host_response::Response::GiveBack(v1::GiveBack {
                    actor_type: actor_type.clone(),
                    shards: shard_bytes(shards),
                })
            }
        };
        Self { response: Some(response) }
    }
}

/// Reads an order; `None` where the response is none.
///
/// # Errors
/// [`ConvertError`] for the first thing that is wrong.
pub fn order(response: &v1::HostResponse) -> Result<Option<Order>, ConvertError> {
    use v1::host_response::Response;
    Ok(match &response.response {
        Some(Response::Granted(granted)) => {
            let stated = granted.grant.as_ref().ok_or(ConvertError::Missing { field: "grant" })?;
            let (epoch, shards) = read_grant(stated)?;
            let actor_type = actor_type(&granted.actor_type)?.to_owned();
            Some(Order::Grant { actor_type, epoch, shards })
        }
        Some(Response::GiveBack(back)) => {
            let actor_type = actor_type(&back.actor_type)?.to_owned();
            Some(Order::GiveBack { actor_type, shards: shard_set(&back.shards)? })
        }
        Some(Response::Entered(_) | Response::LeaseKept(_) | Response::Left(_)) | None => None,
    })
}

/// The owners of a type as they travel.
#[must_use]
pub fn owners<H: Eq + Hash>(
    actor_type: &str,
    owners: &Owners<H>,
    host: impl Fn(&H) -> ActorHost,
) -> v1::Owners {
    let mut places = HashMap::new();
    let mut hosts = Vec::new();
    let mut shards = Vec::with_capacity(SHARDS);
    for owner in &owners.shards {
        let place = owner.as_ref().map_or(0, |owner| {
            *places.entry(owner).or_insert_with(|| {
                let ActorHost { service, instance } = host(owner);
                let service = Some(v1::ServiceName::from(&service));
                hosts.push(v1::ActorHost { service, instance: instance.to_string() });
                hosts.len() as u32
            })
        });
        shards.push(place);
    }
    v1::Owners { actor_type: actor_type.to_owned(), version: owners.version, hosts, shards }
}

/// Reads the owners of a type; `None` where no host offers it.
///
/// # Errors
/// [`ConvertError`] for the first thing that is wrong.
pub fn read_owners(message: &v1::Owners) -> Result<Option<Owners<ActorHost>>, ConvertError> {
    if message.hosts.len() > ACTOR_HOSTS_PER_TYPE_LIMIT {
        let (count, limit) = (message.hosts.len(), ACTOR_HOSTS_PER_TYPE_LIMIT);
        return Err(ConvertError::TooMany { field: "hosts", count, limit });
    }
    let mut hosts = Vec::with_capacity(message.hosts.len());
    for host in &message.hosts {
        hosts.push(ActorHost {
            service: service_name(host.service.as_ref())?,
            instance: instance(&host.instance)?,
        });
    }
    if message.shards.is_empty() && hosts.is_empty() {
        return Ok(None);
    }
    if message.shards.len() != SHARDS {
        return Err(ConvertError::Shards { length: message.shards.len() });
    }
    let mut shards = Vec::with_capacity(SHARDS);
    for place in &message.shards {
        let host = (*place as usize)
            .checked_sub(1)
            .map(|at| hosts.get(at).cloned().ok_or(ConvertError::ActorHost { place: *place }));
        shards.push(host.transpose()?);
    }
    Ok(Some(Owners { version: message.version, shards }))
}

#[cfg(test)]
mod tests {
    use tollway_model::Label;

    use super::*;

    fn shards(numbers: &[usize]) -> ShardSet {
        numbers.iter().filter_map(|number| Shard::new(*number)).collect()
    }

    fn host(text: &str) -> ActorHost {
        let label = |text: &str| Label::new(text).unwrap();
        let service =
            ServiceName { app: label(text), namespace: label("shop"), network: label("west") };
        ActorHost { service, instance: label(text) }
    }

    #[test]
    fn orders_read_back() {
        let all = [
            Order::Grant {
                actor_type: "cart".into(),
                epoch: Epoch(1 << 52),
                shards: shards(&[0, 7, 8, 1023]),
            },
            Order::GiveBack { actor_type: "a|b@c d".into(), shards: shards(&[]) },
        ];
        for stated in all {
            assert_eq!(order(&(&stated).into()), Ok(Some(stated)));
        }
        let kept = v1::host_response::Response::LeaseKept(v1::LeaseKept {});
        assert_eq!(order(&v1::HostResponse { response: Some(kept) }), Ok(None));
    }

    #[test]
    fn what_is_held_reads_back() {
        let cart = BTreeMap::from([
            (Shard::of("a"), Epoch(3)),
            (Shard::of("b"), Epoch(3)),
            (Shard::of("c"), Epoch(9)),
        ]);
        let stated = [
            v1::HeldType { actor_type: "cart".into(), grants: grants(&cart) },
            v1::HeldType { actor_type: "meter".into(), grants: Vec::new() },
        ];
        let expected = Held::from([("cart".into(), cart), ("meter".into(), BTreeMap::new())]);
        assert_eq!(held(&stated), Ok(expected));
    }

    #[test]
    fn owners_read_back() {
        let mut stated = Owners { version: 12, shards: vec![None; SHARDS] };
        let nobody_yet = owners("cart", &stated, ActorHost::clone);
        assert_eq!(read_owners(&nobody_yet), Ok(Some(stated.clone())));
        stated.shards[0] = Some(host("one"));
        stated.shards[1] = Some(host("two"));
        stated.shards[1023] = Some(host("one"));
        let message = owners("cart", &stated, ActorHost::clone);
        assert_eq!(message.hosts.len(), 2);
        assert_eq!(read_owners(&message), Ok(Some(stated)));
        let nobody = v1::Owners { actor_type: "cart".into(), ..Default::default() };
        assert_eq!(read_owners(&nobody), Ok(None));
    }

    #[test]
    fn owners_that_make_no_sense_are_refused() {
        let one =
            v1::ActorHost { service: Some((&host("one").service).into()), instance: "one".into() };
        let message = |hosts: &[v1::ActorHost], shards: Vec<u32>| v1::Owners {
            hosts: hosts.to_vec(),
            shards,
            ..Default::default()
        };
        let one = [one];
        let cases = [
            (message(&one, vec![2; SHARDS]), "held by host 2"),
            (message(&one, vec![1; SHARDS - 1]), "the length 1023"),
            (message(&one, Vec::new()), "the length 0"),
            (message(&[v1::ActorHost::default()], vec![1; SHARDS]), "`service` is missing"),
            (message(&vec![v1::ActorHost::default(); 1025], Vec::new()), "1025 entries"),
        ];
        for (message, reason) in cases {
            let error = read_owners(&message).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
