//! Join tokens: made, listed, revoked, and used by those who have one.
//!
//! A token has a record with what it is good for, and one with how far it was used. Each instance
//! that enrols spends one use, in the same transaction that stores its certificate.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::sync::Mutex;
use tollway_identity::{Authority, GATEWAY_APP, JoinToken, SecretHash, span};
use tollway_model::{Group, Instance, ServiceName};
use tollway_store::{Entry, Expected, KeyRange, Store, TransactError, Transaction};
use tollway_wire::v1;
use tollway_wire::v1::token_status::Scope as Stated;
use tonic::Status;
use tracing::{info, warn};

use crate::clock::{ago, later, unix_now_ms};
use crate::connections::is_system;
use crate::issue::{Refusal, agents_group};
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

/// What a join token is good for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    Any,
    Namespace(String),
    App {
        namespace: String,
        app: String,
    },
    Gateway,
    /// Agents of the fabric, of this group.
    Fabric(Group),
}

impl Scope {
    fn read(token: &Token) -> Option<Self> {
        let (namespace, app) = (token.namespace.clone(), token.app.clone());
        match token.scope() {
            ScopeKind::Any => Some(Self::Any),
            ScopeKind::Namespace => Some(Self::Namespace(namespace)),
            ScopeKind::App => Some(Self::App { namespace, app }),
            ScopeKind::Gateway => Some(Self::Gateway),
            ScopeKind::Fabric => Group::new(&app).ok().map(Self::Fabric),
            ScopeKind::Unspecified => None,
        }
    }

    fn state(self) -> Stated {
        match self {
            Self::Any => Stated::Any(v1::AnyWorkload {}),
            Self::Namespace(namespace) => Stated::Namespace(namespace),
            Self::App { namespace, app } => Stated::App(v1::AppScope { namespace, app }),
            Self::Gateway => Stated::Gateway(v1::GatewayScope {}),
            Self::Fabric(group) => Stated::FabricGroup(group.to_string()),
        }
    }

    /// Names compare without case. The namespace of the mesh itself is never in a scope, but
    /// for its gateways.
    fn allows(&self, service: &ServiceName) -> bool {
        let in_namespace =
            |namespace: &str| service.namespace.as_str().eq_ignore_ascii_case(namespace);
        if is_system(service) {
            return match self {
                Self::Gateway => is_gateway(service),
                Self::Fabric(group) => agents_group(service).as_ref() == Some(group),
                Self::Any | Self::Namespace(_) | Self::App { .. } => false,
            };
        }
        match self {
            Self::Any => true,
            Self::Namespace(namespace) => in_namespace(namespace),
            Self::App { namespace, app } => {
                in_namespace(namespace) && service.app.as_str().eq_ignore_ascii_case(app)
            }
            Self::Gateway | Self::Fabric(_) => false,
        }
    }
}

pub(crate) fn is_gateway(service: &ServiceName) -> bool {
    is_system(service) && service.app.as_str().eq_ignore_ascii_case(GATEWAY_APP)
}

/// Whether `secret` redeems `stored` for `service` at `now_unix_ms`, if a use is left.
fn decide_token(
    stored: Option<&Token>,
    secret: &[u8],
    service: &ServiceName,
    now_unix_ms: u64,
) -> Result<(), Refusal> {
    let stored = decide_usable(stored, secret, now_unix_ms)?;
    if Scope::read(stored).is_some_and(|scope| scope.allows(service)) {
        return Ok(());
    }
    Err(Refusal::Scope { service: service.clone() })
}

/// The token that `secret` redeems at `now_unix_ms`, for whatever its scope is.
fn decide_usable<'a>(
    stored: Option<&'a Token>,
    secret: &[u8],
    now_unix_ms: u64,
) -> Result<&'a Token, Refusal> {
    // One answer for an unknown id and a wrong secret: an id is not secret.
    let stored = stored
        .filter(|token| {
            SecretHash::from_bytes(&token.secret_hash).is_some_and(|hash| hash.matches(secret))
        })
        .ok_or(Refusal::UnknownToken)?;
    if stored.revoked_at_unix_ms > 0 {
        let revoked_for = ago(now_unix_ms, stored.revoked_at_unix_ms).unwrap_or_default();
        return Err(Refusal::RevokedToken { revoked_for });
    }
    match ago(now_unix_ms, stored.expires_at_unix_ms) {
        Some(expired_for) => Err(Refusal::ExpiredToken { expired_for }),
        None => Ok(stored),
    }
}

/// What an enrolment with a usable token does to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Spending {
    OneUse,
    /// The answer to an earlier request of the same process was lost, or it asks again.
    Nothing,
}

/// Whether a use is left for an instance with the last certificate `last` that asks for another one
/// with the key of `key_hash`. Only the holder of a key can have it certified, so a request with the
/// key of the running certificate is of the same process: it gets nothing that it does not have.
fn decide_spending(
    (id, token, used): (&str, &Token, &TokenUse),
    last: Option<&Issued>,
    key_hash: &[u8],
    now_unix_ms: u64,
) -> Result<Spending, Refusal> {
    let is_again = |last: &Issued| {
        last.token == id && last.key_hash == key_hash && now_unix_ms < last.expires_at_unix_ms
    };
    if last.is_some_and(is_again) {
        return Ok(Spending::Nothing);
    }
    decide_left(token, used, now_unix_ms)?;
    Ok(Spending::OneUse)
}

/// Whether a use is left.
fn decide_left(token: &Token, used: &TokenUse, now_unix_ms: u64) -> Result<(), Refusal> {
    if token.uses == 0 || used.used < token.uses {
        return Ok(());
    }
    let service = used.service.as_ref();
    let by = service.map_or_else(String::new, |s| format!("{}.{}", s.app, s.namespace));
    Err(Refusal::SpentToken {
        uses: token.uses,
        by: format!("{by} (instance {})", used.instance),
        from: used.from.clone(),
        ago: span(ago(now_unix_ms, used.at_unix_ms).unwrap_or_default()),
    })
}

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

    /// The record of a token that would be taken now, for whatever its scope is.
    pub(crate) async fn check(&self, token: &str) -> Result<Token, Status> {
        let token = self.read(token)?;
        let stored = self.stored(&token.id()).await?.map(|(_, stored)| stored);
        let now = unix_now_ms();
        let usable = decide_usable(stored.as_ref(), token.secret(), now)?;
        let (_, used) = self.used(&token.id()).await?;
        decide_left(usable, &used, now)?;
        Ok(usable.clone())
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

    fn token(scope: ScopeKind, namespace: &str, app: &str) -> Token {
        Token {
            secret_hash: SecretHash::of(b"secret").as_bytes().to_vec(),
            expires_at_unix_ms: 1_000,
            scope: scope.into(),
            namespace: namespace.to_owned(),
            app: app.to_owned(),
            uses: 1,
            ..Token::default()
        }
    }

    #[track_caller]
    fn check(token: &Token, name: &str, allowed: bool) {
        let decided = decide_token(Some(token), b"secret", &service(name), 999);
        assert_eq!(decided.is_ok(), allowed, "{name}: {decided:?}");
    }

    #[test]
    fn a_token_is_good_for_its_scope_only() {
        let any = token(ScopeKind::Any, "", "");
        check(&any, "stock", true);
        check(&any, "stock.shop", true);
        check(&any, "gateway.tollway", false);
        check(&any, "control.Tollway", false);
        let shop = token(ScopeKind::Namespace, "shop", "");
        check(&shop, "stock.Shop", true);
        check(&shop, "stock", false);
        let app = token(ScopeKind::App, "shop", "stock");
        check(&app, "STOCK.shop", true);
        check(&app, "orders.shop", false);
        check(&app, "stock", false);
        let gateway = token(ScopeKind::Gateway, "", "");
        check(&gateway, "gateway.tollway", true);
        check(&gateway, "control.tollway", false);
        check(&gateway, "stock", false);
        check(&any, "fabric-racks.tollway", false);
        check(&gateway, "fabric-racks.tollway", false);
        let fabric = token(ScopeKind::Fabric, "", "Racks");
        check(&fabric, "fabric-racks.tollway", true);
        check(&fabric, "fabric-rack.tollway", false);
        check(&fabric, "gateway.tollway", false);
        check(&fabric, "fabric-racks", false);
        check(&token(ScopeKind::Unspecified, "", ""), "stock", false);
        check(&token(ScopeKind::Namespace, "tollway", ""), "control.tollway", false);
    }

    #[test]
    fn a_token_needs_its_secret_and_its_time() {
        let any = token(ScopeKind::Any, "", "");
        let refusal = |stored: Option<&Token>, secret: &[u8], now| {
            decide_token(stored, secret, &service("stock"), now).unwrap_err().to_string()
        };
        let unknown =
            "the join token is not known here; make a new one with `tollway token create`";
        assert_eq!(refusal(None, b"secret", 0), unknown);
        assert_eq!(refusal(Some(&any), b"Secret", 0), unknown);
        assert_eq!(
            refusal(Some(&any), b"secret", 1_000),
            "the join token expired 0ns ago; make a new one with `tollway token create`"
        );
    }

    #[test]
    fn a_revoked_token_is_refused_also_after_its_end() {
        let revoked = Token { revoked_at_unix_ms: 500, ..token(ScopeKind::Any, "", "") };
        for now in [500, 1_500] {
            let decided = decide_token(Some(&revoked), b"secret", &service("stock"), now);
            assert!(matches!(decided, Err(Refusal::RevokedToken { .. })), "{decided:?}");
        }
        let guessed = decide_token(Some(&revoked), b"guess", &service("stock"), 500);
        assert!(matches!(guessed, Err(Refusal::UnknownToken)), "{guessed:?}");
    }

    #[test]
    fn each_instance_and_each_key_is_a_use_and_a_repeated_request_is_none() {
        let one_use = token(ScopeKind::Any, "", "");
        let spent = TokenUse {
            used: 1,
            at_unix_ms: 400,
            service: Some((&service("stock")).into()),
            instance: "a".into(),
            from: "10.0.0.9".into(),
        };
        let last = Issued {
            token: "id".into(),
            key_hash: b"key".to_vec(),
            expires_at_unix_ms: 900,
            ..Issued::default()
        };
        let decide = |token: &Token, used: &TokenUse, last: Option<&Issued>, key: &[u8], now| {
            decide_spending(("id", token, used), last, key, now)
        };
        let fresh = TokenUse::default();
        assert_eq!(decide(&one_use, &fresh, None, b"key", 1).unwrap(), Spending::OneUse);
        assert_eq!(decide(&one_use, &spent, Some(&last), b"key", 899).unwrap(), Spending::Nothing);
        let refusals = [
            ("another instance", None, &b"key"[..], 500),
            ("another key", Some(&last), b"other", 500),
            ("the certificate has ended", Some(&last), b"key", 900),
        ];
        for (why, last, key, now) in refusals {
            let refused = decide(&one_use, &spent, last, key, now);
            assert!(matches!(refused, Err(Refusal::SpentToken { .. })), "{why}: {refused:?}");
        }
        let other_token = Issued { token: "other".into(), ..last.clone() };
        assert!(decide(&one_use, &spent, Some(&other_token), b"key", 500).is_err());
        let any_number = Token { uses: 0, ..one_use.clone() };
        assert_eq!(decide(&any_number, &spent, None, b"other", 1).unwrap(), Spending::OneUse);
        let two = Token { uses: 2, ..one_use };
        assert_eq!(decide(&two, &spent, None, b"other", 1).unwrap(), Spending::OneUse);
        let text = decide_left(&Token { uses: 1, ..two }, &spent, 7_400).unwrap_err().to_string();
        let parts = ["1 of 1 uses", "by stock.default (instance a) from 10.0.0.9 7 s ago"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
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
