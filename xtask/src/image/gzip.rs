//! The form `gzip` (RFC 1952) around one compressed part, without a name or a time.

use std::io::Write;

use anyhow::{Context, Result};

/// Compresses; the result depends on `bytes` and `level` alone. zlib's successors choose by what the
/// processor offers, so it is `miniz_oxide`, which does not.
pub(super) fn compress(bytes: &[u8], level: u8) -> Result<Vec<u8>> {
    const DEFLATE: u8 = 8;
    const UNKNOWN_SYSTEM: u8 = 255;
    let mut compressed = vec![0x1f, 0x8b, DEFLATE, 0, 0, 0, 0, 0, 0, UNKNOWN_SYSTEM];
    compressed.extend(miniz_oxide::deflate::compress_to_vec(bytes, level));
    let mut sum = crc32fast::Hasher::new();
    sum.update(bytes);
    // The length is kept without what is above 32 bits.
    let length = u32::try_from(bytes.len() as u64 & u64::from(u32::MAX)).context("a length")?;
    compressed.write_all(&sum.finalize().to_le_bytes())?;
    compressed.write_all(&length.to_le_bytes())?;
    Ok(compressed)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn gzip_reads_it() {
        let text: Vec<u8> =
            (0..100_000_u32).flat_map(|n| n.wrapping_mul(n).to_le_bytes()).collect();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.gz");
        std::fs::write(&file, compress(&text, 6).unwrap()).unwrap();
        let mut gzip = Command::new(tollway_testkit::need_tool!("gzip"));
        let output = gzip.arg("-dc").arg(&file).output().unwrap();
        assert!(output.status.success() && output.stdout == text);
    }
}
