//! Round-trip time over a link, measured at the level the requests use: a TCP stream.
//!
//! Probes leave at fixed times, a few in transit at once, so that a long link does not need a long
//! measurement. The first warm the stream up and are not counted.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Length of a probe: the time it was sent, in nanoseconds of the sender's clock.
const PROBE_BYTES: usize = 8;
/// Connections one responder answers at a time.
const CONNECTIONS_LIMIT: usize = 16;

/// How many probes are sent, and how far apart.
#[derive(Debug, Clone, Copy)]
pub struct PingPlan {
    pub warm_up: u32,
    pub probes: u32,
    pub interval: Duration,
    /// Longest wait for an answer.
    pub timeout: Duration,
}

impl PingPlan {
    /// Probes for a link of about this round trip: never more in transit than TCP sends at its
    /// start, or they would wait for each other.
    #[must_use]
    pub fn over(rtt: Duration) -> Self {
        const ON_THE_WAY: u32 = 6;
        const INTERVAL_MIN: Duration = Duration::from_millis(5);
        let interval = INTERVAL_MIN.max(rtt / ON_THE_WAY);
        Self { warm_up: 4, probes: 30, interval, timeout: Duration::from_secs(5) }
    }

    /// How long they take over a link of that round trip, with the connection.
    #[must_use]
    pub fn duration(&self, rtt: Duration) -> Duration {
        self.interval * (self.warm_up + self.probes) + rtt * 2
    }
}

/// Why there is no round-trip time.
#[derive(Debug, thiserror::Error)]
pub enum PingError {
    #[error("cannot listen on {address} for probes")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot reach {to} with a probe")]
    Connect { to: SocketAddr, source: io::Error },
    #[error("a probe to {to} failed or was not answered in time")]
    Probe { to: SocketAddr, source: io::Error },
}

/// Sends probes and returns each counted round trip, in the order sent. Sockets belong to the
/// network namespace of the calling thread.
pub fn ping(to: SocketAddr, plan: PingPlan) -> Result<Vec<Duration>, PingError> {
    let connect = |source| PingError::Connect { to, source };
    let failed = |source| PingError::Probe { to, source };
    let stream = TcpStream::connect_timeout(&to, plan.timeout).map_err(connect)?;
    stream.set_nodelay(true).map_err(connect)?;
    stream.set_read_timeout(Some(plan.timeout)).map_err(connect)?;
    let start = Instant::now();
    let count = plan.warm_up + plan.probes;
    thread::scope(|scope| {
        let sending = scope.spawn(|| send_probes(&stream, start, count, plan.interval));
        let received = receive_probes(&stream, start, count);
        if received.is_err() {
            // Ends the sender as well.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        let sent = sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let times = received.map_err(failed)?;
        sent.map_err(failed)?;
        Ok(times[plan.warm_up as usize..].to_vec())
    })
}

fn send_probes(
    mut stream: &TcpStream,
    start: Instant,
    count: u32,
    interval: Duration,
) -> io::Result<()> {
    for number in 0..count {
        thread::sleep((interval * number).saturating_sub(start.elapsed()));
        let sent = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        stream.write_all(&sent.to_be_bytes())?;
    }
    Ok(())
}

fn receive_probes(mut stream: &TcpStream, start: Instant, count: u32) -> io::Result<Vec<Duration>> {
    let mut probe = [0; PROBE_BYTES];
    let mut times = Vec::new();
    for _ in 0..count {
        stream.read_exact(&mut probe)?;
        let sent = Duration::from_nanos(u64::from_be_bytes(probe));
        times.push(start.elapsed().saturating_sub(sent));
    }
    Ok(times)
}

/// Answers probes until dropped.
#[derive(Debug)]
pub struct Responder {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Responder {
    /// Listens in the calling thread's network namespace.
    pub fn start(address: SocketAddr) -> Result<Self, PingError> {
        let failed = |source| PingError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let stopping = Arc::<AtomicBool>::default();
        let flag = Arc::clone(&stopping);
        let accepting = thread::Builder::new()
            .name("ping responder".into())
            .spawn(move || answer_all(&listener, &flag))
            .map_err(failed)?;
        Ok(Self { address, stopping, accepting: Some(accepting) })
    }

    /// Where probes are answered.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops answering. Call it in the responder's namespace: from elsewhere the listener cannot
    /// be woken, and its thread stays until the process ends.
    pub fn stop(mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        if TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).is_ok()
            && let Some(accepting) = self.accepting.take()
        {
            let _ = accepting.join();
        }
    }
}

fn answer_all(listener: &TcpListener, stopping: &AtomicBool) {
    let mut answering: Vec<JoinHandle<()>> = Vec::new();
    for stream in listener.incoming() {
        if stopping.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else { continue };
        answering.retain(|thread| !thread.is_finished());
        if answering.len() < CONNECTIONS_LIMIT {
            let answer = thread::Builder::new().spawn(move || {
                // The prober closes the connection when it is done.
                let _ = answer_one(&stream);
            });
            answering.extend(answer);
        }
    }
}

fn answer_one(mut stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = [0; 64 * PROBE_BYTES];
    loop {
        let length = stream.read(&mut bytes)?;
        if length == 0 {
            return Ok(());
        }
        stream.write_all(&bytes[..length])?;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tollway_testkit::ClosedPort;

    use super::*;

    #[test]
    fn every_counted_probe_has_a_time() {
        let responder = Responder::start("127.0.0.1:0".parse().unwrap()).unwrap();
        let plan = PingPlan::over(Duration::ZERO);
        let times = ping(responder.address(), plan).unwrap();
        assert_eq!(times.len(), 30);
        assert!(times.iter().all(|&t| t > Duration::ZERO && t < Duration::from_secs(1)));
        responder.stop();
    }

    #[test]
    fn a_closed_port_is_an_error_with_the_address() {
        let nobody = ClosedPort::on(Ipv4Addr::LOCALHOST).unwrap();
        let gone = nobody.address();
        let error = ping(gone, PingPlan::over(Duration::ZERO)).unwrap_err().to_string();
        assert!(error.contains(&gone.to_string()), "{error}");
    }

    #[test]
    fn silence_ends_with_the_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let plan =
            PingPlan { timeout: Duration::from_millis(50), ..PingPlan::over(Duration::ZERO) };
        let error = ping(listener.local_addr().unwrap(), plan).unwrap_err();
        assert!(matches!(error, PingError::Probe { .. }), "{error}");
    }
}
