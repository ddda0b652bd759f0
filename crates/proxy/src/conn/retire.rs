//! Connections that end in order: no new requests, then the end when those under way are done.

use crate::conn::{ConnKey, Connections, ListenerKind, Role};
use crate::cx::Cx;
use tollway_http::h2::ErrorCode;
use tollway_model::ServiceName;

/// Ends an HTTP/2 connection in order: GOAWAY, then, when its streams are done, the end.
pub(crate) fn retire_http2(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    let now = cx.now;
    let Some(conn) = conns.get_mut(key) else { return };
    conn.draining = true;
    let over = match &mut conn.role {
        Role::Http2Server(link) => {
            if link.goaway_at.is_none() {
                link.goaway_at = Some(now);
                link.codec.goaway(ErrorCode::NO_ERROR, conn.io.out());
                false
            } else {
                link.codec.goaway_final(conn.io.out());
                true
            }
        }
        Role::Http2Client(link) => {
            let over = link.streams.is_empty();
            if over {
                link.codec.goaway(ErrorCode::NO_ERROR, conn.io.out());
            }
            over
        }
        _ => false,
    };
    conns.mark_dirty(key);
    conns.schedule(cx, key);
    conns.leave_pool(cx, key, true);
    if over {
        conns.linger(cx, key);
    }
}

/// A connection of the app takes no further requests.
pub(crate) fn retire_caller(cx: &mut Cx, conns: &mut Connections, down: ConnKey) {
    let Some(conn) = conns.get_mut(down) else { return };
    match &mut conn.role {
        Role::Http1Server(server) => {
            server.keep_alive = false;
            conn.draining = true;
            conns.schedule(cx, down);
        }
        Role::Http2Server(_) if !conn.draining => retire_http2(cx, conns, down),
        _ => {}
    }
}

/// The connections of the app to a Service take no further requests.
pub(crate) fn retire_callers(cx: &mut Cx, conns: &mut Connections, of: &ServiceName) {
    for key in conns.keys() {
        let via = conns.get(key).and_then(|conn| conn.via.as_ref());
        if matches!(via, Some(ListenerKind::Tunnel(service)) if service == of) {
            retire_caller(cx, conns, key);
        }
    }
}

/// Asks callers over the mesh to take their next requests elsewhere.
pub(crate) fn retire_inbound(cx: &mut Cx, conns: &mut Connections) {
    for key in conns.keys() {
        let Some(conn) = conns.get(key) else { continue };
        let stays = conn.draining || conn.via != Some(ListenerKind::Inbound);
        if !stays && matches!(conn.role, Role::Http2Server(_)) {
            retire_http2(cx, conns, key);
        }
    }
}
