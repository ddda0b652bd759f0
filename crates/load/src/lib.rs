//! The load engine: arrivals, clients, recorders, echo servers.

pub mod arrival;
mod echo;
mod error;
mod frames;
mod options;
mod pacer;
mod stop;

pub use arrival::{Arrival, Extent, Spacing};
pub use echo::{
    EchoMessage, EchoOptions, EchoServer, Ports, Stall, StreamSummary, UNARY_PATH, encode_payload,
    serve_echo,
};
pub use error::{EchoError, LoadError};
pub use options::{GrpcRequest, HttpRequest, LoadOptions, Target, header, payload};
pub use stop::Stop;
