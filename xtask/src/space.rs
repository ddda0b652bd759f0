//! Space on disks. A build on a full one ends with errors that do not name the cause: the linker's is
//! `Bus error`.

use std::path::Path;

use rustix::fs::statvfs;

/// The largest files that a build writes together. What was half written is removed before it ends, so
/// that the disk is not quite full any more.
const LOW_BYTES: u64 = 2 * 1024 * 1024 * 1024;

/// A sentence about the first of these folders whose disk is nearly full. Folders that do not exist are
/// passed over.
pub(crate) fn shortage<'a>(folders: impl IntoIterator<Item = &'a Path>) -> Option<String> {
    folders.into_iter().find_map(|folder| {
        let disk = statvfs(folder).ok()?;
        sentence(folder, disk.f_bavail.saturating_mul(disk.f_frsize))
    })
}

fn sentence(folder: &Path, free_bytes: u64) -> Option<String> {
    (free_bytes < LOW_BYTES).then(|| {
        format!(
            "{} MB are free on the disk of {}, which may be the cause; all tests with their tools \
             take about 15 GB",
            free_bytes / 1_000_000,
            folder.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_nearly_full_is_named() {
        let folder = Path::new("/a/target");
        assert_eq!(sentence(folder, LOW_BYTES), None);
        let sentence = sentence(folder, 12_345_678).unwrap();
        assert!(sentence.starts_with("12 MB are free on the disk of /a/target"), "{sentence}");
    }

    #[test]
    fn folders_that_do_not_exist_are_passed_over() {
        assert_eq!(shortage([Path::new("/no/such/folder")]), None);
    }
}
