//! A TCP client that sends bytes as they are, for input that no real client would produce.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// The most that an answer may hold, in bytes; more ends the reading as [`End::TooLarge`].
const ANSWER_LIMIT: usize = 64 << 20;

/// A connection to the program under test.
pub struct RawClient {
    stream: TcpStream,
}

/// What came back, and how the reading ended.
#[derive(Debug)]
pub struct Answer {
    pub bytes: Vec<u8>,
    pub end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The peer closed its side in order.
    Closed,
    /// The peer reset the connection.
    Reset,
    /// The peer sent nothing more until the deadline.
    TimedOut,
    /// The awaited bytes are there; the connection is still open.
    Complete,
    /// The peer sent more than 64 MiB.
    TooLarge,
}

impl RawClient {
    pub fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_WITHIN)
            .with_context(|| format!("could not connect to {address}"))?;
        stream.set_nodelay(true).context("could not switch off Nagle's algorithm")?;
        Ok(Self { stream })
    }

    /// Sends `bytes`; blocks while the peer does not read. A peer that hung up is an error.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        self.stream.write_all(bytes.as_ref()).context("the peer does not take more bytes")
    }

    /// Says that nothing more will be sent; reading goes on.
    pub fn finish_sending(&mut self) -> Result<()> {
        self.stream.shutdown(Shutdown::Write).context("could not close the sending side")
    }

    /// The same connection, for a thread that sends while this one reads.
    pub fn sender(&self) -> Result<Self> {
        let stream = self.stream.try_clone().context("could not share the connection")?;
        Ok(Self { stream })
    }

    /// Ends the connection by a reset.
    pub fn reset(self) -> Result<()> {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO))
            .context("could not have the close be a reset")
    }

    /// Reads until the peer closes, at most for `within`.
    pub fn read_to_end(&mut self, within: Duration) -> Result<Answer> {
        self.read_until(within, |_| false)
    }

    /// Reads until `is_complete` holds for all bytes read by this call, or the peer closes.
    pub fn read_until(
        &mut self,
        within: Duration,
        is_complete: impl Fn(&[u8]) -> bool,
    ) -> Result<Answer> {
        let deadline = Instant::now() + within;
        let mut bytes = Vec::new();
        let mut chunk = [0; 16 * 1024];
        loop {
            if is_complete(&bytes) {
                return Ok(Answer { bytes, end: End::Complete });
            }
            if bytes.len() > ANSWER_LIMIT {
                return Ok(Answer { bytes, end: End::TooLarge });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Answer { bytes, end: End::TimedOut });
            }
            self.stream.set_read_timeout(Some(left)).context("could not set a deadline")?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(Answer { bytes, end: End::Closed }),
                Ok(count) => bytes.extend_from_slice(&chunk[..count]),
                Err(error) if is_reset(error.kind()) => {
                    return Ok(Answer { bytes, end: End::Reset });
                }
                // The deadline is checked above.
                Err(error) if is_pause(error.kind()) => {}
                Err(error) => return Err(error).context("could not read from the peer"),
            }
        }
    }

    /// Connects, sends `bytes` while reading, and returns all that came until the peer closed.
    ///
    /// A peer that hangs up before it has read everything is an answer, not an error.
    pub fn exchange(
        address: SocketAddr,
        bytes: impl AsRef<[u8]>,
        within: Duration,
    ) -> Result<Answer> {
        let mut client = match Self::connect(address) {
            Ok(client) => client,
            Err(error) if was_reset(&error) => {
                return Ok(Answer { bytes: Vec::new(), end: End::Reset });
            }
            Err(error) => return Err(error),
        };
        let mut sender = client.stream.try_clone().context("could not share the connection")?;
        sender.set_write_timeout(Some(within)).context("could not set a deadline")?;
        let bytes = bytes.as_ref();
        std::thread::scope(|scope| {
            // A failed send shows in how the reading ends.
            scope.spawn(move || sender.write_all(bytes));
            client.read_to_end(within)
        })
    }
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// The status codes of all HTTP/1 status lines in the answer, in order.
    pub fn statuses(&self) -> Vec<u16> {
        self.text()
            .lines()
            .filter_map(|line| line.strip_prefix("HTTP/1.1 ").or(line.strip_prefix("HTTP/1.0 ")))
            .filter_map(|rest| rest.get(..3)?.parse().ok())
            .collect()
    }
}

/// A reset that meets a peer's earlier end of stream is reported as a broken pipe.
fn is_reset(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

fn was_reset(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| is_reset(error.kind()))
}

fn is_pause(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const SOON: Duration = Duration::from_secs(20);

    /// A server that treats its first connection as `serve` says.
    fn server(serve: impl FnOnce(TcpStream) + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(listener.accept().unwrap().0));
        address
    }

    #[test]
    fn answer_ends_when_the_peer_closes() {
        let address = server(|mut stream| {
            let mut request = [0; 4];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        });
        let answer = RawClient::exchange(address, "ping", SOON).unwrap();
        assert_eq!((answer.end, answer.statuses()), (End::Closed, vec![400]));
    }

    #[test]
    fn a_reset_is_distinguished_from_a_close() {
        let address = server(|mut stream| {
            // Unread bytes turn the close into a reset.
            let mut first = [0; 1];
            stream.read_exact(&mut first).unwrap();
        });
        let mut client = RawClient::connect(address).unwrap();
        client.send(vec![b'x'; 1000]).unwrap();
        assert_eq!(client.read_to_end(SOON).unwrap().end, End::Reset);
    }

    #[test]
    fn silence_ends_at_the_deadline_and_completion_before_it() {
        let address = server(|mut stream| {
            stream.write_all(b"one\ntwo\n").unwrap();
            let _ = stream.read(&mut [0; 1]);
        });
        let mut client = RawClient::connect(address).unwrap();
        let answer = client.read_until(SOON, |bytes| bytes.ends_with(b"two\n")).unwrap();
        assert_eq!((answer.end, answer.text().as_str()), (End::Complete, "one\ntwo\n"));
        let answer = client.read_to_end(Duration::from_millis(50)).unwrap();
        assert_eq!((answer.end, answer.bytes.len()), (End::TimedOut, 0));
    }

    #[test]
    fn exchange_reads_while_it_sends() {
        // More than the socket buffers hold, so a client that only sends would never end.
        let request = vec![b'x'; 16 << 20];
        let length = request.len() as u64;
        let address = server(move |stream| {
            std::io::copy(&mut stream.try_clone().unwrap().take(length), &mut &stream).unwrap();
        });
        let answer = RawClient::exchange(address, &request, SOON).unwrap();
        assert_eq!(answer.bytes.len(), request.len());
    }
}
