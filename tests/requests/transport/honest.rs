//! A caller that requests little and gets all of it: on a connection that it reuses and on
//! a new one, alternately.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde::Serialize;

use crate::transport::line::Aim;
use crate::transport::world::Ask;

/// Rest between two requests.
const PAUSE: Duration = Duration::from_millis(10);
/// What is not there after this is lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// What it saw.
#[derive(Serialize, Debug, Default, Clone)]
pub(crate) struct Seen {
    pub(crate) requests: usize,
    pub(crate) failed: usize,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    /// Why the first few failed.
    #[serde(skip)]
    pub(crate) why: Vec<String>,
}

/// Calls until stopped, and at least `least` times.
pub(crate) fn ask_until(aim: &Aim, ask: &Ask, least: usize, stop: &AtomicBool) -> Seen {
    let (mut times, mut kept) = (Times::default(), None);
    while times.seen.requests < least || !stop.load(Ordering::Relaxed) {
        let is_new = times.seen.requests % 2 == 1 || !ask.keeps;
        let began = Instant::now();
        let (how, answered) = if is_new {
            ("new", Caller::open(aim).and_then(|mut caller| caller.ask(ask)))
        } else {
            ("kept", again(&mut kept, aim, ask))
        };
        times.note(began.elapsed(), answered, how);
        std::thread::sleep(PAUSE);
    }
    times.seen()
}

fn again(kept: &mut Option<Caller>, aim: &Aim, ask: &Ask) -> io::Result<()> {
    let mut caller = match kept.take() {
        Some(caller) => caller,
        None => Caller::open(aim)?,
    };
    caller.ask(ask)?;
    *kept = Some(caller);
    Ok(())
}

/// A caller that came before the others.
pub(crate) struct EarlyCaller<'a> {
    caller: io::Result<Caller>,
    ask: &'a Ask,
}

impl<'a> EarlyCaller<'a> {
    /// Asks once.
    pub(crate) fn open(aim: &Aim, ask: &'a Ask) -> Self {
        let caller = Caller::open(aim).and_then(|mut caller| {
            caller.ask(ask)?;
            Ok(caller)
        });
        Self { caller, ask }
    }

    /// Asks again and again on its one connection.
    pub(crate) fn ask_for(&mut self, within: Duration) -> Seen {
        let (began, mut times) = (Instant::now(), Times::default());
        while times.seen.requests == 0 || began.elapsed() < within {
            let asked = Instant::now();
            let answered = match &mut self.caller {
                Ok(caller) => caller.ask(self.ask),
                Err(error) => Err(io::Error::other(error.to_string())),
            };
            times.note(asked.elapsed(), answered, "kept");
            std::thread::sleep(PAUSE);
        }
        times.seen()
    }
}

/// What it saw, while it sees it.
#[derive(Default)]
struct Times {
    seen: Seen,
    took: Vec<Duration>,
}

impl Times {
    fn note(&mut self, took: Duration, answered: io::Result<()>, how: &str) {
        self.took.push(took);
        self.seen.requests += 1;
        if let Err(error) = answered {
            self.seen.failed += 1;
            if self.seen.why.len() < 3 {
                self.seen.why.push(format!("on a {how} connection: {error}"));
            }
        }
    }

    fn seen(mut self) -> Seen {
        self.took.sort_unstable();
        let at = |share: f64| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
            let index = (self.took.len() as f64 * share) as usize;
            self.took[index.min(self.took.len() - 1)].as_secs_f64() * 1e3
        };
        (self.seen.p50_ms, self.seen.p99_ms, self.seen.max_ms) = (at(0.5), at(0.99), at(1.0));
        self.seen
    }
}

/// A connection, with TLS or without.
struct Caller(Box<dyn ReadWrite>);

impl Caller {
    fn open(aim: &Aim) -> io::Result<Self> {
        let socket = aim.dial()?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(match &aim.tls {
            None => Box::new(socket),
            Some((config, name)) => {
                let name = ServerName::try_from(name.clone()).unwrap();
                let tls = ClientConnection::new(Arc::clone(config), name).unwrap();
                Box::new(StreamOwned::new(tls, socket))
            }
        }))
    }

    /// Sends and waits for the whole of a good answer.
    fn ask(&mut self, ask: &Ask) -> io::Result<()> {
        self.0.write_all(&ask.bytes)?;
        let mut heard = Vec::new();
        let mut chunk = [0; 4096];
        while !(ask.is_answered)(&heard) {
            match self.0.read(&mut chunk)? {
                0 => return Err(io::Error::other(format!("closed after {}", text(&heard)))),
                count => heard.extend_from_slice(&chunk[..count]),
            }
            if heard.len() > 64 * 1024 || heard.starts_with(b"HTTP/1.1 ") && !is_good(&heard) {
                return Err(io::Error::other(text(&heard)));
            }
        }
        Ok(())
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

fn is_good(heard: &[u8]) -> bool {
    heard.get(9..12).is_none_or(|status| status == b"200")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(400)]).into_owned()
}
