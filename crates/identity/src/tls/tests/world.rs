//! Two networks, a clock, and handshakes over byte buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{
    ClientConfig, ClientConnection, ConnectionCommon, Error, HandshakeKind, ServerConfig,
    ServerConnection, SideData,
};
use tollway_model::{Label, NetworkName, ServiceName, TrustDomain};

use crate::authority::{Authority, IssueRequest, IssuedChain, SystemRequest};
use crate::bundle::{TrustBundle, TrustBundles};
use crate::credentials::Credentials;
use crate::key::KeyPair;
use crate::tls::Expected;

pub(super) const START: u64 = 1_800_000_000;
pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const H2: &[&[u8]] = &[b"h2"];

#[derive(Debug)]
pub(super) struct TestClock(AtomicU64);

impl TestClock {
    pub(super) fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_secs(), Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.0.load(Ordering::Relaxed))
    }
}

impl TimeProvider for TestClock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = Duration::from_secs(self.0.load(Ordering::Relaxed));
        Some(UnixTime::since_unix_epoch(seconds))
    }
}

/// The networks west and east, joined: each believes the other.
pub(super) struct World {
    pub(super) clock: Arc<TestClock>,
    pub(super) west: Authority,
    pub(super) east: Authority,
}

impl World {
    pub(super) fn new() -> Self {
        let clock = Arc::new(TestClock(AtomicU64::new(START)));
        let (west, east) = (authority("west", &clock), authority("east", &clock));
        Self { clock, west, east }
    }

    pub(super) fn bundles(&self, revision: u64) -> TrustBundles {
        TrustBundles::new(revision, [bundle(&self.west), bundle(&self.east)]).unwrap()
    }

    pub(super) fn authority_of(&self, service: &ServiceName) -> &Authority {
        if service.network == label("west") { &self.west } else { &self.east }
    }

    /// The instance `i-1` of a service, with an hour to live.
    pub(super) fn workload(&self, name: &str) -> Credentials {
        self.workload_for(name, HOUR)
    }

    pub(super) fn workload_for(&self, name: &str, ttl: Duration) -> Credentials {
        let key = KeyPair::generate().unwrap();
        let service = service(name);
        let authority = self.authority_of(&service);
        let csr_der = key.csr_der().unwrap();
        let request = IssueRequest { csr_der, service, instance: label("i-1"), ttl };
        let issued = authority.issue(&request, self.clock.now()).unwrap();
        self.credentials(&key, issued)
    }

    pub(super) fn control(&self, authority: &Authority) -> Credentials {
        let key = KeyPair::generate().unwrap();
        let csr_der = key.csr_der().unwrap();
        let request = SystemRequest { csr_der, instance: label("c-1"), ttl: HOUR };
        let issued = authority.issue_control(&request, self.clock.now()).unwrap();
        self.credentials(&key, issued)
    }

    pub(super) fn expected(&self, name: &str) -> Expected {
        let service = service(name);
        Expected::service(&service, self.authority_of(&service).trust_domain())
    }

    fn credentials(&self, key: &KeyPair, issued: IssuedChain) -> Credentials {
        let credentials = Credentials::new(key, issued.chain, self.bundles(1)).unwrap();
        credentials.with_clock(Arc::clone(&self.clock) as Arc<dyn TimeProvider>)
    }
}

pub(super) fn authority(network: &str, clock: &TestClock) -> Authority {
    let network = label(network);
    Authority::create(&TrustDomain::default_for(&network), &network, clock.now()).unwrap()
}

pub(super) fn bundle(authority: &Authority) -> TrustBundle {
    bundle_of(authority, vec![authority.root_der().clone()])
}

pub(super) fn bundle_of(authority: &Authority, roots: Vec<CertificateDer<'static>>) -> TrustBundle {
    TrustBundle::new(authority.network().clone(), authority.trust_domain().clone(), roots).unwrap()
}

pub(super) fn service(name: &str) -> ServiceName {
    ServiceName::parse_in(name, &label("default"), &NetworkName::new("west").unwrap()).unwrap()
}

pub(super) fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

/// How a handshake ended, seen from both ends.
pub(super) struct Outcome {
    pub(super) client: Result<(), Error>,
    pub(super) server: Result<(), Error>,
    pub(super) client_connection: ClientConnection,
    pub(super) server_connection: ServerConnection,
}

impl Outcome {
    #[track_caller]
    pub(super) fn established(self) -> Self {
        assert_eq!((&self.client, &self.server), (&Ok(()), &Ok(())));
        assert!(!self.client_connection.is_handshaking());
        assert!(!self.server_connection.is_handshaking());
        self
    }

    pub(super) fn kind(&self) -> HandshakeKind {
        let (client, server) =
            (self.client_connection.handshake_kind(), self.server_connection.handshake_kind());
        assert_eq!(client, server);
        client.unwrap()
    }
}

/// Shakes hands as the dialler of `name`, until neither side has anything left to send.
pub(super) fn shake(
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
    name: ServerName<'static>,
) -> Outcome {
    let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
    let (mut client_result, mut server_result) = (Ok(()), Ok(()));
    for _ in 0..20 {
        let sent = carry(&mut client, &mut server, &mut server_result)
            + carry(&mut server, &mut client, &mut client_result);
        if sent == 0 {
            break;
        }
    }
    Outcome {
        client: client_result,
        server: server_result,
        client_connection: client,
        server_connection: server,
    }
}

/// Carries bytes in one direction; returns how many.
fn carry<A: SideData, B: SideData>(
    from: &mut ConnectionCommon<A>,
    to: &mut ConnectionCommon<B>,
    result: &mut Result<(), Error>,
) -> usize {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).unwrap();
    }
    let mut left = &bytes[..];
    while !left.is_empty() && result.is_ok() {
        to.read_tls(&mut left).unwrap();
        if let Err(error) = to.process_new_packets() {
            *result = Err(error);
        }
    }
    bytes.len()
}
