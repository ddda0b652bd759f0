//! The control plane's own authority and certificate: created at the first start and stored. The
//! certificate is renewed and follows the trust bundles.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prost::Message;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tollway_dial::wall_clock_reads;
use tollway_identity::{
    Authority, AuthorityPem, CertificateDer, Credentials, KeyExchange, KeyPair, Revocations,
    SealingKey, SystemRequest, TrustBundle, TrustBundles, renewal_time,
};
use tollway_model::{Instance, NetworkName, TrustDomain};
use tollway_store::{Expected, Store, TransactError, Transaction};
use tollway_wire::v1;
use tracing::{debug, error, info};

use crate::catalogue::Catalogue;
use crate::error::{OwnCertificateError, StartError};
use crate::hub::Hub;
use crate::key::AUTHORITY_KEY;
use crate::options::Options;
use crate::stored;

/// Pause before a failed renewal is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Reads the authority from the store, or makes one at the first start. With a passphrase its key is
/// sealed in the store from then on.
pub(crate) async fn load_authority(
    store: &Store,
    options: &Options,
) -> Result<Authority, StartError> {
    if let Some(entry) = store.get(AUTHORITY_KEY.as_bytes()).await? {
        let stored = read_record(&entry.value)?;
        let authority = open_authority(&stored, options).await?;
        if let Some(key) = &options.authority_key
            && stored.sealed_key.is_empty()
        {
            seal_stored(store, entry.revision, stored, key).await?;
        }
        return Ok(authority);
    }
    let authority = Authority::create(&options.trust_domain, &options.network, SystemTime::now())?;
    let AuthorityPem { certificate, key } = authority.to_pem();
    let mut record = stored::Authority {
        network: options.network.as_str().to_owned(),
        trust_domain: options.trust_domain.to_string(),
        certificate_pem: certificate,
        key_pem: key,
        sealed_key: Vec::new(),
    };
    if let Some(key) = &options.authority_key {
        record = sealed(record, key.clone()).await?;
    }
    let put = Transaction::new()
        .when(AUTHORITY_KEY, Expected::Absent)
        .put(AUTHORITY_KEY, record.encode_to_vec())
        .put(crate::key::Key::Trust.encode(), Vec::new());
    match store.transact(put).await {
        Ok(_) => {
            info!(network = %options.network, trust_domain = %options.trust_domain, "made a certificate authority");
            Ok(authority)
        }
        // Another replica was first.
        Err(TransactError::Conflict { .. }) => {
            let entry = store.get(AUTHORITY_KEY.as_bytes()).await?;
            let stored = read_record(&entry.ok_or(StartError::StoredAuthority)?.value)?;
            open_authority(&stored, options).await
        }
        Err(error) => Err(error.into()),
    }
}

/// What is known of an authority's key in a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoredKey {
    Plain,
    /// Sealed, and by the passphrase that was given.
    Sealed,
}

/// Reads the entry [`AUTHORITY_KEY`] of a store as a start would, and changes nothing.
///
/// # Errors
/// [`StartError`]: it does not read back, or the passphrase does not open it.
pub fn check_stored_key(value: &[u8], key: Option<&SealingKey>) -> Result<StoredKey, StartError> {
    let stored = read_record(value)?;
    let kind = if stored.sealed_key.is_empty() { StoredKey::Plain } else { StoredKey::Sealed };
    plain_key(&stored, key).map(|_| kind)
}

fn read_record(value: &[u8]) -> Result<stored::Authority, StartError> {
    stored::Authority::decode(value).map_err(|_| StartError::StoredAuthority)
}

async fn open_authority(
    stored: &stored::Authority,
    options: &Options,
) -> Result<Authority, StartError> {
    let network = NetworkName::new(&stored.network).map_err(|_| StartError::StoredAuthority)?;
    let trust_domain =
        TrustDomain::new(&stored.trust_domain).map_err(|_| StartError::StoredAuthority)?;
    if network != options.network || trust_domain != options.trust_domain {
        return Err(StartError::Foreign {
            stored: network,
            stored_domain: trust_domain,
            asked: options.network.clone(),
            asked_domain: options.trust_domain.clone(),
        });
    }
    let (record, key) = (stored.clone(), options.authority_key.clone());
    let key = computed(move || plain_key(&record, key.as_deref())).await?;
    let pem = AuthorityPem { certificate: stored.certificate_pem.clone(), key };
    Ok(Authority::from_pem(&trust_domain, &network, &pem)?)
}

/// The key of an authority; takes half a second of a processor where it is sealed.
fn plain_key(stored: &stored::Authority, key: Option<&SealingKey>) -> Result<String, StartError> {
    if stored.sealed_key.is_empty() {
        return Ok(stored.key_pem.clone());
    }
    let key = key.ok_or(StartError::AuthorityKeyMissing)?;
    let opened =
        key.open(&stored.sealed_key, &subject(stored)).map_err(StartError::AuthorityKey)?;
    String::from_utf8(opened).map_err(|_| StartError::StoredAuthority)
}

/// The record with its key sealed.
async fn sealed(
    record: stored::Authority,
    key: Arc<SealingKey>,
) -> Result<stored::Authority, StartError> {
    computed(move || {
        let sealed_key = key.seal(record.key_pem.as_bytes(), &subject(&record));
        let sealed_key = sealed_key.map_err(StartError::AuthorityKey)?;
        Ok(stored::Authority { key_pem: String::new(), sealed_key, ..record })
    })
    .await
}

/// Seals a key that the store has had in plain text, and writes the store's file without it.
async fn seal_stored(
    store: &Store,
    revision: u64,
    record: stored::Authority,
    key: &Arc<SealingKey>,
) -> Result<(), StartError> {
    let record = sealed(record, key.clone()).await?;
    let put = Transaction::new()
        .when(AUTHORITY_KEY, Expected::Revision(revision))
        .put(AUTHORITY_KEY, record.encode_to_vec());
    store.transact(put).await?;
    store.rewrite().await?;
    info!(
        "the authority's key is sealed in the store from now on; earlier copies of the store have it in plain text"
    );
    Ok(())
}

/// Which secret it is: no other authority's opens in its place.
fn subject(record: &stored::Authority) -> String {
    format!("authority {} {}", record.network, record.trust_domain)
}

/// Computes away from the tasks that serve.
async fn computed<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| StartError::StoredAuthority)?
}

/// Issues the control plane's certificate under the present trust.
pub(crate) fn issue(
    authority: &Authority,
    trust: &v1::TrustBundles,
    ttl: Duration,
    key_exchange: KeyExchange,
) -> Result<Credentials, OwnCertificateError> {
    let key = KeyPair::generate()?;
    let instance = Instance::new("control").expect("a valid label");
    let request = SystemRequest { csr_der: key.csr_der()?, instance, ttl };
    let issued = authority.issue_control(&request, SystemTime::now())?;
    let credentials = Credentials::new(&key, issued.chain, bundles(trust)?)?;
    Ok(credentials.with_key_exchange(key_exchange))
}

/// The bundles as TLS needs them. They were checked when they were stored.
fn bundles(trust: &v1::TrustBundles) -> Result<TrustBundles, OwnCertificateError> {
    let read = |bundle: &v1::TrustBundle| {
        let network = NetworkName::new(&bundle.network).map_err(|_| OwnCertificateError::Stored)?;
        let domain =
            TrustDomain::new(&bundle.trust_domain).map_err(|_| OwnCertificateError::Stored)?;
        let roots = bundle.roots.iter().map(|root| CertificateDer::from(root.clone())).collect();
        let revoked = tollway_wire::revocations(&bundle.revoked);
        let revoked = Revocations::new(revoked.map_err(|_| OwnCertificateError::Stored)?);
        let bundle = TrustBundle::new(network, domain, roots)?;
        Ok::<_, OwnCertificateError>(bundle.with_revoked(revoked))
    };
    let list = trust.bundles.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    Ok(TrustBundles::new(trust.revision, list)?)
}

/// Renews the certificate in time, and at once when `ended` is notified, and takes over every change
/// of trust, until stopped.
pub(crate) async fn keep_current(
    authority: Arc<Authority>,
    hub: Arc<Hub>,
    (ttl, key_exchange): (Duration, KeyExchange),
    current: watch::Sender<Arc<Credentials>>,
    ended: Arc<Notify>,
    stop: CancellationToken,
) {
    let mut trust_changes = hub.trust_revision();
    loop {
        let at = renewal_time(&current.borrow());
        let renewed = tokio::select! {
            () = wall_clock_reads(at, SystemTime::now) => issue(&authority, &hub.read(Catalogue::trust), ttl, key_exchange),
            () = ended.notified() => issue(&authority, &hub.read(Catalogue::trust), ttl, key_exchange),
            changed = trust_changes.changed() => {
                if changed.is_err() {
                    return;
                }
                let trust = hub.read(Catalogue::trust);
                bundles(&trust).and_then(|bundles| Ok(current.borrow().with_bundles(bundles)?))
            }
            () = stop.cancelled() => return,
        };
        match renewed {
            Ok(credentials) => {
                debug!(
                    trust_revision = credentials.bundles().revision(),
                    "own credentials are new"
                );
                current.send_replace(Arc::new(credentials));
            }
            Err(reason) => {
                error!(reason = %tollway_model::chain(&reason), "own credentials were not renewed; trying again");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}
