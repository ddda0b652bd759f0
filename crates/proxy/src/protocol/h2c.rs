//! Connections of the own app that begin as HTTP/1.1 and go on as HTTP/2 (`upgrade: h2c`), as daprd has them
//! at its HTTP API. Each request passes the same checks as before; nothing is handed on unread.

use tollway_http::h2::{self, StreamId};
use tollway_http::{Fields, h1};

use super::Arrival;
use crate::conn::{ConnKey, Connections, Http2Link, ListenerKind, Role};
use crate::cx::Cx;
use crate::exchange::{BodySize, StreamRef};

const SETTINGS: &[u8] = b"http2-settings";
const SWITCHING: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";

/// Goes on as HTTP/2 after a request without a body. The request is the connection's first stream.
///
/// # Errors
/// The request, where the offer is not accepted, as it need not be.
pub(super) fn upgrade(
    cx: &Cx,
    conns: &mut Connections,
    key: ConnKey,
    request: h1::Request,
) -> Result<Arrival, h1::Request> {
    let Some(conn) = conns.get_mut(key) else { return Err(request) };
    let is_served = cx.config.as_daprd.is_some()
        && conn.via == Some(ListenerKind::HttpApi)
        && !conn.draining
        // Behind the change the host is not looked at: no browser speaks HTTP/2 without TLS.
        && cx.config.web_pages.admit_host(&request.head).is_ok();
    let Some(settings) = settings(&request.head.fields).filter(|_| is_served) else {
        return Err(request);
    };
    let (config, now) = (cx.config.limits.h2.clone(), cx.since_start());
    let mut behind = Vec::new();
    let upgraded = h2::Connection::upgraded(config, settings, &request.head, now, &mut behind);
    let Some(codec) = upgraded else { return Err(request) };
    let out = conn.io.out();
    out.extend_from_slice(SWITCHING);
    out.extend_from_slice(&behind);
    conn.since = cx.now;
    conn.role = Role::Http2Server(Box::new(Http2Link::new(codec, cx.now)));
    conns.schedule(cx, key);
    conns.mark_dirty(key);
    let mut head = request.head;
    h1::strip_hop_by_hop(&mut head.fields);
    let down = StreamRef { conn: key, stream: StreamId(1) };
    Ok(Arrival { down, head, size: BodySize::None, ended: true, is_upgrade: false })
}

/// The client's settings, if there is one field of them and it is for this hop.
fn settings(fields: &Fields) -> Option<&[u8]> {
    let mut all = fields.values(SETTINGS);
    let (first, next) = (all.next()?, all.next());
    let options = fields.values(b"connection").flat_map(|value| value.split(|byte| *byte == b','));
    let is_listed =
        options.into_iter().any(|option| option.trim_ascii().eq_ignore_ascii_case(SETTINGS));
    (next.is_none() && is_listed).then_some(first)
}
