//! How many may be connected at once, by what they have proved: places for those with an identity,
//! for visitors, who have none and come to join, and for handshakes that are under way. Nobody has
//! a place of two kinds, so strangers take none from those who are known.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};
use tollway_net::Origin;
use tollway_telemetry::Page;
use tollway_telemetry::metrics::names;

use crate::options::ConnectionOptions;

/// Why a connection was refused, or ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// Gave way to another handshake.
    Handshakes,
    /// Gave way to another visitor.
    Visitors,
    /// As many with an identity are connected as may be.
    Connections,
    /// Gave way because no descriptor was left.
    Descriptors,
    /// Its handshake did not end in time.
    Timeout,
    /// Its handshake failed.
    Tls,
    /// It proved no identity that holds now.
    Identity,
    /// It did not take its answers.
    Untaken,
}

impl Reason {
    const ALL: [Self; 8] = [
        Self::Handshakes,
        Self::Visitors,
        Self::Connections,
        Self::Descriptors,
        Self::Timeout,
        Self::Tls,
        Self::Identity,
        Self::Untaken,
    ];

    /// As the label `reason` says it.
    fn word(self) -> &'static str {
        match self {
            Self::Handshakes => "handshakes",
            Self::Visitors => "unauthenticated",
            Self::Connections => "connections",
            Self::Descriptors => "descriptors",
            Self::Timeout => "timeout",
            Self::Tls => "tls",
            Self::Identity => "identity",
            Self::Untaken => "send_buffer",
        }
    }
}

/// All places of one control plane.
pub(crate) struct Places {
    known: Arc<Semaphore>,
    known_limit: usize,
    visitors: Arc<Crowd>,
    handshakes: Arc<Crowd>,
    /// How many were refused for each reason; handshakes may end on several threads.
    refused: [AtomicU64; Reason::ALL.len()],
    /// How many streams and connections of those who had a place ended for mistakes in HTTP/2.
    mistakes: AtomicU64,
    /// Bytes of answers that nobody has taken yet.
    pub(crate) untaken: Arc<AtomicUsize>,
}

impl Places {
    pub(crate) fn new(limits: ConnectionOptions) -> Self {
        Self {
            known: Arc::new(Semaphore::new(limits.known)),
            known_limit: limits.known,
            visitors: Crowd::new(limits.visitors),
            handshakes: Crowd::new(limits.handshakes),
            refused: Default::default(),
            mistakes: AtomicU64::new(0),
            untaken: Arc::default(),
        }
    }

    /// A place for somebody with an identity; `None` when all are taken.
    pub(crate) fn known(&self) -> Option<OwnedSemaphorePermit> {
        let place = self.known.clone().try_acquire_owned().ok();
        if place.is_none() {
            self.count(Reason::Connections);
        }
        place
    }

    /// A place for a visitor; another one gives way if all are taken.
    pub(crate) async fn visitor(&self, from: IpAddr) -> Place {
        self.enter(&self.visitors, from, Reason::Visitors).await
    }

    /// A place for a handshake; another one gives way if all are taken.
    pub(crate) async fn handshake(&self, from: IpAddr) -> Place {
        self.enter(&self.handshakes, from, Reason::Handshakes).await
    }

    /// Has a handshake give way so that there is a descriptor for somebody else. Says whether there
    /// was one.
    pub(crate) async fn free_descriptor(&self) -> bool {
        let gave_way = self.handshakes.give_way().await;
        if gave_way {
            self.count(Reason::Descriptors);
        }
        gave_way
    }

    /// Whether the next handshake takes the place of another one.
    pub(crate) fn is_crowded(&self) -> bool {
        self.handshakes.free.available_permits() == 0
    }

    pub(crate) fn count(&self, reason: Reason) {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_mistakes(&self, count: u64) {
        self.mistakes.fetch_add(count, Ordering::Relaxed);
    }

    async fn enter(&self, crowd: &Arc<Crowd>, from: IpAddr, reason: Reason) -> Place {
        if let Some(place) = crowd.try_enter(from) {
            return place;
        }
        if crowd.give_way().await {
            self.count(reason);
        }
        crowd.enter(from).await
    }

    pub(crate) fn add_to(&self, page: &mut Page) {
        let known = self.known_limit - self.known.available_permits();
        let mut connections = page.family(&names::CONTROL_CONNECTIONS);
        connections.sample(&[("state", "authenticated")], known);
        connections.sample(&[("state", "unauthenticated")], self.visitors.len());
        connections.sample(&[("state", "handshake")], self.handshakes.len());
        page.single(&names::CONTROL_SEND_BUFFER_BYTES, self.untaken.load(Ordering::Relaxed));
        page.single(&names::REQUESTS_REFUSED, self.mistakes.load(Ordering::Relaxed));
        let mut refused = page.family(&names::CONTROL_CONNECTIONS_REFUSED);
        for (reason, count) in Reason::ALL.into_iter().zip(&self.refused) {
            refused.sample(&[("reason", reason.word())], count.load(Ordering::Relaxed));
        }
    }
}

/// Strangers up to a limit. When a newcomer finds no place, one of them gives way: of those from the
/// address that has the most places, the one that came first. So whoever opens many connections
/// takes his own places, and among many addresses each stranger has had the same time.
struct Crowd {
    limit: usize,
    free: Arc<Semaphore>,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    next: u64,
    /// In the order in which they came; without those who were told to leave.
    strangers: BTreeMap<u64, Stranger>,
    /// How many of them are of each origin.
    counts: HashMap<Origin, usize>,
}

struct Stranger {
    origin: Origin,
    /// Tells it to leave.
    leave: CancellationToken,
    /// Cancelled when it has left.
    left: CancellationToken,
}

/// Somebody's place in a [`Crowd`], his until it is dropped.
pub(crate) struct Place {
    crowd: Arc<Crowd>,
    number: u64,
    leave: CancellationToken,
    // Dropped in this order: when it has left, its place is free.
    _taken: OwnedSemaphorePermit,
    _left: DropGuard,
}

impl Place {
    /// Cancelled when whoever has this place is to give way.
    pub(crate) fn leave(&self) -> &CancellationToken {
        &self.leave
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crowd.inside().remove(self.number);
    }
}

impl Crowd {
    fn new(limit: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(limit));
        Arc::new(Self { limit, free, inside: Mutex::default() })
    }

    fn len(&self) -> usize {
        self.limit - self.free.available_permits()
    }

    fn try_enter(self: &Arc<Self>, from: IpAddr) -> Option<Place> {
        let taken = self.free.clone().try_acquire_owned().ok()?;
        Some(self.seat(from, taken))
    }

    /// Waits until there is a place.
    async fn enter(self: &Arc<Self>, from: IpAddr) -> Place {
        match self.free.clone().acquire_owned().await {
            Ok(taken) => self.seat(from, taken),
            // Nobody closes it.
            Err(_) => std::future::pending().await,
        }
    }

    fn seat(self: &Arc<Self>, from: IpAddr, taken: OwnedSemaphorePermit) -> Place {
        let (leave, left) = (CancellationToken::new(), CancellationToken::new());
        let stranger =
            Stranger { origin: Origin::of(from), leave: leave.clone(), left: left.clone() };
        let number = self.inside().add(stranger);
        Place { crowd: self.clone(), number, leave, _taken: taken, _left: left.drop_guard() }
    }

    /// Has one leave and waits until it has. Says whether there was anybody.
    async fn give_way(&self) -> bool {
        let leaver = {
            let mut inside = self.inside();
            inside.turn().and_then(|number| inside.remove(number))
        };
        let Some(leaver) = leaver else { return false };
        leaver.leave.cancel();
        leaver.left.cancelled().await;
        true
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inside {
    fn add(&mut self, stranger: Stranger) -> u64 {
        let number = self.next;
        self.next += 1;
        *self.counts.entry(stranger.origin).or_default() += 1;
        self.strangers.insert(number, stranger);
        number
    }

    fn remove(&mut self, number: u64) -> Option<Stranger> {
        let stranger = self.strangers.remove(&number)?;
        if let Some(count) = self.counts.get_mut(&stranger.origin) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&stranger.origin);
            }
        }
        Some(stranger)
    }

    /// Whose turn it is to leave.
    fn turn(&self) -> Option<u64> {
        let most = self.counts.values().max()?;
        let of_most = |stranger: &Stranger| self.counts.get(&stranger.origin) == Some(most);
        self.strangers.iter().find(|(_, stranger)| of_most(stranger)).map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ConnectionOptions = ConnectionOptions { known: 2, visitors: 2, handshakes: 4 };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Who has left: the places of those who were told to are given up as a handshake does it.
    async fn newcomer(places: &Places, inside: &mut Vec<Place>, from: &str) {
        let entering = places.handshake(address(from));
        let told = inside.iter().map(|place| place.leave.clone()).collect::<Vec<_>>();
        let leaving = async {
            tokio::task::yield_now().await;
            inside.retain(|place| !place.leave.is_cancelled());
        };
        let (place, ()) = tokio::join!(entering, leaving);
        assert!(told.iter().filter(|leave| leave.is_cancelled()).count() <= 1, "one at a time");
        inside.push(place);
    }

    fn numbers(inside: &[Place]) -> Vec<u64> {
        inside.iter().map(|place| place.number).collect()
    }

    fn page(places: &Places) -> String {
        let mut page = Page::default();
        places.add_to(&mut page);
        page.into_text()
    }

    #[track_caller]
    fn check_page(places: &Places, line: &str) {
        let page = page(places);
        assert!(page.lines().any(|shown| shown == line), "{line} is missing in\n{page}");
    }

    #[tokio::test]
    async fn the_oldest_of_the_address_with_the_most_places_gives_way() {
        let (places, mut inside) = (Places::new(LIMITS), Vec::new());
        for from in ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3"] {
            newcomer(&places, &mut inside, from).await;
        }
        assert!(places.is_crowded());
        newcomer(&places, &mut inside, "10.0.0.4").await;
        assert_eq!(numbers(&inside), [0, 2, 3, 4], "the first of the two of one address");
        // Now all have one: it is the oldest of all.
        newcomer(&places, &mut inside, "10.0.0.5").await;
        assert_eq!(numbers(&inside), [2, 3, 4, 5]);
        check_page(&places, "tollway_control_connections{state=\"handshake\"} 4");
        check_page(&places, "tollway_control_connections_refused_total{reason=\"handshakes\"} 2");
    }

    #[tokio::test]
    async fn a_crowd_of_one_address_takes_its_own_places_only() {
        let (places, mut inside) = (Places::new(LIMITS), Vec::new());
        newcomer(&places, &mut inside, "10.0.0.1").await;
        for nth in 0..100 {
            newcomer(&places, &mut inside, "10.0.0.2").await;
            assert_eq!(inside[0].number, 0, "the other address has its place after {nth}");
            assert!(inside.len() <= LIMITS.handshakes);
        }
        drop(inside);
        assert_eq!(places.handshakes.inside().counts.len(), 0, "nobody is remembered");
    }

    #[tokio::test]
    async fn without_descriptors_a_handshake_gives_way_and_nobody_else() {
        let places = Places::new(LIMITS);
        let _visitor = places.visitor(address("10.0.0.1")).await;
        assert!(!places.free_descriptor().await, "no handshake is under way");
        let place = places.handshake(address("10.0.0.1")).await;
        let leaving = async {
            place.leave().cancelled().await;
            drop(place);
        };
        assert!(tokio::join!(places.free_descriptor(), leaving).0);
        check_page(&places, "tollway_control_connections_refused_total{reason=\"descriptors\"} 1");
        check_page(&places, "tollway_control_connections{state=\"visitor\"} 1");
        check_page(&places, "tollway_control_connections{state=\"handshake\"} 0");
    }

    #[test]
    fn those_who_are_known_are_refused_when_their_places_are_taken() {
        let places = Places::new(LIMITS);
        let (first, second) = (places.known(), places.known());
        assert!(first.is_some() && second.is_some() && places.known().is_none());
        check_page(&places, "tollway_control_connections{state=\"known\"} 2");
        check_page(&places, "tollway_control_connections_refused_total{reason=\"connections\"} 1");
        drop(first);
        assert!(places.known().is_some());
    }

    #[test]
    fn each_reason_has_its_own_count() {
        let places = Places::new(LIMITS);
        for (nth, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, nth);
            places.count(reason);
        }
        assert_eq!(page(&places).matches("_refused_total{reason=\"").count(), Reason::ALL.len());
        assert_eq!(page(&places).matches("\"} 1\n").count(), Reason::ALL.len());
    }
}
