//! The data loop: readiness, timers, buffers, TLS, sockets and links.
