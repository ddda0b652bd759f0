//! The directory of the local control plane: below `XDG_RUNTIME_DIR`, or below `/tmp` where
//! there is none. Its files hold the authority's key, and a process that can write files there
//! decides which authority this user trusts: so it must be this user's, closed to others, and no
//! symbolic link.

use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use thiserror::Error;
use tollway_model::ErrorCode;

use super::state::socket;

const NAME: &str = "tollway";
/// Where the system keeps the runtime directories of those who are logged in.
const RUNTIME_DIRECTORIES: &str = "/run/user";
const SHARED_DIRECTORY: &str = "/tmp";
/// Permissions of everyone except the owner.
const OTHERS: u32 = 0o077;
/// Write permissions of everyone except the owner.
const OTHERS_WRITE: u32 = 0o022;

/// Longest path of a Unix socket.
const SOCKET_BYTES_LIMIT: usize = 107;

/// Why the directory is not used.
#[derive(Debug, Error)]
pub enum DirectoryError {
    #[error(
        "cannot make {}; set XDG_RUNTIME_DIR to a directory of your own", path.display()
    )]
    Create { path: PathBuf, source: std::io::Error },
    #[error("cannot inspect {}", path.display())]
    Inspect { path: PathBuf, source: std::io::Error },
    #[error(
        "{} is not a directory, so it is not used; remove it, or set XDG_RUNTIME_DIR to a directory of your own",
        path.display()
    )]
    NotADirectory { path: PathBuf },
    #[error(
        "{} belongs to uid {owner} and not to you (uid {user}), so it is not used; remove it, or set XDG_RUNTIME_DIR to a directory of your own",
        path.display()
    )]
    Foreign { path: PathBuf, owner: u32, user: u32 },
    #[error(
        "{} is open to others (mode {mode:o}), so it is not used; close it with `chmod 700 {}`",
        path.display(), path.display()
    )]
    Open { path: PathBuf, mode: u32 },
    #[error(
        "{} is too long a path: a socket in it would have {length} bytes, at most {SOCKET_BYTES_LIMIT} are possible; set XDG_RUNTIME_DIR to a directory with a shorter name",
        path.display()
    )]
    TooLong { path: PathBuf, length: usize },
}

impl DirectoryError {
    /// Its entry in the catalogue of failures.
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::Create { source, .. } | Self::Inspect { source, .. } => {
                ErrorCode::of_file(source, ErrorCode::FileUnusable)
            }
            Self::TooLong { .. } => ErrorCode::FileUnusable,
            Self::NotADirectory { .. } | Self::Foreign { .. } | Self::Open { .. } => {
                ErrorCode::UnsafeDirectory
            }
        }
    }
}

/// The directory, made if need be.
///
/// # Errors
/// [`DirectoryError`].
pub(super) fn prepared() -> Result<PathBuf, DirectoryError> {
    let user = user();
    let path = path_of(user, std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from));
    let length = socket(&path).as_os_str().len();
    if length > SOCKET_BYTES_LIMIT {
        return Err(DirectoryError::TooLong { path, length });
    }
    match rustix::fs::mkdir(&path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(DirectoryError::Create { path, source: error.into() }),
    }
    check(&path, user)?;
    Ok(path)
}

/// The directory, if it exists.
///
/// # Errors
/// [`DirectoryError`].
pub(super) fn existing() -> Result<Option<PathBuf>, DirectoryError> {
    let user = user();
    let path = path_of(user, std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from));
    match check(&path, user) {
        Ok(()) => Ok(Some(path)),
        Err(DirectoryError::Inspect { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A runtime directory that is set and belongs to another user comes from `su` or `sudo`; it is
/// not used.
fn path_of(user: u32, runtime: Option<PathBuf>) -> PathBuf {
    let known = PathBuf::from(RUNTIME_DIRECTORIES).join(user.to_string());
    let mut candidates = runtime.into_iter().filter(|path| path.is_absolute()).chain([known]);
    match candidates.find(|path| is_private(path, user)) {
        Some(runtime) => runtime.join(NAME),
        None => PathBuf::from(SHARED_DIRECTORY).join(format!("{NAME}-{user}")),
    }
}

/// Whether only `user` can write into `path`.
fn is_private(path: &Path, user: u32) -> bool {
    stat(path, OFlags::empty()).is_ok_and(|stat| {
        is_directory(&stat) && stat.st_uid == user && stat.st_mode & OTHERS_WRITE == 0
    })
}

fn check(path: &Path, user: u32) -> Result<(), DirectoryError> {
    let own = || path.to_owned();
    let stat = stat(path, OFlags::NOFOLLOW)
        .map_err(|error| DirectoryError::Inspect { path: own(), source: error.into() })?;
    if !is_directory(&stat) {
        return Err(DirectoryError::NotADirectory { path: own() });
    }
    if stat.st_uid != user {
        return Err(DirectoryError::Foreign { path: own(), owner: stat.st_uid, user });
    }
    let mode = stat.st_mode & 0o777;
    if mode & OTHERS != 0 {
        return Err(DirectoryError::Open { path: own(), mode });
    }
    Ok(())
}

/// Needs no permission on the file itself.
fn stat(path: &Path, flags: OFlags) -> Result<Stat, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | flags;
    rustix::fs::fstat(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn directory(mode: u32) -> tempfile::TempDir {
        let made = tempfile::tempdir().unwrap();
        std::fs::set_permissions(made.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        made
    }

    #[test]
    fn only_a_closed_directory_of_ones_own_is_used() {
        let user = user();
        check(directory(0o700).path(), user).unwrap();
        let open = directory(0o750);
        let refusal = check(open.path(), user).unwrap_err().to_string();
        assert!(refusal.contains("mode 750") && refusal.contains("chmod 700 /"), "{refusal}");
        let refusal = check(directory(0o700).path(), user + 1).unwrap_err().to_string();
        assert!(refusal.contains(&format!("belongs to uid {user}")), "{refusal}");
    }

    #[test]
    fn a_link_or_a_file_is_not_used() {
        let parent = directory(0o700);
        let target = directory(0o700);
        let link = parent.path().join("link");
        symlink(target.path(), &link).unwrap();
        let file = parent.path().join("file");
        std::fs::write(&file, "").unwrap();
        for path in [link, file] {
            let refusal = check(&path, user()).unwrap_err();
            assert!(matches!(refusal, DirectoryError::NotADirectory { .. }), "{refusal}");
        }
    }

    #[test]
    fn a_runtime_directory_is_used_if_it_is_ones_own() {
        let runtime = directory(0o700);
        let own = path_of(user(), Some(runtime.path().to_owned()));
        assert_eq!(own, runtime.path().join("tollway"));
        let nobody = 4_000_000_000;
        let fallback = PathBuf::from("/tmp/tollway-4000000000");
        let passed_over = [
            Some(runtime.path().to_owned()),
            Some("relative".into()),
            Some("/nowhere".into()),
            None,
        ];
        for runtime in passed_over {
            assert_eq!(path_of(nobody, runtime), fallback);
        }
        let shared = directory(0o777);
        assert_ne!(path_of(user(), Some(shared.path().to_owned())), shared.path().join("tollway"));
    }
}
