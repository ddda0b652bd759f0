//! Join tokens: made, listed, revoked, and used by those who have one.
//!
//! A token has a record with what it is good for, and one with how far it was used. Each instance
//! that enrols spends one use, in the same transaction that stores its certificate.

mod decide;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::sync::Mutex;
use tollway_identity::{Authority, JoinToken};
use tollway_model::{Instance, ServiceName};
use tollway_store::{Entry, Expected, KeyRange, Store, TransactError, Transaction};
use tollway_wire::v1;
use tonic::Status;
use tracing::{info, warn};

pub(crate) use self::decide::{Scope, is_gateway};
use self::decide::{Spending, decide_left, decide_spending, decide_token, decide_usable};
use crate::clock::{later, unix_now_ms};
use crate::issue::Refusal;
use crate::key::{TOKEN_PREFIX, TOKEN_USE_PREFIX, issued_key};
use crate::linger::Use;
use crate::status::store_status;
use crate::stored::{Issued, ScopeKind, Token, TokenUse};

/// Tries to store a use while others use the same token at other control planes.
const SPEND_TRIES: usize = 16;
/// Tokens in one answer.
const TOKENS_PER_ANSWER: usize = 1_000;
/// Longest id that is looked up, in bytes.
const ID_LIMIT_BYTES: usize = 64;

/// The join tokens of a network. Clones share the lock.
#[derive(Clone)]
pub(crate) struct Tokens {
    pub(crate) authority: Arc<Authority>,
    pub(crate) store: Store,
    pub(crate) noted: Arc<Use>,
    /// Held while a use of a token with a limit is stored, so that those who use it at once do not
    /// send each other back.
    pub(crate) spending: Arc<Mutex<()>>,
}

/// A token that may be used for a service, if a use is left.
pub(crate) struct Redeemable {
    token: JoinToken,
    service: ServiceName,
}

impl Redeemable {
    pub(crate) fn id(&self) -> String {
        self.token.id()
    }
}

impl Tokens {
    /// Makes a token for `uses` instances, 0 for any number, and stores its hash.
    pub(crate) async fn create(
        &self,
        scope: &Scope,
        ttl: Duration,
        uses: u32,
    ) -> Result<(JoinToken, u64), Status> {
        let network = self.authority.network();
        let token = JoinToken::generate(network, self.authority.root_der())
            .map_err(|error| Status::internal(error.to_string()))?;
        let now = unix_now_ms();
        let expires_at_unix_ms = later(now, ttl);
        let (kind, namespace, app) = match scope {
            Scope::Any => (ScopeKind::Any, "", ""),
            Scope::Namespace(namespace) => (ScopeKind::Namespace, namespace.as_str(), ""),
            Scope::App { namespace, app } => (ScopeKind::App, namespace.as_str(), app.as_str()),
            Scope::Gateway => (ScopeKind::Gateway, "", ""),
            Scope::Fabric(group) => (ScopeKind::Fabric, "", group.as_str()),
        };
        let record = Token {
            secret_hash: token.secret_hash().as_bytes().to_vec(),
            expires_at_unix_ms,
            scope: kind.into(),
            namespace: namespace.to_owned(),
            app: app.to_owned(),
            created_at_unix_ms: now,
            uses,
            revoked_at_unix_ms: 0,
        };
        let key = token_key(&token.id());
        let put =
            Transaction::new().when(key.clone(), Expected::Absent).put(key, record.encode_to_vec());
        self.store.transact(put).await.map_err(|error| store_status(&error))?;
        self.noted.note();
        info!(token = token.id(), ?scope, uses, "made a join token");
        Ok((token, expires_at_unix_ms))
    }

    /// Reads a token that a caller shows for `service`. Whether a use is left shows when it is spent.
    pub(crate) async fn find(
        &self,
        token: &str,
        service: &ServiceName,
    ) -> Result<Redeemable, Status> {
        let token = self.read(token)?;
        let stored = self.stored(&token.id()).await?.map(|(_, stored)| stored);
        decide_token(stored.as_ref(), token.secret(), service, unix_now_ms())?;
        Ok(Redeemable { token, service: service.clone() })
    }

    /// The id and the record of a token that would be taken now, for whatever its scope is.
    pub(crate) async fn check(&self, token: &str) -> Result<(String, Token), Status> {
        let token = self.read(token)?;
        let stored = self.stored(&token.id()).await?.map(|(_, stored)| stored);
        let now = unix_now_ms();
        let usable = decide_usable(stored.as_ref(), token.secret(), now)?;
        let (_, used) = self.used(&token.id()).await?;
        decide_left(usable, &used, now)?;
        Ok((token.id(), usable.clone()))
    }

    /// Spends a use of the token, if the certificate that is `issued` needs one, and stores both. A
    /// repeated request needs none where it `may_repeat`.
    pub(crate) async fn spend(
        &self,
        redeemable: &Redeemable,
        instance: &Instance,
        mut issued: Issued,
        may_repeat: bool,
        from: Option<IpAddr>,
    ) -> Result<(), Status> {
        let Redeemable { token, service } = redeemable;
        let id = token.id();
        issued.token.clone_from(&id);
        let mut turn = None;
        for _ in 0..SPEND_TRIES {
            let stored = self.stored(&id).await?;
            let now = unix_now_ms();
            let record = stored.as_ref().map(|(_, record)| record);
            decide_token(record, token.secret(), service, now)?;
            let Some((entry, record)) = stored else { return Err(Refusal::UnknownToken.into()) };
            let is_limited = record.uses > 0;
            if is_limited && turn.is_none() {
                turn = Some(self.spending.lock().await);
                continue;
            }
            let (use_entry, used) = self.used(&id).await?;
            let key = issued_key(service, instance);
            let last_entry = self.store.get(&key).await.map_err(|e| store_status(&e))?;
            let last = last_entry.as_ref().and_then(|e| Issued::decode(e.value.clone()).ok());
            let last = last.filter(|_| may_repeat);
            let of = (&*id, &record, &used);
            let spending = decide_spending(of, last.as_ref(), &issued.key_hash, now)?;
            let mut change = Transaction::new()
                .when(token_key(&id), Expected::Revision(entry.revision))
                .put(key.clone(), issued.encode_to_vec());
            if is_limited {
                change = change
                    .when(use_key(&id), expected(use_entry.as_ref()))
                    .when(key, expected(last_entry.as_ref()));
            }
            if spending == Spending::OneUse {
                let used = TokenUse {
                    used: used.used.saturating_add(1),
                    at_unix_ms: now,
                    service: Some(service.into()),
                    instance: instance.as_str().to_owned(),
                    from: from.map_or_else(String::new, |from| from.to_canonical().to_string()),
                };
                change = change.put(use_key(&id), used.encode_to_vec());
            }
            match self.store.transact(change).await {
                Ok(_) => return Ok(()),
                Err(TransactError::Conflict { .. }) => {}
                Err(error) => return Err(store_status(&error)),
            }
        }
        Err(Status::aborted("many use this join token at once; try again"))
    }

    /// A page of the tokens, in the order of their ids.
    pub(crate) async fn list(
        &self,
        request: &v1::ListTokensRequest,
    ) -> Result<v1::ListTokensResponse, Status> {
        let after = (!request.after.is_empty()).then(|| token_key(&request.after));
        let limit = page_limit(request.limit, TOKENS_PER_ANSWER);
        let range = KeyRange::prefix(TOKEN_PREFIX);
        let page = self.store.list(&range, after.as_deref(), limit).await;
        let page = page.map_err(|error| store_status(&error))?;
        let mut tokens = Vec::with_capacity(page.entries.len());
        for entry in &page.entries {
            let id = entry.key.get(TOKEN_PREFIX.len()..).unwrap_or_default();
            let id = String::from_utf8_lossy(id).into_owned();
            if let Ok(record) = Token::decode(entry.value.clone()) {
                let (_, used) = self.used(&id).await?;
                tokens.push(state(id, &record, used));
            }
        }
        Ok(v1::ListTokensResponse { tokens, more: page.more })
    }

    /// Takes a token back.
    pub(crate) async fn revoke(&self, id: &str) -> Result<v1::TokenStatus, Status> {
        let unknown = || {
            let reason = "no join token has this id; `tollway token list` shows those there are";
            Status::not_found(reason)
        };
        if id.is_empty() || id.len() > ID_LIMIT_BYTES {
            return Err(unknown());
        }
        for _ in 0..SPEND_TRIES {
            let (entry, mut record) = self.stored(id).await?.ok_or_else(unknown)?;
            let (_, used) = self.used(id).await?;
            if record.revoked_at_unix_ms == 0 {
                record.revoked_at_unix_ms = unix_now_ms();
                let change = Transaction::new()
                    .when(token_key(id), Expected::Revision(entry.revision))
                    .put(token_key(id), record.encode_to_vec());
                match self.store.transact(change).await {
                    Ok(_) => warn!(token = id, used = used.used, "a join token was revoked"),
                    Err(TransactError::Conflict { .. }) => continue,
                    Err(error) => return Err(store_status(&error)),
                }
            }
            return Ok(state(id.to_owned(), &record, used));
        }
        Err(Status::aborted("the join token changes at the same time; try again"))
    }

    /// Those of `ids` with which another instance could still enrol.
    pub(crate) async fn usable(&self, ids: Vec<String>) -> Result<Vec<String>, Status> {
        let (now, mut usable) = (unix_now_ms(), Vec::new());
        for id in ids {
            let Some((_, record)) = self.stored(&id).await? else { continue };
            let (_, used) = self.used(&id).await?;
            let is_running = record.revoked_at_unix_ms == 0 && now < record.expires_at_unix_ms;
            if is_running && decide_left(&record, &used, now).is_ok() {
                usable.push(id);
            }
        }
        Ok(usable)
    }

    /// A token of this network.
    fn read(&self, token: &str) -> Result<JoinToken, Refusal> {
        let token: JoinToken = token.parse().map_err(Refusal::TokenShape)?;
        let home = self.authority.network();
        if token.network() != home {
            let (found, home) = (token.network().clone(), home.clone());
            return Err(Refusal::OtherNetwork { found, home });
        }
        Ok(token)
    }

    async fn stored(&self, id: &str) -> Result<Option<(Entry, Token)>, Status> {
        let entry = self.store.get(&token_key(id)).await.map_err(|e| store_status(&e))?;
        Ok(entry.and_then(|entry| {
            let record = Token::decode(entry.value.clone()).ok()?;
            Some((entry, record))
        }))
    }

    async fn used(&self, id: &str) -> Result<(Option<Entry>, TokenUse), Status> {
        let entry = self.store.get(&use_key(id)).await.map_err(|e| store_status(&e))?;
        let used = entry.as_ref().and_then(|entry| TokenUse::decode(entry.value.clone()).ok());
        Ok((entry, used.unwrap_or_default()))
    }
}

fn state(id: String, record: &Token, used: TokenUse) -> v1::TokenStatus {
    let last_use = (used.at_unix_ms > 0).then_some(v1::TokenUse {
        at_unix_ms: used.at_unix_ms,
        service: used.service,
        instance: used.instance,
        from: used.from,
    });
    v1::TokenStatus {
        id,
        scope: Scope::read(record).map(Scope::state),
        created_at_unix_ms: record.created_at_unix_ms,
        expires_at_unix_ms: record.expires_at_unix_ms,
        uses: record.uses,
        used: used.used,
        last_use,
        revoked_at_unix_ms: record.revoked_at_unix_ms,
    }
}

/// How many entries an answer has for which `asked` were requested, 0 for as many as possible.
pub(crate) fn page_limit(asked: u32, most: usize) -> usize {
    match usize::try_from(asked) {
        Ok(asked) if asked > 0 => asked.min(most),
        Ok(_) | Err(_) => most,
    }
}

fn expected(entry: Option<&Entry>) -> Expected {
    entry.map_or(Expected::Absent, |entry| Expected::Revision(entry.revision))
}

pub(crate) fn token_key(id: &str) -> Bytes {
    format!("{TOKEN_PREFIX}{id}").into()
}

pub(crate) fn use_key(id: &str) -> Bytes {
    format!("{TOKEN_USE_PREFIX}{id}").into()
}

#[cfg(test)]
mod tests {
    use tollway_model::Label;

    use super::*;

    fn service(text: &str) -> ServiceName {
        let [namespace, network] = ["default", "west"].map(|l| Label::new(l).unwrap());
        ServiceName::parse_in(text, &namespace, &network).unwrap()
    }

    /// The tokens of one network at a control plane of its own, over a store that is shared.
    fn tokens(authority: &Arc<Authority>, store: &Store) -> Tokens {
        Tokens {
            authority: authority.clone(),
            store: store.clone(),
            noted: Arc::default(),
            spending: Arc::default(),
        }
    }

    #[tokio::test]
    async fn two_control_planes_at_once_spend_one_use_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tollway.store");
        let store = Store::open_embedded(&path, tollway_store::Limits::default()).await.unwrap();
        let network = Label::new("west").unwrap();
        let domain = tollway_model::TrustDomain::default_for(&network);
        let now = std::time::SystemTime::now();
        let authority = Arc::new(Authority::create(&domain, &network, now).unwrap());
        let planes = [tokens(&authority, &store), tokens(&authority, &store)];
        let hour = Duration::from_secs(3600);
        for round in 0..20 {
            let (token, _) = planes[0].create(&Scope::Any, hour, 1).await.unwrap();
            let enrol = async |plane: usize| {
                let stock = service("stock");
                let redeemable = planes[plane].find(&token.to_string(), &stock).await?;
                let instance = Label::new(&format!("i-{round}-{plane}")).unwrap();
                let issued = Issued {
                    key_hash: vec![u8::try_from(plane).unwrap()],
                    expires_at_unix_ms: u64::MAX,
                    ..Issued::default()
                };
                planes[plane].spend(&redeemable, &instance, issued, true, None).await
            };
            let (one, two) = tokio::join!(enrol(0), enrol(1));
            let refused: Vec<_> = [one, two].into_iter().filter_map(Result::err).collect();
            assert_eq!(refused.len(), 1, "{refused:?}");
            let code = tollway_wire::code_of(&refused[0]);
            assert_eq!(code, Some(tollway_model::ErrorCode::TokenSpent), "{refused:?}");
        }
    }
}
