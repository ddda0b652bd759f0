//! `state.in-memory`: entries in this process, gone when it ends.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::StateError;
use crate::etag::{Step, plan_steps};
use crate::limits::MEMORY_BYTES;
use crate::model::{Capability, Condition, Consistency, Entry, Fence, Set, Transaction};
use crate::store::StateStore;

/// The time between two removals of expired entries.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Entries in memory, at most [`MEMORY_BYTES`] of keys and values.
#[derive(Default)]
pub struct MemoryStore {
    content: Mutex<Content>,
}

#[derive(Default)]
struct Content {
    entries: HashMap<String, StoredEntry>,
    /// Of keys and values.
    bytes: usize,
    /// Etags given so far.
    writes: u64,
    /// The last time expired entries were removed.
    swept: Option<SystemTime>,
}

struct StoredEntry {
    value: Bytes,
    etag: u64,
    expires: Option<SystemTime>,
}

impl StoredEntry {
    fn entry(&self) -> Entry {
        Entry {
            value: self.value.clone(),
            etag: Some(self.etag.to_string()),
            expires: self.expires,
        }
    }
}

#[async_trait]
impl StateStore for MemoryStore {
    fn capabilities(&self) -> &'static [Capability] {
        &[
            Capability::Etag,
            Capability::Transactional,
            Capability::Ttl,
            Capability::DeleteWithPrefix,
            Capability::KeysLike,
            Capability::ActorStateStore,
        ]
    }

    async fn get(&self, key: &str, _: Consistency) -> Result<Option<Entry>, StateError> {
        Ok(self.content().live(key, SystemTime::now()).map(StoredEntry::entry))
    }

    async fn bulk_get(&self, keys: &[String]) -> Result<Vec<Option<Entry>>, StateError> {
        let (content, now) = (self.content(), SystemTime::now());
        Ok(keys.iter().map(|key| content.live(key, now).map(StoredEntry::entry)).collect())
    }

    async fn transact(&self, transaction: Transaction) -> Result<(), StateError> {
        let steps = plan_steps(&transaction)?;
        let (mut content, now) = (self.content(), SystemTime::now());
        content.sweep(now);
        if let Some(fence) = &transaction.fence {
            content.check_fence(fence)?;
        }
        for step in &steps {
            content.check(step, now)?;
        }
        content.check_room(&steps, transaction.fence.as_ref())?;
        if let Some(fence) = &transaction.fence {
            content.put(&fence.key, fence.number.to_string().into(), None);
        }
        for step in &steps {
            match step.put {
                Some(set) => content.put(step.key, set.value.bytes().clone(), expiry(set, now)),
                None => content.remove(step.key),
            }
        }
        Ok(())
    }
}

impl MemoryStore {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content {
    fn live(&self, key: &str, now: SystemTime) -> Option<&StoredEntry> {
        let stored = self.entries.get(key)?;
        stored.expires.is_none_or(|expires| expires > now).then_some(stored)
    }

    fn check_fence(&self, fence: &Fence) -> Result<(), StateError> {
        let Some(stored) = self.entries.get(&fence.key) else { return Ok(()) };
        let number = std::str::from_utf8(&stored.value).ok().and_then(|text| text.parse().ok());
        let number: u64 = number.ok_or_else(|| StateError::Foreign {
            address: "in memory".to_owned(),
            key: fence.key.clone(),
            why: "it is no number".to_owned(),
        })?;
        if number > fence.number {
            return Err(StateError::Fenced { key: fence.key.clone(), number: fence.number });
        }
        Ok(())
    }

    fn check(&self, step: &Step<'_>, now: SystemTime) -> Result<(), StateError> {
        let found = self.live(step.key, now).map(|stored| stored.etag.to_string());
        let holds = match step.condition {
            Condition::None => true,
            Condition::Absent => found.is_none(),
            Condition::Etag(etag) => found.as_deref() == Some(etag),
        };
        if holds { Ok(()) } else { Err(StateError::mismatch(step.key, found)) }
    }

    /// What is freed counts, so that a full store can be written over and emptied.
    fn check_room(&self, steps: &[Step<'_>], fence: Option<&Fence>) -> Result<(), StateError> {
        let freed: usize = steps.iter().map(|step| self.size_of(step.key)).sum();
        let puts = steps.iter().filter_map(|step| step.put);
        let mut added: usize = puts.map(|set| set.key.len() + set.value.bytes().len()).sum();
        if let Some(fence) = fence.filter(|fence| !self.entries.contains_key(&fence.key)) {
            added += fence.key.len() + fence.number.to_string().len();
        }
        if added > freed && self.bytes - freed + added > MEMORY_BYTES {
            return Err(StateError::Full { limit: MEMORY_BYTES });
        }
        Ok(())
    }

    fn size_of(&self, key: &str) -> usize {
        self.entries.get(key).map_or(0, |stored| key.len() + stored.value.len())
    }

    fn put(&mut self, key: &str, value: Bytes, expires: Option<SystemTime>) {
        self.remove(key);
        self.bytes += key.len() + value.len();
        self.writes += 1;
        let stored = StoredEntry { value, etag: self.writes, expires };
        self.entries.insert(key.to_owned(), stored);
    }

    fn remove(&mut self, key: &str) {
        self.bytes -= self.size_of(key);
        self.entries.remove(key);
    }

    /// Forgets what has had its time.
    fn sweep(&mut self, now: SystemTime) {
        let recent =
            |swept: SystemTime| now.duration_since(swept).is_ok_and(|ago| ago < SWEEP_EVERY);
        if self.swept.is_some_and(recent) {
            return;
        }
        self.swept = Some(now);
        let bytes = &mut self.bytes;
        self.entries.retain(|key, stored| {
            let stays = stored.expires.is_none_or(|expires| expires > now);
            if !stays {
                *bytes -= key.len() + stored.value.len();
            }
            stays
        });
    }
}

fn expiry(set: &Set, now: SystemTime) -> Option<SystemTime> {
    set.ttl.seconds(None).map(|seconds| now + Duration::from_secs(seconds.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Delete, Value};

    #[tokio::test]
    async fn a_full_store_refuses_more_and_takes_less() {
        let store = MemoryStore::default();
        let value = Value::Bytes(vec![7; MEMORY_BYTES - 2].into());
        store.set(Set::new("a", value)).await.unwrap();
        let more = Set::new("b", Value::Bytes("12".into()));
        assert!(matches!(store.set(more.clone()).await, Err(StateError::Full { .. })));
        let small = Set::new("a", Value::Bytes("x".into()));
        store.set(small).await.unwrap();
        store.set(more).await.unwrap();
        for key in ["a", "b"] {
            store.delete(Delete::new(key)).await.unwrap();
        }
        assert_eq!(store.content().bytes, 0);
    }
}
