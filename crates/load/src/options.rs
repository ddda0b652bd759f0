//! The options of a run: target, arrivals, connections, limits, and the request itself.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use http::Uri;
use prost::Message as _;

use crate::arrival::{Arrival, Extent, Profile, Spacing};
use crate::clients::streams::StreamKind;
use crate::error::LoadError;
use crate::tls::TlsOptions;
use tollway_dial::reachable_blocking;
use tollway_echo::{EchoMessage, UNARY_PATH, payload};

/// Connections of one run; each costs a descriptor and a few KB.
pub(crate) const MAX_CONNECTIONS: usize = 50_000;
/// Most concurrent streams of one HTTP/2 connection.
pub(crate) const MAX_STREAMS: usize = 10_000;
/// Messages that may wait on one stream.
const MAX_IN_FLIGHT: usize = 100_000;
/// Largest message of a stream: what the echo service keeps of one.
const MAX_PAYLOAD_BYTES: usize = 4 * 1024 * 1024 - 64;
/// The largest window that HTTP/2 has.
const MAX_WINDOW_BYTES: usize = (1 << 31) - 1;
/// Why a URL is refused that names a port and has none.
const NO_PORT: &str = "its port is not a number from 1 to 65535";
/// Time in which one of a host's addresses is found that accepts connections.
pub(crate) const FIND_WITHIN: Duration = Duration::from_secs(5);
/// Default cap on requests released and not finished.
pub(crate) const DEFAULT_MAX_INFLIGHT: usize = 100_000;

/// One run, whatever the protocol.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub target: Target,
    /// Connect here instead of to the target's host: a proxy that routes by name.
    pub connect_to: Option<SocketAddr>,
    pub arrival: Arrival,
    pub extent: Extent,
    /// How the rate of an open loop moves; set by [`Self::with_stages`].
    pub stages: Option<Profile>,
    /// Load before the measured window.
    pub warmup: Duration,
    /// Of the arrivals.
    pub seed: u64,
    pub connections: usize,
    /// Used if the target's URL is `https`.
    pub tls: TlsOptions,
    pub reuse: Reuse,
    /// Calls in flight at once on one connection; HTTP/1.1 always has one.
    pub streams: usize,
    /// Requests released and not finished; what arrives beyond it is dropped and counted.
    pub max_inflight: usize,
    pub connect_timeout: Duration,
    /// From the send to the last byte of the answer.
    pub request_timeout: Duration,
    /// How long unfinished requests are waited for after the window.
    pub drain: Duration,
    pub keep: Keep,
    /// Kept in the result as it is.
    pub command_line: Vec<String>,
}

/// Which histograms, of up to a few KB each, a result has in addition to those of all requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keep {
    /// Of each second.
    pub seconds: bool,
    /// Of each phase.
    pub phases: bool,
}

impl LoadOptions {
    /// 10 s of 1,000 requests/s in open loop over 16 connections, after 1 s of warm-up.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self {
            target,
            connect_to: None,
            arrival: Arrival::Open { rate_rps: 1000.0, spacing: Spacing::Uniform },
            extent: Extent::Lasting(Duration::from_secs(10)),
            stages: None,
            warmup: Duration::from_secs(1),
            seed: 1,
            connections: 16,
            tls: TlsOptions::default(),
            reuse: Reuse::default(),
            streams: 100,
            max_inflight: DEFAULT_MAX_INFLIGHT,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            drain: Duration::from_secs(5),
            keep: Keep::default(),
            command_line: Vec::new(),
        }
    }

    /// A run with a rate that changes by `profile`, as long as the profile.
    #[must_use]
    pub fn with_stages(self, profile: Profile, spacing: Spacing) -> Self {
        Self {
            arrival: Arrival::Open { rate_rps: profile.mean_rps(), spacing },
            extent: Extent::Lasting(profile.lasting()),
            stages: Some(profile),
            ..self
        }
    }

    /// Refuses what cannot be run.
    pub fn check(&self) -> Result<(), LoadError> {
        self.arrival.check()?;
        within("the number of connections", self.connections, MAX_CONNECTIONS)?;
        within("the number of streams", self.streams, MAX_STREAMS)?;
        let requests =
            self.reuse.requests.map_or(1, |most| usize::try_from(most).unwrap_or(usize::MAX));
        within("the number of requests per connection", requests, usize::MAX)?;
        within("max-inflight", self.max_inflight, usize::MAX)
    }

    /// Where to connect: `connect_to`, else the first address of the target's host that accepts a
    /// connection. Every connection of the run goes there.
    pub fn address(&self) -> Result<SocketAddr, LoadError> {
        self.target.address(self.connect_to)
    }
}

impl Target {
    /// `connect_to`, else the address of the host that accepts a connection, if it has several.
    pub(crate) fn address(&self, connect_to: Option<SocketAddr>) -> Result<SocketAddr, LoadError> {
        if let Some(address) = connect_to {
            return Ok(address);
        }
        let Self { host, port, .. } = self;
        reachable_blocking(host, *port, FIND_WITHIN)
            .map_err(|source| LoadError::Resolve { host: host.clone(), source })
    }
}

/// How long a connection is used. By default it stays open, and is dialled again when it is lost.
///
/// With a limit, a connection is closed when it has reached it, and the next one is opened by the
/// request that needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Requests that one connection carries.
    pub requests: Option<u64>,
    /// Longest time from an answer to the next request.
    pub idle: Option<Duration>,
}

impl Reuse {
    pub(crate) fn is_limited(self) -> bool {
        self.requests.is_some() || self.idle.is_some()
    }
}

fn within(name: &'static str, given: usize, most: usize) -> Result<(), LoadError> {
    if (1..=most).contains(&given) {
        return Ok(());
    }
    Err(LoadError::Bounds { name, given: given as u64, least: 1, most: most as u64 })
}

/// What to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// As given, with the scheme written out.
    pub url: String,
    /// What the request names: `host[:port]`.
    pub authority: String,
    /// Without the brackets of an IPv6 address.
    pub host: String,
    pub port: u16,
    /// Path and query, at least `/`.
    pub path: String,
    /// Whether the URL is `https`.
    pub tls: bool,
}

impl Target {
    /// `http://host[:port]/path?query` or `https://…`; without a scheme it is `http`.
    pub fn http(url: &str) -> Result<Self, LoadError> {
        Self::parse(url, "http")
    }

    /// `grpc://host:port/package.Service/Method` or `grpcs://…`; `http`, `https` and no scheme at
    /// all are understood. A missing path means the echo server's unary call.
    pub fn grpc(url: &str) -> Result<Self, LoadError> {
        let mut target = Self::parse(url, "grpc")?;
        if target.path == "/" {
            target.path = UNARY_PATH.to_owned();
            target.url = format!("{}{}", target.url.trim_end_matches('/'), target.path);
        }
        Ok(target)
    }

    /// `tcp://host:port` or `host:port`.
    pub fn tcp(url: &str) -> Result<Self, LoadError> {
        let refuse = |reason| LoadError::Url { url: url.to_owned(), reason };
        let target = Self::parse(url, "tcp")?;
        if target.tls {
            return Err(refuse("raw TCP has no TLS here"));
        }
        if !target.authority.ends_with(&format!(":{}", target.port)) {
            return Err(refuse("it names no port: write it as tcp://HOST:PORT"));
        }
        let url = target.url.trim_end_matches('/').to_owned();
        Ok(Self { url, ..target })
    }

    fn parse(url: &str, scheme: &'static str) -> Result<Self, LoadError> {
        let refuse = |reason| LoadError::Url { url: url.to_owned(), reason };
        let full = if url.contains("://") { url.to_owned() } else { format!("{scheme}://{url}") };
        let uri: Uri = full.parse().map_err(|_| refuse("it is not a valid URL"))?;
        let given = uri.scheme_str().unwrap_or_default();
        let tls = match (given.strip_suffix('s').unwrap_or(given), given.ends_with('s')) {
            ("http", tls) => tls,
            (plain, tls) if plain == scheme => tls,
            _ => return Err(refuse("its scheme is unknown")),
        };
        let authority = uri.authority().ok_or_else(|| refuse("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(refuse("it carries a user name; send an authorization header instead"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(refuse("it names no host"));
        }
        let port = match authority.port_u16() {
            Some(0) => return Err(refuse(NO_PORT)),
            Some(port) => port,
            None if authority.as_str().len() == authority.host().len() => {
                if tls {
                    443
                } else {
                    80
                }
            }
            None => return Err(refuse(NO_PORT)),
        };
        Ok(Self {
            authority: authority.to_string(),
            host: host.to_owned(),
            port,
            path: escaped(uri.path_and_query().map_or("/", |path| path.as_str())),
            url: full,
            tls,
        })
    }
}

/// Letters beyond ASCII as the escapes that a request has for them.
fn escaped(path: &str) -> String {
    path.bytes().fold(String::with_capacity(path.len()), |mut escaped, byte| {
        if byte.is_ascii() {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
        escaped
    })
}

/// The request of an HTTP run, the same every time.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    pub method: String,
    /// Names and values as given; framing fields and `host` are the client's own.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Whether an answer must carry exactly the bytes that were sent.
    pub verify_echo: bool,
}

impl Default for HttpRequest {
    fn default() -> Self {
        Self { method: "GET".into(), headers: Vec::new(), body: Vec::new(), verify_echo: false }
    }
}

/// The call of a gRPC run.
#[derive(Clone, Debug, Default)]
pub struct GrpcRequest {
    /// Names and values as given.
    pub metadata: Vec<(String, String)>,
    /// The encoded message, without the five bytes of its frame.
    pub message: Vec<u8>,
    /// Messages that are sent one after the other instead, all as long as each other.
    pub in_turn: Vec<Vec<u8>>,
    /// The part of the message that the result calls payload.
    pub payload_bytes: usize,
    /// Whether the answer's message must be the one that was sent.
    pub verify_echo: bool,
}

impl GrpcRequest {
    /// A call whose message is an `EchoRequest` with `bytes` bytes of payload.
    #[must_use]
    pub fn echo(bytes: usize) -> Self {
        let message = EchoMessage { payload: payload(bytes), repeat: 0 }.encode_to_vec();
        Self { message, payload_bytes: bytes, ..Self::default() }
    }
}

/// Streams of messages, all of them the same.
#[derive(Clone, Debug)]
pub struct StreamRequest {
    pub kind: StreamKind,
    /// Names and values as given.
    pub metadata: Vec<(String, String)>,
    /// Bytes of a message's payload.
    pub payload_bytes: usize,
    /// Messages of one stream, in the direction of its kind.
    pub messages: u32,
    /// Messages of one stream that may wait for their answer, where each has one.
    pub in_flight: usize,
    /// What this side lets the target send ahead on one stream; 256 KiB if absent.
    pub window_bytes: Option<u32>,
    /// Of one stream; it is sent to the target, and the stream is cancelled here.
    pub deadline: Option<Duration>,
}

impl StreamRequest {
    /// 100 messages of 4 KB a stream, one at a time.
    #[must_use]
    pub fn new(kind: StreamKind) -> Self {
        Self {
            kind,
            metadata: Vec::new(),
            payload_bytes: 4096,
            messages: 100,
            in_flight: 1,
            window_bytes: None,
            deadline: None,
        }
    }

    /// How many calls of a run `streams` whole streams are: messages where each is answered.
    #[must_use]
    pub fn calls_of(&self, streams: u64) -> u64 {
        let calls = if self.kind.is_by_message() { u64::from(self.messages) } else { 1 };
        streams.saturating_mul(calls)
    }

    pub(crate) fn check(&self) -> Result<(), LoadError> {
        within("the number of messages", self.messages as usize, u32::MAX as usize)?;
        within("the number of messages in flight", self.in_flight, MAX_IN_FLIGHT)?;
        within("the payload's size in bytes plus one", self.payload_bytes + 1, MAX_PAYLOAD_BYTES)?;
        within("the window in bytes", self.window_bytes.unwrap_or(1) as usize, MAX_WINDOW_BYTES)
    }
}

/// `name: value` as curl's `-H` takes it.
pub fn header(line: &str) -> Result<(String, String), LoadError> {
    let refuse = || LoadError::Header(line.to_owned());
    let (name, value) = line.split_once(':').ok_or_else(refuse)?;
    let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
    http::HeaderName::from_bytes(name.as_bytes()).map_err(|_| refuse())?;
    http::HeaderValue::from_str(value).map_err(|_| refuse())?;
    Ok((name, value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let target = Target::http("http://127.0.0.1:8080/a?b=c").unwrap();
        assert_eq!((target.host.as_str(), target.port), ("127.0.0.1", 8080));
        assert_eq!((target.authority.as_str(), target.path.as_str()), ("127.0.0.1:8080", "/a?b=c"));
        let target = Target::http("stock.shop.east.mesh").unwrap();
        assert_eq!((target.host.as_str(), target.port), ("stock.shop.east.mesh", 80));
        assert_eq!(target.path, "/");
        let target = Target::http("a/Zo\u{eb}?q=\u{20ac}").unwrap();
        assert_eq!(target.path, "/Zo%C3%AB?q=%E2%82%AC");
        let target = Target::http("[::1]:9/").unwrap();
        assert_eq!((target.host.as_str(), target.authority.as_str()), ("::1", "[::1]:9"));
        let target = Target::grpc("grpc://10.0.0.1:5/p.S/M").unwrap();
        assert_eq!(target.path, "/p.S/M");
        let target = Target::grpc("10.0.0.1:5").unwrap();
        assert_eq!(target.path, UNARY_PATH);
        assert_eq!(target.url, "grpc://10.0.0.1:5/tollway.lab.v1.Echo/Unary");
        assert!(!target.tls);
        let target = Target::http("https://[::1]/").unwrap();
        assert_eq!((target.host.as_str(), target.port, target.tls), ("::1", 443, true));
        assert!(Target::grpc("grpcs://a:1").unwrap().tls);
    }

    #[test]
    fn urls_that_cannot_be_loaded_are_refused_with_the_reason() {
        for (url, reason) in [
            ("ftp://a/", "its scheme is unknown"),
            ("http://u:p@a/", "it carries a user name; send an authorization header instead"),
            ("http://", "it is not a valid URL"),
            ("http:// a/", "it is not a valid URL"),
            ("http://127.0.0.1:70300/", NO_PORT),
            ("https://a:65536", NO_PORT),
            ("http://a:0/", NO_PORT),
            ("http://a:/", NO_PORT),
            ("http://a:80a/", NO_PORT),
            ("http://a:-1/", NO_PORT),
            ("http://[::1]:70300/", NO_PORT),
        ] {
            let error = Target::http(url).unwrap_err().to_string();
            assert!(error.ends_with(reason), "{url}: {error}");
        }
    }

    /// The harm: a port that is mistyped sends the load to another server.
    #[test]
    fn a_port_that_is_none_is_refused_for_every_protocol() {
        for url in ["a:70300", "a:0"] {
            for refused in [Target::http(url), Target::grpc(url), Target::tcp(url)] {
                assert!(refused.unwrap_err().to_string().ends_with(NO_PORT), "{url}");
            }
        }
    }

    #[test]
    fn headers_are_read_as_curl_reads_them() {
        assert_eq!(header("X-A:  b ").unwrap(), ("x-a".into(), "b".into()));
        for line in ["none", "a b: c", "a: b\r\nc: d", ": x"] {
            assert!(header(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn bounds_are_named() {
        let mut options = LoadOptions::new(Target::http("a:1").unwrap());
        options.connections = 0;
        let error = options.check().unwrap_err().to_string();
        assert_eq!(error, "the number of connections of 0 is out of bounds: give 1 to 50000");
    }
}
