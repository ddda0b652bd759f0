//! A TCP client of the echo server.

use std::io::{Read as _, Result, Write as _};
use std::net::{SocketAddr, TcpStream};

use tollway_testkit::retry_until;

use super::PATIENCE;

/// Connects until a line comes back, as a service of that port is found a moment after its start.
///
/// # Panics
/// Where none does for long.
#[must_use]
pub fn until_echoed(address: SocketAddr) -> TcpStream {
    let connect = || {
        let mut stream = TcpStream::connect(address).ok()?;
        echo(&mut stream, b"?").is_ok().then_some(stream)
    };
    retry_until(PATIENCE, "an echo over TCP", connect).unwrap()
}

/// Sends a line, and waits for it to come back.
///
/// # Panics
/// Where something else does.
pub fn echo(stream: &mut TcpStream, line: &[u8]) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(line)?;
    let mut echoed = vec![0; line.len()];
    stream.read_exact(&mut echoed)?;
    assert_eq!(echoed, line);
    Ok(())
}
