//! Input that comes in pieces, as from a network.

/// Splits an input into what decides about the pieces, one byte, and the rest.
pub(crate) fn split(data: &[u8]) -> Option<(usize, &[u8])> {
    let (&first, rest) = data.split_first()?;
    // Mostly small ones: that is where state is carried from one to the next.
    Some((usize::from(first) % 40 + 1, rest))
}
