//! The server name of a ClientHello, without answering it: what a gateway goes by.

use rustls::server::Acceptor;

/// Reads a ClientHello as it comes in, in any pieces and over any number of records.
///
/// Holds what has come: the caller bounds it.
#[derive(Default)]
pub struct ServerNameReader {
    acceptor: Acceptor,
}

/// What a ClientHello contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerNameRead {
    /// More of it is to come.
    Partial,
    /// The name of the server that is meant, a DNS name.
    Named(String),
    Unnamed,
    NotTls,
}

impl ServerNameReader {
    /// Looks at more bytes. After anything but [`ServerNameRead::Partial`] the reader is of no more use.
    pub fn take(&mut self, mut data: &[u8]) -> ServerNameRead {
        while !data.is_empty() {
            match self.acceptor.read_tls(&mut data) {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) => return ServerNameRead::NotTls,
            }
            match self.acceptor.accept() {
                Ok(Some(accepted)) => {
                    return match accepted.client_hello().server_name() {
                        Some(name) => ServerNameRead::Named(name.to_owned()),
                        None => ServerNameRead::Unnamed,
                    };
                }
                Ok(None) => {}
                Err(_) => return ServerNameRead::NotTls,
            }
        }
        ServerNameRead::Partial
    }
}
