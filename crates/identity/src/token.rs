//! Join tokens: how a workload that has nothing yet proves itself to its control plane, and
//! recognises it.
//!
//! `tollway1.<network>.<id>.<secret>.<root fingerprint>`. The id names the token in the store,
//! which has only the secret's hash. The fingerprint is the SHA-256 of the network's root
//! certificate, so the first contact needs no other trust.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use thiserror::Error;
use tollway_model::{Label, NameError, NetworkName};

use crate::pin::RootPin;

const VERSION: &str = "tollway1";
const ID_BYTES: usize = 9;
const SECRET_BYTES: usize = 32;

/// Why a text is not a join token. The text itself is never repeated: it is a secret.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TokenError {
    #[error(
        "this is not a join token: it begins with `{VERSION}.` and has five parts; copy it whole"
    )]
    Shape,
    #[error("the join token names no valid network")]
    Network(#[source] NameError),
    #[error("the {part} of the join token is damaged; copy it whole")]
    Part { part: &'static str },
    #[error("the system gives no randomness")]
    Randomness,
}

/// A join token. `Display` prints it whole, secret included; `Debug` hides the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    id: [u8; ID_BYTES],
    secret: [u8; SECRET_BYTES],
    pin: RootPin,
}

impl JoinToken {
    /// A token with a fresh id and secret for the network whose root is `root_der`.
    ///
    /// # Errors
    /// [`TokenError::Randomness`].
    pub fn generate(network: &NetworkName, root_der: &[u8]) -> Result<Self, TokenError> {
        let (mut id, mut secret) = ([0; ID_BYTES], [0; SECRET_BYTES]);
        let random = SystemRandom::new();
        random.fill(&mut id).map_err(|_| TokenError::Randomness)?;
        random.fill(&mut secret).map_err(|_| TokenError::Randomness)?;
        Ok(Self { id, secret, pin: RootPin::of(network, root_der) })
    }

    #[must_use]
    pub fn network(&self) -> &NetworkName {
        self.pin.network()
    }

    /// The public name of the token, 12 characters: under it the control plane keeps the hash.
    #[must_use]
    pub fn id(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.id)
    }

    /// The part that proves possession, as it goes over the (already authenticated) wire.
    #[must_use]
    pub fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
    }

    /// What the control plane stores instead of the secret.
    #[must_use]
    pub fn secret_hash(&self) -> SecretHash {
        SecretHash::of(&self.secret)
    }

    /// What the first contact trusts.
    #[must_use]
    pub fn pin(&self) -> &RootPin {
        &self.pin
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    /// Surrounding white space is forgiven.
    fn from_str(text: &str) -> Result<Self, TokenError> {
        let mut parts = text.trim().split('.');
        let mut next = || parts.next().ok_or(TokenError::Shape);
        let (version, network, id, secret, root) = (next()?, next()?, next()?, next()?, next()?);
        if version != VERSION || parts.next().is_some() {
            return Err(TokenError::Shape);
        }
        let network = Label::of_network(network).map_err(TokenError::Network)?;
        let (id, secret) = (decode(id, "id")?, decode(secret, "secret")?);
        let pin = RootPin::from_parts(network, decode(root, "fingerprint")?);
        Ok(Self { id, secret, pin })
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{VERSION}.{}.{}.{}.{}",
            self.network(),
            self.id(),
            URL_SAFE_NO_PAD.encode(self.secret),
            URL_SAFE_NO_PAD.encode(self.pin.fingerprint()),
        )
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken")
            .field("network", self.network())
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

/// The SHA-256 of a token's secret. Secrets have 256 random bits, so a plain hash cannot be
/// searched and needs no salt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// The hash of a secret.
    #[must_use]
    pub fn of(secret: &[u8]) -> Self {
        Self(sha256(secret))
    }

    /// Reads a stored hash; `None` when it has another length.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Whether `secret` is the one that was hashed, in time that does not depend on it.
    #[must_use]
    pub fn matches(&self, secret: &[u8]) -> bool {
        verify_slices_are_equal(&self.0, &sha256(secret)).is_ok()
    }
}

fn decode<const N: usize>(text: &str, part: &'static str) -> Result<[u8; N], TokenError> {
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenError::Part { part })?;
    bytes.try_into().map_err(|_| TokenError::Part { part })
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    digest(&SHA256, bytes).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token() -> JoinToken {
        JoinToken::generate(&Label::new("west").unwrap(), b"root").unwrap()
    }

    #[test]
    fn a_token_survives_its_text_form() {
        let token = token();
        let text = format!("  {token}\n");
        assert_eq!(text.parse::<JoinToken>().unwrap(), token);
        assert!(token.pin().pins(b"root") && !token.pin().pins(b"toor"));
    }

    #[test]
    fn damage_is_named_by_its_part() {
        let text = token().to_string();
        let with = |index: usize, part: &str| {
            let mut parts: Vec<_> = text.split('.').collect();
            parts[index] = part;
            parts.join(".").parse::<JoinToken>().unwrap_err()
        };
        assert_eq!(with(0, "tollway2"), TokenError::Shape);
        assert!(matches!(with(1, "a b"), TokenError::Network(_)));
        assert_eq!(with(2, "short"), TokenError::Part { part: "id" });
        assert_eq!(with(3, "!"), TokenError::Part { part: "secret" });
        assert_eq!(with(4, ""), TokenError::Part { part: "fingerprint" });
        assert_eq!(format!("{text}.x").parse::<JoinToken>(), Err(TokenError::Shape));
        assert_eq!(text[..20].parse::<JoinToken>(), Err(TokenError::Shape));
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_means_exactly_itself(
            any in "\\PC{0,60}",
            at in 0_usize..200,
            other: char,
        ) {
            let _ = any.parse::<JoinToken>();
            let mut changed: Vec<char> = token().to_string().chars().collect();
            let at = at % changed.len();
            changed[at] = other;
            let changed: String = changed.into_iter().collect();
            if let Ok(read) = changed.parse::<JoinToken>() {
                prop_assert_eq!(read.to_string(), changed.trim());
            }
        }
    }

    #[test]
    fn only_the_secret_matches_its_hash() {
        let token = token();
        let stored = SecretHash::from_bytes(token.secret_hash().as_bytes()).unwrap();
        assert!(stored.matches(token.secret()));
        assert!(!stored.matches(&[0; 32]));
        assert!(!stored.matches(b""));
        assert_eq!(SecretHash::from_bytes(b"short"), None);
    }

    #[test]
    fn debug_hides_the_secret() {
        let token = token();
        let printed = format!("{token:?}");
        assert!(printed.contains(&token.id()));
        assert!(!printed.contains(&URL_SAFE_NO_PAD.encode(token.secret())));
    }

    #[test]
    fn no_two_tokens_are_alike() {
        assert_ne!(token().secret(), token().secret());
        assert_ne!(token().id(), token().id());
    }
}
