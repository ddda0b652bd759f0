//! What a first contact with a control plane trusts: one network, and its root certificate.
//!
//! `tollway1-root.<network>.<root fingerprint>` is no secret: a workload that proves itself by other
//! means than a join token is started with it.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use thiserror::Error;
use tollway_model::{Label, NameError, NetworkName};

const VERSION: &str = "tollway1-root";
const FINGERPRINT_BYTES: usize = 32;

/// A network and the SHA-256 of its root certificate (DER).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootPin {
    network: NetworkName,
    fingerprint: [u8; FINGERPRINT_BYTES],
}

/// Why a text is not the pin of a root.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RootPinError {
    #[error(
        "this is not the pin of a root: it begins with `{VERSION}.` and has three parts; `tollway identity root` prints it"
    )]
    Shape,
    #[error("the pin of the root names no valid network")]
    Network(#[source] NameError),
    #[error(
        "the fingerprint in the pin of the root is damaged; `tollway identity root` prints it whole"
    )]
    Fingerprint,
}

impl RootPin {
    /// The pin of the network whose root certificate is `root_der`.
    #[must_use]
    pub fn of(network: &NetworkName, root_der: &[u8]) -> Self {
        let hash = digest(&SHA256, root_der);
        let fingerprint = hash.as_ref().try_into().expect("SHA-256 has 32 bytes");
        Self { network: network.clone(), fingerprint }
    }

    pub(crate) fn from_parts(network: NetworkName, fingerprint: [u8; FINGERPRINT_BYTES]) -> Self {
        Self { network, fingerprint }
    }

    #[must_use]
    pub fn network(&self) -> &NetworkName {
        &self.network
    }

    /// SHA-256 of the network's root certificate (DER).
    #[must_use]
    pub fn fingerprint(&self) -> &[u8; FINGERPRINT_BYTES] {
        &self.fingerprint
    }

    /// Whether this certificate is the root.
    #[must_use]
    pub fn pins(&self, certificate_der: &[u8]) -> bool {
        Self::of(&self.network, certificate_der).fingerprint == self.fingerprint
    }
}

impl FromStr for RootPin {
    type Err = RootPinError;

    /// Surrounding white space is left out.
    fn from_str(text: &str) -> Result<Self, RootPinError> {
        let mut parts = text.trim().split('.');
        let mut next = || parts.next().ok_or(RootPinError::Shape);
        let (version, network, fingerprint) = (next()?, next()?, next()?);
        if version != VERSION || parts.next().is_some() {
            return Err(RootPinError::Shape);
        }
        let network = Label::of_network(network).map_err(RootPinError::Network)?;
        let bytes = URL_SAFE_NO_PAD.decode(fingerprint).map_err(|_| RootPinError::Fingerprint)?;
        let fingerprint = bytes.try_into().map_err(|_| RootPinError::Fingerprint)?;
        Ok(Self { network, fingerprint })
    }
}

impl fmt::Display for RootPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}.{}.{}", self.network, URL_SAFE_NO_PAD.encode(self.fingerprint))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pin() -> RootPin {
        RootPin::of(&Label::new("west").unwrap(), b"root")
    }

    #[test]
    fn a_pin_survives_its_text_form_and_pins_its_root_alone() {
        let pin = pin();
        assert_eq!(format!(" {pin}\n").parse::<RootPin>().unwrap(), pin);
        assert!(pin.pins(b"root") && !pin.pins(b"toor"));
    }

    #[test]
    fn damage_is_named_by_its_part() {
        let text = pin().to_string();
        let (head, _) = text.rsplit_once('.').unwrap();
        assert_eq!(head.parse::<RootPin>(), Err(RootPinError::Shape));
        assert_eq!(format!("{text}.x").parse::<RootPin>(), Err(RootPinError::Shape));
        assert_eq!(format!("{head}.x").parse::<RootPin>(), Err(RootPinError::Fingerprint));
        let other = text.replace(".west.", ".we st.");
        assert!(matches!(other.parse::<RootPin>(), Err(RootPinError::Network(_))));
        assert_eq!(text.replace("1-root", "1").parse::<RootPin>(), Err(RootPinError::Shape));
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_means_exactly_itself(
            any in "\\PC{0,60}",
            at in 0_usize..80,
            other: char,
        ) {
            let _ = any.parse::<RootPin>();
            let mut changed: Vec<char> = pin().to_string().chars().collect();
            let at = at % changed.len();
            changed[at] = other;
            let changed: String = changed.into_iter().collect();
            if let Ok(read) = changed.parse::<RootPin>() {
                prop_assert_eq!(read.to_string(), changed.trim());
            }
        }
    }
}
