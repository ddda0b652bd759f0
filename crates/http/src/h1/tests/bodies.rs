//! Bodies: items 6 (chunks) and 14 (trailers), and where a message ends.

use super::super::{BodyDecoder, BodyLength, Limits, Refusal};
use super::{body, body_of, body_within};

fn check(length: BodyLength, input: &str, expected: &str) {
    assert_eq!(body(length, input.as_bytes()), expected, "for {input:?}");
}

fn check_chunked(input: &str, expected: &str) {
    check(BodyLength::Chunked, input, expected);
}

#[test]
fn fixed_bodies_end_at_their_length() {
    check(BodyLength::Fixed(5), "helloGET /", "hello end + GET /");
    check(BodyLength::Fixed(5), "hell", "hell more");
    check(BodyLength::Fixed(0), "x", " end + x");
    check(BodyLength::None, "x", " end + x");
    check(BodyLength::UntilClose, "anything", "anything more");
}

#[test]
fn chunked_bodies_end_behind_the_empty_line() {
    check_chunked("5\r\nhello\r\n0\r\n\r\nGET", "hello end + GET");
    check_chunked("5\r\nhello\r\n6\r\n world\r\n00\r\n\r\n", "hello world end");
    check_chunked("A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", "01234567890123456789 end");
    check_chunked("0000000000000005\r\nhello\r\n0\r\n\r\n", "hello end");
    check_chunked("0\r\n\r\n", " end");
    check_chunked("5\r\nhel", "hel more");
    check_chunked("5\r\nhello\r\n0\r\n", "hello more");
}

#[test]
fn chunk_sizes_are_plain_hexadecimal() {
    for size in ["", " 5", "-5", "+5", "0x5", "x5", "5x", "5 5", "5_0", "g", "5 ", "5\t", "\"5\""] {
        check_chunked(&format!("{size}\r\nhello\r\n0\r\n\r\n"), " 400 ChunkSize");
    }
}

#[test]
fn chunks_of_a_response_may_have_space_behind_their_size_and_end_in_lf() {
    let check = |input: &str, expected: &str| {
        let mut decoder = BodyDecoder::of_response(BodyLength::Chunked, &Limits::default());
        assert_eq!(body_of(&mut decoder, input.as_bytes()), expected, "for {input:?}");
    };
    for chunks in [
        "5   \r\nhello\r\n0 \r\n\r\n",
        "5\t\r\nhello\r\n0\t \r\n\r\n",
        "5 ;a \r\nhello\r\n0\r\n\r\n",
        "5\nhello\n0\n\n",
        "5 \nhello\r\n0;a\n\r\n",
        "5\r\nhello\n0\r\n\n",
    ] {
        check(&format!("{chunks}GET"), "hello end + GET");
    }
    check("0\nX: a\n b\nHost: c\n d\nY:\n e\n\n", " end | x: a b | y: e");
    for (chunks, expected) in [
        (" 5\r\nhello", " 400 ChunkSize"),
        ("\nhello", " 400 ChunkSize"),
        ("5 5\r\nhello", " 400 ChunkSize"),
        ("0x5\r\nhello", " 400 ChunkSize"),
        ("5\r\r\nhello", " 400 ChunkSize"),
        ("5\rhello", " 400 ChunkSize"),
        ("5;\0\r\nhello", " 400 ChunkExtension"),
        ("5\r\nhello!\n", "hello 400 ChunkEnd"),
        ("5\r\nhello\r0", "hello 400 ChunkEnd"),
        ("0\r\n x\r\n\r\n", " 400 FoldedLine { line: 1 }"),
        ("0\r\nX: a\r\n \0\r\n\r\n", " 400 FieldValue { line: 2 }"),
        ("0\r\nX: a\rb\n\n", " 400 FieldValue { line: 1 }"),
    ] {
        check(chunks, expected);
    }
    let long = format!("5{}", " ".repeat(1 << 20));
    check(&long, " 400 ChunkLineTooLong { limit: 256 }");
}

#[test]
fn chunk_sizes_do_not_overflow() {
    for size in [
        "8000000000000000",
        "ffffffffffffffff",
        "FFFFFFFFFFFFFFFFF",
        "10000000000000005",
        "00000000000000005",
        "100000000000000000000000000000000005",
    ] {
        check_chunked(&format!("{size}\r\nhello\r\n0\r\n\r\n"), " 400 ChunkTooLarge");
    }
    check_chunked("7fffffffffffffff\r\nhello", "hello more");
}

#[test]
fn chunk_lines_and_data_end_in_cr_lf_and_nothing_else() {
    check_chunked("5\nhello\r\n0\r\n\r\n", " 400 ChunkSize");
    check_chunked("5\rhello\r\n0\r\n\r\n", " 400 ChunkSize");
    check_chunked("5\r\r\nhello\r\n0\r\n\r\n", " 400 ChunkSize");
    check_chunked("\r\n5\r\nhello\r\n0\r\n\r\n", " 400 ChunkSize");
    check_chunked("5\r\nhello0\r\n\r\n", "hello 400 ChunkEnd");
    check_chunked("5\r\nhello\n0\r\n\r\n", "hello 400 ChunkEnd");
    check_chunked("5\r\nhello\r0\r\n\r\n", "hello 400 ChunkEnd");
    check_chunked("5\r\nhello!\r\n0\r\n\r\n", "hello 400 ChunkEnd");
    check_chunked("5\r\nhello\r\n0\r\n\n", "hello 400 BareLineFeed { line: 1 }");
    check_chunked("0\r\nX: y\n\r\n", " 400 BareLineFeed { line: 1 }");
}

#[test]
fn chunk_extensions_are_dropped() {
    check_chunked("5;a=b\r\nhello\r\n0;c\r\n\r\n", "hello end");
    check_chunked("5 \t; a=\"b;\t\\\"c\"\r\nhello\r\n0\r\n\r\n", "hello end");
    check_chunked("5;a\nb\r\nhello\r\n0\r\n\r\n", " 400 ChunkExtension");
    check_chunked("5;\0\r\nhello\r\n0\r\n\r\n", " 400 ChunkExtension");
    check_chunked("5;a\rb\r\nhello\r\n0\r\n\r\n", " 400 ChunkSize");
}

#[test]
fn chunk_extensions_are_bounded_for_a_line_and_for_a_message() {
    let line = format!("5;{}", "a".repeat(1 << 20));
    check_chunked(&line, " 400 ChunkLineTooLong { limit: 256 }");
    check_chunked(&format!("5;{}\r\nhello", "a".repeat(254)), "hello more");
    let chunk = format!("1;{}\r\nx\r\n", "a".repeat(127));
    check_chunked(&chunk.repeat(128), &format!("{} more", "x".repeat(128)));
    let refused = format!("{} 400 ChunkExtensionsTooLong {{ limit: 16384 }}", "x".repeat(128));
    check_chunked(&chunk.repeat(129), &refused);
}

#[test]
fn trailers_come_with_the_end() {
    check_chunked(
        "1\r\nx\r\n0\r\nGrpc-Status: 0\r\nX-Sum:\t1 \r\n\r\nGET",
        "x end | grpc-status: 0 | x-sum: 1 + GET",
    );
}

#[test]
fn trailers_that_frame_route_or_authenticate_are_dropped() {
    check_chunked(
        "0\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nHost: b\r\nAuthorization: c\r\n\
         X-Forwarded-For: d\r\nConnection: close\r\nCookie: e\r\nTE: f\r\nExpect: 100-continue\r\n\
         Content-Type: g\r\nTrailer: h\r\nGrpc-Status: 0\r\n\r\n",
        " end | grpc-status: 0",
    );
    check_chunked("0\r\nHost: b\r\n\r\n", " end");
}

#[test]
fn malformed_trailers_are_refused_like_fields() {
    for (lines, expected) in [
        ("X : y", " 400 SpaceBeforeColon { line: 1 }"),
        ("X: y\r\n z", " 400 FoldedLine { line: 2 }"),
        (": y", " 400 FieldName { line: 1 }"),
        ("GET / HTTP/1.1", " 400 FieldName { line: 1 }"),
        (":path: /", " 400 FieldName { line: 1 }"),
        ("X: a\0", " 400 FieldValue { line: 1 }"),
        ("X: a\rb", " 400 FieldValue { line: 1 }"),
    ] {
        check_chunked(&format!("0\r\n{lines}\r\n\r\n"), expected);
    }
}

#[test]
fn trailers_are_bounded_by_bytes_and_lines() {
    let check = |input: &str, limits: Limits, expected: &str| {
        assert_eq!(body_within(BodyLength::Chunked, input.as_bytes(), &limits), expected);
    };
    let exact = Limits { trailer_bytes: 14, trailer_fields: 2, ..Limits::default() };
    let input = "0\r\na: b\r\nc: d\r\n\r\n";
    check(input, exact, " end | a: b | c: d");
    let bytes = Limits { trailer_bytes: 13, ..exact };
    check(input, bytes, " 431 TrailersTooLong { limit: 13 }");
    let fields = Limits { trailer_fields: 1, ..exact };
    check(input, fields, " 431 TooManyTrailers { limit: 1 }");

    let endless = format!("0\r\nX: {}", "y".repeat(1 << 20));
    check_chunked(&endless, " 431 TrailersTooLong { limit: 16384 }");
    let many = format!("0\r\n{}", "Host: dropped\r\n".repeat(65));
    check_chunked(&many, " 431 TooManyTrailers { limit: 64 }");
}

#[test]
fn a_step_gives_one_piece_of_data_and_its_place() {
    let mut decoder = BodyDecoder::new(BodyLength::Chunked, &Limits::default());
    let input = b"5;x\r\nhello\r\n3\r\nabc\r\n0\r\n\r\nrest";
    let first = decoder.decode(input).unwrap();
    assert_eq!((first.consumed, first.data), (10, 5..10));
    let second = decoder.decode(&input[10..]).unwrap();
    assert_eq!((second.consumed, second.data), (8, 5..8));
    let end = decoder.decode(&input[18..]).unwrap();
    assert_eq!((end.consumed, end.data.len()), (7, 0));
    assert!(decoder.is_finished());
    assert_eq!(decoder.decode(b"rest").unwrap().consumed, 0);
}

#[test]
fn closing_ends_only_what_ends_so() {
    let close_after = |length: BodyLength, input: &[u8]| {
        let mut decoder = BodyDecoder::new(length, &Limits::default());
        let _ = super::read_body(&mut decoder, input);
        let closed = decoder.close();
        (closed, decoder.is_finished())
    };
    assert_eq!(close_after(BodyLength::UntilClose, b"abc"), (Ok(()), true));
    assert_eq!(close_after(BodyLength::None, b""), (Ok(()), true));
    assert_eq!(close_after(BodyLength::Fixed(3), b"abc"), (Ok(()), true));
    let truncated = (Err(Refusal::Truncated), false);
    assert_eq!(close_after(BodyLength::Fixed(3), b"ab"), truncated);
    let chunked = b"5\r\nhello\r\n0\r\nX: y\r\n\r\n";
    for end in 0..chunked.len() {
        assert_eq!(close_after(BodyLength::Chunked, &chunked[..end]), truncated, "{end}");
    }
    assert_eq!(close_after(BodyLength::Chunked, chunked), (Ok(()), true));
}
