//! Heads of HTTP/1.1 messages.

use tollway_http::h1::{
    BodyLength, HeadScanner, Limits, Parsed, Refusal, Request, RequestOptions, Response,
    ResponseContext, ResponseOptions, TargetForm, Version, parse_request, parse_response,
    strip_hop_by_hop, write_request, write_response,
};
use tollway_http::{Fields, Method};

use crate::pieces::split;

/// Fields that a parser takes out of a request's head, and, without the last, out of a response's.
const TAKEN_OUT: [&str; 3] = ["content-length", "transfer-encoding", "host"];
/// More than the parser lets through.
const HTTPARSE_FIELDS: usize = 512;

pub(crate) fn request(data: &[u8]) {
    let Some((size, input)) = split(data) else { return };
    let limits = small();
    let whole = parse_request(input, &limits, &mut HeadScanner::new());
    let in_pieces = by_pieces(input, size, |seen, scanner| parse_request(seen, &limits, scanner));
    assert_same(&whole, &in_pieces);
    let Ok(Parsed::Complete { message, consumed }) = whole else { return };
    assert!(consumed <= input.len() && consumed <= limits.head_bytes + 2);
    assert!(message.head.fields.len() <= limits.fields);
    compare_request(&input[..consumed], &message);
    write_and_read_request(message);
}

pub(crate) fn response(data: &[u8]) {
    let Some((size, input)) = split(data) else { return };
    let Some((&context, input)) = input.split_first() else { return };
    let context = ResponseContext {
        request_was_head: context & 1 != 0,
        request_was_connect: context & 2 != 0,
    };
    let limits = small();
    let whole = parse_response(input, context, &limits, &mut HeadScanner::new());
    let in_pieces =
        by_pieces(input, size, |seen, scanner| parse_response(seen, context, &limits, scanner));
    assert_same(&whole, &in_pieces);
    let Ok(Parsed::Complete { message, consumed }) = whole else { return };
    assert!(consumed <= input.len() && consumed <= limits.head_bytes + 2);
    compare_response(&input[..consumed], &message);
    write_and_read_response(message, context);
}

/// Limits that a fuzzer reaches.
fn small() -> Limits {
    Limits { head_bytes: 1024, fields: 16, target_bytes: 256, ..Limits::default() }
}

/// What a connection that reads `size` bytes at a time comes to.
fn by_pieces<T>(
    input: &[u8],
    size: usize,
    parse: impl Fn(&[u8], &mut HeadScanner) -> Result<Parsed<T>, Refusal>,
) -> Result<Parsed<T>, Refusal> {
    let mut scanner = HeadScanner::new();
    let mut seen = 0;
    loop {
        seen = (seen + size).min(input.len());
        match parse(&input[..seen], &mut scanner) {
            Ok(Parsed::Partial) if seen < input.len() => {}
            outcome => return outcome,
        }
    }
}

fn assert_same<T: PartialEq + std::fmt::Debug>(
    whole: &Result<Parsed<T>, Refusal>,
    in_pieces: &Result<Parsed<T>, Refusal>,
) {
    assert_eq!(whole, in_pieces, "the outcome depends on how the input was cut");
}

/// Other parsers must read what we accept in the same way: httparse stands for all of them.
fn compare_request(head: &[u8], ours: &Request) {
    let mut fields = [httparse::EMPTY_HEADER; HTTPARSE_FIELDS];
    let mut theirs = httparse::Request::new(&mut fields);
    let consumed = match theirs.parse(head) {
        Ok(httparse::Status::Complete(consumed)) => consumed,
        other => panic!("httparse does not read what was accepted: {other:?}"),
    };
    assert_eq!(consumed, head.len(), "the head ends elsewhere");
    assert_eq!(theirs.method.map(str::as_bytes), Some(ours.head.method.as_bytes()));
    let minor = u8::from(ours.version == Version::Http11);
    assert_eq!(theirs.version, Some(minor));
    compare_fields(theirs.headers, &ours.head.fields, &TAKEN_OUT);
}

fn compare_response(head: &[u8], ours: &Response) {
    let mut fields = [httparse::EMPTY_HEADER; HTTPARSE_FIELDS];
    let mut theirs = httparse::Response::new(&mut fields);
    if !matches!(&head[..8], b"HTTP/1.1" | b"HTTP/1.0") {
        return; // a later version, which httparse does not read
    }
    let mut config = httparse::ParserConfig::default();
    config
        .allow_obsolete_multiline_headers_in_responses(true)
        .allow_multiple_spaces_in_response_status_delimiters(true);
    let consumed = match config.parse_response(&mut theirs, head) {
        Ok(httparse::Status::Complete(consumed)) => consumed,
        other => panic!("httparse does not read what was accepted: {other:?}"),
    };
    assert_eq!(consumed, head.len(), "the head ends elsewhere");
    assert_eq!(theirs.code, Some(ours.head.status));
    compare_fields(theirs.headers, &ours.head.fields, &TAKEN_OUT[..2]);
}

/// All fields but those taken out, in order.
fn compare_fields(theirs: &[httparse::Header<'_>], ours: &Fields, taken_out: &[&str]) {
    let is_taken_out = |name: &str| taken_out.iter().any(|of| of.eq_ignore_ascii_case(name));
    let theirs: Vec<_> = theirs
        .iter()
        .filter(|field| !is_taken_out(field.name))
        .map(|field| (field.name.to_ascii_lowercase().into_bytes(), unfolded(field.value)))
        .collect();
    let ours: Vec<_> =
        ours.iter().map(|field| (field.name.to_vec(), field.value.to_vec())).collect();
    assert_eq!(theirs, ours, "other fields");
}

/// Of a folded value, the one line that it means.
fn unfolded(value: &[u8]) -> Vec<u8> {
    let line = value
        .iter()
        .map(|byte| if byte.is_ascii_whitespace() && *byte != b'\t' { b' ' } else { *byte });
    line.collect::<Vec<u8>>().trim_ascii().to_vec()
}

/// What is forwarded is framed strictly: no response goes on in a form that only we read.
fn assert_strict(out: &[u8]) {
    let lines: Vec<_> = out.split(|byte| *byte == b'\n').collect();
    let (last, lines) = lines.split_last().expect("a split has a part");
    assert!(last.is_empty() && lines.iter().all(|line| line.ends_with(b"\r")), "a line ends in LF");
    let count = |name: &[u8]| {
        lines
            .iter()
            .filter(|line| line.starts_with(name) && line.get(name.len()) == Some(&b':'))
            .count()
    };
    let (lengths, codings) = (count(b"content-length"), count(b"transfer-encoding"));
    assert!(lengths + codings <= 1, "{lengths} lengths and {codings} codings");
    assert!(lines.iter().all(|line| !matches!(line, [b' ' | b'\t', ..])), "a line is folded");
}

/// A head that is forwarded is read as the same head, with one answer to where its body ends.
fn write_and_read_request(mut message: Request) {
    strip_hop_by_hop(&mut message.head.fields);
    // The form for proxies carries the scheme; the other one needs it to be what the port says.
    let head = &message.head;
    let is_absolute = head.method != Method::Connect
        && !head.scheme.is_empty()
        && !head.authority.is_empty()
        && head.path.first() == Some(&b'/');
    let target_form = if is_absolute { TargetForm::Absolute } else { TargetForm::Origin };
    let mut out = Vec::new();
    let options = RequestOptions { target_form, ..RequestOptions::default() };
    let body = write_request(&mut out, &message.head, message.body, &options);
    assert_strict(&out);
    let limits = Limits { head_bytes: 16 * 1024, target_bytes: 2048, ..Limits::default() };
    let again = parse_request(&out, &limits, &mut HeadScanner::new());
    let Ok(Parsed::Complete { message: again, consumed }) = again else {
        panic!("not read again: {again:?}\n{}", out.escape_ascii());
    };
    assert_eq!(consumed, out.len());
    assert_eq!((again.body, again.keep_alive), (body, true), "{}", out.escape_ascii());
    let (head, mut read) = (message.head, again.head);
    strip_hop_by_hop(&mut read.fields);
    assert_eq!(read.method, head.method);
    assert_eq!(read.path, head.path, "{}", out.escape_ascii());
    assert_eq!(read.authority, head.authority, "{}", out.escape_ascii());
    assert_eq!(list(&read.fields), list(&head.fields), "{}", out.escape_ascii());
}

fn write_and_read_response(mut message: Response, context: ResponseContext) {
    strip_hop_by_hop(&mut message.head.fields);
    let mut out = Vec::new();
    let options = ResponseOptions {
        context,
        declared_length: message.declared_length,
        ..ResponseOptions::default()
    };
    let body = write_response(&mut out, &message.head, message.body, &options);
    assert_strict(&out);
    let limits = Limits { head_bytes: 16 * 1024, ..Limits::default() };
    let again = parse_response(&out, context, &limits, &mut HeadScanner::new());
    let Ok(Parsed::Complete { message: again, consumed }) = again else {
        panic!("not read again: {again:?}\n{}", out.escape_ascii());
    };
    assert_eq!(consumed, out.len());
    assert_eq!(again.body, body, "{}", out.escape_ascii());
    assert_eq!(again.keep_alive, body != BodyLength::UntilClose, "{}", out.escape_ascii());
    assert_eq!(again.declared_length, message.declared_length, "{}", out.escape_ascii());
    let (head, mut read) = (message.head, again.head);
    strip_hop_by_hop(&mut read.fields);
    assert_eq!(read.status, head.status);
    assert_eq!(list(&read.fields), list(&head.fields), "{}", out.escape_ascii());
}

/// The lines of a forwarded head, in order, without the one about its connection.
fn list(fields: &Fields) -> Vec<(&[u8], &[u8])> {
    fields.iter().filter(|f| f.name != b"connection").map(|f| (f.name, f.value)).collect()
}
