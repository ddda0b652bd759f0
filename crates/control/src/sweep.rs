//! Forgets join tokens and join secrets some time after they expired, and the keys of instances that
//! can renew no more. Until then a late comer gets the answer that a token expired, not that it never
//! existed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tollway_store::{Entry, Expected, KeyRange, Store, Transaction};
use tracing::{debug, warn};

use crate::clock::{later, unix_now_ms};
use crate::instance_keys::InstanceKeys;
use crate::key::{JOIN_PREFIX, TOKEN_PREFIX};
use crate::stored::{JoinSecret, Token};

const EVERY: Duration = Duration::from_secs(600);
/// How long something expired is remembered.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
const PAGE_ENTRIES: usize = 500;

pub(crate) async fn run(store: Store, keys: Arc<InstanceKeys>) {
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
    }
}

async fn sweep(store: &Store, prefix: &'static str, expires_at_unix_ms: impl Fn(&Entry) -> u64) {
    let range = KeyRange::prefix(prefix);
    let mut after: Option<Bytes> = None;
    loop {
        let page = match store.list(&range, after.as_deref(), PAGE_ENTRIES).await {
            Ok(page) => page,
            Err(reason) => return warn!(%reason, "expired tokens were not swept"),
        };
        let now = unix_now_ms();
        for entry in &page.entries {
            if now < later(expires_at_unix_ms(entry), REMEMBERED) {
                continue;
            }
            let key = entry.key.clone();
            let delete = Transaction::new()
                .when(key.clone(), Expected::Revision(entry.revision))
                .delete(key);
            if let Err(reason) = store.transact(delete).await {
                debug!(%reason, "an expired token was not swept; the next round tries again");
            }
        }
        after = page.entries.last().map(|entry| entry.key.clone());
        if !page.more {
            return;
        }
    }
}
