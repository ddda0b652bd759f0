//! The load engine: arrivals, clients, recorders.
//!
//! [`run_http`], [`run_http2`] and [`run_grpc`] send one kind of request by a plan of intended starts and give a
//! [`RunResult`](tollway_record::RunResult): response times from the intended start, service times
//! from the send, and how late the generator itself was. The servers that it loads are in `echo`.
//! [`neighbours`] loads a control plane's table of neighbours instead, [`packets`] a forwarder, and
//! [`run_timers`] measures how late timers of actors fire.

pub mod arrival;
mod clients;
mod clock;
mod cost;
mod engine;
mod error;
pub mod neighbours;
mod options;
mod pacer;
pub mod packets;
mod plan;
mod progress;
mod recorder;
mod run;
mod summary;
mod tcp;
mod timers;
mod tls;

pub use arrival::{Arrival, Extent, Profile, Spacing, Stage};
pub use clients::streams::StreamKind;
pub use cost::{forget_peak, peak_resident_bytes, process_cpu};
pub use error::LoadError;
pub use options::{
    GrpcRequest, HttpRequest, Keep, LoadOptions, Reuse, StreamRequest, Target, header,
};
pub use plan::{MAX_STEPS, MaxRate, Plan, RunOnce};
pub use progress::{Part, Phase, Progress, Watch};
pub use run::{run_grpc, run_http, run_http2, run_ping, run_stream};
pub use summary::{interval_line, summary};
pub use tcp::{MAX_STREAMS as MAX_TCP_STREAMS, TcpOptions, run_tcp};
pub use timers::{MAX_TIMERS, TimerKind, TimerOptions, TimersError, run_timers};
pub use tls::{ReadyTls, TlsError, TlsOptions, TlsVersions};
