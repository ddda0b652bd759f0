//! Identities that an operator takes back: kept in the store, sent to data planes and to joined
//! networks with the trust bundles, and forgotten when they can be of no use any more.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tollway_identity::{CONTROL_APP, PeerIdentity, SYSTEM_NAMESPACE};
use tollway_model::{Instance, Label, Revocation, ServiceName};
use tollway_store::{Entry, KeyRange, ReadError, Store, Transaction};
use tollway_wire::{REVOCATIONS_PER_TRUST_DOMAIN_LIMIT, v1};
use tonic::Status;
use tracing::{debug, warn};

use crate::catalogue::Span;
use crate::clock::{later, unix_now_ms};
use crate::connections::OpenConnections;
use crate::hub::Hub;
use crate::key::{Key, MESH_PREFIX, issued_key, issued_prefix};
use crate::status::store_status;
use crate::stored;
use crate::tokens::{Tokens, is_gateway};

/// How long the revocation of an instance stays after its last certificate can renew no more: for
/// clocks that disagree.
const RESERVE: Duration = Duration::from_secs(24 * 3600);
/// Tokens that are named in an answer.
const TOKENS_LIMIT: usize = 64;
const PAGE_ENTRIES: usize = 500;

/// What a revocation touches.
pub(crate) struct Revoker<'a> {
    pub(crate) store: &'a Store,
    pub(crate) hub: &'a Hub,
    pub(crate) tokens: &'a Tokens,
    pub(crate) open_connections: &'a OpenConnections,
    /// The longest life of a certificate that is issued now.
    pub(crate) certificate_ttl: Duration,
    /// How long after its end a certificate may renew itself.
    pub(crate) grace: Duration,
}

impl Revoker<'_> {
    pub(crate) async fn revoke(
        &self,
        stated: Option<&v1::RevokedIdentity>,
    ) -> Result<v1::RevokeIdentityResponse, Status> {
        let identity = read(stated)?;
        let known = self.hub.read(|catalogue| {
            let mut known = None;
            let mut count = 0;
            for (revocation, span) in catalogue.revocations() {
                count += 1;
                known = known.or((*revocation == identity).then_some(span));
            }
            (known, count)
        });
        let connections = self.open_connections.count(|peer| self.concerns(&identity, peer));
        let (tokens, ends_at_unix_ms) = self.issued(&identity).await?;
        let span = match known {
            (Some(span), _) => span,
            (None, count) if count >= REVOCATIONS_PER_TRUST_DOMAIN_LIMIT => {
                return Err(Status::resource_exhausted(format!(
                    "{REVOCATIONS_PER_TRUST_DOMAIN_LIMIT} identities are revoked already; revoke whole apps in place of their instances, or restore some"
                )));
            }
            (None, _) => {
                let span = Span { since_unix_ms: unix_now_ms(), until_unix_ms: ends_at_unix_ms };
                self.put(&identity, span).await?;
                warn!(%identity, connections, "an identity was revoked");
                span
            }
        };
        self.withdraw(&identity).await?;
        Ok(v1::RevokeIdentityResponse {
            revocation: Some(state(&identity, span)),
            connections: u32::try_from(connections).unwrap_or(u32::MAX),
            tokens: self.tokens.usable(tokens).await?,
        })
    }

    pub(crate) async fn restore(&self, stated: Option<&v1::RevokedIdentity>) -> Result<(), Status> {
        let identity = read(stated)?;
        let is_known =
            self.hub.read(|catalogue| catalogue.revocations().any(|(known, _)| *known == identity));
        if !is_known {
            return Err(Status::not_found(format!(
                "{identity} is not revoked; `tollway identity list --revoked` shows what is"
            )));
        }
        let revision = self.store.transact(forget(&identity)).await;
        let revision = revision.map_err(|error| store_status(&error))?;
        self.hub.visible(revision).await;
        warn!(%identity, "an identity was restored");
        Ok(())
    }

    /// Tokens by which the instances of the identity enrolled, and when the revocation ends.
    async fn issued(&self, identity: &Revocation) -> Result<(Vec<String>, u64), Status> {
        let mut tokens = BTreeSet::new();
        let mut note = |record: &stored::Issued| {
            if tokens.len() < TOKENS_LIMIT && !record.token.is_empty() {
                tokens.insert(record.token.clone());
            }
        };
        let ends = match &identity.instance {
            Some(instance) => {
                let key = issued_key(&self.service(identity), instance);
                let entry = self.store.get(&key).await.map_err(|error| store_status(&error))?;
                let record = entry.and_then(|e| stored::Issued::decode(e.value).ok());
                record.iter().for_each(&mut note);
                let latest = later(unix_now_ms(), self.certificate_ttl);
                let expires = record.map_or(0, |record| record.expires_at_unix_ms);
                later(expires.max(latest), self.grace + RESERVE)
            }
            None => {
                let range = KeyRange::prefix(issued_prefix(&identity.namespace, &identity.app));
                each(self.store, &range, |entry| {
                    stored::Issued::decode(entry.value.clone()).iter().for_each(&mut note);
                })
                .await
                .map_err(|error| store_status(&error))?;
                0
            }
        };
        Ok((tokens.into_iter().collect(), ends))
    }

    async fn put(&self, identity: &Revocation, span: Span) -> Result<(), Status> {
        let record = stored::Revocation {
            revoked_at_unix_ms: span.since_unix_ms,
            ends_at_unix_ms: span.until_unix_ms,
        };
        let change = Transaction::new()
            .put(Key::Revoked(identity.clone()).encode(), record.encode_to_vec())
            .put(Key::Trust.encode(), Bytes::new());
        let revision = self.store.transact(change).await.map_err(|error| store_status(&error))?;
        self.hub.visible(revision).await;
        Ok(())
    }

    /// Removes what the identity announced, so that callers are not sent there.
    async fn withdraw(&self, identity: &Revocation) -> Result<(), Status> {
        let service = self.service(identity);
        let Revocation { namespace, app, instance } = identity;
        let range = match (is_gateway(&service), instance) {
            (true, Some(instance)) => {
                KeyRange::key(Key::Gateway { instance: instance.clone() }.encode())
            }
            (true, None) => KeyRange::prefix(format!("{MESH_PREFIX}gateway/")),
            (false, Some(instance)) => KeyRange::key(workload(namespace, app, instance)),
            (false, None) => {
                let (namespace, app) = (namespace.to_lower(), app.to_lower());
                KeyRange::prefix(format!("{MESH_PREFIX}workload/{namespace}/{app}/"))
            }
        };
        let mut keys = Vec::new();
        each(self.store, &range, |entry| keys.push(entry.key.clone()))
            .await
            .map_err(|error| store_status(&error))?;
        for keys in keys.chunks(PAGE_ENTRIES) {
            let change = keys.iter().cloned().fold(Transaction::new(), Transaction::delete);
            self.store.transact(change).await.map_err(|error| store_status(&error))?;
        }
        Ok(())
    }

    fn service(&self, identity: &Revocation) -> ServiceName {
        ServiceName {
            app: identity.app.clone(),
            namespace: identity.namespace.clone(),
            network: self.tokens.authority.network().clone(),
        }
    }

    fn concerns(&self, identity: &Revocation, peer: &PeerIdentity) -> bool {
        let own = self.tokens.authority.trust_domain();
        peer.spiffe.trust_domain == *own
            && peer.spiffe.namespace == identity.namespace
            && peer.spiffe.app == identity.app
            && (identity.instance.is_none() || peer.instance == identity.instance)
    }
}

/// The revocations of this network and of joined ones.
pub(crate) fn list(hub: &Hub) -> v1::ListRevocationsResponse {
    hub.read(|catalogue| {
        let own = catalogue.revocations().map(|(identity, span)| state(identity, span));
        let foreign = catalogue.foreign_revocations().map(|(network, identity)| {
            let network = network.as_str().to_owned();
            v1::RevocationStatus { network, ..state(identity, Span::default()) }
        });
        v1::ListRevocationsResponse { revocations: own.chain(foreign).collect() }
    })
}

/// Forgets the revocations of instances whose certificates have ended long ago.
pub(crate) async fn forget_ended(store: &Store, hub: &Hub, network: &Label, grace: Duration) {
    let now = unix_now_ms();
    let ended: Vec<Revocation> = hub.read(|catalogue| {
        let is_over = |span: Span| span.until_unix_ms > 0 && span.until_unix_ms <= now;
        let ended = catalogue.revocations().filter(|(_, span)| is_over(*span));
        ended.map(|(revocation, _)| revocation.clone()).collect()
    });
    for identity in ended {
        let Some(instance) = &identity.instance else { continue };
        let service = ServiceName {
            app: identity.app.clone(),
            namespace: identity.namespace.clone(),
            network: network.clone(),
        };
        // One that was issued while the identity was being revoked may end later.
        let entry = store.get(&issued_key(&service, instance)).await;
        let Ok(entry) = entry else { return };
        let record = entry.and_then(|entry| stored::Issued::decode(entry.value).ok());
        if record.is_some_and(|r| now < later(r.expires_at_unix_ms, grace + RESERVE)) {
            continue;
        }
        match store.transact(forget(&identity)).await {
            Ok(_) => debug!(%identity, "a revocation was forgotten: its certificates have ended"),
            Err(reason) => debug!(%identity, %reason, "a revocation was not forgotten yet"),
        }
    }
}

fn forget(identity: &Revocation) -> Transaction {
    Transaction::new()
        .delete(Key::Revoked(identity.clone()).encode())
        .put(Key::Trust.encode(), Bytes::new())
}

fn read(stated: Option<&v1::RevokedIdentity>) -> Result<Revocation, Status> {
    let stated =
        stated.ok_or_else(|| Status::invalid_argument("the field `identity` is missing"))?;
    let identity = tollway_wire::revocation(stated)
        .map_err(|error| Status::invalid_argument(tollway_model::chain(&error)))?;
    let is_control = identity.namespace.as_str().eq_ignore_ascii_case(SYSTEM_NAMESPACE)
        && identity.app.as_str().eq_ignore_ascii_case(CONTROL_APP);
    if is_control {
        return Err(Status::invalid_argument(
            "the control plane's own identity cannot be revoked: it is the one that revokes",
        ));
    }
    Ok(identity)
}

fn state(identity: &Revocation, span: Span) -> v1::RevocationStatus {
    v1::RevocationStatus {
        identity: Some(identity.into()),
        revoked_at_unix_ms: span.since_unix_ms,
        ends_at_unix_ms: span.until_unix_ms,
        network: String::new(),
    }
}

fn workload(namespace: &Label, app: &Label, instance: &Instance) -> Bytes {
    let (namespace, app, instance) = (namespace.clone(), app.clone(), instance.clone());
    Key::Workload { namespace, app, instance }.encode()
}

async fn each(
    store: &Store,
    range: &KeyRange,
    mut note: impl FnMut(&Entry),
) -> Result<(), ReadError> {
    let mut after: Option<Bytes> = None;
    loop {
        let page = store.list(range, after.as_deref(), PAGE_ENTRIES).await?;
        page.entries.iter().for_each(&mut note);
        after = page.entries.last().map(|entry| entry.key.clone());
        if !page.more {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use tollway_model::TrustDomain;

    use super::*;
    use crate::catalogue::Home;
    use crate::feed;
    use crate::options::RemoteCalls;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    fn revocation(app: &str, instance: Option<&str>) -> Revocation {
        Revocation { namespace: label("default"), app: label(app), instance: instance.map(label) }
    }

    #[tokio::test]
    async fn revocations_of_instances_end_with_what_their_certificates_could_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tollway.store");
        let store = Store::open_embedded(&path, tollway_store::Limits::default()).await.unwrap();
        let (now, grace) = (unix_now_ms(), Duration::from_secs(3600));
        let over = stored::Revocation { revoked_at_unix_ms: 1, ends_at_unix_ms: now - 1 };
        let runs = stored::Revocation { ends_at_unix_ms: now + 60_000, ..over.clone() };
        let stays = stored::Revocation { ends_at_unix_ms: 0, ..over.clone() };
        let all = [
            (revocation("stock", Some("over")), &over),
            (revocation("stock", Some("issued-meanwhile")), &over),
            (revocation("stock", Some("runs")), &runs),
            (revocation("orders", None), &stays),
        ];
        let mut change = Transaction::new();
        for (identity, record) in &all {
            change = change.put(Key::Revoked(identity.clone()).encode(), record.encode_to_vec());
        }
        let (namespace, app, network) = (label("default"), label("stock"), label("west"));
        let stock = ServiceName { app, namespace, network: network.clone() };
        let late = stored::Issued { expires_at_unix_ms: now, ..stored::Issued::default() };
        let late_key = issued_key(&stock, &label("issued-meanwhile"));
        store.transact(change.put(late_key, late.encode_to_vec())).await.unwrap();
        let home = Home {
            network: network.clone(),
            trust_domain: TrustDomain::new("west.tollway").unwrap(),
            root: Vec::new(),
            remote_calls: RemoteCalls::Direct,
            egress: tollway_model::EgressDefault::Open,
            listen: "127.0.0.1:15010".parse().unwrap(),
            peer_addresses: std::sync::Arc::from([]),
        };
        let hub = Hub::new(feed::load(&store, home.clone()).await.unwrap());
        forget_ended(&store, &hub, &network, grace).await;
        let left = feed::load(&store, home).await.unwrap();
        let left: Vec<String> = left.revocations().map(|(r, _)| r.to_string()).collect();
        assert_eq!(
            left,
            ["orders.default", "stock.default/issued-meanwhile", "stock.default/runs"]
        );
    }
}
