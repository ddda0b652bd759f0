//! Shares of what comes first, next and last: each level takes what its healthy part allows, and the next
//! one takes of the rest.

/// Parts in which shares are counted.
pub(crate) const WHOLE: u64 = 1_000_000;

/// The part that is healthy of what is registered; not zero if one is. More healthy ones than registered
/// ones count as all of them.
pub(crate) fn ratio(healthy: u32, registered: u32) -> u64 {
    match (u64::from(healthy), u64::from(registered.max(healthy))) {
        (0, _) => 0,
        (healthy, registered) => (healthy * WHOLE / registered).max(1),
    }
}

/// A part of healthy replicas, in which the threshold, in percent, and what is above it is the whole.
pub(crate) fn part(ratio: u64, threshold: u64) -> u64 {
    (ratio * 100 / threshold.max(1)).min(WHOLE)
}

/// What each level gets of [`WHOLE`] by what it can take. If all together can take less, they get that.
pub(crate) fn fill<const N: usize>(capacities: impl IntoIterator<Item = u64>) -> [u64; N] {
    let mut shares = [0; N];
    let mut rest = WHOLE;
    for (share, capacity) in shares.iter_mut().zip(capacities) {
        *share = capacity.min(rest);
        rest -= *share;
    }
    shares
}

/// The place of one of several shares, as likely as it is large; `None` if all are zero. `random` is
/// uniform.
pub(crate) fn draw(shares: impl Iterator<Item = u64> + Clone, random: u64) -> Option<usize> {
    let total: u64 = shares.clone().sum();
    let product = u128::from(random) * u128::from(total);
    let mut rest = u64::try_from(product >> 64).ok()?;
    let mut shares = shares;
    shares.position(|share| {
        let is_it = rest < share;
        rest = rest.saturating_sub(share);
        is_it
    })
}
