//! What the app beside this sidecar may call out of the mesh: the rules that hold now, the TLS that is
//! begun by them, and what was decided. Data threads and the runtime decide by the same.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustls::{ClientConfig, RootCertStore};
use tokio::sync::Notify;
use tollway_identity::{public_config, roots_in_pem, system_roots};
use tollway_model::{ErrorCode, HostName};
use tollway_routing::{EgressDecision, EgressRules, Verdict};
use tollway_telemetry::LogLimiter;

use crate::tls::alpn;

/// How long a call waits for the first rules.
const FIRST_RULES: Duration = Duration::from_secs(5);

/// The host of a URL or a tunnel, with its port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExternalHost {
    Name(HostName, u16),
    Address(SocketAddr),
}

impl ExternalHost {
    /// Reads `HOST[:PORT]`; `None` for a host that cannot be external.
    #[must_use]
    pub fn read(authority: &str, default_port: u16) -> Option<Self> {
        let has_port = |rest: &str| match rest.strip_prefix(':') {
            Some(port) => port.parse().ok().filter(|port| *port != 0),
            None if rest.is_empty() => Some(default_port),
            None => None,
        };
        if let Some(rest) = authority.strip_prefix('[') {
            let (ip, rest) = rest.split_once(']')?;
            let ip: IpAddr = ip.parse().ok()?;
            return Some(Self::Address(SocketAddr::new(ip, has_port(rest)?)));
        }
        let at = authority.find(':').unwrap_or(authority.len());
        let (host, rest) = authority.split_at(at);
        let port = has_port(rest)?;
        match host.parse::<IpAddr>() {
            Ok(ip) => Some(Self::Address(SocketAddr::new(ip, port))),
            Err(_) => HostName::read(host).map(|name| Self::Name(name, port)),
        }
    }

    /// What the rules decide on a call of it.
    #[must_use]
    pub fn decide(&self, rules: &EgressRules) -> EgressDecision {
        match self {
            Self::Name(name, port) => rules.decide_name(name, *port),
            Self::Address(address) => rules.decide_address(*address),
        }
    }
}

impl fmt::Display for ExternalHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name, port) => write!(f, "{name}:{port}"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// The rules of the app, shared by all threads.
#[derive(Default)]
pub struct AppEgress {
    present: Mutex<Option<Arc<Present>>>,
    /// The first rules have come.
    arrived: Notify,
    /// Where this sidecar listens, and where others reach it.
    own: OnceLock<Vec<SocketAddr>>,
    counts: [AtomicU64; Self::WORDS.len()],
    log: Mutex<LogLimiter>,
}

/// The rules that hold, and the TLS that they begin.
#[derive(Debug, Default)]
pub(crate) struct Present {
    rules: Arc<EgressRules>,
    tls: HashMap<Option<Arc<str>>, Arc<BegunTls>>,
}

/// TLS to hosts whose certificates these authorities sign, for each protocol.
#[derive(Debug)]
struct BegunTls {
    http1: Arc<ClientConfig>,
    h2: Arc<ClientConfig>,
}

impl Present {
    /// Reads the authorities, which may take some time.
    pub(crate) fn new(rules: EgressRules) -> Self {
        let mut tls: HashMap<Option<Arc<str>>, Arc<BegunTls>> = HashMap::new();
        for authorities in rules.authorities() {
            if tls.contains_key(&authorities) {
                continue;
            }
            let roots = match &authorities {
                Some(pem) => roots_in_pem(pem).unwrap_or_else(|_| RootCertStore::empty()),
                None => system_roots(),
            };
            let config = |protocol| public_config(roots.clone(), &[protocol], None).map(Arc::new);
            match (config(alpn::HTTP1), config(alpn::H2)) {
                (Ok(http1), Ok(h2)) if !roots.is_empty() => {
                    tls.insert(authorities, Arc::new(BegunTls { http1, h2 }));
                }
                _ => tracing::error!(
                    "no authorities by which TLS can be begun; calls of those hosts fail"
                ),
            }
        }
        Self { rules: Arc::new(rules), tls }
    }

    /// TLS for a host whose certificate these authorities sign; `None` if there are none.
    pub(crate) fn tls(
        &self,
        authorities: &Option<Arc<str>>,
        is_h2: bool,
    ) -> Option<Arc<ClientConfig>> {
        let begun = self.tls.get(authorities)?;
        Some(Arc::clone(if is_h2 { &begun.h2 } else { &begun.http1 }))
    }

    pub(crate) fn rules(&self) -> &EgressRules {
        &self.rules
    }
}

impl fmt::Debug for AppEgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppEgress").field("present", &self.present).finish_non_exhaustive()
    }
}

impl AppEgress {
    /// What is counted, in the order of the counts.
    pub(crate) const WORDS: [&str; 4] = ["allowed", "default", "refused", "shadow_refused"];

    /// The rules that hold; `None` before the control plane has sent any.
    #[must_use]
    pub fn rules(&self) -> Option<Arc<EgressRules>> {
        self.present().map(|present| Arc::clone(&present.rules))
    }

    pub(crate) fn present(&self) -> Option<Arc<Present>> {
        self.lock().clone()
    }

    pub(crate) fn replace(&self, present: Arc<Present>) {
        *self.lock() = Some(present);
        self.arrived.notify_waiters();
    }

    /// The rules that hold, waited for where the control plane has not sent any; `None` if none come
    /// within a few seconds.
    pub async fn first_rules(&self) -> Option<Arc<EgressRules>> {
        let mut arrived = pin!(self.arrived.notified());
        // From here on no notice is missed.
        arrived.as_mut().enable();
        if self.rules().is_none() {
            let _ = tokio::time::timeout(FIRST_RULES, arrived).await;
        }
        self.rules()
    }

    /// Where this sidecar listens. Set once, by the one who starts it.
    pub(crate) fn set_own(&self, own: Vec<SocketAddr>) {
        let _ = self.own.set(own);
    }

    /// Whether an address that was found by a name may be called: it is neither of this machine or its
    /// link, nor of this sidecar, unless an egress names the address itself.
    #[must_use]
    pub fn may_be_behind_a_name(&self, rules: &EgressRules, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        let own = self.own.get().map_or(&[][..], Vec::as_slice);
        let is_own =
            |own: &SocketAddr| own.port() == address.port() && own.ip().to_canonical() == ip;
        rules.may_be_behind_a_name(address) && (rules.names_address(ip) || !own.iter().any(is_own))
    }

    /// Counts what was decided on a call of `host`; that it is refused, or would be, is logged.
    pub fn note(&self, decision: &EgressDecision, host: &dyn fmt::Display, now: Instant) {
        let at = match (&decision.verdict, decision.would_refuse) {
            (Verdict::Allowed(_), _) => 0,
            (Verdict::ByDefault, false) => 1,
            (Verdict::Refused, _) => 2,
            (Verdict::ByDefault, true) => 3,
        };
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        if at < 2 {
            return;
        }
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left_out) = log.admit("egress", format!("{} {host}", Self::WORDS[at]), now) {
            drop(log);
            let code = ErrorCode::EgressRefused;
            match decision.would_refuse {
                false => tracing::info!(%code, %host, left_out, "no egress allows a call"),
                true => {
                    tracing::info!(%host, left_out, "no egress allows a call; in shadow mode it passes")
                }
            }
        }
    }

    /// What was decided so far, in the order of [`Self::WORDS`].
    pub(crate) fn counts(&self) -> [u64; Self::WORDS.len()] {
        std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Present>>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tollway_model::EgressDefault;

    use super::*;

    #[test]
    fn hosts_are_read_with_their_ports() {
        let read = |text: &str| ExternalHost::read(text, 80).map(|host| host.to_string());
        for (text, host) in [
            ("API.example", "api.example:80"),
            ("api.example:443", "api.example:443"),
            ("192.0.2.7", "192.0.2.7:80"),
            ("[2001:db8::7]:443", "[2001:db8::7]:443"),
            ("[::1]", "[::1]:80"),
        ] {
            assert_eq!(read(text).as_deref(), Some(host), "{text}");
        }
        for text in
            ["", ":80", "a:0", "a:x", "a:70000", "0x7f.1:80", "stock.mesh:80", "[::1]x", "::1"]
        {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn names_do_not_lead_to_the_sidecar_itself() {
        let egress = AppEgress::default();
        let own: SocketAddr = "10.0.0.5:15001".parse().unwrap();
        egress.set_own(vec![own]);
        let rules = EgressRules::new(EgressDefault::Open, Vec::new());
        assert!(!egress.may_be_behind_a_name(&rules, own));
        assert!(!egress.may_be_behind_a_name(&rules, "[::ffff:10.0.0.5]:15001".parse().unwrap()));
        assert!(egress.may_be_behind_a_name(&rules, "10.0.0.5:80".parse().unwrap()));
        assert!(!egress.may_be_behind_a_name(&rules, "127.0.0.1:80".parse().unwrap()));
    }
}
