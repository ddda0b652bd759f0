//! The server name of a ClientHello.

use tollway_identity::{ServerNameRead, ServerNameReader};

use crate::pieces::split;

/// As long as a gateway lets a ClientHello become.
const HELLO_BYTES: usize = 16 * 1024;

pub(crate) fn run(data: &[u8]) {
    let Some((size, input)) = split(data) else { return };
    let input = &input[..input.len().min(HELLO_BYTES)];
    let whole = read(input, input.len().max(1));
    let in_pieces = read(input, size);
    assert_eq!(whole, in_pieces, "the outcome depends on how the input was cut");
    if let ServerNameRead::Named(name) = whole {
        // What a certificate could carry and a log can show.
        assert!(!name.is_empty() && name.len() <= 253, "{name:?}");
        assert!(name.bytes().all(|byte| byte.is_ascii_graphic()), "{name:?}");
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
