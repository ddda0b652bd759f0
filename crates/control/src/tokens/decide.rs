//! What a join token is good for, whether it redeems, and whether a use of it is left. Pure.

use tollway_identity::{GATEWAY_APP, SecretHash, span};
use tollway_model::{Group, ServiceName};
use tollway_wire::v1;
use tollway_wire::v1::token_status::Scope as Stated;

use crate::clock::ago;
use crate::connections::is_system;
use crate::issue::{Refusal, agents_group};
use crate::stored::{Issued, ScopeKind, Token, TokenUse};

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
    pub(super) fn read(token: &Token) -> Option<Self> {
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

    pub(super) fn state(self) -> Stated {
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
pub(super) fn decide_token(
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
pub(super) fn decide_usable<'a>(
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
pub(super) enum Spending {
    OneUse,
    /// The answer to an earlier request of the same process was lost, or it asks again.
    Nothing,
}

/// Whether a use is left for an instance with the last certificate `last` that asks for another one
/// with the key of `key_hash`. Only the holder of a key can have it certified, so a request with the
/// key of the running certificate is of the same process: it gets nothing that it does not have.
pub(super) fn decide_spending(
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
pub(super) fn decide_left(token: &Token, used: &TokenUse, now_unix_ms: u64) -> Result<(), Refusal> {
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
}
