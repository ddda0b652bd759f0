//! The load engine: arrivals, clients, recorders, echo servers.
//!
//! [`run_http`], [`run_http2`] and [`run_grpc`] send one kind of request by a plan of intended starts and give a
//! [`RunResult`](tollway_record::RunResult): response times from the intended start, service times
//! from the send, and how late the generator itself was. [`serve_echo`] is something to send to.
//! [`neighbours`] loads a control plane's table of neighbours instead, [`packets`] a forwarder, and
//! [`run_firings`] has actors be woken.

pub mod arrival;
mod bulk;
mod clients;
mod clock;
mod cost;
mod echo;
mod engine;
mod error;
mod firings;
mod frames;
pub mod neighbours;
mod options;
mod pacer;
pub mod packets;
mod plan;
mod progress;
mod recorder;
mod run;
mod stop;
mod summary;
mod tcp;
mod tls;

pub use arrival::{Arrival, Extent, Profile, Spacing, Stage};
pub use clients::streams::StreamKind;
pub use cost::{forget_peak, peak_resident_bytes, process_cpu};
pub use echo::{
    Choices, ChoicesError, EchoMessage, EchoOptions, EchoServer, Faults, HttpsOptions, Ports,
    Stall, StreamSummary, UNARY_PATH, percent, serve_echo,
};
pub use error::{EchoError, LoadError};
pub use firings::{AlarmKind, FiringOptions, FiringsError, MAX_ALARMS, run_firings};
pub use options::{
    GrpcRequest, HttpRequest, Keep, LoadOptions, Reuse, StreamRequest, Target, header, payload,
};
pub use plan::{MAX_STEPS, MaxRate, Plan, RunOnce};
pub use progress::{Part, Phase, Progress, Watch};
pub use run::{run_grpc, run_http, run_http2, run_ping, run_stream};
pub use stop::Stop;
pub use summary::{interval_line, summary};
pub use tcp::{MAX_STREAMS as MAX_TCP_STREAMS, TcpOptions, run_tcp};
pub use tls::{ReadyTls, TlsError, TlsOptions, TlsVersions};
