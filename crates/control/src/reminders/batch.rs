//! Changes that are decided and not written yet.

use std::collections::BTreeMap;

use bytes::Bytes;
use tollway_store::{Op, ReadError, Store, Transaction};

/// Keys with their new values, `None` for none; later changes see earlier ones.
#[derive(Default, Debug)]
pub(super) struct Batch {
    changes: BTreeMap<Bytes, Option<Bytes>>,
    bytes: usize,
}

impl Batch {
    /// A batch is written when it has this many keys.
    const KEYS: usize = 1024;
    /// A batch is written when it has this many bytes.
    const BYTES: usize = 4 << 20;

    /// What stands under a key once the batch is written.
    pub(super) async fn get(&self, store: &Store, key: &Bytes) -> Result<Option<Bytes>, ReadError> {
        match self.changes.get(key) {
            Some(value) => Ok(value.clone()),
            None => Ok(store.get(key).await?.map(|entry| entry.value)),
        }
    }

    pub(super) fn set(&mut self, key: Bytes, value: Option<Bytes>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        self.changes.insert(key, value);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.changes.len() >= Self::KEYS || self.bytes >= Self::BYTES
    }

    /// Takes everything out.
    pub(super) fn take(&mut self) -> Transaction {
        let Self { changes, .. } = std::mem::take(self);
        let op = |(key, value)| match value {
            Some(value) => Op::Put { key, value, lease: None },
            None => Op::Delete { key },
        };
        Transaction { guards: Vec::new(), ops: changes.into_iter().map(op).collect() }
    }
}
