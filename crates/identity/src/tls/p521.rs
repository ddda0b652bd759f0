//! The cryptography towards servers outside the mesh, which choose what they like: the defaults of the
//! library, and agreement on keys over P-521. A server of TLS 1.2 whose certificate has such a key
//! shows it only to a client that offers the curve (RFC 8422 section 5.1).

use std::sync::Arc;

use aws_lc_rs::agreement::{ECDH_P521, PrivateKey, PublicKey, UnparsedPublicKey, agree};
use rustls::crypto::{
    ActiveKeyExchange, CryptoProvider, GetRandomFailed, SharedSecret, SupportedKxGroup,
    aws_lc_rs as defaults,
};
use rustls::{Error, NamedGroup, PeerMisbehaved};

/// What begins a point that is written in full, the only form that is allowed.
const UNCOMPRESSED: u8 = 4;

/// For clients of servers outside the mesh.
#[must_use]
pub fn outside_provider() -> Arc<CryptoProvider> {
    let mut provider = defaults::default_provider();
    // Last: a server that knows another takes that.
    provider.kx_groups.push(&P521);
    Arc::new(provider)
}

#[derive(Debug)]
struct P521;

struct Exchange {
    own: PrivateKey,
    public: PublicKey,
}

impl SupportedKxGroup for P521 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let own = PrivateKey::generate(&ECDH_P521).map_err(|_| GetRandomFailed)?;
        let public = own.compute_public_key().map_err(|_| GetRandomFailed)?;
        Ok(Box::new(Exchange { own, public }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

impl ActiveKeyExchange for Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let invalid = Error::from(PeerMisbehaved::InvalidKeyShare);
        if peer.first() != Some(&UNCOMPRESSED) {
            return Err(invalid);
        }
        let peer = UnparsedPublicKey::new(&ECDH_P521, peer);
        agree(&self.own, peer, invalid, |secret| Ok(SharedSecret::from(secret)))
    }

    fn pub_key(&self) -> &[u8] {
        self.public.as_ref()
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}
