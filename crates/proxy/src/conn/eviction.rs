//! Room for one more connection where the limit or the descriptors leave none: callers of whom
//! nothing is known, and for whom nothing is under way, give way, so that a crowd of them keeps
//! nobody out. Who has proved who he is stays, and so does whoever is being served.

use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tollway_model::ErrorCode;
use tollway_net::Origin;

use crate::conn::{ConnKey, Connection, Connections, ListenerKind, Role};
use crate::cx::Cx;
use crate::exchange::access_log;

/// To find strangers takes a look at every connection, so several give way at once: one of so many,
const ONE_OF: usize = 8;
/// and no more than this.
const MOST_AT_ONCE: usize = 256;
/// How long none is evicted after a pass that found hardly one.
const REST: Duration = Duration::from_millis(50);
/// So many looks are worth one who gives way.
const LOOKS: usize = 1024;
/// Who was served a moment ago has its next request on the way.
const IDLE_FOR: Duration = Duration::from_secs(5);

/// A caller who may give way.
struct Stranger {
    key: ConnKey,
    origin: Origin,
    /// It has completed a request or a handshake, and is idle.
    is_idle: bool,
    /// Since when it has been in its present state.
    since: Instant,
}

/// Has some strangers give way for `code`. Says whether there is room now.
pub(crate) fn make_room(cx: &mut Cx, conns: &mut Connections, code: ErrorCode) -> bool {
    if conns.full_until.is_some_and(|until| cx.now < until) {
        return false;
    }
    let strangers = conns.iter().filter_map(|(key, conn)| stranger(key, conn, cx.now));
    let leaving = who_leaves(strangers.collect());
    if leaving.len() * LOOKS < conns.len() {
        // The next look would find as few, and cost as much.
        conns.full_until = Some(cx.now + REST);
    }
    for key in &leaving {
        cx.metrics.connections_refused.add(1);
        access_log::log_refused_connection(cx, conns, *key, code);
        dismiss(cx, conns, *key);
    }
    if !leaving.is_empty() && cx.log.should_log("room".to_owned(), cx.now) {
        let (gone, hint) = (leaving.len(), code.entry().remedy);
        let limit = match code {
            ErrorCode::OutOfDescriptors => tollway_net::descriptor_limit(),
            _ => u64::try_from(cx.config.limits.connections).ok(),
        };
        tracing::warn!(%code, gone, limit, hint, "connections that do nothing gave way to new ones");
    }
    !leaving.is_empty()
}

/// Closes an idle connection, or one that never did anything.
fn dismiss(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    if let Some(conn) = conns.get_mut(key)
        && let Role::Http2Server(link) = &mut conn.role
    {
        // A request that is on its way may be sent again elsewhere.
        link.codec.goaway_final(conn.io.out());
    }
    conns.close(cx, key);
}

/// A caller that may give way, if this is one.
fn stranger(key: ConnKey, conn: &Connection, now: Instant) -> Option<Stranger> {
    let is_idle = match &conn.role {
        Role::Detect { .. } | Role::Accepting | Role::Hello(_) => false,
        Role::Http1Server(server) if server.exchange.is_none() => !server.in_head,
        Role::Http2Server(link) if link.streams.is_empty() => true,
        _ => return None,
    };
    let is_known = conn.peer.is_some() || conn.has_proven_client();
    let is_inside = matches!(conn.via, None | Some(ListenerKind::Loopback));
    let is_resting = now.saturating_duration_since(conn.since) < IDLE_FOR || conn.io.pending() > 0;
    if is_known || is_inside || is_idle && is_resting {
        return None;
    }
    let origin = Origin::of(conn.remote?.ip());
    Some(Stranger { key, origin, is_idle, since: conn.since })
}

/// Of the origin that has most of them first: those who have done nothing yet before those who are
/// idle, and who has been so longest.
fn who_leaves(mut strangers: Vec<Stranger>) -> Vec<ConnKey> {
    let most = strangers.len().div_ceil(ONE_OF).min(MOST_AT_ONCE);
    let mut of_origin: HashMap<Origin, usize, RandomState> = HashMap::default();
    for stranger in &strangers {
        *of_origin.entry(stranger.origin).or_default() += 1;
    }
    let order = |stranger: &Stranger| {
        let of_origin = of_origin.get(&stranger.origin).copied().unwrap_or_default();
        (std::cmp::Reverse(of_origin), stranger.is_idle, stranger.since)
    };
    if most < strangers.len() {
        strangers.select_nth_unstable_by_key(most, order);
    }
    strangers.iter().take(most).map(|stranger| stranger.key).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollway_net::Key;

    use super::*;

    /// One of each of these (last number of an address, idle, seconds since it is so).
    fn strangers(of: &[(u8, bool, u64)]) -> (Vec<Stranger>, Vec<ConnKey>) {
        let now = Instant::now();
        let keys: Vec<ConnKey> = (0..).take(of.len()).map(Key::from_u64).collect();
        let stranger = |(key, (host, is_idle, seconds)): (&ConnKey, &(u8, bool, u64))| Stranger {
            key: *key,
            origin: Origin::of([10, 0, 0, *host].into()),
            is_idle: *is_idle,
            since: now - Duration::from_secs(*seconds),
        };
        (keys.iter().zip(of).map(stranger).collect(), keys)
    }

    #[track_caller]
    fn check_first(of: &[(u8, bool, u64)], first: usize) {
        let (strangers, keys) = strangers(of);
        assert_eq!(who_leaves(strangers), [keys[first]]);
    }

    #[test]
    fn whoever_has_most_connections_loses_the_one_that_has_done_nothing_longest() {
        check_first(&[(1, false, 9)], 0);
        check_first(&[(1, false, 9), (2, false, 1), (2, false, 2)], 2);
        check_first(&[(1, false, 9), (2, true, 8), (2, false, 1)], 2);
        check_first(&[(1, true, 1), (1, true, 3), (1, true, 2)], 1);
        check_first(&[(1, false, 1), (2, false, 3), (3, false, 2)], 1);
        assert!(who_leaves(Vec::new()).is_empty());
    }

    #[test]
    fn some_of_many_leave_at_once() {
        let of = |count: u8, host| (0..count).map(move |n| (host, false, u64::from(n)));
        let (strangers_here, keys) = strangers(&of(70, 1).chain(of(10, 2)).collect::<Vec<_>>());
        let mut leaving = who_leaves(strangers_here);
        leaving.sort_unstable_by_key(|key| std::cmp::Reverse(key.to_u64()));
        let oldest: Vec<ConnKey> = keys[60..70].iter().rev().copied().collect();
        assert_eq!(leaving, oldest, "an eighth, and all of the one who has most");
        let many: Vec<_> = (0..40).flat_map(|_| of(250, 1)).collect();
        assert_eq!(who_leaves(strangers(&many).0).len(), MOST_AT_ONCE);
    }
}
