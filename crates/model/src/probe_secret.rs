//! What a control plane and the gateways of a joined network share, so that an answer to a probe is
//! the gateway's own.

use std::fmt;

/// A secret of one joined network. It is written nowhere but in stores and messages of the mesh.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ProbeSecret([u8; 32]);

impl ProbeSecret {
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// `None` unless there are 32 bytes.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for ProbeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProbeSecret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_32_bytes_and_is_not_printed() {
        let secret = ProbeSecret::read(&[7; 32]).unwrap();
        assert_eq!((format!("{secret:?}").as_str(), secret.as_bytes()), ("ProbeSecret", &[7; 32]));
        assert_eq!(ProbeSecret::read(&[7; 31]), None);
        assert_eq!(ProbeSecret::read(&[]), None);
    }
}
