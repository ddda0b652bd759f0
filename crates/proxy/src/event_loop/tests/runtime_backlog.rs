//! What waits at a runtime that does not get to look at it.

use std::sync::mpsc::{Receiver, channel};

use tollway_http::ResponseHead;
use tollway_http::h2::{self, Event, StreamId};

use super::*;

/// A runtime that reads only when the test has it read.
struct Reader {
    offered: Receiver<ApiStream>,
    stream: Stream,
    codec: h2::Connection,
    out: Vec<u8>,
}

impl Reader {
    fn new(offered: Receiver<ApiStream>) -> Self {
        let ApiStream { stream, .. } = offered.recv().unwrap();
        let stream = Stream::local(stream);
        let mut out = Vec::new();
        let codec = h2::Connection::server(h2::Config::default(), &mut out);
        Self { offered, stream, codec, out }
    }

    /// Looks at what has come until nothing does: the requests that came and how many of them were
    /// called off.
    fn look(&mut self) -> (Vec<StreamId>, usize) {
        let (mut requests, mut called_off) = (Vec::new(), 0);
        let mut input = [0; 1 << 16];
        while self.stream.has_arrived() {
            let count = self.stream.read(&mut input).unwrap();
            assert!(count > 0, "the connection stays");
            let mut events = Vec::new();
            let now = Duration::ZERO;
            self.codec.receive(&input[..count], now, &mut events, &mut self.out).unwrap();
            for event in events {
                match event {
                    Event::Request { stream, .. } => requests.push(stream),
                    Event::Reset { .. } => called_off += 1,
                    _ => {}
                }
            }
        }
        (requests, called_off)
    }

    /// Looks at what has come, which must be so many requests of which so many were called off.
    fn look_for(&mut self, requests: usize, called_off: usize) -> Vec<StreamId> {
        let (all, gone) = self.look();
        assert_eq!((all.len(), gone), (requests, called_off), "requests, and called off of them");
        all
    }

    /// Sends what it has to say, the answers to PING among it.
    fn speak(&mut self) {
        self.stream.write_all(&std::mem::take(&mut self.out)).unwrap();
    }

    fn answer(&mut self, stream: StreamId) {
        let head = ResponseHead { status: 204, ..ResponseHead::default() };
        self.codec.send_response(stream, &head, None, true, &mut self.out).unwrap();
        self.speak();
    }
}

#[test]
fn requests_wait_while_the_runtime_has_not_looked_at_those_that_were_called_off() {
    const MOST: usize = 20;
    const CALLS: u64 = 50;
    let request = b"GET /v1.0/metadata HTTP/1.1\r\nhost: a\r\n\r\n";
    let network = Network::new("west");
    let credentials = network.credentials(&service("web"), "w-0", &[]);
    let limits = Limits { runtime_resets: MOST, ..Limits::default() };
    let sidecar = Running::start_at(
        None,
        (limits, patient()),
        service("web"),
        credentials,
        &[ListenerKind::HttpApi],
        None,
        None,
    );
    let (sender, offered) = channel();
    sidecar.around.set_runtime(move |stream| sender.send(stream).unwrap());
    let call_off = |times: u64| {
        for _ in 0..times {
            let before = sidecar.metrics.requests_cancelled.value();
            connect(sidecar.addresses[0]).write_all(request).unwrap();
            until("it is called off", || sidecar.metrics.requests_cancelled.value() > before);
        }
    };
    let paused = || sidecar.metrics.backpressure_pauses.value();
    call_off(MOST as u64 - 1);
    assert_eq!(paused(), 0);
    call_off(CALLS - MOST as u64 + 1);
    assert_eq!(paused(), 1, "it is given no more requests");
    let mut honest = connect(sidecar.addresses[0]);
    honest.write_all(request).unwrap();
    let mut runtime = Reader::new(offered);
    // No more than may wait there.
    runtime.look_for(MOST, MOST);
    assert_eq!(runtime.look(), (Vec::new(), 0), "not before it has said that it has seen them");
    runtime.speak();
    // The one that is waited for comes.
    let requests = runtime.look_for(1, 0);
    runtime.answer(requests[0]);
    let answer = talk(&mut honest, b"", b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
    assert!(runtime.offered.try_recv().is_err(), "one connection is enough");
    call_off(1);
    // And then it goes on as before.
    runtime.look_for(1, 1);
    assert_eq!(sidecar.metrics.request_failures.value(), 0);
}
