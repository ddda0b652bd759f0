//! A blocking HTTP/1.1 client with one connection, for requests beside a measurement.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tollway_http::h1::{BodyDecoder, HeadScanner, Limits, Parsed, ResponseContext, parse_response};

/// Time to connect, and for each part of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of an answer: a full list of timer fires, and some more.
const ANSWER_BYTES: usize = 64 << 20;

/// Keeps one connection open and opens another one after the peer closes it.
pub struct HttpClient {
    address: SocketAddr,
    stream: Option<TcpStream>,
}

impl HttpClient {
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self { address, stream: None }
    }

    /// Sends a request and returns the status and body of the answer. After an error the next request
    /// opens a new connection.
    ///
    /// # Errors
    /// Of the connection, of an answer that is not HTTP/1.1 or has more than 64 MiB.
    pub fn request(&mut self, method: &str, path: &str, body: &str) -> io::Result<(u16, Vec<u8>)> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.dial()?,
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        let (status, body, keep_alive) = answer(&mut stream)?;
        self.stream = keep_alive.then_some(stream);
        Ok((status, body))
    }

    fn dial(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&self.address, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(stream)
    }
}

fn answer(stream: &mut impl Read) -> io::Result<(u16, Vec<u8>, bool)> {
    let limits = Limits::default();
    let mut scanner = HeadScanner::new();
    let mut input = Vec::new();
    let (response, consumed) = loop {
        if !read_more(stream, &mut input)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let context = ResponseContext::default();
        match parse_response(&input, context, &limits, &mut scanner).map_err(io::Error::other)? {
            Parsed::Partial => {}
            Parsed::Complete { message, consumed } => break (message, consumed),
        }
    };
    input.drain(..consumed);
    let mut decoder = BodyDecoder::of_response(response.body, &limits);
    let mut body = Vec::new();
    loop {
        let step = decoder.decode(&input).map_err(io::Error::other)?;
        body.extend_from_slice(&input[step.data]);
        input.drain(..step.consumed);
        if decoder.is_finished() {
            return Ok((response.head.status, body, response.keep_alive && input.is_empty()));
        }
        if body.len() > ANSWER_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if step.consumed == 0 && !read_more(stream, &mut input)? {
            decoder.close().map_err(io::Error::other)?;
        }
    }
}

/// False at the end of the stream.
fn read_more(stream: &mut impl Read, input: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 64 * 1024];
    let read = stream.read(&mut buffer)?;
    input.extend_from_slice(&buffer[..read]);
    Ok(read > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_however_they_are_framed() {
        let read = |text: &str| {
            let (status, body, keep_alive) = answer(&mut text.as_bytes()).unwrap();
            (status, String::from_utf8(body).unwrap(), keep_alive)
        };
        let fixed = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
        assert_eq!(read(fixed), (200, "hi".to_owned(), true));
        let chunked =
            "HTTP/1.1 201 Made\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n1\r\n!\r\n0\r\n\r\n";
        assert_eq!(read(chunked), (201, "hi!".to_owned(), true));
        assert_eq!(read("HTTP/1.1 204 No\r\n\r\n"), (204, String::new(), true));
        let until_close = "HTTP/1.1 500 No\r\nconnection: close\r\n\r\nwell";
        assert_eq!(read(until_close), (500, "well".to_owned(), false));
        for broken in ["", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi"] {
            assert!(answer(&mut broken.as_bytes()).is_err(), "{broken}");
        }
    }
}
