//! HTTP as pure state machines: bytes in, heads and body ranges out, and back.
//!
//! Nothing here reads a socket or a clock. `proxy` and `load` drive these machines; every rule
//! that keeps two parsers from disagreeing (RFC 9110, 9112, 9113, 7541) is enforced here, before
//! anything is forwarded.

#![forbid(unsafe_code)]

mod bytes;
pub mod grpc;
pub mod h1;
pub mod h2;
mod head;
pub mod hpack;

pub use head::{Field, Fields, Method, RequestHead, ResponseHead, Scheme};
