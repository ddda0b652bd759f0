//! HTTP/2 (RFC 9113) as a state machine for one connection, client or server.
//!
//! [`Connection`] is fed bytes and the time, and gives events and bytes. It enforces the stream
//! states, flow control, the shape of messages (section 8) and the [`Limits`] on what a peer can
//! cost. It holds no body bytes: DATA is reported as ranges of the caller's input. Push is
//! refused, priorities are read and ignored.

mod budget;
mod config;
mod connection;
mod control;
mod data;
mod error;
mod event;
mod frame;
mod heads;
mod message;
mod reading;
mod send;
mod settings;
mod stream;
mod upgrade;

pub use config::{Config, Limits, Rate};
pub use connection::Connection;
pub use error::{ConnectionError, ErrorCode, OpenError, StreamGone};
pub use event::{Event, StreamId};
