//! How fast this disk makes a write durable: the reference for durable times.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Instant;

/// Writes of one probe, and how long each is.
const WRITES: usize = 100;
const BYTES: usize = 4096;

/// Microseconds of `fdatasync` behind a write of 4 KiB, in order of size.
///
/// # Errors
/// When a file in `dir` cannot be written.
pub(super) fn sync_times_us(dir: &Path) -> io::Result<Vec<f64>> {
    let path = dir.join("sync-probe");
    let mut file = File::create(&path)?;
    let block = [0x5a; BYTES];
    let mut times = Vec::with_capacity(WRITES);
    for _ in 0..WRITES {
        let began = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    drop(file);
    fs::remove_file(&path)?;
    times.sort_by(f64::total_cmp);
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let times = sync_times_us(dir.path()).unwrap();
        assert_eq!(times.len(), WRITES);
        assert!(times[0] > 0.0 && times.is_sorted());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
