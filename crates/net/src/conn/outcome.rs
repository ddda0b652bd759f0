//! What a connection reports to its owner.

use std::io;

use rustls::pki_types::CertificateDer;
use rustls::{CipherSuite, ProtocolVersion};
use thiserror::Error;

/// Why a connection is over.
#[derive(Debug, Error)]
pub enum ConnError {
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    #[error("the connection failed: {0}")]
    Socket(#[source] io::Error),
    #[error("TLS failed: {0}")]
    Tls(#[source] rustls::Error),
}

/// How the peer closed its side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closed {
    /// With the end that its protocol has: FIN, and before it `close_notify` with TLS.
    Clean,
    /// FIN without `close_notify`, or the end of a connection that broke: the bytes before may
    /// have been cut off.
    Truncated,
}

/// What a read gave.
#[derive(Debug)]
pub enum Read<'a> {
    /// Application bytes, valid until the scratch is used again.
    Data(&'a [u8]),
    /// Nothing now; an event will follow.
    Blocked,
    /// The peer sends no more. Returned once, after all data.
    Closed(Closed),
    Failed(ConnError),
}

/// What a flush achieved.
#[derive(Debug)]
pub enum Flush {
    /// Everything is with the kernel.
    Done,
    /// The socket is full; an event will report when to continue.
    Blocked,
    /// Nothing can be sent any more. What the peer sent before can still be read, and its end
    /// then.
    Failed(ConnError),
}

/// What a TLS peer proved.
pub struct Peer<'a> {
    /// Its chain, leaf first; empty if it showed none.
    pub certificates: &'a [CertificateDer<'static>],
    /// The protocol agreed on.
    pub alpn: Option<&'a [u8]>,
}

/// What both ends of a TLS connection agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    pub version: ProtocolVersion,
    pub cipher: CipherSuite,
    /// The handshake went on from an earlier session.
    pub is_resumed: bool,
}
