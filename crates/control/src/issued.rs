//! The last certificate of each instance: who has an identity that runs, and by which key and token.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;
use tollway_identity::PeerIdentity;
use tollway_model::{Instance, ServiceName};
use tollway_store::{Expected, KeyRange, Store, TransactError, Transaction};
use tollway_wire::v1;
use tonic::Status;
use tracing::warn;

use crate::catalogue::Catalogue;
use crate::clock::unix_now_ms;
use crate::connected::{Connected, LastSeen};
use crate::hub::Hub;
use crate::issue::Claim;
use crate::key::{ISSUED_PREFIX, issued_key};
use crate::status::store_status;
use crate::stored::Issued;
use crate::tokens::page_limit;

/// Instances of a network whose certificates are remembered.
const IDENTITIES_LIMIT: usize = 200_000;
/// Instances in one answer.
const IDENTITIES_PER_ANSWER: usize = 1_000;
/// Tries to store a renewal while the same instance renews on another connection.
const RENEW_TRIES: usize = 8;

/// The certificates that were issued. Clones share the count.
#[derive(Clone)]
pub(crate) struct IssuedLog {
    store: Store,
    /// How many instances there are, as of the last count and with those that enrolled since.
    instances: Arc<AtomicUsize>,
}

impl IssuedLog {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, instances: Arc::default() }
    }

    /// Sets the number of instances that were counted.
    pub(crate) fn set_instances(&self, count: usize) {
        self.instances.store(count, Ordering::Relaxed);
    }

    /// Refuses a new instance where there are too many.
    pub(crate) async fn make_room(&self, claim: &Claim) -> Result<(), Status> {
        let key = issued_key(&claim.service, &claim.instance);
        let known = self.store.get(&key).await.map_err(|error| store_status(&error))?;
        if known.is_some() {
            return Ok(());
        }
        if self.instances.load(Ordering::Relaxed) >= IDENTITIES_LIMIT {
            return Err(Status::resource_exhausted(format!(
                "certificates of {IDENTITIES_LIMIT} instances run or have just ended; wait until some are forgotten, and revoke tokens that too many use"
            )));
        }
        self.instances.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Stores the certificate of an instance that renewed it. A store that takes no writes, such as
    /// one whose disk is full, ends no identity: the list is then behind until the next renewal.
    pub(crate) async fn renew(&self, claim: &Claim, mut record: Issued) -> Result<(), Status> {
        let key = issued_key(&claim.service, &claim.instance);
        for _ in 0..RENEW_TRIES {
            let entry = self.store.get(&key).await.map_err(|error| store_status(&error))?;
            let last = entry.as_ref().and_then(|entry| Issued::decode(entry.value.clone()).ok());
            record.token = last.map(|last| last.token).unwrap_or_default();
            let expected = entry.map_or(Expected::Absent, |e| Expected::Revision(e.revision));
            let change = Transaction::new()
                .when(key.clone(), expected)
                .put(key.clone(), record.encode_to_vec());
            match self.store.transact(change).await {
                Ok(_) => return Ok(()),
                Err(TransactError::Conflict { .. }) => {}
                Err(reason) => {
                    warn!(%claim, %reason, "a renewal was not stored");
                    return Ok(());
                }
            }
        }
        Err(Status::aborted("this instance renews on several connections at once; try again"))
    }

    /// A page of the instances whose certificates run.
    pub(crate) async fn list(
        &self,
        hub: &Hub,
        connected: &Connected,
        request: &v1::ListIdentitiesRequest,
    ) -> Result<v1::ListIdentitiesResponse, Status> {
        let after = format!("{ISSUED_PREFIX}{}", request.after);
        let after = (!request.after.is_empty()).then_some(after.as_bytes());
        let limit = page_limit(request.limit, IDENTITIES_PER_ANSWER);
        let page = self.store.list(&KeyRange::prefix(ISSUED_PREFIX), after, limit).await;
        let page = page.map_err(|error| store_status(&error))?;
        let now = unix_now_ms();
        let records = page.entries.iter().filter_map(|e| Issued::decode(e.value.clone()).ok());
        let running = records.filter(|record| now < record.expires_at_unix_ms);
        let identities = hub.read(|catalogue| {
            running.filter_map(|record| state(catalogue, connected, record, now)).collect()
        });
        let last = page.entries.last().filter(|_| page.more);
        let next = last.and_then(|entry| entry.key.get(ISSUED_PREFIX.len()..));
        let next = next.map(|tail| String::from_utf8_lossy(tail).into_owned());
        Ok(v1::ListIdentitiesResponse { identities, next: next.unwrap_or_default() })
    }
}

/// What is stored of a certificate.
pub(crate) fn record_of(claim: &Claim, leaf: &PeerIdentity, now_unix_ms: u64) -> Issued {
    Issued {
        service: Some((&claim.service).into()),
        instance: claim.instance.as_str().to_owned(),
        serial: leaf.serial.clone(),
        key_hash: leaf.key_hash.to_vec(),
        issued_at_unix_ms: now_unix_ms,
        expires_at_unix_ms: unix_ms(leaf.not_after),
        token: String::new(),
    }
}

/// Reads whose certificate a record is of.
pub(crate) fn identity_of(record: &Issued) -> Option<(ServiceName, Instance)> {
    let service = tollway_wire::service_name(record.service.as_ref()).ok()?;
    Some((service, tollway_wire::instance(&record.instance).ok()?))
}

fn state(
    catalogue: &Catalogue,
    connected: &Connected,
    record: Issued,
    now_unix_ms: u64,
) -> Option<v1::IdentityStatus> {
    let (service, instance) = identity_of(&record)?;
    let seen = connected.last_seen(&service, &instance);
    let last_seen_unix_ms = match seen {
        LastSeen::Now => now_unix_ms,
        LastSeen::At(at) => at.max(record.issued_at_unix_ms),
        LastSeen::Unknown => record.issued_at_unix_ms,
    };
    Some(v1::IdentityStatus {
        revoked: catalogue.is_revoked(&service, &instance),
        service: record.service,
        instance: record.instance,
        serial: record.serial,
        issued_at_unix_ms: record.issued_at_unix_ms,
        expires_at_unix_ms: record.expires_at_unix_ms,
        last_seen_unix_ms,
        connected: seen == LastSeen::Now,
        token: record.token,
    })
}

fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
