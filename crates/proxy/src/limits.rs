//! What one data-plane thread spends on its peers: times, sizes, counts. Every field is a
//! setting; the defaults suit a sidecar.

mod named;

use std::time::Duration;

use tollway_http::{h1, h2};

pub use named::{NAMED_LIMITS, NamedLimit};

/// Times after which something is given up.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// From the start of a dial to the end of its TLS handshake.
    pub connect: Duration,
    /// From accepting a mesh connection to the end of its TLS handshake.
    pub handshake: Duration,
    /// From the first byte of a request's head to its last (slow heads).
    pub head: Duration,
    /// From the end of a request to the head of its response.
    pub request: Duration,
    /// Without a byte in either direction on an exchange or a relayed connection.
    pub stream_idle: Duration,
    /// Without a request on a downstream connection.
    pub downstream_idle: Duration,
    /// Without a request on an upstream HTTP/1.1 connection to the app: shorter than what common
    /// servers allow (5 s), so that we close first.
    pub app_idle: Duration,
    /// Without a request on a multiplexed mesh connection.
    pub mesh_idle: Duration,
    /// Without a byte from a mesh connection before an exchange that waits on it has it asked for a
    /// sign of life (an HTTP/2 PING). The longer an exchange has waited, the rarer it asks.
    pub ping_after: Duration,
    /// For that sign. Without it new requests avoid the connection, and those under way that may
    /// be repeated go elsewhere.
    pub ping_answer: Duration,
    /// For that sign before the connection is given up with what is under way on it.
    pub silence: Duration,
    /// How long a mesh connection takes no small requests after its last bulk; then a surplus one
    /// retires.
    pub bulk_pause: Duration,
    /// Without a byte from a peer that has its final response and does not close.
    pub linger: Duration,
    /// For such a peer to close, however much it still sends.
    pub linger_longest: Duration,
    /// For requests under way when the process is to end.
    pub drain: Duration,
    /// For other data planes to learn that this one has gone, before it refuses new streams.
    pub withdraw: Duration,
    /// For the control plane to send the state of a service that is asked for the first time.
    pub discovery: Duration,
    /// How long a service that is not called stays subscribed.
    pub service_idle: Duration,
    /// How long an address that could not be dialled is passed over.
    pub dial_backoff: Duration,
    /// From this round trip on a service is far away, and its requests share connections by two.
    pub far: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            request: Duration::from_secs(60),
            stream_idle: Duration::from_secs(300),
            downstream_idle: Duration::from_secs(75),
            app_idle: Duration::from_secs(4),
            mesh_idle: Duration::from_secs(120),
            ping_after: Duration::from_millis(500),
            ping_answer: Duration::from_millis(1500),
            silence: Duration::from_secs(20),
            bulk_pause: Duration::from_secs(5),
            linger: Duration::from_secs(2),
            linger_longest: Duration::from_secs(30),
            drain: Duration::from_secs(10),
            withdraw: Duration::from_millis(250),
            discovery: Duration::from_secs(5),
            service_idle: Duration::from_secs(600),
            dial_backoff: Duration::from_secs(1),
            far: Duration::from_millis(10),
        }
    }
}

/// Sizes and counts.
#[derive(Clone, Debug)]
pub struct Limits {
    pub h1: h1::Limits,
    pub h2: h2::Config,
    /// Connections a thread holds, both ways.
    pub connections: usize,
    /// Requests under way in a thread.
    pub exchanges: usize,
    /// Requests that wait for a connection to one service.
    pub waiting_per_service: usize,
    /// Services subscribed at once.
    pub services: usize,
    /// Connections of HTTP/1.1 to the app, and to each service where the mesh's are pooled.
    pub app_connections: usize,
    /// Connections to the app over HTTP/2: each has as many requests as the app states.
    pub app_http2_connections: usize,
    /// Requests called off on one connection to an app over HTTP/2, less those that ended in order,
    /// until the next requests get another: fewer than common servers bear.
    pub app_resets: usize,
    /// Requests that were called off and that the runtime has not looked at, of all connections to
    /// it, before the next ones wait.
    pub runtime_resets: usize,
    /// Bytes queued on a connection before what feeds it is held back.
    pub out_bytes: usize,
    /// Bytes queued on a connection whose peer does not read them: before more requests of a caller
    /// are read, and before another sidecar or the app is sent more.
    pub unread_bytes: usize,
    /// Bytes of one body after which its mesh connection carries bulk: small requests get another
    /// one, so that they do not wait behind it.
    pub bulk_bytes: usize,
    /// Connections to one endpoint (or to one remote service) that may carry bulk apart; more
    /// bulk than that shares connections with small requests.
    pub bulk_connections: usize,
    /// Connections to one service that is far away or in another network.
    pub mesh_connections: usize,
    /// Bytes of a body held while its sink is full; more is left with the sender.
    pub pipe_bytes: usize,
    /// Bytes of request bodies kept so that a refused request can be sent again.
    pub replay_bytes: usize,
    /// Bytes of bodies held in a thread before connection windows are held back as well.
    pub buffered_bytes: usize,
    /// Addresses that `x-forwarded-for` may list of a request to a service: one that has come so
    /// far goes round in a circle.
    pub hops: usize,
    /// Informational responses before the final one.
    pub informational: u8,
    /// Bytes of a ClientHello looked at by a gateway.
    pub client_hello_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            h1: h1::Limits::default(),
            h2: h2::Config { connection_window: 4 * 1024 * 1024, ..h2::Config::default() },
            connections: 100_000,
            exchanges: 50_000,
            waiting_per_service: 4096,
            services: 10_000,
            app_connections: 2048,
            app_http2_connections: 1024,
            app_resets: 16,
            runtime_resets: 256,
            out_bytes: 128 * 1024,
            unread_bytes: 512 * 1024,
            bulk_bytes: 512 * 1024,
            bulk_connections: 4,
            mesh_connections: 64,
            pipe_bytes: 64 * 1024,
            replay_bytes: 64 * 1024,
            buffered_bytes: 64 * 1024 * 1024,
            hops: 32,
            informational: 16,
            client_hello_bytes: 16 * 1024 + 512,
        }
    }
}

#[cfg(test)]
mod tests;
