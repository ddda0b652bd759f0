//! The address and the certificate of a front's client, as each of its requests names them to the
//! app.

use std::net::{IpAddr, SocketAddr};

use tollway_identity::ClientCertificate;

use crate::headers::Caller;

/// Made once for a connection, so that its requests need only copy.
pub(crate) struct Client {
    /// `None` when it has gone already.
    pub(crate) address: Option<Address>,
    /// Set where the front demands certificates.
    pub(crate) certificate: Option<ClientCertificate>,
}

/// An address, and as text.
pub(crate) struct Address {
    pub(crate) ip: IpAddr,
    pub(crate) text: String,
}

impl Address {
    pub(crate) fn caller(&self) -> Caller<'_> {
        Caller { ip: self.ip, text: &self.text }
    }
}

impl Client {
    pub(crate) fn new(remote: Option<SocketAddr>, certificate: Option<ClientCertificate>) -> Self {
        let address = remote.map(|remote| {
            // A listener for both families has IPv4 clients as ::ffff:a.b.c.d.
            let ip = remote.ip().to_canonical();
            Address { ip, text: ip.to_string() }
        });
        Self { address, certificate }
    }
}
