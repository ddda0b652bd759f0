//! Reads whole bodies that are to become one message: within a limit over all of them, of which each
//! caller has a share, and within a time that grows with what has come.

mod pace;
mod shares;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body;
use tollway_model::ErrorCode;

pub(crate) use self::pace::Pace;
pub use self::pace::{BODY_BYTES_PER_SECOND, BODY_TIME};
use self::shares::{BodyMark, Shares};
use crate::actors::Problem;

/// Largest message of the API, and of apps that are called by message, in bytes; the default.
pub const MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// Most bytes of bodies of the own app that a sidecar holds at one time, over all calls.
pub const COLLECTED_BODY_BYTES: usize = 64 * 1024 * 1024;

/// Most bytes of bodies of other sidecars that a sidecar holds at one time, over all calls. A caller has
/// half of it at most; if it is full, the caller that has most gives way.
pub const INBOUND_BODY_BYTES: usize = 64 * 1024 * 1024;

/// Why a body could not be read whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CollectError {
    /// It is larger than a message may be.
    TooLarge,
    /// All bodies together would exceed their limit, or those of this caller its share.
    LimitReached,
    /// The sender broke it off.
    CutOff,
    /// It comes more slowly than a body may.
    TooSlow,
}

impl CollectError {
    /// What is reported of a body of `what`, which may have so many bytes.
    pub(crate) fn problem(self, what: &str, message_bytes: usize) -> Problem {
        let (code, text) = match self {
            Self::TooLarge => (
                ErrorCode::MalformedRequest,
                format!("the body is larger than the {message_bytes} bytes that {what} may have"),
            ),
            Self::CutOff => (ErrorCode::MalformedRequest, "the body ended early".to_owned()),
            Self::LimitReached => {
                (ErrorCode::Overloaded, "too many bodies are held already; try again".to_owned())
            }
            Self::TooSlow => (
                ErrorCode::BodyTimedOut,
                format!(
                    "the body came too slowly; it may take {} s, and 1 s for every \
                     {BODY_BYTES_PER_SECOND} bytes",
                    BODY_TIME.as_secs()
                ),
            ),
        };
        Problem::new(code, text)
    }
}

/// Reads bodies of one caller within a limit that it shares with others. Clones are of the same caller.
#[derive(Clone)]
pub(crate) struct BodyCollector {
    shares: Arc<Mutex<Shares>>,
    caller: Arc<str>,
    message_bytes: usize,
    in_daprds_place: bool,
}

/// A body, which counts towards the limit until it is dropped.
pub(crate) struct CollectedBody {
    pub(crate) bytes: Vec<u8>,
    counted: usize,
    /// Set while it is read.
    reading: Option<Arc<BodyMark>>,
    of: BodyCollector,
}

impl BodyCollector {
    /// Of `bytes` in all, and `message_bytes` for one body. A single caller has all of them.
    pub(crate) fn new(bytes: usize, message_bytes: usize) -> Self {
        Self::with_share(bytes, bytes, message_bytes)
    }

    /// The same for many callers, each of which has half at most, or one body.
    pub(crate) fn shared(bytes: usize, message_bytes: usize) -> Self {
        Self::with_share(bytes, (bytes / 2).max(message_bytes), message_bytes)
    }

    fn with_share(bytes: usize, share: usize, message_bytes: usize) -> Self {
        let shares = Arc::new(Mutex::new(Shares::new(bytes, share)));
        Self { shares, caller: Arc::from(""), message_bytes, in_daprds_place: false }
    }

    /// For the bodies of this caller.
    pub(crate) fn of(&self, caller: &str) -> Self {
        Self { caller: Arc::from(caller), ..self.clone() }
    }

    /// For bodies of so many bytes each.
    pub(crate) fn limited(&self, message_bytes: usize) -> Self {
        Self { message_bytes, ..self.clone() }
    }

    /// Whether bodies are refused as daprd refuses them.
    pub(crate) fn in_daprds_place(self, in_daprds_place: bool) -> Self {
        Self { in_daprds_place, ..self }
    }

    pub(crate) fn is_in_daprds_place(&self) -> bool {
        self.in_daprds_place
    }

    /// Largest body, in bytes.
    pub(crate) fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// An empty body.
    pub(crate) fn nothing(&self) -> CollectedBody {
        CollectedBody { bytes: Vec::new(), counted: 0, reading: None, of: self.clone() }
    }

    /// Reads a body to its end. Bytes count when they arrive, not when they are announced, so a
    /// slow sender takes nothing from the others.
    ///
    /// # Errors
    /// [`CollectError`].
    pub(crate) async fn collect<B>(&self, mut body: B) -> Result<CollectedBody, CollectError>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let mut collected = self.nothing();
        let mut pace = Pace::new();
        loop {
            let frame = tokio::select! {
                frame = pace.wait(body.frame()) => frame.ok_or(CollectError::TooSlow)?,
                () = collected.gives_way() => return Err(CollectError::LimitReached),
            };
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(|_| CollectError::CutOff)?.into_data() else { continue };
            if collected.bytes.len() + data.len() > self.message_bytes {
                return Err(CollectError::TooLarge);
            }
            collected.add(&data)?;
            pace.received(data.len());
        }
        collected.end()?;
        Ok(collected)
    }

    fn shares(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CollectedBody {
    /// Adds bytes to the body.
    ///
    /// # Errors
    /// [`CollectError::LimitReached`].
    pub(crate) fn add(&mut self, data: &[u8]) -> Result<(), CollectError> {
        let (mut shares, caller) = (self.of.shares(), &self.of.caller);
        let reading = self.reading.get_or_insert_with(|| shares.begin(caller));
        let is_taken = shares.take(caller, reading, data.len());
        drop(shares);
        is_taken.then_some(()).ok_or(CollectError::LimitReached)?;
        self.counted += data.len();
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// It is whole, and gives way to no other.
    fn end(&mut self) -> Result<(), CollectError> {
        let Some(reading) = self.reading.take() else { return Ok(()) };
        let has_ended = self.of.shares().end(&self.of.caller, &reading);
        if !has_ended {
            self.counted = 0;
        }
        has_ended.then_some(()).ok_or(CollectError::LimitReached)
    }

    /// Returns when another caller's body takes its place.
    async fn gives_way(&self) {
        match &self.reading {
            Some(reading) => reading.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Takes the bytes out, to be sent on. They no longer count towards the limit.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.give_back();
        std::mem::take(&mut self.bytes)
    }

    fn give_back(&mut self) {
        let (counted, reading) = (std::mem::take(&mut self.counted), self.reading.take());
        self.of.shares().give_back(&self.of.caller, reading.as_ref(), counted);
    }
}

impl Drop for CollectedBody {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;

    use super::*;

    async fn collect(bodies: &BodyCollector, bytes: usize) -> Result<CollectedBody, CollectError> {
        bodies.collect(Full::new(Bytes::from(vec![7; bytes]))).await
    }

    #[tokio::test]
    async fn all_bodies_together_are_bounded_and_given_back() {
        let bodies = BodyCollector::new(MESSAGE_BYTES + 100, MESSAGE_BYTES);
        let first = collect(&bodies, MESSAGE_BYTES).await.unwrap();
        assert_eq!(first.bytes.len(), MESSAGE_BYTES);
        let second = collect(&bodies, 100).await.unwrap();
        assert_eq!(collect(&bodies, 1).await.err(), Some(CollectError::LimitReached));
        let large = collect(&bodies, MESSAGE_BYTES + 1).await;
        assert_eq!(large.err(), Some(CollectError::TooLarge));
        drop(second);
        assert!(collect(&bodies, 100).await.is_ok() && collect(&bodies, 100).await.is_ok());
        drop(first);
        assert!(collect(&bodies, MESSAGE_BYTES).await.is_ok());
    }

    #[tokio::test]
    async fn a_body_that_is_sent_on_is_given_back_once() {
        let bodies = BodyCollector::new(MESSAGE_BYTES + 100, MESSAGE_BYTES);
        let mut sent = collect(&bodies, MESSAGE_BYTES).await.unwrap();
        assert_eq!(sent.take().len(), MESSAGE_BYTES);
        assert!(collect(&bodies, MESSAGE_BYTES).await.is_ok(), "what was sent on counts no more");
        drop(sent);
        let all = collect(&bodies, MESSAGE_BYTES).await;
        let rest = collect(&bodies, 101).await.err();
        assert!(all.is_ok() && rest == Some(CollectError::LimitReached), "given back once");
    }

    /// A body that its sender does not end, read as far as it has come.
    async fn held(bodies: &BodyCollector, bytes: usize) -> Held {
        let (sender, parts) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, &str>>(1);
        let of = bodies.clone();
        let reading = tokio::spawn(async move {
            of.collect(StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(parts))).await
        });
        let before = bodies.shares().held_by(&bodies.caller);
        sender.send(Ok(Frame::data(Bytes::from(vec![7; bytes])))).await.unwrap();
        while bodies.shares().held_by(&bodies.caller) == before && !reading.is_finished() {
            tokio::task::yield_now().await;
        }
        Held { sender, reading }
    }

    struct Held {
        sender: tokio::sync::mpsc::Sender<Result<Frame<Bytes>, &'static str>>,
        reading: tokio::task::JoinHandle<Result<CollectedBody, CollectError>>,
    }

    /// The harm: a peer begins many bodies and ends none, and no other caller has its body read.
    #[tokio::test(start_paused = true)]
    async fn bodies_that_a_caller_does_not_end_give_way_to_those_of_others() {
        let bodies = BodyCollector::shared(1000, 100);
        let (evil, other, web) = (bodies.of("evil"), bodies.of("other"), bodies.of("web"));
        let mut of_evil = Vec::new();
        for _ in 0..5 {
            of_evil.push(held(&evil, 100).await);
        }
        let too_much = held(&evil, 100).await;
        assert_eq!(too_much.reading.await.unwrap().err(), Some(CollectError::LimitReached));
        let mut of_other = Vec::new();
        for _ in 0..5 {
            of_other.push(held(&other, 100).await);
        }
        // All is taken, and the next caller has its body nevertheless.
        let whole = collect(&web, 100).await.unwrap();
        let second = collect(&web, 100).await.unwrap();
        let gone = of_evil.iter().chain(&of_other).filter(|held| held.reading.is_finished());
        tokio::task::yield_now().await;
        assert_eq!(gone.count(), 2, "those of the callers that had most");
        // What is whole gives way to none.
        let mut more = Vec::new();
        for _ in 0..20 {
            more.push(held(&evil, 100).await);
        }
        assert_eq!(bodies.shares().held_by("web"), 200);
        drop((whole, second));
        assert_eq!(bodies.shares().held_by("web"), 0);
        for held in of_evil.into_iter().chain(of_other).chain(more) {
            drop(held.sender);
            drop(held.reading.await.unwrap());
        }
        assert!(bodies.shares().is_unused(), "all is given back");
    }

    /// The harm: a peer sends a byte now and then, and its bodies are held for as long as it likes.
    #[tokio::test(start_paused = true)]
    async fn a_body_has_a_least_speed() {
        let bodies = BodyCollector::new(MESSAGE_BYTES, MESSAGE_BYTES);
        let slow = |pause: Duration, part: usize| {
            let parts = tokio_stream::StreamExt::throttle(
                tokio_stream::iter(
                    (0..64).map(move |_| Ok::<_, &str>(Frame::data(Bytes::from(vec![7; part])))),
                ),
                pause,
            );
            let bodies = bodies.clone();
            async move { bodies.collect(StreamBody::new(Box::pin(parts))).await.err() }
        };
        let began = tokio::time::Instant::now();
        assert_eq!(slow(Duration::from_millis(900), 1).await, Some(CollectError::TooSlow));
        assert_eq!(began.elapsed().as_secs(), BODY_TIME.as_secs());
        let second = BODY_BYTES_PER_SECOND;
        assert_eq!(slow(Duration::from_secs(1), second).await, None, "just fast enough");
        assert_eq!(slow(Duration::from_secs(2), second).await, Some(CollectError::TooSlow));
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_an_error_and_gives_back_its_bytes() {
        let bodies = BodyCollector::new(10, 10);
        let parts = [Ok(Frame::data(Bytes::from_static(b"12345678"))), Err("reset")];
        let broken = bodies.collect(StreamBody::new(tokio_stream::iter(parts))).await;
        assert_eq!(broken.err(), Some(CollectError::CutOff));
        assert!(collect(&bodies, 10).await.is_ok());
    }
}
