//! Which protocol an intercepted connection to a service speaks.
//!
//! A service that can be called has declared it (`--app-protocol`), so nothing is waited for: a
//! protocol in which the server speaks first does not stall. Only for a service that nothing answers
//! for is it unknown, and it decides how the refusal is worded: HTTP is answered with the reason, bytes
//! are reset. Then what was declared before counts, or the client's first bytes within a short time.

use std::collections::HashMap;

use tollway_model::{AppProtocol, ServiceName};

/// Services of which the protocol is remembered.
pub const LEARNED_LIMIT: usize = 1_024;
/// The longest method of HTTP that is recognised.
const METHOD_LETTERS: usize = 20;

/// What shows the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// The service's own word.
    Declared,
    /// Its word from before.
    Learned,
    /// The first bytes of the client.
    FirstBytes,
}

/// What a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recognition {
    Http(Evidence),
    Bytes(Evidence),
    /// Its first bytes will show.
    Unknown,
}

/// What is known of a connection: `declared` by its service now, `learned` of it before, the `first`
/// bytes of the client.
#[must_use]
pub fn recognise(
    declared: Option<AppProtocol>,
    learned: Option<AppProtocol>,
    first: &[u8],
) -> Recognition {
    let by_word = declared.map(|protocol| (protocol, Evidence::Declared));
    match by_word.or_else(|| learned.map(|protocol| (protocol, Evidence::Learned))) {
        Some((AppProtocol::Tcp, evidence)) => Recognition::Bytes(evidence),
        Some((AppProtocol::Http | AppProtocol::H2c | AppProtocol::Grpc, evidence)) => {
            Recognition::Http(evidence)
        }
        None => match begins_http(first) {
            Some(true) => Recognition::Http(Evidence::FirstBytes),
            Some(false) => Recognition::Bytes(Evidence::FirstBytes),
            None => Recognition::Unknown,
        },
    }
}

/// Whether bytes begin a request: a method and a blank. So does HTTP/2 with its preface. `None` while
/// they may.
fn begins_http(first: &[u8]) -> Option<bool> {
    let letters = first.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    match first.get(letters) {
        Some(b' ') => Some((1..=METHOD_LETTERS).contains(&letters)),
        Some(b'-' | b'_') if letters > 0 => Some(true),
        Some(_) => Some(false),
        None if letters > METHOD_LETTERS => Some(false),
        None => None,
    }
}

/// The protocols that services have declared.
#[derive(Debug, Default)]
pub struct Learned(HashMap<ServiceName, AppProtocol>);

impl Learned {
    /// Remembers what a service declares. Where there are too many, another is forgotten.
    pub fn learn(&mut self, service: &ServiceName, protocol: AppProtocol) {
        if let Some(known) = self.0.get_mut(service) {
            *known = protocol;
            return;
        }
        if self.0.len() >= LEARNED_LIMIT {
            let other = self.0.keys().next().cloned();
            other.map(|other| self.0.remove(&other));
        }
        self.0.insert(service.clone(), protocol);
    }

    /// What it declared last.
    #[must_use]
    pub fn of(&self, service: &ServiceName) -> Option<AppProtocol> {
        self.0.get(service).copied()
    }
}

#[cfg(test)]
mod tests {
    use tollway_model::Label;

    use super::*;

    fn service(app: &str) -> ServiceName {
        let label = |text: &str| Label::new(text).unwrap();
        ServiceName { app: label(app), namespace: label("shop"), network: label("west") }
    }

    #[test]
    fn what_a_service_declares_counts_before_all_else() {
        let (tcp, http) = (Some(AppProtocol::Tcp), Some(AppProtocol::Http));
        let get = b"GET / HTTP/1.1\r\n";
        assert_eq!(recognise(tcp, http, get), Recognition::Bytes(Evidence::Declared));
        assert_eq!(recognise(http, tcp, b"\x16"), Recognition::Http(Evidence::Declared));
        assert_eq!(recognise(None, tcp, get), Recognition::Bytes(Evidence::Learned));
        let grpc = Some(AppProtocol::Grpc);
        assert_eq!(recognise(None, grpc, b""), Recognition::Http(Evidence::Learned));
    }

    #[test]
    fn first_bytes_show_http_as_soon_as_they_can() {
        let http = Recognition::Http(Evidence::FirstBytes);
        let bytes = Recognition::Bytes(Evidence::FirstBytes);
        for (first, expected) in [
            (&b""[..], Recognition::Unknown),
            (b"G", Recognition::Unknown),
            (b"GET", Recognition::Unknown),
            (b"GET ", http),
            (b"PRI * HTTP/2.0\r\n", http),
            (b"VERSION-CONTROL /a HTTP/1.1", http),
            (b" GET / HTTP/1.1", bytes),
            (b"get / HTTP/1.1", bytes),
            (b"\x16\x03\x01", bytes),
            (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", bytes),
            (b"*1\r\n$4\r\nPING\r\n", bytes),
            (b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", bytes),
            (b"ABCDEFGHIJKLMNOPQRSTUV ", bytes),
            (b"EHLO\r\n", bytes),
        ] {
            assert_eq!(recognise(None, None, first), expected, "{first:?}");
        }
    }

    #[test]
    fn the_last_word_of_a_service_is_remembered_and_their_number_bounded() {
        let mut learned = Learned::default();
        assert_eq!(learned.of(&service("db")), None);
        learned.learn(&service("db"), AppProtocol::Http);
        learned.learn(&service("db"), AppProtocol::Tcp);
        assert_eq!(learned.of(&service("db")), Some(AppProtocol::Tcp));
        for number in 0..2 * LEARNED_LIMIT {
            let service = service(&format!("s{number}"));
            learned.learn(&service, AppProtocol::Http);
            assert_eq!(learned.of(&service), Some(AppProtocol::Http));
        }
        assert_eq!(learned.0.len(), LEARNED_LIMIT);
    }
}
