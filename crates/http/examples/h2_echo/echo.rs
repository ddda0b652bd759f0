//! The echo server's application and its blocking driver; the tests use both too.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use tollway_http::h2::{Config, Connection, ErrorCode, Event, StreamId};
use tollway_http::{Fields, ResponseHead};

/// The body of the answer to a request without one.
pub(crate) const GREETING: &[u8] = b"hello from tollway\n";

/// A connection and what its streams still have to send.
pub(crate) struct Echo {
    pub(crate) connection: Connection,
    answers: HashMap<StreamId, Answer>,
    pub(crate) out: Vec<u8>,
}

#[derive(Default)]
struct Answer {
    body: Vec<u8>,
    is_complete: bool,
    trailers: Option<Fields>,
}

/// Serves one connection until it ends.
pub(crate) fn serve(mut socket: TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let started = Instant::now();
    let mut echo = Echo::new(Config::default());
    let mut input = vec![0; 64 * 1024];
    let mut events = Vec::new();
    loop {
        socket.write_all(&echo.out)?;
        echo.out.clear();
        let count = socket.read(&mut input)?;
        if count == 0 {
            return Ok(());
        }
        let input = &input[..count];
        let now = started.elapsed();
        let outcome = echo.connection.receive(input, now, &mut events, &mut echo.out);
        for event in events.drain(..) {
            echo.handle(event, input);
        }
        if let Err(error) = outcome {
            socket.write_all(&echo.out)?;
            return Err(io::Error::other(error));
        }
    }
}

impl Echo {
    pub(crate) fn new(config: Config) -> Self {
        let mut out = Vec::new();
        let connection = Connection::server(config, &mut out);
        Self { connection, answers: HashMap::new(), out }
    }

    /// Acts on one event of a `receive` of `input`.
    pub(crate) fn handle(&mut self, event: Event, input: &[u8]) {
        match event {
            Event::Request { stream, end, .. } => self.begin(stream, end),
            Event::Refused { stream } => self.refuse(stream),
            Event::Data { stream, range, end, credit } => {
                self.connection.release_connection(credit, &mut self.out);
                // The stream's credit for the data goes back as its echo leaves: see `send`.
                self.connection.release(stream, credit - range.len(), &mut self.out);
                let answer = self.answers.entry(stream).or_default();
                answer.body.extend_from_slice(&input[range]);
                answer.is_complete |= end;
                self.send(stream);
            }
            Event::Trailers { stream, fields } => {
                let answer = self.answers.entry(stream).or_default();
                answer.trailers = Some(fields);
                answer.is_complete = true;
                self.send(stream);
            }
            Event::Reset { stream, .. } => {
                self.answers.remove(&stream);
            }
            Event::WindowOpen { stream: Some(stream) } => self.send(stream),
            Event::WindowOpen { stream: None } => {
                let waiting: Vec<StreamId> = self.answers.keys().copied().collect();
                waiting.into_iter().for_each(|stream| self.send(stream));
            }
            Event::GoAway { .. } => self.connection.goaway(ErrorCode::NO_ERROR, &mut self.out),
            Event::Response { .. } | Event::PingAck(_) | Event::SettingsChanged => {}
        }
    }

    fn begin(&mut self, stream: StreamId, end: bool) {
        let mut head = ResponseHead::new(200);
        head.fields.push(b"content-type", b"text/plain");
        let body = if end { GREETING.to_vec() } else { Vec::new() };
        let length = end.then_some(GREETING.len() as u64);
        if self.connection.send_response(stream, &head, length, false, &mut self.out).is_ok() {
            self.answers.insert(stream, Answer { body, is_complete: end, trailers: None });
            self.send(stream);
        }
    }

    fn refuse(&mut self, stream: StreamId) {
        let head = ResponseHead::new(431);
        let _gone = self.connection.send_response(stream, &head, Some(0), true, &mut self.out);
    }

    fn send(&mut self, stream: StreamId) {
        let Some(answer) = self.answers.get_mut(&stream) else { return };
        let ends_with_data = answer.is_complete && answer.trailers.is_none();
        let sent = self.connection.send_data(stream, &answer.body, ends_with_data, &mut self.out);
        answer.body.drain(..sent);
        self.connection.release(stream, sent, &mut self.out);
        if answer.is_complete && answer.body.is_empty() {
            if let Some(trailers) = answer.trailers.take() {
                let _gone = self.connection.send_trailers(stream, &trailers, &mut self.out);
            }
            self.answers.remove(&stream);
        }
    }
}
