//! The bytes of the request, rendered once before the run.

use tollway_http::h1::{Connection, RequestOptions, ResponseContext, write_request};

use crate::clients::request::{Opening, opening};
use crate::clients::varied::Varied;
use crate::error::LoadError;
use crate::options::{HttpRequest, Target};

/// A request ready to be sent any number of times.
#[derive(Debug)]
pub(crate) struct Rendered {
    bytes: Vec<u8>,
    /// The request with `connection: close`.
    closing: Vec<u8>,
    pub(super) context: ResponseContext,
    /// What the answer's body must be.
    pub(super) echo: Option<Vec<u8>>,
    varied: Option<Varied>,
    /// Where the path begins.
    path_at: usize,
}

impl Rendered {
    pub(crate) fn new(target: &Target, request: &HttpRequest) -> Result<Self, LoadError> {
        let Opening { head, length, varied } = opening(target, request)?;
        let render = |connection| {
            let mut bytes = Vec::new();
            let options = RequestOptions { connection, ..RequestOptions::default() };
            write_request(&mut bytes, &head, length, &options);
            bytes.extend_from_slice(&request.body);
            bytes
        };
        Ok(Self {
            bytes: render(Connection::KeepAlive),
            closing: render(Connection::Close),
            context: ResponseContext::of(&head.method),
            echo: request.verify_echo.then(|| request.body.clone()),
            varied,
            path_at: head.method.as_bytes().len() + 1,
        })
    }

    /// The bytes of the next request; the connection's `last` request asks to close it.
    pub(super) fn next(&mut self, last: bool) -> &[u8] {
        let bytes = if last { &mut self.closing } else { &mut self.bytes };
        if let Some(varied) = &mut self.varied {
            varied.advance(&mut bytes[self.path_at..]);
        }
        bytes
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
