//! `tollway lab serve`: the results of a folder as pages. Read only, for this machine unless configured
//! otherwise; every page's state is in its address.
//!
//! A client that can reach the port can read every result in the folder. A page of another site cannot:
//! a request is answered only if it names this server by an address, by `localhost`, or by a name
//! that was given, so a foreign name that leads here (DNS rebinding) gets nothing.

mod answer;
mod folder;
mod list;
mod overlay;
mod query;
mod shelf;
mod trend;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tollway_model::ErrorCode;

use answer::Site;
use folder::Folder;
use shelf::Shelf;

pub use folder::{FILE_LIMIT_BYTES, FILES_LIMIT, FolderError};
pub use overlay::OVERLAY_LIMIT;

/// Connections served at once; more wait to be accepted.
const CONNECTIONS: usize = 64;

/// Longest head of a request, in bytes: a choice of many files is a long address.
const HEAD_BYTES: usize = 64 * 1024;

/// How long a request's head may take, and a connection may idle.
const HEAD_WITHIN: Duration = Duration::from_secs(30);

/// Longest life of one connection.
const CONNECTION_LIFE: Duration = Duration::from_secs(600);

/// Pause after the kernel refused a connection (out of descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is served, and where.
pub struct ServeOptions {
    pub folder: PathBuf,
    pub listen: SocketAddr,
    /// Names by which browsers may call this server, in addition to addresses and names without a public
    /// owner.
    pub host_names: Vec<String>,
}

/// Why there is no server.
#[derive(Debug, Error)]
pub enum ServeError {
    #[error(transparent)]
    Folder(FolderError),
    #[error("cannot listen on {listen}; give another --listen, with port 0 for any free one")]
    Listen { listen: SocketAddr, source: std::io::Error },
}

impl ServeError {
    /// Its entry in the catalogue.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Folder(error) => Some(error.code()),
            Self::Listen { source, .. } => ErrorCode::of_io(source),
        }
    }
}

/// Why a page cannot be made.
#[derive(Debug, Error)]
pub(crate) enum PageError {
    #[error("no result is chosen; choose some in the list")]
    NothingChosen,
    #[error("{count} results are too many to lay over each other; choose at most {OVERLAY_LIMIT}")]
    TooMany { count: usize },
    #[error("none of these results has a time and figures")]
    NoTrend,
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    File(#[from] folder::FileError),
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    site: Arc<Site>,
}

impl Server {
    /// Opens the folder and listens.
    ///
    /// # Errors
    /// [`ServeError`] when the folder cannot be read or the address cannot be listened on.
    pub async fn bind(options: ServeOptions) -> Result<Self, ServeError> {
        let ServeOptions { folder, listen, host_names } = options;
        let opened = Folder::open(&folder).map_err(ServeError::Folder)?;
        let failed = |source| ServeError::Listen { listen, source };
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let site = Arc::new(Site::new(Shelf::new(opened), host_names));
        Ok(Self { listener, address, site })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it is dropped.
    pub async fn run(self) {
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            // The semaphore is never closed, so there is a permit in the end.
            let permit = Arc::clone(&room).acquire_owned().await;
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let site = Arc::clone(&self.site);
                    tokio::spawn(async move {
                        let served = serve_connection(stream, site);
                        let _ = tokio::time::timeout(CONNECTION_LIFE, served).await;
                        drop(permit);
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

/// Ends with the connection; how it ended is the browser's business.
async fn serve_connection(stream: TcpStream, site: Arc<Site>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let site = Arc::clone(&site);
        async move { Ok::<_, Infallible>(site.answer(&request).await) }
    });
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
