//! The last certificate of each instance: who has an identity that runs, and by which key and token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;
use tollway_identity::PeerIdentity;
use tollway_model::{Instance, Label, ServiceName};
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

/// Instances of a network, of one of its namespaces, and of one service, whose certificates are
/// remembered.
const IDENTITIES_LIMIT: usize = 200_000;
const IDENTITIES_PER_NAMESPACE_LIMIT: usize = 20_000;
const IDENTITIES_PER_SERVICE_LIMIT: usize = 10_000;
/// Instances in one answer.
const IDENTITIES_PER_ANSWER: usize = 1_000;
/// Tries to store a renewal while the same instance renews on another connection.
const RENEW_TRIES: usize = 8;

/// The certificates that were issued. Clones share the count.
#[derive(Clone)]
pub(crate) struct IssuedLog {
    store: Store,
    /// As of the last count, with those that enrolled since.
    instances: Arc<Mutex<InstanceCounts>>,
}

/// How many instances there are.
#[derive(Default)]
pub(crate) struct InstanceCounts {
    all: usize,
    /// By namespace, in lower case, and in it by app.
    by_namespace: HashMap<String, HashMap<String, usize>>,
}

/// Which limit a new instance meets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Full {
    Network,
    Namespace,
    Service,
}

impl InstanceCounts {
    /// Counts one more, by the key of its record.
    pub(crate) fn add_key(&mut self, key: &[u8]) {
        let text = std::str::from_utf8(key).unwrap_or_default();
        let mut parts = text.strip_prefix(ISSUED_PREFIX).unwrap_or_default().split('/');
        if let (Some(namespace), Some(app)) = (parts.next(), parts.next()) {
            self.add(namespace, app);
        }
    }

    fn add(&mut self, namespace: &str, app: &str) {
        self.all += 1;
        let of_namespace = self.by_namespace.entry(namespace.to_owned()).or_default();
        *of_namespace.entry(app.to_owned()).or_default() += 1;
    }

    fn refuse(&self, namespace: &str, app: &str) -> Option<Full> {
        let of_namespace = self.by_namespace.get(namespace);
        let of_service = of_namespace.and_then(|apps| apps.get(app)).copied().unwrap_or_default();
        let of_namespace = of_namespace.map_or(0, |apps| apps.values().sum());
        if of_service >= IDENTITIES_PER_SERVICE_LIMIT {
            Some(Full::Service)
        } else if of_namespace >= IDENTITIES_PER_NAMESPACE_LIMIT {
            Some(Full::Namespace)
        } else if self.all >= IDENTITIES_LIMIT {
            Some(Full::Network)
        } else {
            None
        }
    }
}

impl Full {
    fn status(self, service: &ServiceName) -> Status {
        let (limit, whose) = match self {
            Self::Network => (IDENTITIES_LIMIT, "the network".to_owned()),
            Self::Namespace => {
                (IDENTITIES_PER_NAMESPACE_LIMIT, format!("namespace {}", service.namespace))
            }
            Self::Service => (IDENTITIES_PER_SERVICE_LIMIT, format!("service {service}")),
        };
        Status::resource_exhausted(format!(
            "certificates of {limit} instances of {whose} run or have just ended; wait until some are forgotten, and revoke tokens that too many use"
        ))
    }
}

impl IssuedLog {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, instances: Arc::default() }
    }

    /// Sets what was counted.
    pub(crate) fn set_instances(&self, counted: InstanceCounts) {
        *self.instances() = counted;
    }

    /// Whether an instance is new. A new one is refused where there are too many.
    pub(crate) async fn is_new(&self, claim: &Claim) -> Result<bool, Status> {
        let key = issued_key(&claim.service, &claim.instance);
        if self.store.get(&key).await.map_err(|error| store_status(&error))?.is_some() {
            return Ok(false);
        }
        let [namespace, app] = names_of(claim);
        match self.instances().refuse(&namespace, &app) {
            Some(full) => Err(full.status(&claim.service)),
            None => Ok(true),
        }
    }

    /// Counts an instance that is new.
    pub(crate) fn add_if(&self, is_new: bool, claim: &Claim) {
        if is_new {
            let [namespace, app] = names_of(claim);
            self.instances().add(&namespace, &app);
        }
    }

    /// Stores the certificate of an instance that has enrolled without a join token.
    pub(crate) async fn enrol(&self, claim: &Claim, record: Issued) -> Result<(), Status> {
        let key = issued_key(&claim.service, &claim.instance);
        let put = Transaction::new().put(key, record.encode_to_vec());
        self.store.transact(put).await.map_err(|error| store_status(&error))?;
        Ok(())
    }

    fn instances(&self) -> MutexGuard<'_, InstanceCounts> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
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

fn names_of(claim: &Claim) -> [String; 2] {
    [&claim.service.namespace, &claim.service.app].map(Label::to_lower)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(&str, &str, usize)]) -> InstanceCounts {
        let mut counts = InstanceCounts::default();
        for (namespace, app, count) in of {
            for instance in 0..*count {
                counts.add_key(format!("{ISSUED_PREFIX}{namespace}/{app}/i{instance}").as_bytes());
            }
        }
        counts
    }

    #[test]
    fn instances_of_one_identity_lock_out_no_other_service() {
        let counts = counts(&[("lowly", "evil", IDENTITIES_PER_SERVICE_LIMIT)]);
        assert_eq!(counts.refuse("lowly", "evil"), Some(Full::Service));
        assert_eq!(counts.refuse("lowly", "web"), None);
        assert_eq!(counts.refuse("default", "evil"), None);
    }

    #[test]
    fn instances_of_one_namespace_lock_out_no_other_namespace() {
        let half = IDENTITIES_PER_NAMESPACE_LIMIT / 2;
        let counts = counts(&[("lowly", "evil", half), ("lowly", "evil2", half)]);
        assert_eq!(counts.refuse("lowly", "web"), Some(Full::Namespace));
        assert_eq!(counts.refuse("default", "web"), None);
    }

    #[test]
    fn a_network_has_a_limit_of_its_own() {
        let namespaces: Vec<_> =
            (0..IDENTITIES_LIMIT / 10_000).map(|number| format!("n{number}")).collect();
        let of: Vec<_> = namespaces.iter().map(|name| (name.as_str(), "web", 10_000)).collect();
        assert_eq!(counts(&of).refuse("new", "web"), Some(Full::Network));
    }
}
