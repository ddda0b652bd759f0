//! Somebody who opens connections and floods each until it is closed, then opens the next; and
//! what that costs him.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use tollway_testkit::thread_cpu_time;

use super::frames::hello;

/// How long a write may wait for a door that does not read.
const WRITE_WITHIN: Duration = Duration::from_millis(100);

/// What an attacker rests when nothing can be sent.
const REST: Duration = Duration::from_millis(5);

/// Where to, and with TLS as whom.
#[derive(Clone)]
pub(crate) struct Aim {
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<(Arc<ClientConfig>, String)>,
}

/// What one attack sends on each connection.
pub(crate) struct Attack<'a> {
    /// Behind the preface and SETTINGS.
    pub(crate) opening: Vec<u8>,
    /// The nth of the pieces that follow; an empty one is a moment of silence.
    pub(crate) next: Box<dyn Fn(u32) -> Vec<u8> + Send + Sync + 'a>,
}

/// What an attack cost the attacker, and how far it got.
#[derive(Debug)]
pub(crate) struct Spent {
    pub(crate) cpu: Duration,
    pub(crate) connections: u32,
    /// Those that the door ended.
    pub(crate) ended: u32,
}

/// Attacks until `is_over` says so, and waits for nobody.
pub(crate) fn attack(aim: &Aim, attack: &Attack<'_>, is_over: &dyn Fn(&Spent) -> bool) -> Spent {
    let before = thread_cpu_time().unwrap();
    let mut spent = Spent { cpu: Duration::ZERO, connections: 0, ended: 0 };
    while !is_over(&spent) {
        spent.connections += 1;
        if flood(aim, attack, &|| is_over(&spent)).is_err() {
            spent.ended += 1;
        }
    }
    spent.cpu = thread_cpu_time().unwrap() - before;
    spent
}

/// One connection. An error means that the door has ended it.
fn flood(aim: &Aim, attack: &Attack<'_>, is_over: &dyn Fn() -> bool) -> io::Result<()> {
    let mut wire = Wire::open(aim)?;
    wire.send(&[&hello()[..], &attack.opening].concat())?;
    for nth in 0.. {
        wire.take()?;
        if is_over() {
            break;
        }
        let piece = (attack.next)(nth);
        if piece.is_empty() || !wire.send(&piece)? {
            std::thread::sleep(REST);
        }
    }
    Ok(())
}

/// A connection that is written to whether or not anybody reads.
pub(crate) struct Wire {
    stream: Box<dyn Stream>,
    /// What the door did not take yet.
    unsent: Vec<u8>,
}

/// A connection with TLS or without.
trait Stream: Read + Write {
    fn socket(&self) -> &TcpStream;
}

impl Stream for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl Stream for StreamOwned<ClientConnection, TcpStream> {
    fn socket(&self) -> &TcpStream {
        &self.sock
    }
}

impl Wire {
    pub(crate) fn open(aim: &Aim) -> io::Result<Self> {
        let socket = TcpStream::connect(aim.address)?;
        socket.set_nodelay(true)?;
        let stream: Box<dyn Stream> = match &aim.tls {
            None => Box::new(socket),
            Some((config, name)) => {
                let name = ServerName::try_from(name.clone()).unwrap();
                let tls = ClientConnection::new(Arc::clone(config), name).unwrap();
                let mut stream = StreamOwned::new(tls, socket);
                while stream.conn.is_handshaking() {
                    stream.conn.complete_io(&mut stream.sock)?;
                }
                Box::new(stream)
            }
        };
        stream.socket().set_write_timeout(Some(WRITE_WITHIN))?;
        Ok(Self { stream, unsent: Vec::new() })
    }

    /// Writes `bytes` behind what was left before; false if the door does not take them all now.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<bool> {
        if self.unsent.is_empty() {
            let sent = self.write(bytes)?;
            self.unsent.extend_from_slice(&bytes[sent..]);
        } else {
            let unsent = std::mem::take(&mut self.unsent);
            let sent = self.write(&unsent)?;
            self.unsent = [&unsent[sent..], bytes].concat();
        }
        Ok(self.unsent.is_empty())
    }

    /// How much was taken before the door stopped taking.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.write(&bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if is_pause(&error) => break,
                Err(error) => return Err(error),
            }
        }
        match self.stream.flush() {
            Err(error) if !is_pause(&error) => Err(error),
            _ => Ok(sent),
        }
    }

    /// Takes what has come and waits for nothing; an error once the door has closed.
    pub(crate) fn take(&mut self) -> io::Result<Vec<u8>> {
        self.stream.socket().set_nonblocking(true)?;
        let taken = self.take_ready();
        self.stream.socket().set_nonblocking(false)?;
        taken
    }

    fn take_ready(&mut self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut chunk = [0; 64 * 1024];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::ConnectionAborted.into()),
                Ok(count) => all.extend_from_slice(&chunk[..count]),
                Err(error) if is_pause(&error) => return Ok(all),
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
