//! An attacker that opens connections and floods each until it is closed, then opens the next; and
//! its cost.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_send_buffer_size;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use tollway_testkit::thread_cpu_time;

use crate::h2_frames::{ACK, PING, count, frame, hello};

/// How long a write may wait for a listener that does not read.
const WRITE_WITHIN: Duration = Duration::from_millis(100);

/// What an attacker rests when nothing can be sent.
const REST: Duration = Duration::from_millis(5);

/// The target, and the TLS identity.
#[derive(Clone)]
pub struct Aim {
    pub address: SocketAddr,
    pub tls: Option<(Arc<ClientConfig>, String)>,
}

/// What one attack sends on each connection. All of it is made beforehand: a real attacker has it
/// ready, and pays for sending alone.
pub struct Attack {
    /// The preface, SETTINGS, and what comes first.
    opening: Part,
    parts: Vec<Part>,
    then: Then,
}

/// What is sent at once.
struct Part {
    bytes: Vec<u8>,
    frames: u64,
}

/// What follows behind the last part.
enum Then {
    /// The same again.
    Again,
    /// Nothing, and the connection stays.
    Silence,
    /// Opens another connection, once the listener has processed all that came on this one.
    Anew,
}

/// As much goes out at once, so that an attacker pays for few system calls.
const PART_BYTES: usize = 64 << 10;
/// What is made beforehand of what is different each time: a listener ends most attacks before that.
const PREPARED_BYTES: usize = 4 << 20;

impl Attack {
    /// `piece`, again and again.
    pub fn again(opening: Vec<u8>, piece: &[u8]) -> Self {
        let part = Part::of(piece.repeat(PART_BYTES.div_ceil(piece.len())));
        Self::new(opening, vec![part], Then::Again)
    }

    /// The opening alone.
    pub fn once(opening: Vec<u8>) -> Self {
        Self::new(opening, Vec::new(), Then::Silence)
    }

    /// Pieces that are different each time, made by their number.
    pub fn numbered(opening: Vec<u8>, piece: impl Fn(u32) -> Vec<u8>) -> Self {
        let (mut parts, mut bytes, mut prepared) = (Vec::new(), Vec::new(), 0);
        for piece in (0..).map(piece) {
            bytes.extend(piece);
            if bytes.len() >= PART_BYTES {
                prepared += bytes.len();
                parts.push(Part::of(std::mem::take(&mut bytes)));
            }
            if prepared >= PREPARED_BYTES {
                break;
            }
        }
        Self::new(opening, parts, Then::Anew)
    }

    fn new(opening: Vec<u8>, parts: Vec<Part>, then: Then) -> Self {
        let frames = count(&opening);
        Self { opening: Part { bytes: [hello(), opening].concat(), frames }, parts, then }
    }
}

impl Part {
    fn of(bytes: Vec<u8>) -> Self {
        let frames = count(&bytes);
        Self { bytes, frames }
    }
}

/// What an attack cost the attacker, and how far it got.
#[derive(Debug, Default)]
pub struct Spent {
    pub cpu: Duration,
    pub lasted: Duration,
    /// Those that were sent behind the SETTINGS.
    pub frames: u64,
    pub connections: u32,
    /// Those that the listener ended.
    pub ended: u32,
}

/// Attacks until `is_over` returns true, without waiting.
pub fn attack(aim: &Aim, attack: &Attack, is_over: &dyn Fn(&Spent) -> bool) -> Spent {
    let (before, began) = (own_cpu_time(), Instant::now());
    let mut spent = Spent::default();
    while !is_over(&spent) {
        spent.connections += 1;
        if flood(aim, attack, &mut spent, is_over).is_err() {
            spent.ended += 1;
        }
    }
    spent.lasted = began.elapsed();
    spent.cpu = own_cpu_time() - before;
    spent
}

/// The kernel counts what a thread has used when it rests, not while it runs.
fn own_cpu_time() -> Duration {
    std::thread::sleep(REST);
    thread_cpu_time().unwrap()
}

/// One connection. An error means that the listener has ended it.
fn flood(
    aim: &Aim,
    attack: &Attack,
    spent: &mut Spent,
    is_over: &dyn Fn(&Spent) -> bool,
) -> io::Result<()> {
    let mut wire = Wire::open(aim)?;
    // Bytes under way when the listener ends the connection were paid for in vain.
    set_socket_send_buffer_size(wire.stream.socket(), PART_BYTES)?;
    spent.frames += attack.opening.frames;
    let mut is_all_sent = wire.send(&attack.opening.bytes)?;
    let mut next = 0;
    while !is_over(spent) {
        wire.take()?;
        if next == attack.parts.len() {
            match attack.then {
                Then::Again => next = 0,
                Then::Anew => return until_looked_at(&mut wire, &|| is_over(spent)),
                Then::Silence => {}
            }
        }
        is_all_sent = match attack.parts.get(next).filter(|_| is_all_sent) {
            Some(part) => {
                next += 1;
                spent.frames += part.frames;
                wire.send(&part.bytes)?
            }
            None => {
                std::thread::sleep(REST);
                wire.send(&[])?
            }
        };
    }
    Ok(())
}

/// Waits until the listener has processed everything that was sent.
fn until_looked_at(wire: &mut Wire, is_over: &dyn Fn() -> bool) -> io::Result<()> {
    const LAST: &[u8] = b"the last";
    let answer = frame(PING, ACK, 0, LAST);
    let mut came = Vec::new();
    wire.send(&frame(PING, 0, 0, LAST))?;
    while !is_over() && !came.windows(answer.len()).any(|part| part == answer) {
        came.drain(..came.len().saturating_sub(answer.len()));
        std::thread::sleep(REST);
        wire.send(&[])?;
        came.extend(wire.take()?);
    }
    Ok(())
}

/// A connection that is written to whether or not the peer reads.
pub struct Wire {
    stream: Box<dyn Stream>,
    /// What the listener did not take yet.
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
    pub fn open(aim: &Aim) -> io::Result<Self> {
        Self::open_within(aim, None)
    }

    /// The same; an error where the listener sends nothing for so long in the handshake.
    pub fn open_within(aim: &Aim, within: Option<Duration>) -> io::Result<Self> {
        let socket = TcpStream::connect(aim.address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(within)?;
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
        stream.socket().set_read_timeout(None)?;
        stream.socket().set_write_timeout(Some(WRITE_WITHIN))?;
        Ok(Self { stream, unsent: Vec::new() })
    }

    /// Writes `bytes` behind what was left before; false if the listener does not take them all now.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<bool> {
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

    /// How much was taken before the listener stopped taking.
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

    /// Takes what has come and waits for nothing; an error once the listener has closed and everything
    /// that came before is taken.
    pub fn take(&mut self) -> io::Result<Vec<u8>> {
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
                Ok(count) if count > 0 => all.extend_from_slice(&chunk[..count]),
                Err(error) if is_pause(&error) => return Ok(all),
                _ if !all.is_empty() => return Ok(all),
                Ok(_) => return Err(ErrorKind::ConnectionAborted.into()),
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
