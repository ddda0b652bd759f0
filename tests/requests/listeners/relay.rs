//! Plain connections that lead on to others, byte for byte.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Bytes that are handed on at once.
const AT_ONCE: usize = 64 << 10;

/// Opens another connection for each to the address that it gives. What a client writes in pieces
/// that follow each other within `gathered_for` goes on whole; answers go back as they come.
pub(crate) fn start(
    open: impl Fn() -> io::Result<TcpStream> + Clone + Send + 'static,
    gathered_for: Duration,
) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let open = open.clone();
            thread::spawn(move || {
                let client = client.unwrap();
                // One that is refused shows in the end of the client's connection.
                if let Ok(server) = open() {
                    let (back, forth) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                    thread::spawn(move || copy(&back, &forth, Duration::ZERO));
                    copy(&client, &server, gathered_for);
                }
            });
        }
    });
    address
}

/// Passes bytes on, and their end: however it ended, the other side ends too.
fn copy(mut from: &TcpStream, mut to: &TcpStream, gathered_for: Duration) {
    let mut bytes = vec![0; AT_ONCE];
    while gather(from, &mut bytes, gathered_for).is_ok_and(|waiting| waiting > 0) {
        let passed = from.read(&mut bytes).and_then(|length| to.write_all(&bytes[..length]));
        if passed.is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Waits until something has come and nothing came behind it for so long; how much, up to what is
/// handed on at once. Nothing once the other side has ended.
fn gather(from: &TcpStream, bytes: &mut [u8], gathered_for: Duration) -> io::Result<usize> {
    let mut waiting = from.peek(bytes)?;
    while waiting > 0 && !gathered_for.is_zero() {
        thread::sleep(gathered_for);
        let before = std::mem::replace(&mut waiting, from.peek(bytes)?);
        if waiting == before {
            break;
        }
    }
    Ok(waiting)
}
