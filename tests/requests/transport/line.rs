//! One connection of a misbehaving peer: bytes go out raw, singly if wanted, and what comes back is
//! read without waiting for it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use tollway_net::bind_source;

use tollway_tests::h2_frames::{ACK, Frame, PING, frame};

/// The most received bytes that are stored.
const HEARD_BYTES: usize = 4096;
/// Longest wait for one step of a handshake.
const STEP: Duration = Duration::from_secs(30);

/// The identity, and the server name.
pub(crate) type Tls = (Arc<ClientConfig>, String);

/// The target, the source address, and the TLS identity.
#[derive(Clone)]
pub(crate) struct Aim {
    pub(crate) from: IpAddr,
    pub(crate) to: SocketAddr,
    pub(crate) tls: Option<Tls>,
}

impl Aim {
    /// The aim without TLS.
    pub(crate) fn bare(&self) -> Self {
        Self { tls: None, ..self.clone() }
    }

    pub(crate) fn from(&self, from: IpAddr) -> Self {
        Self { from, ..self.clone() }
    }

    pub(crate) fn dial(&self) -> io::Result<TcpStream> {
        // Processes are started meanwhile that must not inherit it.
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        bind_source(&socket, self.from)?;
        connect(&socket, &self.to)?;
        Ok(TcpStream::from(socket))
    }
}

pub(crate) struct Line {
    socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
    /// The first bytes that came.
    pub(crate) heard: Vec<u8>,
    /// How many came.
    pub(crate) taken: u64,
    pub(crate) began: Instant,
    /// How long it lasted until the other side ended it.
    pub(crate) ended_after: Option<Duration>,
    /// Pings that are answered.
    answered: usize,
}

impl Line {
    /// Connected and, if the aim has TLS, authenticated; waits for nothing from then on.
    pub(crate) fn open(aim: &Aim) -> io::Result<Self> {
        let mut socket = aim.dial()?;
        socket.set_nodelay(true)?;
        let mut tls = None;
        if let Some((config, name)) = &aim.tls {
            socket.set_read_timeout(Some(STEP))?;
            let name = ServerName::try_from(name.clone()).unwrap();
            let mut session = Box::new(ClientConnection::new(Arc::clone(config), name).unwrap());
            while session.is_handshaking() {
                session.complete_io(&mut socket)?;
            }
            tls = Some(session);
        }
        socket.set_nonblocking(true)?;
        let began = Instant::now();
        Ok(Self { socket, tls, heard: Vec::new(), taken: 0, began, ended_after: None, answered: 0 })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.ended_after.is_none()
    }

    /// Sends a little, which always fits; whether it was of use shows in what comes back.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let sent = match &mut self.tls {
            None => (&self.socket).write(bytes).map(drop),
            Some(tls) => tls.writer().write_all(bytes).and_then(|()| {
                while tls.wants_write() {
                    tls.write_tls(&mut self.socket)?;
                }
                Ok(())
            }),
        };
        if sent.is_err_and(|error| !is_pause(&error)) {
            self.end();
        }
    }

    /// Takes what has come.
    pub(crate) fn look(&mut self) {
        while self.is_open() && self.sip(64 * 1024) {}
    }

    /// Takes what has come, and answers the pings of HTTP/2 in it: who does not is ended for that.
    pub(crate) fn keep_alive(&mut self) {
        self.look();
        if self.heard.starts_with(b"HTTP/1.1 ") {
            return;
        }
        let is_ping = |frame: &Frame| frame.kind == PING && frame.flags & ACK == 0;
        let pings = Frame::all(&self.heard).into_iter().filter(is_ping).skip(self.answered);
        for ping in pings.collect::<Vec<_>>() {
            self.send(&frame(PING, ACK, 0, &ping.payload));
            self.answered += 1;
        }
    }

    /// Takes at most so many bytes off the wire. Says whether there were any.
    pub(crate) fn sip(&mut self, most: usize) -> bool {
        let mut bytes = vec![0; most];
        match self.socket.read(&mut bytes) {
            Ok(0) => self.end(),
            Ok(count) => {
                self.take(&bytes[..count]);
                return true;
            }
            Err(error) if is_pause(&error) => {}
            Err(_) => self.end(),
        }
        false
    }

    fn take(&mut self, mut wire: &[u8]) {
        let Some(tls) = &mut self.tls else { return self.note(wire.len(), wire) };
        let mut plain = Vec::new();
        while !wire.is_empty() {
            let read = tls.read_tls(&mut wire).unwrap_or(0);
            if read == 0 || tls.process_new_packets().is_err() {
                break;
            }
            // There is no more for now.
            let _ = tls.reader().read_to_end(&mut plain);
        }
        self.note(plain.len(), &plain);
    }

    fn note(&mut self, count: usize, bytes: &[u8]) {
        self.taken += count as u64;
        let room = HEARD_BYTES.saturating_sub(self.heard.len());
        self.heard.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn end(&mut self) {
        self.ended_after.get_or_insert(self.began.elapsed());
    }

    /// What was waited for has come.
    pub(crate) fn finish(&mut self) {
        self.end();
    }

    /// Whether the other side has given the connection up, also where much of what it sent before
    /// is not taken yet.
    pub(crate) fn is_hung_up(&self) -> bool {
        let mut of_socket = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut of_socket, Some(&now)).is_ok_and(|count| count > 0)
    }

    /// Takes what was sent before the end.
    pub(crate) fn look_at_rest(&mut self) {
        let ended_after = self.ended_after.take();
        self.look();
        self.ended_after = ended_after;
    }

    /// Goes away with a reset.
    pub(crate) fn reset(self) {
        let _ = rustix::net::sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
    }

    /// The status that was answered and the code in the answer, if there was one.
    pub(crate) fn answer(&self) -> String {
        let text = String::from_utf8_lossy(&self.heard);
        let status = text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
        let code = text.split('"').find(|word| word.starts_with("ERR_"));
        match (status, code) {
            (Some(status), Some(code)) => format!("{status} {code}"),
            (Some(status), None) => status.to_owned(),
            (None, _) => "closed".to_owned(),
        }
    }
}

pub(crate) fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
