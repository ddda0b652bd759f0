//! Echo servers: targets that cost little and behave as each request asks.
//!
//! One port serves HTTP/1.1 and HTTP/2 with prior knowledge, including gRPC; another HTTP over TLS;
//! another echoes TCP, and takes or gives bulk data ([`bulk`]). One thread with one event loop,
//! memory bounded by connections. It is a target for tests, measurements and the demo, not a server
//! for hostile networks: idle connections stay open for ever.
//!
//! The protocol of the measurements is here too, because both ends need it: gRPC framing
//! ([`frames`]), actor timers whose name has their schedule ([`actor_timer`]), and a blocking HTTP
//! client ([`http_client`]). Load generation is in `load`.

pub mod actor_timer;
pub mod bulk;
mod delays;
mod error;
mod faults;
pub mod frames;
mod h1;
mod h2;
pub mod http_client;
mod messages;
mod options;
mod payload;
mod peer;
pub mod pem;
mod routes;
mod server;
mod shared;
mod source;
mod stop;
mod timer_fires;
mod tls;

pub use error::EchoError;
pub use faults::{Choices, ChoicesError, Faults, percent};
pub use messages::{EchoMessage, StreamSummary};
pub use options::{EchoOptions, HttpsOptions, Ports, Stall};
pub use payload::payload;
pub use routes::UNARY_PATH;
pub use server::{EchoServer, serve_echo};
pub use stop::Stop;
pub use tls::ServerTlsError;
