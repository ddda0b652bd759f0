//! Abuse at every listener of a data plane: malformed HTTP, floods, and peers with a false
//! identity. The shipped binary runs as processes; the callers are raw.

mod aborted;
mod call_trace;
mod circles;
mod early;
mod fairness;
mod fields;
mod forged;
mod framing;
mod h1;
mod h2;
mod h2spec;
mod handshakes;
mod identity;
mod interim;
mod listener;
mod log_flood;
mod malformed;
mod relay;
mod responses;
mod strangers;
mod tls_listener;
mod tunnel;
mod upgrades;
