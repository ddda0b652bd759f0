//! The body of the request: text, a file or standard input, sent as it is read.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::Frame;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

/// Bytes read at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// Chunks read before the mesh takes them.
const CHUNKS_AHEAD: usize = 2;

pub(super) type Body = BoxBody<Bytes, io::Error>;

/// The argument of `-d`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Data {
    Text(String),
    File(PathBuf),
    Input,
}

/// A body with the head fields that describe it.
pub(super) struct Sent {
    pub(super) body: Body,
    /// Where it is known before the body is read.
    pub(super) length: Option<u64>,
    pub(super) content_type: &'static str,
}

impl FromStr for Data {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "-" | "@-" => Self::Input,
            _ => match text.strip_prefix('@') {
                Some("") => return Err("the name of the file is missing after `@`".to_owned()),
                Some(path) => Self::File(path.into()),
                None => Self::Text(text.to_owned()),
            },
        })
    }
}

impl Data {
    /// Opens what is to be sent; it is read while it is sent.
    pub(super) fn open(&self) -> Result<Sent> {
        match self {
            Self::Text(text) => Ok(Sent {
                body: Full::from(text.clone()).map_err(|never| match never {}).boxed(),
                length: Some(text.len() as u64),
                content_type: content_type(text),
            }),
            Self::File(path) => {
                let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
                let (facts, file) =
                    opened.with_context(|| format!("cannot read {}", path.display()))?;
                let length = facts.is_file().then_some(facts.len());
                Ok(Sent { body: streamed(file)?, length, content_type: BYTES })
            }
            Self::Input => {
                Ok(Sent { body: streamed(io::stdin())?, length: None, content_type: BYTES })
            }
        }
    }
}

pub(super) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed()
}

const BYTES: &str = "application/octet-stream";

fn content_type(text: &str) -> &'static str {
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => "application/json",
        Err(_) => "text/plain; charset=utf-8",
    }
}

/// Read on a thread of its own: a terminal may never send anything, and nothing waits for it then.
fn streamed(source: impl Read + Send + 'static) -> Result<Body> {
    let (chunks, stream) = mpsc::channel(CHUNKS_AHEAD);
    std::thread::Builder::new()
        .name("body".to_owned())
        .spawn(move || read(source, &chunks))
        .context("cannot start a thread")?;
    let frames = ReceiverStream::new(stream).map(|chunk: io::Result<Bytes>| chunk.map(Frame::data));
    Ok(BodyExt::boxed(StreamBody::new(frames)))
}

/// Ends with the source, its first error, or the request.
fn read(mut source: impl Read, chunks: &mpsc::Sender<io::Result<Bytes>>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let chunk = match source.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => Ok(Bytes::copy_from_slice(&buffer[..count])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let failed = chunk.is_err();
        if chunks.blocking_send(chunk).is_err() || failed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_text_a_file_or_standard_input() {
        let check = |text: &str, data| assert_eq!(text.parse::<Data>().unwrap(), data);
        check("a=b", Data::Text("a=b".to_owned()));
        check("", Data::Text(String::new()));
        check("-", Data::Input);
        check("@-", Data::Input);
        check("@x/y", Data::File("x/y".into()));
        assert!("@".parse::<Data>().is_err());
    }

    #[test]
    fn json_is_recognized_by_its_form() {
        assert_eq!(content_type(r#"{"a": [1]}"#), "application/json");
        assert_eq!(content_type("{a}"), "text/plain; charset=utf-8");
        assert_eq!(content_type(""), "text/plain; charset=utf-8");
    }
}
