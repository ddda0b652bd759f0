//! An app that records every byte it receives, and that answers what the test sets: also what no
//! honest server would.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

/// Answers to paths that end in the key; every other path is answered with 200 and itself.
pub type Script = HashMap<&'static str, Reply>;

/// The raw bytes of a response. The test may send more on the same connection ([`Request::send_more`]),
/// and if this is empty, all of it.
#[derive(Clone)]
pub struct Reply {
    pub bytes: Vec<u8>,
    pub then: Then,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Takes the next request.
    GoOn,
    /// Takes the rest of the body that it answered early, and then the next request.
    TakeRest,
    Close,
    /// Closes by a reset.
    Reset,
    /// Answers nothing more and keeps the connection.
    Hang,
}

/// Threads of it end with their connections.
pub struct App {
    pub address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    bytes: Vec<u8>,
    /// Whole requests: head and body.
    requests: Vec<Request>,
    /// Heads of requests whose connection ended before they did.
    broken_off: Vec<String>,
}

#[derive(Clone)]
pub struct Request {
    pub head: String,
    pub body: Vec<u8>,
    /// What it came by, as long as that is open.
    connection: Weak<TcpStream>,
}

impl App {
    pub fn start(script: Script) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (script, memory) = (Arc::new(script), Arc::clone(&seen));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (script, memory) = (Arc::clone(&script), Arc::clone(&memory));
                std::thread::spawn(move || serve(stream.unwrap(), &script, &memory));
            }
        });
        Self { address, seen }
    }

    pub fn port(&self) -> String {
        self.address.port().to_string()
    }

    /// Whether `text` was among the bytes that came, in whole requests or not.
    pub fn was_sent(&self, text: &str) -> bool {
        let seen = self.seen.lock().unwrap();
        seen.bytes.windows(text.len()).any(|window| window == text.as_bytes())
    }

    /// How often `bytes` were among those that came.
    pub fn times_sent(&self, bytes: &[u8]) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.bytes.windows(bytes.len()).filter(|window| *window == bytes).count()
    }

    /// Whole requests whose target ends in `path`.
    pub fn requests(&self, path: &str) -> Vec<Request> {
        let seen = self.seen.lock().unwrap();
        let to = |request: &&Request| request.target().ends_with(path);
        seen.requests.iter().filter(to).cloned().collect()
    }

    /// How many requests with `text` in their head ended before they were whole.
    pub fn broken_off(&self, text: &str) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.broken_off.iter().filter(|head| head.contains(text)).count()
    }

    /// Lets go what was seen, so that long tests do not grow.
    pub fn forget(&self) {
        *self.seen.lock().unwrap() = Seen::default();
    }
}

impl Request {
    pub fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    /// Values of all fields of that name, in order.
    pub fn values(&self, name: &str) -> Vec<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        fields
            .filter(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .collect()
    }

    /// Sends `bytes` to the request's sender, after what was answered already.
    #[track_caller]
    pub fn send_more(&self, bytes: impl AsRef<[u8]>) {
        let connection = self.connection.upgrade().expect("its connection is open");
        (&*connection).write_all(bytes.as_ref()).unwrap();
    }
}

impl Seen {
    /// The rest has come of a request that was answered before.
    fn complete(&mut self, request: &Request, body: Vec<u8>) {
        let is_it = |seen: &&mut Request| Weak::ptr_eq(&seen.connection, &request.connection);
        if let Some(seen) = self.requests.iter_mut().rev().find(is_it) {
            seen.body = body;
        }
    }
}

fn serve(stream: TcpStream, script: &Script, seen: &Mutex<Seen>) {
    let stream = Arc::new(stream);
    let mut input = Vec::new();
    while let Some(request) = read_request(&stream, &mut input, script, seen) {
        let reply = reply_to(&request, script);
        seen.lock().unwrap().requests.push(request.clone());
        if (&*stream).write_all(&reply.bytes).is_err() {
            return;
        }
        match reply.then {
            Then::GoOn => {}
            Then::TakeRest => match take_body(&request, &stream, &mut input, seen) {
                Some(body) => seen.lock().unwrap().complete(&request, body),
                None => return,
            },
            Then::Close => return,
            Then::Reset => return set_socket_linger(&*stream, Some(Duration::ZERO)).unwrap(),
            Then::Hang => {
                while more(&stream, &mut input, seen) {}
                return;
            }
        }
    }
}

fn reply_to(request: &Request, script: &Script) -> Reply {
    let target = request.target();
    if let Some((_, reply)) = script.iter().find(|(path, _)| target.ends_with(**path)) {
        return reply.clone();
    }
    Reply { bytes: own_answer(target).into_bytes(), then: Then::GoOn }
}

/// The answer of an honest app, by which its caller recognises the app.
fn own_answer(target: &str) -> String {
    let body = format!("own {target}");
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// A request whose head a script answers before its body has come is whole at once.
fn read_request(
    stream: &Arc<TcpStream>,
    input: &mut Vec<u8>,
    script: &Script,
    seen: &Mutex<Seen>,
) -> Option<Request> {
    let head_end =
        read_until(stream, input, seen, |bytes| find(bytes, b"\r\n\r\n").map(|at| at + 4))?;
    let head = String::from_utf8_lossy(&input[..head_end]).into_owned();
    input.drain(..head_end);
    let request = Request { head, body: Vec::new(), connection: Arc::downgrade(stream) };
    if script.keys().any(|path| request.target().ends_with(path) && path.contains("early")) {
        return Some(request);
    }
    match take_body(&request, stream, input, seen) {
        Some(body) => Some(Request { body, ..request }),
        None => {
            seen.lock().unwrap().broken_off.push(request.head);
            None
        }
    }
}

/// The body as it was framed; `None` if it does not come to its end.
fn take_body(
    request: &Request,
    stream: &TcpStream,
    input: &mut Vec<u8>,
    seen: &Mutex<Seen>,
) -> Option<Vec<u8>> {
    let whole = |bytes: &[u8]| body_end(request, bytes).filter(|end| *end <= bytes.len());
    let end = read_until(stream, input, seen, whole)?;
    Some(input.drain(..end).collect())
}

/// The end of the body with which `input` begins, if it can be determined.
fn body_end(request: &Request, input: &[u8]) -> Option<usize> {
    if request.values("transfer-encoding").is_empty() {
        let length = request.values("content-length");
        return Some(length.first().map_or(0, |value| value.parse().unwrap()));
    }
    chunked(input).map(|(_, end)| end)
}

/// Reads until `find` has found something in all that came.
fn read_until<T>(
    stream: &TcpStream,
    input: &mut Vec<u8>,
    seen: &Mutex<Seen>,
    find: impl Fn(&[u8]) -> Option<T>,
) -> Option<T> {
    loop {
        if let Some(found) = find(input) {
            return Some(found);
        }
        if !more(stream, input, seen) {
            return None;
        }
    }
}

/// What the honest chunks that `input` begins with carry, and where they end, trailers included.
pub fn chunked(input: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let line_end = at + find(input.get(at..)?, b"\r\n")?;
        let size = std::str::from_utf8(&input[at..line_end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            // The last chunk's line and the trailers end in an empty line.
            return Some((body, line_end + find(&input[line_end..], b"\r\n\r\n")? + 4));
        }
        let start = line_end + 2;
        body.extend_from_slice(input.get(start..start + size)?);
        at = start + size + 2;
    }
}

fn more(mut stream: &TcpStream, input: &mut Vec<u8>, seen: &Mutex<Seen>) -> bool {
    let mut chunk = [0; 16 * 1024];
    match stream.read(&mut chunk) {
        Ok(0) | Err(_) => false,
        Ok(count) => {
            input.extend_from_slice(&chunk[..count]);
            seen.lock().unwrap().bytes.extend_from_slice(&chunk[..count]);
            true
        }
    }
}

pub fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

/// How many whole answers with `content-length` (or without a body) `bytes` begins with.
pub fn answers(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Some(end) = find(bytes, b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let end = end + 4 + length.map_or(0, |length| length.parse::<usize>().unwrap());
        if bytes.len() < end {
            break;
        }
        count += usize::from(!head.starts_with("http/1.1 1"));
        bytes = &bytes[end..];
    }
    count
}
