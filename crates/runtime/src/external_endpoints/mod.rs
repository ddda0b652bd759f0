//! Calls of endpoints outside of the network: HTTP endpoints that resources name, and absolute
//! URLs. The data loop hands them over, because there is no sidecar at the other end: no identity
//! and no discovery, plain HTTP/1.1 or TLS (`connect`). Resiliency rules apply to endpoints by
//! their names.

mod connect;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::{PathAndQuery, Scheme};
use hyper::{HeaderMap, Request, Response, Uri};
use thiserror::Error;
use tollway_model::egress::{PLAIN_PORT, TLS_PORT};
use tollway_model::{EgressDefault, ErrorCode, ServiceName, chain};
use tollway_proxy::{AppEgress, ERROR_FIELD, ExternalHost};
use tonic::body::Body;

use self::connect::{Client, Guard, client};
pub use self::connect::{EndpointTls, EndpointTlsError};
use crate::actors::Problem;
use crate::body_collector::BodyCollector;
use crate::resiliency::{Answered, CallBody, ResiliencyState, call_body};

/// Fields of one connection, and fields that the HTTP client sets itself.
const NOT_PASSED_ON: [HeaderName; 8] = [
    header::CONNECTION,
    header::HOST,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Clients for hosts to which TLS is begun under authorities of their own.
const BEGUN_CLIENTS_LIMIT: usize = 64;

/// An endpoint outside of the network.
#[derive(Clone, Debug)]
pub struct HttpEndpoint {
    pub name: String,
    pub url: BaseUrl,
    /// Fields of every request to it. They replace those of the app.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub tls: EndpointTls,
}

/// The URL of an endpoint: `http://` or `https://`, host, port, and the prefix of its paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BaseUrl {
    base: Uri,
}

/// Why a text is no URL of an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{text}` is no URL of an endpoint: {reason}; write one such as https://host:port/path")]
pub struct BaseUrlError {
    text: String,
    reason: String,
}

impl BaseUrl {
    /// # Errors
    /// [`BaseUrlError`].
    pub fn new(text: &str) -> Result<Self, BaseUrlError> {
        let wrong =
            |reason: &str| BaseUrlError { text: text.to_owned(), reason: reason.to_owned() };
        let base: Uri = text.parse().map_err(|error| wrong(&format!("{error}")))?;
        if !matches!(base.scheme_str(), Some("http" | "https")) {
            return Err(wrong("it begins neither with http:// nor with https://"));
        }
        let authority = base.authority().map_or("", |authority| authority.as_str());
        if authority.contains('@') {
            return Err(wrong("it holds a name or a password"));
        }
        if base.host().is_none_or(str::is_empty) {
            return Err(wrong("it has no host"));
        }
        if base.query().is_some() {
            return Err(wrong("it has a query"));
        }
        Ok(Self { base })
    }

    fn is_tls(&self) -> bool {
        self.base.scheme() == Some(&Scheme::HTTPS)
    }

    /// The URL of a path and query below it.
    fn join(&self, asked: &Uri) -> Result<Uri, hyper::http::Error> {
        let asked = asked.path_and_query().map_or("/", PathAndQuery::as_str);
        let path = format!("{}{asked}", self.base.path().trim_end_matches('/'));
        let mut parts = self.base.clone().into_parts();
        parts.path_and_query = Some(path.parse()?);
        Ok(Uri::from_parts(parts)?)
    }
}

/// Makes calls of endpoints outside of the network.
pub(crate) struct ExternalCalls {
    endpoints: HashMap<String, (HttpEndpoint, Client)>,
    /// For URLs.
    client: Client,
    /// For what comes through the outbound proxy.
    proxied: Client,
    /// For hosts to which TLS is begun, by the authorities of their certificates.
    begun: Mutex<HashMap<Arc<str>, Client>>,
    egress: Arc<AppEgress>,
    resiliency: Option<Arc<ResiliencyState>>,
    home: ServiceName,
    bodies: BodyCollector,
}

impl ExternalCalls {
    /// # Errors
    /// [`EndpointTlsError`].
    pub(crate) fn new(
        endpoints: Vec<HttpEndpoint>,
        resiliency: Option<Arc<ResiliencyState>>,
        home: ServiceName,
        bodies: BodyCollector,
        egress: Arc<AppEgress>,
    ) -> Result<Self, EndpointTlsError> {
        let mut known = HashMap::new();
        for endpoint in endpoints {
            let client = client(&endpoint.name, &endpoint.tls, &egress, Guard::IfClosed)?;
            known.insert(endpoint.name.clone(), (endpoint, client));
        }
        let plain = EndpointTls::default();
        let of_urls = client("URLs", &plain, &egress, Guard::IfClosed)?;
        let proxied = client("URLs", &plain, &egress, Guard::Always)?;
        let begun = Mutex::default();
        Ok(Self {
            endpoints: known,
            client: of_urls,
            proxied,
            begun,
            egress,
            resiliency,
            home,
            bodies,
        })
    }

    /// The names of the endpoints, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.endpoints.keys().cloned().collect();
        names.sort();
        names
    }

    /// Sends a request that the data loop has handed over to `id`: an endpoint by its name, or a URL.
    pub(crate) async fn answer(&self, id: &str, request: Request<Body>) -> Response<Body> {
        self.call(id, request).await.unwrap_or_else(|problem| problem.response())
    }

    async fn call(&self, id: &str, request: Request<Body>) -> Answered {
        let (mut head, body) = request.into_parts();
        let failed = |code, why: &dyn std::fmt::Display| {
            Problem::new(code, format!("failed to invoke, id: {id}, err: {why}"))
        };
        let url;
        let (url, client, headers) = match self.endpoints.get(id) {
            Some((endpoint, client)) => (&endpoint.url, client, endpoint.headers.as_slice()),
            None => {
                url = BaseUrl::new(id).map_err(|error| failed(ErrorCode::BadName, &error))?;
                (&url, &self.client, [].as_slice())
            }
        };
        let (url, client) = match self.admit(url, true).await? {
            Some((url, begun)) => (url, begun.unwrap_or_else(|| client.clone())),
            None => (url.clone(), client.clone()),
        };
        let client = &client;
        head.uri = url.join(&head.uri).map_err(|error| failed(ErrorCode::BadName, &error))?;
        if url.is_tls() {
            client.check_trust().map_err(|error| failed(ErrorCode::Unreachable, &error))?;
        }
        take_what_is_of_connections(&mut head.headers);
        for (name, value) in headers {
            head.headers.insert(name, value.clone());
        }
        let target = ServiceName::parse(id, &self.home).ok();
        let rules = self.resiliency.as_ref().zip(target.as_ref());
        let rules = rules.and_then(|(of, target)| Some((of, of.of_app(target, &self.home)?)));
        let attempt = |body: Body| self.attempt(id, client, &head, body);
        let Some((resiliency, rules)) = rules else { return attempt(Body::new(body)).await };
        let label = format!("app_{id}");
        let keys = [format!("{id} {}", head.uri.path())];
        match call_body(&self.bodies, rules, &head, body, false).await? {
            CallBody::Whole(mut held) => {
                let bytes = Bytes::from(std::mem::take(&mut held.bytes));
                let again = || attempt(Body::new(Full::new(bytes.clone())));
                resiliency.run(rules, &label, &keys, true, again).await
            }
            CallBody::Stream(body) => {
                let mut body = Some(Body::new(body));
                let once = || attempt(body.take().unwrap_or_default());
                resiliency.run(rules, &label, &keys, false, once).await
            }
        }
    }

    /// Sends a request of the outbound proxy to the host of `url`.
    pub(crate) async fn answer_proxied(&self, url: &str, request: Request<Body>) -> Response<Body> {
        self.call_proxied(url, request).await.unwrap_or_else(|problem| problem.response())
    }

    async fn call_proxied(&self, url: &str, request: Request<Body>) -> Answered {
        let (mut head, body) = request.into_parts();
        let wrong = |why: &dyn std::fmt::Display| Problem::new(ErrorCode::BadName, why.to_string());
        let named = BaseUrl::new(url).map_err(|error| wrong(&error))?;
        let (to, client) = match self.admit(&named, false).await? {
            Some((url, begun)) => (url, begun.unwrap_or_else(|| self.proxied.clone())),
            None => (named, self.proxied.clone()),
        };
        head.uri = to.join(&head.uri).map_err(|error| wrong(&error))?;
        if to.is_tls() {
            let refused = |error| Problem::new(ErrorCode::Unreachable, chain(&error));
            client.check_trust().map_err(refused)?;
        }
        take_what_is_of_connections(&mut head.headers);
        self.attempt(url, &client, &head, body).await
    }

    /// Whether egress lets the app call the host of `url`. Gives where the call goes if TLS is begun, and
    /// the client for certificates of other authorities than the system's.
    ///
    /// # Errors
    /// `EgressRefused`, `EgressUnknown`.
    async fn admit(
        &self,
        url: &BaseUrl,
        is_counted: bool,
    ) -> Result<Option<(BaseUrl, Option<Client>)>, Problem> {
        let Some(rules) = self.egress.first_rules().await else {
            let text =
                format!("the sidecar of {} does not know yet what its app may call", self.home);
            return Err(Problem::new(ErrorCode::EgressUnknown, text));
        };
        let authority = url.base.authority().map_or("", |authority| authority.as_str());
        let port = if url.is_tls() { TLS_PORT } else { PLAIN_PORT };
        let Some(host) = ExternalHost::read(authority, port) else {
            // A name in a form of its own, which no egress has.
            return match rules.by_default() {
                EgressDefault::Closed => Err(refused(&authority)),
                EgressDefault::Open | EgressDefault::Shadow => Ok(None),
            };
        };
        let decision = host.decide(&rules);
        if is_counted {
            self.egress.note(&decision, &host, Instant::now());
        }
        if decision.is_refused() {
            return Err(refused(&host));
        }
        let (Some((port, tls)), ExternalHost::Name(name, _), false) =
            (decision.tls, &host, url.is_tls())
        else {
            return Ok(None);
        };
        let path = url.base.path();
        let begun = BaseUrl::new(&format!("https://{name}:{port}{path}"));
        let begun = begun.map_err(|error| Problem::new(ErrorCode::BadName, chain(&error)))?;
        let client = tls.authorities.map(|pem| self.begun_client(&pem)).transpose();
        let client = client.map_err(|error| Problem::new(ErrorCode::TlsFailed, chain(&error)))?;
        Ok(Some((begun, client)))
    }

    /// The client for hosts whose certificates these authorities sign. Up to [`BEGUN_CLIENTS_LIMIT`] clients are kept.
    fn begun_client(&self, pem: &Arc<str>) -> Result<Client, EndpointTlsError> {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = begun.get(pem) {
            return Ok(client.clone());
        }
        let tls = EndpointTls { root_ca: Some(pem.to_string()), certificate: None };
        let made = client("of an Egress", &tls, &self.egress, Guard::Always)?;
        if begun.len() >= BEGUN_CLIENTS_LIMIT {
            begun.clear();
        }
        begun.insert(Arc::clone(pem), made.clone());
        Ok(made)
    }

    async fn attempt(&self, id: &str, client: &Client, head: &Parts, body: Body) -> Answered {
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = head.uri.clone();
        *request.headers_mut() = head.headers.clone();
        let answer = client.request(request).await.map_err(|error| {
            let code =
                if error.is_connect() { ErrorCode::Unreachable } else { ErrorCode::ClosedEarly };
            let why = chain(&error);
            Problem::new(code, format!("failed to invoke, id: {id}, err: {why}"))
        })?;
        let (mut head, body) = answer.into_parts();
        take_what_is_of_connections(&mut head.headers);
        // Only data planes may set it.
        head.headers.remove(ERROR_FIELD);
        Ok(Response::from_parts(head, Body::new(body)))
    }
}

fn refused(host: &dyn std::fmt::Display) -> Problem {
    let remedy = "have the operator allow it in an Egress";
    let text = format!("no egress allows the app to call {host}; {remedy}");
    Problem::new(ErrorCode::EgressRefused, text)
}

fn take_what_is_of_connections(fields: &mut HeaderMap) {
    let named: Vec<HeaderName> = fields
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&NOT_PASSED_ON) {
        fields.remove(name);
    }
    fields.remove("keep-alive");
    fields.remove("proxy-connection");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined_to_the_url() {
        let join = |base: &str, path: &str| {
            BaseUrl::new(base).unwrap().join(&path.parse().unwrap()).unwrap().to_string()
        };
        assert_eq!(join("http://a:80", "/b?c=d"), "http://a:80/b?c=d");
        assert_eq!(join("https://a/", "/b%2Fc"), "https://a/b%2Fc");
        assert_eq!(join("https://a/base/", "/"), "https://a/base/");
        assert_eq!(join("http://[::1]:8080/v1", "/x"), "http://[::1]:8080/v1/x");
    }

    #[test]
    fn what_is_no_url_of_an_endpoint_is_refused() {
        for (text, reason) in [
            ("ftp://a", "neither with http://"),
            ("a/b", "no URL"),
            ("http://", "no URL"),
            ("http://me:word@a", "a name or a password"),
            ("http://a/?b", "a query"),
            ("http://a b", "no URL"),
        ] {
            let error = BaseUrl::new(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn what_concerns_a_connection_goes_no_further() {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-one"),
            ("x-one", "1"),
            ("host", "a"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("x-two", "2"),
        ] {
            fields.append(name, HeaderValue::from_static(value));
        }
        take_what_is_of_connections(&mut fields);
        assert_eq!(fields.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-two"]);
    }
}
