//! The head of an HTTP request: the caller's options, checked.

use tollway_http::h1::{BodyLength, syntax};
use tollway_http::{Fields, Method, RequestHead, Scheme};

use super::varied::Varied;
use crate::error::LoadError;
use crate::options::{HttpRequest, Target};

/// Fields that decide framing, which is the client's.
const RESERVED: [&str; 7] =
    ["connection", "content-length", "expect", "keep-alive", "te", "transfer-encoding", "upgrade"];

/// What a request of HTTP begins with.
pub(super) struct Opening {
    pub(super) head: RequestHead,
    pub(super) length: BodyLength,
    /// What differs in the head's path from request to request.
    pub(super) varied: Option<Varied>,
}

/// The head of `request`, and how long its body is.
pub(super) fn opening(target: &Target, request: &HttpRequest) -> Result<Opening, LoadError> {
    if !syntax::is_token(request.method.as_bytes()) {
        return Err(LoadError::Method(request.method.clone()));
    }
    let method = Method::from_token(request.method.as_bytes());
    if method == Method::Connect {
        return Err(LoadError::Method(request.method.clone()));
    }
    let (path, varied) = Varied::parse(&target.path)?;
    let mut head = RequestHead {
        method,
        scheme: Scheme::Borrowed(if target.tls { b"https" } else { b"http" }),
        authority: target.authority.clone().into_bytes(),
        path: path.into_bytes(),
        fields: Fields::new(),
        protocol: None,
    };
    add_fields(&mut head, &request.headers)?;
    let length = body_length(&head.method, &request.body)?;
    Ok(Opening { head, length, varied })
}

fn add_fields(head: &mut RequestHead, headers: &[(String, String)]) -> Result<(), LoadError> {
    for (name, value) in headers {
        let lower = name.to_ascii_lowercase();
        if RESERVED.contains(&lower.as_str()) {
            return Err(LoadError::ReservedHeader(name.clone()));
        }
        let fits = syntax::is_token(name.as_bytes()) && syntax::is_field_value(value.as_bytes());
        if !fits {
            return Err(LoadError::Header(format!("{name}: {value}")));
        }
        if lower == "host" {
            if !syntax::is_authority(value.as_bytes()) {
                return Err(LoadError::Header(format!("{name}: {value}")));
            }
            head.authority = value.clone().into_bytes();
        } else {
            head.fields.push(name.as_bytes(), value.as_bytes());
        }
    }
    Ok(())
}

fn body_length(method: &Method, body: &[u8]) -> Result<BodyLength, LoadError> {
    let takes_none = matches!(method, Method::Trace);
    match (body.is_empty(), method) {
        (false, _) if takes_none => {
            Err(LoadError::BodyNotAllowed(String::from_utf8_lossy(method.as_bytes()).into_owned()))
        }
        (true, Method::Post | Method::Put | Method::Patch) => Ok(BodyLength::Fixed(0)),
        (true, _) => Ok(BodyLength::None),
        (false, _) => Ok(BodyLength::Fixed(body.len() as u64)),
    }
}
