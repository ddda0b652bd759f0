//! Peers that mean harm: the connection ends with ENHANCE_YOUR_CALM (or the stream with the right
//! code) after bounded work, and nothing grows.

#![allow(clippy::unwrap_used, reason = "a test stops where something unexpected comes")]
#![allow(dead_code, reason = "the frames are shared by several tests")]

mod frames;

use std::time::Duration;

use frames::*;
use tollway_http::h2::{Config, Connection, ConnectionError, ErrorCode, Event, Limits, StreamId};
use tollway_http::hpack::Encoder;
use tollway_http::{RequestHead, ResponseHead};

#[test]
fn rapid_reset_ends_the_connection() {
    let mut server = Server::new(Config::default());
    let (count, error) = server.take_until_refused(100_000, |nth| {
        let stream = 2 * nth + 1;
        [post(stream), reset(stream)].concat()
    });
    assert_calm(error, "resets");
    assert_eq!(count, Config::default().limits.resets.burst);
    assert_eq!(server.connection.active_streams(), 0);
    assert_goaway(&server, ErrorCode::ENHANCE_YOUR_CALM);
}

#[test]
fn cancelling_some_of_many_finished_requests_is_no_abuse() {
    let mut server = Server::new(Config::default());
    for nth in 0..20_000 {
        let stream = 4 * nth + 1;
        server.out.clear();
        server.events.clear();
        server.take(&[post(stream), reset(stream), post(stream + 2)].concat()).unwrap();
        let ok = ResponseHead::new(200);
        let (out, stream) = (&mut server.out, StreamId(stream + 2));
        server.connection.send_response(stream, &ok, Some(0), true, out).unwrap();
        server.take(&data(stream.0, b"", END_STREAM)).unwrap();
    }
    assert_eq!(server.connection.active_streams(), 0);
}

/// A proxy's connection carries the streams of many callers, and some of them call everything off.
#[test]
fn a_client_knows_how_many_resets_its_server_still_bears() {
    let (mut client, mut server) = (Client::new(), Server::new(Config::default()));
    let call_off = |client: &mut Client, server: &mut Server| {
        client.out.clear();
        let stream = client.request();
        client.connection.reset(StreamId(stream), ErrorCode::CANCEL, &mut client.out);
        server.out.clear();
        server.take(&client.out)
    };
    let burst = Config::default().limits.resets.burst;
    for nth in 0..burst / 2 {
        assert_eq!(client.connection.resets_owed(), nth as usize);
        call_off(&mut client, &mut server).unwrap();
    }
    while client.connection.resets_left() > 0 {
        call_off(&mut client, &mut server).unwrap();
    }
    assert_calm(call_off(&mut client, &mut server).err(), "resets");
}

#[test]
fn answers_make_up_for_streams_that_are_called_off() {
    let mut client = Client::new();
    let ok = block(&[(":status", "200")]);
    for _ in 0..10_000 {
        client.out.clear();
        let (called_off, answered) = (client.request(), client.request());
        client.connection.reset(StreamId(called_off), ErrorCode::CANCEL, &mut client.out);
        client.take(&frame(HEADERS, END_HEADERS | END_STREAM, answered, &ok)).unwrap();
    }
    assert!(client.connection.resets_owed() <= 1);
}

#[test]
fn made_you_reset_ends_the_connection() {
    let tricks: [fn(u32) -> Vec<u8>; 4] = [
        |stream| window_update(stream, 0),
        |stream| window_update(stream, 0x7fff_ffff),
        |stream| [data(stream, b"", END_STREAM), data(stream, b"x", 0)].concat(),
        |stream| frame(2, 0, stream, &[&stream.to_be_bytes()[..], &[0]].concat()),
    ];
    for (which, trick) in tricks.into_iter().enumerate() {
        let mut server = Server::new(Config::default());
        let (count, error) = server.take_until_refused(100_000, |nth| {
            let stream = 2 * nth + 1;
            [post(stream), trick(stream)].concat()
        });
        assert_eq!(error.unwrap().code, ErrorCode::ENHANCE_YOUR_CALM, "trick {which}");
        assert!(count <= 2000, "trick {which} worked {count} times");
        assert_eq!(server.connection.active_streams(), 0);
    }
}

#[test]
fn a_ping_for_every_data_frame_is_no_abuse() {
    let mut server = Server::new(Config::default());
    server.take(&[post(1), window_update(0, 1 << 30), window_update(1, 1 << 30)].concat()).unwrap();
    let (out, ok) = (&mut server.out, ResponseHead::new(200));
    server.connection.send_response(StreamId(1), &ok, None, false, out).unwrap();
    for _ in 0..20_000 {
        server.out.clear();
        assert_eq!(server.connection.send_data(StreamId(1), b"x", false, &mut server.out), 1);
        server.take(&frame(PING, 0, 0, &[0; 8])).unwrap();
    }
    let (_, error) = server.take_until_refused(3000, |_| frame(PING, 0, 0, &[0; 8]));
    assert_calm(error, "control_frames");
}

#[test]
fn an_interim_head_for_each_request_is_no_abuse_and_an_endless_row_of_them_is() {
    let interim = block(&[(":status", "103")]);
    let mut client = Client::new();
    for _ in 0..20_000 {
        let stream = client.request();
        client.take(&frame(HEADERS, END_HEADERS, stream, &interim)).unwrap();
        let ok = block(&[(":status", "200")]);
        client.take(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &ok)).unwrap();
    }
    let stream = client.request();
    let endless =
        (0..10_000).find_map(|_| client.take(&frame(HEADERS, END_HEADERS, stream, &interim)).err());
    assert_calm(endless, "control_frames");
}

#[test]
fn an_endless_header_block_is_cut_by_frames_bytes_and_time() {
    let begin = frame(HEADERS, 0, 1, &[0x82]);
    let mut server = Server::new(Config::default());
    server.take(&begin).unwrap();
    let (_, error) = server.take_until_refused(1000, |_| frame(CONTINUATION, 0, 1, &[]));
    assert_calm(error, "continuation_frames");

    let mut server = Server::new(Config::default());
    server.take(&begin).unwrap();
    let (count, error) =
        server.take_until_refused(1000, |_| frame(CONTINUATION, 0, 1, &[0; 16_384]));
    assert_calm(error, "header_list_bytes");
    assert!(count <= 4);

    let mut server = Server::new(Config::default());
    server.take(&begin).unwrap();
    for second in 1..=15 {
        server.now = Duration::from_secs(second);
        server.take(&frame(CONTINUATION, 0, 1, &[])).unwrap();
        server.connection.tick(server.now, &mut server.out).unwrap();
    }
    let late = server.connection.tick(Duration::from_secs(16), &mut server.out);
    assert_calm(late.err(), "unfinished_timeout");
}

#[test]
fn a_slow_body_is_no_unfinished_frame() {
    let mut server = Server::new(Config::default());
    server.take(&post(1)).unwrap();
    server.take(&frame(DATA, 0, 1, &[0; 100])[..50]).unwrap();
    server.connection.tick(Duration::from_secs(3600), &mut server.out).unwrap();
}

#[test]
fn settings_never_acknowledged_end_the_connection() {
    let mut out = Vec::new();
    let mut connection = Connection::server(Config::default(), &mut out);
    let hello = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    connection.receive(&hello, Duration::ZERO, &mut Vec::new(), &mut out).unwrap();
    connection.tick(Duration::from_secs(30), &mut out).unwrap();
    let late = connection.tick(Duration::from_secs(31), &mut out).unwrap_err();
    assert_eq!(late.code, ErrorCode::SETTINGS_TIMEOUT);
}

#[test]
fn a_bomb_of_references_is_refused_and_costs_its_limit() {
    let mut server = Server::new(Config::default());
    let mut encoder = Encoder::new(4096);
    for nth in 0..10 {
        let stream = 2 * nth + 1;
        let mut bomb = Vec::new();
        for (name, value) in [(":method", "GET"), (":scheme", "http"), (":path", "/")] {
            encoder.field(name.as_bytes(), value.as_bytes(), false, &mut bomb);
        }
        for _ in 0..15_000 {
            encoder.field(b"x-bomb", &[b'b'; 1900], false, &mut bomb);
        }
        assert!(bomb.len() < 16_384 + 3000);
        let (first, rest) = bomb.split_at(bomb.len().min(10_000));
        server.take(&frame(HEADERS, END_STREAM, stream, first)).unwrap();
        server.take(&frame(CONTINUATION, END_HEADERS, stream, rest)).unwrap();
        assert_eq!(server.events.pop(), Some(Event::Refused { stream: StreamId(stream) }));
        let too_large = ResponseHead::new(431);
        let (out, id) = (&mut server.out, StreamId(stream));
        server.connection.send_response(id, &too_large, Some(0), true, out).unwrap();
    }
    assert_eq!(server.connection.active_streams(), 0);
}

#[test]
fn cookie_crumbs_count_as_lines() {
    let mut server = Server::new(Config::default());
    let mut lines = vec![(":method", "GET"), (":scheme", "http"), (":path", "/")];
    lines.extend([("cookie", "a")].repeat(126));
    server.take(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&lines))).unwrap();
    assert_eq!(server.events, [Event::Refused { stream: StreamId(1) }]);
    lines.pop();
    server.take(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &block(&lines))).unwrap();
    let Some(Event::Request { head, .. }) = server.events.last() else { panic!() };
    assert_eq!(head.fields.len(), 1);
}

#[test]
fn heads_held_by_stalled_streams_are_limited_in_sum() {
    let limits = Limits { live_head_bytes: 100_000, ..Limits::default() };
    let mut server = Server::new(Config { limits, ..Config::default() });
    let value = "v".repeat(10_000);
    let lines =
        [(":method", "POST"), (":scheme", "http"), (":path", "/"), ("x-large", value.as_str())];
    for nth in 0..50 {
        server.take(&frame(HEADERS, END_HEADERS, 2 * nth + 1, &block(&lines))).unwrap();
    }
    assert_eq!(server.connection.active_streams(), 9);
    let refused = resets_in(&server.out, ErrorCode::REFUSED_STREAM);
    assert_eq!(refused, 41);
    assert_eq!(server.connection.take_mistakes(), 41);
    server.take(&reset(1)).unwrap();
    server.take(&frame(HEADERS, END_HEADERS, 101, &block(&lines))).unwrap();
    assert_eq!(server.connection.active_streams(), 9);
}

/// A peer that was refused for the heads of others has small requests answered, and large ones again as
/// soon as one of them has gone.
#[test]
fn where_a_head_had_no_room_only_small_ones_have_until_one_has_gone() {
    let limits = Limits { live_head_bytes: 40_000, ..Limits::default() };
    let mut server = Server::new(Config { limits, ..Config::default() });
    let ask = |server: &mut Server, stream, bytes| {
        let value = "v".repeat(bytes);
        let lines =
            [(":method", "POST"), (":scheme", "http"), (":path", "/"), ("x", value.as_str())];
        server.take(&frame(HEADERS, END_HEADERS, stream, &block(&lines))).unwrap();
        server.connection.active_streams()
    };
    assert_eq!(ask(&mut server, 1, 15_000), 1);
    assert_eq!(ask(&mut server, 3, 15_000), 2);
    assert_eq!(ask(&mut server, 5, 15_000), 2, "there is no room");
    assert_eq!(ask(&mut server, 7, 3_000), 3, "it is small");
    assert_eq!(ask(&mut server, 9, 5_000), 3, "there is room, but it is not looked at");
    assert_eq!(resets_in(&server.out, ErrorCode::REFUSED_STREAM), 2);
    server.take(&reset(7)).unwrap();
    assert_eq!(ask(&mut server, 11, 5_000), 3);
}

#[test]
fn a_stalled_refused_request_keeps_no_window_and_no_events() {
    let mut server = Server::new(Config { header_fields: 5, ..Config::default() });
    let lines = [(":method", "POST"), (":scheme", "http"), (":path", "/"), ("a", "1"), ("b", "2")];
    let lines = [&lines[..], &[("c", "3")]].concat();
    server.take(&frame(HEADERS, END_HEADERS, 1, &block(&lines))).unwrap();
    server.events.clear();
    for _ in 0..1000 {
        server.take(&data(1, &[0; 16_000], 0)).unwrap();
    }
    assert!(server.events.is_empty());
    server.take(&data(1, &[], END_STREAM)).unwrap();
}

#[test]
fn empty_data_ends_the_connection() {
    let mut server = Server::new(Config::default());
    server.take(&post(1)).unwrap();
    let (count, error) = server.take_until_refused(10_000_000, |_| data(1, b"", 0));
    assert_calm(error, "empty_data");
    assert_eq!(count, Config::default().limits.empty_data.burst);
}

#[test]
fn one_byte_frames_in_padding_end_the_connection_and_bare_ones_do_not() {
    let mut server = Server::new(Config::default());
    server.take(&post(1)).unwrap();
    let padded = [&[200, b'x'][..], &[0; 200]].concat();
    let (count, error) = server.take_until_refused(100_000, |_| frame(DATA, PADDED, 1, &padded));
    assert_calm(error, "empty_data");
    assert_eq!(count, Config::default().limits.empty_data.burst);

    let mut server = Server::new(Config::default());
    server.take(&post(1)).unwrap();
    let (count, error) = server.take_until_refused(200_000, |_| data(1, b"x", 0));
    assert_eq!((count, error), (200_000, None));
}

#[test]
fn floods_of_frames_that_do_nothing_end_the_connection() {
    let floods: [(&str, Vec<u8>); 5] = [
        ("PING", frame(PING, 0, 0, &[0; 8])),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 1, 0])),
        ("PRIORITY", frame(2, 0, 1, &[0, 0, 0, 3, 0])),
        ("unknown", frame(0xbe, 0, 0, b"anything")),
        ("RST_STREAM", reset(1)),
    ];
    for (name, flood) in floods {
        let mut server = Server::new(Config::default());
        server.take(&[post(1), reset(1)].concat()).unwrap();
        let (count, error) = server.take_until_refused(1_000_000, |_| flood.clone());
        assert_calm(error, "control_frames");
        assert!(count <= Config::default().limits.control_frames.burst, "{name}: {count}");
    }
}

#[test]
fn window_updates_are_paid_with_data() {
    let mut server = Server::new(Config::default());
    server.take(&post(1)).unwrap();
    let (count, error) = server.take_until_refused(1_000_000, |_| window_update(0, 1));
    assert_calm(error, "window_updates");
    assert!(count <= Config::default().limits.window_updates.burst);

    let mut server = Server::new(Config::default());
    server.take(&post(1)).unwrap();
    let ok = ResponseHead::new(200);
    server.connection.send_response(StreamId(1), &ok, None, false, &mut server.out).unwrap();
    for _ in 0..50_000 {
        server.out.clear();
        let sent = server.connection.send_data(StreamId(1), &[0; 100], false, &mut server.out);
        assert_eq!(sent, 100);
        server.take(&[window_update(0, 100), window_update(1, 100)].concat()).unwrap();
    }
}

#[test]
fn replies_that_the_peer_does_not_read_are_limited() {
    let limits = Limits { queued_replies: 50, ..Limits::default() };
    let mut server = Server::new(Config { limits, ..Config::default() });
    let ping = frame(PING, 0, 0, &[0; 8]);
    for _ in 0..50 {
        server.take(&ping).unwrap();
    }
    let error = server.take(&ping).err();
    assert_calm(error, "queued_replies");
    assert!(server.out.len() < 52 * 17 + 200);
}

#[test]
fn table_size_churn_is_bounded() {
    let mut server = Server::new(Config::default());
    let mut settings = Vec::new();
    for nth in 0..2000_u32 {
        settings.extend([&[0, 1][..], &(nth % 2 * 4096).to_be_bytes()].concat());
        settings.extend([&[0, 4][..], &(nth * 1000).to_be_bytes()].concat());
    }
    let (count, error) =
        server.take_until_refused(100_000, |_| frame(SETTINGS, 0, 0, &settings[..16_380]));
    assert_calm(error, "control_frames");
    assert!(count <= 2000);
}

#[test]
fn window_zero_on_every_stream_holds_nothing_here() {
    let mut server = Server::new(Config::default());
    server.take(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).unwrap();
    for nth in 0..1000 {
        let stream = StreamId(2 * nth + 1);
        server.take(&post(stream.0)).unwrap();
        let ok = ResponseHead::new(200);
        server.connection.send_response(stream, &ok, None, false, &mut server.out).unwrap();
        assert_eq!(server.connection.capacity(stream), 0);
        assert_eq!(server.connection.send_data(stream, b"held back", true, &mut server.out), 0);
    }
    server.events.clear();
    server.take(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 9])).unwrap();
    let open = |event: &&Event| matches!(event, Event::WindowOpen { stream: Some(_) });
    assert_eq!(server.events.iter().filter(open).count(), 1000);
    assert_eq!(server.connection.send_data(StreamId(1), b"held back", true, &mut server.out), 9);
}

#[test]
fn streams_over_the_limit_are_refused_and_the_others_live() {
    let mut server = Server::new(Config { max_concurrent_streams: 10, ..Config::default() });
    for nth in 0..30 {
        server.take(&post(2 * nth + 1)).unwrap();
    }
    assert_eq!(server.connection.active_streams(), 10);
    assert_eq!(resets_in(&server.out, ErrorCode::REFUSED_STREAM), 20);
    assert_eq!([(); 2].map(|()| server.connection.take_mistakes()), [20, 0], "told once");
    // What is answered without a mistake, and what is called off, is none.
    server.take(&frame(PING, 0, 0, &[0; 8])).unwrap();
    server.take(&reset(1)).unwrap();
    server.connection.reset(StreamId(3), ErrorCode::CANCEL, &mut server.out);
    assert_eq!(server.connection.take_mistakes(), 0);
}

/// A client that has met its server; its output is not read.
struct Client {
    connection: Connection,
    out: Vec<u8>,
}

impl Client {
    fn new() -> Self {
        let mut out = Vec::new();
        let mut client = Self { connection: Connection::client(Config::default(), &mut out), out };
        client.take(&[frame(SETTINGS, 0, 0, &[]), frame(SETTINGS, ACK, 0, &[])].concat()).unwrap();
        client
    }

    /// Opens a stream.
    fn request(&mut self) -> u32 {
        let head = RequestHead { path: b"/".to_vec(), ..RequestHead::default() };
        self.connection.send_request(&head, None, true, &mut self.out).unwrap().0
    }

    fn take(&mut self, input: &[u8]) -> Result<(), ConnectionError> {
        self.out.clear();
        self.connection.receive(input, Duration::ZERO, &mut Vec::new(), &mut self.out)
    }
}

fn data(stream: u32, bytes: &[u8], flags: u8) -> Vec<u8> {
    frame(DATA, flags, stream, bytes)
}

fn assert_calm(error: Option<ConnectionError>, limit: &str) {
    let error = error.expect("the connection is refused");
    assert_eq!(error.code, ErrorCode::ENHANCE_YOUR_CALM);
    assert!(error.reason.contains(limit), "{error}");
}

fn assert_goaway(server: &Server, code: ErrorCode) {
    let frames = parse(&server.out);
    let (kind, _, _, payload) = frames.last().unwrap();
    assert_eq!((*kind, &payload[4..8]), (GOAWAY, &code.0.to_be_bytes()[..]));
}

fn resets_in(out: &[u8], code: ErrorCode) -> usize {
    let is_it =
        |frame: &&(u8, u8, u32, Vec<u8>)| frame.0 == RST_STREAM && frame.3 == code.0.to_be_bytes();
    parse(out).iter().filter(is_it).count()
}
