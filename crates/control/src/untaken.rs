//! Answers on their way to whoever asked. What the peer of a connection does not take is held for
//! him; who takes nothing for long loses his connection, and sooner where all of them together
//! have left too much.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use tokio::time::Instant;
use tonic::body::Body;
use tower::{Layer, Service};

use crate::listener::Peer;

/// For a part of an answer to be taken; the largest has some 1 MiB.
const TAKE_TIMEOUT: Duration = Duration::from_secs(60);
/// The same while more is held for all connections together than [`UNTAKEN_BYTES`].
const CROWDED_TAKE_TIMEOUT: Duration = Duration::from_secs(15);
const UNTAKEN_BYTES: usize = 256 << 20;

/// What one connection's peer has not taken.
#[derive(Debug)]
pub(crate) struct Untaken {
    parts: Mutex<Parts>,
    /// Bytes of all connections.
    total: Arc<AtomicUsize>,
}

/// When each part of an answer was made. Later ones have higher numbers.
#[derive(Default, Debug)]
struct Parts {
    next: u64,
    since: BTreeMap<u64, Instant>,
}

/// A part of an answer, until all of it has been written.
struct Part {
    bytes: Bytes,
    number: u64,
    untaken: Arc<Untaken>,
}

impl Untaken {
    pub(crate) fn new(total: Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Self { parts: Mutex::default(), total })
    }

    /// The same bytes, which count as untaken for as long as they live.
    fn hold(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.total.fetch_add(bytes.len(), Ordering::Relaxed);
        let mut parts = self.parts();
        let number = parts.next;
        parts.next += 1;
        parts.since.insert(number, Instant::now());
        drop(parts);
        Bytes::from_owner(Part { bytes, number, untaken: self.clone() })
    }

    /// Whether the peer has had time enough for the oldest of it.
    pub(crate) fn is_overdue(&self) -> bool {
        let Some(since) = self.parts().since.first_key_value().map(|(_, since)| *since) else {
            return false;
        };
        let is_crowded = self.total.load(Ordering::Relaxed) > UNTAKEN_BYTES;
        let timeout = if is_crowded { CROWDED_TAKE_TIMEOUT } else { TAKE_TIMEOUT };
        since.elapsed() >= timeout
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.untaken.total.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        self.untaken.parts().since.remove(&self.number);
    }
}

/// Has the answers of a service counted at the connection that asked.
#[derive(Clone, Copy)]
pub(crate) struct CountUntaken;

/// A service whose answers are counted.
#[derive(Clone)]
pub(crate) struct Counted<S>(S);

impl<S> Layer<S> for CountUntaken {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted(inner)
    }
}

impl<S> Service<http::Request<Body>> for Counted<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let untaken = request.extensions().get::<Peer>().map(|peer| peer.untaken.clone());
        let answering = self.0.call(request);
        Box::pin(async move {
            let answer = answering.await?;
            let Some(untaken) = untaken else { return Ok(answer) };
            Ok(answer.map(|body| {
                Body::new(body.map_frame(move |frame| frame.map_data(|data| untaken.hold(data))))
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    fn untaken() -> (Arc<Untaken>, Arc<AtomicUsize>) {
        let total = Arc::<AtomicUsize>::default();
        (Untaken::new(total.clone()), total)
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_an_answer_for_long_is_overdue() {
        let (untaken, total) = untaken();
        assert!(!untaken.is_overdue());
        let first = untaken.hold(Bytes::from_static(b"first"));
        assert_eq!((&first[..], total.load(Ordering::Relaxed)), (&b"first"[..], 5));
        tokio::time::advance(TAKE_TIMEOUT - MOMENT).await;
        let second = untaken.hold(Bytes::from_static(b"second"));
        assert!(!untaken.is_overdue());
        tokio::time::advance(MOMENT).await;
        assert!(untaken.is_overdue());
        // A piece of it that is still to be written is not taken.
        let rest = first.slice(4..);
        drop(first);
        assert!(untaken.is_overdue());
        drop(rest);
        assert!(!untaken.is_overdue(), "the next one is new");
        drop(second);
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn where_much_is_left_there_is_less_time() {
        let (idle, total) = untaken();
        let left = idle.hold(Bytes::from_static(b"little"));
        tokio::time::advance(CROWDED_TAKE_TIMEOUT).await;
        assert!(!idle.is_overdue());
        let greedy = Untaken::new(total);
        let much = greedy.hold(vec![0; UNTAKEN_BYTES + 1].into());
        assert!(idle.is_overdue() && !greedy.is_overdue());
        drop(left);
        assert!(!idle.is_overdue(), "who takes what there is has nothing to fear");
        tokio::time::advance(CROWDED_TAKE_TIMEOUT).await;
        assert!(greedy.is_overdue());
        drop(much);
        assert!(!greedy.is_overdue());
    }
}
