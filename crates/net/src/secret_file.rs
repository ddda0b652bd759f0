//! Files with secrets: tokens, private keys, join bundles.
//!
//! Every reader of such a file reads it here, so that one that others can read is refused
//! everywhere; and everything that writes one writes it here, for its owner alone.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const GROUP_READ: u32 = 0o040;
const OF_OTHERS: u32 = 0o077;
const ROOT: u32 = 0;

/// A file with a secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SecretFile {
    path: PathBuf,
    /// Whether it is read although others can read it.
    may_be_open: bool,
}

/// A file with a secret that others than its owner can read or write.
#[derive(Debug, thiserror::Error)]
#[error(
    "others than its owner can use it (mode {mode:03o}); `chmod 600 {}`, or accept it with \
     --allow-open-files", path.display()
)]
pub struct OpenSecretFile {
    pub path: PathBuf,
    pub mode: u32,
}

impl SecretFile {
    #[must_use]
    pub fn new(path: PathBuf, may_be_open: bool) -> Self {
        Self { path, may_be_open }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it, up to `limit` bytes. Links are followed; the mode is that of the file that was
    /// opened. What is no regular file, such as a pipe, has no mode that matters.
    ///
    /// # Errors
    /// That it cannot be read; that others can use it, which has an [`OpenSecretFile`] inside.
    pub fn read(&self, limit: u64) -> io::Result<Vec<u8>> {
        let file = File::open(&self.path)?;
        let found = file.metadata()?;
        if !self.may_be_open && is_open(&found, rustix::process::geteuid().as_raw()) {
            let open = OpenSecretFile { path: self.path.clone(), mode: mode(&found) };
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, open));
        }
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The text of it, as [`SecretFile::read`].
    ///
    /// # Errors
    /// As there; that it is not UTF-8.
    pub fn read_text(&self, limit: u64) -> io::Result<String> {
        String::from_utf8(self.read(limit)?).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidData, "it holds something that is not UTF-8")
        })
    }
}

/// Writes a secret for its owner alone (mode 0600): a new file takes the place of one that is
/// there, in one step. What is no regular file, such as a link, is not written to.
///
/// # Errors
/// That the file or the temporary one beside it cannot be written; that there is something else
/// of that name.
pub fn write(path: &Path, secret: &[u8]) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) if !found.is_file() => {
            let text = "there is something of that name that is no regular file; choose another";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(_) | Err(_) => {}
    }
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it names no file"));
    };
    let temporary =
        path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(&temporary)?;
    let written = file
        .write_all(secret)
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn mode(found: &Metadata) -> u32 {
    found.permissions().mode() & 0o777
}

fn is_open(found: &Metadata, user: u32) -> bool {
    found.is_file() && others_can_use(mode(found), found.uid(), user)
}

/// Whether others than the owner can use a file. A group that root gave a file of its own to read
/// is how `user`, another than root, gets it: so it is with secrets that Kubernetes mounts for a
/// group, and with keys of a system's group.
fn others_can_use(mode: u32, owner: u32, user: u32) -> bool {
    let is_given = owner == ROOT && user != ROOT;
    let of_others = if is_given { OF_OTHERS & !GROUP_READ } else { OF_OTHERS };
    mode & of_others != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 1000;

    #[test]
    fn what_others_can_use_is_seen_by_mode_and_owner() {
        // Mode, owner, user: whether others can use it.
        let cases = [
            (0o600, USER, USER, false),
            (0o400, USER, USER, false),
            (0o700, USER, USER, false),
            (0o640, USER, USER, true),
            (0o604, USER, USER, true),
            (0o644, USER, USER, true),
            (0o602, USER, USER, true),
            (0o620, USER, USER, true),
            // Root gave it to a group of the user.
            (0o440, ROOT, USER, false),
            (0o640, ROOT, USER, false),
            (0o660, ROOT, USER, true),
            (0o644, ROOT, USER, true),
            // Root itself needs no group.
            (0o640, ROOT, ROOT, true),
            (0o600, USER, ROOT, false),
            (0o640, USER, ROOT, true),
        ];
        for (mode, owner, user, expected) in cases {
            assert_eq!(others_can_use(mode, owner, user), expected, "{mode:o} {owner} {user}");
        }
    }

    fn secret(mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "sesame").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused_with_what_to_type() {
        let (_dir, path) = secret(0o644);
        let refused = SecretFile::new(path.clone(), false).read(100).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "others than its owner can use it (mode 644); `chmod 600 {}`, or accept it with \
                 --allow-open-files",
                path.display()
            )
        );
        // Through a link it is the same file.
        let link = path.with_file_name("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        SecretFile::new(link.clone(), false).read(100).unwrap_err();
        assert_eq!(SecretFile::new(link.clone(), true).read(100).unwrap(), b"sesame");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(SecretFile::new(link, false).read_text(3).unwrap(), "ses");
    }

    #[test]
    fn a_pipe_has_no_mode_that_matters() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"sesame").unwrap();
        drop(writer);
        let path = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
        assert_eq!(SecretFile::new(path.into(), false).read(100).unwrap(), b"sesame");
    }

    #[test]
    fn a_secret_is_written_for_its_owner_alone() {
        let (dir, path) = secret(0o644);
        for _ in 0..2 {
            write(&path, b"new").unwrap();
            assert_eq!(mode(&path.metadata().unwrap()), 0o600);
            assert_eq!(std::fs::read(&path).unwrap(), b"new");
        }
        let fresh = dir.path().join("fresh");
        write(&fresh, b"x").unwrap();
        assert_eq!(mode(&fresh.metadata().unwrap()), 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing stays beside them");
    }

    #[test]
    fn a_secret_is_not_written_where_another_put_a_link() {
        let (dir, theirs) = secret(0o644);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        write(&link, b"new").unwrap_err();
        write(Path::new("/dev/null"), b"new").unwrap_err();
        write(dir.path(), b"new").unwrap_err();
        assert_eq!(std::fs::read(&theirs).unwrap(), b"sesame");
    }
}
