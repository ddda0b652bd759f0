//! How many reverse connections a gateway keeps open to another one: twice those that were taken
//! lately, within bounds. Pure.

/// Reverse connections that wait at least, of each data thread at each gateway.
pub(super) const REVERSE_LEAST: usize = 4;
/// Reverse connections that wait at most, of each data thread at each gateway.
pub(super) const REVERSE_MOST: usize = 64;

/// The demand for reverse connections to one gateway.
#[derive(Debug)]
pub(super) struct Demand {
    wanted: usize,
    /// Since the last round.
    taken: usize,
}

impl Default for Demand {
    fn default() -> Self {
        Self { wanted: REVERSE_LEAST, taken: 0 }
    }
}

impl Demand {
    /// How many shall wait.
    pub(super) fn wanted(&self) -> usize {
        self.wanted
    }

    /// One was taken.
    pub(super) fn take(&mut self) {
        self.taken = self.taken.saturating_add(1);
        self.wanted = self.wanted.max(self.needed());
    }

    /// Another second is over.
    pub(super) fn round(&mut self) {
        let rest = self.wanted - self.wanted / 4;
        self.wanted = self.needed().max(rest.max(REVERSE_LEAST));
        self.taken = 0;
    }

    fn needed(&self) -> usize {
        self.taken.saturating_mul(2).min(REVERSE_MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_with_what_is_taken_and_shrinks_slowly() {
        let mut demand = Demand::default();
        assert_eq!(demand.wanted(), REVERSE_LEAST);
        (0..10).for_each(|_| demand.take());
        assert_eq!(demand.wanted(), 20);
        demand.round();
        assert_eq!(demand.wanted(), 20);
        demand.round();
        assert_eq!(demand.wanted(), 15);
        (0..1_000).for_each(|_| demand.take());
        assert_eq!(demand.wanted(), REVERSE_MOST);
        (0..20).for_each(|_| demand.round());
        assert_eq!(demand.wanted(), REVERSE_LEAST);
    }
}
