//! An archive in the form `ustar`, whose bytes depend on nothing but its entries: times are those of 1970
//! and the owner is root.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

const BLOCK: usize = 512;
/// Longest path that a header takes without a prefix.
const NAME_BYTES: usize = 100;

#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
}

#[derive(Clone, Copy)]
enum Kind<'a> {
    File,
    Folder,
    /// With what it leads to.
    Link(&'a str),
}

impl Archive {
    /// Adds a file, and before it the folders that it is in. A leading `/` is left out.
    pub(super) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        let path = path.trim_start_matches('/');
        self.folders_of(path)?;
        self.header(path, mode, content.len(), Kind::File)?;
        self.bytes.extend_from_slice(content);
        self.pad();
        Ok(())
    }

    /// Adds a folder, and before it those that it is in.
    pub(super) fn folder(&mut self, path: &str, mode: u32) -> Result<()> {
        let path = path.trim_matches('/');
        self.folders_of(path)?;
        if self.folders.insert(path.to_owned()) {
            self.header(&format!("{path}/"), mode, 0, Kind::Folder)?;
        }
        Ok(())
    }

    /// Adds a symbolic link, and before it the folders that it is in.
    pub(super) fn link(&mut self, path: &str, target: &str) -> Result<()> {
        let path = path.trim_start_matches('/');
        self.folders_of(path)?;
        self.header(path, 0o777, 0, Kind::Link(target))
    }

    /// The whole archive.
    pub(super) fn end(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(&[0; 2 * BLOCK]);
        self.bytes
    }

    fn folders_of(&mut self, path: &str) -> Result<()> {
        for (at, _) in path.match_indices('/') {
            let folder = &path[..at];
            if self.folders.insert(folder.to_owned()) {
                self.header(&format!("{folder}/"), 0o755, 0, Kind::Folder)?;
            }
        }
        Ok(())
    }

    fn header(&mut self, path: &str, mode: u32, size: usize, kind: Kind<'_>) -> Result<()> {
        let (mark, target) = match kind {
            Kind::File => (b"0", ""),
            Kind::Folder => (b"5", ""),
            Kind::Link(target) => (b"2", target),
        };
        for text in [path, target] {
            ensure!(text.len() <= NAME_BYTES, "`{text}` is too long for an archive");
        }
        let mut header = [0; BLOCK];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, path.as_bytes());
        put(100, format!("{mode:07o}").as_bytes());
        // User, group.
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{size:011o}").as_bytes());
        // When it was changed.
        put(136, b"00000000000");
        // The sum is made with spaces in its own field.
        put(148, b"        ");
        put(156, mark);
        put(157, target.as_bytes());
        put(257, b"ustar\x0000");
        put(329, b"0000000");
        put(337, b"0000000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend_from_slice(&header);
        Ok(())
    }

    fn pad(&mut self) {
        let whole = self.bytes.len().next_multiple_of(BLOCK);
        self.bytes.resize(whole, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// GNU tar is the judge of the form.
    #[test]
    fn tar_unpacks_what_was_put_in() {
        let mut archive = Archive::default();
        archive.file("/etc/a/b", 0o644, b"text").unwrap();
        archive.file("/etc/a/c", 0o755, &[7; 513]).unwrap();
        archive.folder("/tmp", 0o1777).unwrap();
        archive.link("/usr/d", "/etc/a/c").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.tar");
        std::fs::write(&file, archive.end()).unwrap();
        let mut tar = Command::new(tollway_testkit::need_tool!("tar"));
        let listed = tar.arg("--utc").arg("-tvf").arg(&file).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let rows: Vec<Vec<&str>> =
            listed.lines().map(|line| line.split_whitespace().collect()).collect();
        let expected = [
            ("drwxr-xr-x", "0", "etc/"),
            ("drwxr-xr-x", "0", "etc/a/"),
            ("-rw-r--r--", "4", "etc/a/b"),
            ("-rwxr-xr-x", "513", "etc/a/c"),
            ("drwxrwxrwt", "0", "tmp/"),
            ("drwxr-xr-x", "0", "usr/"),
            ("lrwxrwxrwx", "0", "usr/d"),
        ];
        assert_eq!(rows.len(), expected.len(), "{listed}");
        for (row, (mode, size, path)) in rows.iter().zip(expected) {
            assert_eq!(row[..6], [mode, "0/0", size, "1970-01-01", "00:00", path]);
        }
        assert_eq!(rows[6][6..], ["->", "/etc/a/c"]);
    }

    #[test]
    fn a_path_that_does_not_fit_is_refused() {
        let mut archive = Archive::default();
        assert!(archive.file(&"a".repeat(NAME_BYTES + 1), 0o644, b"").is_err());
        assert!(archive.link("a", &"a".repeat(NAME_BYTES + 1)).is_err());
    }
}
