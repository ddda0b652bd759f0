//! One request on an HTTP/2 connection: what has come, what is still to be sent.

use std::sync::Arc;

use prost::Message as _;
use tollway_http::h2::{Connection, StreamId};
use tollway_http::{Fields, ResponseHead};

use crate::frames::{FrameCounter, PREFIX_BYTES, frame};
use crate::messages::{EchoMessage, Invocation, InvocationAnswer, StreamSummary};
use crate::peer::HIGH_WATER_BYTES;
use crate::routes::{Action, Rpc};
use crate::shared::Shared;
use crate::source::Source;

/// Largest message of a call whose request must be whole before it is answered.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// gRPC status codes that this server answers with.
const OK: u32 = 0;
const INVALID_ARGUMENT: u32 = 3;
const RESOURCE_EXHAUSTED: u32 = 8;
const UNIMPLEMENTED: u32 = 12;
const INTERNAL: u32 = 13;

pub(crate) struct Stream {
    pub(crate) action: Action,
    pub(crate) is_head: bool,
    pub(crate) request_ended: bool,
    /// The answer has not begun, because a timer is to run out first.
    pub(crate) is_waiting: bool,
    /// The head of an answer that begins before its request has ended, and the body's length.
    pub(crate) head: Option<(ResponseHead, Option<u64>)>,
    /// Of the request, to be sent back.
    pub(crate) trailers: Option<Fields>,
    pub(crate) description: Vec<u8>,
    pub(crate) body: Body,
    /// The request's one message, behind its prefix, where it must be whole.
    message: Vec<u8>,
    frames: FrameCounter,
    /// How a gRPC call ends; known when the request has ended.
    status: Option<(u32, &'static str)>,
}

/// What is still to be sent.
pub(crate) enum Body {
    /// `bytes` from `at`; those that were echoed give their window back when they are sent.
    Queued {
        bytes: Vec<u8>,
        at: usize,
    },
    Generated(Source),
}

impl Default for Body {
    fn default() -> Self {
        Self::Queued { bytes: Vec::new(), at: 0 }
    }
}

impl Body {
    pub(crate) fn generated(pattern: Arc<[u8]>, total: u64) -> Self {
        Self::Generated(Source::new(pattern, total))
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Queued { bytes, at } => *at == bytes.len(),
            Self::Generated(source) => source.left() == 0,
        }
    }
}

impl Stream {
    pub(crate) fn new(action: Action) -> Self {
        Self {
            action,
            is_head: false,
            request_ended: false,
            is_waiting: false,
            head: None,
            trailers: None,
            description: Vec::new(),
            body: Body::default(),
            message: Vec::new(),
            frames: FrameCounter::default(),
            status: None,
        }
    }

    /// Writes the head of an answer that begins before its request has ended.
    pub(crate) fn begin(
        &mut self,
        h2: &mut Connection,
        stream: StreamId,
        shared: &Shared,
        out: &mut Vec<u8>,
    ) {
        if let Some((mut head, length)) = self.head.take() {
            shared.sign(&mut head.fields);
            // A stream that is gone needs no answer.
            let _ = h2.send_response(stream, &head, length, false, out);
        }
    }

    /// Takes a piece of the request's body.
    pub(crate) fn data(
        &mut self,
        h2: &mut Connection,
        stream: StreamId,
        data: &[u8],
        credit: usize,
        out: &mut Vec<u8>,
    ) {
        let released = match self.action {
            Action::Grpc(rpc) => {
                let before = self.frames;
                self.frames.feed(data);
                match rpc {
                    Rpc::Unary | Rpc::BidiStream => self.echo(h2, stream, data, out),
                    Rpc::ServerStream | Rpc::OnInvoke => self.keep(data),
                    Rpc::Push => {
                        let acknowledgements = self.acknowledge(before.messages);
                        self.echo(h2, stream, &acknowledgements, out);
                        data.len()
                    }
                    Rpc::ClientStream | Rpc::Unknown | Rpc::Fail(_) => data.len(),
                }
            }
            Action::Echo if !self.is_head => self.echo(h2, stream, data, out),
            Action::Echo
            | Action::Size(_)
            | Action::Status(_)
            | Action::Headers
            | Action::ActorTypes
            | Action::TimerFired(_)
            | Action::TimerFires
            | Action::Close
            | Action::Text(..) => data.len(),
        };
        // Padding is used up at once.
        h2.release(stream, credit - data.len() + released, out);
    }

    /// Sends `data` back or queues it; returns how many bytes the connection has taken.
    fn echo(
        &mut self,
        h2: &mut Connection,
        stream: StreamId,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> usize {
        let Body::Queued { bytes, .. } = &mut self.body else { return data.len() };
        let may_send = bytes.is_empty() && !self.is_waiting;
        let sent = if may_send { h2.send_data(stream, data, false, out) } else { 0 };
        bytes.extend_from_slice(&data[sent..]);
        sent
    }

    /// One answer for each message that has become complete after the first `before`.
    fn acknowledge(&self, before: u64) -> Vec<u8> {
        let mut answers = Vec::new();
        for messages in before + 1..=self.frames.messages {
            let message_bytes = self.frames.message_bytes;
            answers.extend(frame(&StreamSummary { messages, message_bytes }.encode_to_vec()));
        }
        answers
    }

    fn keep(&mut self, data: &[u8]) -> usize {
        if self.message.len() + data.len() <= MAX_MESSAGE_BYTES + PREFIX_BYTES {
            self.message.extend_from_slice(data);
        }
        data.len()
    }

    /// The request of a gRPC call is complete: decides how the call ends.
    pub(crate) fn end_of_call(&mut self, rpc: Rpc) {
        let frames = self.frames;
        let one = frames.messages == 1;
        self.status = Some(match rpc {
            Rpc::Unknown => (UNIMPLEMENTED, "the echo service has no such method"),
            Rpc::Fail(status) => (status, "the echo server was asked to fail"),
            _ if frames.malformed || !frames.is_at_border() => {
                (INTERNAL, "the request ends within a message")
            }
            Rpc::Unary | Rpc::ServerStream | Rpc::OnInvoke if !one => {
                (INTERNAL, "one message is expected")
            }
            Rpc::Unary | Rpc::BidiStream | Rpc::Push => (OK, ""),
            Rpc::ClientStream => {
                let summary = StreamSummary {
                    messages: frames.messages,
                    message_bytes: frames.message_bytes,
                };
                let bytes = frame(&summary.encode_to_vec());
                self.body = Body::Queued { bytes, at: 0 };
                (OK, "")
            }
            Rpc::ServerStream => self.start_stream(),
            Rpc::OnInvoke => self.answer_invocation(),
        });
    }

    fn start_stream(&mut self) -> (u32, &'static str) {
        let (payload, repeat) = match self.whole("the message is no EchoMessage") {
            Ok(EchoMessage { payload, repeat }) => (payload, repeat),
            Err(refusal) => return refusal,
        };
        let answer = frame(&EchoMessage { payload, repeat: 0 }.encode_to_vec());
        let total = answer.len() as u64 * u64::from(repeat.max(1));
        self.body = Body::generated(answer.into(), total);
        (OK, "")
    }

    fn answer_invocation(&mut self) -> (u32, &'static str) {
        let answer = match self.whole("the message is no InvokeRequest") {
            Ok(Invocation { data, content_type }) => InvocationAnswer { data, content_type },
            Err(refusal) => return refusal,
        };
        self.body = Body::Queued { bytes: frame(&answer.encode_to_vec()), at: 0 };
        (OK, "")
    }

    /// The one message that was held, which this takes.
    fn whole<M: prost::Message + Default>(
        &mut self,
        mistake: &'static str,
    ) -> Result<M, (u32, &'static str)> {
        if self.frames.message_bytes > MAX_MESSAGE_BYTES as u64 {
            return Err((RESOURCE_EXHAUSTED, "the message is larger than the server keeps"));
        }
        let message = std::mem::take(&mut self.message);
        let Some([0, _, _, _, _, encoded @ ..]) = Some(&message[..]) else {
            return Err((UNIMPLEMENTED, "compressed messages are not understood"));
        };
        M::decode(encoded).map_err(|_| (INVALID_ARGUMENT, mistake))
    }

    /// Whether there is something to send now.
    pub(crate) fn has_more(&self) -> bool {
        !self.is_waiting && !self.body.is_empty()
    }

    /// Sends as far as the windows and `out` allow; true when the answer is complete.
    pub(crate) fn advance(
        &mut self,
        h2: &mut Connection,
        stream: StreamId,
        out: &mut Vec<u8>,
    ) -> bool {
        if self.is_waiting {
            return false;
        }
        match &mut self.body {
            Body::Queued { bytes, at } => {
                let sent = h2.send_data(stream, &bytes[*at..], false, out);
                *at += sent;
                if self.action.gives_window_back() && !self.request_ended {
                    h2.release(stream, sent, out);
                }
                if *at == bytes.len() {
                    bytes.clear();
                    *at = 0;
                }
            }
            Body::Generated(source) => {
                while out.len() < HIGH_WATER_BYTES {
                    let piece = source.peek(h2.capacity(stream));
                    if piece.is_empty() {
                        break;
                    }
                    let sent = h2.send_data(stream, piece, false, out);
                    source.advance(sent);
                }
            }
        }
        self.request_ended && self.body.is_empty() && {
            self.end(h2, stream, out);
            true
        }
    }

    /// Ends the answer. Fails only where the stream is gone already.
    fn end(&mut self, h2: &mut Connection, stream: StreamId, out: &mut Vec<u8>) {
        if let Some((code, message)) = self.status {
            let mut fields = Fields::new();
            fields.push(b"grpc-status", code.to_string().as_bytes());
            if !message.is_empty() {
                fields.push(b"grpc-message", message.as_bytes());
            }
            let _ = h2.send_trailers(stream, &fields, out);
        } else if let Some(trailers) = &self.trailers {
            let _ = h2.send_trailers(stream, trailers, out);
        } else {
            h2.send_data(stream, b"", true, out);
        }
    }
}
