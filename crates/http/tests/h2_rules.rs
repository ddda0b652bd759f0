//! Rules that h2spec does not reach: the client's side, going away, windows below the default,
//! large heads, frames on closed streams.

#![allow(clippy::unwrap_used, reason = "a test stops where something unexpected comes")]
#[allow(dead_code, reason = "the frames are shared by several tests")]
mod frames;

use std::time::Duration;

use frames::*;
use tollway_http::h2::{
    Config, Connection, ConnectionError, ErrorCode, Event, OpenError, StreamGone, StreamId,
};
use tollway_http::{Fields, Method, RequestHead, ResponseHead};

const ONE: StreamId = StreamId(1);

#[test]
fn malformed_responses_reset_their_stream() {
    let status = |value| frame(HEADERS, END_HEADERS, 1, &block(&[(":status", value)]));
    let lines =
        |lines: &[(&str, &str)], flags| frame(HEADERS, END_HEADERS | flags, 1, &block(lines));
    let data = |bytes: &[u8], flags| frame(DATA, flags, 1, bytes);
    let five = lines(&[(":status", "200"), ("content-length", "5")], 0);
    for (what, input) in [
        ("no status", lines(&[("a", "b")], 0)),
        ("a bad status", status("2000")),
        ("switching protocols", status("101")),
        ("a pseudo-header field of requests", lines(&[(":status", "200"), (":path", "/")], 0)),
        ("an informational head that ends", lines(&[(":status", "103")], END_STREAM)),
        ("DATA before the head", data(b"x", 0)),
        ("DATA after an informational head", [status("103"), data(b"x", 0)].concat()),
        ("less than content-length", [five.clone(), data(b"1234", END_STREAM)].concat()),
        ("more than content-length", [five.clone(), data(b"123456", 0)].concat()),
        ("trailers before content-length", [five, lines(&[("a", "b")], END_STREAM)].concat()),
        ("a second final head", [status("200"), status("200")].concat()),
        ("a body on 204", [status("204"), data(b"x", 0)].concat()),
        ("connection-specific fields", lines(&[(":status", "200"), ("upgrade", "x")], 0)),
        ("CR in a value", lines(&[(":status", "200"), ("a", "b\r\nc: d")], 0)),
    ] {
        let mut client = Client::new(&[Method::Get]);
        client.take(&input).unwrap();
        let reset = Event::Reset { stream: ONE, code: ErrorCode::PROTOCOL_ERROR };
        assert_eq!(client.events.last(), Some(&reset), "{what}");
        assert_eq!(parse(&client.out).last().unwrap().0, RST_STREAM, "{what}");
        assert_eq!(client.connection.active_streams(), 0, "{what}");
    }
}

#[test]
fn responses_to_head_and_304_have_a_length_and_no_body() {
    for (method, status) in [(Method::Head, "200"), (Method::Get, "304")] {
        let mut client = Client::new(&[method]);
        let lines = block(&[(":status", status), ("content-length", "5")]);
        client.take(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &lines)).unwrap();
        let Some(Event::Response { content_length, end, .. }) = client.events.last() else {
            panic!("{:?}", client.events)
        };
        assert_eq!((*content_length, *end), (Some(5), true));
    }
}

#[test]
fn a_server_may_not_push_nor_open_streams() {
    for (what, input) in [
        ("a push", frame(5, END_HEADERS, 1, &[0, 0, 0, 2, 0x82])),
        (
            "HEADERS on an even stream",
            frame(HEADERS, END_HEADERS, 2, &block(&[(":status", "200")])),
        ),
        ("HEADERS on a stream never opened", frame(HEADERS, END_HEADERS, 9, &[0x88])),
        ("push switched on", frame(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 1])),
    ] {
        let error = Client::new(&[Method::Get]).take(&input).unwrap_err();
        assert_eq!(error.code, ErrorCode::PROTOCOL_ERROR, "{what}");
    }
}

#[test]
fn a_goaway_resets_only_the_streams_above_its_last_one() {
    let mut client = Client::new(&[Method::Get, Method::Get, Method::Get]);
    let goaway = [3_u32.to_be_bytes(), 0_u32.to_be_bytes()].concat();
    client.take(&frame(GOAWAY, 0, 0, &goaway)).unwrap();
    assert_eq!(
        client.events,
        [
            Event::Reset { stream: StreamId(5), code: ErrorCode::REFUSED_STREAM },
            Event::GoAway { last: StreamId(3), code: ErrorCode::NO_ERROR },
        ]
    );
    assert_eq!(client.open(), Err(OpenError::GoingAway));
    client.take(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &[0x88])).unwrap();
    assert_eq!(client.connection.active_streams(), 1);
}

#[test]
fn a_window_update_by_zero_is_a_mistake_also_on_a_stream_that_has_ended() {
    let mut server = Server::new(Config::default());
    server.take(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x82, 0x86, 0x84])).unwrap();
    let head = ResponseHead::new(204);
    server.connection.send_response(StreamId(1), &head, None, true, &mut server.out).unwrap();
    assert_eq!(server.connection.active_streams(), 0);
    server.out.clear();
    server.take(&window_update(1, 5)).unwrap();
    assert!(server.out.is_empty());
    server.take(&window_update(1, 0)).unwrap();
    let resets = parse(&server.out);
    assert_eq!(resets.len(), 1);
    assert_eq!((resets[0].0, resets[0].2), (RST_STREAM, 1));
    assert_eq!(resets[0].3, 1_u32.to_be_bytes(), "PROTOCOL_ERROR");
    assert_eq!(server.connection.take_mistakes(), 1);
}

#[test]
fn streams_after_the_final_goaway_are_dropped_and_compression_stays_in_step() {
    let mut server = Server::new(Config::default());
    server.take(&post(1)).unwrap();
    server.connection.goaway(ErrorCode::NO_ERROR, &mut server.out);
    server.take(&post(3)).unwrap();
    server.connection.goaway_final(&mut server.out);
    server.events.clear();
    // The table back to its default size, a line that enters it, and `:method: GET`.
    let lines = [0x3f, 0xe1, 0x1f, 0x40, 1, b'x', 1, b'y', 0x82];
    server.take(&frame(HEADERS, END_HEADERS, 5, &lines)).unwrap();
    server.take(&[frame(DATA, 0, 5, b"dropped"), reset(5), window_update(5, 1)].concat()).unwrap();
    assert!(server.events.is_empty());
    assert_eq!(server.connection.active_streams(), 2);
    let goaways: Vec<u32> = parse(&server.out)
        .iter()
        .filter(|frame| frame.0 == GOAWAY)
        .map(|frame| u32::from_be_bytes(*frame.3.first_chunk().unwrap()))
        .collect();
    assert_eq!(goaways, [0x7fff_ffff, 3]);
    server.take(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &[0xbe])).unwrap();
    let Some(Event::Trailers { fields, .. }) = server.events.last() else { panic!() };
    assert_eq!(fields.value(b"x"), Some(&b"y"[..]));
}

#[test]
fn a_window_below_the_default_holds_from_the_acknowledgement_on() {
    let config = Config { initial_stream_window: 1000, ..Config::default() };
    let mut out = Vec::new();
    let mut connection = Connection::server(config, &mut out);
    let mut take = |input: &[u8], events: &mut Vec<Event>| {
        connection.receive(input, Duration::ZERO, events, &mut out)
    };
    let mut events = Vec::new();
    let hello = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &post(1), &post(3)].concat();
    take(&hello, &mut events).unwrap();
    take(&frame(DATA, 0, 1, &[0; 16_000]), &mut events).unwrap();
    take(&frame(SETTINGS, ACK, 0, &[]), &mut events).unwrap();
    take(&frame(DATA, 0, 3, &[0; 1000]), &mut events).unwrap();
    take(&frame(DATA, 0, 3, &[0; 1]), &mut events).unwrap();
    let reset = Event::Reset { stream: StreamId(3), code: ErrorCode::FLOW_CONTROL_ERROR };
    assert_eq!(events.last(), Some(&reset));
}

#[test]
fn the_connection_window_is_enforced() {
    let config = Config { connection_window: 65_535, ..Config::default() };
    let mut server = Server::new(config);
    server.take(&post(1)).unwrap();
    for _ in 0..4 {
        server.take(&frame(DATA, 0, 1, &[0; 16_000])).unwrap();
    }
    let error = server.take(&frame(DATA, 0, 1, &[0; 16_000])).unwrap_err();
    assert_eq!(error.code, ErrorCode::FLOW_CONTROL_ERROR);
}

#[test]
fn what_the_windows_do_not_take_is_asked_for_again() {
    let mut server = Server::new(Config::default());
    server.take(&post(1)).unwrap();
    let out = &mut server.out;
    server.connection.send_response(ONE, &ResponseHead::new(200), None, false, out).unwrap();
    let body = [7; 100_000];
    assert_eq!(server.connection.send_data(ONE, &body, true, out), 65_535);
    assert_eq!(server.connection.capacity(ONE), 0);
    server.events.clear();
    server.take(&window_update(1, 40_000)).unwrap();
    assert_eq!(server.events, [Event::WindowOpen { stream: Some(ONE) }]);
    assert_eq!(server.connection.capacity(ONE), 0);
    server.take(&window_update(0, 40_000)).unwrap();
    assert_eq!(server.events[1..], [Event::WindowOpen { stream: None }]);
    let out = &mut server.out;
    assert_eq!(server.connection.send_data(ONE, &body[65_535..], true, out), 34_465);
    let frames = parse(out);
    let data: Vec<_> = frames.iter().filter(|frame| frame.0 == DATA).collect();
    assert!(data.iter().all(|frame| frame.3.len() <= 16_384));
    assert_eq!(data.iter().map(|frame| frame.3.len()).sum::<usize>(), 100_000);
    assert_eq!(data.iter().filter(|frame| frame.1 == END_STREAM).count(), 1);
    assert_eq!(data.last().unwrap().1, END_STREAM);
}

#[test]
fn frames_stay_small_for_a_peer_that_takes_large_ones() {
    let mut server = Server::new(Config::default());
    server.take(&frame(SETTINGS, 0, 0, &[0, 5, 0, 0x10, 0, 0])).unwrap();
    server.take(&post(1)).unwrap();
    let out = &mut server.out;
    server.connection.send_response(ONE, &ResponseHead::new(200), None, false, out).unwrap();
    server.connection.send_data(ONE, &[7; 50_000], true, out);
    assert!(parse(out).iter().all(|frame| frame.3.len() <= 16_384));
}

#[test]
fn the_peers_table_size_is_kept_to() {
    let mut server = Server::new(Config::default());
    let mut answer = |settings: &[u8], stream: u32| {
        server.take(&frame(SETTINGS, 0, 0, settings)).unwrap();
        server.take(&post(stream)).unwrap();
        server.out.clear();
        let mut head = ResponseHead::new(200);
        head.fields.push(b"x-tenant", b"always the same");
        let (stream, out) = (StreamId(stream), &mut server.out);
        server.connection.send_response(stream, &head, None, true, out).unwrap();
        parse(out).remove(0).3
    };
    let status = 0x88;
    answer(&[], 1);
    answer(&[], 3);
    assert_eq!(answer(&[], 5), [status, 0xbe]);
    // To 0 and back: both sizes are announced, and the table is empty.
    let block = answer(&[0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0x10, 0], 7);
    assert_eq!(block[..5], [0x20, 0x3f, 0xe1, 0x1f, status]);
    assert_eq!(block[5], 0x40, "the line enters the table again");
    let block = answer(&[0, 1, 0, 0, 0, 0], 9);
    assert_eq!(block[..2], [0x20, status]);
    for stream in [11, 13, 15] {
        assert_eq!(answer(&[], stream)[1], 0x00, "no line enters a table of size 0");
    }
}

#[test]
fn credit_is_announced_once_and_only_what_was_handed_over() {
    let mut server = Server::new(Config { initial_stream_window: 1000, ..Config::default() });
    server.take(&post(1)).unwrap();
    for _ in 0..10 {
        server.take(&frame(DATA, 0, 1, &[0; 500])).unwrap();
        server.out.clear();
        server.connection.release(ONE, 499, &mut server.out);
        assert!(server.out.is_empty());
        server.connection.release(ONE, 400, &mut server.out);
        assert_eq!(server.out, window_update(1, 500));
        server.out.clear();
        server.connection.release(ONE, 1_000_000, &mut server.out);
        assert!(server.out.is_empty());
    }
    server.connection.release_connection(4000, &mut server.out);
    for _ in 0..1000 {
        server.connection.release_connection(2_000_000, &mut server.out);
    }
    assert!(server.out.is_empty(), "5,000 bytes are less than half of the connection's window");
}

#[test]
fn a_large_head_is_cut_into_continuations() {
    let mut client = Client::new(&[]);
    let mut head = get();
    let value = "z!".repeat(20_000);
    head.fields.push(b"x-large", value.as_bytes());
    let out = &mut client.out;
    client.connection.send_request(&head, None, true, out).unwrap();
    let frames = parse(out);
    let shape: Vec<_> = frames.iter().map(|frame| (frame.0, frame.1)).collect();
    assert_eq!(shape, [(HEADERS, END_STREAM), (CONTINUATION, 0), (CONTINUATION, END_HEADERS)]);
    let mut server = Server::new(Config::default());
    server.take(&client.out).unwrap();
    let Some(Event::Request { head: received, .. }) = server.events.last() else { panic!() };
    assert_eq!(received.fields.value(b"x-large"), Some(value.as_bytes()));
}

#[test]
fn late_frames_of_a_stream_we_reset_are_dropped_quietly() {
    let mut client = Client::new(&[Method::Get]);
    client.connection.reset(ONE, ErrorCode::CANCEL, &mut client.out);
    client.out.clear();
    client.take(&frame(HEADERS, END_HEADERS, 1, &[0x88])).unwrap();
    client.take(&frame(DATA, 0, 1, b"late")).unwrap();
    client.take(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[("a", "b")]))).unwrap();
    assert!(client.out.is_empty() && client.events.is_empty());
}

#[test]
fn a_stream_reset_in_the_middle_of_a_frame_gives_its_credit_back() {
    let mut server = Server::new(Config { connection_window: 65_535, ..Config::default() });
    for nth in 0..20 {
        let stream = 2 * nth + 1;
        let padded = [&[100][..], &[1; 10_000], &[0; 100]].concat();
        let bytes = [post(stream), frame(DATA, PADDED, stream, &padded)].concat();
        let (first, rest) = bytes.split_at(bytes.len() - 6000);
        server.take(first).unwrap();
        let Some(Event::Data { credit, .. }) = server.events.pop() else { panic!() };
        server.connection.reset(StreamId(stream), ErrorCode::CANCEL, &mut server.out);
        server.connection.release_connection(credit, &mut server.out);
        server.events.clear();
        server.take(rest).unwrap();
        assert!(server.events.is_empty());
    }
}

#[test]
fn nothing_is_sent_out_of_turn() {
    let mut server = Server::new(Config::default());
    server.take(&post(1)).unwrap();
    let (connection, out) = (&mut server.connection, &mut server.out);
    assert_eq!(connection.send_data(ONE, b"before the head", true, out), 0);
    assert_eq!(connection.capacity(ONE), 0);
    assert_eq!(connection.send_trailers(ONE, &Fields::new(), out), Err(StreamGone));
    let ok = ResponseHead::new(200);
    connection.send_response(ONE, &ResponseHead::new(103), None, false, out).unwrap();
    connection.send_response(ONE, &ok, None, false, out).unwrap();
    assert_eq!(connection.send_response(ONE, &ok, None, false, out), Err(StreamGone));
    assert_eq!(connection.send_data(ONE, b"body", true, out), 4);
    assert_eq!(connection.send_data(ONE, b"more", true, out), 0);
    assert_eq!(connection.send_response(StreamId(9), &ok, None, true, out), Err(StreamGone));
    assert_eq!(connection.send_request(&get(), None, true, out), Err(OpenError::GoingAway));
}

#[test]
fn clients_that_call_off_an_answered_upload_are_not_abusive() {
    let mut server = Server::new(Config::default());
    for nth in 0..20_000 {
        let stream = StreamId(2 * nth + 1);
        server.out.clear();
        server.events.clear();
        server.take(&post(stream.0)).unwrap();
        let (ok, out) = (ResponseHead::new(200), &mut server.out);
        server.connection.send_response(stream, &ok, Some(0), true, out).unwrap();
        server.take(&reset(stream.0)).unwrap();
    }
    assert_eq!(server.connection.active_streams(), 0);
}

#[test]
fn extended_connect_passes_only_where_it_is_offered() {
    let lines = block(&[
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":path", "/chat"),
        (":authority", "a"),
    ]);
    let connect = frame(HEADERS, END_HEADERS, 1, &lines);
    let mut server = Server::new(Config::default());
    server.take(&connect).unwrap();
    assert!(server.events.is_empty());
    let mut server = Server::new(Config { enable_connect_protocol: true, ..Config::default() });
    server.take(&connect).unwrap();
    let Some(Event::Request { head, .. }) = server.events.last() else { panic!() };
    assert_eq!(
        (head.protocol.as_deref(), &head.path[..]),
        (Some(&b"websocket"[..]), &b"/chat"[..])
    );

    let mut hello = Vec::new();
    let config = Config { enable_connect_protocol: true, ..Config::default() };
    let _server = Connection::server(config, &mut hello);
    let mut client = Client::new(&[]);
    client.take(&hello).unwrap();
    assert!(client.connection.peer_takes_connect_protocol());
}

/// A client that has met its server and opened streams 1, 3, 5 … with these methods.
struct Client {
    connection: Connection,
    events: Vec<Event>,
    out: Vec<u8>,
}

impl Client {
    fn new(methods: &[Method]) -> Self {
        let mut out = Vec::new();
        let connection = Connection::client(Config::default(), &mut out);
        let mut client = Self { connection, events: Vec::new(), out };
        client.take(&[frame(SETTINGS, 0, 0, &[]), frame(SETTINGS, ACK, 0, &[])].concat()).unwrap();
        for method in methods {
            let head = RequestHead { method: method.clone(), ..get() };
            client.connection.send_request(&head, None, true, &mut client.out).unwrap();
        }
        client.events.clear();
        client.out.clear();
        client
    }

    fn take(&mut self, input: &[u8]) -> Result<(), ConnectionError> {
        self.connection.receive(input, Duration::ZERO, &mut self.events, &mut self.out)
    }

    fn open(&mut self) -> Result<StreamId, OpenError> {
        self.connection.send_request(&get(), None, true, &mut self.out)
    }
}

fn get() -> RequestHead {
    RequestHead { path: b"/".to_vec(), authority: b"a".to_vec(), ..RequestHead::default() }
}
