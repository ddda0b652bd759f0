//! How fast a joined network may change what is stored of it. What comes faster is read later, so
//! that it waits at its sender, and of what changes again and again the last is taken. Pure but for
//! the clock of tokio, which tests can stop.

use std::time::Duration;

use tokio::time::Instant;

/// What one joined network may send in a second for longer, counted in services; see
/// [`cost`] for the rest.
const PEER_CHANGES_PER_S_LIMIT: u32 = 2_000;
/// What it may send at once: the whole state of the largest network, twice.
const PEER_CHANGES_LIMIT: u32 = 200_000;
/// What a message counts for as such: a transaction that wakes others.
const MESSAGE_COST: u32 = 20;
/// What the beginning of a full state, or of roots, counts for.
const STATE_COST: u32 = 200;
/// Changes of services within this time travel together.
pub(super) const PEER_SERVICES_WITHIN: Duration = Duration::from_millis(200);
/// From one change of a joined network's revoked identities to the next.
pub(super) const PEER_REVOCATIONS_WITHIN: Duration = Duration::from_secs(1);
/// From one change of a joined network's gateways to the next.
pub(super) const PEER_GATEWAYS_WITHIN: Duration = Duration::from_secs(5);

/// Limits what is read of one peer.
#[derive(Debug)]
pub(super) struct ReadPace {
    /// Up to when what was read is paid for.
    paid_until: Instant,
}

impl ReadPace {
    pub(super) fn new() -> Self {
        Self { paid_until: Instant::now() }
    }

    /// Something that counts for so much was read.
    pub(super) fn spend(&mut self, cost: u32) {
        let price = Duration::from_secs(1) / PEER_CHANGES_PER_S_LIMIT * cost;
        self.paid_until = self.paid_until.max(Instant::now()) + price;
    }

    /// When the next may be read.
    pub(super) fn next_at(&self) -> Instant {
        let ahead = Duration::from_secs(1) / PEER_CHANGES_PER_S_LIMIT * PEER_CHANGES_LIMIT;
        let wait = self.paid_until.saturating_duration_since(Instant::now());
        Instant::now() + wait.saturating_sub(ahead)
    }
}

/// What a message counts for.
pub(super) fn cost(services: usize, is_state: bool) -> u32 {
    let services = u32::try_from(services).unwrap_or(u32::MAX);
    let state = if is_state { STATE_COST } else { 0 };
    services.saturating_add(MESSAGE_COST + state).min(PEER_CHANGES_LIMIT)
}

/// Leaves time between changes of one kind. The first one after a quiet time is not held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    least: Duration,
    last: Option<Instant>,
}

impl Interval {
    pub(super) fn new(least: Duration) -> Self {
        Self { least, last: None }
    }

    /// When the next change may be stored.
    pub(super) fn next_at(&self) -> Instant {
        self.last.map_or_else(Instant::now, |last| last + self.least)
    }

    pub(super) fn may_change(&self) -> bool {
        self.next_at() <= Instant::now()
    }

    pub(super) fn changed(&mut self) {
        self.last = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_whole_state_is_read_at_once_and_what_goes_on_is_read_slowly() {
        let (begun, mut pace) = (Instant::now(), ReadPace::new());
        for _ in 0..150 {
            tokio::time::sleep_until(pace.next_at()).await;
            pace.spend(cost(1_000, false));
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        for _ in 0..1_000 {
            tokio::time::sleep_until(pace.next_at()).await;
            pace.spend(cost(1_000, false));
        }
        let read_at_once = f64::from(PEER_CHANGES_LIMIT);
        let least = (1_150.0 * 1_020.0 - read_at_once) / f64::from(PEER_CHANGES_PER_S_LIMIT) - 1.0;
        assert!(begun.elapsed().as_secs_f64() > least, "{:?}, not {least}", begun.elapsed());
    }

    #[test]
    fn a_message_and_a_state_count_for_more_than_their_services() {
        assert_eq!(cost(0, false), MESSAGE_COST);
        assert_eq!(cost(7, false), MESSAGE_COST + 7);
        assert_eq!(cost(7, true), MESSAGE_COST + STATE_COST + 7);
        for most in [PEER_CHANGES_LIMIT as usize, usize::MAX] {
            assert_eq!(cost(most, true), PEER_CHANGES_LIMIT, "so that it is read at all");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_peer_is_read_at_once_again() {
        let mut pace = ReadPace::new();
        pace.spend(PEER_CHANGES_LIMIT);
        pace.spend(PEER_CHANGES_LIMIT);
        let full = Duration::from_secs((PEER_CHANGES_LIMIT / PEER_CHANGES_PER_S_LIMIT).into());
        assert_eq!(pace.next_at(), Instant::now() + full);
        tokio::time::advance(full * 2).await;
        assert_eq!(pace.next_at(), Instant::now());
        pace.spend(PEER_CHANGES_LIMIT);
        assert_eq!(pace.next_at(), Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn changes_of_one_kind_have_time_between_them() {
        let mut gateways = Interval::new(PEER_GATEWAYS_WITHIN);
        assert!(gateways.may_change());
        gateways.changed();
        tokio::time::advance(PEER_GATEWAYS_WITHIN - Duration::from_millis(1)).await;
        assert!(!gateways.may_change());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(gateways.may_change());
    }
}
