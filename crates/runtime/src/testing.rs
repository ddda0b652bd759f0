//! What the unit tests of this crate put in place of a data loop, and how they read responses.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::TokioIo;
use tollway_model::{Label, ServiceName};
use tollway_proxy::TurnLease;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Server};
use tower::service_fn;

use crate::loopback::Loopback;

/// A request as the data loop has received it.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) path: String,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Bytes,
}

impl Received {
    /// The value of a field; empty without it.
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

type Respond = Box<dyn Fn(&Received) -> io::Result<Response<Body>> + Send + Sync>;

/// A data loop that responds as a test scripts it, and records the requests.
pub(crate) struct ScriptedLoopback {
    respond: Respond,
    received: Mutex<Vec<Received>>,
    called_off: Mutex<Vec<u64>>,
    renewed: Mutex<Vec<TurnLease>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ScriptedLoopback {
    pub(crate) fn new(
        respond: impl Fn(&Received) -> io::Result<Response<Body>> + Send + Sync + 'static,
    ) -> Self {
        let (received, called_off) = (Mutex::default(), Mutex::default());
        Self { respond: Box::new(respond), received, called_off, renewed: Mutex::default() }
    }

    /// Requests so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        locked(&self.received).clone()
    }

    /// Numbers of the calls that were called off.
    pub(crate) fn called_off(&self) -> Vec<u64> {
        locked(&self.called_off).clone()
    }

    /// Leases that were renewed.
    pub(crate) fn renewed(&self) -> Vec<TurnLease> {
        locked(&self.renewed).clone()
    }
}

#[tonic::async_trait]
impl Loopback for ScriptedLoopback {
    /// A response with the field `x-test-wait` comes after so many milliseconds.
    async fn call(&self, request: Request<Body>) -> io::Result<Response<Body>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let path = head.uri.path_and_query().map_or("", |path| path.as_str()).to_owned();
        let received = Received { method: head.method, path, fields: head.headers, body };
        locked(&self.received).push(received.clone());
        let mut response = (self.respond)(&received)?;
        if let Some(wait) = response.headers_mut().remove("x-test-wait") {
            let wait = wait.to_str().unwrap().parse().unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(wait)).await;
        }
        Ok(response)
    }

    fn call_off(&self, number: u64) {
        locked(&self.called_off).push(number);
    }

    fn lease_renewed(&self, lease: TurnLease) {
        locked(&self.renewed).push(lease);
    }
}

/// A connection to a server of these services, both in this process.
pub(crate) async fn channel_to(services: Routes) -> Result<Channel, String> {
    let (near, far) = tokio::io::duplex(1 << 20);
    let incoming = tokio_stream::iter([Ok::<_, io::Error>(far)]);
    tokio::spawn(Server::builder().add_routes(services).serve_with_incoming(incoming));
    let mut near = Some(near);
    let connector = service_fn(move |_| {
        let near = near.take().ok_or_else(|| io::Error::other("there is one connection"));
        async move { near.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://control");
    endpoint.connect_with_connector(connector).await.map_err(|error| error.to_string())
}

/// A response with these fields and this body.
pub(crate) fn response(status: u16, fields: &[(&'static str, &str)], body: &str) -> Response<Body> {
    let mut response = Response::builder().status(status);
    for (name, value) in fields {
        response = response.header(*name, *value);
    }
    response.body(Body::new(Full::from(body.to_owned()))).unwrap()
}

/// A request with this body.
pub(crate) fn request(method: Method, path: &str, body: &str) -> Request<Body> {
    let body = Body::new(Full::from(body.to_owned()));
    Request::builder().method(method).uri(path).body(body).unwrap()
}

/// Status and body of a response.
pub(crate) async fn read(response: Response<Body>) -> (u16, String) {
    let (head, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (head.status.as_u16(), String::from_utf8(bytes.to_vec()).unwrap())
}

/// The app `app` of the namespace `default` in the network `west`.
pub(crate) fn service(app: &str) -> ServiceName {
    let label = |text| Label::new(text).unwrap();
    ServiceName::parse_in(app, &label("default"), &label("west")).unwrap()
}
