//! CPU of the HTTP/2 codec alone, no sockets: a request and its response of 1 KB through a client
//! and a server connection, a large body, and HPACK by itself.
//!
//! `cargo bench -p tollway-http --bench h2_codec` prints nanoseconds (least and median of 15
//! blocks; each block is one timed loop on one connection).

use std::hint::black_box;
use std::time::{Duration, Instant};

use tollway_http::h2::{Config, Connection, Event};
use tollway_http::hpack::{Decoder, Encoder, ListLimits};
use tollway_http::{Method, RequestHead, ResponseHead};

const BLOCKS: usize = 15;

fn main() {
    let request = request();
    report("h2-exchange-1kb-request-1kb-response", 20_000, {
        let mut pair = Pair::new();
        move || pair.exchange(&request)
    });
    report("h2-body-64kb-one-direction", 5_000, {
        let mut pair = Pair::new();
        let body = vec![7; 64 * 1024];
        move || pair.upload(&body)
    });
    report("hpack-request-head-encode", 100_000, {
        let (mut encoder, head, mut block) = (Encoder::new(4096), self::request(), Vec::new());
        move || {
            block.clear();
            encode(&mut encoder, &head, &mut block);
            black_box(&block);
        }
    });
    report("hpack-request-head-decode", 100_000, {
        let (mut encoder, mut decoder, head) =
            (Encoder::new(4096), Decoder::new(), self::request());
        let limits = ListLimits { bytes: 65_536, lines: 128 };
        let mut block = Vec::new();
        for _ in 0..3 {
            block.clear();
            encode(&mut encoder, &head, &mut block);
            decoder.decode(&block, limits, |_| ()).expect("our own block");
        }
        move || {
            let decoded = decoder.decode(&block, limits, |field| {
                black_box(field);
            });
            black_box(decoded).expect("our own block");
        }
    });
}

/// A client and a server that feed each other.
struct Pair {
    client: Connection,
    server: Connection,
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    events: Vec<Event>,
}

impl Pair {
    fn new() -> Self {
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        let client = Connection::client(Config::default(), &mut to_server);
        let server = Connection::server(Config::default(), &mut to_client);
        let mut pair = Self { client, server, to_server, to_client, events: Vec::new() };
        pair.server_turn();
        pair.client_turn();
        pair.server_turn();
        pair
    }

    fn exchange(&mut self, head: &RequestHead) {
        let body = [7; 1024];
        let stream = self
            .client
            .send_request(head, Some(1024), false, &mut self.to_server)
            .expect("streams are closed as fast as they are opened");
        self.client.send_data(stream, &body, true, &mut self.to_server);
        self.server_turn();
        let mut head = ResponseHead::new(200);
        head.fields.push(b"content-type", b"application/json");
        head.fields.push(b"server", b"stock");
        self.server
            .send_response(stream, &head, Some(1024), false, &mut self.to_client)
            .expect("the stream has just been opened");
        self.server.send_data(stream, &body, true, &mut self.to_client);
        self.client_turn();
        assert_eq!(self.client.active_streams() + self.server.active_streams(), 0);
    }

    fn upload(&mut self, body: &[u8]) {
        let head = RequestHead { method: Method::Post, path: b"/".to_vec(), ..Default::default() };
        let stream = self
            .client
            .send_request(&head, None, false, &mut self.to_server)
            .expect("streams are closed as fast as they are opened");
        let sent = self.client.send_data(stream, body, true, &mut self.to_server);
        assert_eq!(sent, body.len());
        self.server_turn();
        self.server
            .send_response(stream, &ResponseHead::new(200), Some(0), true, &mut self.to_client)
            .expect("the stream has just been opened");
        self.client_turn();
    }

    fn server_turn(&mut self) {
        turn(&mut self.server, &mut self.to_server, &mut self.to_client, &mut self.events);
    }

    fn client_turn(&mut self) {
        turn(&mut self.client, &mut self.to_client, &mut self.to_server, &mut self.events);
    }
}

fn turn(
    connection: &mut Connection,
    input: &mut Vec<u8>,
    out: &mut Vec<u8>,
    events: &mut Vec<Event>,
) {
    connection.receive(input, Duration::ZERO, events, out).expect("the peer is ours");
    input.clear();
    for event in events.drain(..) {
        if let Event::Data { stream, credit, .. } = event {
            connection.release(stream, credit, out);
            connection.release_connection(credit, out);
        }
    }
}

fn request() -> RequestHead {
    let mut head = RequestHead {
        method: Method::Post,
        scheme: tollway_http::Scheme::Borrowed(b"http"),
        authority: b"stock.shop.east.mesh".to_vec(),
        path: b"/v1/items/reserve".to_vec(),
        ..RequestHead::default()
    };
    for (name, value) in [
        ("user-agent", "tollway-load/0.1"),
        ("accept", "*/*"),
        ("content-type", "application/json"),
        ("x-forwarded-for", "10.0.0.1"),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ] {
        head.fields.push(name.as_bytes(), value.as_bytes());
    }
    head
}

fn encode(encoder: &mut Encoder, head: &RequestHead, block: &mut Vec<u8>) {
    encoder.begin(block);
    encoder.field(b":method", head.method.as_bytes(), false, block);
    encoder.field(b":scheme", &head.scheme, false, block);
    encoder.field(b":path", &head.path, false, block);
    encoder.field(b":authority", &head.authority, false, block);
    for field in head.fields.iter() {
        encoder.field(field.name, field.value, field.sensitive, block);
    }
}

fn report(name: &str, count: u32, mut run: impl FnMut()) {
    let mut nanos: Vec<u128> = (0..BLOCKS)
        .map(|_| {
            let begun = Instant::now();
            (0..count).for_each(|_| run());
            begun.elapsed().as_nanos() / u128::from(count)
        })
        .collect();
    nanos.sort_unstable();
    println!("{name}: least {} ns, median {} ns", nanos[0], nanos[BLOCKS / 2]);
}
