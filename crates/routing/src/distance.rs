//! How many connections share the requests to a service far away.
//!
//! A lost segment holds up whatever follows it on its connection for about a round trip. Near by
//! that is nothing; over distance all requests of a single connection would wait, so they are
//! spread over as many connections as keep that to a few of them. Not over one each: a segment
//! that nothing follows is missed only by a timer, which takes several round trips.

/// Requests under way that share a connection.
const SHARE: f64 = 2.0;

/// What of a peak is left a round later: a half after 4.4 s, at ten rounds a second.
const FADES: f64 = 1.0 - 1.0 / 64.0;

/// The most requests under way at one time, by the last seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flight {
    peak: f64,
}

impl Flight {
    /// Called once a round: a peak counts at once and fades.
    pub fn observe(&mut self, under_way: usize) {
        self.peak = (self.peak * FADES).max(under_way as f64);
    }

    /// Whether more than one connection is wanted.
    #[must_use]
    pub fn needs_many(self) -> bool {
        self.peak > SHARE
    }

    /// The wanted number of connections, between one and `most`. The `standing` connections remain
    /// until half of them would do, so that a load that swings does not open and close them.
    #[must_use]
    pub fn connections(self, standing: usize, most: usize) -> usize {
        let wanted = ((self.peak / SHARE).ceil() as usize).clamp(1, most.max(1));
        if standing > wanted && standing < 2 * wanted { standing.min(most) } else { wanted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(observed: &[usize]) -> Flight {
        let mut flight = Flight::default();
        for under_way in observed {
            flight.observe(*under_way);
        }
        flight
    }

    #[test]
    fn two_requests_share_a_connection() {
        assert_eq!(after(&[]).connections(0, 64), 1);
        assert_eq!(after(&[1]).connections(1, 64), 1);
        assert_eq!(after(&[36]).connections(4, 64), 18);
        assert_eq!(after(&[37]).connections(4, 64), 19);
        assert!(!after(&[2]).needs_many() && after(&[3]).needs_many());
    }

    #[test]
    fn there_are_never_more_than_allowed() {
        assert_eq!(after(&[5000]).connections(4, 64), 64);
        assert_eq!(after(&[5000]).connections(70, 64), 64);
        assert_eq!(after(&[5000]).connections(4, 1), 1);
        assert_eq!(after(&[5000]).connections(4, 0), 1);
    }

    #[test]
    fn a_peak_counts_at_once_and_is_half_after_five_seconds() {
        let mut flight = after(&[3, 40]);
        assert_eq!(flight.connections(0, 64), 20);
        for _ in 0..50 {
            flight.observe(0);
        }
        assert!(flight.connections(0, 64) <= 10);
        for _ in 0..500 {
            flight.observe(0);
        }
        assert_eq!(flight.connections(0, 64), 1);
    }

    #[test]
    fn what_stands_goes_only_when_half_of_it_would_do() {
        let flight = after(&[20]);
        assert_eq!(flight.connections(19, 64), 19);
        assert_eq!(flight.connections(20, 64), 10);
    }
}
