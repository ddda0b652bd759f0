//! Where spans are sent, as a user writes it.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use thiserror::Error;

/// The path of OTLP over HTTP, if the URL has none.
const HTTP_PATH: &str = "/v1/traces";
/// The port that OTLP over HTTP is registered for; over gRPC it is 4317.
const HTTP_PORT: u16 = 4318;

/// Which form of OTLP a collector takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceProtocol {
    Grpc,
    /// Protobuf in the body of a POST.
    Http,
}

/// Why an endpoint or its header fields cannot be used.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum EndpointError {
    #[error("`{url}` is not a URL such as http://127.0.0.1:4317")]
    NoUrl { url: String },
    #[error("`{url}` must begin with http:// or https://")]
    Scheme { url: String },
    #[error("`{url}` names no port: a collector takes gRPC at 4317 and HTTP at 4318")]
    NoPort { url: String },
    #[error("`{url}` holds a user name or a query, which a collector does not take")]
    Superfluous { url: String },
    #[error("`{url}` has a path, which gRPC does not know: leave it out, or choose HTTP")]
    Path { url: String },
    #[error("`{pair}` is not NAME=VALUE, as in the list authorization=Bearer%20x,tenant=a")]
    Header { pair: String },
}

/// A collector.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceEndpoint {
    pub(super) protocol: TraceProtocol,
    pub(super) tls: bool,
    /// A name, or an address without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// Empty for gRPC.
    pub(super) path: String,
}

impl TraceEndpoint {
    /// Reads a URL. Without a protocol it is HTTP where the URL has a path or port 4318, and gRPC
    /// everywhere else.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub fn parse(url: &str, protocol: Option<TraceProtocol>) -> Result<Self, EndpointError> {
        let url = || url.to_owned();
        let uri: Uri = url().parse().map_err(|_| EndpointError::NoUrl { url: url() })?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(EndpointError::NoUrl { url: url() });
        };
        let tls = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(EndpointError::Scheme { url: url() }),
        };
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(EndpointError::Superfluous { url: url() });
        }
        let port = match authority.port_u16() {
            Some(port) => port,
            None if tls && !authority.as_str().ends_with(':') => 443,
            None => return Err(EndpointError::NoPort { url: url() }),
        };
        let path = uri.path().trim_end_matches('/');
        let speaks_http = port == HTTP_PORT || !path.is_empty();
        let protocol = protocol.unwrap_or(match speaks_http {
            true => TraceProtocol::Http,
            false => TraceProtocol::Grpc,
        });
        let path = match (protocol, path) {
            (TraceProtocol::Grpc, "") => String::new(),
            (TraceProtocol::Grpc, _) => return Err(EndpointError::Path { url: url() }),
            (TraceProtocol::Http, "") => HTTP_PATH.to_owned(),
            (TraceProtocol::Http, _) => uri.path().to_owned(),
        };
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        Ok(Self { protocol, tls, host, port, path })
    }

    /// Host and port as a request names them.
    pub(super) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub(super) fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

impl fmt::Display for TraceEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme(), self.authority(), self.path)
    }
}

/// Fields that are sent with every export, such as the key of a hosted collector. They may be
/// secrets and are never printed.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct TraceHeaders(pub(super) HeaderMap);

impl TraceHeaders {
    /// Reads `name=value,name=value` with values percent-encoded, as the variable
    /// `OTEL_EXPORTER_OTLP_HEADERS` has it everywhere.
    ///
    /// # Errors
    /// [`EndpointError::Header`].
    pub fn parse(list: &str) -> Result<Self, EndpointError> {
        let mut headers = HeaderMap::new();
        for pair in list.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            // Only the name is repeated in the error: the value may be a secret.
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let wrong = || EndpointError::Header { pair: format!("{name}=…") };
            let field: HeaderName = name.trim().parse().map_err(|_| wrong())?;
            let value = decode(value.trim()).ok_or_else(wrong)?;
            let mut value = HeaderValue::from_bytes(&value).map_err(|_| wrong())?;
            value.set_sensitive(true);
            if value.is_empty() {
                return Err(wrong());
            }
            headers.append(field, value);
        }
        Ok(Self(headers))
    }
}

impl fmt::Debug for TraceHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Takes percent-encoding away.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%' {
            let (digits, tail) = tail.split_at_checked(2)?;
            let digits = std::str::from_utf8(digits).ok()?;
            decoded.push(u8::from_str_radix(digits, 16).ok()?);
            rest = tail;
        } else {
            decoded.push(*first);
        }
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<TraceEndpoint, EndpointError> {
        TraceEndpoint::parse(url, None)
    }

    #[test]
    fn the_port_and_the_path_select_the_protocol() {
        let check = |url: &str, wanted: &str, protocol| {
            let endpoint = parse(url).unwrap();
            assert_eq!((endpoint.to_string().as_str(), endpoint.protocol), (wanted, protocol));
        };
        use TraceProtocol::{Grpc, Http};
        check("http://127.0.0.1:4317", "http://127.0.0.1:4317", Grpc);
        check("http://[::1]:4317/", "http://[::1]:4317", Grpc);
        check("https://collector", "https://collector:443", Grpc);
        check("http://collector:4318", "http://collector:4318/v1/traces", Http);
        check("https://collector/otlp/v1/traces", "https://collector:443/otlp/v1/traces", Http);
        let http = TraceEndpoint::parse("http://collector:80/", Some(Http)).unwrap();
        assert_eq!(http.to_string(), "http://collector:80/v1/traces");
    }

    #[test]
    fn what_cannot_be_meant_is_refused_in_words() {
        let check = |url: &str, words: &str| {
            let message = parse(url).unwrap_err().to_string();
            assert!(message.contains(words), "{url}: {message}");
        };
        check("collector:4317", "is not a URL");
        check("", "is not a URL");
        check("ftp://collector:4317", "must begin with");
        check("http://collector", "names no port");
        check("http://user@collector:4317", "user name");
        check("http://collector:4318/v1/traces?key=1", "query");
        let grpc = TraceEndpoint::parse("http://collector:4317/x", Some(TraceProtocol::Grpc));
        assert!(grpc.unwrap_err().to_string().contains("has a path"));
    }

    #[test]
    fn header_fields_are_read_and_not_printed() {
        let headers = TraceHeaders::parse("authorization=Bearer%20secret, tenant=a,").unwrap();
        assert_eq!(headers.0["authorization"], "Bearer secret");
        assert_eq!(headers.0["tenant"], "a");
        assert!(!format!("{headers:?}").contains("secret"), "{headers:?}");
        for wrong in ["secret", "=secret", "a=", "a=%zz", "a=%", "a b=secret", "a=b%0asecret"] {
            let message = TraceHeaders::parse(wrong).unwrap_err().to_string();
            assert!(message.contains("NAME=VALUE"), "{message}");
            assert!(!message.contains("b%0asecret"), "{message}");
        }
    }
}
