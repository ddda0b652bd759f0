//! Reads whole bodies that are to become one message, within a limit over all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body;

/// Largest message of the API, and of apps that are called by message, in bytes; the default.
pub const MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// Most bytes of bodies that a sidecar holds at one time, over all calls.
pub const COLLECTED_BODY_BYTES: usize = 64 * 1024 * 1024;

/// Why a body could not be read whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CollectError {
    /// It is larger than a message may be.
    TooLarge,
    /// All bodies together would exceed their limit.
    LimitReached,
    /// The sender broke it off.
    CutOff,
}

/// Reads bodies within a common limit. Clones share the limit.
#[derive(Clone)]
pub(crate) struct BodyCollector {
    /// Bytes until the limit is reached.
    left: Arc<AtomicUsize>,
    message_bytes: usize,
}

/// A body, which counts towards the limit until it is dropped.
pub(crate) struct CollectedBody {
    pub(crate) bytes: Vec<u8>,
    counted: usize,
    of: BodyCollector,
}

impl BodyCollector {
    /// Of `bytes` in all, and `message_bytes` for one body.
    pub(crate) fn new(bytes: usize, message_bytes: usize) -> Self {
        Self { left: Arc::new(AtomicUsize::new(bytes)), message_bytes }
    }

    /// Largest body, in bytes.
    pub(crate) fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// An empty body.
    pub(crate) fn nothing(&self) -> CollectedBody {
        CollectedBody { bytes: Vec::new(), counted: 0, of: self.clone() }
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
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| CollectError::CutOff)?.into_data() else { continue };
            if collected.bytes.len() + data.len() > self.message_bytes {
                return Err(CollectError::TooLarge);
            }
            collected.add(&data)?;
        }
        Ok(collected)
    }
}

impl CollectedBody {
    /// Adds bytes to the body.
    ///
    /// # Errors
    /// [`CollectError::LimitReached`].
    pub(crate) fn add(&mut self, data: &[u8]) -> Result<(), CollectError> {
        self.count(data.len())?;
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Takes the bytes out, to be sent on. They no longer count towards the limit.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.of.left.fetch_add(std::mem::take(&mut self.counted), Ordering::Relaxed);
        std::mem::take(&mut self.bytes)
    }

    fn count(&mut self, bytes: usize) -> Result<(), CollectError> {
        let smaller = |left: usize| left.checked_sub(bytes);
        let counted = self.of.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, smaller);
        counted.map_err(|_| CollectError::LimitReached)?;
        self.counted += bytes;
        Ok(())
    }
}

impl Drop for CollectedBody {
    fn drop(&mut self) {
        self.of.left.fetch_add(self.counted, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
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

    #[tokio::test]
    async fn a_body_that_breaks_off_is_an_error_and_gives_back_its_bytes() {
        let bodies = BodyCollector::new(10, 10);
        let parts = [Ok(Frame::data(Bytes::from_static(b"12345678"))), Err("reset")];
        let broken = bodies.collect(StreamBody::new(tokio_stream::iter(parts))).await;
        assert_eq!(broken.err(), Some(CollectError::CutOff));
        assert!(collect(&bodies, 10).await.is_ok());
    }
}
