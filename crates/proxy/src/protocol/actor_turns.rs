//! Turns of actors that were called off, or whose lease ended before they could be sent.

use tollway_net::Closed;

use super::{http1_client, http2};
use crate::conn::{ConnKey, Connections, Role};
use crate::cx::Cx;
use crate::exchange::{Exchange, Exchanges, UpstreamState, fail};
use crate::request_error::RequestError;

/// Ends the call of that number, and says whether anything of it was sent.
pub(crate) fn call_off(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    number: u64,
) {
    let is_meant =
        |exchange: &Exchange| exchange.number == Some(number) && !exchange.has_response_begun();
    let found = exchanges.iter().find(|(_, exchange)| is_meant(exchange));
    if let Some((key, _)) = found {
        fail::fail(cx, conns, exchanges, key, &RequestError::CalledOff);
    }
}

/// A turn is about to be sent, and it is too late for it: its connection goes, with all that was
/// to be written to it. Who has a part of a turn must not get the whole.
pub(crate) fn on_lease_over(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
) {
    let Some(conn) = conns.get_mut(key) else { return };
    conn.io.abort_on_close();
    let mut unsent = Vec::new();
    for (turn, _) in std::mem::take(&mut conn.turns) {
        let Some(exchange) = exchanges.get_mut(turn) else { continue };
        let Some(up) = exchange.upstream().filter(|_| !exchange.is_begun) else { continue };
        match &mut conn.role {
            Role::Http1Client(client) => client.exchange = None,
            Role::Http2Client(link) => drop(link.streams.remove(&up.stream.0)),
            _ => {}
        }
        // As if it had found no connection yet.
        exchange.up = UpstreamState::Waiting;
        unsent.push(turn);
    }
    match &conn.role {
        Role::Http1Client(_) => {
            http1_client::on_closed(cx, conns, exchanges, key, Closed::Truncated)
        }
        _ => {
            http2::on_over(cx, conns, exchanges, key, "a turn of an actor was too late for it");
            conns.close(cx, key);
        }
    }
    for key in unsent {
        fail::fail(cx, conns, exchanges, key, &RequestError::TooLate);
    }
}
