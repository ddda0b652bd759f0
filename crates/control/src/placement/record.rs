//! What of an actor type outlives the control plane: the apps that may host it, and what its hosts were
//! granted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tollway_actors::placement::{Epoch, Grants, Shard, ShardSet, TypeApps};
use tollway_model::{Instance, Label};
use tollway_store::{KeyRange, ReadError, Store};

use super::host::Host;
use crate::stored::{ActorGrant, ActorHost, ActorType};

/// Start of the keys of actor types. They are no part of what data planes see.
const TYPE_PREFIX: &str = "actors/type/";
/// The last number that a grant is known to have had.
pub(super) const LAST_EPOCH_KEY: &str = "actors/epoch";
/// Records read at once.
const PAGE: usize = 1_000;

/// One actor type of a namespace, as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TypeRecord {
    pub(super) apps: TypeApps<Label>,
    pub(super) grants: Grants<Host>,
}

/// What an earlier control plane has stored: types by namespace and name.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) last: Option<u64>,
    pub(super) types: BTreeMap<Label, BTreeMap<String, TypeRecord>>,
}

/// The key of an actor type, which may have any bytes but NUL.
pub(super) fn key(namespace: &Label, actor_type: &str) -> Bytes {
    format!("{TYPE_PREFIX}{}/{actor_type}", namespace.to_lower()).into()
}

/// `None` for what this version does not write.
fn parse_key(key: &[u8]) -> Option<(Label, String)> {
    let text = std::str::from_utf8(key).ok()?.strip_prefix(TYPE_PREFIX)?;
    let (namespace, actor_type) = text.split_once('/')?;
    Some((Label::new(namespace).ok()?, actor_type.to_owned()))
}

/// Reads what is left.
pub(super) async fn read(store: &Store) -> Result<Left, ReadError> {
    let last = store.get(LAST_EPOCH_KEY.as_bytes()).await?;
    let number = |value: Bytes| std::str::from_utf8(&value).ok()?.parse().ok();
    let last = last.and_then(|entry| number(entry.value));
    let range = KeyRange::prefix(TYPE_PREFIX);
    let mut types: BTreeMap<Label, BTreeMap<String, TypeRecord>> = BTreeMap::new();
    let mut after: Option<Bytes> = None;
    loop {
        let page = store.list(&range, after.as_deref(), PAGE).await?;
        for entry in &page.entries {
            let record = parse_key(&entry.key).zip(TypeRecord::decode(&entry.value));
            if let Some(((namespace, actor_type), record)) = record {
                types.entry(namespace).or_default().insert(actor_type, record);
            }
        }
        after = page.entries.last().map(|entry| entry.key.clone());
        if !page.more {
            break;
        }
    }
    Ok(Left { last, types })
}

impl TypeRecord {
    pub(super) fn encode(&self) -> Bytes {
        let mut hosts: BTreeMap<&Host, Vec<ActorGrant>> = BTreeMap::new();
        for ((host, epoch), shards) in &self.grants {
            let shards = shards.iter().map(|shard| shard.number() as u32).collect();
            hosts.entry(host).or_default().push(ActorGrant { epoch: epoch.0, shards });
        }
        let host = |(host, grants): (&Host, Vec<ActorGrant>)| ActorHost {
            app: host.app.to_string(),
            instance: host.instance.to_string(),
            life: host.life,
            grants,
        };
        let record = ActorType {
            apps: self.apps.apps().map(Label::to_string).collect(),
            is_named: self.apps.is_named(),
            is_shared: self.apps.is_shared(),
            vacant_since_unix_s: self.apps.vacant_since().map_or(0, |since| since.as_secs()),
            hosts: hosts.into_iter().map(host).collect(),
        };
        record.encode_to_vec().into()
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let record = ActorType::decode(value).ok()?;
        let label = |text: &String| Label::new(text).ok();
        let apps: Option<BTreeSet<Label>> = record.apps.iter().map(label).collect();
        let vacant_since = Some(record.vacant_since_unix_s).filter(|since| *since > 0);
        let mut grants = Grants::new();
        for ActorHost { app, instance, life, grants: granted } in record.hosts {
            let instance = Instance::new(&instance).ok()?;
            let host = Host { app: Label::new(&app).ok()?, instance, life };
            for ActorGrant { epoch, shards } in granted {
                let shards: ShardSet =
                    shards.iter().filter_map(|number| Shard::new(*number as usize)).collect();
                grants.insert((host.clone(), Epoch(epoch)), shards);
            }
        }
        let since = vacant_since.map(Duration::from_secs);
        Some(Self {
            apps: TypeApps::restored(apps?, (record.is_named, record.is_shared), since),
            grants,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    #[test]
    fn keys_read_back_whatever_a_type_is_called() {
        for name in ["Cart", "a/b", "/", " |@\u{1}"] {
            let stored = key(&label("Shop"), name);
            assert_eq!(parse_key(&stored), Some((label("shop"), name.to_owned())));
        }
        for wrong in ["actors/type/shop", "actors/epoch", "mesh/"] {
            assert_eq!(parse_key(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_record_reads_back() {
        let host = |life| Host { app: label("cart"), instance: label("one"), life };
        let some: ShardSet = [0, 7, 1023].into_iter().filter_map(Shard::new).collect();
        let grants = Grants::from([
            ((host(u64::MAX), Epoch(1 << 52)), some.clone()),
            ((host(u64::MAX), Epoch(9)), Shard::all().filter(|s| !some.contains(*s)).collect()),
            ((host(7), Epoch(3)), ShardSet::default()),
        ]);
        let apps = BTreeSet::from([label("cart"), label("Next")]);
        let since = Some(Duration::from_secs(1_800_000_000));
        for (is_named, is_shared, since) in
            [(true, false, None), (false, false, since), (false, true, since)]
        {
            let apps = TypeApps::restored(apps.clone(), (is_named, is_shared), since);
            let record = TypeRecord { apps, grants: grants.clone() };
            assert_eq!(TypeRecord::decode(&record.encode()), Some(record));
        }
        assert_eq!(TypeRecord::decode(b"\xff"), None);
    }

    #[test]
    fn the_largest_record_is_a_value_that_the_store_takes() {
        let long = "x".repeat(63);
        let host = |n: usize| {
            let instance = label(&format!("{}{n:04}", &long[4..]));
            Host { app: label(&long), instance, life: u64::MAX }
        };
        let one = |shard: Shard| {
            let epoch = Epoch((1 << 52) + shard.number() as u64);
            ((host(shard.number()), epoch), [shard].into_iter().collect())
        };
        let apps = TypeApps::first(label(&long), true);
        let record = TypeRecord { apps, grants: Shard::all().map(one).collect() };
        let bytes = record.encode().len();
        assert!(bytes < tollway_store::Limits::default().value_bytes / 4, "{bytes}");
    }
}
