//! What the connections of a run agreed on in their TLS handshakes, and what those cost.

use serde::{Deserialize, Serialize};

use crate::traffic::LatencyUs;

/// TLS as the client saw it. The handshakes' times are phases (`tls_handshaking`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TlsFacts {
    /// `TLSv1_3`, `TLSv1_2`.
    pub version: String,
    /// By its name in the standards: `TLS13_AES_128_GCM_SHA256`.
    pub cipher_suite: String,
    /// Of the key exchange: `X25519`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind and length in bits of the server's key: `EC-256`, `RSA-2048`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_key: Option<String>,
    /// The protocol agreed on: `h2`, `http/1.1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpn: Option<String>,
    /// Whether a server requested the client's certificate and got one.
    #[serde(default)]
    pub client_certificate: bool,
    /// Whole handshakes, of those that are counted.
    pub handshakes_full: u64,
    /// Handshakes that resumed a session, of those that are counted.
    pub handshakes_resumed: u64,
    /// Processor time of the client's side of a handshake, kernel included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshake_cpu_us: Option<LatencyUs>,
}
