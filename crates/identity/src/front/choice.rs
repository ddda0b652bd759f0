//! The certificate for a client: of those with the requested name, the first whose signature the
//! client can check.

use std::collections::HashMap;
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::FrontPair;

/// Certificates by the names that they have.
#[derive(Debug)]
pub(super) struct ByServerName {
    /// By exact name, and by `*.` and the rest; each list in the order of the options.
    named: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// For clients that ask for no name or an unknown one: the first, and those that have all its
    /// names (its twin with another kind of key).
    otherwise: Vec<Arc<CertifiedKey>>,
}

impl ByServerName {
    /// `None` without a pair.
    pub(super) fn of(pairs: &[FrontPair]) -> Option<Self> {
        let first = pairs.first()?;
        let mut named: HashMap<String, Vec<Arc<CertifiedKey>>> = HashMap::new();
        for pair in pairs {
            for name in pair.names() {
                named.entry(name.clone()).or_default().push(Arc::clone(pair.certified()));
            }
        }
        let is_twin = |pair: &&FrontPair| {
            !first.names().is_empty()
                && first.names().iter().all(|name| pair.names().contains(name))
        };
        let twins = pairs.iter().skip(1).filter(is_twin);
        let otherwise =
            std::iter::once(first).chain(twins).map(|pair| Arc::clone(pair.certified())).collect();
        Some(Self { named, otherwise })
    }

    /// Those that have `name`, which is in lower case; an exact name before a wildcard.
    fn candidates(&self, name: Option<&str>) -> &[Arc<CertifiedKey>] {
        let exact = name.and_then(|name| self.named.get(name));
        let wildcard = || {
            let (_, rest) = name?.split_once('.')?;
            self.named.get(&format!("*.{rest}"))
        };
        exact.or_else(wildcard).unwrap_or(&self.otherwise)
    }

    /// The certificate for a client that requests `name` and supports `schemes`.
    pub(super) fn choose(
        &self,
        name: Option<&str>,
        schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        let candidates = self.candidates(name);
        let checkable = |one: &&Arc<CertifiedKey>| one.key.choose_scheme(schemes).is_some();
        let fits = match candidates {
            [only] => Some(only),
            several => several.iter().find(checkable),
        };
        // No certificate has a signature that the client can check: the alert reports that.
        fits.or(candidates.first()).cloned()
    }
}

impl ResolvesServerCert for ByServerName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        // rustls gives the name in lower case.
        self.choose(hello.server_name(), hello.signature_schemes())
    }
}
