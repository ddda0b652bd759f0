//! Makes room for one more connection where the limit or the descriptors leave none. It evicts
//! unauthenticated connections without a request, so that many of them cannot keep other clients out.
//! Authenticated connections stay, and so do those with a request.

use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tollway_model::ErrorCode;
use tollway_net::Origin;

use crate::conn::{ConnKey, Connection, Connections, ListenerKind, Role, access_log};
use crate::cx::Cx;

/// A scan reads all connections, so it evicts several: one of this many candidates.
const EVICTED_SHARE: usize = 8;
/// Most connections that one scan evicts.
const EVICTIONS_PER_SCAN: usize = 256;
/// How long no scan is made after one that evicted few.
const EVICTION_PAUSE: Duration = Duration::from_millis(50);
/// Scanned connections for one evicted: a scan that evicts fewer is followed by a pause.
const SCANS_PER_EVICTION: usize = 1024;
/// A connection that was served this recently is not evicted: its next request may be on the way.
const EVICTABLE_AFTER: Duration = Duration::from_secs(5);

/// A connection that may be evicted.
struct EvictionCandidate {
    key: ConnKey,
    origin: Origin,
    /// It has completed a request or a handshake, and is idle.
    is_idle: bool,
    /// Since when it has been in its present state.
    since: Instant,
}

/// Evicts connections for the reason `code`. Returns whether there is room now.
pub(crate) fn make_room(cx: &mut Cx, conns: &mut Connections, code: ErrorCode) -> bool {
    if conns.full_until.is_some_and(|until| cx.now < until) {
        return false;
    }
    let candidates = conns.iter().filter_map(|(key, conn)| candidate(key, conn, cx.now));
    let evicted = choose_evicted(candidates.collect());
    if evicted.len() * SCANS_PER_EVICTION < conns.len() {
        // The next scan would find as few, and cost as much.
        conns.full_until = Some(cx.now + EVICTION_PAUSE);
    }
    for key in &evicted {
        cx.metrics.connections_refused.add(1);
        access_log::log_refused_connection(cx, conns, *key, code);
        dismiss(cx, conns, *key);
    }
    if !evicted.is_empty()
        && let Some(left_out) = cx.log.admit("eviction", "", cx.now)
    {
        let (gone, hint) = (evicted.len(), code.entry().remedy);
        let limit = match code {
            ErrorCode::OutOfDescriptors => tollway_net::descriptor_limit(),
            _ => u64::try_from(cx.config.limits.connections).ok(),
        };
        tracing::warn!(%code, gone, limit, left_out, hint, "connections that do nothing gave way to new ones");
    }
    !evicted.is_empty()
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
fn candidate(key: ConnKey, conn: &Connection, now: Instant) -> Option<EvictionCandidate> {
    let is_idle = match &conn.role {
        Role::Detect { .. } | Role::Accepting | Role::Hello(_) => false,
        Role::Http1Server(server) if server.exchange.is_none() => !server.in_head,
        Role::Http2Server(link) if link.streams.is_empty() => true,
        _ => return None,
    };
    let is_known = conn.peer.is_some() || conn.has_proven_client();
    let is_inside = matches!(conn.via, None | Some(ListenerKind::Loopback));
    let is_in_use =
        now.saturating_duration_since(conn.since) < EVICTABLE_AFTER || conn.io.pending() > 0;
    if is_known || is_inside || is_idle && is_in_use {
        return None;
    }
    let origin = Origin::of(conn.remote?.ip());
    Some(EvictionCandidate { key, origin, is_idle, since: conn.since })
}

/// Of the origin that has most of them first: those who have done nothing yet before those who are
/// idle, and who has been so longest.
fn choose_evicted(mut candidates: Vec<EvictionCandidate>) -> Vec<ConnKey> {
    let most = candidates.len().div_ceil(EVICTED_SHARE).min(EVICTIONS_PER_SCAN);
    let mut of_origin: HashMap<Origin, usize, RandomState> = HashMap::default();
    for candidate in &candidates {
        *of_origin.entry(candidate.origin).or_default() += 1;
    }
    let order = |candidate: &EvictionCandidate| {
        let of_origin = of_origin.get(&candidate.origin).copied().unwrap_or_default();
        (std::cmp::Reverse(of_origin), candidate.is_idle, candidate.since)
    };
    if most < candidates.len() {
        candidates.select_nth_unstable_by_key(most, order);
    }
    candidates.iter().take(most).map(|candidate| candidate.key).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollway_net::Key;

    use super::*;

    /// One of each of these (last number of an address, idle, seconds since it is so).
    fn candidates(of: &[(u8, bool, u64)]) -> (Vec<EvictionCandidate>, Vec<ConnKey>) {
        let now = Instant::now();
        let keys: Vec<ConnKey> = (0..).take(of.len()).map(Key::from_u64).collect();
        let candidate =
            |(key, (host, is_idle, seconds)): (&ConnKey, &(u8, bool, u64))| EvictionCandidate {
                key: *key,
                origin: Origin::of([10, 0, 0, *host].into()),
                is_idle: *is_idle,
                since: now - Duration::from_secs(*seconds),
            };
        (keys.iter().zip(of).map(candidate).collect(), keys)
    }

    #[track_caller]
    fn check_first(of: &[(u8, bool, u64)], first: usize) {
        let (candidates, keys) = candidates(of);
        assert_eq!(choose_evicted(candidates), [keys[first]]);
    }

    #[test]
    fn the_peer_with_most_connections_loses_its_longest_idle_one() {
        check_first(&[(1, false, 9)], 0);
        check_first(&[(1, false, 9), (2, false, 1), (2, false, 2)], 2);
        check_first(&[(1, false, 9), (2, true, 8), (2, false, 1)], 2);
        check_first(&[(1, true, 1), (1, true, 3), (1, true, 2)], 1);
        check_first(&[(1, false, 1), (2, false, 3), (3, false, 2)], 1);
        assert!(choose_evicted(Vec::new()).is_empty());
    }

    #[test]
    fn some_of_many_leave_at_once() {
        let of = |count: u8, host| (0..count).map(move |n| (host, false, u64::from(n)));
        let (all, keys) = candidates(&of(70, 1).chain(of(10, 2)).collect::<Vec<_>>());
        let mut evicted = choose_evicted(all);
        evicted.sort_unstable_by_key(|key| std::cmp::Reverse(key.to_u64()));
        let oldest: Vec<ConnKey> = keys[60..70].iter().rev().copied().collect();
        assert_eq!(evicted, oldest, "an eighth, and all of the one who has most");
        let many: Vec<_> = (0..40).flat_map(|_| of(250, 1)).collect();
        assert_eq!(choose_evicted(candidates(&many).0).len(), EVICTIONS_PER_SCAN);
    }
}
