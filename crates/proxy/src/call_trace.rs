//! What is recorded of a request for its call trace, until the response carries it.
//!
//! Only requests that ask for a trace have it, and only for them the clock is read more than once
//! a pass. The form of the trace is `model`'s.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustls::{CipherSuite, ProtocolVersion};
use tollway_http::ResponseHead;
use tollway_model::ErrorCode;
use tollway_model::call_trace::{
    Admission, CalleePart, Connection as TracedConnection, EgressTaken, FAILED_ATTEMPTS_LIMIT,
    FailedAttempt, Failure, Fault, OverLimit, Service, Stage, Times, Tls,
};
use tollway_net::Agreed;
use tollway_routing::Mishap;

use crate::conn::{Connection, Opened};
use crate::headers;

/// Longest name of a hop that is passed on from a peer, in bytes.
const HOP_BYTES: usize = 256;

/// The part of the call trace that this sidecar records.
pub(crate) enum TracePart {
    Caller(Box<CallerTrace>),
    Callee(Box<CalleeTrace>),
}

/// In the caller's sidecar.
#[derive(Default)]
pub(crate) struct CallerTrace {
    waits: Option<(WaitsFor, Instant)>,
    discovery: Option<Duration>,
    in_line: Option<Duration>,
    sent: Option<Instant>,
    failed: Option<Duration>,
    pub(crate) failed_attempts: Vec<FailedAttempt>,
    pub(crate) connection: Option<TracedConnection>,
    /// Of the connection, if it is new.
    opened: Option<Opened>,
    /// What the callee's sidecar reported.
    callee: Option<CalleePart>,
    pub(crate) failure: Option<Failure>,
    /// What was known of the service when the request was dispatched last.
    pub(crate) service: Option<Service>,
    pub(crate) fault: Option<Fault>,
    pub(crate) egress: Option<EgressTaken>,
}

/// In the callee's sidecar.
pub(crate) struct CalleeTrace {
    pub(crate) admission: Admission,
    pub(crate) limit: Option<OverLimit>,
    pub(crate) sent: Option<Instant>,
}

/// What a request is held up by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    Discovery,
    Connection,
}

impl CallerTrace {
    /// The request goes wrong on purpose.
    pub(crate) fn note_fault(&mut self, mishap: Mishap) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (delay_us, is_aborted) = (mishap.delay.map(micros), mishap.abort.is_some());
        self.fault = Some(Fault { delay_us, is_aborted });
    }

    pub(crate) fn wait(&mut self, what: WaitsFor, now: Instant) {
        self.end_wait(now);
        self.waits = Some((what, now));
    }

    fn end_wait(&mut self, now: Instant) {
        let Some((what, since)) = self.waits.take() else { return };
        let total = match what {
            WaitsFor::Discovery => &mut self.discovery,
            WaitsFor::Connection => &mut self.in_line,
        };
        *total.get_or_insert_default() += now.saturating_duration_since(since);
    }

    /// An attempt begins on a connection, for a request that came at `started`.
    pub(crate) fn send(&mut self, conn: &Connection, started: Instant, now: Instant) {
        self.end_wait(now);
        self.sent = Some(now);
        self.opened = conn.opened().copied().filter(|opened| opened.at >= started);
        self.connection = conn.peer.as_ref().map(|peer| TracedConnection {
            address: conn.remote.map(|address| address.to_string()).unwrap_or_default(),
            through_gateway: false,
            instance: peer.instance.as_ref().map(ToString::to_string),
            level: conn.replica.and_then(|replica| replica.level),
            callee: peer.spiffe.to_string(),
            is_new: self.opened.is_some(),
            tls: conn.io.agreed().map(tls_of),
        });
    }

    /// An attempt failed, and there will be another.
    pub(crate) fn fail_attempt(&mut self, code: ErrorCode, now: Instant) {
        if let Some(sent) = self.sent.take() {
            *self.failed.get_or_insert_default() += now.saturating_duration_since(sent);
        }
        let (address, instance) = match self.connection.take() {
            Some(connection) => (Some(connection.address), connection.instance),
            None => (None, None),
        };
        self.add_failed(FailedAttempt { code: code.word().to_owned(), address, instance });
    }

    /// A connection that it waits for could not be made.
    pub(crate) fn fail_dial(&mut self, code: ErrorCode, address: Option<SocketAddr>) {
        let address = address.map(|address| address.to_string());
        self.add_failed(FailedAttempt { code: code.word().to_owned(), address, instance: None });
    }

    fn add_failed(&mut self, failed: FailedAttempt) {
        if self.failed_attempts.len() < FAILED_ATTEMPTS_LIMIT {
            self.failed_attempts.push(failed);
        }
    }

    /// Reads the callee's part of the trace, or the failure there, from the head of a response.
    pub(crate) fn read_response(&mut self, head: &ResponseHead) {
        self.callee = head.fields.value(headers::PART).and_then(CalleePart::parse);
        let text = |name| std::str::from_utf8(head.fields.value(name)?).ok();
        let code = text(headers::ERROR).and_then(ErrorCode::from_word);
        self.failure = code.map(|code| Failure {
            code: code.word().to_owned(),
            reported_by: text(headers::HOP)
                .filter(|hop| hop.len() <= HOP_BYTES)
                .unwrap_or("?")
                .to_owned(),
            at: Stage::of(code, true),
        });
    }

    pub(crate) fn admission(&self) -> Option<Admission> {
        self.callee.as_ref().map(|part| part.admission.clone())
    }

    /// The limit that the callee's sidecar has found it over.
    pub(crate) fn limit(&self) -> Option<OverLimit> {
        self.callee.as_ref().and_then(|part| part.limit)
    }

    /// Where the time went since `started`.
    pub(crate) fn times(&mut self, started: Instant, now: Instant) -> Times {
        self.end_wait(now);
        let since = |at: Instant| micros(now.saturating_duration_since(at));
        let mut times = Times {
            total: since(started),
            discovery: self.discovery.map(micros),
            connection: self.in_line.map(micros),
            connect: self.opened.map(|opened| micros(opened.connect)),
            handshake: self.opened.map(|opened| micros(opened.handshake)),
            failed_attempts: self.failed.map(micros),
            round_trip: self.sent.map(since),
            ..Times::default()
        };
        if let Some(part) = &self.callee {
            times.add_part(part);
        }
        times.settle();
        times
    }
}

impl CalleeTrace {
    /// The callee's part of the trace of a request that came at `started`, once its app has answered
    /// or cannot answer.
    pub(crate) fn part(&self, started: Instant, now: Instant) -> CalleePart {
        let app = self.sent.map(|sent| now.saturating_duration_since(sent));
        let total = now.saturating_duration_since(started);
        CalleePart {
            sidecar_us: micros(total.saturating_sub(app.unwrap_or_default())),
            app_us: app.map(micros),
            admission: self.admission.clone(),
            limit: self.limit,
        }
    }
}

fn tls_of(agreed: Agreed) -> Tls {
    let version = ProtocolVersion::as_str(&agreed.version);
    let version =
        version.map_or("?".to_owned(), |v| v.trim_start_matches("TLSv").replace('_', "."));
    let cipher = CipherSuite::as_str(&agreed.cipher).map(str::to_owned);
    let cipher = cipher.unwrap_or_else(|| "?".to_owned());
    Tls { version, cipher, is_resumed: agreed.is_resumed }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn time_is_put_down_to_what_was_waited_for() {
        let started = Instant::now();
        let mut part = CallerTrace::default();
        part.wait(WaitsFor::Discovery, started + MS);
        part.wait(WaitsFor::Connection, started + 11 * MS);
        let times = part.times(started, started + 14 * MS);
        assert_eq!((times.total, times.discovery), (14_000, Some(10_000)));
        assert_eq!((times.connection, times.round_trip), (Some(3000), None));
        assert_eq!(times.caller_sidecar, 1000);
    }

    #[test]
    fn failed_attempts_are_recorded_up_to_a_limit() {
        let now = Instant::now();
        let mut part = CallerTrace { sent: Some(now), ..CallerTrace::default() };
        part.fail_attempt(ErrorCode::AppUnreachable, now + 2 * MS);
        let address = "127.0.0.1:1".parse().ok();
        for _ in 0..3 * FAILED_ATTEMPTS_LIMIT {
            part.fail_dial(ErrorCode::Unreachable, address);
        }
        assert_eq!(part.failed_attempts.len(), FAILED_ATTEMPTS_LIMIT);
        assert_eq!(part.failed_attempts[0].code, "ERR_APP_UNREACHABLE");
        assert_eq!(part.failed_attempts[1].address.as_deref(), Some("127.0.0.1:1"));
        assert_eq!(part.times(now, now + 5 * MS).failed_attempts, Some(2000));
    }

    #[test]
    fn malformed_trace_fields_of_a_peer_are_ignored() {
        let now = Instant::now();
        let mut part = CallerTrace { sent: Some(now), ..CallerTrace::default() };
        let mut head = ResponseHead::new(503);
        head.fields.push(headers::PART, b"v=1;sidecar_us=100;app_us=900;admission=-");
        head.fields.push(headers::ERROR, b"ERR_CLOSED_EARLY");
        head.fields.push(headers::HOP, b"sidecar stock.default.east");
        part.read_response(&head);
        let times = part.times(now, now + 3 * MS);
        assert_eq!((times.network, times.app), (Some(2000), Some(900)));
        assert_eq!(part.admission(), Some(Admission::Unprotected));
        assert_eq!(part.failure.as_ref().unwrap().at, Stage::App);
        let mut nonsense = ResponseHead::new(200);
        nonsense.fields.push(headers::PART, &[b'v'; 4000]);
        nonsense.fields.push(headers::ERROR, b"E1");
        nonsense.fields.push(headers::HOP, &[b'h'; 4000]);
        part.read_response(&nonsense);
        assert_eq!((part.admission(), part.failure.as_ref()), (None, None));
        assert_eq!(part.times(now, now + 3 * MS).network, None);
    }

    #[test]
    fn the_callees_part_is_the_sidecars_and_the_apps() {
        let started = Instant::now();
        let mut trace = CalleeTrace { admission: Admission::NotRefused, limit: None, sent: None };
        let part = trace.part(started, started + 4 * MS);
        assert_eq!((part.sidecar_us, part.app_us), (4000, None));
        trace.sent = Some(started + MS);
        let part = trace.part(started, started + 4 * MS);
        assert_eq!((part.sidecar_us, part.app_us), (1000, Some(3000)));
    }
}
