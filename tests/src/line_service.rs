//! A service of lines, as some stores and mail servers are, and what a stranger sends it behind a
//! ClientHello.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::tls_client::client_hello;

/// Two of its commands.
pub const LINES: &[u8] = b"\r\nGET secret\r\nSET owned yes\r\n";

/// A service that reads lines, as some stores and mail servers do: what it does not understand it
/// answers and forgets.
#[derive(Clone)]
pub struct LineService {
    pub address: SocketAddr,
    taken: Arc<AtomicUsize>,
    executed: Arc<Mutex<Vec<String>>>,
}

impl LineService {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let service = Self { address, taken: Arc::default(), executed: Arc::default() };
        let started = service.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let service = service.clone();
                std::thread::spawn(move || service.serve(stream.unwrap()));
            }
        });
        started
    }

    /// Commands that it has executed.
    pub fn executed(&self) -> Vec<String> {
        self.executed.lock().unwrap().clone()
    }

    /// Connections that it has accepted.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }

    fn serve(&self, mut stream: std::net::TcpStream) {
        self.taken.fetch_add(1, Ordering::SeqCst);
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            let is_command = text.starts_with("GET ") || text.starts_with("SET ");
            let answer: &[u8] =
                if is_command { b"+OK internal-secret-42\r\n" } else { b"-ERR\r\n" };
            if is_command {
                self.executed.lock().unwrap().push(text);
            }
            if stream.write_all(answer).is_err() {
                return;
            }
            line.clear();
        }
    }
}

/// A ClientHello of that name which ends a line, so that a service of lines answers it.
pub fn hello_with_a_line(name: &str) -> Vec<u8> {
    loop {
        let hello = client_hello(name);
        // About one in four has such a byte among its random ones.
        if hello.contains(&b'\n') {
            return hello;
        }
    }
}
