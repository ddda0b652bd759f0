//! An app over HTTP/2 that misbehaves, or ends its connection in the middle: its callers get what
//! was whole, and see of the rest that it is not.

use http_body_util::BodyExt;
use hyper::{Method, Request};
use tollway_testkit::{End, RawClient};

use super::app::{Before, Said, answer, goes_away_at_first, honest};
use crate::listeners::listener::statuses;
use tollway_tests::h2_frames::{
    CANCEL, DATA, END_HEADERS, END_STREAM, HEADERS, NO_ERROR, PADDED, block, frame, goaway,
    reset_with,
};
use tollway_tests::mesh::http::{Client, Version, empty, full, runtime};
use tollway_tests::network::{PATIENCE, until_status};

/// What a caller may make of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expected {
    /// That status, and a body that is whole.
    Whole(u16, &'static str),
    /// 502, or 200 and a body that is recognisably not whole.
    NotWhole,
}

struct Case {
    name: &'static str,
    method: &'static str,
    says: fn(u32) -> Vec<u8>,
    /// Closes behind it.
    closes: bool,
    expected: Expected,
}

fn head(stream: u32, flags: u8, lines: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | flags, stream, &block(lines))
}

fn hello(stream: u32, lines: &[(&str, &str)], flags: u8) -> Vec<u8> {
    let all = [&[(":status", "200")], lines].concat();
    [head(stream, 0, &all), frame(DATA, flags, stream, b"hello")].concat()
}

fn cases() -> Vec<Case> {
    use Expected::{NotWhole, Whole};
    const NO_BODY: Expected = Whole(200, "");
    let case = |name, method, says, expected| Case { name, method, says, closes: false, expected };
    let last = |name, says| Case { name, method: "GET", says, closes: true, expected: NotWhole };
    vec![
        // Broken off, for whatever reason.
        case("no error", "GET", |s| [hello(s, &[], 0), reset_with(s, NO_ERROR)].concat(), NotWhole),
        case("cancel", "GET", |s| [hello(s, &[], 0), reset_with(s, CANCEL)].concat(), NotWhole),
        case("internal error", "GET", |s| [hello(s, &[], 0), reset_with(s, 2)].concat(), NotWhole),
        case(
            "head alone",
            "GET",
            |s| [head(s, 0, &[(":status", "200")]), reset_with(s, NO_ERROR)].concat(),
            NotWhole,
        ),
        case("no head", "GET", |s| reset_with(s, NO_ERROR), NotWhole),
        last("closed", |s| hello(s, &[], 0)),
        last("closed in a frame", |s| hello(s, &[], 0)[..20].to_vec()),
        last("going away", |s| [hello(s, &[], 0), goaway(s, NO_ERROR)].concat()),
        // Lengths that are not those of the body.
        case("shorter", "GET", |s| hello(s, &[("content-length", "10")], END_STREAM), NotWhole),
        case("longer", "GET", |s| hello(s, &[("content-length", "4")], END_STREAM), NotWhole),
        case(
            "none",
            "GET",
            |s| head(s, END_STREAM, &[(":status", "200"), ("content-length", "5")]),
            NotWhole,
        ),
        case(
            "two lengths",
            "GET",
            |s| hello(s, &[("content-length", "5"), ("content-length", "6")], END_STREAM),
            NotWhole,
        ),
        // A body before the head, a head in the wrong place, lines that are none.
        case("body first", "GET", |s| frame(DATA, END_STREAM, s, b"hello"), NotWhole),
        case("no status", "GET", |s| head(s, END_STREAM, &[("x-a", "b")]), NotWhole),
        case(
            "two statuses",
            "GET",
            |s| head(s, END_STREAM, &[(":status", "200"), (":status", "204")]),
            NotWhole,
        ),
        case(
            "switching",
            "GET",
            |s| [head(s, 0, &[(":status", "101")]), answer(s)].concat(),
            NotWhole,
        ),
        case("interim at the end", "GET", |s| head(s, END_STREAM, &[(":status", "103")]), NotWhole),
        case("capitals", "GET", |s| hello(s, &[("X-A", "b")], END_STREAM), NotWhole),
        case(
            "two lines in one",
            "GET",
            |s| hello(s, &[("x-a", "b\r\nx-c: d")], END_STREAM),
            NotWhole,
        ),
        case(
            "framing",
            "GET",
            |s| hello(s, &[("transfer-encoding", "chunked")], END_STREAM),
            NotWhole,
        ),
        case("connection", "GET", |s| hello(s, &[("connection", "close")], END_STREAM), NotWhole),
        case(
            "trailers that go on",
            "GET",
            |s| [hello(s, &[], 0), head(s, 0, &[("x-a", "b")])].concat(),
            NotWhole,
        ),
        case(
            "status in trailers",
            "GET",
            |s| [hello(s, &[], 0), head(s, END_STREAM, &[(":status", "200")])].concat(),
            NotWhole,
        ),
        // Bodies where there is none.
        case("body of HEAD", "HEAD", |s| hello(s, &[], END_STREAM), NO_BODY),
        case(
            "body of 204",
            "GET",
            |s| [head(s, 0, &[(":status", "204")]), frame(DATA, END_STREAM, s, b"hello")].concat(),
            Whole(204, ""),
        ),
        case(
            "HEAD",
            "HEAD",
            |s| head(s, END_STREAM, &[(":status", "200"), ("content-length", "5")]),
            NO_BODY,
        ),
        case(
            "HEAD that ends late",
            "HEAD",
            |s| {
                [
                    head(s, 0, &[(":status", "200"), ("content-length", "5")]),
                    frame(DATA, END_STREAM, s, &[]),
                ]
                .concat()
            },
            NO_BODY,
        ),
        case(
            "204 with a length",
            "GET",
            |s| {
                [
                    head(s, 0, &[(":status", "204"), ("content-length", "5")]),
                    frame(DATA, END_STREAM, s, &[]),
                ]
                .concat()
            },
            Whole(204, ""),
        ),
        case(
            "304",
            "GET",
            |s| head(s, END_STREAM, &[(":status", "304"), ("content-length", "5")]),
            Whole(304, ""),
        ),
        // Odd, and whole.
        case("empty", "GET", |s| head(s, END_STREAM, &[(":status", "200")]), NO_BODY),
        case(
            "padded",
            "GET",
            |s| {
                [
                    head(s, 0, &[(":status", "200")]),
                    frame(DATA, PADDED | END_STREAM, s, b"\x02hello\0\0"),
                ]
                .concat()
            },
            Whole(200, "hello"),
        ),
        case(
            "end apart",
            "GET",
            |s| [hello(s, &[], 0), frame(DATA, END_STREAM, s, &[])].concat(),
            Whole(200, "hello"),
        ),
        case(
            "interim before",
            "GET",
            |s| {
                [head(s, 0, &[(":status", "103"), ("link", "</a>")]), hello(s, &[], END_STREAM)]
                    .concat()
            },
            Whole(200, "hello"),
        ),
        case(
            "trailers",
            "GET",
            |s| [hello(s, &[], 0), head(s, END_STREAM, &[("x-a", "b")])].concat(),
            Whole(200, "hello"),
        ),
        case(
            "twice",
            "GET",
            |s| [hello(s, &[], END_STREAM), reset_with(s, NO_ERROR)].concat(),
            Whole(200, "hello"),
        ),
    ]
}

#[test]
fn answers_are_whole_or_recognisably_not() {
    let before = Before::open("h2c", &[]);
    for case in cases() {
        let (says, closes) = (case.says, case.closes);
        before.app.now_answers(move |stream| match closes {
            true => Said::Last(says(stream)),
            false => Said::Frames(says(stream)),
        });
        check_http1(&before, &case);
        runtime().block_on(check_http2(&before, &case));
        before.app.set_behaviour(|_, frame| Said::Frames(honest(frame)));
        until_status(before.http1(), &Before::get("/behind"), 200);
    }
}

fn check_http1(before: &Before, case: &Case) {
    let request = Before::get("/").replace("GET", case.method);
    let request = request.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    let answer = RawClient::exchange(before.http1(), request, PATIENCE).unwrap();
    let (name, text) = (case.name, answer.text());
    let finals: Vec<u16> = statuses(&answer).into_iter().filter(|status| *status >= 200).collect();
    assert_ne!(answer.end, End::TimedOut, "{name}: {text}");
    let (_, last) = text.rsplit_once("HTTP/1.1 ").unwrap();
    let (head, body) = last.split_once("\r\n\r\n").unwrap();
    match case.expected {
        Expected::Whole(status, body) => {
            assert_eq!(finals, [status], "{name}: {text}");
            assert!(text.contains(body), "{name}: {text}");
            let is_ended = !head.contains("chunked") || text.contains("\r\n0\r\n");
            assert!(is_ended, "{name}: {text}");
            assert!(status != 204 || !head.contains("content-length"), "{name}: {text}");
        }
        Expected::NotWhole if finals == [502] => {
            assert!(text.contains("x-tollway-error: ERR_"), "{name}: {text}");
        }
        Expected::NotWhole => {
            assert_eq!(finals, [200], "{name}: {text}");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let is_cut = match length {
                Some(length) => body.len() < length.parse().unwrap(),
                None => head.contains("chunked") && !body.contains("0\r\n"),
            };
            assert!(is_cut, "{name}: taken for whole: {text}");
        }
    }
}

async fn check_http2(before: &Before, case: &Case) {
    let mut client = Client::connect(Version::Http2, before.http2()).await;
    let method = Method::from_bytes(case.method.as_bytes()).unwrap();
    let uri = format!("http://{}/", Before::HOST);
    let request = Request::builder().method(method).uri(uri).body(empty()).unwrap();
    let answer = tokio::time::timeout(PATIENCE, client.try_send(request)).await.expect("an answer");
    let name = case.name;
    let collected = match answer {
        Ok(answer) => {
            let status = answer.status().as_u16();
            let body = tokio::time::timeout(PATIENCE, answer.into_body().collect()).await;
            Ok((status, body.expect("an end")))
        }
        Err(error) => Err(error),
    };
    match (case.expected, collected) {
        (Expected::Whole(status, body), Ok((got, Ok(whole)))) => {
            assert_eq!((got, &whole.to_bytes()[..]), (status, body.as_bytes()), "{name}");
        }
        (Expected::NotWhole, Ok((502, Ok(_))) | Ok((_, Err(_))) | Err(_)) => {}
        (expected, got) => panic!("{name}: {got:?} for {expected:?}"),
    }
}

fn request(
    method: &str,
    path: &str,
    body: &'static str,
) -> Request<tollway_tests::mesh::http::Body> {
    let uri = format!("http://{}{path}", Before::HOST);
    Request::builder().method(method).uri(uri).body(full(body)).unwrap()
}

/// The streams above the one in GOAWAY were not processed: they are sent again on another
/// connection, with any method. Those below are answered on theirs.
#[test]
fn what_a_goaway_leaves_out_is_asked_for_again() {
    const STREAMS: usize = 4;
    let before = Before::open("h2c", &[]);
    for method in ["GET", "POST"] {
        before.app.set_behaviour(goes_away_at_first(STREAMS));
        runtime().block_on(async {
            let mut client = Client::connect(Version::Http2, before.http2()).await;
            let mut calls = Vec::new();
            for nth in 0..STREAMS {
                let Client::Http2(sender) = &mut client else { unreachable!() };
                let mut sender = sender.clone();
                sender.ready().await.unwrap();
                let request = request(method, &format!("/{nth}"), "body");
                calls.push(tokio::spawn(async move { sender.send_request(request).await }));
            }
            for call in calls {
                let answer = tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap().unwrap();
                assert_eq!(answer.status(), 200, "{method}");
                assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
            }
        });
        // Each was answered once; those above the first were sent twice.
        let asked = before.app.heard().into_iter().filter(|(_, frame)| frame.kind == HEADERS);
        assert_eq!(asked.count(), STREAMS + STREAMS - 1, "{method}");
    }
}

/// A stream that GOAWAY includes and that is not answered may have been processed: it is sent again
/// only if it is idempotent, and otherwise its caller gets an error.
#[test]
fn what_a_goaway_takes_in_is_not_asked_for_again() {
    let before = Before::open("h2c", &[]);
    before.app.now_answers(|stream| Said::Last(goaway(stream, NO_ERROR)));
    runtime().block_on(async {
        let mut client = Client::connect(Version::Http2, before.http2()).await;
        let answer = client.exchange(request("POST", "/", "body")).await;
        assert_eq!(answer.status, 502, "{}", answer.text());
        assert!(answer.text().contains("ERR_CLOSED_EARLY"), "{}", answer.text());
    });
    let asked = before.app.heard().into_iter().filter(|(_, frame)| frame.kind == HEADERS);
    assert_eq!(asked.count(), 1);
}

/// A caller that gives up in the middle of its body: the app gets a reset with a code that is no
/// end of a body.
#[test]
fn an_app_over_http2_sees_that_a_caller_gave_up() {
    let before = Before::open("h2c", &[]);
    for fields in ["content-length: 20\r\n", "transfer-encoding: chunked\r\n"] {
        before.app.set_behaviour(|_, frame| Said::Frames(honest(frame)));
        let mut client = RawClient::connect(before.http1()).unwrap();
        let head = format!("POST /cut HTTP/1.1\r\nhost: {}\r\n{fields}\r\n", Before::HOST);
        client.send(head + "5\r\nhello\r\n").unwrap();
        before.app.until_heard("the beginning", |frame| frame.kind == DATA);
        drop(client);
        let reset = before.app.until_heard("the reset", |frame| frame.code().is_some());
        assert!(![Some(NO_ERROR), Some(CANCEL)].contains(&reset.code()), "{reset:?}");
        let whole = before.app.heard().into_iter().any(|(_, frame)| frame.ends_stream());
        assert!(!whole, "{fields}: taken for whole");
    }
}

/// An answer before the end of the request: the rest is called off, the connection stays.
#[test]
fn an_app_over_http2_may_answer_early() {
    let before = Before::open("h2c", &[]);
    before.app.set_behaviour(|_, frame| match frame.kind {
        HEADERS => Said::Frames(answer(frame.stream)),
        _ => Said::Frames(Vec::new()),
    });
    for _ in 0..10 {
        let mut client = RawClient::connect(before.http1()).unwrap();
        let head = format!("POST / HTTP/1.1\r\nhost: {}\r\n", Before::HOST);
        client.send(head + "content-length: 1000000\r\n\r\nhello").unwrap();
        let answer = client.read_to_end(PATIENCE).unwrap();
        assert_eq!(statuses(&answer), [200], "{}", answer.text());
        assert!(answer.text().ends_with("\r\n\r\nok"), "{}", answer.text());
        assert_ne!(answer.end, End::TimedOut);
    }
    let connections: Vec<usize> = before.app.heard().into_iter().map(|(nth, _)| nth).collect();
    assert!(connections.windows(2).all(|pair| pair[0] == pair[1]), "{connections:?}");
}
