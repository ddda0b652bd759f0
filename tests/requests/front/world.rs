//! A front with its app and files, and clients of it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion, version,
};
use tollway_testkit::{Process, Start, TempDir, binary, retry_until};

use tollway_tests::pki::{Authority, Pair, showing, write};
use tollway_tests::scripted_app::{App, Script, answers};

/// Far more than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const HOST: &str = "a.example";

/// Counts the files that a front has served with; the first are 1.
pub(crate) const REVISION: &str = "tollway_front_certificates_revision";

/// Waits until a front serves with files that were changed.
#[track_caller]
pub(crate) fn until_revision(front: &Process, revision: u64) {
    let is_served = || (front.metric(REVISION).unwrap() == revision).then_some(());
    retry_until(PATIENCE, "the new files", is_served).unwrap();
}

/// A folder with files of certificates, and the authority that made them.
pub(crate) struct Files {
    pub(crate) dir: TempDir,
    pub(crate) authority: Authority,
    pub(crate) pair: Pair,
}

/// A front with one certificate, for [`HOST`].
pub(crate) struct World {
    pub(crate) files: Files,
    pub(crate) app: App,
    pub(crate) front: Process,
}

/// An echo server and a front of it.
pub(crate) struct Echo {
    pub(crate) files: Files,
    _app: Process,
    pub(crate) front: Process,
}

pub(crate) fn tollway() -> Start {
    Start::new(binary("tollway").unwrap()).ready_within(PATIENCE)
}

impl Files {
    /// `a.pem`, `a.key` and `ca.pem`.
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let authority = Authority::new("authority of the tests");
        let pair = authority.server(&[HOST, "127.0.0.1"]);
        pair.write(dir.path(), "a");
        write(dir.path(), "ca.pem", &authority.root);
        Self { dir, authority, pair }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// A front for `app` that listens; `a` is its first certificate.
    pub(crate) fn front(&self, app: &str, options: &[&str]) -> Process {
        tollway()
            .args(["front", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
            .args(["--cert", &self.path("a.pem"), "--key", &self.path("a.key"), "--to", app])
            .args(options)
            .start_listening()
            .unwrap()
    }

    /// A client that believes the authority.
    pub(crate) fn client(&self) -> ClientConfig {
        client_of(&self.authority.root, None, &[&version::TLS13, &version::TLS12])
    }

    /// That client, connected to a front of this certificate.
    pub(crate) fn connect(&self, front: &Process) -> Https {
        let address = front.port("front").unwrap();
        Https::connect(address, HOST, Arc::new(self.client())).unwrap()
    }
}

impl World {
    pub(crate) fn start(script: Script, options: &[&str]) -> Self {
        let (files, app) = (Files::new(), App::start(script));
        let front = files.front(&format!("http://{}", app.address), options);
        Self { files, app, front }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.front.port("front").unwrap()
    }

    /// One request by `config`; the whole answer as text.
    pub(crate) fn ask(&self, config: ClientConfig, request: &str) -> Result<String, String> {
        Https::connect(self.address(), HOST, Arc::new(config))?.ask(request)
    }

    pub(crate) fn metric(&self, name: &str) -> u64 {
        self.front.metric(name).unwrap()
    }
}

impl Echo {
    /// The front connects to its app by `scheme`.
    pub(crate) fn start(scheme: &str) -> Self {
        let files = Files::new();
        let app = tollway().args(["echo", "--http", "127.0.0.1:0"]).start_listening().unwrap();
        let to = format!("{scheme}://{}", app.port("http").unwrap());
        let front = files.front(&to, &[]);
        Self { files, _app: app, front }
    }

    pub(crate) fn port(&self) -> u16 {
        self.front.port("front").unwrap().port()
    }

    pub(crate) fn connect(&self) -> Https {
        self.files.connect(&self.front)
    }
}

/// An HTTP/1.1 connection over TLS.
pub(crate) struct Https(pub(crate) StreamOwned<ClientConnection, TcpStream>);

impl Https {
    /// Connected, with the handshake over as far as the client can determine.
    pub(crate) fn connect(
        address: SocketAddr,
        name: &str,
        config: Arc<ClientConfig>,
    ) -> Result<Self, String> {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut tls = ClientConnection::new(config, name).unwrap();
        let mut socket = socket;
        while tls.is_handshaking() {
            tls.complete_io(&mut socket).map_err(|error| error.to_string())?;
        }
        Ok(Self(StreamOwned::new(tls, socket)))
    }

    /// Sends a request and reads an answer with a length.
    pub(crate) fn ask(&mut self, request: &str) -> Result<String, String> {
        self.0.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
        let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            let count = self.0.read(&mut piece).map_err(|error| error.to_string())?;
            if count == 0 {
                return Err(format!("closed after {} bytes", bytes.len()));
            }
            bytes.extend_from_slice(&piece[..count]);
            if answers(&bytes) > 0 {
                return Ok(String::from_utf8_lossy(&bytes).into_owned());
            }
        }
    }

    /// The certificate that the server showed.
    pub(crate) fn shown(&self) -> CertificateDer<'static> {
        self.0.conn.peer_certificates().unwrap()[0].clone().into_owned()
    }
}

/// A client that trusts `root`, and presents `shown` on request.
pub(crate) fn client_of(
    root: &str,
    shown: Option<Arc<CertifiedKey>>,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    client_over(b"http/1.1", root, shown, versions)
}

/// A client with `alpn`.
pub(crate) fn client_over(
    alpn: &[u8],
    root: &str,
    shown: Option<Arc<CertifiedKey>>,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(root.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    showing(builder, shown, alpn)
}

pub(crate) fn get(path: &str) -> String {
    request("GET", path, "")
}

/// `fields` are whole lines.
pub(crate) fn request(method: &str, path: &str, fields: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: {HOST}\r\n{fields}\r\n")
}

/// The connection of a front to `app` on which a request begins to come.
pub(crate) fn request_of(app: &TcpListener) -> TcpStream {
    app.set_nonblocking(true).unwrap();
    let came = || {
        let (mut stream, _) = app.accept().ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // A probe of the app sends nothing.
        stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0).then_some(stream)
    };
    retry_until(PATIENCE, "the request at the app", came).unwrap()
}
