//! What a gateway reads of bytes that it does not decrypt: the server name of a ClientHello, where that
//! ends, what is random of it, whether it is a probe, and the first record of what answers.

use tollway_identity::{
    FirstRecord, GatewayState, HelloRandom, ProbeHello, ServerNameRead, ServerNameReader,
    client_hello_bytes, first_record,
};
use tollway_model::ProbeSecret;

use crate::pieces::split;

/// As long as a gateway lets a ClientHello become.
const HELLO_BYTES: usize = 16 * 1024;

pub(crate) fn run(data: &[u8]) {
    let Some((size, input)) = split(data) else { return };
    let input = &input[..input.len().min(HELLO_BYTES)];
    let whole = read(input, input.len().max(1));
    let in_pieces = read(input, size);
    assert_eq!(whole, in_pieces, "the outcome depends on how the input was cut");
    if let ServerNameRead::Named(name) = &whole {
        // What a certificate could carry and a log can show.
        assert!(!name.is_empty() && name.len() <= 253, "{name:?}");
        assert!(name.bytes().all(|byte| byte.is_ascii_graphic()), "{name:?}");
    }
    let end = client_hello_bytes(input);
    let random = HelloRandom::of(input);
    if matches!(whole, ServerNameRead::Named(_) | ServerNameRead::Unnamed) {
        // The library has read a hello to its end.
        assert!(end.is_some(), "where it ends is not found");
        assert!(random.is_some(), "what is random of it is not found");
    }
    for cut in (0..input.len()).step_by(size) {
        let part = &input[..cut];
        assert_eq!(client_hello_bytes(part), end.filter(|end| *end <= cut), "{cut}");
        let found = HelloRandom::of(part);
        assert!(found.is_none() || found == random, "{cut}");
        let first = first_record(part);
        assert!(first == FirstRecord::Partial || first == first_record(input), "{cut}");
    }
    if let Some(probe) = ProbeHello::read(input) {
        let secret = ProbeSecret::new([7; 32]);
        assert!(probe.answer(&secret, GatewayState::Serving).is_none(), "a proof was guessed");
    }
}

fn read(input: &[u8], size: usize) -> ServerNameRead {
    let mut reader = ServerNameReader::default();
    for piece in input.chunks(size) {
        let read = reader.take(piece);
        if read != ServerNameRead::Partial {
            return read;
        }
    }
    ServerNameRead::Partial
}
