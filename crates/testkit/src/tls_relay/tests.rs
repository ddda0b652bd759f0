//! The relay against a TLS server that demands a client certificate and answers in capitals.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use super::*;
use crate::{End, RawClient, retry_until};

const SOON: Duration = Duration::from_secs(20);

#[test]
fn plain_client_reaches_a_mutual_tls_server() {
    let authority = Authority::new();
    let server = authority.shouting_server();
    let relay = TlsRelay::start(server, "server.test", authority.client(true)).unwrap();
    let mut client = RawClient::connect(relay.address()).unwrap();
    client.send("hello").unwrap();
    client.finish_sending().unwrap();
    let answer = client.read_to_end(SOON).unwrap();
    assert_eq!((answer.end, answer.text().as_str()), (End::Closed, "HELLO"));
    assert_eq!(relay.last_error(), None);
}

#[test]
fn a_refusal_by_the_server_closes_the_client_and_is_recorded() {
    let authority = Authority::new();
    let server = authority.shouting_server();
    let relay = TlsRelay::start(server, "server.test", authority.client(false)).unwrap();
    let answer = RawClient::exchange(relay.address(), "hello", SOON).unwrap();
    assert_eq!(answer.text(), "");
    let error = retry_until(SOON, "the refusal", || relay.last_error()).unwrap();
    assert!(error.to_lowercase().contains("certificate"), "{error}");
}

#[test]
fn server_of_another_name_is_refused() {
    let authority = Authority::new();
    let server = authority.shouting_server();
    let relay = TlsRelay::start(server, "other.test", authority.client(true)).unwrap();
    let answer = RawClient::exchange(relay.address(), "hello", SOON).unwrap();
    assert_eq!(answer.text(), "");
    let error = retry_until(SOON, "the refusal", || relay.last_error()).unwrap();
    assert!(error.contains("handshake failed"), "{error}");
}

struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self { issuer: CertifiedIssuer::self_signed(params, key).unwrap() }
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        Arc::new(roots)
    }

    fn issue(&self, name: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
    }

    fn client(&self, has_certificate: bool) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder().with_root_certificates(self.roots());
        Arc::new(if has_certificate {
            let (chain, key) = self.issue("client.test");
            builder.with_client_auth_cert(chain, key).unwrap()
        } else {
            builder.with_no_client_auth()
        })
    }

    /// Serves one connection: reads to its end, then answers in capitals.
    fn shouting_server(&self) -> SocketAddr {
        let verifier = WebPkiClientVerifier::builder(self.roots()).build().unwrap();
        let (chain, key) = self.issue("server.test");
        let config = ServerConfig::builder()
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || shout(&listener, Arc::new(config)));
        address
    }
}

fn shout(listener: &TcpListener, config: Arc<ServerConfig>) {
    let (mut socket, _) = listener.accept().unwrap();
    let mut session = ServerConnection::new(config).unwrap();
    let mut stream = rustls::Stream::new(&mut session, &mut socket);
    let mut text = String::new();
    // A handshake that fails ends the connection, which the refusal tests expect.
    if stream.read_to_string(&mut text).is_ok() {
        stream.write_all(text.to_uppercase().as_bytes()).unwrap();
        stream.conn.send_close_notify();
        stream.flush().unwrap();
    }
}
