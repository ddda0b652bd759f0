//! Secrets at rest, encrypted by a passphrase or a key that is kept elsewhere.
//!
//! A sealed secret is one byte of version, the rounds of PBKDF2 (4 bytes), a salt of 16, a nonce of
//! 12, and what AES-256-GCM makes of the secret. The key is derived from the passphrase by
//! PBKDF2-HMAC-SHA256. All that precedes the ciphertext, and what the secret is, are authenticated.

use std::fmt;
use std::num::NonZeroU32;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::pbkdf2::{PBKDF2_HMAC_SHA256, derive};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use thiserror::Error;

/// The one version of the form.
const VERSION: u8 = 1;
/// Rounds of new secrets: half a second of a processor at most.
const ROUNDS: u32 = 600_000;
/// More are not derived: a stored number must not stop a start for hours.
const MAX_ROUNDS: u32 = 100_000_000;
const SALT_BYTES: usize = 16;
const KEY_BYTES: usize = 32;
const ROUNDS_END: usize = 5;
const SALT_END: usize = ROUNDS_END + SALT_BYTES;
const NONCE_END: usize = SALT_END + NONCE_LEN;

/// Fewest and most bytes of a passphrase.
const LEAST_BYTES: usize = 16;
const MOST_BYTES: usize = 4096;

/// A passphrase or a key by which secrets are sealed. `Debug` does not show it.
pub struct SealingKey(Vec<u8>);

/// Why a secret was not sealed or opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SealError {
    #[error("the passphrase has fewer than {LEAST_BYTES} bytes; take a longer one")]
    Short,
    #[error("the passphrase has more than {MOST_BYTES} bytes; take a shorter one")]
    Long,
    #[error("it is sealed by another passphrase; give the one that it was sealed with")]
    WrongKey,
    #[error("it is no sealed secret of this version; restore it from a copy")]
    Malformed,
    #[error("the system gives no random numbers")]
    Randomness,
}

impl SealingKey {
    /// Most bytes that a file with a passphrase can have, with the end of its line.
    pub const FILE_BYTES: u64 = MOST_BYTES as u64 + 2;

    /// A passphrase; the end of its line is no part of it.
    ///
    /// # Errors
    /// [`SealError::Short`], [`SealError::Long`].
    pub fn new(passphrase: &[u8]) -> Result<Self, SealError> {
        let passphrase = passphrase.strip_suffix(b"\n").unwrap_or(passphrase);
        let passphrase = passphrase.strip_suffix(b"\r").unwrap_or(passphrase);
        match passphrase.len() {
            ..LEAST_BYTES => Err(SealError::Short),
            LEAST_BYTES..=MOST_BYTES => Ok(Self(passphrase.to_vec())),
            _ => Err(SealError::Long),
        }
    }

    /// Seals a secret. `what` says which one it is: it opens only as that. Takes up to half a
    /// second of a processor, as [`SealingKey::open`] does.
    ///
    /// # Errors
    /// [`SealError::Randomness`].
    pub fn seal(&self, secret: &[u8], what: &str) -> Result<Vec<u8>, SealError> {
        let mut sealed = vec![VERSION];
        sealed.extend(ROUNDS.to_be_bytes());
        let mut salt = [0; SALT_BYTES];
        SystemRandom::new().fill(&mut salt).map_err(|_| SealError::Randomness)?;
        sealed.extend(salt);
        let key = self.derive(ROUNDS, &salt)?;
        let mut text = secret.to_vec();
        let context = context(&sealed, what);
        let nonce = key.seal_in_place_append_tag(Aad::from(context), &mut text);
        sealed.extend(nonce.map_err(|_| SealError::Randomness)?.as_ref());
        sealed.extend(text);
        Ok(sealed)
    }

    /// Opens what [`SealingKey::seal`] made.
    ///
    /// # Errors
    /// [`SealError::WrongKey`], also where a byte of it was changed; [`SealError::Malformed`].
    pub fn open(&self, sealed: &[u8], what: &str) -> Result<Vec<u8>, SealError> {
        let (head, text) = sealed.split_at_checked(NONCE_END).ok_or(SealError::Malformed)?;
        let (before, nonce) = head.split_at(SALT_END);
        let (front, salt) = before.split_at(ROUNDS_END);
        let [VERSION, rounds @ ..] = front else { return Err(SealError::Malformed) };
        let rounds = rounds.try_into().map(u32::from_be_bytes);
        let rounds = rounds.map_err(|_| SealError::Malformed)?;
        if !(ROUNDS..=MAX_ROUNDS).contains(&rounds) {
            return Err(SealError::Malformed);
        }
        let key = self.derive(rounds, salt)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Malformed)?;
        let mut text = text.to_vec();
        let opened = key.open_in_place(nonce, Aad::from(context(before, what)), &mut text);
        Ok(opened.map_err(|_| SealError::WrongKey)?.to_vec())
    }

    fn derive(&self, rounds: u32, salt: &[u8]) -> Result<RandomizedNonceKey, SealError> {
        let rounds = NonZeroU32::new(rounds).ok_or(SealError::Malformed)?;
        let mut key = [0; KEY_BYTES];
        derive(PBKDF2_HMAC_SHA256, rounds, salt, &self.0, &mut key);
        RandomizedNonceKey::new(&AES_256_GCM, &key).map_err(|_| SealError::Malformed)
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealingKey")
    }
}

/// What is authenticated beside the secret.
fn context(before: &[u8], what: &str) -> Vec<u8> {
    [before, what.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> SealingKey {
        SealingKey::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_secret_opens_by_its_passphrase_alone() {
        let own = key("a passphrase of mine");
        let sealed = own.seal(b"secret", "authority of west").unwrap();
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
        let again = key("a passphrase of mine\n");
        assert_eq!(again.open(&sealed, "authority of west").unwrap(), b"secret");
        let other = key("a passphrase of yours").open(&sealed, "authority of west");
        assert_eq!(other, Err(SealError::WrongKey));
        assert_eq!(own.open(&sealed, "authority of east"), Err(SealError::WrongKey));
        assert_ne!(own.seal(b"secret", "authority of west").unwrap(), sealed, "salt and nonce");
    }

    #[test]
    fn a_changed_secret_does_not_open() {
        let own = key("a passphrase of mine");
        let sealed = own.seal(b"secret", "x").unwrap();
        // A byte of each part, and the end.
        for at in [0, 4, ROUNDS_END, SALT_END, NONCE_END, sealed.len() - 1] {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(own.open(&changed, "x").is_err(), "{at}");
        }
        for length in [0, 1, NONCE_END - 1, NONCE_END, sealed.len() - 1] {
            assert!(own.open(&sealed[..length], "x").is_err(), "{length}");
        }
        // Neither few rounds nor so many that a start never ends.
        for rounds in [0, 1, ROUNDS - 1, MAX_ROUNDS + 1, u32::MAX] {
            let mut changed = sealed.clone();
            changed[1..ROUNDS_END].copy_from_slice(&rounds.to_be_bytes());
            assert_eq!(own.open(&changed, "x"), Err(SealError::Malformed), "{rounds}");
        }
    }

    #[test]
    fn a_short_passphrase_is_refused_and_none_is_shown() {
        assert_eq!(SealingKey::new(b"short\n").unwrap_err(), SealError::Short);
        assert_eq!(SealingKey::new(&[b'x'; MOST_BYTES + 1]).unwrap_err(), SealError::Long);
        assert_eq!(format!("{:?}", key("a passphrase of mine")), "SealingKey");
    }
}
