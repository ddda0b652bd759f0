//! Counts the bodies of answers in the send backlog of their connection.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::BodyExt as _;
use tonic::body::Body;
use tower::{Layer, Service};

use super::caller::Peer;

/// A layer that counts answers in the backlog of the connection that they are sent on.
#[derive(Clone, Copy)]
pub(crate) struct TrackSendBacklog;

/// A service whose answers are counted.
#[derive(Clone)]
pub(crate) struct Tracked<S>(S);

impl<S> Layer<S> for TrackSendBacklog {
    type Service = Tracked<S>;

    fn layer(&self, inner: S) -> Tracked<S> {
        Tracked(inner)
    }
}

impl<S> Service<http::Request<Body>> for Tracked<S>
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
        let backlog = request.extensions().get::<Peer>().map(|peer| peer.backlog.clone());
        let answering = self.0.call(request);
        Box::pin(async move {
            let answer = answering.await?;
            let Some(backlog) = backlog else { return Ok(answer) };
            Ok(answer.map(|body| {
                Body::new(body.map_frame(move |frame| frame.map_data(|data| backlog.hold(data))))
            }))
        })
    }
}
