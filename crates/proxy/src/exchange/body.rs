//! Bodies on their way: from a source's read straight into the sink's output, or into the pipe
//! when the sink is full; credit goes back to the source as the sink takes bytes.

use tollway_http::h1::{self, BodyLength};
use tollway_http::{Fields, h2};

use super::{Exchange, Exchanges, Pipe, Side, StreamRef, UpstreamState, fail, finish};
use crate::conn::{ConnKey, Connection, Connections, Role};
use crate::cx::{Cx, Effect};
use crate::exchange::ExchangeKey;
use crate::headers;

/// Bytes of one stream that are served before those of the next in line.
const QUANTUM: usize = 16 * 1024;

impl Exchange {
    pub(crate) fn pipe(&self, side: Side) -> &Pipe {
        match side {
            Side::Request => &self.request,
            Side::Response => &self.response,
        }
    }

    pub(crate) fn pipe_mut(&mut self, side: Side) -> &mut Pipe {
        match side {
            Side::Request => &mut self.request,
            Side::Response => &mut self.response,
        }
    }

    /// A pipe, and where what left it is kept (for requests).
    fn pipe_and_replay(&mut self, side: Side) -> (&mut Pipe, Option<&mut Option<Vec<u8>>>) {
        match side {
            Side::Request => (&mut self.request, Some(&mut self.replay)),
            Side::Response => (&mut self.response, None),
        }
    }

    fn source(&self, side: Side) -> Option<StreamRef> {
        match side {
            Side::Request => Some(self.down),
            Side::Response => self.upstream(),
        }
    }

    fn sink(&self, side: Side) -> Option<StreamRef> {
        match side {
            Side::Request => self.upstream(),
            Side::Response => self.answer.has_begun.then_some(self.down),
        }
    }

    pub(crate) fn upstream(&self) -> Option<StreamRef> {
        match self.up {
            UpstreamState::Open(stream) => Some(stream),
            UpstreamState::Waiting
            | UpstreamState::FairQueue
            | UpstreamState::Permit
            | UpstreamState::Gathering
            | UpstreamState::Pausing
            | UpstreamState::Gone => None,
        }
    }
}

/// A piece of a body from its source.
pub(crate) struct Chunk<'a> {
    pub(crate) data: &'a [u8],
    /// What an HTTP/2 source charged for it, in bytes.
    pub(crate) credit: usize,
    /// Nothing follows, not even trailers.
    pub(crate) end: bool,
}

/// Takes a piece of a body from the source of `side`.
pub(crate) fn feed(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    side: Side,
    chunk: Chunk<'_>,
) {
    let Chunk { data, credit, end } = chunk;
    let Exchanges { slab, buffered_bytes, spare_bodies, .. } = exchanges;
    let Some(exchange) = slab.get_mut(key) else { return };
    exchange.active = cx.now;
    if let (Some(limit), Side::Request) = (&exchange.body_limit, side) {
        let pipe = &exchange.request;
        let bytes = pipe.passed + (pipe.len() + data.len()) as u64;
        if let Err(error) = limit.admit(bytes) {
            return fail::fail(cx, conns, exchanges, key, &error);
        }
    }
    let gathers = exchange.up == UpstreamState::Gathering;
    let sink = exchange.sink(side);
    let drops = exchange.is_mirrored && side == Side::Response;
    let turn = exchange.turn_towards(side);
    let (pipe, replay) = exchange.pipe_and_replay(side);
    pipe.credit_owed += credit;
    pipe.ended |= end;
    let mut taken = 0;
    if pipe.is_empty()
        && let Some(sink) = sink
        && let Some(conn) = conns.get_mut(sink.conn)
    {
        taken = put(conn, sink, data, end, None, cx.config.limits.out_bytes);
        conn.note_turn(key, turn);
        conns.mark_dirty(sink.conn);
        if end && taken == data.len() {
            pipe.finished = true;
        }
    } else if drops {
        taken = data.len();
        pipe.finished |= end;
    }
    pipe.passed += taken as u64;
    let rest = &data[taken..];
    pipe.push(rest);
    *buffered_bytes += rest.len();
    if let Some(replay) = replay {
        let limit = cx.config.limits.replay_bytes;
        let given_up = remember(replay, &data[..taken], limit, spare_bodies);
        cx.metrics.retry_buffer_exceeded.add(u64::from(given_up));
    }
    after_taking(cx, conns, exchanges, key, side);
    if gathers {
        cx.effects.push(Effect::Dispatch(key));
    }
}

/// The source has ended, with trailers or without.
pub(crate) fn end_source(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    side: Side,
    trailers: Option<Fields>,
) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    exchange.active = cx.now;
    let gathers = exchange.up == UpstreamState::Gathering;
    let pipe = exchange.pipe_mut(side);
    pipe.ended = true;
    pipe.trailers = trailers.map(headers::trailers).filter(|t| !t.is_empty());
    if exchange.is_mirrored && side == Side::Response {
        exchange.response.finished = true;
        return finish::on_response_sent(cx, conns, exchanges, key);
    }
    move_waiting(cx, conns, exchanges, key, side, QUANTUM);
    if gathers {
        cx.effects.push(Effect::Dispatch(key));
    }
}

/// Moves up to `quantum` waiting bytes into the sink, and the end behind the last.
pub(crate) fn move_waiting(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    side: Side,
    quantum: usize,
) {
    let Exchanges { slab, buffered_bytes, spare_bodies, .. } = exchanges;
    let Some(exchange) = slab.get_mut(key) else { return };
    let Some(sink) = exchange.sink(side) else { return };
    let turn = exchange.turn_towards(side);
    let (pipe, replay) = exchange.pipe_and_replay(side);
    if pipe.finished {
        return;
    }
    let Some(conn) = conns.get_mut(sink.conn) else { return };
    let count = pipe.len().min(quantum);
    let end = pipe.ended && count == pipe.len();
    let data = &pipe.pending()[..count];
    let out_bytes = cx.config.limits.out_bytes;
    let taken = put(conn, sink, data, end, pipe.trailers.as_ref(), out_bytes);
    conn.note_turn(key, turn);
    if let Some(replay) = replay {
        let limit = cx.config.limits.replay_bytes;
        let given_up = remember(replay, &data[..taken], limit, spare_bodies);
        cx.metrics.retry_buffer_exceeded.add(u64::from(given_up));
    }
    conns.mark_dirty(sink.conn);
    pipe.consume(taken);
    pipe.passed += taken as u64;
    pipe.finished |= end && taken == count;
    *buffered_bytes -= taken;
    after_taking(cx, conns, exchanges, key, side);
}

/// Gives credit back, stands in line, holds back or lets go the source, ends.
fn after_taking(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    side: Side,
) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    let (source, sink) = (exchange.source(side), exchange.sink(side));
    let pipe = exchange.pipe_mut(side);
    let repaid = pipe.credit_owed.saturating_sub(pipe.len());
    pipe.credit_owed -= repaid;
    let (waiting, finished) = (pipe.len(), pipe.finished);
    let has_grown_large = pipe.passed > cx.config.limits.bulk_bytes as u64;
    let unfinished = waiting > 0 || (pipe.ended && !pipe.finished);
    if unfinished
        && !pipe.in_line
        && let Some(sink) = sink
        && let Some(conn) = conns.get_mut(sink.conn)
        && !is_stream_blocked(conn, sink)
    {
        pipe.in_line = true;
        conn.write_queue.push_back((key, side));
    }
    if let Some(source) = source {
        release_credit(conns, source, repaid);
        apply_backpressure(cx, conns, exchanges, source.conn, waiting);
    }
    if has_grown_large {
        begin_bulk(cx, conns, exchanges, key);
    }
    if finished {
        match side {
            Side::Request => finish::on_request_sent(cx, exchanges, key),
            Side::Response => finish::on_response_sent(cx, conns, exchanges, key),
        }
    }
}

/// A body has grown large: small requests get a connection without it.
fn begin_bulk(cx: &mut Cx, conns: &mut Connections, exchanges: &mut Exchanges, key: ExchangeKey) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    if std::mem::replace(&mut exchange.is_bulk, true) {
        return;
    }
    cx.metrics.bulk_bodies.add(1);
    let Some(up) = exchange.upstream() else { return };
    let Some(conn) = conns.get_mut(up.conn) else { return };
    let Role::Http2Client(link) = &mut conn.role else { return };
    link.begin_bulk(up.stream);
    if let Some(destination) = link.destination.clone() {
        cx.effects.push(Effect::Scale(destination));
    }
}

fn release_credit(conns: &mut Connections, source: StreamRef, bytes: usize) {
    if bytes == 0 {
        return;
    }
    let Some(conn) = conns.get_mut(source.conn) else { return };
    if let Role::Http2Server(link) | Role::Http2Client(link) = &mut conn.role {
        link.codec.release(source.stream, bytes, conn.io.out());
        conns.mark_dirty(source.conn);
    }
}

/// Credit of the whole connection goes back when bytes arrive, so that one slow stream does
/// not stall the others; unless the thread as a whole holds too much.
pub(crate) fn release_connection_credit(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    bytes: usize,
) {
    let over = exchanges.buffered_bytes > cx.config.limits.buffered_bytes;
    let Some(conn) = conns.get_mut(key) else { return };
    if let Role::Http2Server(link) | Role::Http2Client(link) = &mut conn.role {
        link.held_credit += bytes;
        exchanges.holds_credit |= over;
        if !over {
            let bytes = std::mem::take(&mut link.held_credit);
            link.codec.release_connection(bytes, conn.io.out());
            conns.mark_dirty(key);
        }
    }
}

/// An HTTP/1.1 source is not read while its sink is full; where the thread as a whole holds too
/// much, not before its sink is empty.
fn apply_backpressure(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    source: ConnKey,
    waiting: usize,
) {
    let high = cx.config.limits.pipe_bytes;
    let is_over = waiting > 0 && exchanges.buffered_bytes > cx.config.limits.buffered_bytes;
    let Some(conn) = conns.get_mut(source) else { return };
    if !matches!(conn.role, Role::Http1Server(_) | Role::Http1Client(_)) {
        return;
    }
    if waiting >= high || is_over {
        let was_paused = std::mem::replace(&mut conn.paused, true);
        cx.metrics.backpressure_pauses.add(u64::from(!was_paused));
    } else if conn.paused && waiting <= high / 2 {
        conns.resume(source);
    }
}

/// Serves the pipes that wait for room on a connection, one after the other.
pub(crate) fn serve_queue(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
) {
    let out_bytes = cx.config.limits.out_bytes;
    let Some(conn) = conns.get(key) else { return };
    for _ in 0..conn.write_queue.len() {
        let Some(conn) = conns.get_mut(key) else { return };
        if conn.io.pending() >= out_bytes || !has_window(conn) {
            return;
        }
        let Some((exchange, side)) = conn.write_queue.pop_front() else { return };
        serve(cx, conns, exchanges, key, exchange, side);
    }
}

/// A stream has window again.
pub(crate) fn serve_stream(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    conn: ConnKey,
    exchange: ExchangeKey,
) {
    let Some(state) = exchanges.get(exchange) else { return };
    let side = if state.down.conn == conn { Side::Response } else { Side::Request };
    if !state.pipe(side).in_line {
        serve(cx, conns, exchanges, conn, exchange, side);
    }
}

fn serve(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    conn: ConnKey,
    key: ExchangeKey,
    side: Side,
) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    if exchange.sink(side).is_none_or(|sink| sink.conn != conn) {
        return;
    }
    exchange.pipe_mut(side).in_line = false;
    move_waiting(cx, conns, exchanges, key, side, QUANTUM);
}

/// Memory of bodies that are over, for the next ones.
#[derive(Default)]
pub(super) struct BufferPool(Vec<Vec<u8>>);

impl BufferPool {
    const COUNT: usize = 16;
    const BYTES: usize = 16 * 1024;

    fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    pub(super) fn keep(&mut self, body: Option<Vec<u8>>) {
        let fits = |body: &Vec<u8>| (1..=Self::BYTES).contains(&body.capacity());
        if let Some(mut body) = body.filter(fits)
            && self.0.len() < Self::COUNT
        {
            body.clear();
            self.0.push(body);
        }
    }
}

/// Keeps request bytes that were sent, while they are few enough to be sent again. Returns whether
/// they have become too many.
fn remember(
    replay: &mut Option<Vec<u8>>,
    data: &[u8],
    limit: usize,
    spare: &mut BufferPool,
) -> bool {
    let Some(kept) = replay else { return false };
    if kept.capacity() == 0 && !data.is_empty() {
        *kept = spare.take();
    }
    let is_too_much = kept.len() + data.len() > limit;
    if is_too_much {
        *replay = None;
    } else {
        kept.extend_from_slice(data);
    }
    is_too_much
}

/// Whether only this stream's own window is shut: an event `WindowOpen` follows, so it need not queue.
fn is_stream_blocked(conn: &Connection, sink: StreamRef) -> bool {
    match &conn.role {
        Role::Http2Server(link) | Role::Http2Client(link) => {
            link.codec.capacity(sink.stream) == 0 && link.codec.connection_capacity() > 0
        }
        _ => false,
    }
}

fn has_window(conn: &Connection) -> bool {
    match &conn.role {
        Role::Http2Server(link) | Role::Http2Client(link) => link.codec.connection_capacity() > 0,
        _ => true,
    }
}

/// Writes what fits of `data`, and the end behind it if all of it fits. Returns the bytes taken.
/// An end without data always fits.
fn put(
    conn: &mut Connection,
    sink: StreamRef,
    data: &[u8],
    end: bool,
    trailers: Option<&Fields>,
    out_bytes: usize,
) -> usize {
    let room = out_bytes.saturating_sub(conn.io.pending()).min(data.len());
    let data_fits = room == data.len();
    let out = conn.io.out();
    match &mut conn.role {
        Role::Http1Server(server) => {
            put_h1(out, server.sink, &data[..room], end && data_fits, trailers);
            room
        }
        Role::Http1Client(client) => {
            put_h1(out, Some(client.sink), &data[..room], end && data_fits, trailers);
            room
        }
        Role::Http2Server(link) | Role::Http2Client(link) => {
            let stream = sink.stream;
            let ends_here = end && data_fits && trailers.is_none();
            let taken = put_h2(&mut link.codec, stream, &data[..room], ends_here, out);
            if end
                && taken == data.len()
                && let Some(trailers) = trailers
            {
                // A stream that is gone was reset; an event follows.
                let _ = link.codec.send_trailers(stream, trailers, out);
            }
            taken
        }
        // The sink was closed in this pass; what closed it ends the exchange.
        _ => data.len(),
    }
}

fn put_h1(
    out: &mut Vec<u8>,
    framing: Option<BodyLength>,
    data: &[u8],
    end: bool,
    trailers: Option<&Fields>,
) {
    match framing {
        Some(BodyLength::Chunked) => {
            if !data.is_empty() {
                h1::write_chunk(out, data);
            }
            if end {
                h1::write_last_chunk(out, trailers);
            }
        }
        Some(BodyLength::Fixed(_) | BodyLength::UntilClose) => out.extend_from_slice(data),
        Some(BodyLength::None) | None => {}
    }
}

fn put_h2(
    codec: &mut h2::Connection,
    stream: h2::StreamId,
    data: &[u8],
    end: bool,
    out: &mut Vec<u8>,
) -> usize {
    if data.is_empty() && !end { 0 } else { codec.send_data(stream, data, end, out) }
}
