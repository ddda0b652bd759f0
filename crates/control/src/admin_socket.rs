//! The admin socket: where the operator's commands come in. A process that can connect may do everything,
//! so at no moment can a process of another user.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt as _};

use crate::admin_client::SOCKET_NAME;
use crate::connections::ACCEPT_PAUSE;
use crate::error::StartError;

/// A directory in the store's, for as long as it takes to bind. With [`BOUND_AS`] it is no longer
/// than [`SOCKET_NAME`]: the paths of sockets are short.
const PRIVATE: &str = ".new";
const BOUND_AS: &str = "sock";

/// The connections of commands. One that the system does not give waits: the server, which would ask
/// again at once and for as long as that lasts, gets the error after a pause.
pub(crate) fn commands(listener: UnixListener) -> impl Stream<Item = io::Result<UnixStream>> {
    UnixListenerStream::new(listener).then(|accepted| async {
        if accepted.is_err() {
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
        accepted
    })
}

/// Binds the admin socket. The store's lock proves that a socket left there is a dead one's.
pub(crate) fn bind_admin(store: &Path) -> Result<UnixListener, StartError> {
    bind(store).map_err(|source| StartError::AdminSocket { path: store.join(SOCKET_NAME), source })
}

/// A new socket has the permissions that the process's mask leaves. So it is created in a directory
/// that is closed to other users, restricted, and only then moved to its path.
fn bind(store: &Path) -> io::Result<UnixListener> {
    let private = store.join(PRIVATE);
    // One that was killed may have left it.
    match std::fs::remove_dir_all(&private) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    DirBuilder::new().mode(0o700).create(&private)?;
    let made = private.join(BOUND_AS);
    let listener = UnixListener::bind(&made)?;
    std::fs::set_permissions(&made, Permissions::from_mode(0o600))?;
    std::fs::rename(&made, store.join(SOCKET_NAME))?;
    std::fs::remove_dir(&private)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Looks as fast as it can at a socket that is bound again and again, in a directory that is
    /// open to all.
    #[tokio::test]
    async fn the_socket_is_never_open_to_other_users() {
        let store = tempfile::tempdir().unwrap();
        std::fs::set_permissions(store.path(), Permissions::from_mode(0o755)).unwrap();
        let done = AtomicBool::new(false);
        let (socket, private) = (store.path().join(SOCKET_NAME), store.path().join(PRIVATE));
        let seen = std::thread::scope(|threads| {
            let watcher = threads.spawn(|| {
                let (mut looks, mut open) = (0_u32, Vec::new());
                while !done.load(Ordering::Relaxed) {
                    for path in [&socket, &private] {
                        let Ok(found) = std::fs::metadata(path) else { continue };
                        looks += 1;
                        let mode = found.permissions().mode() & 0o777;
                        if mode & 0o077 != 0 {
                            open.push((path.clone(), mode));
                        }
                    }
                }
                (looks, open)
            });
            for _ in 0..500 {
                drop(bind(store.path()).unwrap());
            }
            done.store(true, Ordering::Relaxed);
            watcher.join().unwrap()
        });
        assert!(seen.0 > 100, "it was hardly looked at: {}", seen.0);
        assert_eq!(seen.1, []);
    }

    #[tokio::test]
    async fn what_a_killed_one_left_is_in_nobodys_way() {
        let store = tempfile::tempdir().unwrap();
        let left = store.path().join(PRIVATE);
        std::fs::create_dir(&left).unwrap();
        drop(UnixListener::bind(left.join(BOUND_AS)).unwrap());
        drop(UnixListener::bind(store.path().join(SOCKET_NAME)).unwrap());
        let listener = bind(store.path()).unwrap();
        let client = UnixStream::connect(store.path().join(SOCKET_NAME));
        let (accepted, connected) = tokio::join!(listener.accept(), client);
        assert!(accepted.is_ok() && connected.is_ok());
        assert!(!left.exists());
        assert!(PRIVATE.len() + 1 + BOUND_AS.len() <= SOCKET_NAME.len());
    }
}
