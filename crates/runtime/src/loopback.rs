//! Calls from the runtime into the data loop of the same process.
//!
//! The runtime sends its requests to other services, other sidecars and its own app through the
//! data loop, where a call of the app goes too. [`Loopback`] is the seam at which tests replace the
//! data loop by a script.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tollway_proxy::{LoopbackClient, RuntimeRequest, RuntimeTarget, TurnLease};
use tonic::body::Body;
use tower::Service;

/// The data loop, as the runtime uses it.
#[tonic::async_trait]
pub(crate) trait Loopback: Send + Sync {
    /// Sends a request whose target is a path of the HTTP API, and returns the response.
    ///
    /// # Errors
    /// When the data plane has ended or closes the connection.
    async fn call(&self, request: Request<Body>) -> io::Result<Response<Body>>;

    /// Ends the call that carries this number early, unless its response has begun.
    fn call_off(&self, number: u64);

    /// Extends the time until which turns of this lease may be sent to the app.
    fn lease_renewed(&self, lease: TurnLease);
}

/// One HTTP/2 connection into the data loop, opened again when it has ended.
pub(crate) struct LoopbackConnection {
    client: LoopbackClient,
    connection: Mutex<Option<SendRequest<Body>>>,
}

impl LoopbackConnection {
    pub(crate) fn new(client: LoopbackClient) -> Self {
        Self { client, connection: Mutex::new(None) }
    }

    async fn sender(&self) -> io::Result<SendRequest<Body>> {
        let mut connection = self.connection.lock().await;
        if let Some(open) = connection.as_mut()
            && open.ready().await.is_ok()
        {
            return Ok(open.clone());
        }
        let io = TokioIo::new(UnixStream::from_std(self.client.connect()?)?);
        let handshake = handshake(TokioExecutor::new(), io).await;
        let (mut sender, driver) = handshake.map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "the connection into the data loop ended");
            }
        });
        sender.ready().await.map_err(io::Error::other)?;
        Ok(connection.insert(sender).clone())
    }
}

#[tonic::async_trait]
impl Loopback for LoopbackConnection {
    async fn call(&self, request: Request<Body>) -> io::Result<Response<Body>> {
        let mut sender = self.sender().await?;
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        Ok(response.map(Body::new))
    }

    fn call_off(&self, number: u64) {
        self.client.call_off(number);
    }

    fn lease_renewed(&self, lease: TurnLease) {
        self.client.renewed(lease);
    }
}

/// The app beside this sidecar as a service of gRPC, for calls that the data loop has handed over.
#[derive(Clone)]
pub(crate) struct AppService(Arc<dyn Loopback>);

impl AppService {
    pub(crate) fn new(loopback: Arc<dyn Loopback>) -> Self {
        Self(loopback)
    }
}

impl Service<Request<Body>> for AppService {
    type Response = Response<Body>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Response<Body>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let target = RuntimeRequest { to: RuntimeTarget::AppForCall, ..RuntimeRequest::default() };
        target.write(request.headers_mut());
        let loopback = Arc::clone(&self.0);
        Box::pin(async move { loopback.call(request).await })
    }
}
