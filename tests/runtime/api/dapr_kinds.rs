//! In daprd's place as daprd: kinds of differences that Dapr's own suite found, each with daprd's answer
//! as the expectation. A number is that of the kind.

mod end;
mod failures;
mod metadata;
mod methods;
mod metrics;
mod pages;
mod streams;
mod supervised;
mod traces;

use std::net::SocketAddr;

use hyper::HeaderMap;
use tollway_tests::mesh::http::{call, runtime};

/// Makes a request; status, fields and body.
fn ask(listener: SocketAddr, method: &str, path: &str, fields: &[(&str, &str)]) -> Answer {
    let (status, fields, body) = runtime().block_on(call(listener, method, path, fields, ""));
    Answer { status: status.as_u16(), fields, body }
}

struct Answer {
    status: u16,
    fields: HeaderMap,
    body: String,
}

impl Answer {
    /// A field of the answer; empty without it.
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", |value| value.to_str().unwrap())
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}", self.body))
    }
}
