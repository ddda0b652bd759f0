//! The side of a gateway to which others open reverse connections: which of them wait, which was offered
//! a connection, and which callers wait for one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollway_identity::PeerIdentity;
use tollway_model::{ErrorCode, NetworkName};
use tollway_net::Conn;

use super::admission::{Joined, decide};
use super::message::{KEEP, Message, REFUSE, TAKE};
use super::{Carrying, ROUND};
use crate::cause::Cause;
use crate::conn::accepted::{self, proven_identity};
use crate::conn::{
    ConnKey, Connection, Connections, ListenerKind, Relay, RelayedTo, Reverse, ReverseSide, Role,
    Unproven,
};
use crate::cx::Cx;
use crate::event_loop::{Caller, Command};
use crate::gateway::{Gateway, greeting};
use crate::protocol::relay;
use crate::tls::alpn;
use crate::upstream::relay_dial;

/// Time for the other end to confirm that it carries a connection. Then the next one is offered it.
const REVERSE_ANSWER_WITHIN: Duration = Duration::from_millis(1500);
/// Longest wait of a caller for a reverse connection, where some were there a moment ago.
const REVERSE_WAIT_WITHIN: Duration = Duration::from_secs(2);
/// Callers that wait for reverse connections of one network.
const REVERSE_WAITING_LIMIT: usize = 1_024;
/// A reverse connection on which nothing has come for this long is closed: keepalives come oftener.
const REVERSE_SILENT_WITHIN: Duration = Duration::from_secs(30);
/// Bytes that wait to be sent to an end that does not read, before it is given up: more than a handshake
/// leaves.
const REVERSE_UNREAD_BYTES: usize = 16 << 10;
/// A network is reported as held for so long after its last reverse connection has gone: those that
/// are taken are replaced at once.
const LINGER: Duration = Duration::from_secs(1);
/// Where nothing has come for so long, connections that wait are closed, and the network is not
/// reported as held until it opens others. It is within two seconds with all that follows, and leaves half
/// a second after a pause of one.
const SILENT_AFTER: Duration = Duration::from_millis(1_700);
/// A handshake that took longer is no sign of life at its end, and for so long again nothing is that comes
/// after it: a link was cut meanwhile, and the kernel of a suspended gateway retransmits what that lost. Less
/// than a cut takes until the network is silent.
const FRESH_WITHIN: Duration = Duration::from_secs(1);
/// What was given up is remembered for so long: what a cut has lost may come meanwhile.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// For so long a network is held by what it carries alone, where its only gateway drains.
const CARRYING_FOR: Duration = Duration::from_secs(10);
/// The longest time from one sweep to the next that counts: a process that stood still has received
/// nothing, and draws no conclusion.
const LATE: Duration = Duration::from_millis(150);

/// The reverse connections that others have opened.
#[derive(Default)]
pub(super) struct Held {
    networks: HashMap<NetworkName, OfNetwork>,
    swept: Option<Instant>,
}

/// The ways to one network.
#[derive(Default)]
struct OfNetwork {
    /// They wait for a connection to carry; the first is the next one.
    idle: VecDeque<ConnKey>,
    /// They have not confirmed yet.
    offered: Vec<ConnKey>,
    /// Callers without one, and since when.
    waiting: VecDeque<(ConnKey, Instant)>,
    /// When there was one last.
    held_at: Option<Instant>,
    is_reported: bool,
    /// Time in which nothing has come by any of them.
    silent_for: Duration,
    /// It was silent for too long, and none has come or answered since.
    is_given_up: bool,
    /// When it was the last time. What a link lost until then may still come.
    gave_up_at: Option<Instant>,
    /// The other end has closed one that waited, and has opened none since: a gateway that drains ends
    /// what it carries, and opens no other.
    is_drained: bool,
}

impl OfNetwork {
    /// The next one that waits.
    fn next(&mut self, conns: &Connections) -> Option<ConnKey> {
        loop {
            let key = self.idle.pop_front()?;
            if is_idle(conns, key) {
                return Some(key);
            }
        }
    }

    /// A sign of life has come.
    fn note_life(&mut self) {
        self.silent_for = Duration::ZERO;
        self.is_given_up = false;
    }

    fn give_up(&mut self, now: Instant) {
        self.is_given_up = true;
        self.gave_up_at = Some(now);
    }

    /// Whether another one may come in a moment.
    fn may_come(&self, now: Instant) -> bool {
        self.held_at.is_some_and(|at| now.saturating_duration_since(at) < LINGER)
    }
}

impl Held {
    /// How many connections wait here for another one to carry.
    pub(super) fn count(&self) -> usize {
        self.networks.values().map(|ways| ways.idle.len()).sum()
    }
}

fn is_idle(conns: &Connections, key: ConnKey) -> bool {
    let side = conns.get(key).map(|conn| &conn.role);
    matches!(side, Some(Role::Reverse(reverse)) if matches!(reverse.side, ReverseSide::Held))
}

/// The ClientHello of `key` has the name of this gateway itself, which other gateways use for reverse
/// connections: from here on it is a TLS connection that ends here.
pub(crate) fn accept(cx: &mut Cx, conns: &mut Connections, gateway: &mut Gateway, key: ConnKey) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Role::Hello(hello) = &mut conn.role else { return };
    let input = std::mem::take(&mut hello.input);
    conn.role = Role::Accepting;
    conn.since = cx.now;
    let tls = gateway.reverse.tls.reverse_server().map_err(|error| error.to_string());
    let begun = tls.and_then(|tls| {
        conn.io.start_tls_after(tls, input).map_err(|error| crate::tls::explain(&error))
    });
    if let Err(reason) = begun {
        return on_handshake_failed(cx, conns, key, &Cause::coded(ErrorCode::TlsFailed, reason));
    }
    conns.mark_dirty(key);
    conns.schedule(cx, key);
    conns.resume(key);
}

/// The handshake of what would be a reverse connection failed.
pub(crate) fn on_handshake_failed(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    cause: &Cause,
) {
    cx.metrics.gateway_reverse_refused.add(1);
    accepted::refuse_peer(cx, conns, key, cause);
}

/// The handshake is over: the peer's identity decides whether this is a way to its network.
pub(crate) fn on_accepted(
    cx: &mut Cx,
    conns: &mut Connections,
    gateway: &mut Gateway,
    key: ConnKey,
) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Some(peer) = conn.io.peer() else { return };
    let is_reverse = peer.alpn == Some(alpn::REVERSE);
    let proven = proven_identity(&peer, (cx.clocks.wall)());
    let judged = proven.and_then(|identity| {
        // The handshake may have begun under an older trust.
        let bundles = gateway.reverse.tls.credentials().bundles();
        bundles.judge(&identity).map_err(|why| format!("{}: {why}", identity.spiffe))?;
        Ok(identity)
    });
    let identity = match judged {
        Ok(identity) if is_reverse => identity,
        Ok(identity) => {
            let reason = format!("{} speaks another protocol", identity.spiffe);
            let cause = Cause::coded(ErrorCode::ReverseRefused, reason);
            return on_handshake_failed(cx, conns, key, &cause);
        }
        Err(reason) => {
            let cause = Cause::coded(ErrorCode::TlsFailed, reason);
            return on_handshake_failed(cx, conns, key, &cause);
        }
    };
    cx.metrics.tls_handshakes.add(1);
    let reverse = &mut gateway.reverse;
    let joined = reverse.joined_by_trust_domain(&identity);
    let joined = joined.map(|(network, dials_out)| Joined {
        network,
        dials_out,
        waiting: reverse.held.networks.get(network).map_or(0, |ways| ways.idle.len()),
    });
    match decide(&identity, joined) {
        Ok(network) => hold(cx, conns, gateway, key, network, identity),
        Err(refused) => {
            let reason = refused.to_string();
            refuse(cx, conns, key, &identity, &reason);
        }
    }
}

/// A peer that has proven who it is opens a reverse connection, and may not, or breaks the protocol.
fn refuse(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    identity: &PeerIdentity,
    reason: &str,
) {
    cx.metrics.gateway_reverse_refused.add(1);
    let peer = identity.spiffe.to_string();
    if let Some(left_out) = cx.log.admit("reverse", peer.as_str(), cx.now) {
        let code = ErrorCode::ReverseRefused;
        let hint = code.entry().remedy;
        tracing::warn!(%code, peer, reason, left_out, hint, "a reverse connection was refused");
    }
    if let Some(conn) = conns.get_mut(key) {
        conn.via = None;
        conn.io.out().push(REFUSE);
    }
    conns.linger(cx, key);
}

/// A way to a network has come: a caller that waits is sent on, or it waits itself.
fn hold(
    cx: &mut Cx,
    conns: &mut Connections,
    gateway: &mut Gateway,
    key: ConnKey,
    network: NetworkName,
    identity: PeerIdentity,
) {
    let now = cx.now;
    let Some(conn) = conns.get_mut(key) else { return };
    let is_fresh = now.saturating_duration_since(conn.since) <= FRESH_WITHIN;
    // It is a callee's side from here on.
    conn.via = None;
    conn.since = now;
    conn.peer = Some(Arc::new(identity));
    let lives_from = if is_fresh { now } else { now + FRESH_WITHIN };
    let (side, network_of) = (ReverseSide::Held, network.clone());
    let reverse = Reverse { network: network_of, heard: now, lives_from, side };
    conn.role = Role::Reverse(Box::new(reverse));
    conns.schedule(cx, key);
    let ways = gateway.reverse.held.networks.entry(network.clone()).or_default();
    ways.is_drained = false;
    if is_fresh {
        ways.held_at = Some(now);
        ways.note_life();
    }
    ways.idle.push_back(key);
    while let Some((down, _)) = ways.waiting.pop_front() {
        if is_waiting(conns, down) {
            offer(cx, conns, gateway, down, &network);
            break;
        }
    }
    report(now, gateway, &network);
}

/// Whether a caller has no other side yet.
fn is_waiting(conns: &mut Connections, down: ConnKey) -> bool {
    relay::relay(conns, down).is_some_and(|relay| relay.other.is_none())
}

/// Sends a caller on by the next reverse connection of a network. Without one it waits, or is refused.
pub(crate) fn offer(
    cx: &mut Cx,
    conns: &mut Connections,
    gateway: &mut Gateway,
    down: ConnKey,
    network: &NetworkName,
) {
    let ways = gateway.reverse.held.networks.entry(network.clone()).or_default();
    let Some(up) = ways.next(conns) else {
        if !hand_over(cx, conns, gateway, down, network) {
            wait(cx, conns, gateway, down, network);
        }
        return;
    };
    send(cx, conns, gateway, down, up, network);
}

/// Sends a caller on by this reverse connection.
fn send(
    cx: &mut Cx,
    conns: &mut Connections,
    gateway: &mut Gateway,
    down: ConnKey,
    up: ConnKey,
    network: &NetworkName,
) {
    let now = cx.now;
    let ways = gateway.reverse.held.networks.entry(network.clone()).or_default();
    let Some(relay) = relay::relay(conns, down) else { return ways.idle.push_front(up) };
    let hello = std::mem::take(&mut relay.early);
    relay.other = Some(up);
    ways.held_at = Some(now);
    ways.offered.push(up);
    let Some(conn) = conns.get_mut(up) else { return };
    conn.io.out().push(TAKE);
    conn.io.out().extend_from_slice(&hello);
    let address = conn.remote;
    if let Role::Reverse(reverse) = &mut conn.role {
        reverse.side = ReverseSide::Offered { down, hello, since: now };
    }
    conns.mark_dirty(up);
    if let Some(conn) = conns.get_mut(down) {
        conn.relays_to = address.map(|address| (RelayedTo::Network(network.clone()), address));
    }
}

/// Another data thread of this gateway has no reverse connection for a caller, and this one has some.
pub(crate) fn take_over(
    cx: &mut Cx,
    conns: &mut Connections,
    gateway: &mut Gateway,
    caller: Caller,
) {
    let Caller { stream, remote, network, hello, more } = caller;
    let unproven = Some(Box::new(Unproven { bytes: more, address: None }));
    let relay = Relay { unproven, ..Relay::to_be_dialled(hello, cx.now) };
    let mut conn = Connection::new(Conn::accepted(stream, None), Role::Relay(relay), cx.now);
    conn.remote = remote;
    conn.via = Some(ListenerKind::GatewayInside);
    // Without a descriptor left it is closed, which the caller sees.
    let Some(down) = conns.insert(cx, conn) else { return };
    conns.queue_read(down);
    match gateway.reverse.held.networks.entry(network.clone()).or_default().next(conns) {
        Some(up) => send(cx, conns, gateway, down, up, &network),
        None => wait(cx, conns, gateway, down, &network),
    }
}

/// Hands a caller over to another data thread that holds reverse connections. Returns whether it did.
fn hand_over(
    cx: &Cx,
    conns: &mut Connections,
    gateway: &Gateway,
    down: ConnKey,
    network: &NetworkName,
) -> bool {
    let reverse = &gateway.reverse;
    let Some(thread) = reverse.board.other_holder(reverse.thread, network) else { return false };
    let Some(conn) = conns.get(down) else { return false };
    let Role::Relay(relay) = &conn.role else { return false };
    if relay.ended || relay.failed_dials > 0 || conn.io.pending() > 0 {
        return false;
    }
    // It is closed with this thread's descriptor where that fails.
    let _ = conns.poller().remove(&conn.io);
    let Some(conn) = conns.take(cx, down) else { return false };
    let remote = conn.remote;
    let (Role::Relay(relay), Some(stream)) = (conn.role, conn.io.into_stream()) else {
        return true;
    };
    let more = relay.unproven.map(|unproven| unproven.bytes).unwrap_or_default();
    let caller = Caller { stream, remote, network: network.clone(), hello: relay.early, more };
    reverse.board.send(thread, Command::Carry(Box::new(caller)));
    true
}

/// No reverse connection waits: the caller waits for the next one if one may come, or is refused.
fn wait(
    cx: &mut Cx,
    conns: &mut Connections,
    gateway: &mut Gateway,
    down: ConnKey,
    network: &NetworkName,
) {
    let (is_carrying, _) = gateway.reverse.carries(conns, network, None);
    let ways = gateway.reverse.held.networks.entry(network.clone()).or_default();
    let may_come = ways.may_come(cx.now) || is_carrying || !ways.offered.is_empty();
    if may_come && ways.waiting.len() < REVERSE_WAITING_LIMIT {
        ways.waiting.push_back((down, cx.now));
    } else {
        relay::refuse(cx, conns, down, ErrorCode::GatewayUpstream);
    }
}

/// Bytes of the other end of a reverse connection that it has opened.
pub(super) fn on_message(
    cx: &mut Cx,
    conns: &mut Connections,
    gateway: &mut Gateway,
    key: ConnKey,
    message: Message<'_>,
) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Role::Reverse(reverse) = &conn.role else { return };
    if cx.now >= reverse.lives_from
        && let Some(ways) = gateway.reverse.held.networks.get_mut(&reverse.network)
    {
        ways.note_life();
    }
    match (message, &reverse.side) {
        (Message::Keep, _) if conn.io.pending() < REVERSE_UNREAD_BYTES => {
            // One that was offered a connection sends TAKE next.
            if matches!(reverse.side, ReverseSide::Held) {
                conn.io.out().push(KEEP);
                conns.mark_dirty(key);
            }
        }
        (Message::Keep, ReverseSide::Offered { .. }) => {}
        (Message::Take(carried), ReverseSide::Offered { down, .. }) => {
            let down = *down;
            confirm(cx, conns, gateway, key, down, carried);
        }
        (Message::Keep | Message::Take(_) | Message::Refuse | Message::Unknown, _) => {
            let identity = conn.peer.clone();
            pass_over(cx, conns, key);
            if let Some(identity) = identity {
                refuse(cx, conns, key, &identity, "it breaks the protocol");
            }
        }
    }
}

/// The other end carries the connection of `down` from here on.
fn confirm(
    cx: &mut Cx,
    conns: &mut Connections,
    gateway: &mut Gateway,
    key: ConnKey,
    down: ConnKey,
    carried: &[u8],
) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Role::Reverse(reverse) = &conn.role else { return };
    let network = reverse.network.clone();
    let (address, peer) = (conn.remote, conn.peer.take());
    conn.since = cx.now;
    if relay::relay(conns, down).is_none_or(|relay| relay.other != Some(key)) {
        return conns.close(cx, key);
    }
    cx.metrics.gateway_reverse_carried.add(1);
    let since = cx.now;
    let carrying = peer.map(|peer| Carrying { conn: key, network, peer, since });
    gateway.reverse.carrying.extend(carrying);
    relay::on_dialled(cx, conns, key, down);
    greeting::begin(conns, key, address);
    greeting::on_bytes(cx, conns, key, carried);
}

/// The other end closes a reverse connection, or it breaks. The caller that it was offered goes to the
/// next one, with its ClientHello, which nothing has answered.
pub(super) fn on_over(cx: &mut Cx, conns: &mut Connections, gateway: &mut Gateway, key: ConnKey) {
    if let Some(Role::Reverse(reverse)) = conns.get(key).map(|conn| &conn.role)
        && matches!(reverse.side, ReverseSide::Held)
        && let Some(ways) = gateway.reverse.held.networks.get_mut(&reverse.network)
    {
        ways.is_drained = true;
    }
    end(cx, conns, key);
}

/// Closes one. The caller that it was offered goes to the next one.
fn end(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    pass_over(cx, conns, key);
    conns.close(cx, key);
}

/// Has what a reverse connection was offered go to the next one.
fn pass_over(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Role::Reverse(reverse) = &mut conn.role else { return };
    let side = std::mem::replace(&mut reverse.side, ReverseSide::Held);
    let ReverseSide::Offered { down, hello, .. } = side else { return };
    conn.io.abort_on_close();
    let cause = Cause::from("the reverse connection has ended");
    relay_dial::on_relay_dial_failed(cx, conns, down, None, hello, &cause);
}

/// Gives up what has not answered in time, refuses callers that have waited long enough, and reports.
pub(super) fn sweep(cx: &mut Cx, conns: &mut Connections, gateway: &mut Gateway) {
    let now = cx.now;
    let swept = gateway.reverse.held.swept.replace(now).unwrap_or(now);
    let passed = now.saturating_duration_since(swept).min(LATE);
    let networks: Vec<NetworkName> = gateway.reverse.held.networks.keys().cloned().collect();
    for network in networks {
        let Some(ways) = gateway.reverse.held.networks.get_mut(&network) else { continue };
        ways.silent_for = ways.silent_for.saturating_add(passed);
        let mut silent = Vec::new();
        ways.offered.retain(|key| {
            let Some(Role::Reverse(reverse)) = conns.get(*key).map(|conn| &conn.role) else {
                return false;
            };
            let ReverseSide::Offered { since, .. } = reverse.side else { return false };
            let is_silent = now.saturating_duration_since(since) > REVERSE_ANSWER_WITHIN;
            silent.extend(is_silent.then_some(*key));
            !is_silent
        });
        let mut refused = Vec::new();
        while let Some((down, since)) = ways.waiting.front() {
            if now.saturating_duration_since(*since) <= REVERSE_WAIT_WITHIN {
                break;
            }
            refused.push(*down);
            ways.waiting.pop_front();
        }
        for key in silent {
            cx.metrics.gateway_reverse_silent.add(1);
            give_up_instance(cx, conns, gateway, &network, key);
        }
        for down in refused {
            if is_waiting(conns, down) {
                relay::refuse(cx, conns, down, ErrorCode::GatewayUpstream);
            }
        }
        let gave_up_at =
            gateway.reverse.held.networks.get(&network).and_then(|ways| ways.gave_up_at);
        let (is_carrying, heard) = gateway.reverse.carries(conns, &network, gave_up_at);
        let Some(ways) = gateway.reverse.held.networks.get_mut(&network) else { continue };
        let is_waiting = ways.idle.iter().any(|key| is_idle(conns, *key));
        // Bytes of carried connections are signs of life only where no keepalives come, and by none that a
        // cut has met: the kernel of a suspended gateway retransmits for minutes what a link has lost.
        if !is_waiting && !ways.is_given_up && heard.is_some_and(|at| at >= swept) {
            ways.note_life();
        }
        let is_silent = ways.silent_for >= SILENT_AFTER;
        // One that is taken is replaced at once, so nothing waits where nothing can come.
        let may_expect = is_waiting || !ways.offered.is_empty() || is_carrying && !ways.is_drained;
        if is_silent && may_expect {
            ways.give_up(now);
            // One whose handshake took long has not had time to show that it lives.
            ways.idle.retain(|key| {
                let is_new = may_live(conns, *key, now);
                if !is_new {
                    conns.close(cx, *key);
                }
                is_new
            });
        }
        let is_carrying = is_carrying && ways.silent_for < CARRYING_FOR;
        if is_silent && ways.is_given_up {
            ways.held_at = None;
        } else if is_waiting || is_carrying || !ways.offered.is_empty() {
            ways.held_at = Some(now);
        }
        report(now, gateway, &network);
    }
}

/// Whether a connection that waits may yet give its first sign of life.
fn may_live(conns: &Connections, key: ConnKey, now: Instant) -> bool {
    let Some(conn) = conns.get(key) else { return false };
    let Role::Reverse(reverse) = &conn.role else { return false };
    // It waits since then.
    reverse.lives_from > conn.since && now < reverse.lives_from + FRESH_WITHIN
}

/// A gateway at the other end is silent: all that it has opened is closed with `key`. If it lives, it
/// opens others.
fn give_up_instance(
    cx: &mut Cx,
    conns: &mut Connections,
    gateway: &mut Gateway,
    network: &NetworkName,
    key: ConnKey,
) {
    let silent = conns.get(key).and_then(|conn| conn.instance().cloned());
    let is_of = |conns: &Connections, key: ConnKey| {
        conns.get(key).is_some_and(|conn| conn.instance() == silent.as_ref())
    };
    if let Some(ways) = gateway.reverse.held.networks.get_mut(network) {
        ways.give_up(cx.now);
        let (gone, kept) = ways.idle.drain(..).partition(|key| is_of(conns, *key));
        ways.idle = kept;
        for key in Vec::from(gone) {
            conns.close(cx, key);
        }
    }
    end(cx, conns, key);
}

/// Closes what has fallen silent, and what is of a network that does not only dial out any more.
pub(super) fn round(cx: &mut Cx, conns: &mut Connections, gateway: &mut Gateway) {
    debug_assert!(ROUND < REVERSE_SILENT_WITHIN);
    let reverse = &mut gateway.reverse;
    for (network, ways) in &mut reverse.held.networks {
        let is_way = reverse.networks.get(network).is_some_and(|known| known.dials_out);
        ways.idle.retain(|key| {
            let Some(Role::Reverse(held)) = conns.get(*key).map(|conn| &conn.role) else {
                return false;
            };
            let is_silent = cx.now.saturating_duration_since(held.heard) > REVERSE_SILENT_WITHIN;
            if is_silent || !is_way {
                conns.close(cx, *key);
            }
            !is_silent && is_way
        });
    }
    let now = cx.now;
    let is_remembered = |at: Instant| now.saturating_duration_since(at) < REMEMBERED_FOR;
    reverse.held.networks.retain(|_, ways| {
        ways.is_reported
            || ways.gave_up_at.is_some_and(is_remembered)
            || !(ways.idle.is_empty() && ways.offered.is_empty() && ways.waiting.is_empty())
    });
}

/// Notes on the board whether there are reverse connections of a network.
fn report(now: Instant, gateway: &mut Gateway, network: &NetworkName) {
    let reverse = &mut gateway.reverse;
    let Some(ways) = reverse.held.networks.get_mut(network) else { return };
    let is_held = ways.may_come(now);
    if std::mem::replace(&mut ways.is_reported, is_held) != is_held {
        reverse.board.note(reverse.thread, network, is_held);
    }
}
