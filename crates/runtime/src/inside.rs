//! Calls from this process into its own data loop: one connection, made again when it ends.

use std::error::Error;
use std::io;

use hyper::body::{Body, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tollway_proxy::LoopbackClient;

/// Calls other services through the HTTP API, as the app would, with bodies of one kind.
pub(crate) struct Caller<B> {
    inside: LoopbackClient,
    connection: Mutex<Option<SendRequest<B>>>,
}

impl<B> Caller<B>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
{
    pub(crate) fn new(inside: LoopbackClient) -> Self {
        Self { inside, connection: Mutex::new(None) }
    }

    /// The way into the data loop.
    pub(crate) fn inside(&self) -> LoopbackClient {
        self.inside.clone()
    }

    /// Sends a request whose target is a path of the HTTP API.
    ///
    /// # Errors
    /// When the data plane has ended or breaks the connection off.
    pub(crate) async fn call(&self, request: Request<B>) -> io::Result<Response<Incoming>> {
        let mut connection = self.connection().await?;
        connection.send_request(request).await.map_err(io::Error::other)
    }

    async fn connection(&self) -> io::Result<SendRequest<B>> {
        let mut held = self.connection.lock().await;
        if let Some(standing) = held.as_mut()
            && standing.ready().await.is_ok()
        {
            return Ok(standing.clone());
        }
        let io = TokioIo::new(UnixStream::from_std(self.inside.connect()?)?);
        let handshake = handshake(TokioExecutor::new(), io).await;
        let (mut sender, connection) = handshake.map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection into the data loop ended");
            }
        });
        sender.ready().await.map_err(io::Error::other)?;
        Ok(held.insert(sender).clone())
    }
}
