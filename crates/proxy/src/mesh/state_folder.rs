//! The folder in which an instance keeps its identity over a restart.
//!
//! It is closed to others, of one process at a time, and of one instance. A new identity is written
//! beside the old one, synchronised, and put in its place, before it is used: so a process that ends at
//! any moment leaves one that the control plane takes.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;
use thiserror::Error;
use tollway_identity::{CREDENTIALS_TEXT_BYTES_LIMIT, Credentials, CredentialsTextError};
use tollway_model::{ErrorCode, Instance, ServiceName};

const IDENTITY: &str = "identity";
const NEXT: &str = "identity.next";
const LOCK: &str = "lock";
/// Permissions of everyone except the owner.
const OTHERS: u32 = 0o077;

/// Why an identity is not kept, or one that was kept is not used.
#[derive(Debug, Error)]
pub enum StateFolderError {
    #[error("cannot open the state folder {}; check the path and its permissions", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error(
        "{} belongs to uid {owner} and not to this process (uid {user}), so no identity is kept there; choose another one with --state-dir",
        path.display()
    )]
    Foreign { path: PathBuf, owner: u32, user: u32 },
    #[error(
        "{} is open to others (mode {mode:o}), so that others can act as this workload; close it with `chmod {} {}`",
        path.display(), if *is_folder { "700" } else { "600" }, path.display()
    )]
    OpenToOthers { path: PathBuf, mode: u32, is_folder: bool },
    #[error(
        "another process uses the state folder {}; give each process a folder of its own with --state-dir",
        path.display()
    )]
    Locked { path: PathBuf },
    #[error("cannot read {}; check its permissions", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "{} cannot be used; remove it, and enrol this instance with a new token",
        path.display()
    )]
    Damaged { path: PathBuf, source: CredentialsTextError },
    #[error(
        "the state folder {} has the identity of {found}, and this is {own}; give each instance a folder of its own with --state-dir, or remove what is in it",
        path.display()
    )]
    Other { path: PathBuf, found: String, own: String },
    #[error("cannot write the identity to {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl StateFolderError {
    /// Its entry in the catalogue of failures.
    pub(super) fn code(&self) -> ErrorCode {
        match self {
            Self::Open { source, .. } | Self::Read { source, .. } | Self::Write { source, .. } => {
                ErrorCode::of_file(source, ErrorCode::StateFolder)
            }
            Self::Foreign { .. }
            | Self::OpenToOthers { .. }
            | Self::Locked { .. }
            | Self::Damaged { .. }
            | Self::Other { .. } => ErrorCode::StateFolder,
        }
    }
}

/// An open folder; it is this process's while the value lives.
#[derive(Debug)]
pub(super) struct StateFolder {
    path: PathBuf,
    folder: File,
    _lock: File,
    /// What was written or read last.
    text: Mutex<String>,
}

impl StateFolder {
    /// Opens the folder, made if it does not exist, and takes it for this process.
    pub(super) fn open(path: &Path) -> Result<Self, StateFolderError> {
        let failed = |source| StateFolderError::Open { path: path.to_owned(), source };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty());
        let folder = File::from(folder.map_err(|error| failed(error.into()))?);
        check(&folder, path, true)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = openat(&folder, LOCK, flags, Mode::RUSR | Mode::WUSR);
        let lock = File::from(lock.map_err(|error| failed(error.into()))?);
        lock.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => StateFolderError::Locked { path: path.to_owned() },
            std::fs::TryLockError::Error(source) => failed(source),
        })?;
        Ok(Self { path: path.to_owned(), folder, _lock: lock, text: Mutex::default() })
    }

    /// The identity that was kept, if there is one.
    pub(super) fn read(&self) -> Result<Option<Credentials>, StateFolderError> {
        let path = self.path.join(IDENTITY);
        let failed = |source| StateFolderError::Read { path: path.clone(), source };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.folder, IDENTITY, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(error.into())),
        };
        check(&file, &path, false)?;
        let mut bytes = Vec::new();
        file.take(CREDENTIALS_TEXT_BYTES_LIMIT as u64).read_to_end(&mut bytes).map_err(failed)?;
        let damaged = |source| StateFolderError::Damaged { path: path.clone(), source };
        let text = String::from_utf8(bytes).map_err(|_| damaged(CredentialsTextError::Damaged))?;
        let credentials = Credentials::from_text(&text).map_err(damaged)?;
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text;
        Ok(Some(credentials))
    }

    /// Whether what was kept is of this instance.
    pub(super) fn check_owner(
        &self,
        kept: &Credentials,
        service: &ServiceName,
        instance: &Instance,
    ) -> Result<(), StateFolderError> {
        if kept.service() == service && kept.instance() == Some(instance) {
            return Ok(());
        }
        let of = |service: &ServiceName, instance: &str| format!("{service} (instance {instance})");
        let found = of(kept.service(), kept.instance().map_or("without a name", Instance::as_str));
        let own = of(service, instance.as_str());
        Err(StateFolderError::Other { path: self.path.clone(), found, own })
    }

    /// Keeps an identity; it is on the disk when this returns. One that is there already is not
    /// written again.
    pub(super) async fn keep(
        self: &Arc<Self>,
        credentials: &Credentials,
    ) -> Result<(), StateFolderError> {
        let (this, text) = (Arc::clone(self), credentials.to_text());
        let failed = |source| StateFolderError::Write { path: self.path.join(IDENTITY), source };
        let written = tokio::task::spawn_blocking(move || this.write(text));
        let written = written.await.map_err(|error| failed(io::Error::other(error)))?;
        written.map_err(failed)
    }

    fn write(&self, text: String) -> io::Result<()> {
        let mut last = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        if *last == text {
            return Ok(());
        }
        match unlinkat(&self.folder, NEXT, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.folder, NEXT, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        renameat(&self.folder, NEXT, &self.folder, IDENTITY)?;
        self.folder.sync_all()?;
        *last = text;
        Ok(())
    }
}

/// Whether a file or folder is this process's user's, and closed to others.
fn check(file: &File, path: &Path, is_folder: bool) -> Result<(), StateFolderError> {
    let own = || path.to_owned();
    let found = file.metadata();
    let found = found.map_err(|source| StateFolderError::Open { path: own(), source })?;
    let user = rustix::process::geteuid().as_raw();
    if found.uid() != user {
        return Err(StateFolderError::Foreign { path: own(), owner: found.uid(), user });
    }
    if !is_folder && !found.is_file() {
        let source = io::Error::other("it is no file");
        return Err(StateFolderError::Read { path: own(), source });
    }
    let mode = found.permissions().mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(StateFolderError::OpenToOthers { path: own(), mode, is_folder });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::time::{Duration, SystemTime};

    use tempfile::TempDir;
    use tollway_identity::{Authority, IssueRequest, KeyPair, TrustBundle, TrustBundles};
    use tollway_model::{Label, TrustDomain};

    use super::*;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    fn service(app: &str) -> ServiceName {
        ServiceName { app: label(app), namespace: label("default"), network: label("west") }
    }

    /// Credentials of `web`, instance `web-1`, with a new key.
    fn credentials() -> Credentials {
        let (network, domain) = (label("west"), TrustDomain::new("west.tollway").unwrap());
        let now = SystemTime::now();
        let authority = Authority::create(&domain, &network, now).unwrap();
        let key = KeyPair::generate().unwrap();
        let request = IssueRequest {
            csr_der: key.csr_der().unwrap(),
            service: service("web"),
            instance: label("web-1"),
            ttl: Duration::from_secs(3600),
        };
        let chain = authority.issue(&request, now).unwrap().chain;
        let bundle = TrustBundle::new(network, domain, vec![authority.root_der().clone()]);
        Credentials::new(&key, chain, TrustBundles::new(1, [bundle.unwrap()]).unwrap()).unwrap()
    }

    fn path_in(directory: &TempDir) -> PathBuf {
        directory.path().join("state")
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn refusal(path: &Path) -> StateFolderError {
        let folder = match StateFolder::open(path) {
            Ok(folder) => folder,
            Err(error) => return error,
        };
        folder.read().unwrap_err()
    }

    #[tokio::test]
    async fn what_was_kept_last_is_there_after_a_restart_and_closed_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(&directory);
        let folder = Arc::new(StateFolder::open(&path).unwrap());
        assert!(folder.read().unwrap().is_none());
        let last = credentials();
        for kept in [&credentials(), &last, &last] {
            folder.keep(kept).await.unwrap();
        }
        drop(folder);
        let read = StateFolder::open(&path).unwrap().read().unwrap().unwrap();
        assert_eq!(read.chain(), last.chain());
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join(IDENTITY)), 0o600);
        assert!(!path.join(NEXT).exists());
    }

    /// The harm: a process that ends while it writes leaves nothing that can be used.
    #[tokio::test]
    async fn a_write_that_was_broken_off_leaves_the_former_identity() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(&directory);
        let folder = Arc::new(StateFolder::open(&path).unwrap());
        let (first, second) = (credentials(), credentials());
        folder.keep(&first).await.unwrap();
        let half = second.to_text();
        std::fs::write(path.join(NEXT), &half[..half.len() / 2]).unwrap();
        assert_eq!(folder.read().unwrap().unwrap().chain(), first.chain());
        folder.keep(&second).await.unwrap();
        assert_eq!(folder.read().unwrap().unwrap().chain(), second.chain());
    }

    /// The harm: another user of the machine reads the key.
    #[tokio::test]
    async fn a_folder_or_file_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(&directory);
        Arc::new(StateFolder::open(&path).unwrap()).keep(&credentials()).await.unwrap();
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        for open in [0o750, 0o701, 0o777] {
            set(&path, open);
            let text = refusal(&path).to_string();
            assert!(text.contains(&format!("chmod 700 {}", path.display())), "{text}");
        }
        set(&path, 0o700);
        set(&path.join(IDENTITY), 0o640);
        let text = refusal(&path).to_string();
        assert!(text.contains("chmod 600"), "{text}");
    }

    #[tokio::test]
    async fn a_link_in_place_of_the_folder_or_of_its_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (real, link) = (path_in(&directory), directory.path().join("link"));
        Arc::new(StateFolder::open(&real).unwrap()).keep(&credentials()).await.unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(matches!(refusal(&link), StateFolderError::Open { .. }));
        std::fs::rename(real.join(IDENTITY), directory.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("../elsewhere", real.join(IDENTITY)).unwrap();
        assert!(matches!(refusal(&real), StateFolderError::Read { .. }));
    }

    /// Only root can make a file of another user.
    #[tokio::test]
    async fn a_folder_of_another_user_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(&directory);
        drop(StateFolder::open(&path).unwrap());
        tollway_testkit::need_right!(std::os::unix::fs::chown(&path, Some(1), Some(1)));
        let text = refusal(&path).to_string();
        assert!(text.contains("belongs to uid 1 and not to this process"), "{text}");
    }

    /// The harm: two processes renew with one key, and each locks the other out.
    #[test]
    fn a_folder_is_of_one_process_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(&directory);
        let first = StateFolder::open(&path).unwrap();
        assert!(matches!(StateFolder::open(&path), Err(StateFolderError::Locked { .. })));
        drop(first);
        StateFolder::open(&path).unwrap();
    }

    #[tokio::test]
    async fn damaged_and_foreign_content_is_reported_with_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(&directory);
        let folder = Arc::new(StateFolder::open(&path).unwrap());
        let kept = credentials();
        folder.keep(&kept).await.unwrap();
        folder.check_owner(&kept, &service("web"), &label("web-1")).unwrap();
        for (app, instance) in [("web", "web-2"), ("stock", "web-1")] {
            let other = folder.check_owner(&kept, &service(app), &label(instance)).unwrap_err();
            assert_eq!(other.code(), ErrorCode::StateFolder);
            let text = other.to_string();
            assert!(
                text.contains("has the identity of web.default.west (instance web-1)"),
                "{text}"
            );
        }
        drop(folder);
        let mut bytes = std::fs::read(path.join(IDENTITY)).unwrap();
        for (damage, at) in [(b'\xff', 300), (b'A', 400)] {
            bytes[at] = damage;
            std::fs::write(path.join(IDENTITY), &bytes).unwrap();
            let damaged = refusal(&path);
            assert_eq!(damaged.code(), ErrorCode::StateFolder);
            let text = tollway_model::chain(&damaged);
            assert!(text.contains("identity cannot be used") && text.contains("damaged"), "{text}");
            bytes[at] = b'B';
        }
        std::fs::write(path.join(IDENTITY), "").unwrap();
        assert!(matches!(refusal(&path), StateFolderError::Damaged { .. }));
    }
}
