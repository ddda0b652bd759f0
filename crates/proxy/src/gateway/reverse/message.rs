//! What gateways send each other on a reverse connection before it carries another one: single bytes.
//! Pure.
//!
//! The end that opened it sends [`KEEP`] at once and from time to time, which the other end repeats.
//! The other end sends [`TAKE`] and what it carries behind that; the end that opened it confirms by
//! [`TAKE`], and what comes behind that is carried, too.

/// A keepalive, or the answer to one.
pub(super) const KEEP: u8 = 1;
/// From here on it carries a connection.
pub(super) const TAKE: u8 = 2;
/// It is not taken.
pub(super) const REFUSE: u8 = 3;

/// What has come, keepalives in front of it left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message<'a> {
    /// Keepalives alone.
    Keep,
    /// With the first bytes of what is carried.
    Take(&'a [u8]),
    Refuse,
    /// No gateway sends this.
    Unknown,
}

/// Reads what has come, of which there is something.
pub(super) fn read(data: &[u8]) -> Message<'_> {
    let kept = data.iter().take_while(|byte| **byte == KEEP).count();
    match data.get(kept..).and_then(<[u8]>::split_first) {
        None => Message::Keep,
        Some((&TAKE, carried)) => Message::Take(carried),
        Some((&REFUSE, _)) => Message::Refuse,
        Some(_) => Message::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_carried_begins_behind_the_byte_for_it() {
        assert_eq!(read(&[KEEP]), Message::Keep);
        assert_eq!(read(&[KEEP, KEEP]), Message::Keep);
        assert_eq!(read(&[TAKE]), Message::Take(b""));
        assert_eq!(read(&[KEEP, TAKE, TAKE, KEEP, 22]), Message::Take(&[TAKE, KEEP, 22]));
        assert_eq!(read(&[KEEP, REFUSE, TAKE]), Message::Refuse);
        for other in [&b"GET / HTTP/1.1"[..], &[22, 3, 1], &[KEEP, 0], &[0], &[4], &[255]] {
            assert_eq!(read(other), Message::Unknown, "{other:?}");
        }
    }
}
