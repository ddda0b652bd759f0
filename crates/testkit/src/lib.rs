//! Helpers for tests: the programs under test, foreign programs, raw clients, skips.
//!
//! A dev-dependency of the other crates, never linked into what ships. Helpers return errors that a
//! test unwraps; an error names what was awaited and shows the end of the process's log.

mod browser;
mod cache;
mod closed_port;
mod cpu;
mod documented;
mod etcd;
mod java;
mod memory;
mod metrics;
mod node;
mod process;
mod program;
mod python;
mod raw_client;
mod rig;
mod servers;
mod skip;
mod temp_dir;
mod tls_hello;
mod tls_relay;
pub mod tunnels;
mod wait;

pub use browser::Browser;
pub use closed_port::ClosedPort;
pub use cpu::{cpu_time, thread_cpu_time};
pub use documented::{check_limit, grouped, table};
pub use etcd::EtcdServer;
pub use java::java_project;
pub use memory::{peak_resident_bytes, reset_peak, resident_bytes};
pub use metrics::{metric_in, metrics_at};
pub use node::{node_project, node_with};
pub use process::{Process, Start};
pub use program::{binary, tool};
pub use python::python_with;
pub use raw_client::{Answer, End, RawClient};
pub use rig::{Cluster, Lines, Rig};
pub use servers::{MariaDbServer, PostgresServer, RedisServer};
pub use skip::{RIGHT_MISSING, Skipped, TOOL_MISSING, runs_slow_tests};
#[doc(hidden)]
pub use skip::{name_of, report_skip};
pub use temp_dir::TempDir;
pub use tls_hello::begun_hello;
pub use tls_relay::TlsRelay;
pub use wait::{free_address, free_port, retry_until};
