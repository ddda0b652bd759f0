//! Limits of simultaneous connections, one for each kind: authenticated connections, those of control
//! planes of joined networks, unauthenticated connections (of a workload that joins), and TLS
//! handshakes. A connection holds a permit of one kind, so that none exhausts the limit of another.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};
use tollway_net::Origin;
use tollway_telemetry::Page;
use tollway_telemetry::metrics::names;

use super::shares::{Holder, Limits, Own, Refused, Share, ShareLimit};
use crate::options::ConnectionOptions;

/// Connections of the control plane of one joined network: one, and for a moment those from before
/// it reconnected.
const CONNECTIONS_PER_JOINED_LIMIT: u64 = 8;

/// Why a connection was refused, or ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// Evicted by another handshake.
    Handshakes,
    /// Evicted by another unauthenticated connection.
    Unauthenticated,
    /// The limit of authenticated connections is reached, and no identity has more.
    Connections,
    /// Evicted because its identity had most of all.
    Share,
    /// It is a workload of a joined network, for which there is nothing here.
    Foreign,
    /// Evicted because no descriptor was left.
    Descriptors,
    /// Its handshake did not end in time.
    Timeout,
    /// Its handshake failed.
    Tls,
    /// It proved no identity that holds now.
    Identity,
    /// It did not read its answers in time.
    SendBuffer,
}

impl Reason {
    const ALL: [Self; 10] = [
        Self::Handshakes,
        Self::Unauthenticated,
        Self::Connections,
        Self::Share,
        Self::Foreign,
        Self::Descriptors,
        Self::Timeout,
        Self::Tls,
        Self::Identity,
        Self::SendBuffer,
    ];

    /// Its value of the label `reason`.
    fn word(self) -> &'static str {
        match self {
            Self::Handshakes => "handshakes",
            Self::Unauthenticated => "unauthenticated",
            Self::Connections => "connections",
            Self::Share => "share",
            Self::Foreign => "foreign",
            Self::Descriptors => "descriptors",
            Self::Timeout => "timeout",
            Self::Tls => "tls",
            Self::Identity => "identity",
            Self::SendBuffer => "send_buffer",
        }
    }
}

/// The connection limits of one control plane.
pub(crate) struct ConnectionLimits {
    authenticated: Arc<ShareLimit>,
    joined: Arc<ShareLimit>,
    unauthenticated: Arc<EvictingLimit>,
    handshakes: Arc<EvictingLimit>,
    /// How many were refused for each reason; handshakes may end on several threads.
    refused: [AtomicU64; Reason::ALL.len()],
    /// How many admitted streams and connections ended for mistakes in HTTP/2.
    mistakes: AtomicU64,
    /// Bytes of the send backlogs of all connections.
    pub(crate) backlog_bytes: Arc<AtomicUsize>,
}

impl ConnectionLimits {
    pub(crate) fn new(limits: ConnectionOptions) -> Self {
        let of = |all: usize, instance| Limits::of(all as u64, instance);
        let authenticated = of(limits.authenticated, limits.per_instance as u64);
        // Each is a namespace of its own: none has more than the others.
        let joined = of(limits.joined, CONNECTIONS_PER_JOINED_LIMIT);
        let connections = "connections to the control plane";
        Self {
            authenticated: ShareLimit::new(connections, authenticated, Own::GivesWay),
            joined: ShareLimit::new(connections, joined, Own::GivesWay),
            unauthenticated: EvictingLimit::new(limits.unauthenticated),
            handshakes: EvictingLimit::new(limits.handshakes),
            refused: Default::default(),
            mistakes: AtomicU64::new(0),
            backlog_bytes: Arc::default(),
        }
    }

    /// A share for an authenticated connection of this network; evicts another one when a limit is
    /// reached.
    ///
    /// # Errors
    /// [`Refused`] if no other identity has more.
    pub(crate) async fn authenticated(&self, who: &Holder) -> Result<Share, Refused> {
        self.authenticated.acquire_freed(who).await
    }

    /// A share for a connection of the control plane of a joined network.
    ///
    /// # Errors
    /// [`Refused`] if no other network has more.
    pub(crate) async fn joined(&self, who: &Holder) -> Result<Share, Refused> {
        self.joined.acquire_freed(who).await
    }

    /// A permit for an unauthenticated connection; evicts another one when the limit is reached.
    pub(crate) async fn unauthenticated(&self, from: IpAddr) -> Permit {
        self.acquire(&self.unauthenticated, from, Reason::Unauthenticated).await
    }

    /// A permit for a handshake; evicts another one when the limit is reached.
    pub(crate) async fn handshake(&self, from: IpAddr) -> Permit {
        self.acquire(&self.handshakes, from, Reason::Handshakes).await
    }

    /// Evicts a handshake so that its descriptor is free. Returns whether there was one.
    pub(crate) async fn free_descriptor(&self) -> bool {
        let is_evicted = self.handshakes.evict().await;
        if is_evicted {
            self.count(Reason::Descriptors);
        }
        is_evicted
    }

    /// Whether the next handshake evicts another one.
    pub(crate) fn is_full(&self) -> bool {
        self.handshakes.free.available_permits() == 0
    }

    pub(crate) fn count(&self, reason: Reason) {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_mistakes(&self, count: u64) {
        self.mistakes.fetch_add(count, Ordering::Relaxed);
    }

    async fn acquire(&self, limit: &Arc<EvictingLimit>, from: IpAddr, reason: Reason) -> Permit {
        if let Some(permit) = limit.try_acquire(from) {
            return permit;
        }
        if limit.evict().await {
            self.count(reason);
        }
        limit.acquire(from).await
    }

    pub(crate) fn add_to(&self, page: &mut Page) {
        let shared = [&self.authenticated, &self.joined];
        let mut connections = page.family(&names::CONTROL_CONNECTIONS);
        connections.sample(&[("state", "authenticated")], self.authenticated.held());
        connections.sample(&[("state", "joined")], self.joined.held());
        connections.sample(&[("state", "unauthenticated")], self.unauthenticated.len());
        connections.sample(&[("state", "handshake")], self.handshakes.len());
        page.single(&names::CONTROL_SEND_BUFFER_BYTES, self.backlog_bytes.load(Ordering::Relaxed));
        page.single(&names::REQUESTS_REFUSED, self.mistakes.load(Ordering::Relaxed));
        let mut refused = page.family(&names::CONTROL_CONNECTIONS_REFUSED);
        for (reason, count) in Reason::ALL.into_iter().zip(&self.refused) {
            let of_shares = shared.iter().map(|limit| {
                let is_refusal = reason == Reason::Connections;
                let of_refusals = if is_refusal { limit.refused() } else { 0 };
                of_refusals + if reason == Reason::Share { limit.evicted() } else { 0 }
            });
            let of_shares: u64 = of_shares.sum();
            let count = count.load(Ordering::Relaxed) + of_shares;
            refused.sample(&[("reason", reason.word())], count);
        }
    }
}

/// Permits up to a limit. When none is free, one connection is evicted: of the origin that has the
/// most permits, the oldest one. So an origin that opens many connections evicts its own, and among
/// many origins each connection has had the same time.
struct EvictingLimit {
    limit: usize,
    free: Arc<Semaphore>,
    holders: Mutex<PermitHolders>,
}

#[derive(Default)]
struct PermitHolders {
    next: u64,
    /// In the order in which they came, without those that are being evicted.
    by_number: BTreeMap<u64, PermitHolder>,
    /// Permits of each origin.
    counts: HashMap<Origin, usize>,
}

struct PermitHolder {
    origin: Origin,
    /// Cancelled to evict it.
    evicted: CancellationToken,
    /// Cancelled when its permit is free.
    released: CancellationToken,
}

/// The right to one connection under an [`EvictingLimit`]; free again when it is dropped.
pub(crate) struct Permit {
    limit: Arc<EvictingLimit>,
    number: u64,
    evicted: CancellationToken,
    // Dropped in this order: once `released` is cancelled, the permit is free.
    _permit: OwnedSemaphorePermit,
    _released: DropGuard,
}

impl Permit {
    /// Cancelled when the connection is evicted and must end.
    pub(crate) fn evicted(&self) -> &CancellationToken {
        &self.evicted
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limit.holders().remove(self.number);
    }
}

impl EvictingLimit {
    fn new(limit: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(limit));
        Arc::new(Self { limit, free, holders: Mutex::default() })
    }

    fn len(&self) -> usize {
        self.limit - self.free.available_permits()
    }

    fn try_acquire(self: &Arc<Self>, from: IpAddr) -> Option<Permit> {
        let permit = self.free.clone().try_acquire_owned().ok()?;
        Some(self.hold(from, permit))
    }

    /// Waits until a permit is free.
    async fn acquire(self: &Arc<Self>, from: IpAddr) -> Permit {
        match self.free.clone().acquire_owned().await {
            Ok(permit) => self.hold(from, permit),
            // The semaphore is never closed.
            Err(_) => std::future::pending().await,
        }
    }

    fn hold(self: &Arc<Self>, from: IpAddr, permit: OwnedSemaphorePermit) -> Permit {
        let (evicted, released) = (CancellationToken::new(), CancellationToken::new());
        let origin = Origin::of(from);
        let holder = PermitHolder { origin, evicted: evicted.clone(), released: released.clone() };
        let number = self.holders().add(holder);
        let _released = released.drop_guard();
        Permit { limit: self.clone(), number, evicted, _permit: permit, _released }
    }

    /// Evicts one connection and waits until its permit is free. Returns whether there was one.
    async fn evict(&self) -> bool {
        let evicted = {
            let mut holders = self.holders();
            holders.next_to_evict().and_then(|number| holders.remove(number))
        };
        let Some(holder) = evicted else { return false };
        holder.evicted.cancel();
        holder.released.cancelled().await;
        true
    }

    fn holders(&self) -> MutexGuard<'_, PermitHolders> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PermitHolders {
    fn add(&mut self, holder: PermitHolder) -> u64 {
        let number = self.next;
        self.next += 1;
        *self.counts.entry(holder.origin).or_default() += 1;
        self.by_number.insert(number, holder);
        number
    }

    fn remove(&mut self, number: u64) -> Option<PermitHolder> {
        let holder = self.by_number.remove(&number)?;
        if let Some(count) = self.counts.get_mut(&holder.origin) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&holder.origin);
            }
        }
        Some(holder)
    }

    /// The oldest connection of the origin with the most permits.
    fn next_to_evict(&self) -> Option<u64> {
        let most = self.counts.values().max()?;
        let of_most = |holder: &PermitHolder| self.counts.get(&holder.origin) == Some(most);
        self.by_number.iter().find(|(_, holder)| of_most(holder)).map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ConnectionOptions = ConnectionOptions {
        authenticated: 2,
        per_instance: 2,
        joined: 2,
        unauthenticated: 2,
        handshakes: 4,
    };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Adds a handshake; those that it evicts end, as the accept loop makes them.
    async fn newcomer(limits: &ConnectionLimits, held: &mut Vec<Permit>, from: &str) {
        let acquiring = limits.handshake(address(from));
        let before = held.iter().map(|permit| permit.evicted.clone()).collect::<Vec<_>>();
        let ending = async {
            tokio::task::yield_now().await;
            held.retain(|permit| !permit.evicted.is_cancelled());
        };
        let (permit, ()) = tokio::join!(acquiring, ending);
        assert!(before.iter().filter(|it| it.is_cancelled()).count() <= 1, "one at a time");
        held.push(permit);
    }

    fn numbers(held: &[Permit]) -> Vec<u64> {
        held.iter().map(|permit| permit.number).collect()
    }

    fn page(limits: &ConnectionLimits) -> String {
        let mut page = Page::default();
        limits.add_to(&mut page);
        page.into_text()
    }

    #[track_caller]
    fn check_page(limits: &ConnectionLimits, line: &str) {
        let page = page(limits);
        assert!(page.lines().any(|shown| shown == line), "{line} is missing in\n{page}");
    }

    #[tokio::test]
    async fn the_oldest_of_the_address_with_the_most_permits_is_evicted() {
        let (limits, mut held) = (ConnectionLimits::new(LIMITS), Vec::new());
        for from in ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3"] {
            newcomer(&limits, &mut held, from).await;
        }
        assert!(limits.is_full());
        newcomer(&limits, &mut held, "10.0.0.4").await;
        assert_eq!(numbers(&held), [0, 2, 3, 4], "the first of the two of one address");
        // Now all have one: it is the oldest of all.
        newcomer(&limits, &mut held, "10.0.0.5").await;
        assert_eq!(numbers(&held), [2, 3, 4, 5]);
        check_page(&limits, "tollway_control_connections{state=\"handshake\"} 4");
        check_page(&limits, "tollway_control_connections_refused_total{reason=\"handshakes\"} 2");
    }

    #[tokio::test]
    async fn a_crowd_of_one_address_evicts_its_own_only() {
        let (limits, mut held) = (ConnectionLimits::new(LIMITS), Vec::new());
        newcomer(&limits, &mut held, "10.0.0.1").await;
        for nth in 0..100 {
            newcomer(&limits, &mut held, "10.0.0.2").await;
            assert_eq!(held[0].number, 0, "the other address has its permit after {nth}");
            assert!(held.len() <= LIMITS.handshakes);
        }
        drop(held);
        assert_eq!(limits.handshakes.holders().counts.len(), 0, "none is remembered");
    }

    #[tokio::test]
    async fn without_descriptors_a_handshake_is_evicted_and_nothing_else() {
        let limits = ConnectionLimits::new(LIMITS);
        let _joining = limits.unauthenticated(address("10.0.0.1")).await;
        assert!(!limits.free_descriptor().await, "no handshake is under way");
        let permit = limits.handshake(address("10.0.0.1")).await;
        let ending = async {
            permit.evicted().cancelled().await;
            drop(permit);
        };
        assert!(tokio::join!(limits.free_descriptor(), ending).0);
        check_page(&limits, "tollway_control_connections_refused_total{reason=\"descriptors\"} 1");
        check_page(&limits, "tollway_control_connections{state=\"unauthenticated\"} 1");
        check_page(&limits, "tollway_control_connections{state=\"handshake\"} 0");
    }

    #[tokio::test]
    async fn authenticated_connections_are_refused_at_their_limit() {
        let limits = ConnectionLimits::new(LIMITS);
        let [one, two, three] = ["one", "two", "three"].map(|app| Holder::new("shop", app, "a"));
        let first = limits.authenticated(&one).await.ok().unwrap();
        let _second = limits.authenticated(&two).await.ok().unwrap();
        assert!(limits.authenticated(&three).await.is_err(), "none has more than it would have");
        check_page(&limits, "tollway_control_connections{state=\"authenticated\"} 2");
        check_page(&limits, "tollway_control_connections_refused_total{reason=\"connections\"} 1");
        let _network =
            limits.joined(&Holder::new("east.tollway", "control", "")).await.ok().unwrap();
        check_page(&limits, "tollway_control_connections{state=\"joined\"} 1");
        drop(first);
        assert!(limits.authenticated(&three).await.is_ok());
    }

    /// The harm: one joined network, or many together, take the connections of others.
    #[test]
    fn connections_of_joined_networks_are_bounded_for_each_and_for_all() {
        let options = ConnectionOptions::default();
        let limits = ConnectionLimits::new(options);
        let of = |network: usize| Holder::new(&format!("n{network}.tollway"), "control", "");
        let mut held = Vec::new();
        for _ in 0..100 {
            held.push(limits.joined.acquire(&of(0), 1).expect("its oldest gives way"));
            assert!(limits.joined.held() <= CONNECTIONS_PER_JOINED_LIMIT);
        }
        let is_evicted = |share: &&Share| share.evicted().is_cancelled();
        let most = usize::try_from(CONNECTIONS_PER_JOINED_LIMIT).unwrap();
        assert_eq!(held.iter().filter(is_evicted).count(), 100 - most);
        for network in 1..options.joined {
            held.extend((0..2 * most).filter_map(|_| limits.joined.acquire(&of(network), 1).ok()));
            assert!(limits.joined.held() <= options.joined as u64);
            if limits.joined.held() == options.joined as u64 {
                break;
            }
        }
        let evicted = limits.joined.evicted();
        let _newcomer = limits.joined.acquire(&of(options.joined), 1).expect("it has none");
        assert_eq!(limits.joined.evicted(), evicted + 1, "one of a network with most gives way");
        assert_eq!(limits.joined.held(), options.joined as u64);
        let page = page(&limits);
        assert!(page.contains("tollway_control_connections{state=\"joined\"} 2048"), "{page}");
        assert!(page.contains("tollway_control_connections{state=\"authenticated\"} 0"), "{page}");
    }

    #[test]
    fn few_descriptors_lower_the_limits_and_some_are_held_back() {
        let open = ConnectionOptions::default();
        assert_eq!(open.within(None), open);
        assert_eq!(open.within(Some(1 << 20)), open);
        for descriptors in [16, 64, 256, 1024, 4096, 20_000] {
            let few = open.within(Some(descriptors));
            let most = few.authenticated + few.joined + few.unauthenticated + few.handshakes;
            let left = descriptors as usize - most;
            assert!(left >= 192.min(descriptors as usize / 4), "{left} of {descriptors}: {few:?}");
        }
        assert_eq!(open.within(Some(1024)).authenticated, 520);
    }

    #[test]
    fn each_reason_has_its_own_count() {
        let limits = ConnectionLimits::new(LIMITS);
        for (nth, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, nth);
            limits.count(reason);
        }
        assert_eq!(page(&limits).matches("_refused_total{reason=\"").count(), Reason::ALL.len());
        assert_eq!(page(&limits).matches("\"} 1\n").count(), Reason::ALL.len());
    }
}
