//! The app's request that its sidecar ends: in order, or by force.

use std::time::Duration;

use hyper::HeaderMap;
use tokio::sync::watch;

/// The field, or the metadata, by which an app requests the end by force.
pub(crate) const FORCE: &str = "dapr-force-shutdown";
/// Time for the answer to such a request to arrive.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// What was requested. The end by force comes after one in order, too.
#[derive(Debug)]
pub(crate) struct EndRequest(watch::Sender<Requested>);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Requested {
    Nothing,
    InOrder,
    ByForce,
}

impl Default for EndRequest {
    fn default() -> Self {
        Self(watch::Sender::new(Requested::Nothing))
    }
}

impl EndRequest {
    /// Requests the end, by force if the fields of the request have [`FORCE`].
    pub(crate) fn make(&self, fields: &HeaderMap) {
        let is_true =
            |value: &hyper::header::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"true");
        let by_force = fields.get_all(FORCE).iter().any(is_true);
        let asked = if by_force { Requested::ByForce } else { Requested::InOrder };
        self.0.send_if_modified(|now| {
            let is_more = asked > *now;
            *now = asked.max(*now);
            is_more
        });
    }

    /// Completes once the end in order was requested; not if it was requested by force.
    pub(crate) async fn in_order(&self) {
        self.until(Requested::InOrder).await;
    }

    /// Completes once the end by force was requested and its answer has had time to arrive.
    pub(crate) async fn by_force(&self) {
        self.until(Requested::ByForce).await;
        tokio::time::sleep(ANSWER_TIME).await;
    }

    async fn until(&self, wanted: Requested) {
        // The sender lives as long as this value.
        let _ = self.0.subscribe().wait_for(|now| *now == wanted).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[tokio::test(start_paused = true)]
    async fn a17_the_end_by_force_waits_for_nothing_but_its_answer() {
        let request = EndRequest::default();
        let mut fields = HeaderMap::new();
        request.make(&fields);
        request.in_order().await;
        fields.insert(FORCE, HeaderValue::from_static("True"));
        request.make(&fields);
        let asked = tokio::time::Instant::now();
        request.by_force().await;
        assert_eq!(asked.elapsed(), ANSWER_TIME);
        request.make(&HeaderMap::new());
        request.by_force().await;
    }
}
