//! The bytes of the request, rendered once before the run.

use tollway_http::h1::{BodyLength, RequestOptions, ResponseContext, syntax, write_request};
use tollway_http::{Fields, Method, RequestHead};

use crate::error::LoadError;
use crate::options::{HttpRequest, Target};

/// Fields that decide framing, which is the client's.
const RESERVED: [&str; 7] =
    ["connection", "content-length", "expect", "keep-alive", "te", "transfer-encoding", "upgrade"];

/// A request ready to be sent any number of times.
#[derive(Debug)]
pub(crate) struct Rendered {
    pub(super) bytes: Vec<u8>,
    pub(super) context: ResponseContext,
    /// What the answer's body must be.
    pub(super) echo: Option<Vec<u8>>,
}

impl Rendered {
    pub(crate) fn new(target: &Target, request: &HttpRequest) -> Result<Self, LoadError> {
        if !syntax::is_token(request.method.as_bytes()) {
            return Err(LoadError::Method(request.method.clone()));
        }
        let method = Method::from_token(request.method.as_bytes());
        if method == Method::Connect {
            return Err(LoadError::Method(request.method.clone()));
        }
        let mut head = RequestHead {
            method,
            scheme: b"http".to_vec(),
            authority: target.authority.clone().into_bytes(),
            path: target.path.clone().into_bytes(),
            fields: Fields::new(),
            protocol: None,
        };
        add_fields(&mut head, &request.headers)?;
        let mut bytes = Vec::new();
        let length = body_length(&head.method, &request.body)?;
        write_request(&mut bytes, &head, length, &RequestOptions::default());
        bytes.extend_from_slice(&request.body);
        Ok(Self {
            bytes,
            context: ResponseContext::of(&head.method),
            echo: request.verify_echo.then(|| request.body.clone()),
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_post_carries_host_length_and_body() {
        let request = HttpRequest {
            method: "POST".into(),
            headers: vec![("X-A".into(), "b".into())],
            body: b"hello".to_vec(),
            verify_echo: false,
        };
        let text = String::from_utf8(render(&request).unwrap().bytes).unwrap();
        assert!(text.starts_with("POST /p?q HTTP/1.1\r\nhost: h:1\r\n"), "{text}");
        assert!(text.contains("\r\nx-a: b\r\n"), "{text}");
        assert!(text.contains("\r\ncontent-length: 5\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\nhello"), "{text}");
    }

    #[test]
    fn a_host_header_names_another_authority() {
        let headers = vec![("Host".into(), "stock.shop.east.mesh".into())];
        let rendered = render(&HttpRequest { headers, ..HttpRequest::default() }).unwrap();
        let text = String::from_utf8(rendered.bytes).unwrap();
        assert!(text.contains("\r\nhost: stock.shop.east.mesh\r\n"), "{text}");
    }

    #[test]
    fn headers_that_decide_framing_or_break_the_head_are_refused() {
        for (name, value) in
            [("Content-Length", "3"), ("a b", "c"), ("a", "b\r\nc: d"), ("host", "a b")]
        {
            let headers = vec![(name.into(), value.into())];
            let request = HttpRequest { headers, ..HttpRequest::default() };
            assert!(render(&request).is_err(), "{name}: {value}");
        }
    }

    fn render(request: &HttpRequest) -> Result<Rendered, LoadError> {
        Rendered::new(&Target::http("http://h:1/p?q").unwrap(), request)
    }
}
