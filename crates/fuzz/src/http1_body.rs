//! Chunked bodies, of requests and of responses.

use tollway_http::Fields;
use tollway_http::h1::{BodyDecoder, BodyLength, Limits, Refusal, write_chunk, write_last_chunk};

use crate::pieces::split;

/// What a body came to.
#[derive(Debug, PartialEq)]
struct Read {
    data: Vec<u8>,
    /// Bytes up to the end of the message, or of the input.
    consumed: usize,
    finished: bool,
    refused: Option<Refusal>,
    trailers: Option<Fields>,
}

/// Makes the decoder of a role.
type Role = fn(BodyLength, &Limits) -> BodyDecoder;

pub(crate) fn run(data: &[u8]) {
    let Some((size, input)) = split(data) else { return };
    let of_request = check(BodyDecoder::new, size, input);
    let of_response = check(BodyDecoder::of_response, size, input);
    if of_request.finished {
        assert_eq!(of_request, of_response, "what is strict means the same in a response");
    }
}

/// Reads the input in a role, and what is written of it as strictly as a request.
fn check(role: Role, size: usize, input: &[u8]) -> Read {
    let limits = small();
    let whole = read(role, input, input.len().max(1), &limits);
    let in_pieces = read(role, input, size, &limits);
    assert_eq!(whole, in_pieces, "the outcome depends on how the input was cut");
    assert!(whole.consumed <= input.len());
    if !whole.finished {
        return whole;
    }
    let mut out = Vec::new();
    write_chunk(&mut out, &whole.data);
    write_last_chunk(&mut out, whole.trailers.as_ref());
    // Written as everybody writes them, trailers may be longer.
    let again = read(BodyDecoder::new, &out, size, &Limits::default());
    assert!(again.finished && again.consumed == out.len(), "{again:?}");
    assert_eq!((&again.data, &again.trailers), (&whole.data, &whole.trailers));
    whole
}

/// Limits that a fuzzer reaches.
fn small() -> Limits {
    Limits {
        chunk_line_bytes: 32,
        chunk_extension_total_bytes: 64,
        trailer_bytes: 256,
        trailer_fields: 4,
        ..Limits::default()
    }
}

fn read(role: Role, input: &[u8], size: usize, limits: &Limits) -> Read {
    let mut decoder = role(BodyLength::Chunked, limits);
    let mut read =
        Read { data: Vec::new(), consumed: 0, finished: false, refused: None, trailers: None };
    for piece in input.chunks(size) {
        let mut at = 0;
        while at < piece.len() && !decoder.is_finished() {
            match decoder.decode(&piece[at..]) {
                Ok(step) => {
                    assert!(step.consumed > 0 && step.data.end <= step.consumed);
                    read.data.extend_from_slice(&piece[at..][step.data]);
                    at += step.consumed;
                }
                Err(refusal) => {
                    read.refused = Some(refusal);
                    // The refusal does not contain its position in the piece.
                    read.consumed = 0;
                    return read;
                }
            }
        }
        read.consumed += at;
    }
    read.finished = decoder.is_finished();
    read.trailers = decoder.take_trailers();
    assert!(read.finished || decoder.close() == Err(Refusal::Truncated));
    read
}
