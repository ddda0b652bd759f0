//! Calls of apps under rules. The data loop hands them over; each attempt goes back into it as a
//! call of the app.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response};
use tollway_model::{ErrorCode, ServiceName};
use tollway_proxy::ERROR_FIELD;
use tollway_routing::Rules;
use tonic::body::Body;

use super::{Answered, CallBody, ResiliencyState, call_body};
use crate::actors::Problem;
use crate::body_collector::BodyCollector;
use crate::loopback::Loopback;

const APP_ID: HeaderName = HeaderName::from_static("dapr-app-id");

/// Makes calls of apps under rules.
pub(crate) struct AppCalls {
    resiliency: Arc<ResiliencyState>,
    home: ServiceName,
    loopback: Arc<dyn Loopback>,
    bodies: BodyCollector,
}

impl AppCalls {
    pub(crate) fn new(
        resiliency: Arc<ResiliencyState>,
        home: ServiceName,
        loopback: Arc<dyn Loopback>,
        bodies: BodyCollector,
    ) -> Self {
        Self { resiliency, home, loopback, bodies }
    }

    /// How the app names a service.
    pub(crate) fn short_name(&self, service: &str) -> String {
        let name = ServiceName::parse(service, &self.home);
        name.map_or_else(|_| service.to_owned(), |name| name.short(&self.home))
    }

    /// Makes a call of `service` that the data loop has handed over.
    pub(crate) async fn answer(
        &self,
        service: &str,
        request: Request<Body>,
        is_grpc: bool,
    ) -> Response<Body> {
        match self.call(service, request, is_grpc).await {
            Ok(answer) => answer,
            Err(problem) if is_grpc => {
                let mut answer = problem.status().into_http();
                let word = HeaderValue::from_static(problem.code.word());
                answer.headers_mut().insert(ERROR_FIELD, word);
                answer
            }
            Err(problem) => problem.response(),
        }
    }

    async fn call(&self, service: &str, request: Request<Body>, is_grpc: bool) -> Answered {
        let (mut head, body) = request.into_parts();
        let malformed = |why: &dyn std::fmt::Display| {
            Problem::new(ErrorCode::MalformedRequest, format!("the call has no target: {why}"))
        };
        let target = ServiceName::parse(service, &self.home).map_err(|error| malformed(&error))?;
        head.headers.remove(APP_ID);
        let name = HeaderValue::try_from(target.to_string()).map_err(|error| malformed(&error))?;
        head.headers.insert(APP_ID, name);
        let nothing = Rules::default();
        let rules = self.resiliency.of_app(&target, &self.home).unwrap_or(&nothing);
        let key = format!("{target} {}", head.uri.path());
        let label = format!("app_{}", target.app);
        match call_body(&self.bodies, rules, &head, body, is_grpc).await? {
            CallBody::Whole(mut held) => {
                let bytes = Bytes::from(std::mem::take(&mut held.bytes));
                let attempt = || self.attempt(&head, Body::new(Full::new(bytes.clone())));
                self.resiliency.run(rules, &label, &[key], true, attempt).await
            }
            CallBody::Stream(body) => {
                let mut body = Some(Body::new(body));
                let attempt = || self.attempt(&head, body.take().unwrap_or_default());
                self.resiliency.run(rules, &label, &[key], false, attempt).await
            }
        }
    }

    /// Makes a call by message under the rules for its target. A name that is not valid has no
    /// rules.
    pub(crate) async fn by_message(&self, id: &str, request: Request<Full<Bytes>>) -> Answered {
        let (head, body) = request.into_parts();
        let nothing = Rules::default();
        let target = ServiceName::parse(id, &self.home).ok();
        let rules = target.as_ref().and_then(|target| self.resiliency.of_app(target, &self.home));
        let name = target.as_ref().map_or_else(|| id.to_owned(), ToString::to_string);
        let key = format!("{name} {}", head.uri.path());
        let attempt = || self.attempt(&head, Body::new(body.clone()));
        let label = format!("app_{}", target.as_ref().map_or(id, |target| target.app.as_str()));
        self.resiliency.run(rules.unwrap_or(&nothing), &label, &[key], true, attempt).await
    }

    async fn attempt(&self, head: &Parts, body: Body) -> Answered {
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = head.uri.clone();
        *request.headers_mut() = head.headers.clone();
        let answer = self.loopback.call(request).await.map_err(|error| {
            let text = format!("the call broke off within the sidecar: {error}");
            Problem::new(ErrorCode::ClosedEarly, text)
        })?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests;
