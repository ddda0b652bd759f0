//! A store that was put back from a copy: what the operator's command does to it, and how a control
//! plane notices one.
//!
//! A copy brings back what was spent, revoked and removed after it was made, and nothing in it shows
//! that. So the operator confirms it before a control plane runs over it: [`confirm_restored`] voids what
//! was given out and not used up, forgets keys that instances have replaced since, and names what else
//! the operator has to look at. The data planes of the network may have seen more than the store has;
//! that is logged and counted, and has no other effect, since a single workload could state it of any store.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use prost::Message;
use thiserror::Error;
use tollway_model::{ErrorCode, Instance, Revision, ServiceName};
use tollway_store::{
    Entry, KeyRange, Limits, OpenError, ReadError, SkipError, Store, TransactError, Transaction,
    skip_lost_revisions,
};
use tollway_telemetry::LogLimiter;
use tracing::error;

use crate::app::store_file;
use crate::catalogue::PinnedTrust;
use crate::clock::unix_now_ms;
use crate::key::{INSTANCE_PREFIX, JOIN_PREFIX, Key, MESH_PREFIX, TOKEN_PREFIX};
use crate::stored::{InstanceKeys, JoinSecret, Token};
use crate::{app_state, neighbours, reminders};

const PAGE_ENTRIES: usize = 500;

/// Why a store was not made good. The command can be repeated.
#[derive(Debug, Error)]
pub enum RestoredError {
    #[error(transparent)]
    Skip(#[from] SkipError),
    #[error("cannot open the store")]
    Open(#[from] OpenError),
    #[error("cannot read the store")]
    Read(#[from] ReadError),
    #[error("cannot write the store")]
    Write(#[from] TransactError),
}

/// What became of a store that was put back, and what the operator has to compare with what was done
/// since the copy was made.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Restored {
    /// From which its revisions go on.
    pub revision: u64,
    /// Join tokens that are void now.
    pub tokens: usize,
    /// Join bundles that are void now.
    pub bundles: usize,
    /// Instances whose keys are forgotten, so that those which they have had since renew.
    pub instances: usize,
    /// Networks that are joined, with the trust domain of each.
    pub joined: Vec<String>,
    /// Identities that are revoked.
    pub revoked: Vec<String>,
}

/// Makes the store in a directory good after it was put back from a copy. No control plane may run over
/// it.
///
/// # Errors
/// [`RestoredError`].
pub async fn confirm_restored(directory: &Path) -> Result<Restored, RestoredError> {
    let path = store_file(directory);
    let mut restored = Restored { revision: skip_lost_revisions(&path)?, ..Restored::default() };
    let others = [app_state::FILE_NAME, reminders::FILE_NAME, neighbours::FILE_NAME];
    for other in others.map(|name| directory.join(name)) {
        if other.exists() {
            skip_lost_revisions(&other)?;
        }
    }
    let store = Store::open_embedded(&path, Limits::default()).await?;
    let now = unix_now_ms();
    restored.tokens = change_all(&store, TOKEN_PREFIX, |entry| void_token(entry, now)).await?;
    restored.bundles = change_all(&store, JOIN_PREFIX, |entry| void_secret(entry, now)).await?;
    restored.instances = change_all(&store, INSTANCE_PREFIX, forget_keys).await?;
    read_all(&store, MESH_PREFIX, |entry| match Key::parse(&entry.key) {
        Some(Key::PeerTrust { .. }) => {
            let trust = PinnedTrust::read(&entry.value).ok().filter(|trust| !trust.pending);
            let name = |trust: PinnedTrust| format!("{} ({})", trust.network, trust.trust_domain);
            restored.joined.extend(trust.map(name));
        }
        Some(Key::Revoked(revocation)) => restored.revoked.push(revocation.to_string()),
        Some(_) | None => {}
    })
    .await?;
    Ok(restored)
}

/// What becomes of an entry.
enum Becomes {
    Value(Vec<u8>),
    Nothing,
}

/// A token that could enrol an instance is revoked: whether the use that is left in the copy is spent
/// since, or the token was taken back, nothing shows.
fn void_token(entry: &Entry, now_unix_ms: u64) -> Option<Becomes> {
    let token = Token::decode(entry.value.clone()).ok()?;
    let is_good = token.revoked_at_unix_ms == 0 && now_unix_ms < token.expires_at_unix_ms;
    let void = Token { revoked_at_unix_ms: now_unix_ms, ..token };
    is_good.then(|| Becomes::Value(void.encode_to_vec()))
}

/// The secret of a bundle ends, also one that a network has redeemed.
fn void_secret(entry: &Entry, now_unix_ms: u64) -> Option<Becomes> {
    let secret = JoinSecret::decode(entry.value.clone()).ok()?;
    let is_good = now_unix_ms < secret.expires_at_unix_ms;
    let void = JoinSecret { expires_at_unix_ms: now_unix_ms, ..secret };
    is_good.then(|| Becomes::Value(void.encode_to_vec()))
}

/// An instance has a key that the copy does not have, if it has renewed since: it would be taken for a
/// second holder, and barred. One that is barred stays so, and a pod enrols by its own token.
fn forget_keys(entry: &Entry) -> Option<Becomes> {
    let keys = InstanceKeys::decode(entry.value.clone()).ok()?;
    (!keys.is_barred && keys.pod.is_none()).then_some(Becomes::Nothing)
}

async fn change_all(
    store: &Store,
    prefix: &'static str,
    decide: impl Fn(&Entry) -> Option<Becomes>,
) -> Result<usize, RestoredError> {
    let mut changed = Vec::new();
    read_all(store, prefix, |entry| {
        changed.extend(decide(entry).map(|becomes| (entry.key.clone(), becomes)));
    })
    .await?;
    let count = changed.len();
    let mut changed = changed.into_iter().peekable();
    while changed.peek().is_some() {
        let some = changed.by_ref().take(PAGE_ENTRIES);
        let change = some.fold(Transaction::new(), |change, (key, becomes)| match becomes {
            Becomes::Value(value) => change.put(key, value),
            Becomes::Nothing => change.delete(key),
        });
        store.transact(change).await?;
    }
    Ok(count)
}

async fn read_all(
    store: &Store,
    prefix: &'static str,
    mut visit: impl FnMut(&Entry),
) -> Result<(), ReadError> {
    let range = KeyRange::prefix(prefix);
    let mut after: Option<Bytes> = None;
    loop {
        let page = store.list(&range, after.as_deref(), PAGE_ENTRIES).await?;
        page.entries.iter().for_each(&mut visit);
        after = page.entries.last().map(|entry| entry.key.clone());
        if !page.more {
            return Ok(());
        }
    }
}

/// A data plane states that it has seen more than there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "a data plane has seen revision {}, and the store is at {}: if it was put back from a copy, stop the control plane and run `tollway store restored`; else look at what runs there",
    .seen.0, .present.0
)]
struct Ahead {
    seen: Revision,
    present: Revision,
}

impl Ahead {
    /// Where a data plane goes on from `seen`, and the store is at `present`.
    fn of(seen: Revision, present: Revision) -> Option<Self> {
        (seen > present).then_some(Self { seen, present })
    }

    fn code(self) -> ErrorCode {
        ErrorCode::StoreBehind
    }
}

/// What data planes show of a store that is an old copy.
#[derive(Default)]
pub(crate) struct SeenAhead {
    count: AtomicU64,
    log: Mutex<LogLimiter>,
}

impl SeenAhead {
    /// Takes note of the revision from which a data plane goes on.
    pub(crate) fn note(
        &self,
        (service, instance): (&ServiceName, &Instance),
        seen: Revision,
        present: Revision,
    ) {
        let Some(ahead) = Ahead::of(seen, present) else { return };
        self.count.fetch_add(1, Ordering::Relaxed);
        let now = tokio::time::Instant::now().into_std();
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left_out) = log.admit("ahead", format!("{service}/{instance}"), now) {
            error!(code = %ahead.code(), %service, %instance, left_out, reason = %ahead, "the store may be an old copy");
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored::EnrolledPod;

    #[test]
    fn a_store_behind_its_data_planes_is_reported_with_what_to_do() {
        for seen in [0, 6, 7] {
            assert_eq!(Ahead::of(Revision(seen), Revision(7)), None);
        }
        let ahead = Ahead::of(Revision(8), Revision(7)).unwrap();
        assert_eq!(ahead.code().word(), "ERR_STORE_BEHIND");
        let text = ahead.to_string();
        assert!(text.contains("revision 8") && text.contains("`tollway store restored`"), "{text}");
    }

    fn entry(value: &impl Message) -> Entry {
        let value = value.encode_to_vec().into();
        Entry { key: Bytes::new(), value, revision: 1, lease: None }
    }

    #[test]
    fn only_what_could_be_used_is_void() {
        let token = Token { expires_at_unix_ms: 1_000, uses: 2, ..Token::default() };
        let Some(Becomes::Value(void)) = void_token(&entry(&token), 999) else {
            panic!("it is good")
        };
        let void = Token::decode(&*void).unwrap();
        assert_eq!(void, Token { revoked_at_unix_ms: 999, ..token.clone() });
        assert!(void_token(&entry(&token), 1_000).is_none(), "it has expired");
        assert!(void_token(&entry(&void), 999).is_none(), "it is revoked");

        let secret = JoinSecret { expires_at_unix_ms: 1_000, ..JoinSecret::default() };
        let redeemed = JoinSecret { redeemed_by: vec![1], ..secret.clone() };
        for secret in [secret, redeemed] {
            let Some(Becomes::Value(void)) = void_secret(&entry(&secret), 999) else {
                panic!("it is good");
            };
            assert_eq!(JoinSecret::decode(&*void).unwrap().expires_at_unix_ms, 999);
            assert!(void_secret(&entry(&secret), 1_000).is_none(), "it has expired");
        }
    }

    #[test]
    fn keys_of_instances_are_forgotten_unless_they_are_barred_or_of_pods() {
        let keys = InstanceKeys { used: vec![1], ..InstanceKeys::default() };
        assert!(matches!(forget_keys(&entry(&keys)), Some(Becomes::Nothing)));
        let barred = InstanceKeys { is_barred: true, ..keys.clone() };
        let of_pod = InstanceKeys { pod: Some(EnrolledPod::default()), ..keys };
        assert!([barred, of_pod].iter().all(|keys| forget_keys(&entry(keys)).is_none()));
    }
}
