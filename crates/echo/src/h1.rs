//! One HTTP/1.1 connection of the echo server, without its socket.
//!
//! Bodies are sent back as they come in. While an answer is generated or waits, no further
//! request is read; what a read brought beyond the current request is held, at most one read.

use tollway_http::h1::{
    BodyDecoder, BodyLength, CONTINUE, Connection, HeadScanner, Limits, Parsed, Refusal, Request,
    ResponseContext, ResponseOptions, Version, parse_request, write_chunk, write_last_chunk,
    write_response,
};
use tollway_http::{Fields, ResponseHead};

use crate::delays::Delays;
use crate::peer::HIGH_WATER_BYTES;
use crate::routes::{Action, Plan, actor_types, describe};
use crate::shared::Shared;
use crate::source::Source;

pub(crate) struct H1Session {
    held: Vec<u8>,
    scanner: HeadScanner,
    limits: Limits,
    stage: Stage,
    /// No request is taken after the current one.
    draining: bool,
    /// The peer sends no more.
    input_over: bool,
}

enum Stage {
    /// Between requests, or in a head.
    Head,
    /// In a request's body.
    Body { decoder: BodyDecoder, exchange: Exchange },
    /// The answer waits for a timer, or for the state that a timer's turn writes; meanwhile nothing is
    /// read.
    Waiting { decoder: BodyDecoder, exchange: Exchange },
    /// The answer's body is generated.
    Sending { source: Source, exchange: Exchange },
    /// Nothing more will be read or written.
    Closed,
}

/// The request that is answered.
struct Exchange {
    action: Action,
    version: Version,
    context: ResponseContext,
    keep_alive: bool,
    /// How the answer's body is framed, once its head is written.
    framing: BodyLength,
    /// The head as text, if the request asks for it.
    description: Vec<u8>,
    /// The head of an echo that has not begun, and the length of its body.
    echo: Option<(ResponseHead, BodyLength)>,
}

impl H1Session {
    pub(crate) fn new() -> Self {
        Self {
            held: Vec::new(),
            scanner: HeadScanner::new(),
            limits: Limits::default(),
            stage: Stage::Head,
            draining: false,
            input_over: false,
        }
    }

    pub(crate) fn wants_input(&self) -> bool {
        matches!(self.stage, Stage::Head | Stage::Body { .. })
    }

    /// Whether the connection is to be closed behind what `out` holds.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.stage, Stage::Closed)
    }

    /// Takes input and writes what it calls for.
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        shared: &Shared,
        delays: &mut Delays,
        out: &mut Vec<u8>,
    ) {
        if self.held.is_empty() {
            let consumed = self.process(input, shared, delays, out);
            self.hold(&input[consumed..]);
        } else {
            let mut held = std::mem::take(&mut self.held);
            held.extend_from_slice(input);
            let consumed = self.process(&held, shared, delays, out);
            held.drain(..consumed);
            self.held = held;
        }
    }

    fn hold(&mut self, rest: &[u8]) {
        if !self.is_closed() {
            self.held.extend_from_slice(rest);
        }
    }

    /// Processes `input` as far as possible; returns how many bytes it used.
    fn process(
        &mut self,
        input: &[u8],
        shared: &Shared,
        delays: &mut Delays,
        out: &mut Vec<u8>,
    ) -> usize {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            let step = match self.stage {
                Stage::Head if rest.is_empty() => return at,
                Stage::Head => self.read_head(rest, shared, delays, out),
                Stage::Body { .. } => self.read_body(rest, shared, out),
                Stage::Closed => return input.len(),
                Stage::Waiting { .. } | Stage::Sending { .. } => return at,
            };
            match step {
                Ok(Some(consumed)) => at += consumed,
                Ok(None) => return at,
                Err(refusal) => {
                    self.refuse(refusal, shared, out);
                    return input.len();
                }
            }
        }
    }

    /// `None`: the head has not ended yet.
    fn read_head(
        &mut self,
        input: &[u8],
        shared: &Shared,
        delays: &mut Delays,
        out: &mut Vec<u8>,
    ) -> Result<Option<usize>, Refusal> {
        match parse_request(input, &self.limits, &mut self.scanner)? {
            Parsed::Partial => Ok(None),
            Parsed::Complete { message, consumed } => {
                self.scanner = HeadScanner::new();
                self.begin(&message, shared, delays, out);
                Ok(Some(consumed))
            }
        }
    }

    fn begin(
        &mut self,
        request: &Request,
        shared: &Shared,
        delays: &mut Delays,
        out: &mut Vec<u8>,
    ) {
        if request.expect_continue {
            out.extend_from_slice(CONTINUE);
        }
        let Plan { action, delay } = shared.plan(&request.head);
        let mut exchange = Exchange {
            action,
            version: request.version,
            context: ResponseContext::of(&request.head.method),
            keep_alive: request.keep_alive && !self.draining && !request.upgrade,
            framing: BodyLength::None,
            description: Vec::new(),
            echo: None,
        };
        let mut is_held = false;
        match action {
            Action::Echo => {
                let mut head = ResponseHead::new(200);
                if let Some(kind) = request.head.fields.value(b"content-type") {
                    head.fields.push(b"content-type", kind);
                }
                let length = match request.body {
                    BodyLength::None => BodyLength::Fixed(0),
                    BodyLength::Fixed(_) | BodyLength::Chunked | BodyLength::UntilClose => {
                        request.body
                    }
                };
                exchange.echo = Some((head, length));
            }
            Action::Headers => exchange.description = describe(&request.head),
            Action::ActorTypes => exchange.description = actor_types(shared.actor_types),
            Action::TimerFires => exchange.description = shared.timer_fires.take(),
            Action::TimerFired(timer) => match timer.state_port {
                Some(port) => {
                    let path = &request.head.path;
                    is_held = shared.timer_fires.write(&timer, port, path, delays.key());
                }
                None => shared.timer_fires.record(&timer),
            },
            Action::Size(_)
            | Action::Status(_)
            | Action::Close
            | Action::Grpc(_)
            | Action::Text(..) => {}
        }
        let decoder = BodyDecoder::new(request.body, &self.limits);
        self.stage = match delay {
            Some(delay) => {
                delays.set(delay, 0);
                Stage::Waiting { decoder, exchange }
            }
            None if is_held => Stage::Waiting { decoder, exchange },
            None => {
                exchange.begin_echo(shared, out);
                Stage::Body { decoder, exchange }
            }
        };
    }

    /// `None`: all input is spent and the body has not ended yet.
    fn read_body(
        &mut self,
        input: &[u8],
        shared: &Shared,
        out: &mut Vec<u8>,
    ) -> Result<Option<usize>, Refusal> {
        let Stage::Body { decoder, exchange } = &mut self.stage else { return Ok(Some(0)) };
        let mut at = 0;
        while !decoder.is_finished() {
            let step = decoder.decode(&input[at..])?;
            if step.consumed == 0 {
                return Ok((at > 0).then_some(at));
            }
            if exchange.action == Action::Echo {
                exchange.write_data(&input[at..][step.data], out);
            }
            at += step.consumed;
        }
        let trailers = decoder.take_trailers();
        self.answer(trailers.as_ref(), shared, out);
        Ok(Some(at))
    }

    /// The request is complete.
    fn answer(&mut self, trailers: Option<&Fields>, shared: &Shared, out: &mut Vec<u8>) {
        let stage = std::mem::replace(&mut self.stage, Stage::Closed);
        let Stage::Body { mut exchange, .. } = stage else { return };
        match exchange.action {
            Action::Echo => {
                if exchange.framing == BodyLength::Chunked {
                    write_last_chunk(out, trailers);
                }
                self.next(&exchange);
            }
            Action::Size(bytes) => {
                let head = ResponseHead::new(200);
                exchange.write_head(head, BodyLength::Fixed(bytes), shared, out);
                let total = if exchange.framing == BodyLength::None { 0 } else { bytes };
                let source = Source::new(shared.pattern.clone(), total);
                self.stage = Stage::Sending { source, exchange };
                self.generate(out);
            }
            Action::Status(status) => self.finish(exchange, status, b"", shared, out),
            Action::TimerFired(_) => self.finish(exchange, 200, b"", shared, out),
            Action::Headers | Action::ActorTypes | Action::TimerFires => {
                let text = std::mem::take(&mut exchange.description);
                self.finish(exchange, 200, &text, shared, out);
            }
            Action::Text(status, why) => self.finish(exchange, status, why.as_bytes(), shared, out),
            Action::Grpc(_) => {
                self.finish(exchange, 426, b"gRPC needs HTTP/2\n", shared, out);
            }
            Action::Close => {}
        }
    }

    /// Writes a whole answer and goes on with the next request.
    fn finish(
        &mut self,
        mut exchange: Exchange,
        status: u16,
        body: &[u8],
        shared: &Shared,
        out: &mut Vec<u8>,
    ) {
        let mut head = ResponseHead::new(status);
        if !body.is_empty() {
            head.fields.push(b"content-type", b"text/plain");
        }
        exchange.write_head(head, BodyLength::Fixed(body.len() as u64), shared, out);
        exchange.write_data(body, out);
        self.next(&exchange);
    }

    fn next(&mut self, exchange: &Exchange) {
        let close =
            !exchange.keep_alive || self.draining || exchange.framing == BodyLength::UntilClose;
        self.stage = if close { Stage::Closed } else { Stage::Head };
    }

    /// Whether a body is being generated.
    pub(crate) fn has_more(&self) -> bool {
        matches!(self.stage, Stage::Sending { .. })
    }

    /// Generates more of the answer's body; behind it, goes on with what is held.
    pub(crate) fn pump(&mut self, shared: &Shared, delays: &mut Delays, out: &mut Vec<u8>) {
        self.generate(out);
        self.resume(shared, delays, out);
    }

    fn resume(&mut self, shared: &Shared, delays: &mut Delays, out: &mut Vec<u8>) {
        if self.wants_input() && !self.held.is_empty() && out.len() < HIGH_WATER_BYTES {
            self.receive(b"", shared, delays, out);
        }
    }

    /// While `out` is not full.
    fn generate(&mut self, out: &mut Vec<u8>) {
        let Stage::Sending { source, .. } = &mut self.stage else { return };
        while out.len() < HIGH_WATER_BYTES && source.left() > 0 {
            let piece = source.peek(HIGH_WATER_BYTES);
            out.extend_from_slice(piece);
            let length = piece.len();
            source.advance(length);
        }
        if source.left() == 0 {
            let stage = std::mem::replace(&mut self.stage, Stage::Closed);
            if let Stage::Sending { exchange, .. } = stage {
                self.next(&exchange);
            }
        }
    }

    /// The timer of a delayed answer.
    pub(crate) fn wake(&mut self, shared: &Shared, delays: &mut Delays, out: &mut Vec<u8>) {
        if !matches!(self.stage, Stage::Waiting { .. }) {
            return;
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Closed);
        if let Stage::Waiting { decoder, mut exchange } = stage {
            exchange.begin_echo(shared, out);
            self.stage = Stage::Body { decoder, exchange };
        }
        self.receive(b"", shared, delays, out);
        if self.input_over && self.wants_input() {
            self.stage = Stage::Closed;
        }
    }

    /// The peer sends no more: an unfinished request will not be finished.
    pub(crate) fn input_ended(&mut self) {
        self.draining = true;
        self.input_over = true;
        if self.wants_input() {
            self.stage = Stage::Closed;
        }
    }

    /// Takes no further request.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        if matches!(self.stage, Stage::Head) && self.held.is_empty() {
            self.stage = Stage::Closed;
        }
    }

    fn refuse(&mut self, refusal: Refusal, shared: &Shared, out: &mut Vec<u8>) {
        let answered = matches!(
            &self.stage,
            Stage::Body { exchange, .. } if exchange.framing != BodyLength::None
        );
        self.stage = Stage::Closed;
        // A client that names no version of HTTP gets no answer in HTTP/1.1: its bytes may be of
        // another protocol. In the middle of an answer only the end of the connection shows that it
        // failed.
        if answered || matches!(refusal, Refusal::RequestLine | Refusal::Version) {
            return;
        }
        let mut exchange = Exchange {
            action: Action::Close,
            version: Version::Http11,
            context: ResponseContext::default(),
            keep_alive: false,
            framing: BodyLength::None,
            description: Vec::new(),
            echo: None,
        };
        let body = format!("{refusal}\n");
        let mut head = ResponseHead::new(refusal.status());
        head.fields.push(b"content-type", b"text/plain");
        exchange.write_head(head, BodyLength::Fixed(body.len() as u64), shared, out);
        exchange.write_data(body.as_bytes(), out);
    }
}

impl Exchange {
    /// Writes the head of an echo, if this is one.
    fn begin_echo(&mut self, shared: &Shared, out: &mut Vec<u8>) {
        if let Some((head, length)) = self.echo.take() {
            self.write_head(head, length, shared, out);
        }
    }

    fn write_head(
        &mut self,
        mut head: ResponseHead,
        length: BodyLength,
        shared: &Shared,
        out: &mut Vec<u8>,
    ) {
        shared.sign(&mut head.fields);
        let declared_length = match length {
            BodyLength::Fixed(length) => Some(length),
            BodyLength::None | BodyLength::Chunked | BodyLength::UntilClose => None,
        };
        let connection = if self.keep_alive { Connection::KeepAlive } else { Connection::Close };
        let options = ResponseOptions {
            connection,
            peer: self.version,
            context: self.context,
            declared_length,
        };
        self.framing = write_response(out, &head, length, &options);
    }

    fn write_data(&self, data: &[u8], out: &mut Vec<u8>) {
        match self.framing {
            BodyLength::None => {}
            BodyLength::Fixed(_) | BodyLength::UntilClose => out.extend_from_slice(data),
            BodyLength::Chunked => write_chunk(out, data),
        }
    }
}
