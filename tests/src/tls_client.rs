//! Both ends of TLS for tests that break the mesh's rules.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, ClientConnection, Error, ServerConfig, ServerConnection, Stream, version,
};
use tollway_identity::AnyCertificate;

use crate::pki::showing;

/// A caller that believes every server and shows `shown`, or nothing.
pub fn trusting(shown: Option<Arc<CertifiedKey>>, alpn: &[u8]) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(AnyCertificate::new(&default_provider()));
    Arc::new(showing(builder, shown, alpn))
}

/// Sends `request` inside TLS and returns the beginning of the answer, or why there is none.
pub fn call(
    socket: impl Read + Write,
    server_name: &str,
    config: Arc<ClientConfig>,
    request: &[u8],
) -> Result<Vec<u8>, String> {
    let name = ServerName::try_from(server_name.to_owned()).unwrap();
    let mut tls = ClientConnection::new(config, name).unwrap();
    let mut socket = socket;
    let mut stream = Stream::new(&mut tls, &mut socket);
    stream.write_all(request).and_then(|()| stream.flush()).map_err(reason)?;
    let mut answer = vec![0; 16 * 1024];
    match stream.read(&mut answer) {
        Ok(0) => Err("closed without an answer".to_owned()),
        Ok(count) => {
            answer.truncate(count);
            Ok(answer)
        }
        Err(error) => Err(reason(error)),
    }
}

fn reason(error: io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match inner {
        Some(error) => format!("{} ({error})", tollway_identity::explain(error)),
        None => error.to_string(),
    }
}

/// A connection whose reads end after `within`.
pub fn dial(address: SocketAddr, within: Duration) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(within)).unwrap();
    stream
}

/// Writes one byte at a time, each in a segment of its own.
pub struct Dribble(pub TcpStream);

impl Read for Dribble {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Dribble {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        std::thread::sleep(Duration::from_micros(500));
        self.0.write(&bytes[..bytes.len().min(1)])
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The first flight of a handshake: one record with a ClientHello for `server_name`.
pub fn client_hello(server_name: &str) -> Vec<u8> {
    let name = ServerName::try_from(server_name.to_owned()).unwrap();
    let mut tls = ClientConnection::new(trusting(None, b"h2"), name).unwrap();
    let mut flight = Vec::new();
    tls.write_tls(&mut flight).unwrap();
    flight
}

/// A first flight whose server name no library takes for one.
#[must_use]
pub fn bad_hello() -> Vec<u8> {
    let name = ["a".repeat(60), "a".repeat(60), "a".repeat(19)].join(".");
    let mut hello = client_hello(&name);
    let at = hello.windows(name.len()).position(|part| part == name.as_bytes()).unwrap();
    let bad = format!("x\n{}", "y".repeat(name.len() - 2));
    hello[at..at + name.len()].copy_from_slice(bad.as_bytes());
    hello
}

/// A server with any certificate, or without TLS.
pub struct Impostor {
    pub address: SocketAddr,
    shown: Arc<Shown>,
}

/// What it shows; nothing: it answers in plain text.
#[derive(Debug, Default)]
struct Shown(Mutex<Option<Arc<CertifiedKey>>>);

/// Passes bytes on to an honest server until it is taken over by an impostor.
pub struct Takeover {
    pub address: SocketAddr,
    target: Arc<Mutex<Target>>,
}

/// Where connections lead, and those that are open.
struct Target {
    to: SocketAddr,
    open: Vec<TcpStream>,
}

impl Takeover {
    /// Leads nowhere until it is set.
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let target = Arc::new(Mutex::new(Target { to: address, open: Vec::new() }));
        let leads = Arc::clone(&target);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let from = stream.unwrap();
                let mut target = leads.lock().unwrap();
                let Ok(to) = TcpStream::connect(target.to) else { continue };
                for (mut source, mut sink) in [
                    (from.try_clone().unwrap(), to.try_clone().unwrap()),
                    (to.try_clone().unwrap(), from.try_clone().unwrap()),
                ] {
                    std::thread::spawn(move || {
                        // However it ended, the other side ends too.
                        let _ = io::copy(&mut source, &mut sink);
                        let _ = sink.shutdown(Shutdown::Both);
                    });
                }
                target.open.push(from);
            }
        });
        Self { address, target }
    }

    /// Breaks what is open and leads elsewhere from now on.
    pub fn lead_to(&self, to: SocketAddr) {
        let mut target = self.target.lock().unwrap();
        target.to = to;
        for stream in target.open.drain(..) {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Impostor {
    pub fn start(alpn: &[u8]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shown = Arc::new(Shown::default());
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&shown) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![alpn.to_vec()];
        let (config, present) = (Arc::new(config), Arc::clone(&shown));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (config, present) = (Arc::clone(&config), Arc::clone(&present));
                std::thread::spawn(move || serve(stream.unwrap(), config, &present));
            }
        });
        Self { address, shown }
    }

    pub fn show(&self, shown: Option<Arc<CertifiedKey>>) {
        *self.shown.0.lock().unwrap() = shown;
    }
}

/// A client that accepts it gets an answer that no honest server gives.
const TAKEN_IN: &[u8] = b"HTTP/1.1 299 TAKEN IN\r\ncontent-length: 0\r\n\r\n";

fn serve(mut socket: TcpStream, config: Arc<ServerConfig>, shown: &Shown) {
    let plain = shown.0.lock().unwrap().is_none();
    // The other end may have hung up at any point, which is what it should do.
    if plain {
        let _ = socket.write_all(TAKEN_IN);
        let _ = socket.read(&mut [0; 1024]);
        return;
    }
    let mut tls = ServerConnection::new(config).unwrap();
    let mut stream = Stream::new(&mut tls, &mut socket);
    if stream.read(&mut [0; 1024]).is_ok() {
        let _ = stream.write_all(TAKEN_IN);
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.lock().unwrap().clone()
    }
}
