//! Plain clients see the inside of tunnels: what they send goes, byte for byte, through one that
//! CONNECT has opened for each of them.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

/// Opens a tunnel to `host` through `outbound` for each connection to the address that it gives.
pub(crate) fn start(outbound: SocketAddr, host: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let client = stream.unwrap();
                // A tunnel that is refused shows in the end of the client's connection.
                if let Ok(tunnel) = open(outbound, host) {
                    let (back, forth) = (tunnel.try_clone().unwrap(), client.try_clone().unwrap());
                    std::thread::spawn(move || copy(back, forth));
                    copy(client, tunnel);
                }
            });
        }
    });
    address
}

fn open(outbound: SocketAddr, host: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(outbound)?;
    stream.set_nodelay(true)?;
    write!(stream, "CONNECT {host}:80 HTTP/1.1\r\nhost: {host}:80\r\n\r\n")?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    if head.starts_with(b"HTTP/1.1 200 ") { Ok(stream) } else { Err(io::ErrorKind::Other.into()) }
}

/// Passes bytes on, and their end.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    // However it ended, the other side ends too.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
