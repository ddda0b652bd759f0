//! The settings of `tollway front`.

use std::net::SocketAddr;
use std::path::PathBuf;

use tollway_proxy::FrontTarget;

use super::{Plane, Telemetry};
use crate::Settings;
use crate::serial::part;

/// A data plane that terminates ordinary TLS for one app.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct Front {
    /// Address for clients; may be repeated. Port 0 takes a free one.
    #[setting(form = "IP:PORT", flag = "listen", required)]
    pub listens: Vec<SocketAddr>,
    /// PEM file of a certificate, and behind it those that lead to its root. Repeated with --key
    /// for further names; the first is for clients that ask for none of them.
    #[setting(form = "FILE", flag = "cert", required)]
    pub certs: Vec<PathBuf>,
    /// PEM file of the certificate's key: RSA, ECDSA or Ed25519, not encrypted.
    #[setting(form = "FILE", flag = "key", required)]
    pub keys: Vec<PathBuf>,
    /// PEM file of authorities: every client must show a certificate of one of them.
    #[setting(form = "FILE")]
    pub client_ca: Option<PathBuf>,
    /// The app: http://HOST:PORT, or h2c://HOST:PORT where it speaks HTTP/2.
    #[setting(form = "URL")]
    pub to: FrontTarget,
    #[setting(flatten)]
    pub telemetry: Telemetry,
    #[setting(flatten)]
    pub plane: Plane,
}

part!(Front, "front");
