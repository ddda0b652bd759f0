//! An HTTP/2 server on blocking sockets, one thread for each connection: what h2spec and other
//! foreign clients are pointed at.
//!
//! `h2_echo [ADDRESS]` listens (default 127.0.0.1:0), prints `listening on ADDRESS`, answers a
//! request with a body by sending it back (trailers too) and any other with a few bytes.

mod echo;

use std::io;
use std::net::TcpListener;

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    for socket in listener.incoming() {
        let socket = socket?;
        std::thread::spawn(move || {
            if let Err(error) = echo::serve(socket) {
                eprintln!("connection ended: {error}");
            }
        });
    }
    Ok(())
}
