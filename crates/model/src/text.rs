//! Texts in files, as programs write them.

/// The text of a file: UTF-8 with a byte order mark or without, or UTF-16 with one, as PowerShell
/// writes what it redirects. `None` for bytes that are no text.
#[must_use]
pub fn decode_text(bytes: Vec<u8>) -> Option<String> {
    let wide = |units: &[u8], read: fn([u8; 2]) -> u16| {
        let units = units.chunks_exact(2).map(|pair| read([pair[0], pair[1]]));
        char::decode_utf16(units).collect::<Result<String, _>>().ok()
    };
    match bytes.as_slice() {
        [0xFF, 0xFE, units @ ..] => wide(units, u16::from_le_bytes),
        [0xFE, 0xFF, units @ ..] => wide(units, u16::from_be_bytes),
        [0xEF, 0xBB, 0xBF, rest @ ..] => std::str::from_utf8(rest).ok().map(str::to_owned),
        _ => String::from_utf8(bytes).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_the_same_in_each_encoding() {
        let text = "{\"a\": \"Zoë 🐘\"}\r\n";
        let wide = |mark: [u8; 2], write: fn(u16) -> [u8; 2]| {
            mark.into_iter().chain(text.encode_utf16().flat_map(write)).collect::<Vec<_>>()
        };
        for bytes in [
            text.as_bytes().to_vec(),
            format!("\u{feff}{text}").into_bytes(),
            wide([0xFF, 0xFE], u16::to_le_bytes),
            wide([0xFE, 0xFF], u16::to_be_bytes),
        ] {
            assert_eq!(decode_text(bytes.clone()).as_deref(), Some(text), "{bytes:?}");
        }
        for bytes in [&b"\xFF\xFE\x00\xD8"[..], b"Zo\xEB", b"\xEF\xBB\xBF\xEB"] {
            assert_eq!(decode_text(bytes.to_vec()), None, "{bytes:?}");
        }
        assert_eq!(decode_text(Vec::new()).as_deref(), Some(""));
    }
}
