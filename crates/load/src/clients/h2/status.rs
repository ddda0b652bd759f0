//! Success or failure of an answer by its head and trailers, of HTTP and of gRPC.

use tollway_http::{Fields, ResponseHead};

use crate::recorder::Failure;

/// UNKNOWN: an error without details.
const UNKNOWN: u32 = 2;

#[derive(Default)]
pub(crate) struct AnswerStatus {
    /// 0 before the final head.
    http: u16,
    is_grpc: bool,
    grpc: Option<u32>,
}

impl AnswerStatus {
    /// Takes a head; informational ones leave no trace.
    pub(crate) fn head(&mut self, head: &ResponseHead) {
        if head.status < 200 {
            return;
        }
        self.http = head.status;
        self.is_grpc = head
            .fields
            .value(b"content-type")
            .is_some_and(|kind| kind.starts_with(b"application/grpc"));
        // An answer without a message may carry its status here.
        self.trailers(&head.fields);
    }

    pub(crate) fn trailers(&mut self, fields: &Fields) {
        if let Some(status) = fields.value(b"grpc-status") {
            let text = str::from_utf8(status).unwrap_or_default();
            self.grpc = Some(text.parse().unwrap_or(UNKNOWN));
        }
    }

    /// `None` if the answer is a success of plain HTTP: its status is 2xx.
    pub(crate) fn http_failure(&self) -> Option<Failure> {
        match self.http {
            // Trailers or an end before any final head.
            0 => Some(Failure::Protocol),
            200..300 => None,
            status => Some(Failure::Status(status)),
        }
    }

    /// `None` if the answer is a success of gRPC; its messages are not read.
    pub(crate) fn grpc_failure(&self) -> Option<Failure> {
        if self.http != 200 {
            return Some(Failure::Status(self.http));
        }
        match self.grpc {
            Some(0) if self.is_grpc => None,
            Some(status) if self.is_grpc => Some(Failure::Grpc(status)),
            Some(_) | None => Some(Failure::Protocol),
        }
    }
}
