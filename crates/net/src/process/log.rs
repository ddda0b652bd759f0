//! The end of a log file, for error messages.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Most bytes that are read from the end of the file.
const TAIL_BYTES: u64 = 16 * 1024;

/// The last `lines` lines of a file, without the newline at its end; empty if it cannot be read.
#[must_use]
pub fn log_tail(path: &Path, lines: usize) -> String {
    let read = || {
        let mut file = File::open(path)?;
        let length = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes).map(|_| bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_lines_of_a_file_of_any_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert_eq!(log_tail(&path, 2), "");
        std::fs::write(&path, "a\nb\nc\n").unwrap();
        assert_eq!(log_tail(&path, 2), "b\nc");
        assert_eq!(log_tail(&path, 9), "a\nb\nc");
        std::fs::write(&path, "x".repeat(20_000) + "\nlast\n").unwrap();
        assert_eq!(log_tail(&path, 1), "last");
    }
}
