//! A server that takes note of what each connection carries, and answers nothing but 200.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// The heads of requests by connection, in the order in which connections came.
type Connections = Arc<Mutex<Vec<Vec<String>>>>;

/// Serves as long as the test runs.
pub(crate) struct Witness {
    pub(crate) address: SocketAddr,
    seen: Connections,
}

impl Witness {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Connections::default());
        let taken = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let seen = Arc::clone(&taken);
                std::thread::spawn(move || serve(&stream, &seen));
            }
        });
        Self { address, seen }
    }

    /// Returns what it has seen so far and forgets it.
    pub(crate) fn take(&self) -> Vec<Vec<String>> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

/// Answers each request without a body, until the client closes.
fn serve(stream: &TcpStream, seen: &Connections) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut place = None;
    loop {
        let head: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        if head.is_empty() {
            return;
        }
        note(&mut seen.lock().unwrap(), &mut place, head.join("\n"));
        let closes = head.iter().any(|line| line.eq_ignore_ascii_case("connection: close"));
        let answered = (&*stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        if closes || answered.is_err() {
            return;
        }
    }
}

/// A connection that carried nothing has no place.
fn note(seen: &mut Vec<Vec<String>>, place: &mut Option<usize>, head: String) {
    let place = *place.get_or_insert_with(|| {
        seen.push(Vec::new());
        seen.len() - 1
    });
    seen[place].push(head);
}
