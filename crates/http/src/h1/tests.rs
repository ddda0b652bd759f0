//! Tests of the codec as a whole: tables of messages and what becomes of them, then properties.
//!
//! The numbers in the names of the groups are the items of the bad-input list that the mesh has to
//! pass.

mod bodies;
mod hop_by_hop;
mod properties;
mod requests;
mod responses;
mod writing;

use super::{
    BodyDecoder, BodyLength, HeadScanner, Limits, Parsed, Refusal, Request, Response,
    ResponseContext, Version, parse_request, parse_response,
};
use crate::Fields;

/// Parses one request head and shows it as text: `method authority path version body flags`, then
/// the fields.
fn request(input: &[u8]) -> String {
    request_within(input, &Limits::default())
}

fn request_within(input: &[u8], limits: &Limits) -> String {
    match parse_request(input, limits, &mut HeadScanner::new()) {
        Ok(Parsed::Complete { message, consumed }) => {
            show_request(&message) + &show_rest(&input[consumed..])
        }
        Ok(Parsed::Partial) => "partial".into(),
        Err(refusal) => show_refusal(refusal),
    }
}

fn show_request(request: &Request) -> String {
    let Request { head, version, body, .. } = request;
    let mut text = String::new();
    if !head.scheme.is_empty() {
        text += &format!("{} ", head.scheme.escape_ascii());
    }
    text += &format!(
        "{} <{}> <{}> {} {}",
        head.method.as_bytes().escape_ascii(),
        head.authority.escape_ascii(),
        head.path.escape_ascii(),
        show_version(*version),
        show_body(*body)
    );
    for (flag, name) in [
        (request.keep_alive, "keep"),
        (request.expect_continue, "continue"),
        (request.upgrade, "upgrade"),
    ] {
        if flag {
            text += &format!(" {name}");
        }
    }
    text + &show_fields(&head.fields)
}

fn response(input: &[u8], context: ResponseContext) -> String {
    match parse_response(input, context, &Limits::default(), &mut HeadScanner::new()) {
        Ok(Parsed::Complete { message, consumed }) => {
            show_response(&message) + &show_rest(&input[consumed..])
        }
        Ok(Parsed::Partial) => "partial".into(),
        Err(refusal) => show_refusal(refusal),
    }
}

fn show_response(response: &Response) -> String {
    let mut text = format!(
        "{} {} {}",
        response.head.status,
        show_version(response.version),
        show_body(response.body)
    );
    if let Some(length) = response.declared_length {
        text += &format!(" declared({length})");
    }
    for (flag, name) in [(response.keep_alive, "keep"), (response.upgrade, "upgrade")] {
        if flag {
            text += &format!(" {name}");
        }
    }
    text + &show_fields(&response.head.fields)
}

/// Reads a body to its end or its mistake: `data`, `trailers`, what is left.
fn body(length: BodyLength, input: &[u8]) -> String {
    body_within(length, input, &Limits::default())
}

fn body_within(length: BodyLength, input: &[u8], limits: &Limits) -> String {
    body_of(&mut BodyDecoder::new(length, limits), input)
}

fn body_of(decoder: &mut BodyDecoder, input: &[u8]) -> String {
    let (data, left, outcome) = read_body(decoder, input);
    let data = data.escape_ascii();
    if let Err(refusal) = outcome {
        return format!("{data} {}", show_refusal(refusal));
    }
    let state = if decoder.is_finished() { "end" } else { "more" };
    let trailers = decoder.take_trailers().map(|fields| show_fields(&fields)).unwrap_or_default();
    format!("{data} {state}{trailers}{}", show_rest(left))
}

fn read_body<'a>(
    decoder: &mut BodyDecoder,
    mut input: &'a [u8],
) -> (Vec<u8>, &'a [u8], Result<(), Refusal>) {
    let mut data = Vec::new();
    while !decoder.is_finished() {
        match decoder.decode(input) {
            Ok(step) if step.consumed == 0 => break,
            Ok(step) => {
                data.extend_from_slice(&input[step.data]);
                input = &input[step.consumed..];
            }
            Err(refusal) => return (data, input, Err(refusal)),
        }
    }
    (data, input, Ok(()))
}

fn show_version(version: Version) -> &'static str {
    match version {
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
    }
}

fn show_body(body: BodyLength) -> String {
    match body {
        BodyLength::None => "none".into(),
        BodyLength::Fixed(length) => format!("fixed({length})"),
        BodyLength::Chunked => "chunked".into(),
        BodyLength::UntilClose => "until-close".into(),
    }
}

fn show_fields(fields: &Fields) -> String {
    let show = |field: crate::Field<'_>| {
        format!(" | {}: {}", field.name.escape_ascii(), field.value.escape_ascii())
    };
    fields.iter().map(show).collect()
}

fn show_rest(rest: &[u8]) -> String {
    if rest.is_empty() { String::new() } else { format!(" + {}", rest.escape_ascii()) }
}

fn show_refusal(refusal: Refusal) -> String {
    format!("{} {refusal:?}", refusal.status())
}
