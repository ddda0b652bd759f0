//! HTTP clients of the tests: hyper, which shares no code with the proxy, and plain text.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tollway_testkit::RawClient;

use super::PATIENCE;

pub type Body = BoxBody<Bytes, Infallible>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    Http1,
    Http2,
}

/// One connection.
pub enum Client {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

impl Client {
    pub async fn connect(version: Version, address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(version, stream).await
    }

    pub async fn over(version: Version, stream: TcpStream) -> Self {
        let io = TokioIo::new(stream);
        match version {
            Version::Http1 => {
                let (sender, connection) = http1::handshake(io).await.unwrap();
                // How a connection ended shows in its requests.
                tokio::spawn(connection.with_upgrades());
                Self::Http1(sender)
            }
            Version::Http2 => {
                let handshake = http2::Builder::new(TokioExecutor::new()).handshake(io);
                let (sender, connection) = handshake.await.unwrap();
                tokio::spawn(connection);
                Self::Http2(sender)
            }
        }
    }

    pub async fn send(&mut self, request: Request<Body>) -> Response<Incoming> {
        self.try_send(request).await.unwrap()
    }

    /// Over HTTP/1.1 with the host that the URL names, and the whole URL only if it is of a
    /// host of the mesh: a client sends that to a proxy.
    pub async fn try_send(
        &mut self,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                let uri = request.uri().clone();
                let host = uri.authority().unwrap().as_str();
                request.headers_mut().insert("host", host.parse().unwrap());
                if !host.ends_with(".mesh") {
                    *request.uri_mut() = uri.path_and_query().unwrap().as_str().parse().unwrap();
                }
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    /// Sends and reads the whole answer: status, replica that answered, body.
    pub async fn exchange(&mut self, request: Request<Body>) -> Answer {
        let response = self.send(request).await;
        let replica = response.headers().get("x-echo-name");
        let replica = replica.map(|name| name.to_str().unwrap().to_owned()).unwrap_or_default();
        let status = response.status().as_u16();
        let collected = response.into_body().collect().await.unwrap();
        let trailer = collected.trailers().and_then(|trailers| trailers.get("x-trailer"));
        let trailer = trailer.map(|value| value.to_str().unwrap().to_owned());
        let body = collected.to_bytes();
        Answer { status, replica, body, trailer }
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// The name of the echo server that answered.
    pub replica: String,
    pub body: Bytes,
    /// The trailer `x-trailer`.
    pub trailer: Option<String>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

pub fn empty() -> Body {
    Empty::new().boxed()
}

pub fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).boxed()
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Sends a request over HTTP/1.1 on a connection of its own; status, fields and body of the answer.
pub async fn call(
    listener: SocketAddr,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> (StatusCode, HeaderMap, String) {
    let mut request = Request::builder().method(method).uri(format!("http://{listener}{path}"));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let mut client = Client::connect(Version::Http1, listener).await;
    let answer = client.send(request.body(full(body)).unwrap()).await;
    let (head, body) = answer.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())
}

/// A GET over HTTP/1.1 as text, the answer as text.
pub fn get(address: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    match RawClient::exchange(address, request, PATIENCE) {
        Ok(answer) => answer.text(),
        Err(error) => format!("{error:#}"),
    }
}
