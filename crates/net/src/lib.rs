//! The data loop: readiness, timers, buffers, TLS, sockets and links.

pub mod link;
pub mod netns;
pub mod tun;
