//! Forgets what has ended: join tokens, join secrets, last certificates and revocations of
//! instances, and the keys of instances that can renew no more. Some time later, so that a late comer
//! gets the answer that it expired, not that it never existed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tollway_model::Label;
use tollway_store::{Entry, Expected, KeyRange, Store, Transaction};
use tracing::{debug, warn};

use crate::clock::{later, unix_now_ms};
use crate::hub::Hub;
use crate::instance_keys::InstanceKeys;
use crate::issued::{InstanceCounts, IssuedLog};
use crate::key::{ISSUED_PREFIX, JOIN_PREFIX, TOKEN_PREFIX};
use crate::revoke;
use crate::stored::{Issued, JoinSecret, Token};
use crate::tokens::use_key;

const EVERY: Duration = Duration::from_secs(600);
/// How long something expired is remembered.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
const PAGE_ENTRIES: usize = 500;

/// What is swept.
pub(crate) struct Swept {
    pub(crate) store: Store,
    pub(crate) hub: Arc<Hub>,
    pub(crate) keys: Arc<InstanceKeys>,
    pub(crate) issued: IssuedLog,
    pub(crate) network: Label,
}

pub(crate) async fn run(Swept { store, hub, keys, issued, network }: Swept) {
    let mut tick = tokio::time::interval(EVERY);
    loop {
        tick.tick().await;
        sweep(&store, TOKEN_PREFIX, |entry| {
            Token::decode(entry.value.clone()).map_or(0, |token| token.expires_at_unix_ms)
        })
        .await;
        sweep(&store, JOIN_PREFIX, |entry| {
            JoinSecret::decode(entry.value.clone()).map_or(0, |secret| secret.expires_at_unix_ms)
        })
        .await;
        keys.sweep().await;
        let left = sweep(&store, ISSUED_PREFIX, |entry| {
            Issued::decode(entry.value.clone()).map_or(0, |record| record.expires_at_unix_ms)
        })
        .await;
        left.into_iter().for_each(|counted| issued.set_instances(counted));
        revoke::forget_ended(&store, &hub, &network, keys.grace()).await;
    }
}

/// Returns the entries that are left, counted by what follows the prefix, if all could be read.
async fn sweep(
    store: &Store,
    prefix: &'static str,
    expires_at_unix_ms: impl Fn(&Entry) -> u64,
) -> Option<InstanceCounts> {
    let range = KeyRange::prefix(prefix);
    let (mut after, mut left): (Option<Bytes>, _) = (None, InstanceCounts::default());
    loop {
        let page = match store.list(&range, after.as_deref(), PAGE_ENTRIES).await {
            Ok(page) => page,
            Err(reason) => {
                warn!(%reason, "what has expired was not swept");
                return None;
            }
        };
        let now = unix_now_ms();
        for entry in &page.entries {
            if now < later(expires_at_unix_ms(entry), REMEMBERED) {
                left.add_key(&entry.key);
                continue;
            }
            let key = entry.key.clone();
            let guarded = Transaction::new().when(key.clone(), Expected::Revision(entry.revision));
            let mut delete = guarded.delete(key.clone());
            if let Some(id) = key.strip_prefix(TOKEN_PREFIX.as_bytes()) {
                delete = delete.delete(use_key(&String::from_utf8_lossy(id)));
            }
            if let Err(reason) = store.transact(delete).await {
                debug!(%reason, "something expired was not swept; the next round tries again");
            }
        }
        after = page.entries.last().map(|entry| entry.key.clone());
        if !page.more {
            return Some(left);
        }
    }
}
