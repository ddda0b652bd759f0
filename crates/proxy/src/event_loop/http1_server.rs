//! HTTP/1.1 downstreams: one exchange at a time; what is pipelined behind it waits unread.

use tollway_http::h1::{self, BodyDecoder, BodyLength, Parsed};
use tollway_http::h2::StreamId;
use tollway_http::{Method, ResponseHead};
use tollway_model::ErrorCode;
use tollway_net::{Closed, Key};

use super::EventLoop;
use super::request::Arrival;
use crate::connection::{Http1Server, Role};
use crate::exchange::{BodySize, Exchange, Side, StreamRef};
use crate::request_error::{RequestError, Within};
use crate::respond;

/// What to do after one look at the input.
enum Next {
    /// Look again behind so many bytes.
    Again(usize),
    /// Nothing more can be done with what is there.
    Wait,
    /// The connection has another role now or is gone.
    Gone,
}

impl EventLoop {
    pub(super) fn on_h1_server_bytes(&mut self, key: Key, data: &[u8]) {
        let Some(server) = self.h1_server(key) else { return };
        let mut kept = std::mem::take(&mut server.input);
        let bytes = behind(&mut kept, data);
        let mut at = 0;
        loop {
            match self.h1_server_step(key, &bytes[at..]) {
                Next::Again(consumed) => at += consumed,
                Next::Wait => break,
                Next::Gone => return,
            }
        }
        self.keep_h1_input(key, &bytes[at..]);
    }

    /// Keeps what is not parsed yet; while an exchange is under way its connection is then not
    /// read further.
    fn keep_h1_input(&mut self, key: Key, rest: &[u8]) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Http1Server(server) = &mut conn.role else { return };
        if rest.is_empty() {
            return;
        }
        server.input.extend_from_slice(rest);
        if server.exchange.is_some() && server.body.is_none() {
            conn.paused = true;
        }
    }

    fn h1_server(&mut self, key: Key) -> Option<&mut Http1Server> {
        match &mut self.conns.get_mut(key)?.role {
            Role::Http1Server(server) => Some(server),
            _ => None,
        }
    }

    fn h1_server_step(&mut self, key: Key, bytes: &[u8]) -> Next {
        let limits = self.config.limits.h1;
        let Some(conn) = self.conns.get_mut(key) else { return Next::Gone };
        let paused = conn.paused;
        let Role::Http1Server(server) = &mut conn.role else { return Next::Gone };
        if bytes.is_empty() || paused {
            return Next::Wait;
        }
        if server.body.is_some() {
            return self.h1_request_body(key, bytes);
        }
        if server.exchange.is_some() {
            return Next::Wait;
        }
        match h1::parse_request(bytes, &limits, &mut server.scanner) {
            Ok(Parsed::Partial) => {
                if server.input.is_empty() && !server.in_head {
                    server.in_head = true;
                    conn.since = self.now;
                    self.look_in_time(key);
                }
                Next::Wait
            }
            Ok(Parsed::Complete { message, consumed }) => {
                server.in_head = false;
                let has_body = !matches!(message.body, BodyLength::None | BodyLength::Fixed(0));
                if message.upgrade && !has_body {
                    // What follows may belong to another protocol: it waits with the connection.
                    server.input = bytes[consumed..].to_vec();
                    self.begin_h1_request(key, message);
                    Next::Gone
                } else {
                    self.begin_h1_request(key, message);
                    Next::Again(consumed)
                }
            }
            Err(h1::Refusal::RequestLine | h1::Refusal::Version) if !names_http(bytes) => {
                self.metrics.requests_refused.add(1);
                self.tell_refused_connection(key, ErrorCode::MalformedRequest);
                self.linger(key);
                Next::Gone
            }
            Err(refusal) => {
                self.refuse_h1(key, refusal.status(), &refusal.to_string());
                Next::Gone
            }
        }
    }

    fn h1_request_body(&mut self, key: Key, bytes: &[u8]) -> Next {
        let Some(server) = self.h1_server(key) else { return Next::Gone };
        let exchange = server.exchange;
        let Some(body) = &mut server.body else { return Next::Wait };
        match body.decode(bytes) {
            Ok(step) => {
                let finished = body.is_finished();
                let trailers = body.take_trailers().filter(|t| !t.is_empty());
                if finished {
                    server.body = None;
                }
                let data = &bytes[step.data];
                if let Some(exchange) = exchange {
                    let ends_here = finished && trailers.is_none();
                    if !data.is_empty() || ends_here {
                        self.feed(exchange, Side::Request, data, 0, ends_here);
                    }
                    if finished && trailers.is_some() {
                        self.end_source(exchange, Side::Request, trailers);
                    }
                }
                if step.consumed == 0 && !finished {
                    Next::Wait
                } else {
                    Next::Again(step.consumed)
                }
            }
            Err(refusal) => {
                self.metrics.requests_refused.add(1);
                match exchange {
                    Some(exchange) => self.fail(exchange, &RequestError::refused(refusal)),
                    None => self.remove(key),
                }
                Next::Gone
            }
        }
    }

    fn begin_h1_request(&mut self, key: Key, request: h1::Request) {
        let limits = self.config.limits.h1;
        let now = self.now;
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Http1Server(server) = &mut conn.role else { return };
        conn.since = now;
        server.version = request.version;
        server.keep_alive = request.keep_alive && !conn.draining;
        server.body = match request.body {
            BodyLength::None | BodyLength::Fixed(0) => None,
            length => Some(BodyDecoder::new(length, &limits)),
        };
        let ended = server.body.is_none();
        let mut head = request.head;
        let is_connect = head.method == Method::Connect;
        let upgrade = head.fields.value(b"upgrade").map(<[u8]>::to_vec);
        h1::strip_hop_by_hop(&mut head.fields);
        let is_upgrade = request.upgrade && !is_connect && ended;
        if is_upgrade && let Some(protocol) = upgrade {
            head.fields.push(b"upgrade", &protocol);
        }
        if is_connect {
            return self.on_connect(key, &head);
        }
        let down = StreamRef { conn: key, stream: StreamId(0) };
        let size = size_of(request.body);
        self.on_request(Arrival { down, head, size, ended, is_upgrade });
    }

    /// The bytes are not a request: says why and closes.
    pub(super) fn refuse_h1(&mut self, key: Key, status: u16, reason: &str) {
        self.metrics.requests_refused.add(1);
        let fault = match status {
            431 => RequestError::HeadTooLarge,
            _ => RequestError::BadRequest { status, reason: reason.to_owned() },
        };
        self.answer_http1_error(key, &fault);
    }

    /// The head did not end in time.
    pub(super) fn refuse_slow_h1(&mut self, key: Key) {
        self.metrics.requests_refused.add(1);
        let within = Within(self.config.timeouts.head);
        self.answer_http1_error(key, &RequestError::HeadTimedOut { within });
    }

    /// Says why what came is no exchange, and closes.
    pub(super) fn answer_http1_error(&mut self, key: Key, fault: &RequestError) {
        self.tell_refused(key, fault, None);
        let (head, body) = respond::http_error(fault, &self.hop());
        self.answer_h1_and_close(key, &head, &body);
    }

    fn answer_h1_and_close(&mut self, key: Key, head: &ResponseHead, body: &[u8]) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let options = h1::ResponseOptions {
            connection: h1::Connection::Close,
            ..h1::ResponseOptions::default()
        };
        let length = BodyLength::Fixed(body.len() as u64);
        h1::write_response(conn.io.out(), head, length, &options);
        conn.io.out().extend_from_slice(body);
        self.linger(key);
    }

    /// A response has wholly gone out: the next request, or the end.
    pub(super) fn h1_server_next(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Http1Server(server) = &mut conn.role else { return };
        server.exchange = None;
        server.sink = None;
        let over = server.body.is_some() || !server.keep_alive || conn.draining;
        if over { self.linger(key) } else { self.resume(key) }
    }

    /// The client sends no more. Whether it has gone or still reads cannot be told, and hardly
    /// any client closes one side alone, while many give up on an answer: what it asked for is
    /// called off, as over HTTP/2. An answer that is whole still goes out to one that reads.
    pub(super) fn on_h1_server_closed(&mut self, key: Key, how: Closed) {
        let Some(server) = self.h1_server(key) else { return };
        let exchange = server.exchange;
        let is_whole = exchange.and_then(|key| self.exchanges.get(key)).is_none_or(is_answered);
        if is_whole && how == Closed::Clean {
            return self.end_h1_server(key);
        }
        if let Some(exchange) = exchange {
            self.on_down_gone(exchange);
        }
        self.remove(key);
    }

    /// Nothing more is taken from a client; what it is owed goes out.
    fn end_h1_server(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let owes = conn.io.pending() > 0;
        let Role::Http1Server(server) = &mut conn.role else { return };
        server.keep_alive = false;
        match server.exchange {
            // Its end lets the connection go.
            Some(_) => {}
            None if owes => self.linger(key),
            None => self.remove(key),
        }
    }
}

/// Whether the upstream has answered in full and only the client has to take it.
fn is_answered(exchange: &Exchange) -> bool {
    exchange.responding && exchange.response.ended
}

/// What was kept and what came, as one; nothing is copied when nothing was kept.
pub(super) fn behind<'a>(kept: &'a mut Vec<u8>, data: &'a [u8]) -> &'a [u8] {
    if kept.is_empty() {
        return data;
    }
    kept.extend_from_slice(data);
    kept
}

/// Whether the first line speaks of HTTP at all. What does not (a spoilt HTTP/2 preface, say) is
/// not answered in HTTP/1.1, which its sender would not understand.
fn names_http(input: &[u8]) -> bool {
    let input = input.strip_prefix(b"\r\n").unwrap_or(input);
    let line = input.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.windows(b"HTTP/".len()).any(|window| window == b"HTTP/")
}

/// What a parsed framing says of the length.
pub(super) fn size_of(length: BodyLength) -> BodySize {
    match length {
        BodyLength::None => BodySize::None,
        BodyLength::Fixed(length) => BodySize::Fixed(length),
        BodyLength::Chunked | BodyLength::UntilClose => BodySize::Unknown,
    }
}
