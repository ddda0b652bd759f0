//! One answer: interim heads, the head, the body, and whether it is the one expected.
//!
//! A target that answers equal requests sends equal heads most of the time. The bytes of the last
//! head are stored with their meaning; an answer that begins with them needs no parsing.

use tollway_http::h1::{
    BodyDecoder, BodyLength, HeadScanner, Limits, Parsed, Refusal, ResponseContext, parse_response,
};

use crate::recorder::Failure;

/// Interim responses (1xx) before the final one.
const MAX_INTERIM: u32 = 16;

/// What every answer of a run is read with.
pub(super) struct Expectation {
    context: ResponseContext,
    /// What the body must be.
    echo: Option<Vec<u8>>,
    limits: Limits,
    known: KnownHead,
}

/// A head that was parsed before.
struct KnownHead {
    bytes: Vec<u8>,
    meaning: Meaning,
}

#[derive(Clone, Copy)]
struct Meaning {
    status: u16,
    body: BodyLength,
    reusable: bool,
}

impl Expectation {
    pub(super) fn new(context: ResponseContext, echo: Option<Vec<u8>>) -> Self {
        let meaning = Meaning { status: 0, body: BodyLength::None, reusable: false };
        let known = KnownHead { bytes: Vec::new(), meaning };
        Self { context, echo, limits: Limits::default(), known }
    }

    fn known(&self, input: &[u8]) -> Option<(Meaning, usize)> {
        let bytes = &self.known.bytes;
        (!bytes.is_empty() && input.starts_with(bytes)).then_some((self.known.meaning, bytes.len()))
    }

    fn remember(&mut self, head: &[u8], meaning: Meaning) {
        self.known.bytes.clear();
        self.known.bytes.extend_from_slice(head);
        self.known.meaning = meaning;
    }
}

/// A complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) failure: Option<Failure>,
    /// The connection may carry the next request.
    pub(super) reusable: bool,
}

/// The answer that a connection is receiving.
#[derive(Default)]
pub(super) struct Answer {
    /// The beginning of a head that has not ended yet.
    held: Vec<u8>,
    scanner: HeadScanner,
    interim: u32,
    body: Option<Body>,
}

struct Body {
    decoder: BodyDecoder,
    meaning: Meaning,
    received: usize,
    /// How many there must be.
    expected: Option<usize>,
    /// Whether all bytes so far are those expected.
    as_expected: bool,
}

impl Answer {
    /// Forgets the answer and keeps the memory.
    pub(super) fn reset(&mut self) {
        self.held.clear();
        self.scanner = HeadScanner::new();
        self.interim = 0;
        self.body = None;
    }

    /// Takes the next bytes; gives the verdict when the answer is complete.
    pub(super) fn feed(
        &mut self,
        mut input: &[u8],
        expectation: &mut Expectation,
    ) -> Result<Option<Answered>, Refusal> {
        while self.body.is_none() {
            let Some((meaning, consumed)) = self.read_head(input, expectation)? else {
                return Ok(None);
            };
            input = &input[consumed..];
            if (100..200).contains(&meaning.status) {
                self.interim += 1;
                if self.interim > MAX_INTERIM || meaning.status == 101 {
                    return Ok(Some(Answered {
                        failure: Some(Failure::Protocol),
                        reusable: false,
                    }));
                }
                continue;
            }
            self.body = Some(Body {
                decoder: BodyDecoder::of_response(meaning.body, &expectation.limits),
                meaning,
                received: 0,
                expected: expectation.echo.as_ref().map(Vec::len),
                as_expected: true,
            });
        }
        match &mut self.body {
            Some(body) => body.feed(input, expectation),
            None => Ok(None),
        }
    }

    /// What the head means and how much of `input` it took.
    fn read_head(
        &mut self,
        input: &[u8],
        expectation: &mut Expectation,
    ) -> Result<Option<(Meaning, usize)>, Refusal> {
        if self.held.is_empty()
            && let Some(known) = expectation.known(input)
        {
            return Ok(Some(known));
        }
        let held = self.held.len();
        let whole = if held == 0 {
            input
        } else {
            self.held.extend_from_slice(input);
            &self.held
        };
        let Expectation { context, limits, .. } = *expectation;
        match parse_response(whole, context, &limits, &mut self.scanner)? {
            Parsed::Partial => {
                if held == 0 {
                    self.held.extend_from_slice(input);
                }
                Ok(None)
            }
            Parsed::Complete { message, consumed } => {
                let reusable = message.keep_alive && !message.upgrade;
                let status = message.head.status;
                let meaning = Meaning { status, body: message.body, reusable };
                expectation.remember(&whole[..consumed], meaning);
                self.held.clear();
                self.scanner = HeadScanner::new();
                // The head did not end within the held bytes, so its end is in `input`.
                Ok(Some((meaning, consumed.saturating_sub(held))))
            }
        }
    }

    /// The peer has closed; the verdict, if that completes the answer.
    pub(super) fn close(&mut self) -> Option<Answered> {
        let body = self.body.as_mut()?;
        body.decoder.close().ok()?;
        Some(Answered { reusable: false, ..body.verdict() })
    }
}

impl Body {
    fn feed(
        &mut self,
        mut input: &[u8],
        expectation: &Expectation,
    ) -> Result<Option<Answered>, Refusal> {
        while !self.decoder.is_finished() {
            let step = self.decoder.decode(input)?;
            self.check(&input[step.data.clone()], expectation.echo.as_deref());
            input = &input[step.consumed..];
            if step.consumed == 0 {
                return Ok(None);
            }
        }
        let verdict = self.verdict();
        // No request is under way for bytes after this answer.
        Ok(Some(Answered { reusable: verdict.reusable && input.is_empty(), ..verdict }))
    }

    fn check(&mut self, data: &[u8], echo: Option<&[u8]>) {
        if let Some(echo) = echo {
            let expected = echo.get(self.received..self.received.saturating_add(data.len()));
            self.as_expected &= expected == Some(data);
        }
        self.received = self.received.saturating_add(data.len());
    }

    fn verdict(&self) -> Answered {
        let complete = self.expected.is_none_or(|expected| expected == self.received);
        let failure = if !(200..300).contains(&self.meaning.status) {
            Some(Failure::Status(self.meaning.status))
        } else if !(self.as_expected && complete) {
            Some(Failure::Body)
        } else {
            None
        };
        Answered { failure, reusable: self.meaning.reusable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OK: Answered = Answered { failure: None, reusable: true };

    #[test]
    fn answers_are_complete_where_their_framing_ends() {
        for (text, expected) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", OK),
            ("HTTP/1.1 204 No Content\r\n\r\n", OK),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", OK),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", OK),
            (
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi",
                Answered { failure: None, reusable: false },
            ),
            (
                "HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n",
                Answered { failure: Some(Failure::Status(503)), reusable: true },
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi!",
                Answered { failure: None, reusable: false },
            ),
            (
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
                Answered { failure: Some(Failure::Protocol), reusable: false },
            ),
        ] {
            assert_eq!(whole(text, None), Some(expected), "{text:?}");
        }
    }

    #[test]
    fn a_body_without_length_ends_with_the_connection() {
        let mut expectation = Expectation::new(ResponseContext::default(), None);
        let mut answer = Answer::default();
        let fed = answer.feed(b"HTTP/1.1 200 OK\r\n\r\nhi", &mut expectation).unwrap();
        assert_eq!(fed, None);
        assert_eq!(answer.close(), Some(Answered { failure: None, reusable: false }));
    }

    #[test]
    fn a_cut_body_is_no_answer() {
        let mut expectation = Expectation::new(ResponseContext::default(), None);
        let mut answer = Answer::default();
        answer.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi", &mut expectation).unwrap();
        assert_eq!(answer.close(), None);
    }

    #[test]
    fn another_body_than_the_one_sent_is_found() {
        let head = "HTTP/1.1 200 OK\r\ncontent-length:";
        assert_eq!(whole(&format!("{head} 2\r\n\r\nhi"), Some("hi")), Some(OK));
        for body in ["2\r\n\r\nho", "1\r\n\r\nh", "3\r\n\r\nhi!", "0\r\n\r\n"] {
            let wrong = Some(Answered { failure: Some(Failure::Body), reusable: true });
            assert_eq!(whole(&format!("{head} {body}"), Some("hi")), wrong, "{body:?}");
        }
    }

    #[test]
    fn the_head_seen_before_is_not_confused_with_a_longer_one() {
        let mut expectation = Expectation::new(ResponseContext::default(), None);
        let mut answer = Answer::default();
        let texts = [
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nho",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx: y\r\n\r\nhi",
            "HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n01234567890123456789",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        ];
        for text in texts {
            let fed = answer.feed(text.as_bytes(), &mut expectation).unwrap();
            assert_eq!(fed, Some(OK), "{text:?}");
            answer.reset();
        }
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_verdict(cuts in proptest::collection::vec(1_usize..40, 0..20)) {
            let text = "HTTP/1.1 103 Early\r\nlink: a\r\n\r\n\
                HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
                5\r\nhello\r\n6\r\n world\r\n0\r\nx-t: 1\r\n\r\n";
            let mut expectation =
                Expectation::new(ResponseContext::default(), Some(b"hello world".to_vec()));
            for _ in 0..2 {
                let mut answer = Answer::default();
                let mut rest = text.as_bytes();
                let mut verdict = None;
                for cut in &cuts {
                    let (piece, later) = rest.split_at((*cut).min(rest.len()));
                    rest = later;
                    prop_assert_eq!(verdict, None);
                    verdict = answer.feed(piece, &mut expectation).unwrap();
                    if verdict.is_some() {
                        break;
                    }
                }
                if verdict.is_none() {
                    verdict = answer.feed(rest, &mut expectation).unwrap();
                }
                prop_assert_eq!(verdict, Some(OK));
            }
        }
    }

    fn whole(text: &str, echo: Option<&str>) -> Option<Answered> {
        let echo = echo.map(|echo| echo.as_bytes().to_vec());
        let mut expectation = Expectation::new(ResponseContext::default(), echo);
        Answer::default().feed(text.as_bytes(), &mut expectation).unwrap()
    }
}
