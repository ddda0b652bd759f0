//! One answer: a head, a body, perhaps trailers, and whether it is a success. Of a unary gRPC call:
//! one message, and a status in the trailers.

use tollway_http::{Fields, ResponseHead};

use super::request::{Kind, Prepared};
use super::status::AnswerStatus;
use crate::recorder::Failure;
use tollway_echo::frames::FrameCounter;

#[derive(Default)]
pub(super) struct Answer {
    status: AnswerStatus,
    frames: FrameCounter,
    received: usize,
    differs: bool,
}

impl Answer {
    /// Takes the head; informational ones leave no trace.
    pub(super) fn head(&mut self, head: &ResponseHead) {
        self.status.head(head);
    }

    pub(super) fn data(&mut self, data: &[u8], request: &Prepared) {
        if request.kind == Kind::GrpcUnary {
            self.frames.feed(data);
        }
        if request.verify_echo {
            let expected = request.body.get(self.received..self.received + data.len());
            self.differs |= expected != Some(data);
        }
        self.received += data.len();
    }

    pub(super) fn trailers(&mut self, fields: &Fields) {
        self.status.trailers(fields);
    }

    /// Judges the whole answer: `None` is success.
    pub(super) fn verdict(&self, request: &Prepared) -> Option<Failure> {
        let failure = match request.kind {
            Kind::Http => self.status.http_failure(),
            Kind::GrpcUnary => self.grpc_failure(),
        };
        let echoed = !self.differs && self.received == request.body.len();
        failure.or_else(|| (request.verify_echo && !echoed).then_some(Failure::Body))
    }

    fn grpc_failure(&self) -> Option<Failure> {
        if let Some(failure) = self.status.grpc_failure() {
            return Some(failure);
        }
        let one_message = self.frames.messages == 1 && self.frames.is_at_border();
        (!one_message || self.frames.malformed).then_some(Failure::Protocol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{GrpcRequest, HttpRequest, Target};
    use tollway_echo::frames::frame;

    #[test]
    fn any_2xx_is_a_success_of_plain_http() {
        let target = Target::http("h:1").unwrap();
        let request = Prepared::http(&target, &HttpRequest::default()).unwrap();
        for (status, failure) in [
            (200, None),
            (204, None),
            (301, Some(Failure::Status(301))),
            (0, Some(Failure::Protocol)),
        ] {
            let mut answer = Answer::default();
            if status > 0 {
                answer.head(&ResponseHead::new(status));
            }
            assert_eq!(answer.verdict(&request), failure, "{status}");
        }
    }

    #[test]
    fn one_message_and_status_zero_is_success() {
        assert_eq!(verdict(200, Some("0"), &frame(b"hi")), None);
    }

    #[test]
    fn everything_else_is_a_failure_of_its_kind() {
        let message = frame(b"hi");
        for (status, grpc, data, failure) in [
            (503, Some("0"), &message[..], Failure::Status(503)),
            (200, Some("14"), &[][..], Failure::Grpc(14)),
            (200, Some("x"), &message, Failure::Grpc(2)),
            (200, None, &message, Failure::Protocol),
            (200, Some("0"), &[], Failure::Protocol),
            (200, Some("0"), &message[..6], Failure::Protocol),
            (200, Some("0"), &[message.clone(), message.clone()].concat(), Failure::Protocol),
            (200, Some("0"), &frame(b"ho"), Failure::Body),
        ] {
            assert_eq!(verdict(status, grpc, data), Some(failure), "{status} {grpc:?} {data:?}");
        }
    }

    fn verdict(status: u16, grpc: Option<&str>, data: &[u8]) -> Option<Failure> {
        let target = Target::grpc("h:1").unwrap();
        let call = GrpcRequest { message: b"hi".to_vec(), verify_echo: true, ..Default::default() };
        let request = Prepared::grpc(&target, &call).unwrap();
        let mut head = ResponseHead::new(status);
        head.fields.push(b"content-type", b"application/grpc+proto");
        let mut answer = Answer::default();
        answer.head(&head);
        answer.data(data, &request);
        let mut trailers = Fields::new();
        if let Some(grpc) = grpc {
            trailers.push(b"grpc-status", grpc.as_bytes());
        }
        answer.trailers(&trailers);
        answer.verdict(&request)
    }
}
