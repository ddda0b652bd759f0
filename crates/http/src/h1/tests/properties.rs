//! Properties: pieces against the whole, writing against parsing, and a foreign parser
//! (`httparse`) against ours. Inputs are requests and responses put together from parts that
//! matter and then damaged.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::super::{
    BodyDecoder, BodyLength, HeadScanner, Limits, Parsed, Refusal, Request, RequestOptions,
    Response, ResponseContext, ResponseOptions, Version, check_request, parse_request,
    parse_response, strip_hop_by_hop, syntax, write_chunk, write_last_chunk, write_request,
    write_response,
};
use super::read_body;
use crate::{Fields, Method, RequestHead, ResponseHead, Scheme};

/// Small enough for generated input to reach them.
const LIMITS: Limits = Limits {
    head_bytes: 200,
    fields: 6,
    target_bytes: 60,
    chunk_line_bytes: 20,
    chunk_extension_total_bytes: 24,
    trailer_bytes: 40,
    trailer_fields: 3,
};

/// A message as read from a connection.
#[derive(Clone, PartialEq, Debug)]
struct Message<T> {
    head: T,
    data: Vec<u8>,
    trailers: Option<Fields>,
}

/// What a connection's input came to: the messages, the one that had begun, why it stopped.
#[derive(Clone, PartialEq, Debug)]
struct Transcript<T> {
    messages: Vec<Message<T>>,
    unfinished: Option<Message<T>>,
    refusal: Option<Refusal>,
    /// Bytes that no message has taken.
    left: Vec<u8>,
}

/// Reads a connection whose input comes in `pieces`.
fn read<T: Clone>(
    pieces: &[&[u8]],
    parse: impl Fn(&[u8], &mut HeadScanner) -> Result<Parsed<T>, Refusal>,
    body_of: impl Fn(&T) -> BodyLength,
    decoder: fn(BodyLength, &Limits) -> BodyDecoder,
) -> Transcript<T> {
    let mut transcript =
        Transcript { messages: Vec::new(), unfinished: None, refusal: None, left: Vec::new() };
    let mut scanner = HeadScanner::new();
    let mut current: Option<(Message<T>, BodyDecoder)> = None;
    'pieces: for piece in pieces {
        transcript.left.extend_from_slice(piece);
        loop {
            let Some((message, decoder)) = &mut current else {
                match parse(&transcript.left, &mut scanner) {
                    Ok(Parsed::Partial) => break,
                    Ok(Parsed::Complete { message: head, consumed }) => {
                        transcript.left.drain(..consumed);
                        let decoder = decoder(body_of(&head), &LIMITS);
                        let message = Message { head, data: Vec::new(), trailers: None };
                        current = Some((message, decoder));
                        continue;
                    }
                    Err(refusal) => {
                        transcript.refusal = Some(refusal);
                        break 'pieces;
                    }
                }
            };
            let before = transcript.left.len();
            let (data, left, outcome) = read_body(decoder, &transcript.left);
            let left = left.len();
            message.data.extend(data);
            transcript.left.drain(..before - left);
            if let Err(refusal) = outcome {
                transcript.refusal = Some(refusal);
                break 'pieces;
            }
            if !decoder.is_finished() {
                break;
            }
            message.trailers = decoder.take_trailers();
            transcript.messages.extend(current.take().map(|(message, _)| message));
        }
    }
    transcript.unfinished = current.map(|(message, _)| message);
    if transcript.refusal.is_some() {
        // How much of the input had come when the mistake was seen depends on the pieces.
        transcript.left.clear();
    }
    transcript
}

fn read_requests(pieces: &[&[u8]]) -> Transcript<Request> {
    read_requests_within(&LIMITS, pieces)
}

fn read_requests_within(limits: &Limits, pieces: &[&[u8]]) -> Transcript<Request> {
    read(
        pieces,
        |input, scanner| parse_request(input, limits, scanner),
        |request: &Request| request.body,
        BodyDecoder::new,
    )
}

fn read_responses(pieces: &[&[u8]], context: ResponseContext) -> Transcript<Response> {
    read(
        pieces,
        |input, scanner| parse_response(input, context, &LIMITS, scanner),
        |response: &Response| response.body,
        BodyDecoder::of_response,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn requests_in_pieces_are_read_like_requests_as_a_whole(
        input in damaged(requests()),
        cuts in vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let whole = read_requests(&[&input]);
        prop_assert_eq!(&read_requests(&cut(&input, &cuts)), &whole);
        let bytes: Vec<_> = input.chunks(1).collect();
        prop_assert_eq!(&read_requests(&bytes), &whole);
    }

    #[test]
    fn responses_in_pieces_are_read_like_responses_as_a_whole(
        input in damaged(responses()),
        context in contexts(),
        cuts in vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let whole = read_responses(&[&input], context);
        prop_assert_eq!(&read_responses(&cut(&input, &cuts), context), &whole);
        let bytes: Vec<_> = input.chunks(1).collect();
        prop_assert_eq!(&read_responses(&bytes, context), &whole);
    }

    #[test]
    fn any_bytes_are_read_without_panic(input in vec(any::<u8>(), 0..300)) {
        read_requests(&[&input]);
        for length in [BodyLength::Chunked, BodyLength::Fixed(7), BodyLength::UntilClose] {
            let _ = read_body(&mut BodyDecoder::new(length, &LIMITS), &input);
        }
        read_responses(&[&[b"HTTP/1.1 200 \r\n", &input[..]].concat()], ResponseContext::default());
        let _ = syntax::is_authority(&input);
    }

    /// No smuggling: whatever is accepted is, once forwarded, one message with the same meaning.
    #[test]
    fn a_forwarded_request_is_the_request_that_was_read(input in damaged(requests())) {
        for message in read_requests(&[&input]).messages {
            let mut forwarded = message.head.head.clone();
            strip_hop_by_hop(&mut forwarded.fields);
            let mut out = Vec::new();
            let options = RequestOptions::default();
            let body = write_request(&mut out, &forwarded, message.head.body, &options);
            prop_assert_eq!(body, message.head.body);
            let head_end = out.len();
            write_body(&mut out, body, &message.data, message.trailers.as_ref());

            // `te: trailers` goes on with a line of `connection` besides.
            let limits = Limits { fields: LIMITS.fields + 1, ..LIMITS };
            let again = read_requests_within(&limits, &[&out]);
            prop_assert_eq!(&again.refusal, &None, "{}", out.escape_ascii());
            prop_assert_eq!(again.messages.len(), 1);
            prop_assert!(again.left.is_empty());
            let received = &again.messages[0];
            let mut head = received.head.head.clone();
            strip_hop_by_hop(&mut head.fields);
            forwarded.scheme = Scheme::default();
            prop_assert_eq!(head, forwarded);
            prop_assert_eq!(received.head.body, message.head.body);
            prop_assert_eq!(&received.data, &message.data);
            prop_assert_eq!(&received.trailers, &message.trailers);
            check_with_httparse(&out, &received.head, head_end)?;
        }
    }

    #[test]
    fn a_forwarded_response_is_the_response_that_was_read(
        input in damaged(responses()),
        context in contexts(),
    ) {
        for message in read_responses(&[&input], context).messages {
            let mut forwarded = message.head.head.clone();
            strip_hop_by_hop(&mut forwarded.fields);
            let declared_length = message.head.declared_length;
            let options = ResponseOptions { context, declared_length, ..Default::default() };
            let mut out = Vec::new();
            let body = write_response(&mut out, &forwarded, message.head.body, &options);
            prop_assert_eq!(body, message.head.body);
            write_body(&mut out, body, &message.data, message.trailers.as_ref());

            let again = read_responses(&[&out], context);
            prop_assert_eq!(&again.refusal, &None, "{}", out.escape_ascii());
            prop_assert_eq!(again.messages.len(), 1);
            prop_assert!(again.left.is_empty());
            let received = &again.messages[0];
            prop_assert_eq!(&received.head.head, &forwarded);
            prop_assert_eq!(received.head.body, message.head.body);
            prop_assert_eq!(received.head.declared_length, declared_length);
            prop_assert_eq!(received.head.upgrade, message.head.upgrade);
            prop_assert_eq!(&received.data, &message.data);
            prop_assert_eq!(&received.trailers, &message.trailers);
        }
    }

    #[test]
    fn a_written_request_is_parsed_as_it_was(
        head in request_heads(),
        data in vec(vec(any::<u8>(), 0..40), 0..4),
        trailers in fields(),
        fixed in any::<bool>(),
    ) {
        let all = data.concat();
        let length = if fixed { BodyLength::Fixed(all.len() as u64) } else { BodyLength::Chunked };
        let mut out = Vec::new();
        write_request(&mut out, &head, length, &RequestOptions::default());
        let head_end = out.len();
        if fixed {
            out.extend_from_slice(&all);
        } else {
            data.iter().for_each(|piece| write_chunk(&mut out, piece));
            write_last_chunk(&mut out, Some(&trailers));
        }
        let parsed = parse_request(&out, &Limits::default(), &mut HeadScanner::new());
        let Ok(Parsed::Complete { message, consumed }) = parsed else {
            return Err(TestCaseError::fail(format!("{parsed:?} for {}", out.escape_ascii())));
        };
        prop_assert_eq!(consumed, head_end);
        prop_assert_eq!(&*message.head, &head);
        prop_assert_eq!(message.body, length);
        check_with_httparse(&out, &message, head_end)?;
        let mut decoder = BodyDecoder::new(length, &Limits::default());
        let (received, left, outcome) = read_body(&mut decoder, &out[consumed..]);
        prop_assert_eq!(outcome, Ok(()));
        prop_assert!(decoder.is_finished() && left.is_empty());
        prop_assert_eq!(received, all);
        let expected = (!fixed && !trailers.is_empty()).then_some(trailers);
        prop_assert_eq!(decoder.take_trailers(), expected);
    }

    /// Heads as HTTP/2 or an API may bring them.
    #[test]
    fn a_foreign_head_that_passes_the_check_is_parsed_as_it_was(head in foreign_heads()) {
        if check_request(&head).is_ok() {
            let mut out = Vec::new();
            write_request(&mut out, &head, BodyLength::Fixed(3), &RequestOptions::default());
            out.extend_from_slice(b"abc");
            let transcript = read_requests(&[&out]);
            prop_assert_eq!(transcript.messages.len(), 1, "{}", out.escape_ascii());
            let message = &transcript.messages[0];
            prop_assert_eq!(&*message.head.head, &head);
        }
    }

    #[test]
    fn a_written_response_is_parsed_as_it_was(status in 200u16..=999, fields in fields()) {
        let head = ResponseHead { status, fields };
        let mut out = Vec::new();
        let body = write_response(&mut out, &head, BodyLength::Chunked, &ResponseOptions::default());
        let context = ResponseContext::default();
        let parsed = parse_response(&out, context, &Limits::default(), &mut HeadScanner::new());
        let Ok(Parsed::Complete { message, consumed }) = parsed else {
            return Err(TestCaseError::fail(format!("{parsed:?} for {}", out.escape_ascii())));
        };
        prop_assert_eq!((consumed, &message.head, message.body), (out.len(), &head, body));
        let mut space = [httparse::EMPTY_HEADER; 64];
        let mut foreign = httparse::Response::new(&mut space);
        prop_assert_eq!(foreign.parse(&out), Ok(httparse::Status::Complete(out.len())));
        prop_assert_eq!(foreign.code, Some(status));
    }

    #[test]
    fn heads_we_accept_mean_the_same_to_httparse(input in damaged(requests())) {
        let parsed = parse_request(&input, &LIMITS, &mut HeadScanner::new());
        if let Ok(Parsed::Complete { message, consumed }) = parsed {
            check_with_httparse(&input, &message, consumed)?;
        }
    }

    #[test]
    fn response_heads_we_accept_mean_the_same_to_httparse(
        input in damaged(responses()),
        context in contexts(),
    ) {
        let parsed = parse_response(&input, context, &LIMITS, &mut HeadScanner::new());
        if let Ok(Parsed::Complete { message, consumed }) = parsed {
            let mut space = [httparse::EMPTY_HEADER; 64];
            let mut foreign = httparse::Response::new(&mut space);
            if !matches!(&input[..8], b"HTTP/1.1" | b"HTTP/1.0") {
                return Ok(());
            }
            let complete = forgiving().parse_response(&mut foreign, &input);
            prop_assert_eq!(complete, Ok(httparse::Status::Complete(consumed)));
            prop_assert_eq!(foreign.code, Some(message.head.status));
            prop_assert_eq!(foreign.version, Some(u8::from(message.version == Version::Http11)));
            let theirs = foreign_fields(foreign.headers, &["content-length", "transfer-encoding"]);
            prop_assert_eq!(theirs, own_fields(&message.head.fields));
        }
    }

    #[test]
    fn chunk_sizes_we_accept_are_those_that_httparse_reads(
        line in vec(select(&b"0123456789abcdefABCDEFgx;= \t\r\n+-_\0\""[..]), 0..19),
    ) {
        let input = [&line[..], b"\r\n"].concat();
        let mut decoder = BodyDecoder::new(BodyLength::Chunked, &Limits::default());
        let Ok(step) = decoder.decode(&input) else { return Ok(()) };
        // Behind the size line either the chunk or, after the last one, the trailers begin.
        let Ok(httparse::Status::Complete((end, size))) = httparse::parse_chunk_size(&input) else {
            return Err(TestCaseError::fail(format!("accepted {}", input.escape_ascii())));
        };
        prop_assert_eq!(size == 0, decoder.trailers_begun());
        if size > 0 {
            let data_seen = input.len() - end;
            prop_assert_eq!(step.data.len() as u64, size.min(data_seen as u64));
            prop_assert_eq!(decoder.chunk_left(), size - step.data.len() as u64);
        }
    }
}

/// The generators reach what the properties are about: without this they could pass on nothing.
#[test]
fn generated_input_is_accepted_and_refused_in_good_measure() {
    let mut runner = TestRunner::deterministic();
    let (mut finished, mut refused, mut bodies, mut trailers) = (0, 0, 0, 0);
    for _ in 0..2000 {
        let input = damaged(requests()).new_tree(&mut runner).unwrap().current();
        let transcript = read_requests(&[&input]);
        finished += usize::from(!transcript.messages.is_empty());
        refused += usize::from(transcript.refusal.is_some());
        bodies += usize::from(transcript.messages.iter().any(|m| !m.data.is_empty()));
        trailers += usize::from(transcript.messages.iter().any(|m| m.trailers.is_some()));
    }
    let counts =
        format!("{finished} finished, {refused} refused, {bodies} bodies, {trailers} trailers");
    assert!(finished > 400 && refused > 400 && bodies > 100 && trailers > 10, "{counts}");
}

#[test]
fn foreign_heads_pass_and_fail_in_good_measure() {
    let mut runner = TestRunner::deterministic();
    let mut head = || foreign_heads().new_tree(&mut runner).unwrap().current();
    let passed = (0..1000).filter(|_| check_request(&head()).is_ok()).count();
    assert!((100..900).contains(&passed), "{passed} of 1000 passed");
}

fn write_body(out: &mut Vec<u8>, body: BodyLength, data: &[u8], trailers: Option<&Fields>) {
    match body {
        BodyLength::None => assert!(data.is_empty()),
        BodyLength::Fixed(_) | BodyLength::UntilClose => out.extend_from_slice(data),
        BodyLength::Chunked => {
            write_chunk(out, data);
            write_last_chunk(out, trailers);
        }
    }
}

fn check_with_httparse(input: &[u8], ours: &Request, consumed: usize) -> Result<(), TestCaseError> {
    let mut space = [httparse::EMPTY_HEADER; 64];
    let mut foreign = httparse::Request::new(&mut space);
    let complete = foreign.parse(input);
    prop_assert_eq!(complete, Ok(httparse::Status::Complete(consumed)), "{}", input.escape_ascii());
    prop_assert_eq!(foreign.method.map(str::as_bytes), Some(ours.head.method.as_bytes()));
    prop_assert_eq!(foreign.version, Some(u8::from(ours.version == Version::Http11)));
    let mut target = Vec::new();
    syntax::push_escaped(&mut target, foreign.path.unwrap_or_default().as_bytes());
    prop_assert!(
        target.ends_with(&ours.head.path)
            || ours.head.path == b"/"
            || ours.head.path == b"*"
            || ours.head.path.starts_with(b"/?")
    );
    let owned = ["host", "content-length", "transfer-encoding"];
    let theirs = foreign_fields(foreign.headers, &owned);
    prop_assert_eq!(theirs, own_fields(&ours.head.fields));
    Ok(())
}

/// Takes of a response what we take.
fn forgiving() -> httparse::ParserConfig {
    let mut config = httparse::ParserConfig::default();
    config
        .allow_obsolete_multiline_headers_in_responses(true)
        .allow_multiple_spaces_in_response_status_delimiters(true);
    config
}

/// Of a folded value, the one line that it means.
fn unfolded(value: &[u8]) -> Vec<u8> {
    let line: Vec<u8> =
        value.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }).collect();
    syntax::trim(&line).to_vec()
}

fn own_fields(fields: &Fields) -> Vec<(Vec<u8>, Vec<u8>)> {
    fields.iter().map(|field| (field.name.to_vec(), field.value.to_vec())).collect()
}

fn foreign_fields(headers: &[httparse::Header<'_>], owned: &[&str]) -> Vec<(Vec<u8>, Vec<u8>)> {
    headers
        .iter()
        .map(|header| (header.name.to_ascii_lowercase(), unfolded(header.value)))
        .filter(|(name, _)| !owned.contains(&name.as_str()))
        .map(|(name, value)| (name.into_bytes(), value))
        .collect()
}

fn cut<'a>(input: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut at: Vec<_> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
    at.sort_unstable();
    let mut pieces = Vec::new();
    let mut start = 0;
    for end in at.into_iter().chain([input.len()]) {
        pieces.push(&input[start..end]);
        start = end;
    }
    pieces
}

fn contexts() -> impl Strategy<Value = ResponseContext> {
    select(vec![Method::Get, Method::Get, Method::Head, Method::Connect])
        .prop_map(|method| ResponseContext::of(&method))
}

/// One to three requests, most of them good.
fn requests() -> impl Strategy<Value = Vec<u8>> {
    let line = select(vec![
        "GET / HTTP/1.1\r\nHost: a\r\n",
        "POST /a?b=%00 HTTP/1.1\r\nhost:A.mesh:80\r\n",
        "POST http://a:80/b HTTP/1.1\r\nHost: a\r\n",
        "GET http://a?b HTTP/1.1\r\nHost: a\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n",
        "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n",
        "PUT /x HTTP/1.0\r\n",
        "\r\nFOO /x HTTP/1.1\r\nHost:\r\n",
        "HEAD / HTTP/1.1\r\n",
        "GET /\u{e9}\\b?\u{20ac} HTTP/1.1\r\nHost: a\r\n",
        "GET http://a/b HTTP/1.1\r\nHost: c\r\n",
    ]);
    vec((line, field_lines(), framing()), 1..4).prop_map(|messages| {
        let text = |(line, fields, framing)| format!("{line}{fields}{framing}");
        messages.into_iter().map(text).collect::<String>().into_bytes()
    })
}

fn responses() -> impl Strategy<Value = Vec<u8>> {
    let line = select(vec![
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 404 \r\n",
        "HTTP/1.1 204 x\r\n",
        "HTTP/1.1 304 x\r\n",
        "HTTP/1.1 100 Continue\r\n",
        "HTTP/1.0 200 OK\r\n",
        "HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: y\r\n",
        "HTTP/1.1  200 OK\nX: a\n b\n",
        "HTTP/1.1 200 OK\r\nX:\r\n\tb\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n",
    ]);
    vec((line, field_lines(), framing()), 1..4).prop_map(|messages| {
        let text = |(line, fields, framing)| format!("{line}{fields}{framing}");
        messages.into_iter().map(text).collect::<String>().into_bytes()
    })
}

fn field_lines() -> impl Strategy<Value = String> {
    let lines = vec![
        "X: y\r\n",
        "x-Empty:\r\n",
        "Cookie: \t a b \r\n",
        "Connection: x, TE\r\n",
        "TE: trailers\r\n",
        "Connection: close\r\n",
        "Upgrade: z\r\nConnection: upgrade\r\n",
        "Expect: 100-continue\r\n",
        "Host: a\r\n",
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "X : y\r\n",
        " z\r\n",
    ];
    let good = lines[..8].to_vec();
    prop_oneof![
        9 => subsequence(good, 0..4),
        1 => subsequence(lines, 0..4),
    ]
    .prop_map(|lines| lines.concat())
}

/// The framing fields, the end of the head, and a body.
fn framing() -> impl Strategy<Value = &'static str> {
    select(vec![
        "\r\n",
        "\r\n",
        "Content-Length: 5\r\n\r\nhello",
        "Content-Length: 0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n1;a=b\r\nx\r\n02 ;c\r\nyz\r\n0\r\n\r\n",
        "transfer-encoding:Chunked\r\n\r\n0\r\nA: b\r\nHost: c\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0;z\r\nGrpc-Status: 0\r\n\r\n",
        "Transfer-Encoding: gzip, chunked\r\n\r\n",
        "Content-Length: 5, 5\r\n\r\nhello",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n5 \r\nhello\n0\t\n\n",
        "Transfer-Encoding: chunked\n\n5\nhello\r\n0\r\nX: y\r\n z\r\n\n",
    ])
}

/// Up to two bytes changed, added or taken away, half of the time none.
fn damaged(input: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => select(&b"\r\n\r\n \t:;,0x\0\x7f\xff/#\\%"[..]),
        1 => any::<u8>(),
    ];
    let damage = (any::<prop::sample::Index>(), 0..3u8, byte);
    (input, prop_oneof![Just(Vec::new()), vec(damage, 1..3)]).prop_map(|(mut input, damages)| {
        for (at, kind, byte) in damages {
            if input.is_empty() {
                break;
            }
            let at = at.index(input.len());
            match kind {
                0 => input[at] = byte,
                1 => input.insert(at, byte),
                _ => {
                    input.remove(at);
                }
            }
        }
        input
    })
}

fn request_heads() -> impl Strategy<Value = RequestHead> {
    let path = "/[!-\"$-\\[\\]-~]{0,20}";
    let authority = "[a-zA-Z0-9_~.-]{1,20}(:[1-9][0-9]{0,3})?";
    ("[!#$%&'*+.^_`|~0-9A-Za-z-]{1,20}", path, authority, fields())
        .prop_filter("CONNECT has no path", |(method, ..)| method != "CONNECT")
        .prop_map(|(method, path, authority, fields)| RequestHead {
            method: Method::from_token(method.as_bytes()),
            authority: authority.into_bytes(),
            path: path.into_bytes(),
            fields,
            ..RequestHead::default()
        })
}

/// Heads made of good words, most of them damaged.
fn foreign_heads() -> impl Strategy<Value = RequestHead> {
    let method = damaged(select(vec!["GET", "OPTIONS", "M-SEARCH"]).prop_map(to_bytes));
    let path = damaged(select(vec!["/", "/a?b", "*", "/a b"]).prop_map(to_bytes));
    let authority = damaged(select(vec!["a", "a:80", "[::1]"]).prop_map(to_bytes));
    let name = damaged(select(vec!["xa", "xb-c"]).prop_map(to_bytes));
    let value = damaged(select(vec!["abc", "a b", "y\tz"]).prop_map(to_bytes));
    (method, path, authority, vec((name, value), 0..2)).prop_map(
        |(method, path, authority, lines)| RequestHead {
            method: Method::from_token(&method),
            authority,
            path,
            fields: lines.iter().map(|(name, value)| (&name[..], &value[..])).collect(),
            ..RequestHead::default()
        },
    )
}

fn to_bytes(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

/// Fields that the codec has no part in.
fn fields() -> impl Strategy<Value = Fields> {
    let name = "x[!#$%&'*+.^_`|~0-9a-z-]{0,12}";
    let value = vec(prop_oneof![Just(b'\t'), b' '..=b'~', 0x80..=0xffu8], 0..30)
        .prop_map(|value| syntax::trim(&value).to_vec());
    vec((name, value), 0..8).prop_map(|lines| {
        lines
            .iter()
            .filter(|(name, _)| !syntax::is_forbidden_trailer(name.as_bytes()))
            .map(|(name, value)| (name.as_bytes(), &value[..]))
            .collect()
    })
}
